"""Ridge regression sample by sample, with and without drift, and features by name."""

import pickle
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.integrations.river_named import NamedFeatures
from retarget.integrations.river_ridge import (
    LEVEL,
    DriftingWeights,
    SequentialRidge,
    one_thread,
)
from support.interrupts import timed_interrupts


def stream(n=80, m=5, outputs=3, seed=0):
    random = np.random.default_rng(seed)
    Phi = random.normal(size=(n, m)) @ random.normal(size=(m, m)) / np.sqrt(m)
    return Phi, Phi @ random.normal(size=(m, outputs)) + random.normal(size=(n, outputs)) - 2.0


def learn_all(learner, Phi, Y):
    """What is predicted for each sample before it is learned."""
    predicted = []
    for phi, y in zip(Phi, Y, strict=True):
        predicted.append(learner.predict(phi) if learner.samples else np.zeros(len(y)))
        learner.learn(phi, y)
    return np.array(predicted)


@pytest.mark.parametrize(("discount", "gamma"), [(1.0, 0.03), (0.99, 2.0), (0.6, 0.03)])
def test_predictions_with_the_drifting_kernel(discount, gamma):
    Phi, Y = stream(60, 4, seed=1)
    predicted = learn_all(SequentialRidge(gamma, discount), Phi, Y)
    t = np.arange(1, len(Phi) + 1)  # the module's formula, typed literally
    apart, earlier = np.abs(t[:, None] - t), np.minimum(t[:, None], t)
    K = discount**apart * (Phi @ Phi.T) + LEVEL + (1 - discount**2) * (earlier - 1)
    for t in (1, 2, 17, 59):
        A = np.linalg.solve(K[:t, :t] + gamma * np.eye(t), Y[:t])
        np.testing.assert_allclose(predicted[t], K[t, :t] @ A, rtol=1e-8, atol=1e-8)


LENGTHS = [1_500, pytest.param(100_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("length", LENGTHS)
def test_weights_without_drift(length):
    Phi, Y = stream(length, 12, seed=2)
    learner = SequentialRidge(0.3, 1.0)
    learn_all(learner, Phi, Y)
    # the constant as a feature of its own, which the ridge holds down ten thousand times less
    wide, queries = (
        np.hstack([each, np.full((len(each), 1), np.sqrt(LEVEL))]) for each in (Phi, Phi[:50])
    )
    exact = rt.StreamingRidge(rt.Linear(), gamma=0.3).learn(wide, Y)
    found = learner.predict(Phi[:50])
    np.testing.assert_allclose(found, exact.predict(queries), rtol=1e-8, atol=1e-8)
    inverse = np.linalg.inv(wide.T @ wide + 0.3 * np.eye(13))[:12, :12]
    covariance = learner._learned.covariance.covariance[1:, 1:]
    np.testing.assert_allclose(covariance * length, 0.3 * inverse * length, 1e-6)


@pytest.mark.parametrize("length", LENGTHS)
def test_drift_forgets_the_distant_past(length):
    """Also no rounding errors: the last 1,000 samples, started from scratch, say the same."""
    Phi, Y = stream(length, 12, seed=3)
    long, short = SequentialRidge(0.3, 0.9), SequentialRidge(0.3, 0.9)
    learn_all(long, Phi, Y)
    learn_all(short, Phi[-1000:], Y[-1000:])
    np.testing.assert_allclose(long.predict(Phi[:9]), short.predict(Phi[:9]), rtol=1e-8, atol=1e-8)


def test_nothing_is_forgotten_unless_a_discount_is_given():
    """A stream whose second half contradicts the first, in two orders: the end is the same."""
    Phi, Y = stream(300, seed=4)
    Y[150:] *= -3.0
    there, back = SequentialRidge(), SequentialRidge()
    learn_all(there, Phi, Y)
    learn_all(back, Phi[::-1], Y[::-1])
    np.testing.assert_allclose(there.predict(Phi), back.predict(Phi), rtol=1e-8, atol=1e-8)


def test_no_variance_is_negative():
    """Unscaled features (dates, populations) cost digits; they must not blow anything up."""
    random = np.random.default_rng(5)
    covariance, w = DriftingWeights(4, 1.0, 1.0), np.zeros(4)
    for _ in range(3000):
        phi = np.array([1.0, 7e9 + random.normal(), 40.0 + random.normal(), random.normal()])
        gain, covariance, updates = covariance.step(phi)
        for update in updates:
            update()
        w += gain * (phi[3] + 2.0 - phi @ w)
    assert np.isfinite(w).all()
    assert abs(phi @ w - phi[3] - 2.0) < 0.2


def test_blas_has_one_thread():
    def threads():
        return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]

    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with one_thread():
            assert set(threads()) == {1}
        assert threads() == before


def test_outputs_and_features_that_come_later_were_zero():
    """And a learner that was pickled on the way goes on as if nothing had happened."""
    Phi, Y = stream()
    Phi[:30, 3:], Y[:50, 2] = 0, 0
    whole, growing = SequentialRidge(), SequentialRidge()
    learn_all(whole, Phi, Y)
    for t, (phi, y) in enumerate(zip(Phi, Y, strict=True)):
        growing.learn(phi if t >= 30 else phi[:3], y if t >= 50 else y[:2])
        if t == 40:
            twin = pickle.loads(pickle.dumps(growing))
        elif t > 40:
            twin.learn(phi, y if t >= 50 else y[:2])
    found = growing.predict(Phi)
    np.testing.assert_allclose(found, whole.predict(Phi), rtol=1e-9, atol=1e-11)
    np.testing.assert_array_equal(growing.predict(np.hstack([Phi, Phi])), found)
    np.testing.assert_array_equal(twin.predict(Phi), found)
    with pytest.raises(InvalidInputError, match="expected at least 5 and 3"):
        growing.learn(Phi[0, :4], Y[0])


def test_a_sample_that_is_interrupted_changes_nothing(monkeypatch):
    Phi, Y = stream(12)
    learner = SequentialRidge()
    learn_all(learner, Phi[:9, :3], Y[:9, :2])
    before, step = pickle.dumps(learner), DriftingWeights.step

    def interrupted(each, phi):
        step(each, phi)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DriftingWeights, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            learner.learn(Phi[9], Y[9])
    assert pickle.dumps(learner) == before


@pytest.mark.parametrize("options", [{}, {"gamma": 3.0, "discount": 0.8}])
@pytest.mark.parametrize("size", [1, 7, 64, 200])
def test_many_at_once_are_one_by_one(options, size, monkeypatch):
    """Features and outputs come later here too."""
    Phi, Y = stream(200)
    Phi[:70, 3:], Y[:70, 2], Y[100:] = 0, 0, -Y[100:]
    one, many = SequentialRidge(**options), SequentialRidge(**options)
    learn_all(one, Phi, Y)
    monkeypatch.setattr(SequentialRidge, "learn", None)  # none of them is learned alone
    many.learn_many(Phi[:70, :3], Y[:70, :2])
    for first in range(70, 200, size):
        rows = slice(first, first + size)
        many.learn_many(Phi[rows], Y[rows])
    assert many.samples == one.samples == 200
    found, expected = many._learned, one._learned
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-8, atol=1e-8)
    mine, other = found.covariance.covariance, expected.covariance.covariance
    np.testing.assert_allclose(mine, other, rtol=1e-8, atol=1e-8)


def test_where_one_by_one_keeps_more_digits():
    Phi, Y = stream(60)  # one block
    one, many = SequentialRidge(1e-5, 1.0), SequentialRidge(1e-5, 1.0)
    learn_all(one, 1e4 * Phi, Y)
    many.learn_many(1e4 * Phi, Y)
    np.testing.assert_array_equal(many._learned.weights, one._learned.weights)
    with pytest.raises(InvalidInputError, match="expected at least 5 and 3"):
        many.learn_many(Phi[:, :4], Y)


def test_many_at_once_that_are_interrupted_change_nothing(monkeypatch):
    Phi, Y = stream(200)
    learner = SequentialRidge()
    learner.learn_many(Phi[:9], Y[:9])
    before, block, calls = pickle.dumps(learner), DriftingWeights.block, []

    def interrupted(each, phi):
        calls.append(each)
        if len(calls) == 2:  # in the second block
            raise KeyboardInterrupt
        return block(each, phi)

    monkeypatch.setattr(DriftingWeights, "block", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learner.learn_many(Phi[9:], Y[9:])
    assert pickle.dumps(learner) == before


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer sends signals")
def test_interrupts_between_samples():
    """The signals are real: a timer of the system interrupts the call at random moments."""
    if sys.gettrace() is not None:
        pytest.skip("coverage has a lock of its own, which an interrupt can leave locked")
    Phi, Y = stream(400, 60)
    learner, twin, random, hits = SequentialRidge(), SequentialRidge(), np.random.default_rng(0), 0

    with timed_interrupts() as timer:
        for phi, y in zip(Phi, Y, strict=True):
            known, delay = learner.samples, random.uniform(1e-5, 2e-4)
            hits += timer.interrupts(lambda phi=phi, y=y: learner.learn(phi, y), delay)
            if learner.samples > known:
                twin.learn(phi, y)
            mine, other = learner._learned, twin._learned
            np.testing.assert_array_equal(mine.weights, other.weights)
            np.testing.assert_array_equal(mine.covariance.covariance, other.covariance.covariance)
    assert hits > 20


def test_threads_that_share_a_learner_lose_no_sample():
    Phi, Y = stream(400)
    shared, alone = SequentialRidge(0.3, 1.0), SequentialRidge(0.3, 1.0)
    learn_all(alone, Phi, Y)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # without turns, this many switches lose samples
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(shared.learn, Phi, Y))
    finally:
        sys.setswitchinterval(interval)
    assert shared.samples == 400
    np.testing.assert_allclose(shared.predict(Phi), alone.predict(Phi), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SequentialRidge("auto"), InvalidTypeError, "gamma is 'auto'; expected a number"),
        (lambda: SequentialRidge((1.0, 2.0)), InvalidTypeError, r"gamma is \(1.0, 2.0\); expected"),
        (lambda: SequentialRidge(0.0), InvalidInputError, "gamma is 0.0"),
        (lambda: SequentialRidge(discount=None), InvalidTypeError, "discount is None"),
        (
            lambda: SequentialRidge(discount=1.01),
            InvalidInputError,
            "discount is 1.01; expected ab",
        ),
        (lambda: SequentialRidge(discount=0.0), InvalidInputError, "discount is 0.0"),
        (lambda: NamedFeatures("tree"), InvalidInputError, "'tree'; expected 'linear', or a kern"),
    ],
)
def test_impossible_choices_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_random_features_whatever_the_order_of_names():
    random = np.random.default_rng(1)
    names = [f"column {i}" for i in range(6)]
    X = random.normal(size=(30, 6))
    features, turned = (NamedFeatures(rt.RBF(3.0), features=20_000) for _ in range(2))
    Phi = np.array([features.meet(dict(zip(names, x, strict=True))) for x in X])
    other = [turned.meet(dict(zip(names[::-1], x[::-1], strict=True))) for x in X]
    np.testing.assert_array_equal(Phi, np.array(other))
    K = rt.RBF(3.0)(X) + X @ X.T / 9.0
    np.testing.assert_allclose(Phi @ Phi.T, K, atol=0.05)
    np.testing.assert_allclose(features.rows(names, X), Phi, rtol=1e-12, atol=1e-12)


def test_a_new_name_changes_nothing_that_was_there():
    features, known = NamedFeatures("rbf", features=8), {"b": 1.0, "a": 2.0, "c": 3.0, "d": 0.5}
    before = features.meet(known)
    np.testing.assert_array_equal(features(known | {"z": 4.0}), before)
    # asked for first, and learned afterwards: it is known from then on
    after = features.meet(known | {"z": 4.0})
    assert features.names == ["a", "b", "c", "d", "z"]
    assert after[-1] == 4.0 / 2.0  # the width is the root of the four names that came first
    np.testing.assert_array_equal(features(known)[:-1], before)
    np.testing.assert_allclose(features({})[:8], [0.5] * 4 + [0.0] * 4)
    features.meet({1: 1.0, "1": 1.0})  # names of two types do not share frequencies
    assert not np.allclose(features({1: 1.0})[:8], features({"1": 1.0})[:8])


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        ({"a": "red"}, InvalidTypeError, "not a number .*encode words"),
        ({"a": None}, InvalidInputError, "not finite"),
        ({"a": float("nan")}, InvalidInputError, "not finite.*fill in missing"),
        ({"a": 1e91}, InvalidInputError, r"larger than 1e\+90"),
        (dict.fromkeys("abc", 1.0), InvalidInputError, "one of 3 features; expected at most 2"),
    ],
)
def test_samples_without_features_are_refused(sample, error, message):
    features = NamedFeatures(most=2)
    with pytest.raises(error, match=message):
        features.meet(sample)
    assert features.names == []
