"""Blocks whose kernel is singular: repeats, or fewer features than samples. They have a solution.

K is positive semi-definite, so what a block inherits and aims at lies in the range of K_nn; the
function is unique, and of the coefficients the ones of least norm are the limit of a small ridge.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import NotPositiveDefiniteError
from support.problems import assert_same


def least_norm_sweep(K, Y, eta, gamma, b):
    """The sweep typed literally, with a pseudo-inverse: A_n = K_nn^+ (F_n - K_np A_p)."""
    A, Z = np.zeros_like(Y), np.zeros_like(Y)
    for start in range(0, len(K), b):
        n, seen = slice(start, min(start + b, len(K))), slice(0, min(start + b, len(K)))
        off = np.linalg.solve(gamma * np.eye(seen.stop) + K[seen, seen], Y[seen])
        F, f = K[n, seen] @ off, K[n, :start] @ A[:start]
        A[n] = np.linalg.pinv(K[n, n], rcond=1e-12, hermitian=True) @ (F - f)
        Z[n] = f + A[n] / eta + np.tril(K[n, n], -1) @ A[n]
    return Z


@given(
    seed=st.integers(0, 999), d=st.integers(1, 4), n=st.integers(1, 35), b=st.integers(2, 12),
    eta=st.floats(0.02, 0.2), gamma=st.floats(0.1, 3.0),
)  # fmt: skip
def test_fewer_features_than_samples_in_a_block(seed, d, n, b, eta, gamma):
    rng = np.random.default_rng(seed)
    X, Y = rng.uniform(-1, 1, size=(n, d)) + np.eye(n, d), rng.normal(size=(n, 2))
    K, learner = X @ X.T, rt.SGD(lr=eta)
    Z = rt.iterative_targets(K, Y, learner, gamma, b)
    expected = least_norm_sweep(K, Y, eta, gamma, b)
    smallest = min(
        np.linalg.svd(X[s : s + b], compute_uv=False)[: min(d, n - s, b)].min()
        for s in range(0, n, b)
    )
    assert_same(Z, expected, 1e-10 * max(1.0, np.abs(expected).max()) / min(1, smallest) ** 2)
    corrector = rt.TargetCorrector(rt.Linear(), learner, gamma, b)
    streamed = np.concatenate([corrector.correct(X, Y), corrector.flush()])
    assert_same(streamed, Z, 1e-10 * max(1.0, np.abs(Z).max()) / min(1, smallest) ** 2)


def test_after_each_block_the_learner_agrees_with_the_offline_one():
    rng = np.random.default_rng(3)
    X, Y = rng.normal(size=(60, 3)), rng.normal(size=(60, 2))
    K, learner, b = X @ X.T, rt.SGD(lr=0.05, batch_size=2), 10
    Z = rt.iterative_targets(K, Y, learner, 0.7, b)
    for stop in range(b, 61, b):
        seen, block = slice(0, stop), slice(stop - b, stop)
        online = rt.online_coefficients(K[seen, seen], Z[seen], learner)
        offline = rt.offline_coefficients(K[seen, seen], Y[seen], 0.7)
        assert_same(K[block, seen] @ online, K[block, seen] @ offline)


@pytest.mark.parametrize(
    "learner",
    [
        rt.SGD(lr=0.1),
        rt.SGD(lr=0.1, batch_size=2, reduction="mean"),
        rt.SGD(lr=0.05, momentum=0.6),
        rt.SGD(lr=0.05, momentum=0.4, nesterov=True, weight_decay=0.2),
    ],
    ids=str,
)
def test_repeats_within_a_block_give_the_targets_of_the_limit(learner):
    rng = np.random.default_rng(11)
    X = rng.normal(size=(12, 4))
    X = X[[0, 1, 1, 0, 2, 3, 2, 2, 4, 4, 4, 4, 5, 6, 7, 5]]
    Y = rng.normal(size=16)
    K = rt.RBF(1.5)(X)
    Z = rt.iterative_targets(K, Y, learner, 0.5, 4)
    gaps = [
        np.abs(rt.iterative_targets(K, Y, learner, 0.5, 4, ridge=ridge) - Z).max()
        for ridge in (1e-4, 1e-6)
    ]
    assert gaps[1] < 1e-3 * np.abs(Z).max()
    assert gaps[1] < 0.05 * gaps[0]  # in proportion to the ridge: this is where it goes


@pytest.mark.parametrize("parts", ["online", "offline"])
def test_half_a_correction_has_no_limit_and_says_so(parts):
    """Its aim is Y itself, which two samples that are the same need not share."""
    K = np.ones((4, 4)) - 1e-12 * np.eye(4)
    with pytest.raises(NotPositiveDefiniteError, match=r"block of samples 0 to 1.*ridge = "):
        rt.iterative_targets(K, np.arange(4.0), rt.SGD(0.1), 1.0, 2, parts=parts)


def test_a_block_of_zeros_learns_nothing():
    K = np.zeros((4, 4))
    K[2:, 2:] = np.eye(2)
    Z = rt.iterative_targets(K, np.ones(4), rt.SGD(0.5), 1.0, 2)
    np.testing.assert_allclose(Z, [0, 0, 1, 1], atol=1e-12)
