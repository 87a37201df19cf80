"""K, column of tiles by column of tiles: the tasks of one column are done before the next begins.

Only tiles on and below the diagonal are computed, each when its column comes, and they are let go
as soon as it is over. So however the scheduler orders the tasks of a column, no more of K than that
column is ever alive.
"""

from typing import Any, Protocol

from dask.base import persist
from dask.delayed import Delayed, delayed

from retarget.distributed.cluster import cluster_errors, computed
from retarget.distributed.problem import TiledProblem
from retarget.distributed.tiles import require_mirrored

Tasks = dict[Any, Any]


class Follower(Protocol):
    """Something that is computed as the columns go by."""

    def tasks(self, j: int, column: dict[int, Delayed]) -> tuple[Tasks, Tasks]:
        """The tasks of a column, given its tiles from the diagonal on, by row.

        Returns:
            Those whose results stay on the workers, and those whose (small) results are wanted.
        """

    def take(self, j: int, kept: Tasks, wanted: Tasks) -> None:
        """Takes what came of the tasks."""


def follow_columns(problem: TiledProblem, *followers: Follower, check: bool = True) -> None:
    """Leads the followers over all columns; `check` where K is seen for the first time."""
    count = len(problem.chunks)
    for j in range(count):
        column = {i: problem.tile(i, j) for i in range(j, count)}
        tasks = [follower.tasks(j, column) for follower in followers]
        checks = _checks(problem, j) if check else []
        with cluster_errors():
            tasks, checks = persist(tasks, checks)
        results = computed([wanted for _, wanted in tasks], checks)[0]
        for follower, (kept, _), wanted in zip(followers, tasks, results, strict=True):
            follower.take(j, kept, wanted)


def _checks(problem: TiledProblem, j: int) -> list[Delayed]:
    """Compares tiles with those across the diagonal: the one on it, and another of the column."""
    rows, places = problem.chunks, [j]
    below = len(rows) - j - 1
    if below:
        places.append(j + 1 + 7919 * j % below)  # here and there
    tile = problem.raw_tile
    return [
        delayed(require_mirrored)(tile(i, j), tile(j, i), tile(j, j), rows[i].start, rows[j].start)
        for i in places
    ]
