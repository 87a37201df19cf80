"""What runs may use: processes or a cluster, time and memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from retarget.errors import InvalidInputError
from retarget.experiments.experiment import Experiment
from retarget.experiments.places import Place, Processes, ThisProcess
from retarget.text import amount_of_memory, amount_of_time


@dataclass(frozen=True)
class Resources:
    """What runs may use.

    Attributes:
        jobs: Processes; 0 for this one.
        cluster: The address of a cluster, instead of processes.
        time_limit: Seconds for a run.
        memory_limit: Bytes for a run.
    """

    jobs: int
    cluster: str | None
    time_limit: float | None
    memory_limit: int | None

    @classmethod
    def of(
        cls,
        jobs: int | None,
        cluster: str | None,
        time_limit: str | None,
        memory_limit: str | None,
        device: str | None,
    ) -> "Resources":
        """From what the user gave."""
        if cluster is not None and jobs is not None:
            raise InvalidInputError(
                "--jobs and --cluster were both given; a cluster's workers are as many as it has: "
                "leave --jobs out, or use --cluster local:N"
            )
        if jobs == 0 and (time_limit or memory_limit):
            raise InvalidInputError(
                "--jobs 0 computes in this process, which cannot be stopped for a limit; leave "
                "out --time-limit and --memory-limit, or use --jobs 1"
            )
        if memory_limit and cluster and not cluster.startswith("local:"):
            raise InvalidInputError(
                "--memory-limit cannot be set for workers that are running already; give it to "
                "them: dask worker --memory-limit ..."
            )
        if jobs is None:
            jobs = (os.cpu_count() or 1) if device in (None, "cpu") else 1
        return cls(
            jobs,
            cluster,
            None if time_limit is None else amount_of_time("--time-limit", time_limit),
            None if memory_limit is None else amount_of_memory("--memory-limit", memory_limit),
        )

    @contextmanager
    def place(self) -> Iterator[Callable[[Experiment], Place]]:
        """Where to compute an experiment."""
        if self.cluster is not None:
            from retarget.distributed.cluster import connect
            from retarget.experiments.cluster_place import Cluster

            limit = None if self.memory_limit is None else str(self.memory_limit)
            with connect(self.cluster, memory_limit=limit) as client:
                workers = Cluster(client, self.time_limit)
                yield lambda experiment: workers
            return
        if self.jobs == 0:
            yield lambda experiment: ThisProcess()
            return
        processes = Processes(self.jobs, self.time_limit, self.memory_limit)
        # what is over in less time than a process needs to begin is done here
        limited = self.time_limit is not None or self.memory_limit is not None
        try:
            yield (
                lambda experiment: (
                    ThisProcess() if experiment.kind.light and not limited else processes
                )
            )
        finally:
            processes.close()
