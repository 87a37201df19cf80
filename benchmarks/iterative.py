"""The iterative correction against its literal form and against one bare Cholesky factorization.

    python benchmarks/iterative.py [--device cuda] [--sizes 1000 2000 3000 8000] ...

(a) is Eq. 16-17 as printed: two general solves with all the past in every block. (b) is
torch.linalg.cholesky of the same matrix, the limit: no exact method that factorizes it can be
faster than that (ours is not torch's factorization, so it can come out below 1). Streamed is
TargetCorrector, fed in portions of each of the sizes asked for; its kernel, a copy of K that was
checked, is made before the clock starts. (c) is what a stream in blocks costs at least: the same
targets from torch calls written one after the other, without a check, probe or fork. Every time is
the best of a few; the ratios come from one run, and growth is the slope of log time in log n.

The bars: ours at most 2 times (b) at n = 1,000 and 1.2 times at 3,000 and above; on an H200 at most
1.5 times at 30,000; streamed at most 2 times ours.
"""

import argparse
import math
import platform
import time
from collections.abc import Callable

import torch
from torch import Tensor

import retarget as rt
from retarget.kernels import PrecomputedKernel

BLOCK, BATCH, OUTPUTS, GAMMA, RIDGE, RATE = 20, 4, 2, 0.7, 0.1, 0.2
PANEL = 12 * BLOCK  # rows of the factor that are kept together in (c)
LEARNER = rt.SGD(lr=RATE, batch_size=BATCH, reduction="sum")


def make_problem(n: int, device: str) -> tuple[Tensor, Tensor]:
    """A Gram matrix of random features and random targets, float64."""
    generator = torch.Generator().manual_seed(n)
    X = torch.randn(n, 50, generator=generator, dtype=torch.float64).to(device)
    Y = torch.randn(n, OUTPUTS, generator=generator, dtype=torch.float64).to(device)
    return rt.RBF(10.0)(X), Y


def literal_targets(K: Tensor, Y: Tensor) -> Tensor:
    """Eq. 16-17 with a general solve for the past in every block."""
    n, Z = len(K), torch.zeros_like(Y)
    step = torch.arange(n, device=K.device) // BATCH
    online = torch.eye(n, dtype=K.dtype, device=K.device) / RATE + K * (step[:, None] > step)
    for start in range(0, n, BLOCK):
        p, b = slice(0, start), slice(start, min(start + BLOCK, n))
        eye = torch.eye(b.stop - b.start, dtype=K.dtype, device=K.device)
        K_nn, K_np = K[b, b], K[b, p]
        f_on, f_off, Q = torch.zeros_like(Y[b]), torch.zeros_like(Y[b]), GAMMA * eye + K_nn
        if start:
            past = K[p, p] + GAMMA * torch.eye(start, dtype=K.dtype, device=K.device)
            solved = torch.linalg.solve(past, torch.cat([Y[p], K_np.mT], dim=1))
            f_off, Q = K_np @ solved[:, :OUTPUTS], Q - K_np @ solved[:, OUTPUTS:]
            f_on = K_np @ torch.linalg.solve(online[p, p], Z[p])
        W = online[b, b] @ torch.linalg.inv(K_nn + RIDGE * eye)
        C_off = GAMMA * W @ torch.linalg.inv(Q)
        Z[b] = Y[b] + (W - eye) @ (Y[b] - f_on) + C_off @ (f_off - Y[b])
    return Z


def our_targets(K: Tensor, Y: Tensor) -> Tensor:
    """The batch call."""
    return rt.iterative_targets(K, Y, LEARNER, GAMMA, BLOCK, RIDGE)


def streamed_targets(K: Tensor, portion: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The same, fed in portions."""
    kernel = PrecomputedKernel(K)

    def targets(_: Tensor, Y: Tensor) -> Tensor:
        corrector = rt.TargetCorrector(kernel, LEARNER, GAMMA, BLOCK, RIDGE)
        samples = torch.arange(len(Y), device=Y.device)
        parts = [corrector.correct(rows, Y[rows]) for rows in samples.split(portion)]
        return torch.cat([*parts, corrector.flush()])

    return targets


@torch.inference_mode()
def least_streamed_targets(K: Tensor, Y: Tensor) -> Tensor:
    """The same block after block, with nothing but the arithmetic."""
    samples, step = torch.arange(len(K), device=K.device), torch.arange(BLOCK, device=K.device)
    reach = RATE * (step[:, None] // BATCH > step // BATCH).to(K.dtype)
    coefficients, beta, targets = torch.empty_like(Y), torch.empty_like(Y), torch.empty_like(Y)
    panels: list[tuple[int, Tensor, Tensor]] = []  # of the factor: start, rectangle, triangle
    for first in range(0, len(K), BLOCK):
        b = slice(first, min(first + BLOCK, len(K)))
        size = b.stop - first
        K_rows = K[samples[b]].gather(1, samples[: b.stop].expand(size, -1))
        if first % PANEL == 0:
            panels.append((first, K.new_empty(PANEL, first), K.new_empty(PANEL, PANEL)))
        rows = K.new_empty(size, first)
        for start, left, square in panels:
            used = min(PANEL, first - start)
            p, triangle = slice(start, start + used), square[:used, :used].contiguous()
            rest = torch.addmm(K_rows[:, p], rows[:, :start], left[:used].mT, alpha=-1)
            rows[:, p] = torch.linalg.solve_triangular(triangle, rest.mT, upper=False).mT
        own, (start, left, square) = K_rows[:, first:], panels[-1]
        schur = torch.addmm(own, rows, rows.mT, alpha=-1)
        schur.diagonal().add_(GAMMA)
        corner = torch.linalg.cholesky(schur)
        here = slice(first - start, b.stop - start)
        left[here], square[here, : here.start] = rows[:, :start], rows[:, start:]
        square[here, here] = corner
        rest = torch.addmm(Y[b], rows, beta[:first], alpha=-1)
        beta[b] = torch.linalg.solve_triangular(corner, rest, upper=False)
        aim = Y[b] - GAMMA * torch.linalg.solve_triangular(corner.mT, beta[b], upper=True)
        inherited, settled = K_rows[:, :first] @ coefficients[:first], own.clone()
        settled.diagonal().add_(RIDGE)
        coefficients[b] = torch.cholesky_solve(aim - inherited, torch.linalg.cholesky(settled))
        errors = coefficients[b] / RATE
        targets[b] = torch.addmm(errors + inherited, own * reach[:size, :size], errors)
    return targets


def bare_cholesky(K: Tensor, _: Tensor) -> Tensor:
    """One factorization by torch and nothing else."""
    return torch.linalg.cholesky(K)


def best_time(
    function: Callable[[Tensor, Tensor], Tensor], K: Tensor, Y: Tensor, repeats: int
) -> float:
    """Seconds, the best of a few."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function(K, Y)
        result[-1, -1].item()  # on CUDA this waits for the result
        times.append(time.perf_counter() - start)
    return min(times)


def growth(sizes: list[int], times: list[float]) -> float:
    """The exponent of n that fits the times best."""
    x, y = [math.log(n) for n in sizes], [math.log(t) for t in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def relative_gap(got: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest entry."""
    return float((got - expected).abs().max() / expected.abs().max())


def main() -> None:
    """Prints the table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 2000, 3000, 4000, 8000])
    parser.add_argument("--literal-up-to", type=int, default=3000, metavar="N")
    parser.add_argument("--stream-up-to", type=int, default=4000, metavar="N")
    parser.add_argument("--portions", type=int, nargs="+", default=[BLOCK, 5 * BLOCK])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    device = options.device

    name = (
        torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"
    )
    print(f"retarget {rt.__version__}, torch {torch.__version__}, {platform.machine()}, {name}")
    print(f"float64, block {BLOCK}, batch {BATCH}, {OUTPUTS} outputs; times in seconds")
    header = ["n", "ours", "(b) bare", "ours/(b)", "(a) literal", "(a)/ours", "(c)", "(c)/ours"]
    for portion in options.portions:
        header += [f"by {portion}", f"by {portion}/ours"]
    print("".join(f"{title:>12}" for title in header))
    ours, bare, literal = [], [], []
    for n in options.sizes:
        K, Y = make_problem(n, device)
        shifted = K + GAMMA * torch.eye(n, dtype=K.dtype, device=device)
        our_targets(K, Y), bare_cholesky(shifted, Y)  # warm up
        ours.append(best_time(our_targets, K, Y, options.repeats))
        bare.append(best_time(bare_cholesky, shifted, Y, options.repeats))
        cells = [f"{ours[-1]:.4f}", f"{bare[-1]:.4f}", f"{ours[-1] / bare[-1]:.2f}", *[""] * 4]
        gaps = []
        if n <= options.literal_up_to:
            gaps.append(relative_gap(our_targets(K, Y), literal_targets(K, Y)))
            literal.append(best_time(literal_targets, K, Y, 1))
            cells[3:5] = [f"{literal[-1]:.3f}", f"{literal[-1] / ours[-1]:.0f}"]
        if n <= options.stream_up_to:
            gaps.append(relative_gap(least_streamed_targets(K, Y), our_targets(K, Y)))
            least = best_time(least_streamed_targets, K, Y, options.repeats)
            cells[5:7] = [f"{least:.4f}", f"{least / ours[-1]:.2f}"]
        for portion in options.portions if n <= options.stream_up_to else ():
            streamed = streamed_targets(K, portion)
            gaps.append(relative_gap(streamed(K, Y), our_targets(K, Y)))
            taken = best_time(streamed, K, Y, options.repeats)
            cells += [f"{taken:.4f}", f"{taken / ours[-1]:.2f}"]
        gap = f"   largest relative difference {max(gaps):.1e}" if gaps else ""
        print(f"{n:>12}" + "".join(f"{cell:>12}" for cell in cells) + gap)
    if len(options.sizes) > 1:
        exponents = f"growth: ours n^{growth(options.sizes, ours):.2f}"
        exponents += f", bare Cholesky n^{growth(options.sizes, bare):.2f}"
        if len(literal) > 1:
            exponents += f", literal n^{growth(options.sizes[: len(literal)], literal):.2f}"
        print(exponents)


if __name__ == "__main__":
    main()
