"""Computes runs, in the same way in this process, in others and on a cluster."""

import ctypes
import threading
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
from retarget.experiments.experiment import Config, Family
from retarget.experiments.runs.store import Identity, identities_of
from retarget.progress import silence


@dataclass(frozen=True, eq=False)  # compared by identity: configs may hold lists
class Task:
    """Runs that are computed together: one, or several networks that train at once."""

    family: Family
    configs: tuple[Config, ...]
    identities: tuple[Identity, ...]
    checkpoint: Path  # state to resume from after an interruption

    @property
    def keys(self) -> list[str]:
        """The keys of its runs."""
        return [identity.key for identity in self.identities]


@dataclass(frozen=True)
class Computed:
    """The tables of a task's runs."""

    tables: list[pl.DataFrame]
    seconds: float
    warnings: list[str]


@dataclass(frozen=True)
class Failed:
    """The reason why there are no tables; another attempt would fail as well."""

    reason: str
    trace: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Lost:
    """The reason why a process ended without tables; another attempt may succeed."""

    reason: str


Ending = Computed | Failed | Lost


def compute_task(task: Task, elsewhere: bool = False, time_limit: float | None = None) -> Ending:
    """Computes the runs of a task with one thread, so that results are the same everywhere.

    `elsewhere` says that this may be another machine, with other code or data; `time_limit` is in
    seconds, for a process that must not be killed.
    """
    clock = time.perf_counter()
    try:
        with (
            threadpool_limits(1),
            torch_threads(1),
            _at_most(time_limit),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("default")
            # sweeps include rates that are too high, which the figure shows
            warnings.simplefilter("ignore", DivergenceWarning)
            if elsewhere:
                silence()
                _require_same(task)
            # If a cluster's machine does not have the results folder, the run starts anew.
            checkpoint = task.checkpoint if task.checkpoint.parent.is_dir() else None
            found = list(task.family.run(task.configs, checkpoint))
            tables = [next(table for known, table in found if known == c) for c in task.configs]
    except Exception as error:  # no failure of a run may end the others
        trace = "".join(traceback.format_exception(error))
        return Failed(in_a_line(error), trace, time.perf_counter() - clock)
    seconds = time.perf_counter() - clock
    return Computed(tables, seconds, list(dict.fromkeys(str(w.message) for w in caught)))


class TookTooLongError(Exception):
    """A run exceeded its time limit."""


@contextmanager
def _at_most(seconds: float | None) -> Iterator[None]:
    """Raises `TookTooLongError` in this thread when time is up, at the next Python instruction."""
    if seconds is None:
        yield
        return
    thread = ctypes.c_ulong(threading.get_ident())
    raised = ctypes.py_object(TookTooLongError)
    timer = threading.Timer(
        seconds, lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, raised)
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    except TookTooLongError:
        raise TookTooLongError(f"it took longer than its limit of {seconds:g} s") from None
    finally:
        timer.cancel()


def _require_same(task: Task) -> None:
    found = identities_of(task.configs, task.family)
    for here, identity in zip(found, task.identities, strict=True):
        for part in ("data", "code", "packages"):
            if getattr(here, part) != getattr(identity, part):
                raise RuntimeError(
                    f"this worker has other {part} than the machine that sent the run: "
                    f"{getattr(here, part)}, not {getattr(identity, part)}; use the same on both"
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
