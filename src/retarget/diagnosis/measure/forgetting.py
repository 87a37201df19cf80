r"""What was forgotten: the loss of the same rows by the same learner, later and at their time.

With $L(p, t)$ the loss on the held-out row of place $p$ by the learner that has seen the rows
before $t$, and sums over late moments $t$ and rows $p < t$,

$$ \text{forgetting} = \sum L(p, t) \Big/ \sum L(p, p) - 1 . $$

A learner that only improves stays at or below zero, whatever its order; later rows that overwrite
earlier ones raise it. Being behind a batch model is something else, and has two causes,

$$ \text{order cost} = \frac{\text{loss as it came}}{\text{mean loss over random orders}} - 1 ,
\qquad
\text{one-pass cost} = \frac{\text{mean loss over random orders}}{\text{loss of the batch model}}
- 1 , $$

each of which has a remedy of its own. What varies by chance is which rows came at a time, not the
history of the stream. So the batches of the first two lie within strips of the stream.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from retarget.diagnosis.answers import Estimate, Forgetting
from retarget.diagnosis.measure.intervals import Batches, Mean, deviation, ratio

# Ages of the forgetting curve, as shares of the rows learned.
AGES = (0.0, 0.04, 0.08, 0.15, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)
FEWEST_ROWS = 10  # for a point of the curve
DOUBLED = 1.0  # the relative increase of an error that has doubled


class Remembered(NamedTuple):
    """Losses on held-out rows, when their time came and at later moments, one of each pair.

    Attributes:
        rows: (pairs,) the row's position in the stream.
        ages: (pairs,) how many rows were learned since its time.
        late: (pairs,) whether the moment is one of the late ones.
        first: (pairs,) the loss at its time.
        later: (pairs,) the loss at the moment.
        learned: How many rows are learned in all.
        constant: (pairs,) the loss of the simplest predictor.
        groups: (pairs,) the row's group, if whole groups are held out.
        score: From the mean loss to what is compared; None for the mean itself.
    """

    rows: NDArray[np.int64]
    ages: NDArray[np.int64]
    late: NDArray[np.bool_]
    first: NDArray[np.float64]
    later: NDArray[np.float64]
    learned: int
    constant: NDArray[np.float64]
    groups: np.ndarray | None = None
    score: Callable[[Any], Any] | None = None

    @classmethod
    def together(cls, parts: list["Remembered"]) -> "Remembered":
        """Returns the pairs of several folds of a stream."""
        first = parts[0]
        grouped = first.groups is not None
        return cls(
            rows=np.concatenate([fold.rows for fold in parts]),
            ages=np.concatenate([fold.ages for fold in parts]),
            late=np.concatenate([fold.late for fold in parts]),
            first=np.concatenate([fold.first for fold in parts]),
            later=np.concatenate([fold.later for fold in parts]),
            learned=first.learned,
            constant=np.concatenate([fold.constant for fold in parts]),
            groups=np.concatenate([fold.groups for fold in parts]) if grouped else None,
            score=first.score,
        )

    def some(self, chosen: NDArray[np.bool_]) -> "Remembered":
        """Returns some of the pairs."""
        return self._replace(
            rows=self.rows[chosen],
            ages=self.ages[chosen],
            late=self.late[chosen],
            first=self.first[chosen],
            later=self.later[chosen],
            constant=self.constant[chosen],
            groups=None if self.groups is None else self.groups[chosen],
        )

    @property
    def batches(self) -> Batches:
        """Rows of a strip vary by chance; if whole groups are held out, groups do."""
        if self.groups is not None:
            return Batches.of_groups(self.groups)
        return Batches.within_strips(self.rows)

    def mean(self, losses: NDArray[np.float64]) -> Mean:
        """Returns the score of one loss for each pair."""
        return self.batches.mean(losses).through(self.score)


def measured_forgetting(remembered: Remembered) -> Forgetting | None:
    """Returns how much was forgotten; None if there are too few rows, or losses are not finite."""
    late = remembered.some(remembered.late)
    if len(np.unique(late.rows)) < FEWEST_ROWS:
        return None
    overall = _increase(late)
    if math.isnan(overall.value):
        return None
    curve = _curve(remembered)
    known = ratio(late.mean(late.first), late.mean(late.constant))
    return Forgetting(
        value=overall.value,
        low=overall.low,
        high=overall.high,
        rows=len(np.unique(late.rows)),
        curve=curve,
        half_life=half_life(curve),
        known=known,
    )


def _increase(pairs: Remembered) -> Estimate:
    """Returns how far the loss is above that at the rows' own time, relative to it."""
    return ratio(pairs.mean(pairs.later), pairs.mean(pairs.first))


def _curve(pairs: Remembered) -> pl.DataFrame:
    """Returns the increase of the loss by age: `age`, `value`, `low`, `high`, `rows`."""
    edges = np.array(AGES) * pairs.learned
    points = []
    for low, high in pairwise(edges):
        some = pairs.some((pairs.ages > low) & (pairs.ages <= high))
        rows = len(np.unique(some.rows))
        if rows < FEWEST_ROWS:
            continue
        increase = _increase(some)
        if math.isfinite(increase.value):
            points.append((float(some.ages.mean()), *increase, rows))
    names = ("age", "value", "low", "high")
    schema = dict.fromkeys(names, pl.Float64) | {"rows": pl.Int64}
    return pl.DataFrame(points, schema=schema, orient="row")


def half_life(curve: pl.DataFrame) -> float | None:
    """Returns the age at which the error has doubled, on the lines between the curve's points.

    Examples:
        >>> curve = pl.DataFrame({"age": [10.0, 30.0], "value": [0.5, 2.5]})
        >>> half_life(curve)
        15.0
    """
    age_before = 0.0
    value_before = 0.0
    for age, value in curve.select("age", "value").iter_rows():
        if value >= DOUBLED:
            way = (DOUBLED - value_before) / (value - value_before)
            return float(age_before + way * (age - age_before))
        age_before = age
        value_before = value
    return None


class OrderLosses(NamedTuple):
    """The losses of several random orders on the same pairs: (orders, pairs)."""

    losses: NDArray[np.float64]
    pairs: NDArray[np.int64]


def mean_over_orders(cells: list[OrderLosses], batches: Batches) -> Mean:
    """Returns the mean loss over random orders, and what chance in the orders adds to it.

    Each cell has orders of its own; `pairs` are places in the rows of `batches`. It is the mean
    over *all* orders that is estimated, not the loss of one.
    """
    count = sum(len(cell.pairs) for cell in cells)
    losses = np.full(count, math.nan)
    errors = [0.0]
    freedom = 0
    for cell in cells:
        orders = len(cell.losses)
        losses[cell.pairs] = cell.losses.mean(axis=0)
        share = len(cell.pairs) / count
        if orders > 1:
            errors.append(share * deviation(cell.losses.mean(axis=1)) / math.sqrt(orders))
            freedom += orders - 1
    mean = batches.mean(losses)
    return Mean(mean.value, mean.without, batches, math.hypot(*errors), freedom + 1)
