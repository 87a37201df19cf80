"""Time and memory against the length of the stream: in memory, out of core, and sketched.

    python benchmarks/scaling.py [--quick] [--sizes 2500 5000 10000 20000]
    python benchmarks/scaling.py --prove 20000

The table has a row for each form and length: seconds for the offline coefficients and for the
iterative targets (kernel included), gigabytes of memory above what the interpreter and libraries
take (of all processes together; for the workers, the largest of them too), and gigabytes on disk.
Every row is a process of its own, so that its peak is its own. Growth is the slope of the logarithm
in log n over the longest three streams. Out of core is Dask with two local workers of 1 GB each;
sketched is a fixed number of Nystroem features, as `retarget diagnose` uses beyond its limit: an
approximation, the other two are exact.

`--prove` computes everything that `retarget.distributed` offers, with two workers of 1 GB, and then
again in memory, and prints the largest differences.
"""

import argparse
import json
import math
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import torch

import retarget as rt
from retarget import distributed as rd
from retarget.diagnosis.measure.approximation import choose_features
from retarget.diagnosis.measure.passes import IterativeCorrection, learn_corrected, offline_aims
from retarget.engine.stream_kernel import FeatureKernel

KERNEL, LEARNER = rt.RBF(width=8.0), rt.SGD(lr=0.1, batch_size=16, reduction="sum")
GAMMA, BLOCK, RIDGE, FEATURES = 1.0, 16, 0.1, 512
WORKERS, MEMORY = 2, "1GB"
NOTHING = 0.005  # seconds or gigabytes: the tables show two digits
LAST = 3  # longest streams that the growth is fitted to
COLUMNS = ("offline s", "iterative s", "memory GB", "a worker GB", "disk GB")


def make_stream(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Smooth functions of 20 features that drift slowly, with noise; float64."""
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, 20))
    X[:, 0] += np.linspace(-2, 2, n)
    Y = np.stack([np.sin(X[:, 0]), np.cos(X[:, 1])], axis=1) + 0.1 * rng.normal(size=(n, 2))
    return X, Y


def resident(which: str = "VmRSS") -> float:
    """Gigabytes that this process has in memory now, or had at most (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(which):
            return int(line.split()[1]) * 1024 / 1e9
    raise KeyError(which)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and the result."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


@contextmanager
def watched_disk(folder: str) -> Iterator[list[float]]:
    """The most gigabytes that lay in a folder, seen twice a second."""
    peak, stop = [0.0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.5):
            size = 0
            for file in Path(folder).rglob("*"):
                try:
                    size += file.stat().st_size
                except FileNotFoundError:  # read back meanwhile
                    continue
            peak[0] = max(peak[0], size / 1e9)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


@contextmanager
def watched_workers(folder: str) -> Iterator[dict[str, float]]:
    """Two workers that spill to the folder, and what they took, known at the end."""
    used: dict[str, float] = {}
    with (
        dask.config.set({"temporary-directory": folder}),
        rd.connect(f"local:{WORKERS}", memory_limit=MEMORY) as client,
        watched_disk(folder) as disk,
    ):
        before = sum(client.run(resident).values())
        yield used
        peaks = list(client.run(resident, "VmHWM").values())
        used.update(above=sum(peaks) - before, worker=max(peaks), disk=disk[0])


def in_memory(n: int) -> dict[str, float]:
    """The functions of retarget itself."""
    X, Y = make_stream(n)
    base = resident()
    kernel, K = timed(lambda: KERNEL(X))
    offline, _ = timed(lambda: rt.offline_coefficients(K, Y, GAMMA))
    iterative, _ = timed(lambda: rt.iterative_targets(K, Y, LEARNER, GAMMA, BLOCK, RIDGE))
    return {
        "offline s": kernel + offline,
        "iterative s": kernel + iterative,
        "memory GB": resident("VmHWM") - base,
    }


def out_of_core(n: int) -> dict[str, float]:
    """The functions of retarget.distributed."""
    X, Y = make_stream(n)
    base = resident()
    with tempfile.TemporaryDirectory() as folder, watched_workers(folder) as used:
        K = rd.gram(KERNEL, X)
        offline, _ = timed(lambda: rd.offline_coefficients(K, Y, GAMMA))
        iterative, _ = timed(lambda: rd.iterative_targets(K, Y, LEARNER, GAMMA, BLOCK, RIDGE))
    return {
        "offline s": offline,
        "iterative s": iterative,
        "memory GB": resident("VmHWM") - base + used["above"],
        "a worker GB": used["worker"],
        "disk GB": used["disk"],
    }


def sketched(n: int) -> dict[str, float]:
    """The weight space of a few features."""
    X, Y = (torch.from_numpy(array) for array in make_stream(n))
    base = resident()

    def features() -> FeatureKernel:
        return FeatureKernel(choose_features(KERNEL, X, FEATURES, seed=0), X, Y)

    def corrected() -> None:
        aims = offline_aims(kernel, GAMMA, BLOCK)
        learn_corrected(kernel, LEARNER, IterativeCorrection(kernel, LEARNER, aims, RIDGE), BLOCK)

    making, kernel = timed(features)
    offline, _ = timed(lambda: kernel.offline(GAMMA))
    iterative, _ = timed(corrected)
    return {
        "offline s": making + offline,
        "iterative s": making + iterative,
        "memory GB": resident("VmHWM") - base,
    }


FORMS = {"in memory": in_memory, "out of core": out_of_core, "sketched": sketched}


def growth(sizes: list[int], values: list[float]) -> str:
    """The exponent of n that fits the values best, over the longest streams."""
    if len(values) < 2 or not min(values[-LAST:]) >= NOTHING:  # not measured is nan
        return ""
    x, y = np.log(sizes[-LAST:]), np.log(values[-LAST:])
    return f"n^{np.polyfit(x, y, 1)[0]:.2f}"


def print_row(form: str, n: str, cells: list[str]) -> None:
    """One line of the table."""
    print(f"{form:<12}{n:>8}" + "".join(f"{cell:>13}" for cell in cells), flush=True)


def print_table(sizes: list[int]) -> None:
    """Measures every form at every length."""
    print_row("form", "n", list(COLUMNS))
    for form in FORMS:
        found: dict[str, list[float]] = {column: [] for column in COLUMNS}
        for n in sizes:
            command = [sys.executable, __file__, "--form", form, "--sizes", str(n)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            got = json.loads(done.stdout)
            for column in COLUMNS:
                found[column].append(got.get(column, math.nan))
            cells = [f"{got[column]:.2f}" if column in got else "" for column in COLUMNS]
            print_row(form, f"{n:,}", cells)
        print_row(form, "growth", [growth(sizes, found[column]) for column in COLUMNS])


def every_function(module: Any, K: Any, Y: np.ndarray) -> dict[str, Callable[[], np.ndarray]]:
    """All that is computed on (K, Y), in memory or out of core."""
    return {
        "offline": lambda: module.offline_coefficients(K, Y, GAMMA),
        "online": lambda: module.online_coefficients(K, Y, LEARNER),
        "effective": lambda: module.effective_targets(K, Y, LEARNER, GAMMA),
        "corrected": lambda: module.corrected_targets(K, Y, LEARNER, GAMMA),
        "iterative": lambda: module.iterative_targets(K, Y, LEARNER, GAMMA, BLOCK, RIDGE),
    }


def prove(n: int) -> bool:
    """Whether out of core equals in memory, to 1e-8, within the workers' memory."""
    X, Y = make_stream(n)
    print(f"n = {n:,}, float64: K has {8 * n * n / 1e9:.2f} GB; {WORKERS} workers of {MEMORY} each")
    with tempfile.TemporaryDirectory() as folder, watched_workers(folder) as used:
        K = rd.gram(KERNEL, X)
        tiled = {name: timed(function) for name, function in every_function(rd, K, Y).items()}
    print(f"peak of a worker {used['worker']:.2f} GB, on disk {used['disk']:.2f} GB")
    full, good = KERNEL(X), used["worker"] < 1.0
    print("".join(f"{title:>15}" for title in ("", "out of core s", "in memory s", "difference")))
    for name, function in every_function(rt, full, Y).items():
        seconds, expected = timed(function)
        ours, got = tiled[name]
        gap = float(np.abs(got - expected).max())
        good = good and gap < 1e-8
        print(f"{name:>15}{ours:>15.1f}{seconds:>15.1f}{gap:>15.1e}", flush=True)
    return good


def main() -> None:
    """Prints the table, or the proof."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2500, 5000, 10000, 20000])
    parser.add_argument("--quick", action="store_true", help="short streams: under a minute")
    parser.add_argument("--prove", type=int, metavar="N", help="compare all results at this length")
    parser.add_argument("--form", choices=sorted(FORMS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.form:
        print(json.dumps(FORMS[options.form](options.sizes[0])))
        return
    print(
        f"retarget {rt.__version__}, torch {torch.__version__}, dask {dask.__version__}, "
        f"{platform.machine()}, {torch.get_num_threads()} threads in memory, "
        f"{WORKERS} workers of one thread out of core, {FEATURES} features"
    )
    if options.prove:
        sys.exit(0 if prove(options.prove) else 1)
    print_table(sorted([1000, 2000] if options.quick else options.sizes))


if __name__ == "__main__":
    main()
