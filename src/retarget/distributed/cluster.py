"""Connects to workers: processes on this machine, or a running Dask cluster."""

import asyncio
import logging
import platform
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from typing import Any

import dask.config
from dask.base import compute, get_scheduler, unpack_collections
from distributed import Client, KilledWorker, LocalCluster
from distributed.client import FutureCancelledError
from distributed.comm.core import CommClosedError
from tornado.ioloop import IOLoop

from retarget.errors import ClusterError, InvalidInputError, install_line

LOCAL = re.compile(r"local:([1-9][0-9]*)")
RUNNING = re.compile(r"(tcp|tls)://[^\s/]+:[0-9]+")
TIMEOUT = 20  # seconds to reach a scheduler, and to stop a local cluster
LONGEST_START = 60  # seconds until Dask's event loop runs, which is slow only on a busy machine
LONGEST_WITHOUT_WORKERS = 60  # seconds without any worker until we give up
WATCH_EVERY = 0.5  # seconds
LITTLE_MEMORY = (
    "usually they have too little memory: use smaller tiles (tile_size), fewer threads per worker, "
    "or a larger memory_limit"
)
# Dask checks once, this long after a worker was lost, and never restarts it again if it is not back
# at that moment. Here workers are restarted until the cluster is closed.
NEVER_LOST = {"distributed.deploy.lost-worker-timeout": "365 days"}

# One thread per worker: single-threaded processes do not wait for each other, and results do not
# depend on the number of cores. torch and BLAS read these variables when they are imported.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


@contextmanager
def connect(address: str, *, memory_limit: str | None = None) -> Iterator[Client]:
    """Connects to a Dask cluster; inside the context, Dask computes its arrays there.

    Args:
        address: `"local:N"` starts N single-threaded worker processes, which only this machine can
            reach, and stops them at the end of the context. `"tcp://host:port"` (or
            `"tls://host:port"`) connects to a running scheduler, and leaves it running.
        memory_limit: Memory of each local worker, such as `"1GB"`; the rest is spilled to disk.
            None gives each an equal share of this machine's memory.

    Yields:
        The connected `distributed.Client`.

    Raises:
        InvalidInputError: The address or the limit is invalid.
        ClusterError: The scheduler cannot be reached, has no workers, or its workers have another
            version of Python or retarget; or Dask does not start within a minute.
    """
    local = LOCAL.fullmatch(address)
    if local is None and not RUNNING.fullmatch(address):
        raise InvalidInputError(
            f"the cluster is {address!r}; expected 'local:N' for N processes on this machine, or "
            "the 'tcp://host:port' (or 'tls://host:port') of a running Dask scheduler"
        )
    if local is None and memory_limit is not None:
        raise InvalidInputError(
            f"memory_limit={memory_limit!r} was given with {address}, but it is only for local "
            "workers; set it there with 'dask worker --memory-limit'"
        )
    loop = _event_loop()
    workers = _local_cluster(int(local[1]), memory_limit, loop) if local else nullcontext(address)
    with _quiet_logs(), workers as cluster, _client(cluster, loop) as client:
        if local is None:
            _require_same_versions(client, address)
        yield client


@cache
def _event_loop() -> IOLoop:
    """Runs an event loop in a thread of its own, one for the whole process.

    Dask would start one itself, but gives up after 10 s, which a busy machine may need.
    """
    loops: list[IOLoop] = []
    running = threading.Event()

    async def serve() -> None:
        loops.append(IOLoop.current())
        running.set()
        await asyncio.Event().wait()  # forever

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True, name="Dask").start()
    if not running.wait(LONGEST_START):
        raise ClusterError(
            f"Dask's event loop did not start within {LONGEST_START} s; the machine is too busy: "
            "try again when it has less to do, or with fewer workers"
        )
    return loops[0]


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Turns Dask's errors about lost workers or results into a `ClusterError`."""
    try:
        yield
    except KilledWorker as error:
        raise ClusterError(
            f"workers repeatedly died during the task {error.task!r}, last "
            f"{error.last_worker.address}; {LITTLE_MEMORY}"
        ) from error
    except (FutureCancelledError, CommClosedError) as error:
        reason = str(error).partition("\n")[0]
        raise ClusterError(
            f"results on the cluster were lost ({reason}): its scheduler stopped or was restarted; "
            "check that it is running, and make K again"
        ) from error


def computed(*tasks: Any) -> tuple[Any, ...]:
    """Computes tasks, or lists and dictionaries of them, like `dask.compute`.

    On a cluster the wait is bounded. Dask would wait forever if workers die before or between
    tasks, because then no task fails.
    """
    with cluster_errors():
        client = getattr(get_scheduler(), "__self__", None)
        if not isinstance(client, Client):  # Dask computes it with threads in this process
            return compute(*tasks)
        collections, packed_again = unpack_collections(*tasks)
        futures = client.compute(collections)
        return packed_again(client.sync(_watched, client, futures))


async def _watched(client: Any, futures: list[Any]) -> list[Any]:
    """Waits for the results, as long as there are workers to compute them."""
    gathering = asyncio.ensure_future(client.gather(futures, asynchronous=True))
    watch = _DyingWorkers()
    try:
        while not (await asyncio.wait([gathering], timeout=WATCH_EVERY))[0]:
            with suppress(OSError):  # if the scheduler does not answer, `gathering` raises
                watch.look(set(await client.scheduler.ncores()))
    except ClusterError:
        # It ends when the results are no longer needed; cancelling it would make Dask log errors.
        gathering.add_done_callback(asyncio.Future.exception)
        for future in futures:
            future.release()
        raise
    return await gathering


class _DyingWorkers:
    """Counts lost workers, and the time without any worker."""

    def __init__(self) -> None:
        self._there: set[str] = set()
        self._most = 1
        self._gone = 0
        self._last_there = time.monotonic()

    def look(self, workers: set[str]) -> None:
        """Records the present workers; raises if too many died, or there were none for too long."""
        self._gone += len(self._there - workers)
        self._there = workers
        self._most = max(self._most, len(workers))
        if workers:
            self._last_there = time.monotonic()
        failures = int(dask.config.get("distributed.scheduler.allowed-failures")) + 1
        if self._gone >= failures * self._most:
            raise ClusterError(
                f"workers died {self._gone} times in one step of the computation, with at most "
                f"{self._most} workers at a time; {LITTLE_MEMORY}"
            )
        if time.monotonic() - self._last_there > LONGEST_WITHOUT_WORKERS:
            raise ClusterError(
                f"the cluster has had no worker for {LONGEST_WITHOUT_WORKERS} s; find out why they "
                "stopped, and start workers before you compute again"
            )


@contextmanager
def _local_cluster(workers: int, memory_limit: str | None, loop: IOLoop) -> Iterator[LocalCluster]:
    try:
        cluster = LocalCluster(
            loop=loop,
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",  # None would still serve metrics, at a fixed port
            scheduler_kwargs={"dashboard": False},
            memory_limit="auto" if memory_limit is None else memory_limit,
            silence_logs=logging.CRITICAL,
            env=ONE_THREAD,
            preload=[__name__],
        )
    except ValueError as error:
        raise InvalidInputError(
            f"memory_limit is {memory_limit!r}; expected bytes with a unit, such as '1GB'"
        ) from error
    try:
        with dask.config.set(NEVER_LOST):
            yield cluster
    finally:
        cluster.sync(_end_workers, cluster)
        cluster.close(timeout=TIMEOUT)


async def _end_workers(cluster: LocalCluster) -> None:
    """Stops the worker processes within a second, even during a task."""
    await asyncio.gather(*(nanny.close(timeout=1) for nanny in cluster.workers.values()))


@contextmanager
def _client(cluster: Any, loop: IOLoop) -> Iterator[Client]:
    try:
        # A client that fails to connect would remain Dask's default, so we first try one that is
        # not the default.
        Client(cluster, timeout=TIMEOUT, set_as_default=False, loop=loop).close()
        client = Client(cluster, timeout=TIMEOUT, loop=loop)
    except (OSError, TypeError, RuntimeError, ValueError) as error:  # TypeError: TLS not set up
        raise ClusterError(
            f"no Dask scheduler answers at {cluster} ({error}); check that 'dask scheduler' runs "
            "there, that its port is open from here and, for tls://, Dask's distributed.comm.tls "
            "settings"
        ) from error
    try:
        yield client
    finally:
        client.close(timeout=TIMEOUT)


def _require_same_versions(client: Any, address: str) -> None:
    """Raises if workers have other versions, so that their results could differ."""

    def installed() -> str:  # local, so it is pickled by value and works without retarget there
        try:
            import retarget
        except ImportError:
            return "no retarget"
        return f"retarget {retarget.__version__}"

    workers = client.get_versions()["workers"]
    if not workers:
        raise ClusterError(
            f"the scheduler at {address} has no workers; start some with 'dask worker {address}', "
            "or keep at least one in an adaptive cluster"
        )
    # Python first: pickled code does not work across its versions.
    here = "Python " + ".".join(platform.python_version_tuple()[:2])
    there = {
        worker: "Python " + ".".join(versions["host"]["python"].split(".")[:2])
        for worker, versions in workers.items()
    }
    if set(there.values()) == {here}:
        here = installed()
        there = client.run(installed)
    for worker, version in there.items():
        if version != here:
            raise ClusterError(
                f"the worker {worker} has {version}, but this process has {here}; install the same "
                f"versions there (retarget with the extra: {install_line('dask')})"
            )


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Silences Dask's own logs: whatever goes wrong is raised as an error."""
    # each logger separately, because Dask sets the level of several of them
    names = ["distributed", *logging.root.manager.loggerDict]
    quiet = [name for name in names if name.split(".")[0] in ("distributed", "tornado")]
    before = {name: logging.getLogger(name).level for name in quiet}
    for name in quiet:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def dask_setup(worker: Any) -> None:
    """Ignores Ctrl-C, which the terminal sends to every process; the parent handles it.

    Dask calls this in each local worker when it starts.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
