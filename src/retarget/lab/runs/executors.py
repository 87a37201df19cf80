"""Executors, which compute runs in this process, in others on this machine, or on a cluster.

An executor takes groups one after the other, as soon as it can begin them, and yields each one with
its ending, in the order in which they end. If it is closed early, it stops what it is computing.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from typing import Any

from joblib import Parallel, delayed

from retarget.errors import InvalidInputError
from retarget.lab.experiment import Experiment
from retarget.lab.runs.compute import Ending, Failed, RunGroup, compute_group
from retarget.progress import silence

ATTEMPTS_ALONE = 2  # for a run whose process may have crashed because of it
ORPHAN_CHECK = 0.5  # seconds
LOOK_EVERY = 0.1  # seconds between two looks at a cluster

Endings = Generator[tuple[RunGroup, Ending]]
Executor = Callable[[Iterator[RunGroup]], Endings]


def compute_here(groups: Iterator[RunGroup]) -> Endings:
    """Computes one group after the other in this process."""
    for group in groups:
        yield group, compute_group(group)


def compute_in_processes(groups: Iterator[RunGroup], jobs: int) -> Endings:
    """Computes in `jobs` processes on this machine, two at least.

    If one of them is killed or crashes, joblib ends them all. What they were given is then
    computed again, alone, so that a run can only fail through a fault of its own.
    """
    begun: dict[str, RunGroup] = {}  # by the key of the first run

    def calls() -> Iterator[Any]:
        for group in groups:
            begun[group.identities[0].key] = group
            yield _call(group)

    while True:
        try:
            with _processes(jobs, calls()) as endings:
                for key, ending in endings:
                    yield begun.pop(key), ending
            return
        except BrokenProcessPool:
            suspects = list(begun.values())
            begun.clear()
        for group in suspects:
            yield group, _compute_alone(group)


def compute_on_cluster(groups: Iterator[RunGroup], client: Any) -> Endings:
    """Computes on the workers of a Dask cluster, one group for each of their threads.

    If a worker dies, Dask gives its run to another worker, and gives up after a few deaths.
    """
    sent: dict[Any, RunGroup] = {}

    def send() -> None:
        threads = max(1, sum(client.nthreads().values()))
        for group in islice(groups, max(0, threads - len(sent))):
            sent[client.submit(compute_group, group, elsewhere=True, pure=False)] = group

    try:
        send()
        while sent:
            for future in [future for future in sent if future.done()]:
                if future.status == "finished":
                    ending = future.result()
                else:  # its workers have died, or it was cancelled, which has no exception
                    reason = future.exception() if future.status == "error" else future.status
                    ending = Failed(f"the cluster gave no result: {reason}")
                yield sent.pop(future), ending
            time.sleep(LOOK_EVERY)
            send()  # also to workers that have joined
    finally:  # a worker cannot be stopped within a run
        client.cancel(list(sent), force=True)


@contextmanager
def open_executors(
    jobs: int | None = None, cluster: str | None = None, device: str | None = None
) -> Iterator[Callable[[Experiment], Executor]]:
    """Chooses where an experiment's runs are computed, by the options of the command.

    By default there is one process for each core; on a GPU, runs are computed in this process.
    """
    if cluster is not None:
        if jobs is not None:
            raise InvalidInputError(
                "--jobs and --cluster were both given; a cluster sets its own number of workers: "
                "leave --jobs out, or use --cluster local:N"
            )
        from retarget.distributed.cluster import connect

        with connect(cluster) as client:
            yield lambda experiment: partial(compute_on_cluster, client=client)
        return
    if jobs is None:
        jobs = (os.cpu_count() or 1) if device in (None, "cpu") else 1
    many = compute_here if jobs < 2 else partial(compute_in_processes, jobs=jobs)
    # light runs take less time than starting a process
    yield lambda experiment: compute_here if experiment.kind.light else many


@contextmanager
def _processes(jobs: int, calls: Iterator[Any]) -> Iterator[Iterator[tuple[str, Ending]]]:
    """Gives what the calls return; ends the processes at once if not all of it is taken."""
    parallel = Parallel(jobs, batch_size=1, pre_dispatch=jobs, return_as="generator_unordered")
    endings = parallel(calls)
    try:
        yield endings
    finally:
        with warnings.catch_warnings():  # joblib warns about results that are not taken
            warnings.simplefilter("ignore", UserWarning)
            endings.close()


def _compute_alone(group: RunGroup) -> Ending:
    for _ in range(ATTEMPTS_ALONE):
        try:  # of the two processes, one stays idle: a single one would be this process
            with _processes(2, iter([_call(group)])) as endings:
                ((_, ending),) = endings
            return ending
        except BrokenProcessPool:
            continue
    return Failed(f"its process was killed, or crashed, {ATTEMPTS_ALONE} times when it ran alone")


def _call(group: RunGroup) -> Any:
    return delayed(_compute_in_worker)(group, os.getpid())


def _compute_in_worker(group: RunGroup, parent: int) -> tuple[str, Ending]:
    _prepare(parent)
    return group.identities[0].key, compute_group(group)


@cache  # once in a process
def _prepare(parent: int) -> None:
    # Ctrl-C reaches every process of a terminal, but only the parent reacts to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    silence()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """Ends this process when its parent is gone, since nobody waits for its results."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK)
    os._exit(1)
