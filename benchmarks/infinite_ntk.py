"""The infinite-width NTK of the paper's MNIST network: ours, neural-tangents', and how it grows.

$ python benchmarks/infinite_ntk.py --peer path/to/python/with/neural-tangents

The peer runs in an environment of its own (see tests/golden/make_infinite_ntk.py), in a
subprocess, on the same images; RETARGET_NTK_PEER may name its Python instead of --peer.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import retarget as rt

PAIRS_PER_SECOND = 17_000  # the bar: a thousand times neural-tangents' 16.8 on two cores
RELATIVE_ERROR = 5e-5

PEER = """
import json, sys, time
import numpy as np
from neural_tangents import stax

X = np.moveaxis(np.load(sys.argv[1]), 1, -1)
block = lambda: [stax.Conv(1, (3, 3), padding="SAME"), stax.Relu(), stax.AvgPool((2, 2), (2, 2))]
kernel = stax.serial(*block(), *block(), stax.Flatten(), stax.Dense(1))[2]
try:
    import jax
    kernel = jax.jit(kernel, static_argnums=2)
except ImportError:
    pass
A, B = X[:4], X[4:]
np.asarray(kernel(A, B, "ntk"))
times = []
for _ in range(2):
    start = time.perf_counter()
    K = np.asarray(kernel(A, B, "ntk"))
    times.append(time.perf_counter() - start)
print(json.dumps({"seconds": min(times), "K": K.tolist()}))
"""


def paper_network() -> nn.Sequential:
    """Conv 3x3, ReLU, average pool 2, twice; then a dense read-out."""
    convolutions = [nn.Conv2d(1, 1, 3, padding=1) for _ in range(2)]
    blocks = [nn.Sequential(each, nn.ReLU(), nn.AvgPool2d(2)) for each in convolutions]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(1, 1))


def digits(n: int) -> np.ndarray:
    """Images of MNIST's size and statistics: each pixel of mean zero and variance one, smooth."""
    random = np.random.default_rng(0)
    noise = torch.from_numpy(random.standard_normal((n, 1, 28, 28)))
    smooth = nn.functional.avg_pool2d(noise, 5, 1, 2, count_include_pad=False)
    return ((smooth - smooth.mean(0)) / smooth.std(0)).numpy().astype(np.float32)


def seconds(kernel: rt.InfiniteNTK, X: np.ndarray, repeats: int) -> float:
    """The shortest of a few times."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        kernel(X)
        times.append(time.perf_counter() - start)
    return min(times)


def ask_peer(python: str, X: np.ndarray) -> dict[str, object]:
    """neural-tangents' kernel between the first 4 images and the rest, and its time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npy"
        np.save(path, X)
        command = [python, "-c", PEER, str(path)]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", default=os.environ.get("RETARGET_NTK_PEER"))
    parser.add_argument("--images", type=int, default=1280)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    X, kernel = digits(options.images), rt.InfiniteNTK(paper_network())
    samples = torch.from_numpy(X).to(options.device)
    start = time.perf_counter()
    kernel(samples[:32])
    print(f"first call (compiles once, then from disk)   {time.perf_counter() - start:8.2f} s")

    sizes = [options.images // 4, options.images // 2, options.images]
    pairs = [n * (n + 1) // 2 for n in sizes]
    times = [seconds(kernel, samples[:n], repeats=3 - i) for i, n in enumerate(sizes)]
    for n, count, spent in zip(sizes, pairs, times, strict=True):
        print(
            f"{n:5} images, {count:7} pairs, float32 {spent:8.2f} s {count / spent:10.0f} pairs/s"
        )
    exponent = np.polyfit(np.log(pairs), np.log(times), 1)[0]
    ours = pairs[-1] / times[-1]
    spent = seconds(kernel, samples[: sizes[0]].double(), repeats=2)
    print(f"float64 {'':38}{pairs[0] / spent:10.0f} pairs/s")
    print(f"growth: time ~ pairs^{exponent:.3f}")
    print(f"ours / bar ({PAIRS_PER_SECOND} pairs/s): {ours / PAIRS_PER_SECOND:.2f}")

    if not options.peer or not Path(options.peer).exists():
        print("peer: missing (give the Python of an environment with neural-tangents as --peer)")
        return
    answer = ask_peer(options.peer, X[:12])
    theirs = 32 / float(str(answer["seconds"]))
    K = kernel(samples[:4], samples[4:12]).cpu().numpy()
    error = np.abs(K / np.array(answer["K"]) - 1).max()
    print(f"neural-tangents {'':30}{theirs:10.1f} pairs/s")
    print(f"ours / neural-tangents: {ours / theirs:.0f}")
    print(f"largest relative difference, float32: {error:.1e} (limit {RELATIVE_ERROR:.0e})")


if __name__ == "__main__":
    main()
