"""Runs an experiment: finds finished runs, computes the others, writes table and figure.

Each run is computed once, even if several commands work on the same folder of results.
"""

import json
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

import retarget
from retarget.lab.experiment import Experiment, PlannedRun
from retarget.lab.runs.compute import Ending, Failed, RunGroup, in_a_line
from retarget.lab.runs.executors import Executor, compute_here
from retarget.lab.runs.store import (
    CHECKPOINTS,
    LEFTOVERS,
    RunRecord,
    RunStore,
    identities_of,
    labeled,
)
from retarget.storage import atomic_file

DOTS_PER_INCH = 200  # of figures
LOOK_ELSEWHERE_EVERY = 0.5  # seconds between checks whether another process has finished


class Schedule:
    """The runs of an experiment, by their keys, and their progress.

    Attributes:
        planned: All runs, in the order of the experiment.
        keys: Their keys; two cases may share a run.
        runs: Each run once.
        done: The tables of finished runs.
        reused: Runs that were finished before, or by another process.
        failed: The records of runs that have failed.
    """

    def __init__(self, experiment: Experiment, store: RunStore, fresh: bool = False) -> None:
        self._experiment = experiment
        self._store = store
        self._family = experiment.kind
        self.planned = experiment.planned_runs()
        identities = identities_of([run.config for run in self.planned], self._family)
        self.keys = [identity.key for identity in identities]
        self._identities = dict(zip(self.keys, identities, strict=True))
        self.runs = dict(zip(self.keys, self.planned, strict=True))
        self.done: dict[str, pl.DataFrame] = {}
        self.reused: set[str] = set()
        self.failed: dict[str, RunRecord] = {}
        self._fresh = set(self.runs) if fresh else set()
        self._collect(self.runs)
        self._locks: dict[RunGroup, ExitStack] = {}  # of the groups that are being computed here

    def missing(self) -> list[str]:
        """Returns the runs that are still to be computed."""
        return [key for key in self.runs if key not in self.done]

    def carry_out(self, executor: Executor, watch: "Watch" = lambda schedule: None) -> None:
        """Computes the missing runs; calls `watch` whenever there may be progress to show."""
        groups: dict[str, list[str]] = {}
        for key in self.missing():
            groups.setdefault(self._family.together(self.runs[key].config) or key, []).append(key)
        left = list(groups.values())
        watch(self)
        while left:
            elsewhere: list[list[str]] = []  # what other commands are computing
            try:
                with closing(executor(self._begin(left, elsewhere))) as endings:
                    for group, ending in endings:
                        self._finish(group, ending)
                        self._locks.pop(group).close()
                        watch(self)
            finally:  # the executor has stopped: others may begin these runs
                for locks in list(self._locks.values()):
                    locks.close()
            if elsewhere:
                watch(self)
                time.sleep(LOOK_ELSEWHERE_EVERY)
            left = elsewhere

    def _begin(self, groups: Iterable[list[str]], elsewhere: list[list[str]]) -> Iterator[RunGroup]:
        """Yields the groups that no other command is computing, or has just finished."""
        for keys in groups:
            locks = ExitStack()
            taken = [self._store.lock(key) for key in keys]
            for lock in taken:
                if lock is not None:
                    locks.callback(lock.release)
            if None in taken:
                locks.close()
                elsewhere.append(keys)
                continue
            self._collect(keys)
            left = [key for key in keys if key not in self.done]
            if not left:
                locks.close()
                continue
            for key in left:
                self._store.drop(key, LEFTOVERS)
                if key in self._fresh:
                    self._store.drop(key, CHECKPOINTS)
            group = RunGroup(
                self._family,
                tuple(self.runs[key].config for key in left),
                tuple(self._identities[key] for key in left),
                self._store.checkpoint(left[0]),
            )
            self._locks[group] = locks
            yield group

    def _finish(self, group: RunGroup, ending: Ending) -> None:
        for place, identity in enumerate(group.identities):
            key = identity.key
            about = {
                "experiment": self._experiment.label,
                "name": self.runs[key].name,
                # runs computed together share the time
                "seconds": round(ending.seconds / len(group.identities), 3),
            }
            if isinstance(ending, Failed):
                self.failed[key] = self._store.keep_failure(
                    identity, ending.reason, trace=ending.trace, **about
                )
            else:
                table = self.done[key] = ending.tables[place]
                self._store.keep(identity, table, warnings=ending.warnings, **about)

    def _collect(self, keys: Iterable[str]) -> None:
        """Loads the results that exist, unless they are to be computed again."""
        for key in keys:
            table = None if key in self._fresh else self._store.result(key)
            if table is not None:
                self.done[key] = table
                self.reused.add(key)


Watch = Callable[[Schedule], None]


@dataclass(frozen=True)
class Outcome:
    """What an experiment has computed and written."""

    table: pl.DataFrame | None  # for all runs; None if some have failed
    files: list[Path]
    computed: int
    reused: int  # runs found finished
    failed: list[tuple[PlannedRun, RunRecord]]
    not_drawn: str | None  # why the table could not be drawn
    seconds: float


def run_experiment(
    experiment: Experiment,
    results: Path,
    *,
    executor: Executor = compute_here,
    fresh: bool = False,
    watch: Watch = lambda schedule: None,
) -> Outcome:
    """Computes an experiment, by default in this process; writes its files to `results/<label>/`.

    The results of single runs are in `results/runs/`, where every experiment finds them; `fresh`
    ignores them. If runs fail, the results of the others are kept, and nothing is drawn. If drawing
    fails, table and record are still written, and the record says why there is no figure.
    """
    started = datetime.now(UTC)
    clock = time.perf_counter()
    schedule = Schedule(experiment, RunStore(results), fresh)
    schedule.carry_out(executor, watch)
    reused = len(schedule.reused)
    computed = len(schedule.done) - reused
    if schedule.failed:
        failed = [(schedule.runs[key], record) for key, record in schedule.failed.items()]
        seconds = time.perf_counter() - clock
        return Outcome(None, [], computed, reused, failed, None, seconds)
    # relaxed, since a parameter is null in cases that do not have it
    table = pl.concat(
        (
            labeled(schedule.done[key], run.labels)
            for key, run in zip(schedule.keys, schedule.planned, strict=True)
        ),
        how="vertical_relaxed",
    )
    stem = results / experiment.label / experiment.label
    files = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("parquet", "png", "pdf")]
    # opened here: Polars does not accept a path that is not UTF-8
    with atomic_file(files[0]) as temporary, temporary.open("wb") as opened:
        table.write_parquet(opened)
    failure = _draw(experiment, table, files[1:])
    record = _record(experiment, started, time.perf_counter() - clock)
    if failure:
        record["not drawn"] = failure
        files = files[:1]
    counts = {"all": computed + reused, "computed": computed, "found finished": reused}
    record["runs"] = counts | {"keys": schedule.keys}
    files.append(stem.with_name("run.json"))
    with atomic_file(files[-1]) as temporary:
        temporary.write_text(json.dumps(record, indent=2) + "\n")
    seconds = time.perf_counter() - clock
    return Outcome(table, files, computed, reused, [], failure.get("reason"), seconds)


def _draw(experiment: Experiment, table: pl.DataFrame, files: Sequence[Path]) -> dict[str, str]:
    """Draws the table; if that fails, returns why, so that the results are not lost."""
    import matplotlib as mpl

    box = "tight" if experiment.note else None
    try:
        figure = experiment.kind.draw(table)
        if experiment.note:  # above everything else, where the saved picture gets more room
            figure.text(0.5, 1.005, experiment.note, ha="center", va="bottom", color="#B00020")
        for path in files:
            # fonts that others can edit; without dates, so that the same result gives the same file
            with mpl.rc_context({"pdf.fonttype": 42}), atomic_file(path) as temporary:
                metadata = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
                figure.savefig(temporary, dpi=DOTS_PER_INCH, metadata=metadata, bbox_inches=box)
    except OSError:  # a full disk, or a read-only folder
        raise
    except Exception as error:
        for path in files:  # drop figures of an earlier table
            path.unlink(missing_ok=True)
        trace = "".join(traceback.format_exception(error))
        return {"reason": in_a_line(error), "trace": trace}
    return {}


def _record(experiment: Experiment, started: datetime, seconds: float) -> dict[str, Any]:
    packages = ("matplotlib", "numpy", "polars", "scikit-learn", "torch")
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "experiment": experiment.model_dump(mode="json"),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "versions": {
            "retarget": retarget.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
        "machine": f"{platform.system()} {platform.machine()}",
    }
