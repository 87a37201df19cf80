"""Carries out the runs of an experiment: each once, whoever else is at work on the same folder."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

import polars as pl

from retarget.experiments.experiment import Experiment
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


class Schedule:
    """The runs of an experiment, and how far they have come. Runs are named by their keys.

    Args:
        experiment: What they are for.
        store: Where results are kept.
        fresh: Compute every run again, also those found finished.

    Attributes:
        planned: All runs, in the order of the experiment.
        keys: Their keys; two cases may have a run in common.
        runs: Each run once.
        identities: What determines them.
        done: The tables of those that are done.
        found: Those of them that were done before, or by another process.
        failed: Those that have failed, with their records.
        running: Those that are being computed here, and when they began, on `time.monotonic`.
        elsewhere: Those that another process is computing.
        estimator: What tells how long the others may take.
        capacity: Tasks computed at a time.
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
        self._held: dict[Task, ExitStack] = {}  # the locks of what is being computed
        self._waiting: dict[Task, float] = {}  # for another process, and since when

    def missing(self) -> list[str]:
        """The runs that are still to be computed."""
        return [key for key in self.runs if key not in self.done]

    def seconds_left(self) -> float | None:
        """An estimate for all that is left, or None where there is nothing to go by."""
        left = [key for key in self.missing() if key not in self.failed]
        total = 0.0
        for key in left:
            seconds = self.estimator.seconds(self.identities[key])
            if seconds is None:
                return None
            gone = time.monotonic() - self.running[key] if key in self.running else 0.0
            total += max(0.0, seconds - gone)
        return total / max(1, min(self.capacity, len(left))) if left else 0.0

    def carry_out(self, executor: Executor, watch: "Watch" = lambda schedule: None) -> None:
        """Computes what is missing.

        Args:
            executor: Where.
            watch: Called with this schedule whenever there may be something new to show.
        """
        self.capacity = executor.capacity
        self._queue.extend(self._tasks())
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
                self._look_elsewhere()
            watch(self)
        except BaseException:
            executor.close()  # before the locks: another process may begin these runs then
            raise
        finally:
            for locks in self._held.values():
                locks.close()

    def _tasks(self) -> Iterable[Task]:
        groups: dict[str, list[str]] = {}
        for key in self.missing():
            common = self._family.together(self.runs[key].config)
            groups.setdefault(key if common is None else common, []).append(key)
        return (self._task(keys) for keys in groups.values())

    def _task(self, keys: Sequence[str]) -> Task:
        return Task(
            self._family,
            tuple(self.runs[key].config for key in keys),
            tuple(self.identities[key] for key in keys),
            self._store.checkpoint(keys[0]),
        )

    def _begin(self, task: Task, executor: Executor) -> None:
        """Starts a task if nobody else has, and if nobody else has just finished it."""
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
        if tuple(left) not in self._attempts:
            for key in self._fresh.intersection(left):
                self._store.drop_checkpoints(key)
        for key in left:
            self._store.drop_leftovers(key)
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
                # of runs computed at once, each has its part of the time
                "seconds": round(ending.seconds / len(keys), 3),
                "attempts": attempts,
            }
            if isinstance(ending, Failed):
                self.failed[key] = self._store.keep_failure(
                    identity, ending.reason, trace=ending.trace, **about
                )
                continue
            self.done[key] = ending.tables[place]
            record = self._store.keep(identity, self.done[key], warnings=ending.warnings, **about)
            self.estimator.learn(record)

    def _look_elsewhere(self) -> None:
        """Tries again to begin what others had begun, by and by."""
        now = time.monotonic()
        for task, since in list(self._waiting.items()):
            if now - since > LOOK_ELSEWHERE_EVERY:
                del self._waiting[task]
                self._queue.append(task)

    def _collect(self, keys: Iterable[str]) -> None:
        """Takes the results that are there, unless they are to be computed again."""
        for key in keys:
            table = None if key in self._fresh else self._store.result(key)
            if table is not None:
                self.done[key] = table
                self.found.add(key)


Watch = Callable[[Schedule], None]
