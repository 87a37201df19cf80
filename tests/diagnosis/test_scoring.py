"""Bootstrap intervals: against plain resampling, and where there is nothing to resample."""

import math

import numpy as np
import pytest

from retarget.diagnosis.measure import compare
from retarget.diagnosis.measure.compare import (
    Bootstrap,
    estimate,
    gap,
    gap_closed,
    score,
    squared_errors,
)
from retarget.diagnosis.result import Estimate
from support.diagnosis_streams import as_stream


def plain_bootstrap(values, statistic, resamples=4000, seed=5):
    """Rows drawn with replacement, one resample at a time."""
    rng = np.random.default_rng(seed)
    n = len(values)
    draws = [statistic(values[rng.integers(n, size=n)]) for _ in range(resamples)]
    return np.percentile(draws, [2.5, 97.5])


@pytest.mark.parametrize("hands", [4000, 50])
def test_intervals_are_those_of_resampled_rows(monkeypatch, hands):
    monkeypatch.setattr(compare, "HANDS", hands)
    values = np.random.default_rng(0).exponential(size=307)
    found = estimate(Bootstrap(307, seed=1).means(values))
    low, high = plain_bootstrap(values, np.mean)
    assert found.value == pytest.approx(values.mean())
    width = high - low
    # dealt out to 50 hands, the spread itself is known to a tenth only
    assert found.low == pytest.approx(low, abs=width * (0.06 if hands > 307 else 0.2))
    assert found.high == pytest.approx(high, abs=width * (0.06 if hands > 307 else 0.2))


def test_the_gap_closed_is_of_pairs():
    rng = np.random.default_rng(2)
    offline = rng.exponential(size=200)
    online = offline + rng.uniform(0.5, 1.5, size=200)
    other = offline + 0.3 * (online - offline) + 0.2 * rng.normal(size=200)
    found = gap_closed(offline, online, other, Bootstrap(200, seed=1))
    rows = np.column_stack([offline, online, other])

    def share(rows):
        below, above, it = rows.mean(0)
        return (above - it) / (above - below)

    low, high = plain_bootstrap(rows, share)
    assert found.value == pytest.approx(share(rows))
    assert found.low == pytest.approx(low, abs=0.1 * (high - low))
    assert found.high == pytest.approx(high, abs=0.1 * (high - low))
    perfect = gap_closed(offline, online, offline, Bootstrap(200, seed=1))
    assert perfect == pytest.approx((1, 1, 1))


def test_a_share_of_no_gap_is_unknown():
    rng = np.random.default_rng(3)
    offline = rng.exponential(size=100)
    bootstrap = Bootstrap(100, seed=0)
    alike = offline + 0.1 * rng.normal(size=100)
    for online in (offline, alike, offline - 0.5):
        assert math.isnan(gap_closed(offline, online, offline, bootstrap).value)
    lost = np.full(100, np.nan)
    assert math.isnan(gap_closed(offline, offline + 1, lost, bootstrap).value)
    assert math.isnan(gap_closed(lost, offline, offline, bootstrap).value)
    assert math.isnan(gap(offline, 0 * offline, bootstrap).value)
    assert gap(2 * offline, offline, bootstrap) == pytest.approx(Estimate(1, 1, 1))


def test_scores_are_in_the_users_units_and_count_right_classes():
    Y = np.eye(3)[[0, 1, 2, 1]]
    errors = np.zeros((4, 3))
    errors[3] = Y[3] - [0.2, 0.1, 0.9]  # taken for the last class
    labels = as_stream(np.zeros((4, 1)), Y, "classification")
    found = score("online", errors, Y, labels, Bootstrap(4, seed=0))
    assert found.accuracy.value == 0.75
    assert found.error.value == pytest.approx((0.04 + 0.81 + 0.81) / 12)
    numbers = as_stream(np.zeros((2, 1)), np.zeros((2, 2)), scales=[2.0, 10.0])
    assert squared_errors(np.array([[1.0, 0.0], [0.0, 1.0]]), numbers).tolist() == [2.0, 50.0]
    assert score("online", errors[:, :2], Y[:, :2], numbers, Bootstrap(4, 0)).accuracy is None
    lost = score("online", np.full((4, 3), np.inf), Y, labels, Bootstrap(4, seed=0))
    assert math.isnan(lost.error.value)
    assert math.isnan(lost.accuracy.value)


def test_resamples_repeat_with_the_seed_and_differ_without():
    values = np.arange(30.0)
    first, again, other = (Bootstrap(30, seed).means(values) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
