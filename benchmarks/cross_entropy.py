"""The iterative correction for cross-entropy against that for the squared error.

    OMP_NUM_THREADS=1 python benchmarks/cross_entropy.py [--sizes 1600 4000] [--exact-up-to 0]

Ten classes, blocks of 20, mini-batches of 4, float64. Three streams: digits of scikit-learn as they
come and class after class, and random features with noisy classes; both with an RBF kernel, which
is computed before the clock starts. Times are CPU seconds, the best of a few, and the ratios come
from one run. The limit is one bare Cholesky factorization of the same matrix, without which no
method here knows the offline learner.

Up to `--exact-up-to` samples (0: never) the correction is computed again with the offline learner
solved up to rounding after every block, as the formula has it, and the table says what the
tolerance changes: targets (their root mean square, and the difference's), and the probabilities
that a learner trained on them ends with for the stream, the largest difference.

The bar: at most 8 times the squared error at 1,600 samples with gamma = 1.
"""

import argparse
import platform
import time
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor

import retarget as rt
from retarget.engine.offline import logistic

BLOCK, CLASSES, RIDGE = 20, 10, 0.1
LEARNER = rt.SGD(lr=0.2, batch_size=4, reduction="sum")
STREAMS = ("digits", "digits by class", "random")


def make_problem(stream: str, n: int) -> tuple[Tensor, Tensor]:
    """A Gram matrix and one-hot targets, float64; digits repeat, with noise, if n is large."""
    generator = torch.Generator().manual_seed(n)
    noise = torch.randn(n, 64, generator=generator, dtype=torch.float64)
    if stream == "random":
        X = noise[:, :50]
        teacher = X[:, :CLASSES] + torch.randn(n, CLASSES, generator=generator).double()
        return rt.RBF(10.0)(X), one_hot(teacher.argmax(1))
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    rows = torch.randperm(n, generator=generator) % len(labels)
    if stream == "digits by class":
        rows = rows[torch.argsort(labels[rows], stable=True)]
    return rt.RBF(2.0)(images[rows] / 16 + 0.05 * noise), one_hot(labels[rows])


def one_hot(labels: Tensor) -> Tensor:
    """(n, classes) targets."""
    return torch.nn.functional.one_hot(labels, CLASSES).double()


def targets(K: Tensor, Y: Tensor, gamma: float, loss: str) -> Tensor:
    """The batch call."""
    return rt.iterative_targets(K, Y, LEARNER, gamma, BLOCK, RIDGE, loss=loss)


def exact_targets(K: Tensor, Y: Tensor, gamma: float) -> Tensor:
    """The same with every offline solution up to rounding."""
    few = logistic.EXACT_UP_TO
    logistic.EXACT_UP_TO = len(K)
    try:
        return targets(K, Y, gamma, "cross-entropy")
    finally:
        logistic.EXACT_UP_TO = few


def probabilities(K: Tensor, Z: Tensor) -> Tensor:
    """(n, c) what the learner trained on these targets predicts for the stream."""
    A = rt.online_coefficients(K, Z, LEARNER, loss="cross-entropy")
    return torch.softmax(K @ A, 1)


def best_time(function: Callable[[], Tensor], repeats: int) -> float:
    """CPU seconds, the best of a few."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def root_mean_square(values: Tensor) -> float:
    """The root of the mean of the squares."""
    return float(values.square().mean().sqrt())


def main() -> None:
    """Prints the table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1600, 4000])
    parser.add_argument("--gammas", type=float, nargs="+", default=[1.0, 0.1])
    parser.add_argument("--exact-up-to", type=int, default=1600, metavar="N")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    threads = f"{torch.get_num_threads()} threads"
    print(f"retarget {rt.__version__}, torch {torch.__version__}, {platform.machine()}, {threads}")
    header = ["stream", "n", "gamma", "cross-entropy", "squared", "ratio", "limit", "ratio"]
    header += ["exact", "targets", "off by", "probabilities off by"]
    print_row(header)
    print_row(["---"] * len(header))
    for stream in STREAMS:
        for n in options.sizes:
            K, Y = make_problem(stream, n)
            for gamma in options.gammas:
                print_row(row(stream, K, Y, gamma, options))


def print_row(cells: list[str]) -> None:
    """Prints one line of the table of docs/performance.md, as soon as it is measured."""
    print(f"| {' | '.join(cells)} |", flush=True)


def row(stream: str, K: Tensor, Y: Tensor, gamma: float, options: argparse.Namespace) -> list[str]:
    """The cells of one problem."""
    n, repeats = len(K), options.repeats
    shifted = K + gamma * torch.eye(n, dtype=K.dtype)
    squared = best_time(lambda: targets(K, Y, gamma, "squared"), repeats + 1)
    ours = best_time(lambda: targets(K, Y, gamma, "cross-entropy"), repeats)
    bare = best_time(lambda: torch.linalg.cholesky(shifted), repeats + 1)
    cells = [stream, f"{n}", f"{gamma:g}", f"{ours:.3f}", f"{squared:.3f}", f"{ours / squared:.1f}"]
    cells += [f"{bare:.3f}", f"{ours / bare:.1f}"]
    if n > options.exact_up_to:
        return [*cells, "", "", "", ""]
    start = time.process_time()
    exact = exact_targets(K, Y, gamma)
    cells.append(f"{time.process_time() - start:.2f}")
    Z = targets(K, Y, gamma, "cross-entropy")
    gap = probabilities(K, Z) - probabilities(K, exact)
    cells.append(f"{root_mean_square(exact):.2f}")
    return [*cells, f"{root_mean_square(Z - exact):.1e}", f"{float(gap.abs().max()):.1e}"]


if __name__ == "__main__":
    main()
