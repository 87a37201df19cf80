"""Shifts by group, against loops over rows."""

import numpy as np
import pytest
import torch

import retarget as rt
from retarget.diagnosis.measure.groups import directions, group_shift, partition
from retarget.diagnosis.measure.learn import learn_all
from support.diagnosis_streams import as_stream, both_kernels, by_hand, classes
from support.problems import assert_same, make_stream


@pytest.mark.parametrize("lr", [0.2, 1.1])
def test_the_own_part_is_in_eq_11(lr):
    stream, gamma, learner = make_stream(12, 2, seed=3), 0.7, rt.SGD(lr=lr)
    E = rt.prequential_errors(stream.K, stream.Y, learner)
    own = (lr * (gamma + stream.K.diagonal())[:, None] - 1) * E
    each = as_stream(stream.features, stream.Y, groups=[f"{i:02}" for i in range(12)])
    for kernel in both_kernels(stream):
        learned = learn_all(kernel, learner, by_hand(gamma), 4, 0.1, limit=1.0)
        found = group_shift(kernel, partition(each), learned.dual, learned.effective, 1)
        assert_same(found.own, np.linalg.norm(own, axis=1))
        assert (found.size[np.tril_indices(12)] == 0).all()  # no row is moved by earlier ones
        for i, j in [(0, 11), (3, 7)]:
            moved = stream.K[i, j] * lr * E[j]
            assert found.size[i, j] == pytest.approx(np.linalg.norm(moved))
            along = moved @ stream.Y[i] / np.linalg.norm(stream.Y[i])
            assert found.pull[i, j] == pytest.approx(along)
    numbers = as_stream(np.zeros((3, 1)), np.array([[-2.0], [0.0], [5.0]]))
    assert directions(torch.from_numpy(numbers.Y)).tolist() == [[-1.0], [0.0], [1.0]]


@pytest.mark.parametrize("batch", [1, 4])
def test_sizes_and_pulls_are_means(batch):
    stream, learner, gamma = (
        classes(30),
        rt.SGD(lr=0.3, batch_size=batch, momentum=0.5, reduction="sum"),
        0.4,
    )
    problem = make_stream(30, 3, seed=0)
    problem.Y = stream.Y
    full, features = both_kernels(problem)
    K = problem.K
    learned = learn_all(full, learner, by_hand(gamma), 2 * batch, 0.1, limit=1.0)
    groups = partition(stream)
    C, Ye = learned.dual.numpy(), learned.effective.numpy()
    assert_same(Ye, rt.effective_targets(K, stream.Y, learner, gamma))
    for kernel in (full, features):
        found = group_shift(kernel, groups, learned.dual, learned.effective, batch)
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


def test_groups_in_order_of_appearance():
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
