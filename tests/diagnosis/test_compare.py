"""Which rows are held out, and bootstrap intervals against plain resampling."""

import math
from dataclasses import replace

import numpy as np
import pytest

import retarget as rt
from retarget.diagnosis.measure import compare
from retarget.diagnosis.measure.compare import (
    Bootstrap,
    estimate,
    gap,
    gap_closed,
    held_out_rows,
    score,
    split,
    squared_errors,
)
from retarget.diagnosis.options import Options
from retarget.diagnosis.result import Estimate
from support.diagnosis_streams import as_stream, classes, drifting


def test_the_last_part_is_held_out():
    stream = replace(classes(50), times=np.arange(50).astype(str))
    parted = split(stream, None, Options(test_share=0.3))
    assert (len(parted.stream), len(parted.test)) == (35, 15)
    assert parted.test.rows.tolist() == list(range(35, 50))
    assert parted.test.times.tolist() == stream.times[35:].tolist()
    assert parted.test.groups.tolist() == stream.groups[35:].tolist()
    assert (np.vstack([parted.stream.X, parted.test.X]) == stream.X).all()
    assert [held_out_rows(rows, 0.2) for rows in (2, 3, 4, 10, 12, 1000)] == [0, 1, 1, 2, 2, 200]
    assert [held_out_rows(*asked) for asked in ((10, 0.99), (3, 0.9), (3, 0.01))] == [8, 1, 1]


def test_a_test_set_is_used_and_progressively_there_is_none():
    stream, test = drifting(10), drifting(4, seed=1)
    for options in (Options(), Options(evaluation="test")):
        assert split(stream, test, options) == (stream, test, "test")
    assert split(stream, None, Options(evaluation="progressive")).test is None


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"options": Options(evaluation="test")}, r"there is no test set"),
        ({"options": Options(evaluation="progressive"), "test": drifting(5)}, r"is a test set"),
        ({"options": Options(test_share=1.0)}, r"test_share is 1.0; expected a share"),
        ({"stream": drifting(2)}, r"there are 2 rows; expected at least 3"),
        ({"stream": drifting(3), "test": drifting(5, 2)}, r"2 features and 2 targets, the stream"),
        ({"stream": as_stream(np.ones((3, 1)), np.ones((2, 1)))}, r"Y of shape \(2, 1\)"),
        ({"stream": as_stream(np.ones((3, 0)), np.ones((3, 1)))}, r"X of shape \(3, 0\)"),
        ({"stream": as_stream(np.array([[0.0], [np.nan], [1.0]]), np.ones((3, 1)))},
         r"not a finite number in row 1 of X"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_compared_on_are_refused(change, match):
    with pytest.raises(rt.errors.InvalidInputError, match=match):
        split(**({"stream": drifting(9), "test": None, "options": Options()} | change))


def plain_bootstrap(values, statistic, resamples=4000, seed=5):
    """Rows drawn with replacement, one resample at a time."""
    rng = np.random.default_rng(seed)
    n = len(values)
    draws = [statistic(values[rng.integers(n, size=n)]) for _ in range(resamples)]
    return np.percentile(draws, [2.5, 97.5])


@pytest.mark.parametrize("groups", [4000, 50])
def test_intervals_are_those_of_resampled_rows(monkeypatch, groups):
    monkeypatch.setattr(compare, "RESAMPLED_GROUPS", groups)
    values = np.random.default_rng(0).exponential(size=307)
    found = estimate(Bootstrap(307, seed=1).means(values))
    low, high = plain_bootstrap(values, np.mean)
    assert found.value == pytest.approx(values.mean())
    width = high - low
    # from 50 groups, the spread itself is known to a tenth only
    assert found.low == pytest.approx(low, abs=width * (0.06 if groups > 307 else 0.2))
    assert found.high == pytest.approx(high, abs=width * (0.06 if groups > 307 else 0.2))


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
