"""StreamingRidge is ridge regression on what was learned, in any order, less what was forgotten."""

import copy
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from types import FunctionType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from torch import nn

import retarget as rt
from retarget.errors import (
    InvalidInputError,
    InvalidTypeError,
    NotPositiveDefiniteError,
    PrecisionWarning,
)
from retarget.kernels.stationary import RandomFourier
from retarget.state_files import read_state, write_state
from retarget.streaming.ridge import rows as rows_module
from support.oracles import ridge as oracle
from support.problems import assert_same
from support.streaming_objects import saved

both = pytest.mark.parametrize("intercept", [False, True])


def random_stream(n=40, d=4, c=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    Y = X @ rng.normal(size=(d, c)) + np.sin(X[:, :1]) + 0.2 * rng.normal(size=(n, c)) + 0.7
    return X, Y, rng.normal(size=(6, d)), rng.uniform(0.3, 3.0, size=n)


def cubes(X):
    join = np.hstack if isinstance(X, np.ndarray) else torch.hstack
    return join([X, X**2, X**3])


def learner(**options):
    return rt.StreamingRidge(cubes, **{"gamma": 0.4} | options)


@pytest.fixture
def small_portions(monkeypatch):
    monkeypatch.setitem(rows_module.PORTION, "cpu", 40)


@st.composite
def streams(draw):
    n = draw(st.integers(2, 30))
    order = draw(st.permutations(range(n)))
    cuts = sorted(draw(st.sets(st.integers(0, n), max_size=4)))
    return random_stream(
        n, draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(0, 99))
    ), [np.array(part, dtype=int) for part in np.split(np.array(order), cuts)]


# --- the solution


@given(
    stream=streams(),
    intercept=st.booleans(),
    weighted=st.sampled_from(["not", "each", "alike"]),
    gamma=st.floats(0.01, 9),
)
def test_any_order_and_portions_give_the_literal_solution(stream, intercept, weighted, gamma):
    (X, Y, queries, weights), portions = stream
    thing = learner(gamma=gamma, intercept=intercept)
    given = {"not": np.ones_like(weights), "each": weights, "alike": np.full_like(weights, 2.0)}
    for rows in portions:
        one = {"not": None, "each": weights[rows], "alike": 2.0}[weighted]
        thing.learn(X[rows], Y[rows], one)
    expected = oracle.predictions(cubes(X), Y, cubes(queries), gamma, given[weighted], intercept)
    assert_same(thing.predict(queries), expected, 1e-9)
    assert thing.samples == len(X)


def test_no_ridge_where_features_depend_on_each_other():
    X, Y, queries, _ = random_stream(n=5, d=6)
    more, targets, _, _ = random_stream(n=50, d=6, seed=1)
    thing = rt.StreamingRidge(cubes, 0.0).learn(X, Y)
    with pytest.raises(NotPositiveDefiniteError, match="gamma = 0 is too small to decide"):
        thing.predict(queries)
    thing.learn(more, targets)  # it can still go on
    all_of_them = cubes(np.vstack([X, more])), np.vstack([Y, targets])
    assert_same(thing.predict(queries), oracle.predictions(*all_of_them, cubes(queries), 0), 1e-7)


def test_random_features_of_a_gaussian_kernel(tmp_path):
    X, Y, queries, _ = random_stream()
    thing = rt.StreamingRidge(rt.RBF(1.5), 0.5, features=12, seed=4).learn(X, Y)
    assert repr(thing) == "StreamingRidge(gamma=0.5, samples=40)"
    assert thing.nbytes == 8 * (12 + 2 + 12 * 12 + 12 * 2 + 2)
    assert (thing.empty().samples, thing.empty().nbytes) == (0, 0)
    phi, asked = (RandomFourier(rt.RBF(1.5), 12, 4)(each).numpy() for each in (X, queries))
    thing.save(tmp_path / "state")
    loaded = rt.StreamingRidge.load(tmp_path / "state", rt.RBF(1.5))
    for each in (thing, thing.empty().learn(X, Y), loaded):
        assert_same(each.predict(queries), oracle.predictions(phi, Y, asked, 0.5))
        with pytest.raises(InvalidInputError, match="sample of X is 3; expected 4"):
            each.predict(queries[:, :3])


# --- cross-validation


@given(stream=streams(), intercept=st.booleans())
def test_the_ridge_depends_on_samples_alone(stream, intercept):
    (X, Y, queries, _), portions = stream
    asked, whole = (rt.StreamingRidge(cubes, intercept=intercept) for _ in range(2))
    for rows in portions:
        asked.learn(X[rows], Y[rows])
        if asked.samples:
            asked.predict(queries)  # chooses, for the while being
    whole.learn(X, Y)
    assert asked.gamma_ == pytest.approx(whole.gamma_, rel=1e-12)
    assert_same(asked.predict(queries), whole.predict(queries), 1e-6)


@both
def test_the_ridge_by_the_hat_matrix(intercept):
    X, Y, _, weights = random_stream(n=30, d=6)
    Y = Y + 3 * np.random.default_rng(1).normal(size=Y.shape)
    gamma = rt.StreamingRidge(cubes, intercept=intercept).learn(X, Y, weights).gamma_
    scores = [
        oracle.cross_validation(cubes(X), Y, gamma * factor, weights, intercept)
        for factor in (0.3, 1.0, 3.0)
    ]
    assert min(scores) >= scores[1] * 0.999


# --- what sums allow


@pytest.mark.parametrize(
    ("intercept", "gamma", "portion"), [(False, 0.4, 40), (True, 0.4, 1 << 24), (True, "auto", 40)]
)
def test_forgotten_is_never_learned(intercept, gamma, portion, monkeypatch):
    monkeypatch.setitem(rows_module.PORTION, "cpu", portion)
    X, Y, queries, weights = random_stream()
    thing = learner(gamma=gamma, intercept=intercept).learn(X, Y, weights)
    thing.forget(X[::3], Y[::3], weights[::3]).forget(X[:0], Y[:0])
    kept = np.arange(40) % 3 > 0
    never = learner(gamma=gamma, intercept=intercept).learn(X[kept], Y[kept], weights[kept])
    assert thing.samples == kept.sum()
    assert_same(thing.predict(queries), never.predict(queries), 1e-9)
    assert thing.gamma_ == pytest.approx(never.gamma_)


def test_what_cannot_be_forgotten(tmp_path):
    X, Y, _, _ = random_stream()
    with pytest.raises(InvalidInputError, match="nothing has been learned yet"):
        learner().forget(X, Y)
    thing = learner().learn(X, Y)
    before = saved(thing, tmp_path / "state")
    for wrong in ((9 * X[:3], Y[:3]), (X[:3], 900 * Y[:3]), (X[:3], Y[:3], 9.0)):
        with pytest.raises(InvalidInputError, match="that were not learned"):
            thing.forget(*wrong)
    with pytest.raises(InvalidInputError, match="40 samples .* of 40 learned"):
        thing.forget(X, Y)
    assert saved(thing, tmp_path / "state") == before


@both
def test_merged_is_the_union(intercept):
    X, Y, queries, weights = random_stream()
    merged = learner(intercept=intercept)
    for rows in (slice(0, 11), slice(11, 12), slice(12, 12), slice(12, None)):
        part = merged.empty().learn(X[rows], Y[rows], weights[rows])
        before = part.predict(queries) if part.samples else 0
        merged.merge(part)
        assert_same(part.predict(queries) if part.samples else 0, before, 0)
    whole = merged.empty().learn(X, Y, weights)
    assert_same(merged.predict(queries), whole.predict(queries))
    assert merged.samples == 40
    twice = merged.empty().learn(X, Y, 2 * weights)
    assert_same(merged.merge(merged).predict(queries), twice.predict(queries))


def test_new_outputs_had_target_zero():
    X, Y, queries, _ = random_stream()
    thing = learner(intercept=True).learn(X, Y)
    padded = learner(intercept=True).learn(X, np.hstack([Y, np.zeros((40, 1))]))
    wider = thing.widened(3)
    assert_same(wider.predict(queries), padded.predict(queries))
    weights, intercept, gamma = wider.solution()
    assert_same(cubes(queries) @ weights.numpy() + intercept.numpy(), padded.predict(queries))
    assert (gamma, wider.learned.outputs, thing.learned.outputs) == (0.4, 3, 2)
    assert learner().widened(3).learned.outputs == 0
    with pytest.raises(InvalidInputError, match="outputs=2; expected 3 or more"):
        wider.widened(2)


@pytest.mark.parametrize(("targets", "outputs"), [(2, 3), (1, 2)])
def test_new_outputs_that_change_the_start(targets, outputs):
    network = torch.nn.Linear(3, 2).double()
    X = np.random.default_rng(0).normal(size=(20, 3))
    tangents = rt.TangentLearner(network, gamma=1.0, features=16).learn(X, X[:, :targets])
    with pytest.raises(InvalidInputError, match=f"cannot widen {targets} outputs to {outputs}"):
        tangents.widened(outputs)


def test_new_outputs_of_a_tangent_learner():
    network = torch.nn.Linear(3, 2).double()
    X = np.random.default_rng(0).normal(size=(20, 3))
    padded = np.hstack([X, np.zeros((20, 1))])
    tangents = rt.TangentLearner(network, gamma=1.0, features=16)
    wider = tangents.empty().learn(X, X).widened(4)
    assert_same(wider.predict(X), tangents.learn(X, padded).predict(X))


def test_repetitions_count_in_cross_validation():
    X, Y, queries, _ = random_stream(n=30, d=6)
    Y = Y + 3 * np.random.default_rng(1).normal(size=Y.shape)
    times = np.arange(30) % 4 + 1
    weighted = learner(gamma="auto").learn(X, Y, times.astype(float), repeats=True)
    repeated = learner(gamma="auto").learn(np.repeat(X, times, axis=0), np.repeat(Y, times, axis=0))
    certain = learner(gamma="auto").learn(X, Y, times.astype(float))
    assert weighted.gamma_ == pytest.approx(repeated.gamma_)
    assert_same(weighted.predict(queries), repeated.predict(queries), 1e-9)
    assert certain.gamma_ > weighted.gamma_  # as if there were fewer samples


def test_what_cannot_be_merged(tmp_path):
    X, Y, _, _ = random_stream()
    thing, random = learner().learn(X, Y), rt.StreamingRidge(rt.RBF(1.0), features=8).learn(X, Y)
    before = saved(thing, tmp_path / "state")
    sizes = "'features': {}, 'outputs': {}}}; expected"
    for one, other, match in (
        (thing, learner(intercept=True), "'intercept': True.*; expected .*'intercept': False"),
        (thing, random.empty(), "other has {'kernel': {'kind': 'rbf'"),
        (thing, learner().learn(X[:, :3], Y), sizes.format(9, 2)),
        (thing, learner().learn(X, Y[:, 0]), sizes.format(12, 1)),
        (thing, rt.TangentLearner(nn.Linear(4, 2)), "is a TangentLearner; expected a StreamingR"),
        (random, random.empty().learn(X[:, :3], Y), "other has .*'numbers in a sample': 3}; exp"),
    ):
        with pytest.raises(InvalidInputError, match=match):
            one.merge(other)
    assert saved(thing, tmp_path / "state") == before


def squares(X):
    return X**2


def scaled(X, factor):
    return X * np.asarray(factor)


def scaled_by(factor):
    return lambda X: factor * X


def wrapped_around(factor):
    @wraps(squares)
    def function(X):
        return factor * squares(X)

    return function


def copied_by_value(function):
    """As a function of the main script comes back from another process."""
    copied = FunctionType(function.__code__, function.__globals__, function.__name__)
    copied.__qualname__, copied.__module__ = function.__qualname__, function.__module__
    return copied


class Transformer:
    def __init__(self, scale):
        self.scale = np.array([scale])

    def transform(self, X):
        return X * self.scale


class ContainingItself(Transformer):
    def __init__(self, scale):
        super().__init__(scale)
        self.parts = [self]


def named(columns):
    """Has an array of Python objects."""
    transformer = Transformer(2.0)
    transformer.names = np.array(columns, dtype=object)
    return transformer.transform


def networks(seed, act=nn.ReLU):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 4), act()).double()


DIFFERENT = {
    "functions": (np.sin, np.cos),
    "lambdas": (lambda X: X + 1, lambda X: X + 2),
    "inside a function": (scaled_by(2.0), scaled_by(3.0)),
    "under one name": (wrapped_around(2.0), wrapped_around(3.0)),
    "copies of a lambda": (scaled_by(2.0), scaled_by(2.0)),
    "shapes": (partial(scaled, factor=np.ones(4)), partial(scaled, factor=np.ones((1, 4)))),
    "partial": (partial(np.multiply, 2.0), partial(np.multiply, 3.0)),
    "functions in a partial": (partial(np.multiply, 2.0), partial(np.add, 2.0)),
    "names": (named(["a", "b"]), named(["a", "c"])),
    "kinds": (partial(scaled, factor=2.0), partial(scaled, factor=np.float32(2.0))),
    "tensors": (
        partial(scaled, factor=torch.tensor(2.0)),
        partial(scaled, factor=torch.tensor(3.0)),
    ),
    "methods": (Transformer(1.0).transform, Transformer(2.0).transform),
    "weights": (networks(0), networks(1)),
    "layers": (networks(0), networks(0, nn.Tanh)),
    "kernels": (rt.EmpiricalNTK(networks(0)), rt.EmpiricalNTK(networks(1))),
}
SAME = [
    lambda: squares,
    lambda: partial(np.multiply, 2.0),
    lambda: partial(scaled, factor=torch.tensor(2.0)),
    lambda: copied_by_value(squares),
    lambda: named(["a", "b"]),
    lambda: ContainingItself(2.0).transform,
    lambda: Transformer(2.0).transform,
    lambda: networks(0),
    lambda: rt.EmpiricalNTK(networks(0)),
    lambda: rt.RBF(2.0),
]


@pytest.fixture
def all_merged(monkeypatch):
    """Calls `all_merge` with threads for processes; returns the errors that they raise."""
    rank, given = threading.local(), {}

    def run(learners):
        barrier, errors = threading.Barrier(len(learners)), []

        def add(tensor, group):
            given[rank.value] = tensor.clone()
            barrier.wait(10)
            total = sum(given[each] for each in range(len(learners)))
            barrier.wait(10)
            tensor.copy_(total)

        def gather(rows, own, group):
            given[rank.value] = own.clone()
            barrier.wait(10)
            for number, row in enumerate(rows):
                row.copy_(given[number])
            barrier.wait(10)

        def work(number):
            rank.value = number
            try:
                learners[number].all_merge()
            except InvalidInputError as error:
                errors.append(error)

        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_backend", lambda group: "gloo")
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: len(learners))
        monkeypatch.setattr(torch.distributed, "all_reduce", add)
        monkeypatch.setattr(torch.distributed, "all_gather", gather)
        with ThreadPoolExecutor(len(learners)) as threads:
            list(threads.map(work, range(len(learners))))
        return errors

    return run


def test_there_must_be_processes_to_merge():
    match = "torch.distributed has no processes yet; call torch.distributed.init_process_group"
    with pytest.raises(InvalidInputError, match=match):
        learner().all_merge()


@both
@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_all_processes_end_with_everything(intercept, offset, all_merged):
    X, Y, queries, weights = random_stream()
    thing = rt.StreamingRidge(rt.Linear(), 0.4, intercept=intercept)
    parts = (slice(0, 5), slice(5, 5), slice(5, 31), slice(31, None))  # one has nothing
    learners = [thing.empty().learn(X[r] + offset, Y[r], weights[r]) for r in parts]
    assert all_merged(learners) == []
    whole = thing.empty().learn(X + offset, Y, weights)
    tolerance = 1e-10 if intercept or not offset else 1e-5
    for each in learners:
        assert each.samples == 40
        assert_same(each.predict(queries + offset), whole.predict(queries + offset), tolerance)
        each.forget(X[:3] + offset, Y[:3], weights[:3])


def test_processes_that_do_not_agree_all_say_so(all_merged, tmp_path):
    X, Y, _, _ = random_stream()
    for other in (
        learner().learn(X, Y[:, 0]),
        learner().learn(X[:, :3], Y),
        learner(intercept=True).learn(X, Y),
    ):
        pair = learner().learn(X, Y), other
        before = [saved(each, tmp_path / "state") for each in pair]
        errors = [str(error) for error in all_merged(pair)]
        assert ["expected the same in every process" in error for error in errors] == [True, True]
        assert [saved(each, tmp_path / "state") for each in pair] == before


def tangents(seed=0, **options):
    return rt.TangentLearner(networks(seed), 0.4, **{"features": 24, "seed": 1} | options)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (tangents(seed=1), "features"),  # other weights
        (tangents(params="0.weight"), "features"),
        (tangents(features=25), "features"),
        (tangents(combinations=2), "features"),
        (rt.TangentLearner(networks(0), 0.4, 24, seed=2), "features"),
        (rt.TangentLearner(networks(0, nn.Tanh), 0.4, 24, seed=1), "features"),
        (tangents(precision="float32"), "precision"),
        (tangents(views=[lambda X: 1 * X]), "views"),
        (tangents(views=[None, np.negative]), "views"),
        (rt.StreamingRidge(networks(0), 0.4), "class, features"),
        (rt.StreamingRidge(rt.RBF(1.0), 0.4, intercept=True), "class, features, intercept"),
    ],
)
@pytest.mark.parametrize("empty", [0, 1, None])
def test_what_cannot_be_merged_in_processes_either(other, difference, empty, all_merged, tmp_path):
    """Not even where one of them has learned nothing: it would predict with the wrong features."""
    X, Y, _, _ = random_stream(c=4)
    group = [tangents(), other.fork(), tangents()]
    for number, each in enumerate(group):
        if number != empty:
            each.learn(X, Y)
    before = [saved(each, tmp_path / "state") for each in group]
    errors = {str(error) for error in all_merged(group)}
    assert errors == {
        f"the learners of the 3 processes have different {difference}; expected the same in every "
        "process: give all of them the same network, seed and options"
    }
    assert [saved(each, tmp_path / "state") for each in group] == before


def test_views_that_differ_between_processes(all_merged):
    X, Y, _, _ = random_stream()
    pair = [
        rt.StreamingRidge(cubes, 0.4, views=[None, view]).learn(X, Y)
        for view in (lambda X: 2 * X, lambda X: 3 * X)
    ]
    errors = [str(error) for error in all_merged(pair)]
    assert len(errors) == 2
    assert all("have different views; expected" in error for error in errors)


@pytest.mark.parametrize("name", DIFFERENT)
def test_features_that_differ_between_processes(name, all_merged):
    X, Y, _, _ = random_stream()
    pair = [rt.StreamingRidge(each, 0.4, features=4).learn(X, Y) for each in DIFFERENT[name]]
    errors = [str(error) for error in all_merged(pair)]
    assert len(errors) == 2
    assert all("have different features; expected" in error for error in errors)


@pytest.mark.parametrize("make", SAME)
def test_the_same_features_are_merged_in_all_processes(make, all_merged):
    X, Y, queries, _ = random_stream()
    pair = [rt.StreamingRidge(make(), 0.4, features=4) for _ in range(2)]
    whole = pair[0].empty().learn(X, Y)
    for each, rows in zip(pair, (slice(0, 11), slice(11, 40)), strict=True):
        each.learn(X[rows], Y[rows])
    assert all_merged(pair) == []
    for each in pair:
        assert_same(each.predict(queries), whole.predict(queries))


class OfAnyLength(nn.Module):
    """Sequences of any length; as many outputs as they have numbers, if asked."""

    def __init__(self, flat=False):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.flat = nn.Linear(2, 3), flat

    def forward(self, x):
        seen = torch.tanh(self.layer(x))
        return seen.flatten(1) if self.flat else seen.mean(1)


def test_sequences_and_outputs_of_processes(all_merged):
    random = np.random.default_rng(0)
    short, long = (random.normal(size=(9, length, 2)) for length in (4, 6))
    Y, queries = random.normal(size=(9, 3)), random.normal(size=(5, 7, 2))
    pair = [rt.TangentLearner(OfAnyLength().double(), 0.4, 16) for _ in range(2)]
    whole = pair[0].empty().learn(short, Y).learn(long, Y)
    assert all_merged([pair[0].learn(short, Y), pair[1].learn(long, Y)]) == []
    assert_same(pair[1].predict(queries), whole.predict(queries))
    flat = rt.TangentLearner(OfAnyLength(flat=True).double(), 0.4, 16)
    pair = [flat.empty().learn(short, Y), flat.empty().learn(long, Y)]
    errors = [str(error) for error in all_merged(pair)]
    assert len(errors) == 2
    assert all(
        "the 2 learners have 12 or 18 outputs of the network; expected" in error for error in errors
    )
    with pytest.raises(InvalidInputError, match="'outputs of the network': 18.*: 12}"):
        pair[0].merge(pair[1])
    for use in (lambda: pair[0].predict(long), lambda: pair[0].learn(long, Y)):
        told = "outputs of the network for X is 18; expected 12, as in the stream so far"
        with pytest.raises(InvalidInputError, match=told):
            use()
    with pytest.raises(InvalidInputError, match="for these samples is 18; expected 12"):
        pair[0].as_module()(torch.tensor(long))


def test_types_and_axes_of_all_processes(all_merged):
    X, Y, queries, _ = random_stream(c=1)
    pair = [learner().learn(X, Y[:, 0].astype(np.float32)), learner()]
    for dtype in (np.float32, np.float64):
        assert all_merged(pair) == []
        for each in pair:
            assert (each.predict(queries).shape, each.predict(queries).dtype) == ((6,), dtype)
        pair[1].learn(X, Y)
    assert all_merged([learner(), learner()]) == []
    mixed = [learner().learn(X, Y[:, 0]), learner().learn(X, Y)]
    assert all_merged(mixed) == []
    assert [each.predict(queries).shape for each in mixed] == [(6, 1), (6, 1)]


@both
def test_discounted_samples_weigh_less(intercept):
    X, Y, queries, _ = random_stream()
    thing, weight = learner(intercept=intercept), 0.9 ** np.arange(39, -1, -1.0)

    def expected(stop):
        of = cubes(X[:stop]), Y[:stop], cubes(queries), 0.4, weight[:stop], intercept
        return oracle.predictions(*of)

    for i in range(40):
        thing.discount(0.9).learn(X[i : i + 1], Y[i : i + 1])
    assert_same(thing.discount(1.0).predict(queries), expected(40))
    thing.forget(X[20:], Y[20:], weight[20:])
    assert_same(thing.predict(queries), expected(20), 1e-8)


def test_discounts_that_mean_nothing():
    X, Y, queries, _ = random_stream()
    thing = learner(gamma="auto").learn(X, Y)
    for factor, match in (
        (0.0, "is 0.0; expected above 0"),
        (1.5, "is 1.5"),
        ("x", "a number"),
    ):
        error = InvalidTypeError if factor == "x" else InvalidInputError
        with pytest.raises(error, match=match):
            thing.discount(factor)
    for _ in range(280):
        thing.discount(0.5)
    with pytest.raises(InvalidInputError, match="none of them would count"):
        thing.discount(1e-20)
    assert np.isfinite(thing.predict(queries)).all()


# --- libraries, types and shapes


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-10)])
def test_the_same_library_and_type_come_out(dtype, tolerance):
    X, Y, queries, _ = (array.astype(dtype) for array in random_stream())
    expected = oracle.predictions(cubes(X), Y, cubes(queries), 0.4)
    numpy = learner().learn(X, Y).predict(queries)
    X, Y, queries = (torch.from_numpy(array).requires_grad_() for array in (X, Y, queries))
    tensor = learner().learn(X, Y).predict(queries)
    assert isinstance(numpy, np.ndarray)
    assert not tensor.requires_grad
    for found in (numpy, tensor):
        assert str(found.dtype).removeprefix("torch.") == dtype
        assert_same(found, expected, tolerance)


def test_types_and_axes_of_several_portions():
    X, Y, queries, _ = random_stream(c=1)
    single = learner().learn(X[:20], Y[:20].astype(np.float32))
    assert single.predict(queries).dtype == np.float32
    double = learner().learn(X[20:], Y[20:])
    assert copy.deepcopy(single).merge(double).predict(queries).dtype == np.float64
    assert single.learn(X[20:], Y[20:]).predict(queries).dtype == np.float64
    for thing, shape in (
        (learner().learn(X, Y[:, 0]), ()),
        (learner().learn(X[:9], Y[:9]).learn(X[9:], Y[9:, 0]), (1,)),
    ):
        assert thing.predict(queries).shape == (6, *shape)
        assert thing.predict(queries[:0]).shape == (0, *shape)
    listed = rt.StreamingRidge(rt.Linear(), 0.1).learn([[1.0], [2.0]], [1.0, 2.0])
    assert listed.predict([[3.0]]) == pytest.approx([3 * 5 / 5.1])


# --- transactions


class FailsLater:
    """Features that fail when they have been asked for so many times."""

    left = 10**9

    def __call__(self, X):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the features failed")
        return cubes(X)


@pytest.mark.parametrize("began", [False, True])
def test_a_call_that_fails_changes_nothing(began, small_portions, tmp_path):
    X, Y, queries, _ = random_stream()
    features = FailsLater()
    thing = rt.StreamingRidge(features, 0.4)
    thing.learn(X[: 15 * began], Y[: 15 * began])
    before = saved(thing, tmp_path / "state")
    bad, far = Y.copy(), X.copy()
    bad[-1, 0], far[-1, 0] = np.nan, np.inf
    refused = [
        ("Y holds nan in row 39", X, bad),
        ("X holds inf in row", far, Y),
        ("X has 40 rows and Y has 39", X, Y[1:]),
        ("Y has dtype int64", X, np.ones(40, dtype=int)),
        ("features of X range from .* to .*; expected at most", 1e40 * np.abs(X), Y),
        (r"Y range from .*; expected at most 1e\+90", X, 1e100 * Y),
        (r"weights has shape \(3,\); expected \(40,\)", X, Y, np.ones(3)),
        *(("weights .* not above 0", X, Y, weight) for weight in (0.0, np.nan, np.inf, 1e-200)),
    ]
    if began:
        refused.append(("outputs of Y is 1; expected 2", X, Y[:, 0]))
        refused.append(("features of X is 9; expected 12", X[:, :3], Y))
        with pytest.raises(InvalidInputError, match="features of X is 9; expected 12"):
            thing.predict(X[:, :3])
    for verb in (thing.learn, thing.forget) if began else (thing.learn,):
        for calls in (0, 1, 2):
            features.left = calls
            with pytest.raises(RuntimeError, match="the features failed"):
                verb(X, Y)
            features.left = 10**9
            assert saved(thing, tmp_path / "state") == before
        for match, *arguments in refused:
            error = InvalidTypeError if "dtype" in match else InvalidInputError
            with pytest.raises(error, match=match):
                verb(*arguments)
            assert saved(thing, tmp_path / "state") == before
    thing.learn(X[15:], Y[15:])
    rows = slice(0 if began else 15, None)
    expected = oracle.predictions(cubes(X[rows]), Y[rows], cubes(queries), 0.4)
    assert_same(thing.predict(queries), expected)


def test_what_is_refused(small_portions):
    X, Y, queries, _ = random_stream()
    for call, error, match in (
        (lambda: learner().predict(queries), InvalidInputError, "nothing has been learned yet"),
        (lambda: learner().learn(X[:0], Y[:0]).gamma_, InvalidInputError, "nothing has been learn"),
        (lambda: learner(gamma=-1.0), InvalidInputError, "gamma is -1.0; expected a finite number"),
        (lambda: learner(gamma="best"), InvalidTypeError, "gamma is 'best'; expected a number"),
        (
            lambda: rt.StreamingRidge(lambda X: X[:, : 1 + len(X) % 3]).learn(X, Y),
            InvalidInputError,
            "features of X is [23]; expected",  # they change from portion to portion
        ),
        (
            lambda: rt.StreamingRidge("linear").learn(X[:, :0], Y),
            InvalidInputError,
            "the samples have no features: .*expected X with one column or more",
        ),
        (lambda: learner(seed=None), InvalidInputError, "seed is None; expected a whole number"),
        *(
            (lambda odd=odd, verb=verb: verb(odd), (InvalidInputError, InvalidTypeError), match)
            for odd, match in (
                (sparse.csr_matrix(X), "X is a sparse csr_matrix; expected a dense array"),
                ((row for row in X), "X has dtype object; expected float16, float32"),
                (3.0, "X is a single number; expected one row per sample"),
            )
            for verb in (lambda odd: learner().learn(odd, Y), learner().learn(X, Y).predict)
        ),
    ):
        with pytest.raises(error, match=match):
            call()


@pytest.mark.parametrize("learned", [None, 9])
@pytest.mark.parametrize("row", [0, 7, 23])
def test_an_error_names_the_row_of_the_call(row, learned, small_portions):
    X, Y, _, _ = random_stream()
    thing = learner()
    if learned:
        thing.learn(X[:learned], Y[:learned])
    bad = X.copy()
    bad[row, 1] = np.nan
    with pytest.raises(InvalidInputError, match=f"X holds nan in row {row};"):
        thing.learn(bad, Y)
    with pytest.raises(InvalidInputError, match=f"X holds nan in row {row};"):
        learner().learn(X, Y).predict(bad)

    def roots(X):
        with np.errstate(invalid="ignore"):
            return np.sqrt(X)

    positive = np.abs(X)
    positive[row, 1] = -1.0
    with pytest.raises(InvalidInputError, match=f"feature map's result holds nan in row {row};"):
        rt.StreamingRidge(roots).learn(positive, Y)


# --- forgetting costs digits


def forgotten(gamma, outlier=1.0, target=1.0, n=10_000, left=10, intercept=False):
    """A learner that forgot all samples but the last ones, and one that never learned others."""
    X, Y, queries, _ = random_stream(n, d=20)
    X[0] *= outlier
    Y[0] *= target
    make = rt.StreamingRidge
    before = make(rt.Linear(), gamma, intercept=intercept).learn(X, Y)
    never = make(rt.Linear(), gamma, intercept=intercept).learn(X[-left:], Y[-left:])
    return before.forget(X[:-left], Y[:-left]), never, queries


@pytest.mark.parametrize(
    ("gamma", "options"),
    [
        (1e-9, {}),
        (1e-10, {}),
        (1e-10, {"intercept": True}),
        (1e-3, {"outlier": 1e10, "n": 60, "left": 50}),
        (1e-7, {"target": 1e12, "n": 60, "left": 15}),
    ],
)
def test_digits_that_forgetting_costs_are_reported(gamma, options, tmp_path):
    thing, never, queries = forgotten(gamma, **options)
    thing.save(tmp_path / "state")
    merged = thing.empty().merge(thing)
    with pytest.warns(PrecisionWarning, match="samples were forgotten.* correct digits") as told:
        found = thing.predict(queries)
    expected = never.predict(queries)
    error = np.abs(found - expected).max() / np.abs(expected).max()
    digits = float(re.search(r"expect ([0-9.]+) correct", str(told[0].message))[1])
    assert error > 1e-5
    assert abs(digits - max(0.0, -np.log10(error))) < 2  # an estimate
    for each in (
        rt.StreamingRidge.load(tmp_path / "state", rt.Linear()),
        merged,
        thing.discount(0.5),
    ):
        with pytest.warns(PrecisionWarning, match="samples were forgotten"):
            each.predict(queries)


@pytest.mark.parametrize("gamma", [1e-3, 1.0, "auto"])
@pytest.mark.parametrize("intercept", [False, True])
def test_nothing_is_reported_where_the_digits_are_enough(gamma, intercept):
    """Warnings are errors here."""
    for options in ({}, {"n": 60, "left": 30}, {"target": 1e5, "n": 60, "left": 40}):
        thing, never, queries = forgotten(gamma, intercept=intercept, **options)
        assert_same(thing.predict(queries), never.predict(queries), 1e-4)
        assert thing.gamma_ == pytest.approx(never.gamma_)


@pytest.mark.parametrize("options", [{"outlier": 1e10}, {"outlier": 1e5}, {"target": 1e10}])
def test_a_ridge_that_rounding_chose_is_reported(options):
    thing, _, queries = forgotten("auto", n=200, left=150, **options)
    with pytest.warns(PrecisionWarning, match="(too few to choose gamma; give it|expect 0.0)"):
        thing.predict(queries)


def test_a_ridge_with_rivals_lost_in_rounding():
    """Its own residual can be told, but not those of smaller ridges."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 20))
    Y = X @ rng.normal(size=20) + 0.01 * rng.normal(size=50)
    Y[0] *= 1e6
    thing = rt.StreamingRidge(rt.Linear()).learn(X, Y).forget(X[:-5], Y[:-5])
    never = rt.StreamingRidge(rt.Linear()).learn(X[-5:], Y[-5:])
    with pytest.warns(PrecisionWarning, match="too few to choose gamma"):
        chosen = thing.gamma_
    assert chosen > 100 * never.gamma_


def test_targets_are_added_up_in_float64():
    """Warnings are errors here: a forgotten target costs digits of float64, not of float32."""
    X, Y, queries, _ = random_stream(200, d=5)
    Y[0] *= 1e6
    thing, never = (rt.StreamingRidge(rt.Linear(), 1.0, precision="float32") for _ in range(2))
    thing.learn(X, Y).forget(X[:-50], Y[:-50])
    assert_same(thing.predict(queries), never.learn(X[-50:], Y[-50:]).predict(queries), 1e-5)


def test_samples_of_little_weight_stay():
    """Rounding of the heavy ones' squared weights is larger than theirs."""
    X, Y, _, uneven = random_stream(300, d=3)
    for scale in np.geomspace(1e3, 1e4, 20):
        weights = scale * uneven
        weights[-1] = 0.01
        thing = rt.StreamingRidge(rt.Linear(), 1e-2).learn(X, Y, weights)
        assert thing.forget(X[:-1], Y[:-1], weights[:-1]).samples == 1
        assert thing.learned.moments.squared_weight > 0


# --- merging


@pytest.mark.parametrize("name", DIFFERENT)
def test_learners_with_different_features_are_not_merged(name):
    X, Y, queries, _ = random_stream()
    one, other = (rt.StreamingRidge(each, 0.4, features=4) for each in DIFFERENT[name])
    one.learn(X[:20], Y[:20])
    other.learn(X[20:], Y[20:])
    before = one.predict(queries)
    with pytest.raises(InvalidInputError, match=r"different feature function"):
        one.merge(other)
    np.testing.assert_array_equal(one.predict(queries), before)
    other = one.empty().learn(X[20:], Y[20:])  # as the message says
    assert one.merge(other).samples == 40


@pytest.mark.parametrize("make", SAME)
def test_learners_with_the_same_features_are_merged(make):
    """Made twice, or copied to another process and back."""
    X, Y, _, _ = random_stream()
    one, other = (rt.StreamingRidge(make(), 0.4, features=4) for _ in range(2))
    other.learn(X[20:], Y[20:])
    assert one.learn(X[:20], Y[:20]).merge(other).samples == 40
    assert one.merge(copy.deepcopy(one)).samples == 80


# --- files and other processes


@pytest.mark.parametrize("before", [0, 25])
def test_loaded_bit_by_bit(before, tmp_path):
    """And so are pickles and deep copies."""
    X, Y, queries, weights = (array.astype(np.float32) for array in random_stream())
    for features, intercept, gamma in (
        (cubes, False, "auto"),
        (rt.RBF(1.4), True, 0.4),
        (rt.Linear(), True, "auto"),
        (rt.EmpiricalNTK(nn.Linear(4, 3)), False, 0.4),
    ):
        thing = rt.StreamingRidge(features, gamma, features=14, intercept=intercept, seed=3)
        thing.learn(X[:before], Y[:before], weights[:before]).save(tmp_path / "state")
        loaded = rt.StreamingRidge.load(tmp_path / "state", features)
        twins = [loaded, pickle.loads(pickle.dumps(thing)), copy.deepcopy(thing)]
        for each in (thing, *twins):
            assert each.samples == before
            each.learn(X[before:], Y[before:])
        for twin in twins:
            np.testing.assert_array_equal(twin.predict(queries), thing.predict(queries))
            assert twin.predict(queries).dtype == np.float32
            assert saved(twin, tmp_path / "other") == saved(thing, tmp_path / "again")


def test_single_precision_sums_are_loaded(tmp_path):
    X, Y, queries, _ = random_stream()
    thing = rt.StreamingRidge(rt.Linear(), 0.4, precision="float32").learn(X, Y)
    thing.save(tmp_path / "state")
    again = rt.StreamingRidge.load(tmp_path / "state", rt.Linear())
    np.testing.assert_array_equal(again.predict(queries), thing.predict(queries))


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "state"
    rt.StreamingRidge(rt.RBF(1.0), features=8).save(path)
    with pytest.raises(InvalidInputError, match="with the kernel .*'width': 1.0"):
        rt.StreamingRidge.load(path, rt.RBF(2.0))
    with pytest.raises(InvalidInputError, match="holds a StreamingRidge"):
        rt.TangentLearner.load(path, nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("form", {"numpy": False, "flat": False, "dtype": "int64"}, "dtype is torch.int64"),
        ("count", 0, "count is 0, weight"),
        ("weight", -1.0, "weight is -1.0"),
        ("squared_weight", float("inf"), "inf"),
        ("form", {"numpy": False, "flat": True, "dtype": "float64"}, "true, but there are 2 out"),
        ("cross", torch.zeros(3, dtype=torch.float64), r"cross has shape \(3,\)"),
        ("power", torch.zeros(2), "power is not torch.float64"),
        ("mean", torch.full((12,), torch.nan, dtype=torch.float64), "mean is not .* or not finite"),
        ("peak_scatter", -1.0, "peak_scatter is -1.0"),
        ("cross", torch.full((12, 2), 1e6, dtype=torch.float64), "not sums over the same samples"),
        ("power", torch.full((2,), -1.0, dtype=torch.float64), "not sums over the same samples"),
        ("power", torch.zeros(2, dtype=torch.float64), "not sums over the same samples"),
        ("triangle", -torch.ones(78, dtype=torch.float64), "not sums over the same samples"),
        ("triangle", torch.zeros(78, dtype=torch.float64), "not sums over the same samples"),
    ],
)
def test_forged_files_are_refused(name, value, match, tmp_path):
    path = tmp_path / "state"
    learner().learn(*random_stream()[:2]).save(path)
    values, tensors = read_state(path)
    (tensors if isinstance(value, torch.Tensor) else values)[name] = value
    write_state(path, values, tensors)
    with pytest.raises(InvalidInputError, match=f"is not a state of a StreamingRidge.*{match}"):
        rt.StreamingRidge.load(path, cubes)
