"""The computation of runs, the same in this process, in others and on a cluster."""

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


@dataclass(frozen=True, eq=False)  # each is itself: configs may hold lists, which have no hash
class Task:
    """Runs that are computed at once: one, or several networks that train together."""

    family: Family
    configs: tuple[Config, ...]
    identities: tuple[Identity, ...]
    checkpoint: Path  # for what they need to resume after an interruption

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
    """Why there are no tables; another attempt would fail as well."""

    reason: str
    trace: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Lost:
    """Why there are no tables yet: the process ended. Another attempt may succeed."""

    reason: str


Ending = Computed | Failed | Lost


def compute_task(task: Task, elsewhere: bool = False, time_limit: float | None = None) -> Ending:
    """Computes the runs of a task, with one thread, so that results are the same everywhere.

    `elsewhere` says that this may be another machine, with other code or data; `time_limit` is
    in seconds, for a process that cannot be killed for it.
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
            # sweeps try rates that are too high: the figure shows what becomes of them
            warnings.simplefilter("ignore", DivergenceWarning)
            if elsewhere:
                silence()
                _require_same(task)
            # If a cluster's machine does not see the folder of results, the run starts anew.
            checkpoint = task.checkpoint if task.checkpoint.parent.is_dir() else None
            found = list(task.family.run(task.configs, checkpoint))
            tables = [next(table for known, table in found if known == c) for c in task.configs]
    except Exception as error:  # a run's failure, whatever it is, must not end the others
        trace = "".join(traceback.format_exception(error))
        return Failed(in_a_line(error), trace, time.perf_counter() - clock)
    seconds = time.perf_counter() - clock
    return Computed(tables, seconds, list(dict.fromkeys(str(w.message) for w in caught)))


class TookTooLongError(Exception):
    """A run that has used up its time."""


@contextmanager
def _at_most(seconds: float | None) -> Iterator[None]:
    """Raises `TookTooLongError` in this thread when time is up, at the next step of Python."""
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
                    f"{getattr(here, part)}, not {getattr(identity, part)}; give both the same"
                )


def in_a_line(error: Exception) -> str:
    """The kind and the message of an error."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Sets the number of threads of torch for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
