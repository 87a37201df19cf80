"""Chooses the parameters of the iterative correction, by trying them."""

import math
from dataclasses import dataclass, replace
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
from retarget.engine.stream_kernel import FeatureKernel, Offline, StreamKernel
from retarget.learners import SGD

RIDGES = (0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # times the mean of k(x, x)
AIMS = 10.0 ** np.arange(7)  # times the offline learner's ridge, while that gets nearer
AS_NEAR = 0.05  # within this, distances count as equal and the smallest change wins
# The correction of a longer stream is chosen on so many evenly spaced rows. With the whole kernel
# each trial needs a factorization; with few features it is cheap, and more rows close more of the
# gap: as many rows, times the square of the features, as take some seconds. (On 200,000 rows,
# 60,000 and 160,000 of them choose the same.)
CHOOSING_ROWS = 4000
CHOOSING_FEATURE_ROWS = 60_000
CHOOSING_WORK = 2.5e10
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
    most = choosing_rows(kernel)
    if len(kernel) <= most:
        search = _Search.around(kernel, learner, block_size, gamma)
        return search.best(ridge), search.offline
    few = kernel.part(kernel.spread_rows(most))
    times = len(kernel) / len(few)
    gamma_of_few = replace(gamma, value=gamma.value / times)
    choice = _Search.around(few, learner, block_size, gamma_of_few).best(ridge)
    followed = replace(
        choice.gamma,
        value=times * choice.gamma.value,
        tried=choice.gamma.tried.with_columns(pl.col("value") * times),
    )
    # the recursion that computes the aims ends as the offline learner of that ridge
    aims = offline_aims(kernel, followed.value, block_size)
    return choice._replace(aims=aims, gamma=followed), kernel.offline(gamma.value)


def choosing_rows(kernel: StreamKernel) -> int:
    """Returns how many rows of a longer stream the correction is chosen on."""
    if not isinstance(kernel, FeatureKernel):
        return CHOOSING_ROWS
    affordable = int(CHOOSING_WORK / kernel.feature_count**2)
    return min(max(CHOOSING_ROWS, affordable), CHOOSING_FEATURE_ROWS)


@dataclass(frozen=True)
class _Search:
    """Tries corrections on all rows of a kernel.

    Attributes:
        kernel: The kernel of the rows.
        learner: The online learner.
        block_size: Rows that are corrected together.
        gamma: The ridge of the offline learner.
        aims: (n, c) what it predicts for each block once it has seen it.
        offline: That learner at the end, which the corrected one should end near to.
    """

    kernel: StreamKernel
    learner: SGD
    block_size: int
    gamma: ChosenValue
    aims: Tensor
    offline: Offline

    @classmethod
    def around(
        cls, kernel: StreamKernel, learner: SGD, block_size: int, gamma: ChosenValue
    ) -> "_Search":
        """Returns the search for what ends near to the offline learner with this ridge."""
        # in this order one factorization serves both
        aims = offline_aims(kernel, gamma.value, block_size)
        return cls(kernel, learner, block_size, gamma, aims, kernel.offline(gamma.value))

    def best(self, ridge: float | Auto) -> CorrectionChoice:
        """Returns the correction that ends nearest; of about equally near ones, the roughest."""
        candidates = self._candidates(ridge)
        if not self.gamma.automatic:
            nothing = tried_values([], [])
            return candidates[0]._replace(gamma=replace(self.gamma, tried=nothing))
        possible = [one for one in candidates if one.usable] or candidates
        least = min(one.distance for one in possible)
        near = next(one for one in possible if one.distance <= (1 + AS_NEAR) * least)
        gammas = [one.gamma.value for one in candidates]
        distances = [one.distance for one in candidates]
        tried = tried_values(gammas, distances)
        how = f"{NEAREST} {len(candidates)} ridges"
        return near._replace(gamma=ChosenValue(near.gamma.value, True, how, tried))

    def _candidates(self, ridge: float | Auto) -> list[CorrectionChoice]:
        """Tries smoother and smoother offline learners, until one brings the learner no nearer."""
        if isinstance(ridge, str):
            ridges = [share * self.kernel.mean_diagonal() for share in RIDGES]
        else:
            ridges = [ridge]
        candidates: list[CorrectionChoice] = []
        for gamma in self.gamma.value * AIMS:
            choice = self._followed(float(gamma), ridges, automatic=isinstance(ridge, str))
            candidates.append(choice)
            if not self.gamma.automatic or _no_nearer(candidates):
                break
            if isinstance(ridge, str):
                # the ridge that worked, and none: smoother aims seldom need more
                ridges = sorted({0.0, choice.ridge.value})
        return candidates

    def _followed(self, gamma: float, ridges: list[float], automatic: bool) -> CorrectionChoice:
        """Returns the best of these ridges, for following the offline learner with this gamma."""
        aims = self.aims
        if gamma != self.gamma.value:
            aims = offline_aims(self.kernel, gamma, self.block_size)
        corrections = [TriedCorrection(self.kernel, self.learner, aims, ridge) for ridge in ridges]
        follow(self.kernel.windows(self.block_size), corrections)
        ends = [one.coefficients for one in corrections]
        distances = _distances(self.kernel, ends, self.offline.coefficients)
        unusable = [one.failure is not None or one.size > TOO_LARGE for one in corrections]
        best_is_unusable, distance, best = min(zip(unusable, distances, ridges, strict=True))
        how = f"{NEAREST} {len(ridges)} values" if automatic else "given"
        if automatic and not math.isfinite(distance):
            best = ridges[-1]
            how = "no value kept the targets finite"
        chosen = ChosenValue(best, automatic, how, tried_values(ridges, distances))
        followed = replace(self.gamma, value=gamma)
        return CorrectionChoice(aims, followed, chosen, distance, not best_is_unusable)


def _no_nearer(candidates: list[CorrectionChoice]) -> bool:
    """Whether the last one is no nearer than the one before: a smoother one will not be either."""
    if len(candidates) < 2:
        return False
    before, last = candidates[-2:]
    return before.usable and not last.distance < before.distance


def _distances(kernel: StreamKernel, ends: list[Tensor | None], offline: Tensor) -> list[float]:
    """Returns each predictor's mean squared distance from the offline one on the stream."""
    gaps = [end - offline for end in ends if end is not None]
    if not gaps:
        return [math.inf] * len(ends)
    values = kernel.values(torch.cat(gaps, dim=1)).reshape(len(kernel), len(gaps), -1)
    means = iter(values.square().mean((0, 2)).tolist())
    distances = [math.inf if end is None else next(means) for end in ends]
    return [distance if math.isfinite(distance) else math.inf for distance in distances]
