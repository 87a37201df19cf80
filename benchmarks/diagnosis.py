"""The diagnosis of a large stream against its limits of time and memory.

    OMP_NUM_THREADS=2 python benchmarks/diagnosis.py [--rows 1000000] [--exact-rows 10000]

Two cases, each in a process of its own so that its peak memory is its own: the exact method, and
random features beyond it. Limits are those of issue 6; a ratio below 1 keeps them.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time

import numpy as np
import torch

import retarget as rt
from retarget.diagnosis.options import Options
from retarget.diagnosis.pipeline import diagnose_stream
from retarget.diagnosis.stream import Stream

FEATURES = 20
SECONDS = {"exact": 120.0, "features": 180.0}
MEMORY = 4.0  # GB in all: data, interpreter and libraries included


def make_stream(n: int, seed: int = 0) -> Stream:
    """A smooth function of 20 features that drift slowly, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, FEATURES))
    X[:, 0] += np.linspace(-2, 2, n)
    directions = rng.normal(size=(FEATURES, 4)) / np.sqrt(FEATURES)
    Y = np.sin(X @ directions).sum(1, keepdims=True) + 0.3 * rng.normal(size=(n, 1))
    mean, scale = Y.mean(0), Y.std(0)
    names = tuple(f"x{i}" for i in range(FEATURES))
    Y -= mean
    Y /= scale
    return Stream(X, Y, "regression", ("y",), mean, scale, names, np.arange(n))


def run_case(mode: str, rows: int) -> dict[str, float | str]:
    """One diagnosis, its time and the peak memory of this process."""
    stream = make_stream(rows)
    start, busy = time.perf_counter(), time.process_time()
    found = diagnose_stream(stream, options=Options(mode=mode), progress=False)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": seconds,
        "busy": busy,
        "peak": peak * 1024 / 1e9,
        "features": found.approximation.features if found.approximation else 0,
        "shift error": found.approximation.shift_error if found.approximation else 0.0,
        "headline": found.verdict.headline,
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--exact-rows", type=int, default=10_000)
    parser.add_argument("--case", choices=sorted(SECONDS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = {"exact": options.exact_rows, "features": options.rows}
    if options.case:
        print(json.dumps(run_case(options.case, sizes[options.case])))
        return
    print(
        f"retarget {rt.__version__}, torch {torch.__version__}, {platform.machine()}, "
        f"{torch.get_num_threads()} threads; {FEATURES} features, a fifth of the rows held out"
    )
    titles = (
        "mode",
        "rows",
        "seconds",
        "of limit",
        "CPU sec.",
        "peak GB",
        "of limit",
        "features",
        "shift err.",
    )
    print("".join(f"{title:>12}" for title in titles))
    for mode, rows in sizes.items():
        command = [sys.executable, __file__, "--case", mode, *sys.argv[1:]]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        got = json.loads(done.stdout)
        cells = (
            mode,
            f"{rows:,}",
            f"{got['seconds']:.1f}",
            f"{got['seconds'] / SECONDS[mode]:.2f}",
            f"{got['busy']:.1f}",
            f"{got['peak']:.2f}",
            f"{got['peak'] / MEMORY:.2f}",
            f"{got['features']}",
            f"{got['shift error']:.3f}",
        )
        print("".join(f"{cell:>12}" for cell in cells), flush=True)
        print(f"{'':>12}{got['headline']}")


if __name__ == "__main__":
    main()
