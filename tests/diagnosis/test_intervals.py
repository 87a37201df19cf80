"""Intervals from batches: by hand for a few rows; by simulation, how often they hold the truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter
from scipy.stats import t as student

from retarget.diagnosis.answers import UNKNOWN, Estimate
from retarget.diagnosis.measure.intervals import (
    Batches,
    difference,
    estimate,
    gap_closed,
    half_width,
    mean_over_runs,
    ratio,
    relative_gap,
)
from support.problems import fewer_examples


def jackknife(values, batch, statistic):
    """The variance of a statistic of rows, leaving out one batch after the other."""
    names = np.unique(batch)
    left_out = np.array([statistic(values[batch != name]) for name in names])
    n = len(names)
    return (n - 1) / n * np.square(left_out - left_out.mean()).sum(), n - 1


def interval(value, variance, freedom):
    reach = student.ppf(0.975, freedom) * math.sqrt(variance)
    return value, value - reach, value + reach


def test_a_mean_by_hand():
    """Three batches with means 1, 2 and 6: their mean is 3 and its variance 7 / 3."""
    values = np.array([0.0, 2.0, 1.0, 3.0, 5.0, 7.0])
    mean = Batches.consecutive(np.arange(6), count=3).mean(values)
    assert mean.value == 3
    np.testing.assert_allclose(mean.without, [4, 3.5, 1.5])
    reach = 4.302652729911275 * math.sqrt(7 / 3)  # Student's quantile for 2 degrees of freedom
    assert estimate(mean) == pytest.approx((3, 3 - reach, 3 + reach))
    assert estimate(mean, lowest=0.0, highest=4.0) == (3, 0, 4)


@fewer_examples
@given(rows=st.integers(2, 400), count=st.integers(2, 12), seed=st.integers(0, 99))
def test_a_mean_is_that_of_consecutive_batches(rows, count, seed):
    rng = np.random.default_rng(seed)
    values = 5 + rng.normal(size=rows)
    batches = Batches.consecutive(np.arange(rows), count)
    assert batches.count == min(rows, count)
    assert (np.diff(batches.batch) >= 0).all()
    assert batches.sizes.max() - batches.sizes.min() <= 1
    found = estimate(batches.mean(values))
    expected = interval(values.mean(), *jackknife(values, batches.batch, np.mean))
    assert found == pytest.approx(expected, rel=1e-9)
    if rows % count == 0:  # the textbook: the standard error of batch means
        means = values.reshape(count, -1).mean(axis=1)
        reach = student.ppf(0.975, count - 1) * means.std(ddof=1) / math.sqrt(count)
        assert found.high - found.value == pytest.approx(reach)


def test_ten_batches_and_equal_rows():
    assert Batches.consecutive(np.arange(1000)).sizes.tolist() == [100] * 10
    rows = np.array([7, 7, 7, 9, 9, 20, 31, 31])  # asked about at several moments, in any order
    shuffled = np.random.default_rng(0).permutation(8)
    batches = Batches.consecutive(rows[shuffled], count=2)
    assert batches.batch[np.argsort(shuffled)].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    values = np.arange(8.0) ** 2
    mean = batches.mean(values[shuffled])
    np.testing.assert_allclose(mean.without, [values[5:].mean(), values[:5].mean()])


def test_batches_of_the_same_strip():
    batches = Batches.within_strips(np.arange(100))
    assert batches.sizes.tolist() == [10] * 10
    assert batches.strip.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert batches.freedom == 5
    rng = np.random.default_rng(0)
    values = rng.normal(size=100) + np.repeat([0, 100, 3, -70, 20], 20)
    # the mean of five strips, each the mean of two batches
    means = values.reshape(5, 2, 10).mean(axis=2)
    variance = (means.var(axis=1, ddof=1) / 2).sum() / 25
    found = estimate(batches.mean(values))
    assert found == pytest.approx(interval(values.mean(), variance, 5))
    # what differs from strip to strip is the history of the stream, and not chance
    same = estimate(batches.mean(values - np.repeat([0, 100, 3, -70, 20], 20)))
    assert found.high - found.value == pytest.approx(same.high - same.value)
    anyway = estimate(Batches.consecutive(np.arange(100)).mean(values))
    assert anyway.high - anyway.low > 50 * (found.high - found.low)
    for rows, count in ((1, 1), (2, 2), (3, 2), (7, 6), (9, 8), (11, 10)):
        assert Batches.within_strips(np.arange(rows)).count == count


def test_whole_groups_are_left_out():
    rng = np.random.default_rng(4)
    sizes = rng.integers(3, 12, size=24)
    groups = np.repeat([f"g{k}" for k in rng.permutation(24)], sizes)
    values = np.repeat(rng.normal(size=24), sizes) + 0.1 * rng.normal(size=len(groups))
    found = estimate(Batches.of_groups(groups).mean(values))
    assert found == pytest.approx(interval(values.mean(), *jackknife(values, groups, np.mean)))
    rowwise = estimate(Batches.consecutive(np.arange(len(values)), len(values)).mean(values))
    assert found.high - found.low > 1.5 * (rowwise.high - rowwise.low)


@fewer_examples
@given(seed=st.integers(0, 999), factor=st.sampled_from([1e-250, 1e-9, 0.3, 7.0, 1e12, 1e250]))
def test_units_and_order_of_groups(seed, factor):
    rng = np.random.default_rng(seed)
    groups = rng.integers(2, 9, size=60)
    above, below = rng.exponential(size=(2, 60)) + 0.1
    means = Batches.of_groups(groups).mean
    plain, relative = estimate(means(above)), ratio(means(above), means(below))
    scaled = estimate(means(factor * above))
    assert scaled == pytest.approx([factor * part for part in plain], rel=1e-9)
    assert ratio(means(factor * above), means(factor * below)) == pytest.approx(relative)
    # names in another order, rows in another order
    names, order = rng.permutation(9), rng.permutation(60)
    renamed = Batches.of_groups(names[groups[order]]).mean
    assert estimate(renamed(above[order])) == pytest.approx(plain)
    assert ratio(renamed(above[order]), renamed(below[order])) == pytest.approx(relative)
    assert ratio(means(above), means(above)) == (0, 0, 0)
    assert relative.low <= relative.value <= relative.high
    swapped = ratio(means(below), means(above))  # the interval of a logarithm is symmetric
    assert swapped.low == pytest.approx(1 / (1 + relative.high) - 1)


def test_the_interval_of_a_ratio():
    rng = np.random.default_rng(5)
    below = rng.exponential(size=200) + 0.5
    above = 1.7 * below + 0.2 * rng.normal(size=200)
    means = Batches.consecutive(np.arange(200)).mean
    found = ratio(means(above), means(below))
    batch = np.arange(200) // 20
    pairs = np.column_stack([above, below])

    def linear(some):
        return some[:, 0].mean() / above.mean() - some[:, 1].mean() / below.mean()

    variance, freedom = jackknife(pairs, batch, linear)
    reach = student.ppf(0.975, freedom) * math.sqrt(variance)
    quotient = above.mean() / below.mean()
    ends = [quotient * math.exp(sign * reach) - 1 for sign in (-1, 1)]
    assert found == pytest.approx([quotient - 1, *ends])
    # nearly that of the logarithm of the ratio without each batch
    exact, _ = jackknife(pairs, batch, lambda some: math.log(some[:, 0].mean() / some[:, 1].mean()))
    assert variance == pytest.approx(exact, rel=0.05)
    # pairs cancel: each of the two means alone is far less certain
    alone = estimate(means(above))
    assert found.high - found.low < 0.3 * (alone.high - alone.low)


def test_relative_gap_has_interval_of_the_difference():
    rng = np.random.default_rng(4)
    above = rng.gamma(2.0, 1.0, size=100)
    below = 3 + rng.gamma(2.0, 1.0, size=100)
    means = Batches.consecutive(np.arange(100)).mean
    gaps = (above - below).reshape(10, 10).mean(axis=1)
    reach = student.ppf(0.975, 9) * gaps.std(ddof=1) / np.sqrt(10)
    expected = np.array([gaps.mean(), gaps.mean() - reach, gaps.mean() + reach]) / below.mean()
    assert relative_gap(means(above), means(below)) == pytest.approx(expected)
    assert relative_gap(means(0 * above), means(below)).low == -1  # no error is negative
    assert np.isnan(relative_gap(means(above), means(0 * below)).value)


def test_ratios_of_nothing():
    means = Batches.consecutive(np.arange(100)).mean
    some = np.random.default_rng(3).exponential(size=100)
    low, none, lost = means(some), means(0 * some), means(math.nan * some)
    assert ratio(none, none) == Estimate(0, 0, 0)  # both are perfect
    assert ratio(low, none) == Estimate(math.inf, math.inf, math.inf)
    assert ratio(none, low) == Estimate(-1, -1, -1)
    rare = np.where(np.arange(100) == 3, 1.0, 0.0)  # one error in 100 rows may be chance
    assert ratio(means(rare), none) == Estimate(math.inf, 0, math.inf)
    for unknown in (ratio(lost, low), ratio(low, lost), estimate(lost), estimate(means(some[:0]))):
        assert all(math.isnan(part) for part in unknown)
    infinite = means(np.where(np.arange(100) == 3, math.inf, some))
    assert not infinite.known
    huge = ratio(means(1e200 * some), low)
    assert huge.value == pytest.approx(1e200)
    assert math.isfinite(huge.high)
    wild = ratio(means(np.where(some > 4, 1e300, 1e-300)), low)
    assert wild.low <= wild.value <= wild.high


def test_of_one_batch_only_its_value_is_known():
    one = Batches.consecutive(np.zeros(1, dtype=int)).mean
    assert estimate(one(np.array([3.0])), lowest=0.0) == (3, 0, math.inf)
    assert ratio(one(np.array([3.0])), one(np.array([2.0]))) == (0.5, -1, math.inf)
    person = Batches.of_groups(np.array(["a", "a"])).mean
    assert estimate(person(np.array([1.0, 0.0])), 0.0, 1.0) == (0.5, 0, 1)


def test_variances_as_welch_and_satterthwaite_combine_them():
    (a, m), (b, n) = errors = (0.5, 4), (0.2, 9)
    freedom = (a**2 + b**2) ** 2 / (a**4 / m + b**4 / n)
    reach = student.ppf(0.975, freedom) * math.sqrt(a**2 + b**2)
    assert half_width([*errors]) == pytest.approx(reach)
    assert half_width([(0.5, 4), (0.0, 0)]) == pytest.approx(student.ppf(0.975, 4) * 0.5)
    assert half_width([(0.0, 9)]) == 0
    assert half_width([(0.0, 0)]) == math.inf
    huge = half_width([(1e300, 4), (1e300, 4)])
    assert huge == pytest.approx(student.ppf(0.975, 8) * math.sqrt(2) * 1e300)


def test_chance_in_the_runs():
    rng = np.random.default_rng(6)
    rows = rng.exponential(size=400)
    means = Batches.consecutive(np.arange(400)).mean
    factors = np.array([0.5, 1.0, 3.0])
    runs = mean_over_runs([means(factor * rows) for factor in factors])
    assert runs.runs == 3
    found = estimate(runs)
    average = factors.mean() * rows.mean()
    by_rows, freedom = jackknife(factors.mean() * rows, np.arange(400) // 40, np.mean)
    by_runs = (factors * rows.mean()).std(ddof=1) / math.sqrt(3)
    reach = half_width([(math.sqrt(by_rows), freedom), (by_runs, 2)])
    assert found == pytest.approx((average, average - reach, average + reach))
    # it is the mean over all possible runs that is meant: more of them, more certain
    more = estimate(mean_over_runs([means(factor * rows) for factor in np.tile(factors, 20)]))
    assert more.high - more.low < 0.2 * (found.high - found.low)
    base = means(rows)
    for one, value in ((ratio(runs, base), 0.5), (ratio(base, runs), -1 / 3)):
        assert one.value == pytest.approx(value)
        reach = half_width([(by_runs / average, 2)])  # the rows cancel
        assert math.log1p(one.high) - math.log1p(one.value) == pytest.approx(reach)
    twice = mean_over_runs([means(factor * rows) for factor in (1.0, 5.0)])
    other = 2 * rows.mean()  # the standard error of two runs that differ by 4 means
    for gap, runs_counted, error in (
        (difference(runs, base), 3, by_runs),
        (difference(base, runs), 3, by_runs),
        (difference(runs, twice), 3, math.hypot(by_runs, other)),
        (difference(twice, runs), 3, math.hypot(by_runs, other)),
    ):
        assert (gap.runs, gap.over_runs) == (runs_counted, pytest.approx(error))
    lost = mean_over_runs([means(rows), means(math.nan * rows)])
    assert estimate(lost) == UNKNOWN


def test_the_gap_closed_is_of_pairs():
    rng = np.random.default_rng(2)
    offline = rng.exponential(size=200)
    online = offline + rng.uniform(0.5, 1.5, size=200)
    other = offline + 0.3 * (online - offline) + 0.2 * rng.normal(size=200)
    means = Batches.consecutive(np.arange(200)).mean
    found = gap_closed(means(offline), means(online), means(other))
    rows = np.column_stack([offline, online, other])

    def share(some):
        below, above, it = some.mean(axis=0)
        return (above - it) / (above - below)

    variance, freedom = jackknife(rows, np.arange(200) // 20, share)
    expected = interval(share(rows), variance, freedom)
    assert found.value == pytest.approx(share(rows))
    assert (found.low, found.high) == pytest.approx(expected[1:], rel=0.01)  # it is linearized
    perfect = gap_closed(means(offline), means(online), means(offline))
    assert perfect == pytest.approx((1, 1, 1))
    # several runs of the batch model change the gap, and so the share of it
    batch = mean_over_runs([means(factor * offline) for factor in (0.9, 1.0, 1.1)])
    several = gap_closed(batch, means(online), means(other))
    by_rows = (found.high - found.value) / student.ppf(0.975, 9), 9
    by_runs = found.value * 0.1 * offline.mean() / math.sqrt(3) / (online - offline).mean(), 2
    assert several.value == pytest.approx(found.value)
    assert several.high - several.value == pytest.approx(half_width([by_rows, by_runs]))


def test_a_share_of_no_gap_is_unknown():
    rng = np.random.default_rng(3)
    offline = rng.exponential(size=100)
    means = Batches.consecutive(np.arange(100)).mean
    low, high, lost = means(offline), means(offline + 1), means(np.nan * offline)
    alike, better = means(offline + 0.1 * rng.normal(size=100)), means(offline - 0.5)
    for unknown in (
        *(gap_closed(low, online, low) for online in (low, alike, better)),
        *(gap_closed(low, high, lost), gap_closed(lost, low, low)),
    ):
        assert math.isnan(unknown.value)


def test_a_gap_closed_behind():
    """Both are judged by the same interval, so that no text says one without the other."""
    behind = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        offline, online = rng.exponential(size=(2, 60)) + np.array([[0.0], [0.35]])
        means = Batches.consecutive(np.arange(60)).mean
        closed = gap_closed(means(offline), means(online), means(offline / 2))
        clear = ratio(means(online), means(offline)).low > 0
        assert math.isfinite(closed.value) == clear
        behind += clear
    assert 40 < behind < 160


def autoregressive(rng, runs, rows, correlation):
    """Stationary AR(1) series with variance 1, one in a row."""
    noise = rng.normal(size=(runs, rows))
    noise[:, 1:] *= math.sqrt(1 - correlation**2)
    return lfilter([1.0], [1.0, -correlation], noise, axis=1)


def share_held(truth, intervals):
    """How often the intervals hold the truth."""
    return np.mean([one.low <= truth <= one.high for one in intervals])


RUNS = 2000  # the binomial error of a share of 90% is 0.7%
BARS = [
    *((150, correlation, 0.8) for correlation in (0.0, 0.5, 0.9)),
    *((1000, correlation, 0.9) for correlation in (0.0, 0.9, 0.95)),
    (4000, 0.95, 0.9),
]


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "correlation", "least"), BARS)
def test_how_often_an_interval_holds_the_truth(rows, correlation, least):
    """Of 95% promised, at least 90%; of 150 rows that hardly differ from their neighbors, 80%."""
    rng = np.random.default_rng([rows, int(100 * correlation)])
    shared, own, other = (autoregressive(rng, RUNS, rows, correlation) for _ in range(3))
    below = 5 + 0.7 * shared + 0.7 * own
    above = 2 * (5 + 0.7 * shared + 0.7 * other)  # as good as correlated with it as two learners'
    means = Batches.consecutive(np.arange(rows)).mean
    pairs = [(means(one), means(two)) for one, two in zip(above, below, strict=True)]
    held = {
        "mean": share_held(10, (estimate(one) for one, _ in pairs)),
        "ratio": share_held(1, (ratio(*pair) for pair in pairs)),
        "difference": share_held(5, (estimate(difference(*pair)) for pair in pairs)),
    }
    assert min(held.values()) >= least, held
    if correlation == 0:  # and no more than promised
        assert max(held.values()) <= 0.97, held


HISTORIES = {  # the logarithm of the loss along the stream, at its time and at the end
    "a trend": (lambda place: place, lambda place: 2 - 2 * place),
    "three classes": (
        lambda place: np.array([0.0, 0.5, -0.3])[(3 * place).astype(int)],
        lambda place: np.array([2.5, 1.0, 0.0])[(3 * place).astype(int)],
    ),
    "ten classes": (
        lambda place: np.array([0.1, -0.1, 0.6, 0.1, -0.5, 0.4, 1.3, 0.9, -0.7, -1.3])[
            (10 * place).astype(int)
        ],
        lambda place: 2 - 2 * place + 0.8 * np.cos(7 * (10 * place).astype(int)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize(("rows", "correlation", "least"), BARS)
def test_how_often_the_interval_holds_the_truth(history, rows, correlation, least):
    """The history of the stream is the same in every run; which rows came is not."""
    rng = np.random.default_rng([rows, int(100 * correlation), len(history)])
    shared, own, other = (autoregressive(rng, RUNS, rows, correlation) for _ in range(3))
    at_its_time, at_the_end = (curve(np.arange(rows) / rows) for curve in HISTORIES[history])
    first = np.exp(at_its_time + 0.56 * shared + 0.42 * own)
    later = np.exp(at_the_end + 0.56 * shared + 0.42 * other)
    truth = np.exp(at_the_end).mean() / np.exp(at_its_time).mean() - 1
    strips = Batches.within_strips(np.arange(rows)).mean
    found = [ratio(strips(one), strips(two)) for one, two in zip(later, first, strict=True)]
    assert share_held(truth, found) >= least
    # the stream's history is not taken for chance: the intervals are shorter than with it
    plain = Batches.consecutive(np.arange(rows)).mean
    wide = [ratio(plain(one), plain(two)) for one, two in zip(later, first, strict=True)]
    lengths = [np.median([math.log((1 + i.high) / (1 + i.low)) for i in some])
               for some in (found, wide)]  # fmt: skip
    assert lengths[0] < lengths[1]
