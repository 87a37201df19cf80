"""The online learner, followed over K's columns: each chunk learned, then felt by all after it.

What the past before a chunk adds to the chunk's predictions, its kernel times the weights and the
velocity that were there, is computed tile by tile. The chunk's own steps are taken by one worker.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from dask.delayed import Delayed, delayed
from torch import Tensor

from retarget.arrays import GrowingRows, as_tensor, panels
from retarget.distributed.cluster import computed
from retarget.distributed.tiles import Tasks, TiledProblem, times
from retarget.learners import SGD
from retarget.theory.dual import DualLearner, Window, carry_over
from retarget.theory.iterative import FirstBlock, Parts, equal_blocks, settled
from retarget.theory.offline.aims import newest_coefficients
from retarget.theory.response import step_response
from retarget.theory.settling import Settling
from retarget.theory.stability import (
    FAR_BEYOND,
    blown_up,
    require_converging,
    warn_of_divergence,
)

Answer = Callable[[Window, slice, int], tuple[Tensor, Tensor]]
CPU = torch.device("cpu")


class Start(NamedTuple):
    """Where a chunk begins."""

    learner: SGD
    row: int  # the chunk's first sample, which is the first of a mini-batch
    inherited: np.ndarray  # (parts, m, c) what the past's weights, and velocity, give at the chunk


class Learned(NamedTuple):
    """What a chunk's steps give."""

    targets: np.ndarray  # (m, c) that they were taken on
    errors: np.ndarray  # (m, c) before each
    deposits: np.ndarray  # (parts, m, c) what they leave in the weights and in the velocity
    transfer: np.ndarray  # (2, 2) what they leave of the weights and the velocity before them
    condition: float = 1.0  # a lower bound on the largest condition number met


def learn_chunk(gram: np.ndarray, start: Start, targets: np.ndarray) -> Learned:
    """The steps on these targets."""
    Y = as_tensor("targets", targets)
    return _take_steps(
        gram, start, _windows(Y, start), lambda window, rows, _: (Y[rows], window.errors(Y[rows]))
    )


def reach_chunk(gram: np.ndarray, start: Start, errors: np.ndarray) -> Learned:
    """The steps that make these errors."""
    E = as_tensor("errors", errors)
    return _take_steps(
        gram, start, _windows(E, start), lambda window, rows, _: (window.targets(E[rows]), E[rows])
    )


def settle_chunk(
    gram: np.ndarray,
    start: Start,
    targets: np.ndarray,
    gamma: float,
    block_size: int,
    ridge: float,
    parts: Parts,
    first_block: FirstBlock,
    factor: tuple[np.ndarray, np.ndarray] | None,
) -> Learned:
    """The steps that settle the learner on the offline predictions, as `Sweep` does in memory.

    The options are those of `iterative_targets`, the factor is L_jj of the chunk and its rows of
    L^-1 Y; without it, the aim is the targets.
    """
    Y, settling = as_tensor("targets", targets), Settling(ridge)

    def answer(window: Window, rows: slice, size: int) -> tuple[Tensor, Tensor]:
        if window.start == 0 and first_block == "plain":
            return Y[rows], window.errors(Y[rows])
        aim = Y[rows]
        if factor is not None:
            triangle, beta = (as_tensor("L", part) for part in factor)
            aim = aim - gamma * newest_coefficients(triangle[rows, rows], beta[rows], size)
        return settled(settling, window, Y[rows], aim, size, parts)

    portions = equal_blocks(0, len(Y), block_size, first_block, CPU)
    return _take_steps(gram, start, portions, answer)._replace(condition=settling.condition)


def _windows(values: Tensor, start: Start) -> Iterator[tuple[slice, int]]:
    size = start.learner.batch_size
    return ((rows, size) for rows in panels(len(values), size, CPU))


def _take_steps(
    gram: np.ndarray, start: Start, portions: Iterator[tuple[slice, int]], answer: Answer
) -> Learned:
    K, learner, transfer = as_tensor("K", gram), DualLearner(start.learner), np.eye(2)
    learner.steps = start.row // start.learner.batch_size
    inherited = tuple(GrowingRows() for _ in learner.shares)
    for part, values in zip(inherited, start.inherited, strict=True):
        part.append(as_tensor("inherited", values))
    targets, errors = [], []
    for rows, size in portions:
        K_rows = K[rows, : rows.stop]
        past = tuple(part.rows[rows] for part in inherited)
        if rows.start:  # and what the chunk itself has learned so far
            past = tuple(a + b for a, b in zip(past, learner.past(K_rows), strict=True))
        memory = step_response(start.learner, learner.steps, len(K_rows))
        window = Window(start.row + rows.start, K_rows[:, rows.start :], past, memory)
        wanted, made = answer(window, rows, size)
        learner.learn(window, made)
        carry_over(inherited, window)
        transfer = memory.transfer @ transfer
        targets.append(wanted)
        errors.append(made)
    return Learned(
        torch.cat(targets).numpy(),
        torch.cat(errors).numpy(),
        torch.stack([share.rows for share in learner.shares]).numpy(),
        transfer,
    )


Lesson = Callable[[int, Delayed, Start], Delayed]


class TiledLearning:
    """The state of an online learner after the chunks so far, a follower of K's columns.

    The lesson gives the task that takes a chunk's steps.

    Attributes:
        targets: (n, c) the targets that the steps were taken on.
        shares: (parts, n, c) the share of every sample in the weights and, where there is a memory,
            in the velocity.
        condition: A lower bound on the largest condition number that a lesson met.
    """

    def __init__(self, problem: TiledProblem, learner: SGD, lesson: Lesson) -> None:
        n, parts = len(problem.Y), 2 if learner.has_memory else 1
        learner.rates(n)  # a schedule of the wrong length is an error before any work
        self.targets, self._errors = np.empty_like(problem.Y), np.empty_like(problem.Y)
        self.shares = np.zeros((parts, *problem.Y.shape), problem.Y.dtype)
        self.condition = 1.0
        self._inherited = np.zeros_like(self.shares)
        self._problem, self._learner, self._lesson = problem, learner, lesson

    def tasks(self, j: int, column: dict[int, Delayed]) -> tuple[Tasks, Tasks]:
        """The chunk's own steps, and what they add to the predictions for all later chunks."""
        rows = self._problem.chunks[j]
        start = Start(self._learner, rows.start, self._inherited[:, rows])
        learned = self._lesson(j, column[j], start)
        felt = {i: delayed(times)(column[i], learned.deposits) for i in column if i > j}
        return {}, {"learned": learned, "felt": felt}

    def collect(self, j: int, kept: Tasks, wanted: Tasks) -> None:
        """Ages the past by the chunk's steps, and adds what they left."""
        learned: Learned = wanted["learned"]
        rows = self._problem.chunks[j]
        errors = as_tensor("errors", learned.errors)
        require_converging(errors, rows.start, self._learner, self._batch_gram())
        self.targets[rows], self._errors[rows] = learned.targets, learned.errors
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
        error, target = (float(np.abs(values).max()) for values in (self._errors, self.targets))
        if error > FAR_BEYOND * target:
            what = blown_up(error, target)
            warn_of_divergence(what, self._learner, self._batch_gram(), len(self.targets))

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
