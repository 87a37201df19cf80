"""Confidence intervals by the bootstrap: rows, or whole groups of rows, are drawn again."""

import math

import numpy as np
from numpy.typing import NDArray

from retarget.diagnosis.answers import UNKNOWN, Estimate

RESAMPLES = 1000
# Resampling a million rows a thousand times would take minutes. Rows are assigned to this many
# parts and the parts are resampled, which gives the mean the same variance.
RESAMPLED_PARTS = 4000
Resamples = NDArray[np.float64]  # (1 + resamples,) a mean, then its resampled values


class Bootstrap:
    """Resampled means over rows, the same resamples for all: differences and ratios are paired.

    `groups` (rows,) are the groups of rows that belong together, such as the rows of one person:
    whole groups are drawn, since their rows are not independent of each other.
    """

    def __init__(self, rows: int, seed: int, groups: np.ndarray | None = None) -> None:
        self._part = np.arange(rows) % min(rows, RESAMPLED_PARTS)
        if groups is not None:
            self._part = np.unique(groups, return_inverse=True)[1] % RESAMPLED_PARTS
        parts = int(self._part.max()) + 1
        rng = np.random.default_rng(seed)
        counts = rng.multinomial(parts, np.full(parts, 1 / parts), size=RESAMPLES)
        self._counts = counts.astype(np.float64)
        self._sizes = self._counts @ np.bincount(self._part, minlength=parts)

    def means(self, values: NDArray[np.float64]) -> Resamples:
        """Returns the mean, then the means of the resamples."""
        if not np.isfinite(values).all():
            return np.full(1 + RESAMPLES, math.nan)
        sums = np.bincount(self._part, weights=values)
        return np.append(values.mean(), (self._counts @ sums) / self._sizes)


def estimate(samples: Resamples) -> Estimate:
    """Returns a value and its 95% interval; unknown unless all three are finite numbers."""
    with np.errstate(invalid="ignore"):
        found = samples[0], *np.percentile(samples[1:], [2.5, 97.5])
    return Estimate(*map(float, found)) if np.isfinite(found).all() else UNKNOWN


def ratio(above: Resamples, below: Resamples) -> Estimate:
    """Returns how far one mean is above another, relative to the other.

    Equal means differ by 0, even if both are 0; above a mean of 0 it is infinite.
    """
    if not (np.isfinite(above).all() and np.isfinite(below).all()):
        return UNKNOWN
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.where(above == below, 0.0, above / below - 1)
    if np.isfinite(change).all():
        return estimate(change)
    # halfway between two infinite numbers there is none
    low, high = np.percentile(change[1:], [2.5, 97.5], method="nearest")
    return Estimate(float(change[0]), float(low), float(high))


def gap_closed(batch: Resamples, online: Resamples, other: Resamples) -> Estimate:
    """Returns the share of the online learner's excess loss that another learner removes.

    Unknown unless the online loss is above the batch model's with 95% confidence.
    """
    if not estimate(online - batch).low > 1e-9 * online[0]:
        return UNKNOWN
    with np.errstate(divide="ignore", invalid="ignore"):
        return estimate((online - other) / (online - batch))


def any_of(runs: list[Resamples], seed: int) -> Resamples:
    """Combines several runs: their mean, and in each resample a random one of them.

    So the interval reflects chance in the order as well as in the rows.
    """
    if not np.isfinite(runs).all():
        return np.full_like(runs[0], math.nan)
    made = np.array(runs)
    drawn = np.random.default_rng(seed).integers(len(runs), size=made.shape[1])
    chosen: Resamples = made[drawn, np.arange(made.shape[1])]
    chosen[0] = made[:, 0].mean()
    return chosen
