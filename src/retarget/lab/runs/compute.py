"""Computes runs, in the same way in this process, in others and on a cluster."""

import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import torch
from threadpoolctl import threadpool_limits

from retarget.errors import DivergenceWarning
from retarget.lab.experiment import Config, Family
from retarget.lab.runs.store import Identity, identities_of
from retarget.progress import silence


@dataclass(frozen=True, eq=False)  # compared by identity: configs may hold lists
class RunGroup:
    """Runs that are computed together: one, or several networks that train at once."""

    family: Family
    configs: tuple[Config, ...]
    identities: tuple[Identity, ...]
    checkpoint: Path  # state to resume from after an interruption


@dataclass(frozen=True)
class Computed:
    """The tables of a group's runs."""

    tables: list[pl.DataFrame]
    seconds: float
    warnings: list[str]


@dataclass(frozen=True)
class Failed:
    """The reason why there are no tables."""

    reason: str
    trace: str | None = None
    seconds: float = 0.0


Ending = Computed | Failed


def compute_group(group: RunGroup, elsewhere: bool = False) -> Ending:
    """Computes the runs of a group with one thread, so that results are the same everywhere.

    `elsewhere` says that this may be another machine, with other code or data.
    """
    clock = time.perf_counter()
    try:
        with (
            threadpool_limits(1),
            torch_threads(1),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("default")
            # sweeps include rates that are too high, which the figure shows
            warnings.simplefilter("ignore", DivergenceWarning)
            if elsewhere:
                silence()
                _require_same(group)
            # If a cluster's machine does not have the results folder, the run starts anew.
            checkpoint = group.checkpoint if group.checkpoint.parent.is_dir() else None
            tables_by_config = list(group.family.run(group.configs, checkpoint))
            tables = [
                next(table for known, table in tables_by_config if known == c)
                for c in group.configs
            ]
    except Exception as error:  # no failure of a run may end the others
        trace = "".join(traceback.format_exception(error))
        return Failed(in_a_line(error), trace, time.perf_counter() - clock)
    seconds = time.perf_counter() - clock
    return Computed(tables, seconds, list(dict.fromkeys(str(w.message) for w in caught)))


def _require_same(group: RunGroup) -> None:
    identities = identities_of(group.configs, group.family)
    for here, identity in zip(identities, group.identities, strict=True):
        for source in ("data", "code", "packages"):
            if getattr(here, source) != getattr(identity, source):
                raise RuntimeError(
                    f"this worker has different {source} from the machine that sent the run: "
                    f"{getattr(here, source)}, not {getattr(identity, source)}; use the same on "
                    "both"
                )


def in_a_line(error: Exception) -> str:
    """Returns the type and the message of an error on one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Sets torch's number of threads temporarily."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
