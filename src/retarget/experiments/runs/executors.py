"""Executors, which compute runs in this process, in others on this machine, or on a cluster."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from joblib.externals.loky import ProcessPoolExecutor

from retarget.errors import InvalidInputError
from retarget.experiments.experiment import Experiment, families
from retarget.experiments.runs.compute import Computed, Ending, Failed, Lost, Task, compute_task
from retarget.progress import silence
from retarget.text import amount_of_memory, amount_of_time

ORPHAN_CHECK = 0.5  # seconds


class Executor(Protocol):
    """Computes tasks, up to `capacity` of them at a time."""

    @property
    def capacity(self) -> int:
        """How many tasks may run at once."""

    def start(self, task: Task) -> None:
        """Starts a task; fewer than `capacity` may be running."""

    def ended(self, seconds: float) -> list[tuple[Task, Ending]]:
        """Returns the tasks that have ended since the last call; waits up to `seconds` for one."""

    def close(self) -> None:
        """Stops everything at once."""


class ThisProcess:
    """Computes one task after the other in this process, when `ended` is called."""

    capacity = 1

    def __init__(self) -> None:
        self._waiting: list[Task] = []
        self.start, self.close = self._waiting.append, self._waiting.clear

    def ended(self, seconds: float) -> list[tuple[Task, Ending]]:
        """Computes the tasks that were started."""
        endings = [(task, compute_task(task)) for task in self._waiting]
        self._waiting.clear()
        return endings


@dataclass
class _Slot:
    """A process, and what it is doing."""

    executor: Any
    pid: "Future[int]"  # its process id, once it has started
    task: Task | None = None
    future: "Future[Ending] | None" = None
    started: float = 0.0


class Processes:
    """Computes in up to `jobs` processes on this machine, with limits (seconds, bytes) per task.

    Each process has its own pool: in a shared one, the death of a process ends all other runs.
    """

    def __init__(
        self, jobs: int, time_limit: float | None = None, memory_limit: int | None = None
    ) -> None:
        if memory_limit is not None and not Path("/proc/self/statm").exists():
            raise InvalidInputError(
                "a memory limit needs /proc, which this system does not have; leave out "
                "--memory-limit"
            )
        self.capacity = jobs
        self._time_limit, self._memory_limit = time_limit, memory_limit
        self._slots: list[_Slot] = []

    def start(self, task: Task) -> None:
        """Gives the task to an idle process, or to a new one."""
        slot = next((slot for slot in self._slots if slot.task is None), None) or self._new_slot()
        try:
            slot.future = slot.executor.submit(compute_task, task)
        except BrokenProcessPool:  # it was killed while idle
            self._drop(slot)
            self.start(task)
        else:
            slot.task, slot.started = task, 0.0

    def ended(self, seconds: float) -> list[tuple[Task, Ending]]:
        """Returns what the processes have computed, or how they ended."""
        wait([slot.future for slot in self._slots if slot.future], seconds, FIRST_COMPLETED)
        endings = []
        for slot in list(self._slots):
            ending = self._ending(slot)
            if ending is None or slot.task is None:
                continue
            endings.append((slot.task, ending))
            slot.task = slot.future = None
            if not isinstance(ending, Computed):  # the process may be in a bad state: replace it
                self._drop(slot)
        return endings

    def close(self) -> None:
        """Kills the processes; the checkpoints that they have written stay valid."""
        for slot in list(self._slots):
            self._drop(slot)

    def _drop(self, slot: _Slot) -> None:
        self._slots.remove(slot)
        slot.executor.shutdown(wait=True, kill_workers=True)

    def _new_slot(self) -> _Slot:
        threads = max(1, (os.cpu_count() or 1) // self.capacity)
        executor = ProcessPoolExecutor(
            max_workers=1,
            initializer=_prepare,
            initargs=(os.getpid(),),
            # for Numba's kernels, whose results do not depend on it
            env={"NUMBA_NUM_THREADS": str(threads)},
        )
        self._slots.append(_Slot(executor, executor.submit(os.getpid)))
        return self._slots[-1]

    def _ending(self, slot: _Slot) -> Ending | None:
        """Returns how a task ended; None while it is running within its limits."""
        if slot.future is None:
            return None
        if slot.future.done():
            try:
                return slot.future.result()
            except BrokenProcessPool:
                return Lost("its process was killed, or crashed")
        if not slot.pid.done():
            return None  # its process has not started yet
        now = time.monotonic()
        slot.started = slot.started or now
        seconds = now - slot.started
        if self._time_limit is not None and seconds > self._time_limit:
            return Failed(f"it took longer than its limit of {self._time_limit:g} s", None, seconds)
        limit = self._memory_limit
        if limit is not None and (memory := _memory_of(slot.pid.result())) > limit:
            both = f"{memory / 1e9:.2f} GB, more than its limit of {limit / 1e9:.2f} GB"
            return Failed(f"its process took {both}", None, seconds)
        return None


class Cluster:
    """Computes on the workers of a Dask cluster, one task for each of their threads.

    If a worker dies, Dask gives its run to another worker, and gives up after a few deaths.
    """

    def __init__(self, client: Any, time_limit: float | None = None) -> None:
        self._client, self._time_limit = client, time_limit
        self._tasks: dict[Any, Task] = {}

    @property
    def capacity(self) -> int:
        """Threads of the current workers; at least one, since more workers may join."""
        threads: dict[str, int] = self._client.nthreads()
        return max(1, sum(threads.values()))

    def start(self, task: Task) -> None:
        """Sends a task to the cluster."""
        future = self._client.submit(
            compute_task, task, elsewhere=True, time_limit=self._time_limit, pure=False
        )
        self._tasks[future] = task

    def ended(self, seconds: float) -> list[tuple[Task, Ending]]:
        """Returns what workers have computed, or how the scheduler says it ended."""
        import distributed

        wait_for: Any = distributed.wait  # Dask has no type hints
        try:
            wait_for(list(self._tasks), seconds, return_when="FIRST_COMPLETED")
        except TimeoutError:
            return []
        done = [future for future in self._tasks if future.status != "pending"]
        return [(self._tasks.pop(future), _ending(future)) for future in done]

    def close(self) -> None:
        """Cancels tasks that have not started; a worker cannot be stopped within a run."""
        self._client.cancel(list(self._tasks), force=True)
        self._tasks.clear()


@contextmanager
def open_executors(
    jobs: int | None = None,
    cluster: str | None = None,
    time_limit: str | None = None,
    memory_limit: str | None = None,
    device: str | None = None,
) -> Iterator[Callable[[Experiment], Executor]]:
    """Chooses where an experiment's runs are computed, by the options of the command.

    By default there is one process for each core, or one on a GPU; `jobs=0` uses this process.
    """
    if cluster is not None and jobs is not None:
        raise InvalidInputError(
            "--jobs and --cluster were both given; a cluster sets its own number of workers: leave "
            "--jobs out, or use --cluster local:N"
        )
    if jobs == 0 and (time_limit or memory_limit):
        raise InvalidInputError(
            "--jobs 0 computes in this process, which cannot be stopped at a limit; leave out "
            "--time-limit and --memory-limit, or use --jobs 1"
        )
    if memory_limit and cluster and not cluster.startswith("local:"):
        raise InvalidInputError(
            "--memory-limit cannot be set for workers that are already running; set it when you "
            "start them: dask worker --memory-limit ..."
        )
    seconds = None if time_limit is None else amount_of_time("--time-limit", time_limit)
    memory = None if memory_limit is None else amount_of_memory("--memory-limit", memory_limit)
    if cluster is not None:
        from retarget.distributed.cluster import connect

        limit = None if memory is None else str(memory)
        with connect(cluster, memory_limit=limit) as client:
            workers = Cluster(client, seconds)
            yield lambda experiment: workers
        return
    here = ThisProcess()
    if jobs is None:
        jobs = (os.cpu_count() or 1) if device in (None, "cpu") else 1
    if jobs == 0:
        yield lambda experiment: here
        return
    processes = Processes(jobs, seconds, memory)
    # light runs are computed in this process, unless they have limits
    unlimited = seconds is None and memory is None
    try:
        yield lambda experiment: here if experiment.kind.light and unlimited else processes
    finally:
        processes.close()


def _prepare(parent: int) -> None:
    """Prepares a new process."""
    # Ctrl-C reaches every process of a terminal, but only the parent reacts to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    silence()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    families()  # imports take seconds, which must not count for a run


def _end_with(parent: int) -> None:
    """Ends this process when its parent is gone, since nobody waits for its results."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK)
    os._exit(1)


def _memory_of(pid: int) -> int:
    """Returns the bytes of memory that a process uses; 0 if it has just ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _ending(future: Any) -> Ending:
    from distributed.scheduler import KilledWorker

    if future.status == "finished":
        ending: Ending = future.result()
        return ending
    if future.status == "error":
        error = future.exception()
        if isinstance(error, KilledWorker):
            return Failed(f"the workers that computed it died, the last one {error.last_worker}")
        return Failed(f"{type(error).__name__}: {error}")
    return Lost(f"the cluster has {future.status} it")
