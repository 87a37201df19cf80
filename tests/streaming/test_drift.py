"""Ridge regression of weights that drift, against its kernel and against sums over the stream."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from retarget.errors import InvalidInputError
from retarget.streaming.adaptive import LEVEL, DriftingWeights, one_thread


def stream(n, m, seed, outputs=2):
    random = np.random.default_rng(seed)
    Phi = random.normal(size=(n, m)) @ random.normal(size=(m, m)) / np.sqrt(m)
    Y = Phi @ random.normal(size=(m, outputs)) + 3.0 + random.normal(size=(n, outputs))
    return np.hstack([np.ones((n, 1)), Phi]), Y


def learned(Phi, Y, gamma, discount):
    """What is predicted for each sample before it is learned, and the weights at the end."""
    covariance, W = DriftingWeights(Phi.shape[1], gamma, discount), np.zeros((Phi.shape[1], 2))
    predicted = np.empty_like(Y)
    for t, phi in enumerate(Phi):
        predicted[t] = phi @ W
        W += np.outer(covariance.gain(phi), Y[t] - predicted[t])
        W[1:] *= discount
    return predicted, W, covariance


def kernel(Phi, discount):
    """The module's formula, typed literally."""
    t = np.arange(1, len(Phi) + 1)
    apart, earlier = np.abs(t[:, None] - t), np.minimum(t[:, None], t)
    alike = Phi[:, 1:] @ Phi[:, 1:].T
    return discount**apart * alike + LEVEL + (1 - discount**2) * (earlier - 1)


@pytest.mark.parametrize("discount", [1.0, 0.99, 0.6])
@pytest.mark.parametrize("gamma", [2.0, 0.03])
def test_each_prediction_is_that_of_the_offline_learner_with_the_drifting_kernel(discount, gamma):
    Phi, Y = stream(60, 4, seed=1)
    predicted, _, _ = learned(Phi, Y, gamma, discount)
    K = kernel(Phi, discount)
    for t in (1, 2, 17, 59):
        A = np.linalg.solve(K[:t, :t] + gamma * np.eye(t), Y[:t])
        np.testing.assert_allclose(predicted[t], K[t, :t] @ A, rtol=1e-8, atol=1e-8)


LENGTHS = [4_000, pytest.param(100_000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("length", LENGTHS)
def test_without_drift_the_weights_are_those_of_the_sums_however_long_the_stream(length):
    gamma, (Phi, Y) = 0.3, stream(length, 12, seed=2)
    _, W, covariance = learned(Phi, Y, gamma, 1.0)
    penalty = gamma * np.diag([1 / LEVEL] + [1.0] * 12)
    exact = np.linalg.solve(Phi.T @ Phi + penalty, Phi.T @ Y)
    np.testing.assert_allclose(W, exact, rtol=1e-8, atol=1e-8)
    inverse = np.linalg.inv(Phi.T @ Phi + penalty)
    np.testing.assert_allclose(covariance.covariance * len(Phi), gamma * inverse * len(Phi), 1e-6)


@pytest.mark.parametrize("length", LENGTHS)
def test_with_drift_nothing_of_the_distant_past_is_left(length):
    """Also no rounding errors: the last 1,000 samples, started from scratch, say the same."""
    Phi, Y = stream(length, 12, seed=3)
    _, long, _ = learned(Phi, Y, 0.3, 0.9)
    _, short, _ = learned(Phi[-1000:], Y[-1000:], 0.3, 0.9)
    np.testing.assert_allclose(long, short, rtol=1e-8, atol=1e-8)


def test_a_feature_that_appears_was_zero_until_then():
    Phi, Y = stream(40, 5, seed=4)
    Phi[:25, 4:] = 0
    _, W, whole = learned(Phi, Y, 0.2, 0.9)
    covariance, V = DriftingWeights(4, 0.2, 0.9), np.zeros((6, 2))
    for t, phi in enumerate(Phi):
        if t == 25:
            covariance.grow(6)
        known = len(covariance.covariance)
        V[:known] += np.outer(covariance.gain(phi[:known]), Y[t] - phi @ V)
        V[1:] *= 0.9
    np.testing.assert_allclose(V, W, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(covariance.covariance, whole.covariance, rtol=1e-10, atol=1e-12)


def test_features_of_any_size_leave_the_variance_of_no_prediction_negative():
    """Unscaled features (dates, populations) cost digits; they must not blow anything up."""
    random = np.random.default_rng(5)
    covariance, w = DriftingWeights(4, 1.0, 1.0), np.zeros(4)
    for _ in range(3000):
        phi = np.array([1.0, 7e9 + random.normal(), 40.0 + random.normal(), random.normal()])
        w += covariance.gain(phi) * (phi[3] + 2.0 - phi @ w)
    assert np.isfinite(w).all()
    assert abs(phi @ w - phi[3] - 2.0) < 0.2


@pytest.mark.parametrize(("gamma", "discount"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, 1.01)])
def test_impossible_options_are_refused(gamma, discount):
    with pytest.raises(InvalidInputError, match="expected"):
        DriftingWeights(3, gamma, discount)


def blas_threads():
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]


def test_blas_has_one_thread_and_gets_its_own_back():
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        with one_thread():
            assert set(blas_threads()) == {1}
        assert blas_threads() == before
