"""Intervals against plain resampling, one row (or group of rows) at a time."""

import math

import numpy as np
import pytest

from retarget.diagnosis.answers import Estimate
from retarget.diagnosis.measure import bootstrap
from retarget.diagnosis.measure.bootstrap import Bootstrap, any_of, estimate, gap_closed, ratio


def plain_bootstrap(values, statistic, resamples=4000, seed=5):
    """Rows drawn with replacement, one resample at a time."""
    rng = np.random.default_rng(seed)
    n = len(values)
    draws = [statistic(values[rng.integers(n, size=n)]) for _ in range(resamples)]
    return np.percentile(draws, [2.5, 97.5])


@pytest.mark.parametrize("parts", [4000, 50])
def test_intervals_are_those_of_resampled_rows(monkeypatch, parts):
    monkeypatch.setattr(bootstrap, "RESAMPLED_PARTS", parts)
    values = np.random.default_rng(0).exponential(size=307)
    found = estimate(Bootstrap(307, seed=1).means(values))
    low, high = plain_bootstrap(values, np.mean)
    assert found.value == pytest.approx(values.mean())
    assert (Bootstrap(307, seed=2).means(values) != Bootstrap(307, seed=1).means(values)).any()
    width = high - low
    # from 50 parts, the spread itself is known to a tenth only
    assert found.low == pytest.approx(low, abs=width * (0.06 if parts > 307 else 0.2))
    assert found.high == pytest.approx(high, abs=width * (0.06 if parts > 307 else 0.2))


def test_the_gap_closed_is_of_pairs():
    rng = np.random.default_rng(2)
    offline = rng.exponential(size=200)
    online = offline + rng.uniform(0.5, 1.5, size=200)
    other = offline + 0.3 * (online - offline) + 0.2 * rng.normal(size=200)
    means = Bootstrap(200, seed=1).means
    found = gap_closed(means(offline), means(online), means(other))
    rows = np.column_stack([offline, online, other])

    def share(rows):
        below, above, it = rows.mean(0)
        return (above - it) / (above - below)

    low, high = plain_bootstrap(rows, share)
    assert found.value == pytest.approx(share(rows))
    assert found.low == pytest.approx(low, abs=0.1 * (high - low))
    assert found.high == pytest.approx(high, abs=0.1 * (high - low))
    perfect = gap_closed(means(offline), means(online), means(offline))
    assert perfect == pytest.approx((1, 1, 1))


def test_a_share_of_no_gap_is_unknown():
    rng = np.random.default_rng(3)
    offline = rng.exponential(size=100)
    means = Bootstrap(100, seed=0).means
    low, high, lost = means(offline), means(offline + 1), means(np.nan * offline)
    alike, better = means(offline + 0.1 * rng.normal(size=100)), means(offline - 0.5)
    for unknown in (
        *(gap_closed(low, online, low) for online in (low, alike, better)),
        *(gap_closed(low, high, lost), gap_closed(lost, low, low), ratio(lost, low)),
    ):
        assert math.isnan(unknown.value)
    assert ratio(2 * low, low) == pytest.approx(Estimate(1, 1, 1))
    assert ratio(0 * low, 0 * low) == Estimate(0, 0, 0)  # both are perfect
    assert ratio(low, 0 * low) == Estimate(math.inf, math.inf, math.inf)


def test_runs_that_differ_by_luck_have_the_range_of_all_of_them():
    rows = np.random.default_rng(6).exponential(size=400)
    means = Bootstrap(400, seed=1).means
    runs = [means(factor * rows) for factor in (0.5, 1.0, 3.0)]
    found = estimate(any_of(runs, seed=0))
    assert found.value == pytest.approx(1.5 * rows.mean())
    assert found.low < estimate(runs[0]).high
    assert found.high > estimate(runs[2]).low  # one run alone would have told a third of it
    assert math.isnan(estimate(any_of([runs[1], means(np.nan * rows)], 0)).value)


def test_whole_groups_are_drawn_again():
    rng = np.random.default_rng(4)
    groups = np.repeat(np.arange(24), rng.integers(3, 12, size=24))
    values = rng.normal(size=24)[groups] + 0.1 * rng.normal(size=len(groups))
    found = estimate(Bootstrap(len(values), 1, groups).means(values))
    sums, counts = (np.bincount(groups, weights=part) for part in (values, np.ones(len(values))))
    draws = []
    for _ in range(4000):
        some = rng.integers(24, size=24)
        draws.append(sums[some].sum() / counts[some].sum())
    low, high = np.percentile(draws, [2.5, 97.5])
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.1 * (high - low))
    alone = estimate(Bootstrap(len(values), 1).means(values))  # as if rows were independent
    assert alone.high - alone.low < 0.7 * (found.high - found.low)
