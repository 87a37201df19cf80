"""The diagnosis of streams against their limits of time and memory.

    python benchmarks/diagnosis.py [--largest 1000000]

Each case is a process of its own, so that its peak memory is its own. A ratio below 1 keeps its
limit.
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
from retarget.diagnosis.measure.holdout import split
from retarget.diagnosis.measuring import diagnose_split
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.stream import Stream

# rows, features, seconds, and GB in all: data, interpreter and libraries included. The first is the
# exact method, with the kernel of all rows and copies of it for two folds.
CASES = (
    (10_000, 20, 8.0, 3.0),
    (20_000, 10, 15.0, 2.5),
    (54_000, 10, 30.0, 2.5),
    (200_000, 10, 30.0, 2.5),
    (1_000_000, 20, 30.0, 2.5),
)


def make_stream(n: int, features: int, seed: int = 0) -> Stream:
    """A smooth function of features that drift slowly, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, features))
    X[:, 0] += np.linspace(-2, 2, n)
    directions = rng.normal(size=(features, 4)) / np.sqrt(features)
    Y = np.sin(X @ directions).sum(1, keepdims=True) + 0.3 * rng.normal(size=(n, 1))
    mean, scale = Y.mean(0), Y.std(0)
    names = tuple(f"x{i}" for i in range(features))
    Y -= mean
    Y /= scale
    return Stream(X, Y, "regression", ("y",), mean, scale, names, np.arange(1, n + 1))


def run_case(rows: int, features: int) -> dict[str, float | str]:
    """One diagnosis, its time and the peak memory of this process."""
    stream = make_stream(rows, features)
    start, busy = time.perf_counter(), time.process_time()
    options = DiagnosisOptions()
    found = diagnose_split(split(stream, None, options), options)
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


def measured(rows: int, features: int) -> dict[str, float | str]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--case", str(rows), str(features)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=1_000_000, help="leave out longer streams")
    parser.add_argument("--case", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(run_case(*options.case)))
        return
    print(
        f"retarget {rt.__version__}, torch {torch.__version__}, {platform.machine()}, "
        f"{torch.get_num_threads()} threads; two tenths of the rows held out"
    )
    titles = ("rows", "columns", "seconds", "of limit", "CPU sec.", "peak GB", "of limit")
    print("".join(f"{title:>12}" for title in (*titles, "features", "shift err.")))
    for rows, features, limit, memory in CASES:
        if rows > options.largest:
            continue
        got = measured(rows, features)
        cells = (
            f"{rows:,}",
            f"{features}",
            f"{got['seconds']:.1f}",
            f"{got['seconds'] / limit:.2f}",
            f"{got['busy']:.1f}",
            f"{got['peak']:.2f}",
            f"{got['peak'] / memory:.2f}",
            f"{got['features']}",
            f"{got['shift error']:.3f}",
        )
        print("".join(f"{cell:>12}" for cell in cells), flush=True)
        print(f"{'':>12}{got['headline']}")


if __name__ == "__main__":
    main()
