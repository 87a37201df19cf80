"""Scores with their uncertainty, by resampling the rows that they were measured on."""

import math

import numpy as np
from numpy.typing import NDArray

from retarget.diagnosis.result import Estimate, LearnerName, Score
from retarget.diagnosis.stream import Stream

RESAMPLES = 1000
# Resampling a million rows a thousand times would take minutes. Dealt out to this many hands, and
# the hands resampled, the mean varies as it does by rows.
HANDS = 4000

UNKNOWN = Estimate(math.nan, math.nan, math.nan)


class Bootstrap:
    """Resampled means over rows. The same resamples serve all: differences and ratios are of pairs.

    Args:
        rows: Number of rows.
        seed: Of the resamples.
    """

    def __init__(self, rows: int, seed: int) -> None:
        hands = min(rows, HANDS)
        rng = np.random.default_rng(seed)
        counts = rng.multinomial(hands, np.full(hands, 1 / hands), size=RESAMPLES)
        self._counts = counts.astype(np.float64)
        self._hand = np.arange(rows) % hands
        sizes = np.bincount(self._hand, minlength=hands)
        self._sizes = self._counts @ sizes

    def means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """(1 + resamples,) the mean, and the means of the resamples."""
        if not np.isfinite(values).all():
            return np.full(1 + RESAMPLES, math.nan)
        sums = np.bincount(self._hand, weights=values)
        resampled = (self._counts @ sums) / self._sizes
        return np.append(values.mean(), resampled)


def estimate(samples: NDArray[np.float64]) -> Estimate:
    """A value and its 95% interval, from (1 + resamples,) numbers: the value comes first."""
    if not np.isfinite(samples).all():
        return UNKNOWN
    low, high = np.percentile(samples[1:], [2.5, 97.5])
    return Estimate(float(samples[0]), float(low), float(high))


def squared_errors(errors: NDArray[np.float64], stream: Stream) -> NDArray[np.float64]:
    """(m,) mean square over targets, in the user's units."""
    with np.errstate(over="ignore"):
        return np.asarray(np.square(errors * stream.target_scales).mean(axis=1))


def score(
    learner: LearnerName,
    errors: NDArray[np.float64],
    Y: NDArray[np.float64],
    stream: Stream,
    bootstrap: Bootstrap,
) -> Score:
    """The score of a learner with these errors (m, c) on rows with targets Y."""
    error = estimate(bootstrap.means(squared_errors(errors, stream)))
    if stream.kind == "regression":
        return Score(learner, error, None)
    accuracy = UNKNOWN
    if np.isfinite(errors).all():
        right = (Y - errors).argmax(axis=1) == Y.argmax(axis=1)
        accuracy = estimate(bootstrap.means(right.astype(np.float64)))
    return Score(learner, error, accuracy)


def gap(online: NDArray[np.float64], other: NDArray[np.float64], bootstrap: Bootstrap) -> Estimate:
    """How far the online learner's error lies above another's, relative to the other's."""
    above, below = bootstrap.means(online), bootstrap.means(other)
    with np.errstate(divide="ignore", invalid="ignore"):
        return estimate(above / below - 1)


def gap_closed(
    offline: NDArray[np.float64],
    online: NDArray[np.float64],
    other: NDArray[np.float64],
    bootstrap: Bootstrap,
) -> Estimate:
    """The share of the online learner's excess error that another one does not have.

    A share of nothing has no meaning: NaN unless the online learner's error is above the offline
    one's with 95% confidence.
    """
    below, above = bootstrap.means(offline), bootstrap.means(online)
    excess = estimate(above - below)
    if not excess.low > 1e-9 * above[0]:
        return UNKNOWN
    with np.errstate(divide="ignore", invalid="ignore"):
        return estimate((above - bootstrap.means(other)) / (above - below))
