"""Streams of tasks: every sample where it belongs, under the right label."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retarget.errors import InvalidInputError, RetargetError
from retarget.lab import (
    LabeledData,
    TaskStream,
    class_incremental,
    classes_in_tasks,
    domain_pairs,
    shuffled,
)

CLASSES = (0, 2, 3, 5, 6, 9)  # not all numbers are a class


def data(per_class=6, test_per_class=3):
    """A sample's first number says its class, its second which one of the class it is."""

    def split(n, offset):
        labels = np.random.default_rng(1).permutation(np.repeat(CLASSES, n))
        numbers = np.array([np.sum(labels[:i] == label) for i, label in enumerate(labels)])
        return torch.tensor(np.stack([labels, numbers + offset], axis=1) * 1.0), labels

    return LabeledData(*split(per_class, 0), *split(test_per_class, 100))


def tasks_of(part):
    """The samples (class, number) and labels of each task."""
    X = part.inputs[part.rows]
    return [(X[span].long(), part.labels[span]) for span in part.spans()]


GIVEN = [[9, 0, 3], [2], [6, 5]]
# How a stream is made, and the number of classes in each of its tasks.
STREAMS = {
    "pairs": (domain_pairs, [2, 2, 2]),
    "one new": (lambda d, seed, each: class_incremental(d, seed, 1, each), [1] * 6),
    "three new": (lambda d, seed, each: class_incremental(d, seed, 3, each), [3, 3]),
    "given": (lambda d, seed, each: classes_in_tasks(d, seed, GIVEN, each), [3, 1, 2]),
    "shuffled": (shuffled, [6]),
}


@pytest.mark.parametrize("per_class", [None, 4])
@pytest.mark.parametrize("name", STREAMS)
def test_every_sample_is_in_its_task(name, per_class):
    make, counts = STREAMS[name]
    stream = make(data(), 3, per_class)
    assert (stream.classes, stream.tasks) == (2 if name == "pairs" else 10, len(counts))
    assert stream.train.sizes == tuple(count * (per_class or 6) for count in counts)
    assert stream.test.sizes == tuple(count * 3 for count in counts)
    classes = []
    for (X, y), tested in zip(tasks_of(stream.train), tasks_of(stream.test), strict=True):
        meaning = dict(zip(y.tolist(), X[:, 0].tolist(), strict=True))
        assert len(set(y.bincount().tolist()) - {0}) == 1  # as many of each class
        for samples, labels in ((X, y), tested):
            assert [meaning[label] for label in labels.tolist()] == samples[:, 0].tolist()
            assert len({tuple(row) for row in samples.tolist()}) == len(samples)  # nobody twice
        assert sorted(meaning) == ([0, 1] if name == "pairs" else sorted(meaning.values()))
        classes.append(set(meaning.values()))
    assert set.union(*classes) == set(CLASSES)
    assert name != "given" or classes == [set(task) for task in GIVEN]
    same, other = (make(data(), seed, per_class).train.rows for seed in (3, 4))
    assert torch.equal(same, stream.train.rows)
    assert not torch.equal(other, stream.train.rows)


def test_tasks_are_shuffled_within():
    for X, y in tasks_of(domain_pairs(data(60), 0).train):
        assert 40 < (y.diff() != 0).sum() < 80  # of 119: coin throws, not blocks and not turns
        assert X[:, 1].diff().min() < 0


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    classes=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_from_tasks_keeps_everything_in_order(sizes, classes, seed):
    rng = np.random.default_rng(seed)
    tasks = [(rng.normal(size=(n, 2, 3)), rng.integers(classes, size=n)) for n in sizes]
    stream = TaskStream.from_tasks(tasks, classes=classes)
    part = stream.train
    assert part.sizes == tuple(sizes)
    for (X, y), span in zip(tasks, part.spans(), strict=True):
        np.testing.assert_array_equal(part.inputs[part.rows][span], X)
        np.testing.assert_array_equal(part.labels[span], y)
    assert torch.equal(stream.targets(), torch.eye(classes, dtype=torch.float64)[part.labels])
    assert stream.test is part


X, Y = torch.zeros(3, 2), [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "tasks is empty; expected .X, y. for each task"),
        (([(X, Y)], []), "test is empty"),
        (([(X, Y)], [(X, Y)] * 2), "test has 2 tasks, but there are 1 to learn"),
        (([(X, Y), (X[:, :1], Y)],), r"shapes \[\(1,\), \(2,\)\]; expected one shape"),
        (([(X, Y)], [(X.double(), Y)]), "test samples are torch.float64 .* torch.float32"),
        (([(X, Y)], [(X, [0, 4, 1])], 4), "a label is 4; expected 0 to 3"),
        (([(X, Y[:2])],), r"labels of tasks\[0\] have shape \(2,\)"),
        (([(X, [0, -1, 2])],), r"labels of tasks\[0\] hold -1"),
        (([(X[:0], [])],), r"tasks\[0\] has shape \(0, 2\)"),
        (([(X[:, 0], Y)],), r"tasks\[0\] has shape \(3,\)"),
        (([(X / 0, Y)],), r"tasks\[0\] holds nan in row 0"),
        (([(X.long(), Y)],), r"tasks\[0\] has dtype int64"),
        (([(X, [0.0, 1.0, 2.0])],), r"labels of tasks\[0\] have dtype torch.float.*"),
        (([(X, torch.tensor([True] * 3))],), "have dtype torch.bool; expected whole"),
    ],
)
def test_tasks_without_a_meaning(arguments, message):
    with pytest.raises(RetargetError, match=message):
        TaskStream.from_tasks(*arguments)


FEW_TESTED = LabeledData(torch.zeros(4, 2), range(4), X[:1], [2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: domain_pairs(d, 0, 7), "per_class is 7, but there are 6 samples of class"),
        (lambda d: domain_pairs(d, 0, 0), "per_class is 0, .* expected 1 to 6"),
        (lambda d: classes_in_tasks(d, 0, [[0, 2, 3], [5, 6, 6]]), "each class in exactly one"),
        (lambda d: classes_in_tasks(d, 0, [[0, 2], [5, 6]]), "tasks have the classes .0, 2, 5"),
        (lambda d: class_incremental(d, 0, 4), "classes_a_task is 4"),
        (lambda d: class_incremental(d, 0, 0), "classes_a_task is 0; expected a divisor"),
        (lambda d: domain_pairs(LabeledData(X, Y, X, Y), 0), "there are 3 classes; expected an"),
        (lambda d: LabeledData(X, Y, X, [0, 1, 7]), "test_labels holds 7, which labels does not"),
        (lambda d: LabeledData(X, Y, X, [0, 1]), "labels of test_inputs have shape"),
        (lambda d: shuffled(LabeledData(X, Y, X[:, :1], Y), 0), "test samples are torch.float32"),
        (lambda d: domain_pairs(FEW_TESTED, 0), "task [01] has no test samples"),
    ],
)
def test_streams_that_the_data_cannot_make(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make(data())
