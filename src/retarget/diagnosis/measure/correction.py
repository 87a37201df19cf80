"""The iterative correction of a stream, and the offline learner on the way (Proposition 4.2).

As `retarget.iterative_targets`, in three steps that share the costly one: the offline predictions
to aim at, which the stabiliser has no part in; a try of several stabilisers; the targets. Which
offline learner it follows, and how it is steadied, is chosen here too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import polars as pl
import torch
from torch import Tensor

from retarget.diagnosis.kernels.base import LearnerState, Offline, StreamKernel
from retarget.diagnosis.measure.passes import OVERFLOW, Checker, Pass
from retarget.diagnosis.result import Choice
from retarget.errors import NotPositiveDefiniteError
from retarget.learners import SGD
from retarget.theory.dual import diagonal_blocks
from retarget.theory.precision import warn_if_meaningless
from retarget.theory.settling import Settling, in_blocks
from retarget.theory.sweep import newest_coefficients

RIDGES = (0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # times the mean of k(x, x)
AIMS = (1.0, 10.0, 100.0, 1000.0)  # times the offline learner's ridge
AS_NEAR = 0.05  # farther by so little is as near: the least change is taken
CHECKED_ROWS = 20_000
NEAREST = "ends nearest to the offline learner on the stream's rows"


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


@dataclass(frozen=True)
class CorrectionChoice:
    """How the iterative correction goes.

    Attributes:
        aims: (n, c) the offline predictions that it follows.
        aim: How the ridge of that offline learner was chosen.
        ridge: How the stabiliser was chosen.
        distance: Mean squared distance of the learner so corrected from the offline one, on
            the stream's rows; infinite where none kept its targets finite.
    """

    aims: Tensor
    aim: Choice
    ridge: Choice
    distance: float


def choose_correction(
    kernel: StreamKernel,
    learner: SGD,
    gamma: Choice,
    block_size: int,
    ridge: float | None,
) -> tuple[CorrectionChoice, Offline]:
    """The choice with which the learner ends nearest to the offline one, which is returned too.

    A chosen gamma is that of the best offline learner. To be followed block by block that is
    often too rough: a larger one may lead nearer to it in the end. A gamma that was given is
    followed as it is.

    Args:
        kernel: The stream's kernel.
        learner: The online learner.
        gamma: The offline learner's ridge.
        block_size: Rows corrected together.
        ridge: The stabiliser; None chooses it.
    """
    # what follows the stream to find the aims ends as the offline learner: they come first
    aims = offline_aims(kernel, gamma.value, block_size)
    offline = kernel.offline(gamma.value)
    end = offline.coefficients
    if not gamma.automatic:
        chosen, distance = choose_ridge(kernel, learner, aims, block_size, end, ridge)
        aim = replace(gamma, tried=_table([], []))
        return CorrectionChoice(aims, aim, chosen, distance), offline
    chosen, distance = choose_ridge(kernel, learner, aims, block_size, end, ridge)
    candidates = [CorrectionChoice(aims, gamma, chosen, distance)]
    for share in AIMS[1:]:
        aims = offline_aims(kernel, share * gamma.value, block_size)
        # what steadied the way before, and nothing: a smoother way seldom needs more
        few = sorted({0.0, candidates[-1].ridge.value})
        chosen, distance = choose_ridge(kernel, learner, aims, block_size, end, ridge, few)
        aim = replace(gamma, value=share * gamma.value)
        candidates.append(CorrectionChoice(aims, aim, chosen, distance))
    distances = [one.distance for one in candidates]
    nearest = min(distances)
    best = next(one for one in candidates if one.distance <= (1 + AS_NEAR) * nearest)
    scores = [distance if math.isfinite(distance) else None for distance in distances]
    tried = _table([one.aim.value for one in candidates], scores)
    how = f"{NEAREST}, among {len(candidates)} ridges"
    return replace(best, aim=Choice(best.aim.value, True, how, tried)), offline


def choose_ridge(
    kernel: StreamKernel,
    learner: SGD,
    aims: Tensor,
    block_size: int,
    offline: Tensor,
    ridge: float | None = None,
    candidates: Sequence[float] | None = None,
) -> tuple[Choice, float]:
    """The stabiliser: given, or the one with which the learner ends nearest to the offline one.

    Args:
        kernel: The stream's kernel.
        learner: The online learner.
        aims: (n, c) the offline predictions to aim at.
        block_size: Rows corrected together.
        offline: The offline learner's coefficients.
        ridge: The stabiliser; None chooses it.
        candidates: What to choose from; None for `RIDGES`, times the mean of k(x, x).

    Returns:
        The choice, and the distance: infinite where no learner kept its targets finite.
    """
    if ridge is not None:
        candidates = [ridge]
    elif candidates is None:
        scale = kernel.mean_diagonal() or 1.0
        candidates = [share * scale for share in RIDGES]
    scores = _distances(kernel, settle(kernel, learner, aims, block_size, candidates), offline)
    usable = [(s, value) for s, value in zip(scores, candidates, strict=True) if s is not None]
    distance = min(usable)[0] if usable else math.inf
    tried = _table(candidates, scores)
    if ridge is not None:
        return Choice(ridge, False, "given", tried), distance
    if not usable:
        return Choice(candidates[-1], True, "no value kept the targets finite", tried), distance
    how = (
        f"ends nearest to the offline learner on the stream's rows, among {len(candidates)} values"
    )
    return Choice(min(usable)[1], True, how, tried), distance


def _table(values: Sequence[float], scores: Sequence[float | None]) -> pl.DataFrame:
    schema = {"value": pl.Float64, "score": pl.Float64}
    return pl.DataFrame({"value": list(values), "score": list(scores)}, schema=schema)


def _distances(
    kernel: StreamKernel, ends: list[Tensor | None], offline: Tensor
) -> list[float | None]:
    """The mean squared distance of each predictor from the offline one, on the stream's rows."""
    X = kernel.X[kernel.spread_rows(CHECKED_ROWS)]
    gaps = [end - offline for end in ends if end is not None]
    if not gaps:
        return [None] * len(ends)
    values = kernel.predict(X, torch.cat(gaps, dim=1)).reshape(len(X), len(gaps), -1)
    means = iter(values.square().mean((0, 2)).tolist())
    distances = [math.inf if end is None else next(means) for end in ends]
    return [distance if math.isfinite(distance) else None for distance in distances]
