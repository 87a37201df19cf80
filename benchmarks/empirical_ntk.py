"""The empirical NTK of the paper's networks: ours, torch.func's Jacobian contraction, the limit.

$ python benchmarks/empirical_ntk.py                  # two cores: small problems, against the peer
$ python benchmarks/empirical_ntk.py --device cuda    # 30,000 images, against bare products

The peer is what torch's tutorial on neural tangent kernels does: `vmap(jacrev)` of all parameters
for the samples on either side, and an einsum that traces over the outputs. As our problem has the
same samples on both sides, the ratio is also given for a peer that makes one Jacobian do.
The limit is one bare matrix product of the gradients' size, half of it as the result is symmetric.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import retarget as rt
from retarget.arrays import panels
from retarget.kernels.empirical import terms

CNN_BAR, HEAD_BAR, SECONDS_BAR = 3, 100, 3.0
SKETCHES = 8
HEAD_PART = 100  # samples of the head that the peer is measured on


def cnn(outputs: int) -> nn.Sequential:
    """The paper's network for CIFAR-10."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(7),
        nn.Flatten(), nn.Linear(64 * 49, outputs, bias=False),
    )  # fmt: skip


def head() -> nn.Sequential:
    """The paper's head on frozen features, for CORe50."""
    return nn.Sequential(nn.Linear(512, 100, bias=False), nn.ReLU(), nn.Linear(100, 50, bias=False))


def width(module: nn.Sequential) -> int:
    """Numbers in a sample's gradients of all outputs, the last layer's counted once."""
    sizes = [each.numel() for each in module.parameters()]
    return module[-1].out_features * sum(sizes[:-1]) + module[-1].in_features


def jacobian_contraction(module: nn.Module, X: Tensor) -> tuple[Tensor, float, float]:
    """The kernel as in the tutorial, and the seconds of the Jacobian and of the contraction."""
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def outputs(state: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(module, state, (x[None],))[0]

    start = time.perf_counter()
    jacobian = vmap(jacrev(outputs), (None, 0))(parameters, X)
    parts = [each.flatten(2) for each in jacobian.values()]
    between = time.perf_counter()
    K = torch.stack([torch.einsum("Naf,Maf->NM", part, part) for part in parts]).sum(0)
    end = time.perf_counter()
    return K / parts[0].shape[1], between - start, end - between


def bare_product(n: int, features: int, device: str) -> float:
    """Seconds for the lower half of F F^T, block by block, and nothing else."""
    F = torch.randn((n, features), device=device)
    K = torch.empty((n, n), device=device)

    def run() -> None:
        for rows in panels(n, 1, F.device):
            torch.mm(F[rows], F[: rows.stop].T, out=K[rows, : rows.stop])

    return seconds(run, 2)


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The shortest of a few times, after one more to warm up."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def relative_error(K: Tensor, exact: Tensor) -> float:
    """The largest, an entry's size being that of its two samples' diagonal entries."""
    size = exact.diagonal().sqrt()
    return ((K - exact).abs() / (size[:, None] * size)).max().item()


def against_peer(name: str, module: nn.Sequential, X: Tensor, part: int, bar: float) -> None:
    """Ours, the peer's (on the first `part` samples, scaled) and the limit."""
    kernel, n = rt.EmpiricalNTK(module), len(X)
    ours = seconds(lambda: kernel(X), 3)
    runs = [jacobian_contraction(module, X[:part]) for _ in range(3)]
    jacobian, contraction = (min(run[i] for run in runs) for i in (1, 2))
    once = jacobian * n / part + contraction * (n / part) ** 2
    peer = once + jacobian * n / part
    error = relative_error(kernel(X[:part]), runs[0][0])
    said = "" if part == n else f" (measured on {part} samples, scaled to {n})"
    print(f"{name}, n = {n}, float32, {torch.get_num_threads()} threads")
    print(f"  ours                      {ours:9.3f} s")
    print(f"  Jacobian contraction      {peer:9.3f} s{said}")
    print(f"  peer / ours: {peer / ours:.1f} (bar {bar}); with one Jacobian {once / ours:.1f}")
    print(f"  largest relative difference {error:.1e}")
    if part == n:
        bare = bare_product(n, width(module), "cpu")
        print(f"  bare half product         {bare:9.3f} s, ours / bare: {ours / bare:.2f}")


def sketch_errors(X: Tensor) -> None:
    """How far sketches are from the kernel."""
    module, sizes = cnn(10), [256, 1024, 4096, 16384]
    exact = rt.EmpiricalNTK(module)(X)
    print(f"sketch of the CNN's {width(module)} features, {len(X)} images")
    errors = []
    for size in sizes:
        kernels = [rt.EmpiricalNTK(module, sketch=size, seed=seed) for seed in range(SKETCHES)]
        gaps = [(kernel(X) - exact).norm() / exact.norm() for kernel in kernels]
        errors.append(torch.stack(gaps).square().mean().sqrt().item())
        print(f"  {size:6} numbers: relative error {errors[-1]:.4f} (over {SKETCHES} seeds)")
    print(f"  error ~ size^{np.polyfit(np.log(sizes), np.log(errors), 1)[0]:.2f}")


def on_device(device: str, n: int) -> None:
    """All images' kernel, with products in full and split, and the error of each."""
    X = torch.randn((n, 3, 32, 32), device=device)
    for outputs in (2, 10):
        torch.manual_seed(outputs)
        module = cnn(outputs).to(device)
        flop = n * n * width(module)
        bare = bare_product(n, width(module), device)
        print(f"CNN, {outputs} outputs, n = {n}, float32, {flop:.2e} FLOP (bar {SECONDS_BAR} s)")
        print(f"  bare half product         {bare:9.3f} s, {flop / bare / 1e12:6.1f} TFLOP/s")
        few = X[:: n // 512]
        exact = rt.EmpiricalNTK(cnn_in_double(module))(few.double())
        for precision in ("full", "split"):
            kernel = rt.EmpiricalNTK(module, precision=precision)
            ours = seconds(lambda kernel=kernel: kernel(X), 2)
            error = relative_error(kernel(few), exact)
            print(
                f"  ours, {precision:5}               {ours:9.3f} s, ours / bare: "
                f"{ours / bare:.2f}, relative error {error:.1e}"
            )
        features = seconds(lambda kernel=kernel: kernel.diag(X), 2)
        print(f"  of which gradients        {features:9.3f} s")


def split_depths(device: str) -> None:
    """What the number of features that tensor cores add up at a time does to error and speed."""
    few = torch.randn((512, 65536), device=device).abs()  # all of one sign: the worst case
    exact = few.double() @ few.double().T
    error = relative_error(few @ few.T, exact)
    print(f"products of 65536 positive features: relative error of float32 {error:.1e}")
    halves, kept = terms.split(few), terms.DEPTH
    long = terms.split(torch.randn((16384, 65536), device=device))
    short = tuple(part[:2048] for part in long)
    for depth in (512, 1024, 2048, 4096, 16384, 65536):
        terms.DEPTH = depth
        K = terms.split_product(halves[:2], halves[:2]) * halves[2] * halves[2].T
        spent = seconds(lambda: terms.split_product(short[:2], long[:2]), 3)
        print(
            f"  split, {depth:5} at a time: {relative_error(K, exact):.1e}, "
            f"{2 * 2048 * 16384 * 65536 / spent / 1e12:6.1f} TFLOP/s as float32"
        )
    terms.DEPTH = kept


def cnn_in_double(module: nn.Sequential) -> nn.Sequential:
    """The same weights in float64."""
    double = cnn(module[-1].out_features).to(module[-1].weight.device).double()
    double.load_state_dict(module.state_dict())
    return double


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=30_000, help="with --device cuda")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.device != "cpu":
        on_device(options.device, options.images)
        split_depths(options.device)
        return
    against_peer("CNN, 10 outputs", cnn(10), torch.randn(512, 3, 32, 32), 512, CNN_BAR)
    against_peer("head 512-100-50", head(), torch.randn(1000, 512), HEAD_PART, HEAD_BAR)
    sketch_errors(torch.randn(64, 3, 32, 32))


if __name__ == "__main__":
    main()
