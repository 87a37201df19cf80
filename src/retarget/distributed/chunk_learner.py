"""An online learner's steps over one chunk of the stream, given what it inherits from the past.

What the past before the chunk adds to the chunk's predictions, its kernel times the weights and the
velocity that were there, is computed tile by tile elsewhere. Here are the chunk's own steps.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import GrowingRows, as_tensor, panels
from retarget.learners import SGD
from retarget.theory.dual import DualLearner, Window, carry_over
from retarget.theory.response import step_response
from retarget.theory.settling import Settling
from retarget.theory.sweep import FirstBlock, Parts, equal_blocks, newest_coefficients, settled

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
    """The steps that settle the learner on the offline predictions, block by block (`sweep`).

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
