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
from retarget.theory.iterative import FirstBlock, Parts, equal_blocks, newest_coefficients, settled
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
    """Where a chunk begins.

    Attributes:
        learner: The online learner.
        row: The chunk's first sample, which is the first of a mini-batch.
        inherited: (parts, m, c) the chunk's kernel against the past times its weights and, for a
            learner with a memory, its velocity.
    """

    learner: SGD
    row: int
    inherited: np.ndarray


class Learned(NamedTuple):
    """What a chunk's steps give.

    Attributes:
        targets: (m, c) the targets that they were taken on.
        errors: (m, c) the errors before each.
        deposits: (parts, m, c) what they leave in the weights and in the velocity.
        transfer: (2, 2) what they leave of the weights and the velocity before them.
        condition: A lower bound on the largest condition number met.
    """

    targets: np.ndarray
    errors: np.ndarray
    deposits: np.ndarray
    transfer: np.ndarray
    condition: float = 1.0


class ChunkLearner(DualLearner):
    """A learner in the middle of the stream that keeps the samples of one chunk only."""

    def __init__(self, start: Start) -> None:
        super().__init__(start.learner)
        self.steps = start.row // start.learner.batch_size
        self.transfer = np.eye(2)
        self._row = start.row
        self._inherited = tuple(GrowingRows() for _ in self.shares)
        for part, values in zip(self._inherited, start.inherited, strict=True):
            part.append(as_tensor("inherited", values))

    def window(self, K_rows: Tensor) -> Window:
        """The next samples of the chunk, by their kernel against the chunk so far."""
        begin, m = len(self), len(K_rows)
        past = tuple(part.rows[begin : begin + m] for part in self._inherited)
        if begin:
            past = tuple(
                values + K_rows[:, :begin] @ share.rows
                for values, share in zip(past, self.shares, strict=True)
            )
        memory = step_response(self.learner, self.steps, m)
        return Window(self._row + begin, K_rows[:, begin:], past, memory)

    def learn(self, window: Window, errors: Tensor) -> None:
        """Takes the steps of the window, on which these errors were made."""
        super().learn(window, errors)
        carry_over(self._inherited, window)
        self.transfer = window.memory.transfer @ self.transfer


def learn_chunk(gram: np.ndarray, start: Start, targets: np.ndarray) -> Learned:
    """The steps on these targets."""
    Y = as_tensor("targets", targets)

    def answer(window: Window, rows: slice, _: int) -> tuple[Tensor, Tensor]:
        return Y[rows], window.errors(Y[rows])

    return _follow(gram, start, _windows(len(targets), start.learner), answer)


def reach_chunk(gram: np.ndarray, start: Start, errors: np.ndarray) -> Learned:
    """The steps that make these errors."""
    E = as_tensor("errors", errors)

    def answer(window: Window, rows: slice, _: int) -> tuple[Tensor, Tensor]:
        return window.targets(E[rows]), E[rows]

    return _follow(gram, start, _windows(len(errors), start.learner), answer)


class SettleOptions(NamedTuple):
    """The options of the iterative correction, as `iterative_targets` has them."""

    gamma: float
    block_size: int
    ridge: float
    parts: Parts
    first_block: FirstBlock


def settle_chunk(
    gram: np.ndarray,
    start: Start,
    targets: np.ndarray,
    options: SettleOptions,
    triangle: np.ndarray | None = None,
    beta: np.ndarray | None = None,
) -> Learned:
    """The steps that settle the learner on the offline predictions, as `Sweep` does in memory.

    Args:
        gram: (m, m) the chunk's kernel.
        start: Where the chunk begins.
        targets: (m, c) true targets.
        options: Those of the correction.
        triangle: L_jj of the chunk; without it (and beta) the aim is the targets.
        beta: Its rows of L^-1 Y.
    """
    Y, settling = as_tensor("targets", targets), Settling(options.ridge)

    def answer(window: Window, rows: slice, size: int) -> tuple[Tensor, Tensor]:
        if window.start == 0 and options.first_block == "plain":
            return Y[rows], window.errors(Y[rows])
        aim = Y[rows]
        if triangle is not None and beta is not None:
            corner, newest = as_tensor("L", triangle)[rows, rows], as_tensor("beta", beta)[rows]
            aim = aim - options.gamma * newest_coefficients(corner, newest, size)
        return settled(settling, window, Y[rows], aim, size, options.parts)

    portions = equal_blocks(0, len(Y), options.block_size, options.first_block, CPU)
    return _follow(gram, start, portions, answer)._replace(condition=settling.condition)


def _windows(m: int, learner: SGD) -> Iterator[tuple[slice, int]]:
    return ((rows, learner.batch_size) for rows in panels(m, learner.batch_size, CPU))


def _follow(
    gram: np.ndarray, start: Start, portions: Iterator[tuple[slice, int]], answer: Answer
) -> Learned:
    K, pupil = as_tensor("K", gram), ChunkLearner(start)
    targets, errors = [], []
    for rows, size in portions:
        window = pupil.window(K[rows, : rows.stop])
        wanted, made = answer(window, rows, size)
        pupil.learn(window, made)
        targets.append(wanted)
        errors.append(made)
    deposits = torch.stack([share.rows for share in pupil.shares])
    return Learned(
        torch.cat(targets).numpy(), torch.cat(errors).numpy(), deposits.numpy(), pupil.transfer
    )


Lesson = Callable[[int, Delayed, Start], Delayed]


class TiledLearning:
    """The state of an online learner after the chunks so far, a follower of K's columns.

    Args:
        problem: K and the targets.
        learner: The online learner.
        lesson: Gives the task that takes a chunk's steps.

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

    def collect(self, j: int, kept: Tasks, wanted: Tasks) -> None:
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
