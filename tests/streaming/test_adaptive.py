"""Ridge regression of weights that drift, several of them side by side, and features by name."""

import pickle

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.streaming.adaptive import FORGET, LEVEL, AdaptiveRidge, DriftingWeights, one_thread
from retarget.streaming.named import NamedFeatures


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


@pytest.mark.parametrize("discount", [1.0, 0.99, 0.6])
@pytest.mark.parametrize("gamma", [2.0, 0.03])
def test_each_prediction_is_that_of_the_offline_learner_with_the_drifting_kernel(discount, gamma):
    Phi, Y = stream(60, 4, seed=1)
    predicted = learn_all(AdaptiveRidge(gamma, discount), Phi, Y)
    t = np.arange(1, len(Phi) + 1)  # the module's formula, typed literally
    apart, earlier = np.abs(t[:, None] - t), np.minimum(t[:, None], t)
    K = discount**apart * (Phi @ Phi.T) + LEVEL + (1 - discount**2) * (earlier - 1)
    for t in (1, 2, 17, 59):
        A = np.linalg.solve(K[:t, :t] + gamma * np.eye(t), Y[:t])
        np.testing.assert_allclose(predicted[t], K[t, :t] @ A, rtol=1e-8, atol=1e-8)


LENGTHS = [4_000, pytest.param(100_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("length", LENGTHS)
def test_without_drift_the_weights_are_those_of_the_sums_however_long_the_stream(length):
    Phi, Y = stream(length, 12, seed=2)
    learner = AdaptiveRidge(0.3, 1.0)
    learn_all(learner, Phi, Y)
    # the constant as a feature of its own, which the ridge holds down ten thousand times less
    wide, queries = (
        np.hstack([each, np.full((len(each), 1), np.sqrt(LEVEL))]) for each in (Phi, Phi[:50])
    )
    exact = rt.StreamingRidge(rt.Linear(), gamma=0.3).learn(wide, Y)
    found = learner.predict(Phi[:50])
    np.testing.assert_allclose(found, exact.predict(queries), rtol=1e-8, atol=1e-8)
    inverse = np.linalg.inv(wide.T @ wide + 0.3 * np.eye(13))[:12, :12]
    covariance = learner._covariances[0].covariance[1:, 1:]
    np.testing.assert_allclose(covariance * length, 0.3 * inverse * length, 1e-6)


@pytest.mark.parametrize("length", LENGTHS)
def test_with_drift_nothing_of_the_distant_past_is_left(length):
    """Also no rounding errors: the last 1,000 samples, started from scratch, say the same."""
    Phi, Y = stream(length, 12, seed=3)
    long, short = AdaptiveRidge(0.3, 0.9), AdaptiveRidge(0.3, 0.9)
    learn_all(long, Phi, Y)
    learn_all(short, Phi[-1000:], Y[-1000:])
    np.testing.assert_allclose(long.predict(Phi[:9]), short.predict(Phi[:9]), rtol=1e-8, atol=1e-8)


def test_features_of_any_size_leave_the_variance_of_no_prediction_negative():
    """Unscaled features (dates, populations) cost digits; they must not blow anything up."""
    random = np.random.default_rng(5)
    covariance, w = DriftingWeights(4, 1.0, 1.0), np.zeros(4)
    for _ in range(3000):
        phi = np.array([1.0, 7e9 + random.normal(), 40.0 + random.normal(), random.normal()])
        w += covariance.gain(phi) * (phi[3] + 2.0 - phi @ w)
    assert np.isfinite(w).all()
    assert abs(phi @ w - phi[3] - 2.0) < 0.2


def blas_threads():
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]


def test_blas_has_one_thread_and_gets_its_own_back():
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        with one_thread():
            assert set(blas_threads()) == {1}
        assert blas_threads() == before


def test_the_pair_with_the_smallest_errors_of_late_predicts():
    """By a loop over learners of one pair each, which are compared by the formula."""
    Phi, Y = stream(n=150)
    Y[75:] *= -1.0
    gammas, discounts = (3.0, 0.2), (1.0, 0.95, 0.7)
    learner = AdaptiveRidge(gammas, discounts)
    chosen = learn_all(learner, Phi, Y)
    pairs = [(gamma, discount) for gamma in gammas for discount in discounts]
    alone = [learn_all(AdaptiveRidge(*pair), Phi, Y) for pair in pairs]
    errors, used = np.zeros(len(pairs)), []
    for t, y in enumerate(Y):
        best = int(errors.argmin())
        np.testing.assert_allclose(chosen[t], alone[best][t], rtol=1e-9, atol=1e-12)
        errors = FORGET * errors + [np.sum((each[t] - y) ** 2) for each in alone]
        used.append(best)
    assert (learner.gamma, learner.discount) == pairs[int(errors.argmin())]
    assert len(set(used[10:])) > 1  # the stream has a break, at which the choice changes


def test_outputs_and_features_that_come_later_were_zero():
    Phi, Y = stream()
    Phi[:30, 3:], Y[:50, 2] = 0, 0
    whole, growing = AdaptiveRidge(), AdaptiveRidge()
    learn_all(whole, Phi, Y)
    for t, (phi, y) in enumerate(zip(Phi, Y, strict=True)):
        growing.learn(phi if t >= 30 else phi[:3], y if t >= 50 else y[:2])
    np.testing.assert_allclose(growing.predict(Phi), whole.predict(Phi), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(
        growing.predict(np.hstack([Phi, Phi])), growing.predict(Phi), rtol=0, atol=0
    )
    with pytest.raises(InvalidInputError, match="expected at least 5 and 3"):
        growing.learn(Phi[0, :4], Y[0])


def test_a_pickled_learner_goes_on_as_if_nothing_had_happened():
    Phi, Y = stream()
    learner = AdaptiveRidge()
    learn_all(learner, Phi[:40], Y[:40])
    twin = pickle.loads(pickle.dumps(learner))
    for each in (learner, twin):
        learn_all(each, Phi[40:], Y[40:])
    np.testing.assert_array_equal(learner.predict(Phi), twin.predict(Phi))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gamma": "best"}, InvalidInputError, "gamma is 'best'; expected 'auto', a number"),
        ({"gamma": ()}, InvalidInputError, r"gamma is \(\); expected"),
        ({"gamma": (1.0, True)}, InvalidTypeError, "expected 'auto', a number, or a seq"),
        ({"discount": None}, InvalidTypeError, "discount is None"),
        ({"discount": 1.01}, InvalidInputError, "discount is 1.01; expected above 0"),
        ({"discount": 0.0}, InvalidInputError, "discount is 0.0"),
        ({"gamma": (1.0, 0.0)}, InvalidInputError, "gamma is 0.0"),
        ({"gamma": -1.0}, InvalidInputError, "gamma is -1.0"),
    ],
)
def test_impossible_choices_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        AdaptiveRidge(**options)


def test_random_features_come_near_the_kernel_whatever_the_order_of_names():
    random = np.random.default_rng(1)
    names = [f"column {i}" for i in range(6)]
    X = random.normal(size=(30, 6))
    features, turned = (NamedFeatures(rt.RBF(3.0), memory=20_000) for _ in range(2))
    Phi = np.array([features.meet(dict(zip(names, x, strict=True))) for x in X])
    other = [turned.meet(dict(zip(names[::-1], x[::-1], strict=True))) for x in X]
    np.testing.assert_array_equal(Phi, np.array(other))
    K = rt.RBF(3.0)(X) + X @ X.T / 9.0
    np.testing.assert_allclose(Phi @ Phi.T, K, atol=0.05)
    np.testing.assert_allclose(features.rows(names, X), Phi, rtol=1e-12, atol=1e-12)


def test_a_new_name_changes_nothing_that_was_there():
    features = NamedFeatures("rbf", memory=8)
    before = features.meet({"b": 1.0, "a": 2.0, "c": 3.0, "d": 0.5})
    unknown = features({"a": 2.0, "b": 1.0, "c": 3.0, "d": 0.5, "z": 4.0})
    np.testing.assert_array_equal(unknown, before)
    # asked for first, and learned afterwards: it is known from then on
    after = features.meet({"a": 2.0, "b": 1.0, "c": 3.0, "d": 0.5, "z": 4.0})
    assert features.names == ["a", "b", "c", "d", "z"]
    assert after[-1] == 4.0 / 2.0  # the width is the root of the four names that came first
    np.testing.assert_array_equal(features({"a": 2.0, "b": 1.0, "c": 3.0, "d": 0.5})[:-1], before)
    np.testing.assert_allclose(features({})[:8], [0.5] * 4 + [0.0] * 4)


def test_names_of_two_types_do_not_share_frequencies():
    features = NamedFeatures("rbf", memory=4)
    features.meet({1: 1.0, "1": 1.0})
    one, text = (features({name: 1.0}) for name in (1, "1"))
    assert not np.allclose(one[:4], text[:4])


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        ({"a": "red"}, InvalidTypeError, "not a number .*encode words"),
        ({"a": None}, InvalidInputError, "not finite"),
        ({"a": float("nan")}, InvalidInputError, "not finite.*fill in missing"),
        ({"a": 1e91}, InvalidInputError, "larger than 1e\\+90"),
        (
            {"a": 1.0, "b": 1.0, "c": 1.0},
            InvalidInputError,
            "one of 3 features; expected at most 2",
        ),
    ],
)
def test_samples_that_have_no_features_are_refused_and_change_nothing(sample, error, message):
    features = NamedFeatures(most=2)
    with pytest.raises(error, match=message):
        features.meet(sample)
    assert features.names == []


def test_other_features_are_refused():
    with pytest.raises(InvalidInputError, match="expected 'linear', 'rbf' or rt.RBF"):
        NamedFeatures("tree")
