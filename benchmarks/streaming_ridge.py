"""StreamingRidge: learning against the bare matrix product, and against scikit-learn's Ridge.

    OMP_NUM_THREADS=1 python benchmarks/streaming_ridge.py [--sizes 256 1024 2048] [--samples 4096]

The limit is what nobody can do without: BLAS's dsyrk of the same features in float64 (SciPy's, half
of a product's multiplications), n m^2 of them. Ours learns features that are there already, so
that what is measured is the sums: the checks, the conversion, the products with a triangle left out
by blocks, the right-hand sides. Ridge(solver="cholesky") forms the same sums and solves; ours is
asked for one prediction at the end, with the ridge given. "auto" is what choosing it costs more.
Every time is the best of a few; the ratios come from one run.
"""

import argparse
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.linalg.blas import dsyrk
from sklearn.linear_model import Ridge

import retarget as rt

OUTPUTS, GAMMA = 10, 1.0
PORTION = 1024  # samples in a call, as a stream has them


def best_of(times: int, function: Callable[[], Any]) -> float:
    """Seconds, of the quickest of a few."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    return min(found)


def learned(X: np.ndarray, Y: np.ndarray, intercept: bool, gamma: Any = GAMMA) -> rt.StreamingRidge:
    """All samples, portion by portion."""
    learner = rt.StreamingRidge(rt.Linear(), gamma, intercept=intercept)
    for start in range(0, len(X), PORTION):
        learner.learn(X[start : start + PORTION], Y[start : start + PORTION])
    return learner


def measure(m: int, n: int, repeats: int) -> None:
    """One line of the table."""
    random = np.random.default_rng(m)
    X, Y = random.normal(size=(n, m)), random.normal(size=(n, OUTPUTS))
    columns = np.asfortranarray(X.T)
    limit = best_of(repeats, lambda: dsyrk(1.0, columns))
    product = best_of(repeats, lambda: torch.from_numpy(X).mT @ torch.from_numpy(X))
    ours = best_of(repeats, lambda: learned(X, Y, False))
    centered = best_of(repeats, lambda: learned(X, Y, True))
    whole = best_of(repeats, lambda: learned(X, Y, True).predict(X[:1]))
    peer = best_of(repeats, lambda: Ridge(GAMMA, solver="cholesky").fit(X, Y))
    automatic = best_of(1, lambda: learned(X, Y, True, "auto").predict(X[:1]))
    expected = Ridge(GAMMA, solver="cholesky").fit(X, Y).predict(X[:99])
    gap = np.abs(learned(X, Y, True).predict(X[:99]) - expected).max()
    ratios = ours / limit, ours / product, centered / limit, whole / peer, automatic / whole
    cells = m, n, f"{n / ours:,.0f}", f"{limit:.3f}", *(f"{ratio:.2f}" for ratio in ratios)
    print("".join(f"{cell:>14}" for cell in cells) + f"   {gap:.1e}")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 2048])
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    threads = torch.get_num_threads()
    print(f"retarget {rt.__version__}, torch {torch.__version__}, {platform.machine()}, float64,")
    print(f"{threads} threads, {OUTPUTS} outputs, portions of {PORTION} samples; times in seconds")
    titles = (
        "m samples samples/s dsyrk_s ours/dsyrk ours/product centered/dsyrk ours/Ridge auto/ours"
    )
    print("".join(f"{title:>14}" for title in titles.split()) + "   gap to Ridge")
    for m in options.sizes:
        measure(m, options.samples, options.repeats)


if __name__ == "__main__":
    main()
