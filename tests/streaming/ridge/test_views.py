"""Views of samples, and sums in float32, against the same rows learned one by one."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget.errors import (
    InvalidInputError,
    InvalidTypeError,
    NotPositiveDefiniteError,
    PrecisionWarning,
)
from retarget.streaming.ridge import search
from retarget.streaming.ridge.search import exact_scores
from retarget.streaming.ridge.solution import ridge_problem
from support.problems import assert_same

RNG = np.random.default_rng(3)
X, NEW = RNG.normal(size=(40, 2, 5)), RNG.normal(size=(7, 2, 5))
Y = X.sum(2) @ [[1, 0.5], [0, 1]] + 0.5 * RNG.normal(size=(40, 2))
MIX = 0.2 * RNG.normal(size=(10, 23))


def flip(samples):
    return samples[..., ::-1] if isinstance(samples, np.ndarray) else samples.flip(-1)


def shift(samples, by=1):
    return np.roll(samples, by, -1) if isinstance(samples, np.ndarray) else samples.roll(by, -1)


VIEWS = [None, flip, partial(shift, by=2)]


def features(samples):
    return np.tanh(np.asarray(samples).reshape(len(samples), -1) @ MIX)


def ridge(views=VIEWS, gamma=0.7, **options):
    return rt.StreamingRidge(features, gamma, views=views, **options)


def every_view(samples):
    return [samples, flip(samples), shift(samples, 2)]


def rows():
    """The same samples as a user would learn and predict them by hand."""
    seen = np.concatenate([features(view) for view in every_view(X)])
    return seen, np.tile(Y, (3, 1))


@pytest.mark.parametrize("intercept", [False, True])
def test_a_prediction_is_the_views_mean(intercept):
    by_hand = rt.StreamingRidge("linear", 0.7, intercept=intercept).learn(*rows())
    expected = np.mean([by_hand.predict(features(view)) for view in every_view(NEW)], 0)
    learner = ridge(intercept=intercept)
    for part in np.split(np.random.default_rng(0).permutation(40), [3, 20]):
        learner.learn(X[part], Y[part])
    assert learner.samples == 40
    assert_same(learner.predict(NEW), expected)
    assert_same(learner.predict(learner.prepare(NEW)), expected)
    given = learner.predict(torch.from_numpy(NEW.copy()))  # views of tensors, of a function too
    assert_same(given.numpy(), expected)


def test_weights_forgetting_discounting_and_merging_are_exact(tmp_path):
    weights = np.linspace(0.5, 2, 40)
    whole = ridge().learn(X[:30], Y[:30], weights[:30])
    parts = ridge().learn(X[:10], Y[:10], weights[:10])
    parts.merge(parts.empty().learn(X[10:], Y[10:], weights[10:]))
    parts.forget(X[30:], Y[30:], weights[30:])
    assert parts.samples == 30
    assert_same(parts.predict(NEW), whole.predict(NEW))
    assert_same(
        whole.discount(0.25).predict(NEW),
        ridge(gamma=2.8).learn(X[:30], Y[:30], weights[:30]).predict(NEW),
    )
    whole.save(tmp_path / "state")
    loaded = rt.StreamingRidge.load(tmp_path / "state", features, views=VIEWS)
    np.testing.assert_array_equal(loaded.predict(NEW), whole.predict(NEW))
    with pytest.raises(InvalidInputError, match=r"'flip', .*not \['sample'\]"):
        rt.StreamingRidge.load(tmp_path / "state", features)
    with pytest.raises(InvalidInputError, match="other has .*'views': .*expected .*'views'"):
        whole.merge(ridge([None, flip]))
    with pytest.raises(InvalidInputError, match="other has different views"):
        ridge([lambda samples: samples]).merge(ridge([lambda samples: 1 * samples]))


def left_out(gamma):
    """The squared error of each sample when all of its views are left out."""
    total = 0.0
    for sample in range(40):
        others = np.arange(40) != sample
        learner = ridge(gamma=gamma).learn(X[others], Y[others])
        total += ((learner.predict(X[~others]) - Y[~others]) ** 2).sum()
    return total


def test_views_are_left_out_together():
    chosen = ridge(gamma="auto").learn(X, Y).gamma_
    best = min(left_out(10.0**power) for power in np.arange(-3, 4, 0.5))
    assert left_out(chosen) < 1.02 * best
    # two copies of each row and twice the ridge are one row
    sums = [ridge([None] * copies).learn(X, Y).learned.moments for copies in (1, 2)]
    scores = [exact_scores(ridge_problem(each)) for each in sums]
    once, twice = (each.score(copies * 0.3) for copies, each in enumerate(scores, start=1))
    assert twice == pytest.approx(once, rel=1e-10)


def test_estimates_of_what_views_share(monkeypatch):
    exact = ridge(gamma="auto").learn(X, Y).gamma_
    for name, value in (("EXACT_FEATURES", 10), ("PROBES", 23), ("FEW_ROWS", 0)):
        monkeypatch.setattr(search, name, value)
    assert ridge(gamma="auto").learn(X, Y).gamma_ == pytest.approx(exact, rel=4)
    few = ridge([None, flip], gamma="auto").learn(X, Y)
    assert few.merge(few.empty().learn(NEW, Y[:7])).forget(NEW, Y[:7]).samples == 40


def test_starts_of_every_view():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x, y, new = (torch.from_numpy(each) for each in (X, Y, NEW))
    plain = rt.TangentLearner(network, 0.3, 64)
    plain.learn(torch.cat([x, flip(x)]), torch.cat([y, y]))
    seen = rt.TangentLearner(network, 0.3, 64, views=[None, flip]).learn(x, y)
    expected = (plain.predict(new) + plain.predict(flip(new))) / 2
    assert_same(seen.predict(new), expected)


def random_sign(samples):
    return samples * RNG.choice([-1.0, 1.0])


def negated_in_place(samples):
    samples *= -1
    return samples


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (lambda s: s[1:], "has shape .* expected the same number of samples"),
        (lambda s: s[..., :3], r"of samples \(2, 5\) has shape \(2, 3\)"),
        (lambda s: s.astype("float32"), "torch.float32 from torch.float64"),
        (negated_in_place, "negated_in_place changes its input in place"),
        (random_sign, "random_sign differs from call to call"),
        (lambda s: s - s.mean(0), "sample alone than for the same sample in a batch"),
    ],
)
def test_a_view_that_is_none_changes_nothing(view, message):
    learner, before = ridge([None, view]), X.copy()
    with pytest.raises(InvalidInputError, match=message):
        learner.learn(X, Y)
    assert learner.samples == 0
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("views", [[], "flip", [None, 3], np.flip])
def test_views_are_functions(views):
    with pytest.raises(InvalidTypeError, match=r"expected functions .*views=\[None, flip\]"):
        ridge(views)


def test_float32_keeps_half_the_bytes_and_the_answers(tmp_path):
    full, half = ridge(), ridge(precision="float32")
    for learner in (full, half):
        for row in range(40):
            learner.learn(X[row : row + 1], Y[row : row + 1])
    assert_same(half.predict(NEW), full.predict(NEW), 1e-5)
    assert np.abs(half.predict(NEW) - full.predict(NEW)).max() > 0
    many = {
        each: rt.StreamingRidge("rbf", 1.0, 512, precision=each) for each in ("float64", "float32")
    }
    sizes = [learner.learn(X.reshape(40, 10), Y).nbytes for learner in many.values()]
    assert 1.9 < sizes[0] / sizes[1] < 2.1
    half.save(tmp_path / "state")
    loaded = rt.StreamingRidge.load(tmp_path / "state", features, views=VIEWS)
    assert loaded.precision == "float32"
    np.testing.assert_array_equal(loaded.predict(NEW), half.predict(NEW))
    with pytest.raises(InvalidInputError, match="other has .*'float64'.*expected .*'float32'"):
        half.merge(full)
    with pytest.raises(InvalidInputError, match="precision is 'half'"):
        ridge(precision="half")


def test_float32_says_what_forgetting_costs():
    random = np.random.default_rng(0)
    many, targets = random.normal(size=(3000, 4)), random.normal(size=3000)
    learner = rt.StreamingRidge("linear", 1e-3, precision="float32").learn(many, targets)
    learner.forget(many[3:], targets[3:])
    with pytest.warns(PrecisionWarning, match=r"expect [01]\.\d correct digits"):
        learner.predict(many[:2])
    with pytest.raises(InvalidInputError, match="too large for float32"):
        rt.StreamingRidge("linear", 1.0, precision="float32").learn(1e25 * many, targets)
    rt.StreamingRidge("linear", 1.0, precision="float64").learn(1e25 * many, targets)


@pytest.mark.slow
def test_a_million_samples_in_float32():
    random = np.random.default_rng(1)
    truth = random.normal(size=(16, 2))
    learners = [rt.StreamingRidge("linear", precision=each) for each in ("float64", "float32")]
    for _ in range(2000):
        part = random.normal(size=(500, 16)) + 1.0
        target = part @ truth + random.normal(size=(500, 2))
        for learner in learners:
            learner.learn(part, target)
    queries = random.normal(size=(50, 16))
    full, half = (learner.predict(queries) for learner in learners)
    assert_same(half, full, 1e-4)


@pytest.mark.parametrize("row", [3, 5, 30])
def test_the_row_that_is_wrong_is_named(row, monkeypatch):
    """Also behind the first portion, which is one sample, and the ones after it."""
    monkeypatch.setattr("retarget.streaming.ridge.rows.PORTION", {"cpu": 16})
    X, Y, weights = np.arange(80.0).reshape(40, 2), np.zeros(40), np.ones(40)
    weights[row] = -1.0
    inverse = rt.StreamingRidge(rt.Linear(), 1.0, views=[None, lambda X: 1 / (X - 2.0 * row)])
    plain = rt.StreamingRidge(rt.Linear(), 1.0)
    with np.errstate(divide="ignore"):
        for _ in range(2):
            with pytest.raises(InvalidInputError, match=f"a view of X holds inf in row {row};"):
                inverse.learn(X, Y)
            with pytest.raises(InvalidInputError, match=rf"weights holds -1.0 in row {row},"):
                plain.learn(X, Y, weights)
            inverse.learn(X[:1], Y[:1])  # the number of features is known from now on


@pytest.mark.parametrize("offset", [3e3, 1e4, 3e4])
def test_features_that_float32_cannot_tell_apart_are_refused(offset):
    """A ridge far below the rounding of their sums does not decide between them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2)) + offset
    Y = X @ [1.0, -1.0]
    with pytest.raises(NotPositiveDefiniteError, match="too small to decide") as told:
        rt.StreamingRidge(rt.Linear(), 1e-3, precision="float32").learn(X, Y).predict(X)
    good = rt.StreamingRidge(rt.Linear(), told.value.jitter, precision="float32").learn(X, Y)
    exact = rt.StreamingRidge(rt.Linear(), told.value.jitter).learn(X, Y)
    assert_same(good.predict(X), exact.predict(X), 0.1)
