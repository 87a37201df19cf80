"""Runs an experiment: finds finished runs, computes the others, writes table and figure.

Each run is computed once, even if several commands work on the same folder of results.
"""

import json
import platform
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
import polars as pl

import retarget
from retarget.experiments.experiment import Experiment, PlannedRun
from retarget.experiments.runs.compute import Ending, Failed, Lost, Task, in_a_line
from retarget.experiments.runs.executors import Executor, ThisProcess
from retarget.experiments.runs.store import (
    CHECKPOINTS,
    LEFTOVERS,
    Identity,
    RunRecord,
    RunStore,
    identities_of,
    labelled,
)
from retarget.storage import atomic_file

ATTEMPTS = 3  # for a run whose process is killed
LOOK_EVERY = 0.1  # seconds between checks of limits and updates of the display
LOOK_ELSEWHERE_EVERY = 0.5  # seconds between checks whether another process has finished


class Estimator:
    """Estimates how long a run takes, from the records of finished runs."""

    def __init__(self, records: Iterable[RunRecord] = ()) -> None:
        self._seconds: dict[str, dict[frozenset[tuple[str, str]], list[float]]] = {}
        self._estimates: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for record in records:
            self.learn(record)

    def learn(self, record: RunRecord) -> None:
        """Takes one more run into account, if it finished."""
        if record.status == "done":
            of_kind = self._seconds.setdefault(record.identity.kind, {})
            of_kind.setdefault(_but_seed(record.identity.config), []).append(record.seconds)
            self._estimates.clear()

    def seconds(self, identity: Identity) -> float | None:
        """Returns the median time of the most similar runs of this kind; None if there are none."""
        known, wanted = self._seconds.get(identity.kind), _but_seed(identity.config)
        if not known:
            return None
        if (identity.kind, wanted) not in self._estimates:
            distances = {found: len({name for name, _ in found ^ wanted}) for found in known}
            least = min(distances.values())
            nearest = [s for found in known if distances[found] == least for s in known[found]]
            self._estimates[identity.kind, wanted] = median(nearest)
        return self._estimates[identity.kind, wanted]


def _but_seed(config: dict[str, Any]) -> frozenset[tuple[str, str]]:
    return frozenset((name, json.dumps(config[name])) for name in config if name != "seed")


class Schedule:
    """The runs of an experiment, by their keys, and their progress.

    Attributes:
        planned: All runs, in the order of the experiment.
        keys: Their keys; two cases may share a run.
        runs: Each run once.
        done: The tables of finished runs.
        found: Runs that were finished before, or by another process.
        running: Runs that are being computed here, and when they began, by `time.monotonic`.
        elsewhere: Runs that another process is computing.
        capacity: Number of tasks computed at a time.
    """

    def __init__(self, experiment: Experiment, store: RunStore, fresh: bool = False) -> None:
        self._experiment, self._store = experiment, store
        self._family, self.planned = experiment.kind, experiment.planned_runs()
        identities = identities_of([run.config for run in self.planned], self._family)
        self.keys = [identity.key for identity in identities]
        self.identities = dict(zip(self.keys, identities, strict=True))
        self.runs = dict(zip(self.keys, self.planned, strict=True))
        self.estimator, self.capacity = Estimator(store.records()), 1
        self.done: dict[str, pl.DataFrame] = {}
        self.found: set[str] = set()
        self.failed: dict[str, RunRecord] = {}
        self.running: dict[str, float] = {}
        self.elsewhere: set[str] = set()
        self._fresh = set(self.runs) if fresh else set()
        self._collect(self.runs)
        self._attempts: dict[tuple[str, ...], int] = {}
        self._queue: deque[Task] = deque()
        self._held: dict[Task, ExitStack] = {}  # the locks of running tasks
        self._waiting: dict[Task, float] = {}  # tasks that wait for another process, and since when

    def missing(self) -> list[str]:
        """Returns the runs that are still to be computed."""
        return [key for key in self.runs if key not in self.done]

    def seconds_left(self) -> float | None:
        """Estimates the remaining time; None if no similar run has finished."""
        left = [key for key in self.missing() if key not in self.failed]
        total = 0.0
        for key in left:
            seconds = self.estimator.seconds(self.identities[key])
            if seconds is None:
                return None
            gone = time.monotonic() - self.running[key] if key in self.running else 0.0
            total += max(0.0, seconds - gone)
        return total / max(1, min(self.capacity, len(left)))

    def carry_out(self, executor: Executor, watch: "Watch" = lambda schedule: None) -> None:
        """Computes the missing runs; calls `watch` whenever there may be progress to show."""
        self.capacity = executor.capacity
        groups: dict[str, list[str]] = {}
        for key in self.missing():
            groups.setdefault(self._family.together(self.runs[key].config) or key, []).append(key)
        self._queue.extend(map(self._task, groups.values()))
        try:
            while self._queue or self._held or self._waiting:
                while self._queue and len(self._held) < executor.capacity:
                    self._begin(self._queue.popleft(), executor)
                watch(self)
                if self._held:
                    for task, ending in executor.ended(LOOK_EVERY):
                        self._finish(task, ending)
                        self._held.pop(task).close()
                else:
                    time.sleep(LOOK_EVERY)  # for a run that another process is computing
                for task, since in list(self._waiting.items()):
                    if time.monotonic() - since > LOOK_ELSEWHERE_EVERY:
                        del self._waiting[task]
                        self._queue.append(task)
            watch(self)
        except BaseException:
            executor.close()  # before the locks: others may begin these runs then
            raise
        finally:
            for locks in self._held.values():
                locks.close()

    def _task(self, keys: Sequence[str]) -> Task:
        return Task(
            self._family,
            tuple(self.runs[key].config for key in keys),
            tuple(self.identities[key] for key in keys),
            self._store.checkpoint(keys[0]),
        )

    def _begin(self, task: Task, executor: Executor) -> None:
        """Starts a task unless another process is computing it, or has just finished it."""
        keys, locks = task.keys, ExitStack()
        for key in keys:
            lock = self._store.lock(key)
            if lock is None:
                locks.close()
                self._waiting[task] = time.monotonic()
                self.elsewhere.update(keys)
                return
            locks.callback(lock.release)
        self.elsewhere.difference_update(keys)
        self._collect(keys)
        left = [key for key in keys if key not in self.done]
        if not left:
            locks.close()
            return
        if left != keys:
            task = self._task(left)
        first_time = tuple(left) not in self._attempts
        for key in left:
            self._store.drop(key, LEFTOVERS)
            if first_time and key in self._fresh:
                self._store.drop(key, CHECKPOINTS)
        self._held[task] = locks
        self.running.update(dict.fromkeys(left, time.monotonic()))
        executor.start(task)

    def _finish(self, task: Task, ending: Ending) -> None:
        keys = task.keys
        for key in keys:
            del self.running[key]
        attempts = self._attempts[tuple(keys)] = self._attempts.get(tuple(keys), 0) + 1
        if isinstance(ending, Lost):
            if attempts < ATTEMPTS:
                self._queue.append(task)
                return
            ending = Failed(f"{ending.reason}, {attempts} times")
        for place, key in enumerate(keys):
            identity = self.identities[key]
            about = {
                "experiment": self._experiment.label,
                "name": self.runs[key].name,
                # runs computed together share the time
                "seconds": round(ending.seconds / len(keys), 3),
                "attempts": attempts,
            }
            if isinstance(ending, Failed):
                record = self._store.keep_failure(
                    identity, ending.reason, trace=ending.trace, **about
                )
                self.failed[key] = record
            else:
                table = self.done[key] = ending.tables[place]
                record = self._store.keep(identity, table, warnings=ending.warnings, **about)
                self.estimator.learn(record)

    def _collect(self, keys: Iterable[str]) -> None:
        """Loads the results that exist, unless they are to be computed again."""
        for key in keys:
            table = None if key in self._fresh else self._store.result(key)
            if table is not None:
                self.done[key] = table
                self.found.add(key)


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
    executor: Executor | None = None,
    fresh: bool = False,
    watch: Watch = lambda schedule: None,
) -> Outcome:
    """Computes an experiment, by default in this process; writes its files to `results/<label>/`.

    The results of single runs are in `results/runs/`, where every experiment finds them; `fresh`
    ignores them. If runs fail, the results of the others are kept, and nothing is drawn. If drawing
    fails, table and record are still written, and the record says why there is no figure.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    schedule = Schedule(experiment, RunStore(results), fresh)
    schedule.carry_out(executor or ThisProcess(), watch)
    reused = len(schedule.found)
    computed = len(schedule.done) - reused
    if schedule.failed:
        failed = [(schedule.runs[key], record) for key, record in schedule.failed.items()]
        seconds = time.perf_counter() - clock
        return Outcome(None, [], computed, reused, failed, None, seconds)
    # relaxed, since a parameter is null in cases that do not have it
    table = pl.concat(
        (
            labelled(schedule.done[key], run.labels)
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
        record["not drawn"], files = failure, files[:1]
    counts = {"all": computed + reused, "computed": computed, "found finished": reused}
    record["runs"] = counts | {"keys": schedule.keys}
    files.append(stem.with_name("run.json"))
    with atomic_file(files[-1]) as temporary:
        temporary.write_text(json.dumps(record, indent=2) + "\n")
    seconds = time.perf_counter() - clock
    return Outcome(table, files, computed, reused, [], failure.get("reason"), seconds)


def _draw(experiment: Experiment, table: pl.DataFrame, files: Sequence[Path]) -> dict[str, str]:
    """Draws the table; if that fails, returns why, so that the results are not lost."""
    others = plt.get_fignums()
    try:
        figure = experiment.kind.draw(table)
        for path in files:
            with atomic_file(path) as temporary:
                # without dates, so that the same result gives the same file
                metadata = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
                figure.savefig(temporary, metadata=metadata)
    except OSError:  # a full disk, or a read-only folder
        raise
    except Exception as error:
        for path in files:  # drop figures of an earlier table
            path.unlink(missing_ok=True)
        trace = "".join(traceback.format_exception(error))
        return {"reason": in_a_line(error), "trace": trace}
    finally:
        for number in set(plt.get_fignums()).difference(others):
            plt.close(number)
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
