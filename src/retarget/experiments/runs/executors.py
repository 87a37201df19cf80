"""Where runs are computed: in this process, in others on this machine, or on a cluster."""

import concurrent.futures
import os
import signal
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joblib.externals.loky import ProcessPoolExecutor

from retarget.errors import InvalidInputError
from retarget.experiments.experiment import Experiment, families
from retarget.experiments.runs.compute import Computed, Ending, Failed, Lost, Task, compute_task
from retarget.progress import silence
from retarget.text import amount_of_memory, amount_of_time

ORPHAN_CHECK = 0.5  # seconds


class Executor(ABC):
    """Computes tasks, up to `capacity` of them at a time."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """How many tasks may be started before one has ended."""

    @abstractmethod
    def start(self, task: Task) -> None:
        """Begins a task; there must be room for it."""

    @abstractmethod
    def ended(self, seconds: float) -> list[tuple[Task, Ending]]:
        """The tasks that have ended since the last call; waits up to so many seconds for one."""

    @abstractmethod
    def close(self) -> None:
        """Stops whatever is going on, at once."""


class ThisProcess(Executor):
    """One task after the other, here."""

    def __init__(self) -> None:
        self._waiting: deque[Task] = deque()

    @property
    def capacity(self) -> int:
        """One: `ended` computes it."""
        return 1

    def start(self, task: Task) -> None:
        """Notes the task."""
        self._waiting.append(task)

    def ended(self, seconds: float) -> list[tuple[Task, Ending]]:
        """Computes what was started."""
        done = [(task, compute_task(task)) for task in self._waiting]
        self._waiting.clear()
        return done

    def close(self) -> None:
        """Forgets what was started."""
        self._waiting.clear()


@dataclass
class _Slot:
    """A process, and what it is doing."""

    executor: Any
    note: Path  # where the process writes its number when it begins
    task: Task | None = None
    future: "concurrent.futures.Future[Ending] | None" = None
    started: float = 0.0


class Processes(Executor):
    """Processes on this machine, by joblib's process engine.

    Each has an engine of its own: with one for all, the death of a process would take the runs of
    all others with it.

    Args:
        jobs: How many.
        time_limit: Seconds for a task.
        memory_limit: Bytes that a process may take.
    """

    def __init__(
        self, jobs: int, time_limit: float | None = None, memory_limit: int | None = None
    ) -> None:
        if memory_limit is not None and not Path("/proc/self/statm").exists():
            raise InvalidInputError(
                "a limit of memory needs /proc, which this system does not have"
            )
        self._jobs = jobs
        self._time_limit, self._memory_limit = time_limit, memory_limit
        self._slots: list[_Slot] = []
        self._notes: tempfile.TemporaryDirectory[str] | None = None
        self._begun = 0

    @property
    def capacity(self) -> int:
        """As many as there may be processes."""
        return self._jobs

    def start(self, task: Task) -> None:
        """Gives the task to a process that has none, or to a new one."""
        free = next((slot for slot in self._slots if slot.task is None), None)
        if free is not None:
            try:
                free.future = free.executor.submit(compute_task, task)
            except BrokenProcessPool:  # it was killed while it had nothing to do
                self._drop(free)
                free = None
        if free is None:
            free = self._new_slot()
            self._slots.append(free)
            free.future = free.executor.submit(compute_task, task)
        free.task, free.started = task, 0.0

    def ended(self, seconds: float) -> list[tuple[Task, Ending]]:
        """What the processes have brought, or what became of them."""
        futures = [slot.future for slot in self._slots if slot.future is not None]
        concurrent.futures.wait(futures, seconds, concurrent.futures.FIRST_COMPLETED)
        endings = []
        for slot in list(self._slots):
            if slot.task is None or slot.future is None:
                continue
            ending = self._result(slot) if slot.future.done() else self._over_limit(slot)
            if ending is None:
                continue
            endings.append((slot.task, ending))
            slot.task = slot.future = None
            if not isinstance(ending, Computed):  # whatever it left in its process is gone too
                self._drop(slot)
        return endings

    def close(self) -> None:
        """Kills the processes: what they had stored is whole, and what they had not is lost."""
        for slot in list(self._slots):
            self._drop(slot)
        if self._notes is not None:
            self._notes.cleanup()
            self._notes = None

    def _drop(self, slot: _Slot) -> None:
        self._slots.remove(slot)
        slot.executor.shutdown(wait=True, kill_workers=True)

    def _new_slot(self) -> _Slot:
        threads = max(1, (os.cpu_count() or 1) // self._jobs)
        self._begun += 1
        self._notes = self._notes or tempfile.TemporaryDirectory(prefix="retarget-")
        note = Path(self._notes.name) / str(self._begun)
        executor = ProcessPoolExecutor(
            max_workers=1,
            initializer=_prepare,
            initargs=(os.getpid(), note),
            # of Numba's kernels, whose results do not depend on it
            env={"NUMBA_NUM_THREADS": str(threads)},
        )
        return _Slot(executor, note)

    def _result(self, slot: _Slot) -> Ending:
        assert slot.future is not None
        try:
            return slot.future.result()
        except BrokenProcessPool:
            return Lost("its process was killed, or crashed")

    def _over_limit(self, slot: _Slot) -> Ending | None:
        pid = _number_in(slot.note)
        if pid is None:
            return None  # its process is not there yet
        now = time.monotonic()
        slot.started = slot.started or now
        seconds = now - slot.started
        if self._time_limit is not None and seconds > self._time_limit:
            return Failed(f"it took longer than its limit of {self._time_limit:g} s", None, seconds)
        memory = _memory_of(pid) if self._memory_limit is not None else 0
        if self._memory_limit is not None and memory > self._memory_limit:
            return Failed(
                f"its process took {memory / 1e9:.2f} GB, more than its limit of "
                f"{self._memory_limit / 1e9:.2f} GB",
                None,
                seconds,
            )
        return None


class Cluster(Executor):
    """The workers of a Dask cluster, one task for each of their threads.

    A worker that dies costs the run that it was computing: Dask gives that to another, and after
    some deaths to none.

    Args:
        client: A connected `distributed.Client`.
        time_limit: Seconds for a task.
    """

    def __init__(self, client: Any, time_limit: float | None = None) -> None:
        self._client, self._time_limit = client, time_limit
        self._tasks: dict[Any, Task] = {}

    @property
    def capacity(self) -> int:
        """Threads of the workers that are there now; at least one, for workers to come."""
        threads: dict[str, int] = self._client.nthreads()
        return max(1, sum(threads.values()))

    def start(self, task: Task) -> None:
        """Sends a task."""
        future = self._client.submit(
            compute_task, task, elsewhere=True, time_limit=self._time_limit, pure=False
        )
        self._tasks[future] = task

    def ended(self, seconds: float) -> list[tuple[Task, Ending]]:
        """What workers have sent back, or what the scheduler says of it."""
        import distributed

        wait: Any = distributed.wait  # it has no types
        try:
            wait(list(self._tasks), seconds, return_when="FIRST_COMPLETED")
        except TimeoutError:
            return []
        done = [future for future in self._tasks if future.status != "pending"]
        return [(self._tasks.pop(future), _ending(future)) for future in done]

    def close(self) -> None:
        """Cancels what has not begun; a worker cannot be stopped in the middle of a run."""
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
    """From an experiment to where its runs are computed, as the options of the command say.

    Args:
        jobs: Processes, or 0 for this one; by default one for each core, on a GPU a single one.
        cluster: The address of a Dask cluster, instead of processes.
        time_limit: For each run, such as "10min".
        memory_limit: For each run, such as "4GB".
        device: Where networks are trained.
    """
    if cluster is not None and jobs is not None:
        raise InvalidInputError(
            "--jobs and --cluster were both given; a cluster has as many workers as it was started "
            "with: leave --jobs out, or use --cluster local:N"
        )
    if jobs == 0 and (time_limit or memory_limit):
        raise InvalidInputError(
            "--jobs 0 computes in this process, which cannot be stopped for a limit; leave out "
            "--time-limit and --memory-limit, or use --jobs 1"
        )
    if memory_limit and cluster and not cluster.startswith("local:"):
        raise InvalidInputError(
            "--memory-limit cannot be set for workers that are running already; give it to them: "
            "dask worker --memory-limit ..."
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
    # a run that takes less time than starting a process is computed here, where it needs no limit
    unlimited = seconds is None and memory is None
    try:
        yield lambda experiment: here if experiment.kind.light and unlimited else processes
    finally:
        processes.close()


def _prepare(parent: int, note: Path) -> None:
    """What a process does first."""
    # Ctrl-C reaches every process of a terminal: the first one decides what is to be done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    silence()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    families()  # imports what computes: that takes seconds, which no run has to answer for
    note.write_text(str(os.getpid()))


def _number_in(note: Path) -> int | None:
    try:
        return int(note.read_text())
    except (OSError, ValueError):
        return None


def _end_with(parent: int) -> None:
    """Ends this process when its parent is gone: nobody waits for its results."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK)
    os._exit(1)


def _memory_of(pid: int) -> int:
    """Bytes of memory that a process takes; 0 if it has just ended."""
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
