"""Chooses the parameters of the iterative correction, by trying them."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from retarget.diagnosis.answers import TOO_LARGE
from retarget.diagnosis.measure.choose import tried_values
from retarget.diagnosis.measure.passes import TriedCorrection, offline_aims
from retarget.diagnosis.options import Auto
from retarget.diagnosis.result import ChosenValue
from retarget.engine.followers import follow
from retarget.engine.stream_kernel import DenseKernel, Offline, StreamKernel
from retarget.learners import SGD

RIDGES = (0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # times the mean of k(x, x)
AIMS = 10.0 ** np.arange(7)  # times the offline learner's ridge, while that gets nearer
AS_NEAR = 0.05  # within this, distances count as equal and the smallest change wins
# The correction of a longer stream is chosen on so many evenly spaced rows. With the whole kernel
# each trial needs a factorization; with features it is cheap, and more rows close more of the gap.
CHOOSING_ROWS, CHOOSING_FEATURE_ROWS = 4000, 160_000
NEAREST = "closest to the batch model with targets of usable size, among"


class CorrectionChoice(NamedTuple):
    """The parameters of the iterative correction.

    `aims` (n, c) are the offline predictions that it follows; `distance` is the mean squared
    distance of the corrected learner from the offline one on the stream's rows, infinite if no
    targets were finite; `usable` says whether the targets are of a usable size.
    """

    aims: Tensor
    gamma: ChosenValue
    ridge: ChosenValue
    distance: float
    usable: bool


def choose_correction(
    kernel: StreamKernel, learner: SGD, gamma: ChosenValue, block_size: int, ridge: float | Auto
) -> tuple[CorrectionChoice, Offline]:
    """Returns the correction that ends nearest to the offline learner, and that learner.

    An automatically chosen gamma makes the best offline learner, which is often too rough to follow
    block by block: a larger gamma may end nearer to it. A given gamma is not changed. Excessively
    large targets are chosen only if all alternatives have them too. For a long stream, the choice
    is made on evenly spaced rows, with a ridge in proportion to their number.
    """
    most = CHOOSING_ROWS if isinstance(kernel, DenseKernel) else CHOOSING_FEATURE_ROWS
    if len(kernel) <= most:
        return _nearest(kernel, learner, gamma, block_size, ridge)
    few = kernel.part(kernel.spread_rows(most))
    times = len(kernel) / len(few)
    choice, _ = _nearest(few, learner, replace(gamma, value=gamma.value / times), block_size, ridge)
    followed = replace(
        choice.gamma,
        value=times * choice.gamma.value,
        tried=choice.gamma.tried.with_columns(pl.col("value") * times),
    )
    # the recursion that computes the aims ends as the offline learner of that ridge
    aims = offline_aims(kernel, followed.value, block_size)
    return choice._replace(aims=aims, gamma=followed), kernel.offline(gamma.value)


def _nearest(
    kernel: StreamKernel, learner: SGD, gamma: ChosenValue, block_size: int, ridge: float | Auto
) -> tuple[CorrectionChoice, Offline]:
    """Like `choose_correction`, but tries each candidate on all rows of the kernel."""
    aims = offline_aims(kernel, gamma.value, block_size)
    offline = kernel.offline(gamma.value)
    scale, automatic = kernel.mean_diagonal(), isinstance(ridge, str)
    given = [share * scale for share in RIDGES] if isinstance(ridge, str) else [ridge]
    candidates: list[CorrectionChoice] = []
    for value in gamma.value * AIMS:
        if candidates:
            aims = offline_aims(kernel, value, block_size)
        tries = [TriedCorrection(kernel, learner, aims, r) for r in given]
        follow(kernel.windows(block_size), tries)
        distances = _distances(kernel, [one.coefficients for one in tries], offline.coefficients)
        wild = [one.failure is not None or one.size > TOO_LARGE for one in tries]
        unusable, nearest, best = min(zip(wild, distances, given, strict=True))
        how = f"{NEAREST} {len(given)} values" if automatic else "given"
        if automatic and not math.isfinite(nearest):
            best, how = given[-1], "no value kept the targets finite"
        chosen = ChosenValue(best, automatic, how, tried_values(given, distances))
        followed = replace(gamma, value=float(value))
        candidates.append(CorrectionChoice(aims, followed, chosen, nearest, not unusable))
        before = candidates[-2] if len(candidates) > 1 else None
        # no nearer than the previous one: a smoother one will not be either
        worse = before is not None and before.usable and not nearest < before.distance
        if not gamma.automatic or worse:
            break
        if automatic:
            # the ridge that worked, and none: smoother aims seldom need more
            given = sorted({0.0, best})
    if not gamma.automatic:
        return candidates[0]._replace(gamma=replace(gamma, tried=tried_values([], []))), offline
    tried = tried_values(
        [one.gamma.value for one in candidates], [one.distance for one in candidates]
    )
    possible = [one for one in candidates if one.usable] or candidates
    least = min(one.distance for one in possible)
    near = next(one for one in possible if one.distance <= (1 + AS_NEAR) * least)
    how = f"{NEAREST} {len(candidates)} ridges"
    return near._replace(gamma=ChosenValue(near.gamma.value, True, how, tried)), offline


def _distances(kernel: StreamKernel, ends: list[Tensor | None], offline: Tensor) -> list[float]:
    """Returns each predictor's mean squared distance from the offline one on the stream."""
    gaps = [end - offline for end in ends if end is not None]
    if not gaps:
        return [math.inf] * len(ends)
    values = kernel.values(torch.cat(gaps, dim=1)).reshape(len(kernel), len(gaps), -1)
    means = iter(values.square().mean((0, 2)).tolist())
    distances = [math.inf if end is None else next(means) for end in ends]
    return [distance if math.isfinite(distance) else math.inf for distance in distances]
