"""A family of runs that behave, or do not: importable by the processes that compute them."""

import contextlib
import os
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from retarget.lab.experiment import Config, Family, families, one_by_one
from retarget.lab.reader import parse_experiment
from retarget.lab.runs.store import RunStore, identities_of

TEXT = """
family = "made"
title = "made"
seeds = [0, 1, 2]
[parameters]
folder = "{folder}"
"""

# and one of the package, of four runs
SMALL_DIGITS = """
family = "digits"
title = "small"
seeds = [3, 4]
[parameters]
width = 4.0
gamma = 1.0
block_size = 300
curve_every = 500
[grid]
lr = [0.001, 0.1]
"""
REASON = "no [red]luck[/red]\nat all"


class MadeRun(Config):
    """What a run does; it leaves a line in `folder/calls` each time it is begun."""

    folder: str
    behavior: str = "good"
    lr: float = 0.1


def run(config):
    with (Path(config.folder) / "calls").open("a") as calls:
        calls.write(f"{config.seed} {os.getpid()}\n")
    misbehave(config)
    rng = np.random.default_rng(config.seed)
    return pl.DataFrame({"step": range(4), "value": rng.normal(size=4) * config.lr})


def misbehave(config):
    if config.seed != 1:  # the others are good
        return
    if config.behavior == "raises":
        raise ValueError(REASON)
    if config.behavior == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if config.behavior == "dies once":
        with contextlib.suppress(FileExistsError):
            (Path(config.folder) / "died").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
    if config.behavior == "warns":
        warnings.warn("mind the gap", stacklevel=1)
    if config.behavior == "waits":  # until it is let go
        (Path(config.folder) / "waiting").touch()
        while not (Path(config.folder) / "go").exists():
            time.sleep(0.02)


def draw(table):
    return Figure((0.1, 0.1))


def summarize(table):
    return [f"mean {table['value'].mean():.6f}"]


FAMILY = Family(MadeRun, one_by_one(run), draw, summarize)


def install(monkeypatch):
    """Makes the family known."""
    monkeypatch.setitem(families(), "made", FAMILY)


def made(folder, *lines, name="mine"):
    """An experiment of three runs."""
    return parse_experiment(name, TEXT.format(folder=folder) + "\n".join(lines))


def calls(folder):
    """How often each seed was begun."""
    path = Path(folder) / "calls"
    seeds = (
        [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []
    )
    return {seed: seeds.count(seed) for seed in sorted(set(seeds))}


def identity_of(config, family):
    """The identity of one run."""
    return identities_of([config], family)[0]


def records(out):
    """The records of all runs in a folder of results."""
    store = RunStore(out)
    return [store.record(key) for key in store if store.record(key) is not None]
