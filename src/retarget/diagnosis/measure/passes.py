"""Online learners run over a stream, several at once where they can share the work."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from retarget.diagnosis.kernels.base import LearnerState, StreamKernel
from retarget.learners import SGD

# An error above this has no meaning, and its square no number.
OVERFLOW = 1e150


@dataclass(frozen=True)
class Pass:
    """What one online learner made of the stream.

    Attributes:
        errors: (n, c) the error on each row before it was learned, in the order of learning; None
            where they were not kept.
        squared_error: (c,) their mean squares.
        coefficients: What a query's row is multiplied with to predict it; None if it diverged.
        diverged_at: The row from which on there are no numbers, if so.
    """

    errors: Tensor | None
    squared_error: Tensor
    coefficients: Tensor | None
    diverged_at: int | None


class _Runner:
    """One learner on its way."""

    def __init__(self, kernel: StreamKernel, learner: SGD, targets: Tensor, keep: bool) -> None:
        self.state: LearnerState = kernel.learner(learner)
        self.targets = targets
        self.errors = torch.full_like(targets, math.nan) if keep else None
        self.squares = targets.new_zeros(targets.shape[1])
        self.diverged_at: int | None = None

    def learn(self, seen: object, rows: slice, targets: Tensor) -> None:
        window = self.state.window(seen)
        errors = window.errors(targets)
        bad = ~(errors.abs() < OVERFLOW).all(1)
        if bad.any():
            self.diverged_at = rows.start + int(bad.nonzero()[0, 0])
            return
        if self.errors is not None:
            self.errors[rows] = errors
        self.squares += errors.square().sum(0)
        self.state.learn(window, errors)


def learn_online(
    kernel: StreamKernel,
    jobs: Sequence[tuple[SGD, Tensor]],
    *,
    keep_errors: bool = True,
    order: Tensor | None = None,
) -> list[Pass]:
    """Runs learners over the stream, each on its own targets.

    Args:
        kernel: The stream's kernel.
        jobs: Learners and their (n, c) targets, in stream order.
        keep_errors: Whether all errors are kept, and not their mean squares alone.
        order: (n,) another order in which to learn the rows.
    """
    runners = [_Runner(kernel, learner, targets, keep_errors) for learner, targets in jobs]
    # windows that end with a mini-batch of every learner: one set of kernel rows serves all
    multiple = math.lcm(*(learner.batch_size for learner, _ in jobs))
    for rows in kernel.windows(multiple):
        seen = kernel.rows(rows, order)
        for runner in runners:
            if runner.diverged_at is None:
                part = runner.targets[rows if order is None else order[rows]]
                runner.learn(seen, rows, part)
    return [_result(kernel, runner, order) for runner in runners]


def _result(kernel: StreamKernel, runner: _Runner, order: Tensor | None) -> Pass:
    if runner.diverged_at is not None:
        lost = torch.full_like(runner.squares, math.nan)
        return Pass(runner.errors, lost, None, runner.diverged_at)
    coefficients = runner.state.coefficients
    if order is not None:
        coefficients = kernel.in_stream_order(coefficients, order)
    return Pass(runner.errors, runner.squares / len(kernel), coefficients, None)


class Checker:
    """Trains the learner on targets while they are made: rounding is part of what comes of them."""

    def __init__(self, kernel: StreamKernel, learner: SGD) -> None:
        self._kernel = kernel
        self._runner = _Runner(kernel, learner, kernel.Y, keep=False)

    def learn(self, seen: object, rows: slice, targets: Tensor) -> None:
        """Lets the learner learn the next rows on these targets."""
        if self._runner.diverged_at is None:
            self._runner.learn(seen, rows, targets)

    def result(self) -> Pass:
        """What the learner made of the targets."""
        return _result(self._kernel, self._runner, None)


def targets_with_errors(kernel: StreamKernel, learner: SGD, errors: Tensor) -> tuple[Tensor, Pass]:
    """(n, c) the targets on which the learner makes these errors, and its pass over them."""
    state, targets = kernel.learner(learner), torch.empty_like(errors)
    checker = Checker(kernel, learner)
    for rows in kernel.windows(learner.batch_size):
        seen = kernel.rows(rows)
        window = state.window(seen)
        targets[rows] = window.targets(errors[rows])
        state.learn(window, errors[rows])
        checker.learn(seen, rows, targets[rows])
    return targets, checker.result()


def errors_before_blocks(
    kernel: StreamKernel, learner: SGD, targets: Tensor, block_size: int
) -> Tensor:
    """(n, c) errors, against Y, of what a learner on these targets predicts before each block.

    The targets of a block may depend on all of the block's true targets, so the learner's
    predictions count only as they were before any of them was learned.
    """
    state, errors = kernel.learner(learner), torch.full_like(targets, math.nan)
    for start in range(0, len(kernel), block_size):
        rows = slice(start, min(start + block_size, len(kernel)))
        window = state.window(kernel.rows(rows))
        carry = window.memory.carry[np.zeros(rows.stop - rows.start, dtype=int)]
        errors[rows] = kernel.Y[rows] - window.inherited(carry)
        made = window.errors(targets[rows])
        if not bool((made.abs() < OVERFLOW).all()):
            break
        state.learn(window, made)
    return errors
