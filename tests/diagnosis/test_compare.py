"""Rows held out, intervals against plain resampling, shifts by group against loops over rows."""

import math
from dataclasses import replace

import numpy as np
import pytest

import retarget as rt
from retarget.diagnosis.measure import compare
from retarget.diagnosis.measure.choose import learn_all
from retarget.diagnosis.measure.compare import (
    Bootstrap,
    any_of,
    directions,
    estimate,
    gap_closed,
    group_shift,
    held_out,
    held_out_rows,
    partition,
    ratio,
    score,
    split,
    squared_errors,
)
from retarget.diagnosis.options import Options
from retarget.diagnosis.result import Estimate
from support.diagnosis_streams import as_stream, both_kernels, by_hand, classes, drifting
from support.problems import assert_same, make_stream


def test_the_last_part_is_held_out():
    stream = replace(classes(50), times=np.arange(50).astype(str))
    parted = split(stream, None, Options(test_share=0.3))
    assert parted.test.rows.tolist() == list(range(36, 51))
    assert parted.test.times.tolist() == stream.times[35:].tolist()
    assert parted.test.groups.tolist() == stream.groups[35:].tolist()
    assert (np.vstack([parted.stream.X, parted.test.X]) == stream.X).all()
    assert [held_out_rows(rows, 0.2) for rows in (2, 3, 4, 10, 12, 1000)] == [0, 1, 1, 2, 2, 200]
    assert [held_out_rows(*asked) for asked in ((10, 0.99), (3, 0.9), (3, 0.01))] == [8, 1, 1]
    stream, test = drifting(10), drifting(4, seed=1)
    assert split(stream, test, Options()) == (stream, test, "test")
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
    assert (Bootstrap(307, seed=2).means(values) != Bootstrap(307, seed=1).means(values)).any()
    width = high - low
    # from 50 groups, the spread itself is known to a tenth only
    assert found.low == pytest.approx(low, abs=width * (0.06 if groups > 307 else 0.2))
    assert found.high == pytest.approx(high, abs=width * (0.06 if groups > 307 else 0.2))


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
        *(gap_closed(low, high, lost), gap_closed(lost, low, low), ratio(low, 0 * low)),
    ):
        assert math.isnan(unknown.value)
    assert ratio(2 * low, low) == pytest.approx(Estimate(1, 1, 1))


def test_runs_that_differ_by_luck_have_the_range_of_all_of_them():
    rows = np.random.default_rng(6).exponential(size=400)
    means = Bootstrap(400, seed=1).means
    runs = [means(factor * rows) for factor in (0.5, 1.0, 3.0)]
    found = estimate(any_of(runs, seed=0))
    assert found.value == pytest.approx(1.5 * rows.mean())
    assert found.low < estimate(runs[0]).high
    assert found.high > estimate(runs[2]).low  # one run alone would have told a third of it
    assert math.isnan(estimate(any_of([runs[1], means(np.nan * rows)], 0)).value)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.37])
def test_random_rows_hold_the_same_share_of_every_class(share):
    labels = np.repeat([4, 1, 9], [200, 90, 40])  # sorted by class: the worst case
    options = Options(test_share=share, seed=3)
    held = held_out(330, "random", options, labels)
    assert held.sum() == held_out_rows(330, share)
    for label, size in ((4, 200), (1, 90), (9, 40)):
        assert abs((held & (labels == label)).sum() - share * size) <= 1
    assert (held == held_out(330, "random", options, labels)).all()
    assert (held != held_out(330, "random", replace(options, seed=4), labels)).any()
    assert held_out(330, "random", options, None).sum() == held.sum()
    assert not held_out(330, "progressive", options, labels).any()


def test_scores_are_in_the_users_units_and_count_right_classes():
    Y = np.eye(3)[[0, 1, 2, 1]]
    errors = np.zeros((4, 3))
    errors[3] = Y[3] - [0.2, 0.1, 0.9]  # taken for the last class
    labels = as_stream(np.zeros((4, 1)), Y, "classification")
    error, accuracy = score(errors, Y, labels, Bootstrap(4, seed=0))
    assert accuracy.value == 0.75
    assert error.value == pytest.approx((0.04 + 0.81 + 0.81) / 12)
    numbers = as_stream(np.zeros((2, 1)), np.zeros((2, 2)), scales=[2.0, 10.0])
    assert squared_errors(np.array([[1.0, 0.0], [0.0, 1.0]]), numbers).tolist() == [2.0, 50.0]
    assert score(errors[:, :2], Y[:, :2], numbers, Bootstrap(4, 0))[1] is None
    lost = score(np.full((4, 3), np.inf), Y, labels, Bootstrap(4, seed=0))
    assert all(math.isnan(part.value) for part in lost)


@pytest.mark.parametrize("lr", [0.2, 1.1])
def test_for_plain_sgd_the_own_part_is_the_last_line_of_eq_11(lr):
    stream, gamma, learner = make_stream(12, 2, seed=3), 0.7, rt.SGD(lr=lr)
    E = rt.prequential_errors(stream.K, stream.Y, learner)
    own = (lr * (gamma + stream.K.diagonal())[:, None] - 1) * E
    each = as_stream(stream.features, stream.Y, groups=[f"{i:02}" for i in range(12)])
    for kernel in both_kernels(stream):
        learned = learn_all(kernel, learner, by_hand(gamma), 4, 0.1, limit=1.0)
        shift = learned.effective - kernel.Y
        found = group_shift(kernel, each, partition(each), learned.dual, shift, 1)
        assert_same(found.own, np.linalg.norm(own, axis=1))
        assert (found.size[np.tril_indices(12)] == 0).all()  # no row is moved by earlier ones
        for i, j in [(0, 11), (3, 7)]:
            moved = stream.K[i, j] * lr * E[j]
            assert found.size[i, j] == pytest.approx(np.linalg.norm(moved))
            along = moved @ stream.Y[i] / np.linalg.norm(stream.Y[i])
            assert found.pull[i, j] == pytest.approx(along)
    numbers = as_stream(np.zeros((3, 1)), np.array([[-2.0], [0.0], [5.0]]))
    assert directions(numbers).tolist() == [[-1.0], [0.0], [1.0]]


@pytest.mark.parametrize("batch", [1, 4])
def test_sizes_and_pulls_are_means_over_the_rows_of_a_group(batch):
    stream, learner, gamma = classes(30), rt.SGD(lr=0.3, batch_size=batch, momentum=0.5), 0.4
    problem = make_stream(30, 3, seed=0)
    problem.Y = stream.Y
    full, features = both_kernels(problem)
    K = problem.K
    learned = learn_all(full, learner, by_hand(gamma), 2 * batch, 0.1, limit=1.0)
    groups = partition(stream)
    C, Ye = learned.dual.numpy(), learned.effective.numpy()
    assert_same(Ye, rt.effective_targets(K, stream.Y, learner, gamma))
    for kernel in (full, features):
        found = group_shift(kernel, stream, groups, learned.dual, learned.effective - full.Y, batch)
        assert found.names == ("class 0", "class 1", "class 2")
        assert found.counts.tolist() == [10, 10, 10]
        for h in range(3):
            for g in range(3):
                lengths, pulls = [], []
                for i in np.flatnonzero(groups.numbers == h):
                    later = [
                        j for j in np.flatnonzero(groups.numbers == g) if j // batch > i // batch
                    ]
                    moved = K[i, later] @ C[later]
                    lengths.append(np.linalg.norm(moved))
                    pulls.append(moved[h])  # the own class's output
                assert found.size[h, g] == pytest.approx(np.mean(lengths))
                assert found.pull[h, g] == pytest.approx(np.mean(pulls))


def test_groups_come_in_order_of_appearance_the_small_ones_of_many_as_one():
    some = as_stream(np.zeros((5, 1)), np.ones((5, 1)), groups=list("babca"))
    assert partition(some).names == ("b", "a", "c")
    assert partition(some).numbers.tolist() == [0, 1, 0, 2, 1]
    labels = [f"{i}" for i in range(40)] + [f"{i}" for i in range(35, 4, -1)] * 2
    n = len(labels)
    many = partition(as_stream(np.zeros((n, 1)), np.ones((n, 1)), groups=labels))
    assert len(many.names) == 30
    assert many.names[:2] == ("5", "6")
    assert many.names[-1] == "the other 11"
    small = [f"{i}" for i in (*range(5), *range(36, 40))]
    for number, label in zip(many.numbers, labels, strict=True):
        assert many.names[number] == label or number == 29
        assert label not in small or number == 29
    # without groups the stream is cut into parts
    for n, count in ((3, 3), (25, 10)):
        parts = partition(as_stream(np.zeros((n, 1)), np.ones((n, 1))))
        assert (parts.names[0], len(parts.names)) == ("part 1", count)
        assert (np.diff(parts.numbers) >= 0).all()
        assert set(np.bincount(parts.numbers)) <= {n // count, n // count + 1}
