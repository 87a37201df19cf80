"""Learners of several processes, here of several threads, end with everything that all learned."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import retarget as rt
from retarget.errors import InvalidInputError
from support.problems import assert_same
from support.streaming_objects import saved


def made(c=2):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 4))
    Y = X @ rng.normal(size=(4, c)) + 0.2 * rng.normal(size=(40, c)) + 0.7
    return X, Y, rng.normal(size=(6, 4)), rng.uniform(0.3, 3.0, size=40)


def ridge(**options):
    return rt.StreamingRidge(lambda X: np.hstack([X, X**2]), 0.4, **options)


def all_reduced(learners):
    """What `torch.distributed.all_reduce` does in as many processes, here in as many threads."""
    n, given, barrier = len(learners), {}, threading.Barrier(len(learners))

    def run(rank):
        def add(tensor):
            given[rank] = tensor.clone()
            barrier.wait(10)
            total = sum(given[each] for each in range(n))
            barrier.wait(10)
            tensor.copy_(total)

        try:
            learners[rank].all_reduce(add)
        except InvalidInputError as error:
            errors.append(error)

    errors = []
    with ThreadPoolExecutor(n) as threads:
        list(threads.map(run, range(n)))
    return errors


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_all_processes_end_with_everything(intercept, offset):
    X, Y, queries, weights = made()
    thing = rt.StreamingRidge(rt.Linear(), 0.4, intercept=intercept)
    parts = (slice(0, 5), slice(5, 5), slice(5, 31), slice(31, None))  # one has nothing
    learners = [thing.empty().learn(X[r] + offset, Y[r], weights[r]) for r in parts]
    assert all_reduced(learners) == []
    whole = thing.empty().learn(X + offset, Y, weights)
    tolerance = 1e-10 if intercept or not offset else 1e-5
    for each in learners:
        assert each.samples == 40
        assert_same(each.predict(queries + offset), whole.predict(queries + offset), tolerance)
        each.forget(X[:3] + offset, Y[:3], weights[:3])


def test_processes_that_do_not_agree_all_say_so(tmp_path):
    X, Y, _, _ = made()
    for other in (
        ridge().learn(X, Y[:, 0]),
        ridge().learn(X[:, :3], Y),
        ridge(intercept=True).learn(X, Y),
    ):
        pair = ridge().learn(X, Y), other
        before = [saved(each, tmp_path / "state") for each in pair]
        errors = all_reduced(pair)
        assert len(errors) == 2
        assert all("expected the same in every process" in str(error) for error in errors)
        assert [saved(each, tmp_path / "state") for each in pair] == before


def test_types_and_axes_of_all_processes():
    X, Y, queries, _ = made(c=1)
    pair = [ridge().learn(X, Y[:, 0].astype(np.float32)), ridge()]
    assert all_reduced(pair) == []
    assert all(each.predict(queries).shape == (6,) for each in pair)
    assert all(each.predict(queries).dtype == np.float32 for each in pair)
    pair[1].learn(X, Y)
    assert all_reduced(pair) == []
    assert all(each.predict(queries).dtype == np.float64 for each in pair)
    assert all_reduced([ridge(), ridge()]) == []
