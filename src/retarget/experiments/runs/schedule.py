"""Carries out the runs of an experiment: each once, whoever else is at work on the same folder."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import polars as pl

from retarget.experiments.experiment import Experiment, PlannedRun
from retarget.experiments.runs.compute import Ending, Failed, Lost, Task
from retarget.experiments.runs.executors import Executor
from retarget.experiments.runs.store import Identity, RunRecord, RunStore, identities_of

ATTEMPTS = 3  # at a run whose process is killed
LOOK_EVERY = 0.1  # seconds: at limits, and at what there is to show
LOOK_ELSEWHERE_EVERY = 0.5  # seconds: whether another process has finished a run


class Estimator:
    """How long a run may take, from how long others took.

    Args:
        records: Records of finished runs.
    """

    def __init__(self, records: Iterable[RunRecord] = ()) -> None:
        self._seconds: dict[str, dict[_Parameters, list[float]]] = {}
        self._estimates: dict[tuple[str, _Parameters], float] = {}
        for record in records:
            self.learn(record)

    def learn(self, record: RunRecord) -> None:
        """Takes one more run into account, if it was done."""
        if record.status == "done":
            of_kind = self._seconds.setdefault(record.identity["kind"], {})
            of_kind.setdefault(_but_seed(record.identity["config"]), []).append(record.seconds)
            self._estimates.clear()

    def seconds(self, identity: Identity) -> float | None:
        """The median of the runs of this kind that differ in the fewest parameters, if any."""
        known = self._seconds.get(identity.kind)
        if not known:
            return None
        wanted = _but_seed(identity.config)
        if (identity.kind, wanted) not in self._estimates:
            distances = {found: len({name for name, _ in found ^ wanted}) for found in known}
            least = min(distances.values())
            nearest = [s for found in known if distances[found] == least for s in known[found]]
            self._estimates[identity.kind, wanted] = median(nearest)
        return self._estimates[identity.kind, wanted]


_Parameters = frozenset[tuple[str, str]]


def _but_seed(config: dict[str, Any]) -> _Parameters:
    return frozenset((name, json.dumps(config[name])) for name in config if name != "seed")


@dataclass
class Progress:
    """How far an experiment has come. Keys of runs, in order.

    Attributes:
        runs: All runs.
        found: Those that were done before, or by another process.
        done: Those that are done, found ones too.
        failed: Those that have failed, with their records.
        running: Those that are being computed here, and when they began, on `time.monotonic`.
        elsewhere: Those that another process is computing.
        estimator: What tells how long the others may take.
        capacity: Tasks computed at a time.
    """

    runs: dict[str, PlannedRun]
    estimator: Estimator
    identities: dict[str, Identity]
    capacity: int
    found: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    failed: dict[str, RunRecord] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)

    def seconds_left(self) -> float | None:
        """An estimate for all that is left, or None where there is nothing to go by."""
        left = [key for key in self.runs if key not in self.done and key not in self.failed]
        total = 0.0
        for key in left:
            seconds = self.estimator.seconds(self.identities[key])
            if seconds is None:
                return None
            gone = time.monotonic() - self.running[key] if key in self.running else 0.0
            total += max(0.0, seconds - gone)
        return total / max(1, min(self.capacity, len(left))) if left else 0.0


class Schedule:
    """The tasks of an experiment, and what has become of them.

    Args:
        experiment: What they are for.
        store: Where results are kept.
        fresh: Compute every run again, also those found finished.
    """

    def __init__(self, experiment: Experiment, store: RunStore, fresh: bool = False) -> None:
        self._experiment, self._store = experiment, store
        self._family, self.planned = experiment.kind, experiment.planned_runs()
        identities = identities_of([run.config for run in self.planned], self._family)
        self.keys = [identity.key for identity in identities]
        known = dict(zip(self.keys, identities, strict=True))
        runs = dict(zip(self.keys, self.planned, strict=True))
        self.progress = Progress(runs, Estimator(store.records()), known, 1)
        self.tables: dict[str, pl.DataFrame] = {}
        if not fresh:
            self._collect(runs)
        self._fresh = set(runs) if fresh else set()
        self._attempts: dict[tuple[str, ...], int] = {}

    def missing(self) -> list[str]:
        """The runs that are still to be computed."""
        return [key for key in self.progress.runs if key not in self.progress.done]

    def carry_out(
        self, executor: Executor, watch: Callable[[Progress], None] = lambda progress: None
    ) -> None:
        """Computes what is missing.

        Args:
            executor: Where.
            watch: Called with the progress whenever there may be something new to show.
        """
        self.progress.capacity = executor.capacity
        queue, elsewhere = deque(self._tasks()), dict[Task, float]()
        held: dict[Task, ExitStack] = {}
        try:
            while queue or held or elsewhere:
                while queue and len(held) < executor.capacity:
                    self._begin(queue.popleft(), executor, held, elsewhere)
                watch(self.progress)
                for task, ending in _ended(executor, bool(held)):
                    self._finish(task, ending, queue)
                    held.pop(task).close()
                self._look_elsewhere(queue, elsewhere)
            watch(self.progress)
        except BaseException:
            executor.close()  # before the locks: another process may begin these runs then
            raise
        finally:
            for locks in held.values():
                locks.close()

    def _tasks(self) -> Iterable[Task]:
        groups: dict[str, list[str]] = {}
        for key in self.missing():
            common = self._family.together(self.progress.runs[key].config)
            groups.setdefault(key if common is None else common, []).append(key)
        for keys in groups.values():
            yield self._task(keys)

    def _task(self, keys: Sequence[str]) -> Task:
        return Task(
            self._family,
            tuple(self.progress.runs[key].config for key in keys),
            tuple(self.progress.identities[key] for key in keys),
            self._store.checkpoint(keys[0]),
        )

    def _begin(
        self,
        task: Task,
        executor: Executor,
        held: dict[Task, ExitStack],
        elsewhere: dict[Task, float],
    ) -> None:
        """Starts a task if nobody else has, and if nobody else has just finished it."""
        keys, locks = task.keys, ExitStack()
        for key in keys:
            lock = self._store.lock(key)
            if lock is None:
                locks.close()
                elsewhere[task] = time.monotonic()
                self.progress.elsewhere.update(keys)
                return
            locks.callback(lock.release)
        self.progress.elsewhere.difference_update(keys)
        self._collect(key for key in keys if key not in self._fresh)
        left = [key for key in keys if key not in self.progress.done]
        if not left:
            locks.close()
            return
        if left != keys:
            task = self._task(left)
        if tuple(left) not in self._attempts:
            for key in self._fresh.intersection(left):
                self._store.drop_checkpoints(key)
        for key in left:
            self._store.drop_leftovers(key)
        held[task] = locks
        self.progress.running.update(dict.fromkeys(left, time.monotonic()))
        executor.start(task)

    def _finish(self, task: Task, ending: Ending, queue: deque[Task]) -> None:
        keys = task.keys
        for key in keys:
            del self.progress.running[key]
        attempts = self._attempts[tuple(keys)] = self._attempts.get(tuple(keys), 0) + 1
        if isinstance(ending, Lost):
            if attempts < ATTEMPTS:
                queue.append(task)
                return
            ending = Failed(f"{ending.reason}, {attempts} times")
        for place, key in enumerate(keys):
            about = {
                "experiment": self._experiment.label,
                "name": self.progress.runs[key].name,
                # of runs computed at once, each has its part of the time
                "seconds": round(ending.seconds / len(keys), 3),
                "attempts": attempts,
            }
            if isinstance(ending, Failed):
                self.progress.failed[key] = self._store.keep_failure(
                    self.progress.identities[key], ending.reason, trace=ending.trace, **about
                )
                continue
            table = ending.tables[place]
            record = self._store.keep(
                self.progress.identities[key], table, warnings=ending.warnings, **about
            )
            self.progress.estimator.learn(record)
            self.progress.done.add(key)
            self.tables[key] = table

    def _look_elsewhere(self, queue: deque[Task], elsewhere: dict[Task, float]) -> None:
        """Tries again to begin what others had begun, by and by."""
        now = time.monotonic()
        for task, since in list(elsewhere.items()):
            if now - since > LOOK_ELSEWHERE_EVERY:
                del elsewhere[task]
                queue.append(task)

    def _collect(self, keys: Iterable[str]) -> None:
        """Takes the results that are there."""
        for key in keys:
            table = self._store.result(key)
            if table is not None:
                self.tables[key] = table
                self.progress.done.add(key)
                self.progress.found.add(key)


def _ended(executor: Executor, busy: bool) -> list[tuple[Task, Ending]]:
    if busy:
        return executor.ended(LOOK_EVERY)
    time.sleep(LOOK_EVERY)  # for a run that another process is computing
    return []
