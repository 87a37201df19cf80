"""The workers: processes on this machine, or a Dask cluster that is running already."""

import asyncio
import logging
import platform
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dask.config
from dask.base import compute, get_scheduler, unpack_collections
from distributed import Client, KilledWorker, LocalCluster
from distributed.client import FutureCancelledError
from distributed.comm.core import CommClosedError

from retarget.errors import ClusterError, InvalidInputError

LOCAL = re.compile(r"local:([1-9][0-9]*)")
RUNNING = re.compile(r"(tcp|tls)://[^\s/]+:[0-9]+")
TIMEOUT = 20  # seconds to reach a scheduler, and to close what was started
LONGEST_WITHOUT_WORKERS = 60  # seconds until work that nobody does is given up
WATCH_EVERY = 0.5  # seconds
LITTLE_MEMORY = (
    "most often they have too little memory: use smaller tiles (tile_size), fewer threads, "
    "or a larger memory_limit"
)
# Dask looks once, this long after a worker was lost, and stops restarting it for good if it is not
# there at that moment. Here workers are restarted for as long as the cluster lasts.
NEVER_LOST = {"distributed.deploy.lost-worker-timeout": "365 days"}

# One thread a worker: many single-threaded processes lose no time waiting for each other, and the
# results do not depend on the number of cores. torch and BLAS read these as they are imported.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


@contextmanager
def connect(address: str, *, memory_limit: str | None = None) -> Iterator[Client]:
    """The client of a Dask cluster, for as long as the context lasts.

    Inside, it is also the scheduler that Dask arrays are computed by.

    Args:
        address: `"local:N"` starts N worker processes of one thread each on this machine, reachable
            from this machine only, and ends them with the context. `"tcp://host:port"` (or
            `"tls://host:port"`) joins a scheduler that is running; it goes on running.
        memory_limit: Memory of each local worker, such as `"1GB"`; what does not fit is kept on
            disk. An equal share of this machine's memory without it.

    Yields:
        The connected `distributed.Client`.

    Raises:
        InvalidInputError: The address is something else, or the limit has no meaning.
        ClusterError: The scheduler cannot be reached, has no workers, or its workers run another
            version of Python or retarget.
    """
    local = LOCAL.fullmatch(address)
    if local is None and not RUNNING.fullmatch(address):
        raise InvalidInputError(
            f"the cluster is {address!r}; expected 'local:N' for N processes on this machine, or "
            "the 'tcp://host:port' (or 'tls://host:port') of a Dask scheduler"
        )
    if local is None and memory_limit is not None:
        raise InvalidInputError(
            f"memory_limit={memory_limit!r} was given with {address}; give it to "
            "'dask worker --memory-limit' there"
        )
    with _quiet_logs():
        if local is not None:
            with _local_cluster(int(local[1]), memory_limit) as cluster, _client(cluster) as client:
                yield client
        else:
            with _client(address) as client:
                _require_same_versions(client, address)
                yield client


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Says in plain words that the workers, and not the numbers, are at fault."""
    try:
        yield
    except KilledWorker as error:
        raise ClusterError(
            f"workers died again and again in the middle of the task {error.task!r}, last "
            f"{error.last_worker.address}; {LITTLE_MEMORY}"
        ) from error
    except (FutureCancelledError, CommClosedError) as error:
        reason = str(error).partition("\n")[0]
        raise ClusterError(
            f"results on the cluster were lost ({reason}): its scheduler stopped or was restarted; "
            "see that it is running, and make K again"
        ) from error


def computed(*tasks: Any) -> tuple[Any, ...]:
    """The results of tasks, or of lists and dictionaries of them, as from `dask.compute`.

    On a cluster the wait is bounded: Dask by itself waits for as long as no task fails, and none
    does while workers die before, or between, the tasks.
    """
    with cluster_errors():
        client = getattr(get_scheduler(), "__self__", None)
        if not isinstance(client, Client):  # Dask's threads compute it here
            return compute(*tasks)
        collections, packed_again = unpack_collections(*tasks)
        futures = client.compute(collections)
        return packed_again(client.sync(_watched, client, futures))


async def _watched(client: Any, futures: list[Any]) -> list[Any]:
    """The results, as long as there are workers to compute them."""
    gathering = asyncio.ensure_future(client.gather(futures, asynchronous=True))
    watch = _DyingWorkers()
    try:
        while not (await asyncio.wait([gathering], timeout=WATCH_EVERY))[0]:
            with suppress(OSError):  # a scheduler that does not answer: `gathering` will say so
                watch.look(set(await client.scheduler.ncores()))
    except ClusterError:
        # It ends when nobody wants the results any more; to cancel it would make Dask complain.
        gathering.add_done_callback(asyncio.Future.exception)
        for future in futures:
            future.release()
        raise
    return await gathering


class _DyingWorkers:
    """Counts workers that go away, and the time without any."""

    def __init__(self) -> None:
        self._there: set[str] = set()
        self._most, self._gone, self._last_there = 1, 0, time.monotonic()

    def look(self, workers: set[str]) -> None:
        """Takes note of the workers that are there now."""
        self._gone += len(self._there - workers)
        self._there, self._most = workers, max(self._most, len(workers))
        if workers:
            self._last_there = time.monotonic()
        failures = int(dask.config.get("distributed.scheduler.allowed-failures")) + 1
        if self._gone >= failures * self._most:
            raise ClusterError(
                f"workers died {self._gone} times in one step of the computation, with at most "
                f"{self._most} of them at a time; {LITTLE_MEMORY}"
            )
        if time.monotonic() - self._last_there > LONGEST_WITHOUT_WORKERS:
            raise ClusterError(
                f"the cluster has had no worker for {LONGEST_WITHOUT_WORKERS} s; start some"
            )


@contextmanager
def _local_cluster(workers: int, memory_limit: str | None) -> Iterator[LocalCluster]:
    try:
        cluster = LocalCluster(
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
    """Ends the worker processes, also those in the middle of a task, within a second."""
    await asyncio.gather(*(nanny.close(timeout=1) for nanny in cluster.workers.values()))


@contextmanager
def _client(cluster: Any) -> Iterator[Client]:
    try:
        # A client that is not answered would stay behind as Dask's default: one that is not to be
        # the default tries first.
        Client(cluster, timeout=TIMEOUT, set_as_default=False).close()
        client = Client(cluster, timeout=TIMEOUT)
    except (OSError, TypeError, RuntimeError, ValueError) as error:  # TypeError: no TLS set up
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
    """Refuses workers whose results could differ from those of this process."""

    def installed() -> str:  # not importable: it travels whole, to workers without retarget too
        try:
            import retarget
        except ImportError:
            return "no retarget"
        return f"retarget {retarget.__version__}"

    workers = client.get_versions()["workers"]
    if not workers:
        raise ClusterError(
            f"the scheduler at {address} has no workers; start some with 'dask worker {address}', "
            "or keep at least one in a cluster that adapts its size"
        )
    # First Python: code does not travel between its versions.
    here = "Python " + ".".join(platform.python_version_tuple()[:2])
    there = {
        worker: "Python " + ".".join(found["host"]["python"].split(".")[:2])
        for worker, found in workers.items()
    }
    if set(there.values()) == {here}:
        here, there = installed(), client.run(installed)
    for worker, found in there.items():
        if found != here:
            raise ClusterError(
                f"the worker {worker} has {found}, but this process has {here}; install the same "
                'versions there (retarget with the extra: pip install "retarget[dask]")'
            )


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Keeps Dask's own reports off the terminal: what went wrong is raised as an error."""
    # each by itself: Dask gives several of them a level of their own
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
    """Leaves Ctrl-C, which the terminal sends to every process, to the parent process.

    Dask calls it in each local worker as that starts.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
