"""A corrector of bounded memory on an endless stream: time a block and memory, from start to end.

    python benchmarks/bounded.py [--samples 1000000] [--features 256] [--kept 4000]

Feeds a stream of 20 features that drifts slowly, a portion of 256 samples at a time, to
`TargetCorrector(RBF, features=...)`. Prints milliseconds a portion over the first and last tenth
(after a warm-up), their ratio, and how much the process grew in between; then the same for the
corrector that keeps everything, over the samples that it can be given in the time. It is the time
of the processor, on one thread: what else runs on the machine has no part in it.
"""

import argparse
import platform
import time
from pathlib import Path

import numpy as np
import torch

import retarget as rt

PORTION, BLOCK = 256, 16
LEARNER = rt.SGD(lr=0.1, batch_size=4, reduction="sum")


def resident() -> float:
    """Megabytes that this process has in memory now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024 / 1e6
    raise KeyError("VmRSS")


def portion(number: int) -> tuple[np.ndarray, np.ndarray]:
    """The samples of one portion, made when they are asked for: the stream is nowhere."""
    rng = np.random.default_rng(number)
    X = rng.normal(size=(PORTION, 20))
    X[:, 0] += np.sin(number / 500)
    return X, np.stack([np.sin(X[:, 0]), np.cos(X[:, 1])], axis=1)


def feed(corrector: rt.TargetCorrector, portions: int) -> tuple[np.ndarray, float, float]:
    """Seconds of each portion, and the megabytes held after a tenth of them and at the end."""
    seconds, early = np.empty(portions), 0.0
    for number in range(portions):
        X, Y = portion(number)
        start = time.process_time()
        corrector.correct(X, Y)
        seconds[number] = time.process_time() - start
        if number == portions // 10:
            early = resident()
    return seconds, early, resident()


def show(name: str, corrector: rt.TargetCorrector, portions: int) -> None:
    """One row of the table."""
    seconds, early, late = feed(corrector, portions)
    tenth = max(1, portions // 10)
    first, last = np.median(seconds[1 : tenth + 1]), np.median(seconds[-tenth:])
    print(
        f"{name:<20}{portions * PORTION:>12,}{seconds.sum():>9.1f}{1e3 * first:>12.2f}"
        f"{1e3 * last:>11.2f}{last / first:>8.2f}{late - early:>13.1f}"
        f"{corrector.feature_error:>10.3f}",
        flush=True,
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--kept", type=int, default=4_000, help="samples of the unbounded one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads; ", end=""
    )
    print(f"portions of {PORTION}, blocks of {BLOCK}, features = {options.features}")
    print(
        f"{'':<20}{'samples':>12}{'s':>9}{'first ms':>12}{'last ms':>11}{'ratio':>8}"
        f"{'grown MB':>13}{'error':>10}"
    )
    arguments = rt.RBF(8.0), LEARNER, 1.0, BLOCK, 0.1
    bounded = rt.TargetCorrector(*arguments, features=options.features)
    show("features=m", bounded, -(-options.samples // PORTION))
    show("all kept", rt.TargetCorrector(*arguments), -(-options.kept // PORTION))


if __name__ == "__main__":
    main()
