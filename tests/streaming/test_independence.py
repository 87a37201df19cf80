"""Every streaming object keeps copies of what it is given, and forks go on by themselves."""

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget.integrations.river_named import NamedFeatures
from retarget.integrations.river_ridge import SequentialRidge
from support.problems import assert_same
from support.streaming_objects import CE, correction, corrector, feed, results, shift

PLAIN = rt.SGD(lr=0.05)


def random_stream(n=30, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, np.stack([np.sin(X[:, 0]), X[:, 1]], 1)


def classes(n=30, seed=0):
    X, Y = random_stream(n, seed)
    return X, np.eye(2)[(Y[:, 0] > 0).astype(int)]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


class Learner:
    """Feeds a learner or an estimator as the trackers are fed."""

    def __init__(self, thing):
        self.thing = thing
        self.take = getattr(thing, "partial_fit", None) or thing.learn

    def fork(self):
        return Learner(self.thing.fork())

    def results(self, X, Y):
        self.take(X, Y)
        return self.thing.predict(random_stream(6, seed=9)[0])


def trackers():
    for make in (shift, correction, corrector):
        for learner in (PLAIN, rt.SGD(lr=0.05, batch_size=2, momentum=0.9, reduction="sum")):
            yield f"{make.__name__} {learner.momentum}", lambda m=make, s=learner: m(rt.RBF(2.0), s)
        yield f"{make.__name__} {CE}", lambda m=make: m(rt.RBF(2.0), PLAIN, loss=CE)
    for aim in ("all", "window:9", "discount:0.9"):
        for features in (None, 20):
            options = {"aim": aim, "features": features}
            yield f"{aim} {features}", lambda o=options: corrector(rt.RBF(2.0), PLAIN, **o)


def learners():
    yield "ridge", lambda: Learner(rt.StreamingRidge(rt.Linear(), 0.5))
    yield "intercept", lambda: Learner(rt.StreamingRidge(rt.Linear(), 0.5, intercept=True))
    yield "tangent", lambda: Learner(rt.TangentLearner(network(), 0.5, features=16))


def estimators():
    yield "regressor", lambda: Learner(rt.StreamingRidgeRegressor(gamma=0.5))
    for kind in ("none", "exact", "iterative"):
        options = {"width": 2.0, "lr": 0.1, "correction": kind}
        yield kind, lambda o=options: Learner(rt.OnlineKernelRegressor(**o))


FORKED = dict([*trackers(), *learners()])
KEEPING = FORKED | dict(estimators())


def taken(thing, X, Y):
    if isinstance(thing, Learner):
        thing.take(X, Y)
    else:
        feed(thing, X, Y)


def results_of(thing, X, Y):
    return thing.results(X, Y) if isinstance(thing, Learner) else results(thing, X, Y)


@pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
@pytest.mark.parametrize("name", KEEPING)
def test_arrays_may_be_used_again(name):
    """In portions of which some are waiting, and of every kind of array."""
    stream = classes if CE in name else random_stream
    X, Y = stream(23)
    more = stream(4, seed=5)
    for convert in (np.array, torch.tensor):
        if convert is torch.tensor and name in dict(estimators()):
            continue
        thing, expected = KEEPING[name](), KEEPING[name]()
        for rows in (slice(0, 7), slice(7, 8), slice(8, 23)):
            given = convert(X[rows]), convert(Y[rows])
            taken(thing, *given)
            taken(expected, convert(X[rows]), convert(Y[rows]))
            for array in given:
                array[:] = 1e3
        ends = [results_of(each, *map(convert, more)) for each in (thing, expected)]
        np.testing.assert_array_equal(*map(np.asarray, ends))


@pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
@pytest.mark.parametrize("name", FORKED)
def test_a_fork_and_its_original(name):
    stream = classes if CE in name else random_stream
    X, Y = stream(23)
    ways = [stream(9, seed=seed) for seed in (1, 2, 3)]

    def alone(*parts):
        thing = FORKED[name]()
        for part in parts[:-1]:
            taken(thing, *part)
        return np.asarray(results_of(thing, *parts[-1]))

    original = FORKED[name]()
    taken(original, X, Y)
    fork = original.fork()
    taken(original, *ways[0])
    taken(fork, *ways[1])
    second = fork.fork()
    taken(fork, *ways[2])
    for thing, parts in (
        (original, (ways[0], ways[1])),
        (second, (ways[1], ways[0])),
        (fork, (ways[1], ways[2], ways[0])),
    ):
        assert_same(results_of(thing, *parts[-1]), alone((X, Y), *parts), 1e-9)


def test_matrices_and_dicts_are_copied():
    X, Y = random_stream(12)
    K = X @ X.T
    thing = shift(K, PLAIN)
    feed(thing, np.arange(6), Y[:6])
    K += 5 * np.eye(12)
    expected = shift(rt.Linear(), PLAIN)
    feed(expected, X[:6], Y[:6])
    assert_same(results(thing, np.arange(6, 12), Y[6:]), results(expected, X[6:], Y[6:]))

    features, sample = NamedFeatures("rbf"), {"a": 1.0, "b": 2.0}
    features.meet(sample)
    before = features(sample).copy()
    sample["a"] = 3.0
    assert np.abs(features.meet(sample) - before).max() > 0.01
    one, other = SequentialRidge(), SequentialRidge()
    phi, target = np.ones(3), np.ones(2)
    for each in (one, other):
        each.learn(phi, target)
    phi[:], target[:] = 9.0, 9.0
    one.learn(np.arange(3.0), np.zeros(2))
    other.learn(np.arange(3.0), np.zeros(2))
    np.testing.assert_array_equal(one.predict(np.ones(3)), other.predict(np.ones(3)))


def test_results_may_be_written_to():
    """The next fit of a logistic learner starts from the coefficients of the last one."""
    X, Y = classes(12)
    thing, expected = (correction(rt.RBF(2.0), PLAIN, loss=CE) for _ in range(2))
    for each in (thing, expected):
        feed(each, X[:8], Y[:8])
    expected.coefficients  # noqa: B018  # fits, as the other one does
    thing.coefficients[:] = np.nan
    for each in (thing, expected):
        feed(each, X[8:], Y[8:])
    np.testing.assert_array_equal(thing.coefficients, expected.coefficients)


def test_a_preconditioner_and_a_resumed_state_are_copied():
    module, (X, Y) = network(), map(torch.tensor, random_stream(8))
    factors = {name: torch.full_like(value, 2.0) for name, value in module.named_parameters()}
    kernel = rt.EmpiricalNTK(module, preconditioner=factors)
    before = kernel(X)
    for each in factors.values():
        each.fill_(9.0)
    assert torch.equal(kernel(X), before)

    first, resumed, restored = (rt.NetworkCorrector(module, PLAIN, 1.0, 2) for _ in range(3))
    targets = first.correct(X, Y)
    tasks, given = [(X.clone(), Y.clone())], targets.clone()
    resumed.resume(tasks, given)
    values, tensors = first.to_state()
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    restored.restore(values, kept)
    for tensor in (*tasks[0], given, *kept.values()):
        tensor.fill_(torch.nan)
    for each in (resumed, restored):
        assert torch.equal(each.recorrect(), targets)
