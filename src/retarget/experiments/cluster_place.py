"""Runs on a Dask cluster."""

from typing import Any

from retarget.experiments.computing import Ending, Failed, Lost, Task, compute
from retarget.experiments.places import Place


class Cluster(Place):
    """The workers of a Dask cluster, one task for each of their threads.

    A worker that dies costs the run that it was computing: Dask gives that to another, and after
    some deaths to none.

    Args:
        client: Of `distributed`, connected.
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
            compute, task, elsewhere=True, time_limit=self._time_limit, pure=False
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
        """Takes back what has not been begun; a worker cannot be stopped in the midst of a run."""
        self._client.cancel(list(self._tasks), force=True)
        self._tasks.clear()


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
