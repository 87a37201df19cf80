"""Which offline learner the iterative correction follows, and how it is steadied on its way."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl
import torch
from torch import Tensor

from retarget.diagnosis.kernels.base import Offline, StreamKernel
from retarget.diagnosis.measure.correction import offline_aims, settle
from retarget.diagnosis.result import Choice
from retarget.learners import SGD

RIDGES = (0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # times the mean of k(x, x)
AIMS = (1.0, 10.0, 100.0, 1000.0)  # times the offline learner's ridge
AS_NEAR = 0.05  # farther by so little is as near: the least change is taken
CHECKED_ROWS = 20_000
NEAREST = "ends nearest to the offline learner on the stream's rows"


@dataclass(frozen=True)
class Way:
    """How the iterative correction goes.

    Attributes:
        aims: (n, c) the offline predictions that it follows.
        aim: How the ridge of that offline learner came about.
        ridge: How the stabiliser came about.
        distance: Mean squared distance of the learner that went this way from the offline one, on
            the stream's rows; infinite where none kept its targets finite.
    """

    aims: Tensor
    aim: Choice
    ridge: Choice
    distance: float


def choose_way(
    kernel: StreamKernel,
    learner: SGD,
    gamma: Choice,
    block_size: int,
    ridge: float | None,
) -> tuple[Way, Offline]:
    """The way on which the learner ends nearest to the offline one, which is given back too.

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
        return Way(aims, replace(gamma, tried=_table([], [])), chosen, distance), offline
    chosen, distance = choose_ridge(kernel, learner, aims, block_size, end, ridge)
    ways = [Way(aims, gamma, chosen, distance)]
    for share in AIMS[1:]:
        aims = offline_aims(kernel, share * gamma.value, block_size)
        # what steadied the way before, and nothing: a smoother way seldom needs more
        few = sorted({0.0, ways[-1].ridge.value})
        chosen, distance = choose_ridge(kernel, learner, aims, block_size, end, ridge, few)
        ways.append(Way(aims, replace(gamma, value=share * gamma.value), chosen, distance))
    nearest = min(way.distance for way in ways)
    best = next(way for way in ways if way.distance <= (1 + AS_NEAR) * nearest)
    scores = [way.distance if math.isfinite(way.distance) else None for way in ways]
    tried = _table([way.aim.value for way in ways], scores)
    how = f"{NEAREST}, among {len(ways)} ridges"
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
