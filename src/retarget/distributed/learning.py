"""The online learner, followed over K's columns: each chunk learned, then felt by all after it."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from dask.delayed import Delayed, delayed
from torch import Tensor

from retarget.arrays import as_tensor
from retarget.distributed.chunk_learner import Learned, Start
from retarget.distributed.cluster import computed
from retarget.distributed.columns import Tasks
from retarget.distributed.problem import TiledProblem
from retarget.distributed.tiles import times
from retarget.learners import SGD
from retarget.theory.stability import (
    FAR_BEYOND,
    blown_up,
    require_converging,
    warn_of_divergence,
)

Lesson = Callable[[int, Delayed, Start], Delayed]


class TiledLearning:
    """The state of an online learner after the chunks so far, a follower of K's columns.

    Args:
        problem: K and the targets.
        learner: The online learner.
        lesson: Gives the task (of `chunk_learner`) that takes a chunk's steps.

    Attributes:
        targets: (n, c) the targets that the steps were taken on.
        shares: (parts, n, c) the share of every sample in the weights and, where there is a memory,
            in the velocity.
        condition: A lower bound on the largest condition number that a lesson met.
    """

    def __init__(self, problem: TiledProblem, learner: SGD, lesson: Lesson) -> None:
        n, parts = len(problem.Y), 2 if learner.has_memory else 1
        learner.rates(n)  # a schedule of the wrong length is an error before any work
        self.targets = np.empty_like(problem.Y)
        self.shares = np.zeros((parts, *problem.Y.shape), problem.Y.dtype)
        self.condition = 1.0
        self._largest_error = self._largest_target = 0.0
        self._inherited = np.zeros_like(self.shares)
        self._problem, self._learner, self._lesson = problem, learner, lesson

    @property
    def coefficients(self) -> np.ndarray:
        """(n, c) dual coefficients after the last step."""
        coefficients: np.ndarray = self.shares[0]
        return coefficients

    def tasks(self, j: int, column: dict[int, Delayed]) -> tuple[Tasks, Tasks]:
        """The chunk's own steps, and what they add to the predictions for all later chunks."""
        rows = self._problem.chunks[j]
        start = Start(self._learner, rows.start, self._inherited[:, rows])
        learned = self._lesson(j, column[j], start)
        felt = {i: delayed(times)(column[i], learned.deposits) for i in column if i > j}
        return {}, {"learned": learned, "felt": felt}

    def take(self, j: int, kept: Tasks, wanted: Tasks) -> None:
        """Ages the past by the chunk's steps, and adds what they left."""
        learned: Learned = wanted["learned"]
        rows = self._problem.chunks[j]
        errors = as_tensor("errors", learned.errors)
        require_converging(errors, rows.start, self._learner, self._batch_gram())
        self._largest_error = max(self._largest_error, float(errors.abs().max()))
        self._largest_target = max(self._largest_target, float(np.abs(learned.targets).max()))
        self.targets[rows] = learned.targets
        self.condition = max(self.condition, learned.condition)
        if len(self.shares) == 2:
            past, future = self.shares[:, : rows.start], self._inherited[:, rows.stop :]
            for values in (past, future):
                values[:] = np.tensordot(learned.transfer, values, axes=1)
        self.shares[:, rows] = learned.deposits
        for i, felt in wanted["felt"].items():
            self._inherited[:, self._problem.chunks[i]] += felt

    def warn_if_diverging(self) -> None:
        """Warns where the errors have grown far beyond the targets, after the last chunk."""
        if self._largest_error > FAR_BEYOND * self._largest_target:
            warn_of_divergence(
                blown_up(self._largest_error, self._largest_target),
                self._learner,
                self._batch_gram(),
                len(self.targets),
            )

    def _batch_gram(self) -> Callable[[slice], Tensor]:
        """Gives the kernel of a mini-batch, to explain a divergence."""
        chunks = self._problem.chunks

        @lru_cache(maxsize=1)  # mini-batches are asked for one after the other
        def diagonal_tile(j: int) -> Tensor:
            return as_tensor("K", computed(self._problem.tile(j, j))[0])

        def gram(batch: slice) -> Tensor:
            j = next(j for j, rows in enumerate(chunks) if batch.start < rows.stop)
            own = slice(batch.start - chunks[j].start, batch.stop - chunks[j].start)
            return diagonal_tile(j)[own, own]

        return gram
