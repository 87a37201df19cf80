"""Confidence intervals from batches: what a mean becomes if some neighboring rows are left out.

The errors on neighboring rows are alike, so an interval that takes every row for new evidence is
far too narrow (for a correlation of 0.9 from row to row, one of "95%" holds the truth in a third of
all cases). The means of a few long runs of consecutive rows are nearly independent of each other:
their spread, with Student's quantile, tells how far chance can move the mean of all rows
("batch means"; see Law and Kelton, "Simulation Modeling and Analysis"). Every number that follows
from several means gets its interval by the jackknife: it is computed without each batch in turn.
tests/diagnosis/test_intervals.py measures how often such an interval holds the truth; the number of
batches and strips is the one that did best there.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from retarget.diagnosis.answers import UNKNOWN, Estimate

BATCHES = 10  # of consecutive rows
STRIPS = 5  # of the stream, if only the rows within a strip vary by chance
BATCHES_IN_STRIP = 2
CONFIDENCE = 0.95


class Batches:
    """Rows in batches that are as good as independent of each other.

    Args:
        batch: (rows,) the batch of each row, counted from 0.
        strip: (batches,) the strip of the stream that each batch lies in. Strips do not vary by
            chance: only batches of the same strip are compared with each other.
    """

    def __init__(self, batch: NDArray[np.int64], strip: NDArray[np.int64] | None = None) -> None:
        self.batch = batch
        self.count = int(batch.max()) + 1 if len(batch) else 0
        self.strip = np.zeros(self.count, dtype=np.int64) if strip is None else strip
        self.sizes = np.bincount(batch, minlength=self.count)
        batches_in_strip = np.bincount(self.strip)
        # a batch alone in its strip has nothing to be compared with
        self.freedom = int(np.maximum(batches_in_strip - 1, 0).sum())

    @classmethod
    def consecutive(cls, rows: NDArray[np.int64], count: int = BATCHES) -> Self:
        """Batches of consecutive rows; equal numbers in `rows` (one a value) stay together."""
        place = np.unique(rows, return_inverse=True)[1]
        return cls(_shared_out(place, count))

    @classmethod
    def of_groups(cls, groups: np.ndarray) -> Self:
        """One batch for each group, such as the rows of one person."""
        return cls(np.unique(groups, return_inverse=True)[1].reshape(-1))

    @classmethod
    def within_strips(cls, rows: NDArray[np.int64]) -> Self:
        """Two batches of consecutive rows in each of five strips of the stream."""
        place = np.unique(rows, return_inverse=True)[1]
        strips = max(1, min(STRIPS, (int(place.max()) + 1) // BATCHES_IN_STRIP))
        batch = _shared_out(place, strips * BATCHES_IN_STRIP)
        return cls(batch, np.arange(int(batch.max()) + 1) // BATCHES_IN_STRIP)

    def mean(self, values: NDArray[np.float64]) -> "Mean":
        """Returns the mean of one value a row, and what it is without each batch."""
        if not len(values) or not np.isfinite(values).all():
            return Mean(math.nan, np.full(self.count, math.nan), self)
        # relative to the mean, so that adding up large equal values loses no digits
        with np.errstate(over="ignore", invalid="ignore"):  # then it is not known
            center = float(values.mean())
            total = np.bincount(self.batch, weights=values - center, minlength=self.count)
            left = np.maximum(len(values) - self.sizes, 1)
            return Mean(center, center + (total.sum() - total) / left, self)

    def standard_error(self, without: NDArray[np.float64]) -> float:
        """Returns that of a number, given what it is without each batch (jackknife)."""
        # a number without one of n batches moves by n / (n - 1) times the batch's part in it
        parts = without * (self.count - 1) / self.count
        strips = (parts[self.strip == strip] for strip in np.unique(self.strip))
        return math.hypot(*(math.sqrt(len(some)) * deviation(some) for some in strips))


def deviation(values: NDArray[np.float64]) -> float:
    """Returns the standard deviation of a sample, whose squares may overflow; 0 of one value."""
    largest = float(np.abs(values).max())
    if len(values) < 2 or largest == 0:
        return 0.0
    if not math.isfinite(largest):
        return math.nan
    return largest * float((values / largest).std(ddof=1))


def _shared_out(place: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Returns the batch of each place 0, 1, ..., for so many batches of about equal length."""
    places = int(place.max()) + 1 if len(place) else 0
    return np.asarray(place * min(count, places) // max(places, 1))


@dataclass(frozen=True)
class Mean:
    """A mean over rows, and what it would be without each batch of them.

    Attributes:
        value: The mean of all rows.
        without: (batches,) the mean without each batch.
        batches: The batches.
        over_runs: Its standard error that is due to chance in the runs, if it is a mean over runs.
        runs: How many runs those are.
    """

    value: float
    without: NDArray[np.float64]
    batches: Batches
    over_runs: float = 0.0
    runs: int = 1

    @property
    def known(self) -> bool:
        """Whether it is a finite number."""
        return math.isfinite(self.value) and bool(np.isfinite(self.without).all())

    def through(self, function: Callable[[Any], Any] | None) -> "Mean":
        """Returns a function of the mean, such as its root; the mean itself without a function.

        The jackknife needs nothing but its values without each batch. What chance in the runs adds
        is what it moves the function by.
        """
        if function is None:
            return self
        ends = function(self.value + self.over_runs), function(max(0, self.value - self.over_runs))
        return replace(
            self,
            value=float(function(self.value)),
            without=np.asarray(function(self.without)),
            over_runs=float(ends[0] - ends[1]) / 2,
        )


def mean_over_runs(runs: list[Mean]) -> Mean:
    """Combines several runs on the same rows, such as random orders: the mean of their means.

    It is an estimate of the mean over *all* orders, so that chance in the orders shrinks with
    their number.
    """
    values = np.array([run.value for run in runs])
    without = np.mean([run.without for run in runs], axis=0)
    over_runs = deviation(values) / math.sqrt(len(runs))
    return Mean(float(values.mean()), without, runs[0].batches, over_runs, len(runs))


def half_width(standard_errors: list[tuple[float, int]]) -> float:
    """Returns how far a 95% interval reaches from its middle; infinitely if nothing is known.

    Each standard error has its degrees of freedom; they are combined as Welch and Satterthwaite do.
    """
    counted = [(error, freedom) for error, freedom in standard_errors if freedom > 0]
    if not counted:
        return math.inf
    total = math.hypot(*(error for error, _ in counted))
    if total == 0:
        return 0.0
    freedom = 1 / sum((error / total) ** 4 / degrees for error, degrees in counted)
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * total


def estimate(mean: Mean, lowest: float = -math.inf, highest: float = math.inf) -> Estimate:
    """Returns a mean and its 95% interval, cut to what is possible; unknown if not finite."""
    if not mean.known:
        return UNKNOWN
    by_rows = mean.batches.standard_error(mean.without), mean.batches.freedom
    reach = half_width([by_rows, (mean.over_runs, mean.runs - 1)])
    return Estimate(mean.value, max(lowest, mean.value - reach), min(highest, mean.value + reach))


def ratio(above: Mean, below: Mean) -> Estimate:
    r"""Returns how far one mean is above another of the same rows, relative to the other.

    The interval is that of the logarithm, whose jackknife values are linearized:
    $a_{-j}/a - b_{-j}/b$. Equal means differ by 0, even if both are 0; above a mean of 0 it is
    infinite.
    """
    if not (above.known and below.known):
        return UNKNOWN
    if above.value == below.value and (above.without == below.without).all():
        return Estimate(0.0, 0.0, 0.0)
    if below.value == 0:
        clear = estimate(difference(above, below)).low > 0
        return Estimate(math.inf, math.inf if clear else 0.0, math.inf)
    if above.value == 0:
        return Estimate(-1.0, -1.0, -1.0)
    relative = above.without / above.value - below.without / below.value
    reach = half_width(
        [
            (above.batches.standard_error(relative), above.batches.freedom),
            (above.over_runs / above.value, above.runs - 1),
            (below.over_runs / below.value, below.runs - 1),
        ]
    )
    quotient = above.value / below.value
    low, high = (_times(quotient, factor) - 1 for factor in (-reach, reach))
    return Estimate(quotient - 1, low, high)


def _times(value: float, exponent: float) -> float:
    """Returns a value times e to a power; infinite if that overflows."""
    return value * math.exp(exponent) if exponent < 700 else math.inf


def difference(above: Mean, below: Mean) -> Mean:
    """Returns how far one mean is above another of the same rows."""
    over_runs = math.hypot(above.over_runs, below.over_runs)
    runs = max(above.runs, below.runs)
    without = above.without - below.without
    return Mean(above.value - below.value, without, above.batches, over_runs, runs)


def relative_gap(above: Mean, below: Mean) -> Estimate:
    """Returns how far one mean is above another, relative to the other, which counts as exact.

    As `ratio`, but with the interval of the difference: it tells which mean is larger even if a few
    batches make up most of one, and tells less of how many times as large.
    """
    if not (above.known and below.known and below.value > 0):
        return UNKNOWN
    gap = estimate(difference(above, below), lowest=-below.value)
    return Estimate(*(bound / below.value for bound in gap))


def gap_closed(batch: Mean, online: Mean, other: Mean) -> Estimate:
    """Returns the share of the online learner's excess loss that another learner removes.

    Unknown unless the online loss is above the batch model's with 95% confidence.
    """
    gap = difference(online, batch)
    closed = difference(online, other)
    if not closed.known or not ratio(online, batch).low > 1e-9:
        return UNKNOWN
    share = closed.value / gap.value
    linear = (closed.without - share * gap.without) / gap.value
    by_rows = gap.batches.standard_error(linear), gap.batches.freedom
    by_runs = math.hypot(closed.over_runs, share * gap.over_runs) / gap.value
    reach = half_width([by_rows, (by_runs, max(closed.runs, gap.runs) - 1)])
    return Estimate(share, share - reach, share + reach)
