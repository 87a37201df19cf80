"""The iterative correction of a stream, and the offline learner on the way (Proposition 4.2).

As `retarget.iterative_targets`, in three steps that share the costly one: the offline predictions
to aim at, which the stabiliser has no part in; a try of several stabilisers; the targets.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from retarget.diagnosis.kernels.base import LearnerState, StreamKernel
from retarget.diagnosis.measure.passes import OVERFLOW, Checker, Pass
from retarget.errors import NotPositiveDefiniteError
from retarget.learners import SGD
from retarget.theory.dual import diagonal_blocks
from retarget.theory.precision import warn_if_meaningless
from retarget.theory.settling import Settling, in_blocks
from retarget.theory.sweep import newest_coefficients


def offline_aims(kernel: StreamKernel, gamma: float, block_size: int) -> Tensor:
    """(n, c) the offline prediction for each block by the learner that has just seen it."""
    take, aims = kernel.follow_offline(gamma), torch.empty_like(kernel.Y)
    for rows, size in kernel.portions(block_size):
        new = take(rows)
        # F_n = Y_n - gamma L_nn^-T beta_n
        aims[rows] = kernel.Y[rows] - gamma * newest_coefficients(new.corner, new.beta, size)
    return aims


def offline_errors(kernel: StreamKernel, gamma: float, batch_size: int) -> Tensor:
    """(n, c) the error on each mini-batch of the offline learner on all rows before it."""
    take, errors = kernel.follow_offline(gamma), torch.empty_like(kernel.Y)
    for rows, size in kernel.portions(batch_size):
        new = take(rows)
        triangles = diagonal_blocks(new.corner, size).tril()  # L_BB beta_B = y_B - f_off(X_B)
        errors[rows] = (triangles @ in_blocks(new.beta, size)).flatten(0, 1)
    return errors


class _Settler:
    """One learner on its way along the aims."""

    def __init__(self, kernel: StreamKernel, learner: SGD, ridge: float) -> None:
        self.state: LearnerState = kernel.learner(learner)
        self._settling = Settling(ridge)
        self.failure: str | None = None

    @property
    def condition(self) -> float:
        """A lower bound on the largest condition number of the blocks so far."""
        return self._settling.condition

    def learn(self, seen: object, aim: Tensor, block_size: int) -> Tensor | None:
        """The targets of the next blocks; None where there are none."""
        window = self.state.window(seen)
        try:
            errors = self._settling.errors(window, aim, block_size)
        except NotPositiveDefiniteError as error:
            self.failure = str(error)
            return None
        targets = window.targets(errors)
        if not bool((targets.abs() < OVERFLOW).all()):
            self.failure = "its targets grow beyond numbers; a larger ridge would keep them down"
            return None
        self.state.learn(window, errors)
        return targets


def settle(
    kernel: StreamKernel, learner: SGD, aims: Tensor, block_size: int, ridges: Sequence[float]
) -> list[Tensor | None]:
    """For each ridge, what a query's row is multiplied with once the learner followed the aims."""
    settlers = [_Settler(kernel, learner, ridge) for ridge in ridges]
    for rows, size in kernel.portions(block_size):
        seen = kernel.rows(rows)
        for settler in settlers:
            if settler.failure is None:
                settler.learn(seen, aims[rows], size)
    return [None if one.failure else one.state.coefficients for one in settlers]


class Settled(NamedTuple):
    """What came of following the aims.

    Attributes:
        targets: (n, c) the targets that make the learner follow them; NaN if there are none.
        run: The learner's pass over the targets; None if there are none.
        failure: Why there are none.
    """

    targets: Tensor
    run: Pass | None
    failure: str | None


def settling_targets(
    kernel: StreamKernel, learner: SGD, aims: Tensor, block_size: int, ridge: float
) -> Settled:
    """The targets that make the learner follow the aims, and its pass over them."""
    settler, targets = _Settler(kernel, learner, ridge), torch.empty_like(aims)
    checker = Checker(kernel, learner)
    for rows, size in kernel.portions(block_size):
        seen = kernel.rows(rows)
        made = settler.learn(seen, aims[rows], size)
        if made is None:
            return Settled(torch.full_like(aims, math.nan), None, settler.failure)
        targets[rows] = made
        checker.learn(seen, rows, made)
    warn_if_meaningless("the kernel of a block", settler.condition, aims.dtype)
    return Settled(targets, checker.result(), None)
