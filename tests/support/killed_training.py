"""Trains with a checkpoint, is killed again and again until it is done, and compares.

    python killed_training.py FOLDER

A program of its own: each attempt is a fork of it, so that nothing need be imported anew.
"""

import itertools
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from retarget import lab
from support.lab_problems import LEARNERS, mlp, stream, weights

KILLS = 8  # at least, in as many runs as that takes


def train(checkpoint):
    """What is to come out the same: the history and the weights."""
    networks = [mlp(1), mlp(2)]
    history = lab.train(
        networks,
        [stream(3, sizes=(60, 40, 50)), stream(4, sizes=(60, 40, 50))],
        LEARNERS["momentum"],
        [lab.EWC(1.5), lab.DER(5, 3, beta=0.5), lab.CumulativeReplay(2)],
        epochs=2,
        reshuffle=True,
        evaluate_every=20,
        checkpoint=checkpoint,
    )
    values = {name: torch.as_tensor(values) for name, values in vars(history).items()}
    return values | {f"weights {m}": weights(net) for m, net in enumerate(networks)}


def attempt(folder, seconds):
    """Whether the training came to its end before it was killed."""
    child = os.fork()
    if not child:
        save_file(train(folder / "run.safetensors"), folder / "result")
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    return status == 0


def main(folder):
    torch.set_num_threads(1)
    expected = train(None)
    start = time.monotonic()
    train(None)
    whole = time.monotonic() - start
    random = np.random.default_rng()  # moments that no run before was killed at
    killed, found = 0, set()
    for run in itertools.count():
        path = folder / str(run) / "run.safetensors"
        path.parent.mkdir()
        while not attempt(path.parent, random.uniform(0, whole / 2)):
            killed += 1
            found |= {path.stat().st_mtime_ns} if path.exists() else set()
        for name, values in load_file(path.parent / "result").items():
            np.testing.assert_array_equal(values, expected[name], err_msg=name)
        if killed >= KILLS:
            break
    print(f"{killed} kills, {len(found)} checkpoints, {run + 1} runs")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
