"""Which rows are held out for which question."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.diagnosis.measure.holdout import (
    complete_folds,
    fold_count,
    held_out,
    held_out_rows,
    next_rows,
    split,
)
from support.diagnosis_options import options_for
from support.diagnosis_streams import as_stream, classes, drifting
from support.problems import fewer_examples


def test_a_tenth_and_thirty_rows():
    assert [held_out_rows(rows, 0.1) for rows in (4, 12, 100, 149, 150, 299, 1000)] == [
        1, 2, 20, 29, 30, 30, 100,
    ]  # fmt: skip
    assert held_out_rows(1000, 0.25) == 250


@fewer_examples
@given(
    rows=st.integers(4, 700),
    count=st.integers(1, 9),
    share=st.floats(0.02, 0.4),
    seed=st.integers(0, 99),
)
def test_both_questions_have_rows_of_their_own(rows, count, share, seed):
    labels = np.sort(np.random.default_rng(seed).integers(count, size=rows))
    options = options_for(test_share=share, seed=seed)
    for classes_given in (None, labels):
        held = held_out(rows, "both", options, classes_given)
        coming = held.coming
        assert (np.diff(coming) == 1).all()
        assert coming[-1] == rows - 1  # the last rows, without a gap
        for fold in held.folds:
            assert (np.diff(fold) > 0).all()
            assert not set(fold) & set(coming)
            assert rows - len(fold) - len(coming) >= 2
            assert rows < 200 or share > 0.2 or len(fold) >= 30
            if classes_given is not None:  # no class is lost
                learned = np.setdiff1d(np.arange(rows), np.append(fold, coming))
                assert set(labels[fold]) <= set(labels[learned])
        everywhere = np.concatenate([*held.folds, [-1]])
        assert len(np.unique(everywhere)) == len(everywhere)  # no row is in two folds
        assert held.not_learned.tolist() == [*(held.folds[0] if held.folds else []), *coming]
    again = held_out(rows, "both", options, labels)
    assert (again.coming == held.coming).all()
    assert all((a == b).all() for a, b in zip(again.folds, held.folds, strict=True))


def test_rows_come_from_all_over():
    held = held_out(1000, "whole", options_for(seed=3), None)
    assert not len(held.coming)
    for fold in held.folds:
        assert (fold // 10 == np.arange(100)).all()  # one of each strip of ten rows
        assert len(np.unique(fold % 10)) > 5  # at random within it
    assert sorted(np.concatenate(held.folds)) == list(range(1000))  # each row in one of the folds
    other = held_out(1000, "whole", options_for(seed=4), None)
    assert (other.folds[0] != held.folds[0]).any()


def test_there_are_fewer_folds_the_longer_the_stream():
    lengths = (100, 1000, 3000, 5000, 10_000, 10**6)
    assert [fold_count(rows) for rows in lengths] == [10, 10, 10, 10, 3, 1]
    assert [complete_folds(rows) for rows in lengths] == [10, 10, 8, 1, 1, 1]
    assert len(held_out(10_000, "whole", options_for(), None).folds) == 3
    # every row of a short stream is asked about, for as long as two rows are left to learn
    for rows in (4, 5, 9, 60):
        held = held_out(rows, "whole", options_for(), None)
        asked = np.unique(np.concatenate(held.folds))
        assert len(asked) >= min(rows, 10 * len(held.folds[0])) - len(held.folds[0])


def test_every_class_has_its_share():
    labels = np.repeat([4, 1, 9], [400, 180, 80])  # sorted by class: the worst case
    whole = held_out(660, "whole", options_for(), labels).folds[0]
    for label, size in ((4, 400), (1, 180), (9, 80)):
        of_class = whole[labels[whole] == label]
        assert abs(len(of_class) - size / 10) <= 1
        halves = (of_class < np.flatnonzero(labels == label)[size // 2]).sum()
        assert abs(halves - size / 20) <= 1
    rare = np.append(np.zeros(300), [1.0])  # a class of one row is learned, not asked about
    for seed in range(20):
        options = options_for(seed=seed, test_share=0.4)
        assert not any(300 in fold for fold in held_out(301, "whole", options, rare).folds)


def test_a_class_in_two_strips():
    """Two rows of a class may both be drawn, one from each strip."""
    labels = np.sort(np.append(np.zeros(97), [1, 1, *np.full(101, 2)]))
    for seed in range(200):
        for fold in held_out(200, "whole", options_for(seed=seed), labels).folds:
            assert (labels[fold] == 1).sum() < 2


def test_a_quarter_of_classes_is_left():
    labels = np.repeat(np.arange(10), 100)  # the last tenth is all of the last class
    assert len(next_rows(1000, 0.1, None)) == 100
    assert next_rows(1000, 0.1, labels).tolist() == list(range(925, 1000))
    # whatever it takes
    labels = np.append(np.zeros(985), np.repeat([1, 2], [3, 12]))
    assert next_rows(1000, 0.1, labels).tolist() == list(range(991, 1000))
    labels = np.append(np.zeros(998), [1, 1])
    assert next_rows(1000, 0.1, labels).tolist() == [999]
    # a class of one row cannot be both learned and asked about: it is reported as unseen
    labels = np.append(np.zeros(950), np.arange(1, 51))
    assert len(next_rows(1000, 0.1, labels)) == 100


def test_one_question_alone_a_test_set_and_none():
    stream = drifting(50)
    parted = split(stream, None, options_for(evaluation="next", test_share=0.3))
    assert list(parted.asked) == ["next"]
    assert parted.asked["next"].rows.tolist() == list(range(36, 51))
    assert (parted.previous == stream.Y[34:49]).all()
    both = split(stream, None, options_for())
    assert list(both.asked) == ["whole", "next"]
    assert split(stream, None, options_for(evaluation="whole")).previous is None
    kept = np.concatenate([both.stream.rows, *(one.rows for one in both.asked.values())])
    assert sorted(kept) == list(range(1, 51))
    assert (np.diff(both.stream.rows) > 0).all()
    test = drifting(4, seed=1)
    given_test = split(stream, test, options_for())
    assert (list(given_test.asked), given_test.stream.X.shape) == (["test"], stream.X.shape)
    assert split(stream, None, options_for(evaluation="progressive")).progressive


@pytest.mark.parametrize("evaluation", ["both", "whole"])
def test_earlier_rows_are_no_copy(evaluation):
    stream = drifting(60)
    past = split(stream, None, options_for(evaluation=evaluation)).past
    assert np.shares_memory(past.X, stream.X)
    assert past.rows.tolist() == list(range(1, len(past) + 1))
    assert len(past) == (60 if evaluation == "whole" else 48)


def test_whole_groups_are_held_out():
    stream = replace(
        drifting(400), groups=np.array([f"g{i % 20}" for i in range(400)]), group_column="g"
    )
    parted = split(stream, None, options_for(hold_out="group", seed=2))
    whole, coming = (set(one.groups) for one in parted.asked.values())
    assert 2 <= len(whole) <= 3
    assert not whole & set(parted.stream.groups)
    assert not whole & coming
    assert sum(len(one) for one in parted.asked.values()) + len(parted.stream) == 400
    # every fold holds out other groups, as a whole, and all groups are held out in some fold
    groups = [set(parted.past.groups[fold]) for fold in parted.folds]
    assert sum(map(len, groups)) == len(set.union(*groups))
    assert len(set.union(*groups)) >= 19
    for number, names in enumerate(groups):
        assert not names & set(parted.past.groups[parted.learned_in(number)])
    first = parted.past.part(parted.learned_in(0))
    assert (first.rows == parted.stream.rows).all()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"options": options_for(evaluation="test")}, r"there is no test set"),
        ({"options": options_for(evaluation="progressive"), "test": drifting(5)}, r"is a test set"),
        ({"options": options_for(hold_out="group")}, r"names the groups; give group .--group."),
        ({"options": options_for(hold_out="group"), "stream": classes(30)}, r"only 3; expected"),
        ({"stream": drifting(3)}, r"there are 3 rows; expected at least 4 .*=.progressive"),
        ({"stream": drifting(3), "test": drifting(5, 2)}, r"2 features and 2 targets, the stream"),
        ({"stream": as_stream(np.ones((3, 1)), np.ones((2, 1)))}, r"Y of shape \(2, 1\)"),
        ({"stream": as_stream(np.ones((3, 0)), np.ones((3, 1)))}, r"X of shape \(3, 0\)"),
        ({"stream": as_stream(np.array([[0.0], [np.nan], [1.0]]), np.ones((3, 1)))},
         r"not a finite number in row 2 of X"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_compared_on_are_refused(change, match):
    with pytest.raises(rt.errors.InvalidInputError, match=match):
        split(**({"stream": drifting(9), "test": None, "options": options_for()} | change))


def test_three_rows_can_be_scored_on_the_way():
    assert split(drifting(3), None, options_for(evaluation="progressive")).progressive
