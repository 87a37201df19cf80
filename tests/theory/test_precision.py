"""Digits that are lost are announced: the condition is estimated, not guessed from the pivots."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import DivergenceWarning, NotPositiveDefiniteError, PrecisionWarning
from retarget.theory.cholesky import factorise, inverse_norm
from support.problems import core_functions, make_stream

LEARNER = rt.SGD(lr=0.3)


@given(seed=st.integers(0, 999), n=st.integers(1, 40), spread=st.floats(0, 12))
def test_the_estimate_is_a_lower_bound_near_the_truth(seed, n, spread):
    """Symmetric matrices with eigenvalues from 1 down to 10^-spread, in any direction."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    M = (Q * np.logspace(0, -spread, n)) @ Q.T
    inverse = (Q * np.logspace(0, spread, n)) @ Q.T
    true = np.abs(inverse).sum(axis=0).max()
    estimate = float(inverse_norm(lambda rhs: torch.tensor(inverse) @ rhs, torch.tensor(M)))
    assert true / 3 <= estimate <= true * (1 + 1e-9)


def test_the_estimate_of_many_matrices_is_that_of_each():
    rng = np.random.default_rng(5)
    inverses = torch.tensor(rng.normal(size=(7, 9, 9)))
    inverses = inverses @ inverses.mT
    together = inverse_norm(lambda rhs: inverses @ rhs, inverses)
    for inverse, estimate in zip(inverses, together, strict=True):
        alone = inverse_norm(lambda rhs, inverse=inverse: inverse @ rhs, inverse)
        assert float(alone) <= float(estimate) * (1 + 1e-12)
        assert float(estimate) <= float(inverse.abs().sum(0).max()) * (1 + 1e-12)


@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_a_sorted_stream_is_announced_as_a_shuffled_one_is(order):
    """Sorted, no pivot is small although the condition is 5e15: only an estimate can tell."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(size=300))
    X = X if order == "sorted" else rng.permutation(X)
    K = rt.RBF(0.2)(X)
    for gamma, least in ((1e-2, 1e4), (1e-10, 10)):  # where digits are plenty, one solve is enough
        true = np.linalg.cond(K + gamma * np.eye(300), 1)
        assert true / least < factorise(torch.tensor(K), gamma).condition < true * 1.01
    X = X[::4]
    K = rt.RBF(0.2)(X) + 1e-13 * np.eye(75)  # so that it can be factorised on every CPU
    with pytest.warns(PrecisionWarning, match="condition number of about"):
        rt.offline_coefficients(K, np.sin(6 * X), 3e-14)


def factorising(gamma):
    """The functions that factorise a kernel."""
    core = core_functions(LEARNER, gamma, 5, 0.05)
    names = ["offline_coefficients", "corrected_targets", "distilled_targets", "iterative_targets"]

    def tracked(K, Y):
        tracker = rt.CorrectionTracker(K, LEARNER, gamma)
        tracker.update(np.arange(len(K)), Y)
        return tracker.corrected_targets

    def streamed(K, Y):
        return rt.TargetCorrector(K, LEARNER, gamma, 5, 0.05).correct(np.arange(len(K)), Y)

    return {name: core[name] for name in names} | {"tracked": tracked, "streamed": streamed}


@pytest.mark.parametrize("name", factorising(1.0))
@pytest.mark.parametrize("gamma", [1e-1, 1e-3, 1e-5, 1e-6])
def test_float32_that_is_off_by_a_percent_is_announced(name, gamma):
    """Samples that come again in other blocks: the block's own kernel is as good as any."""
    rng = np.random.default_rng(2)
    X = np.tile(rng.normal(size=(40, 3)), (3, 1))
    Y = rng.normal(size=120).astype(np.float32)
    K = rt.RBF(2.0)(X).astype(np.float32)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            got = factorising(gamma)[name](K, Y)
        except NotPositiveDefiniteError:
            return
    expected = factorising(gamma)[name](K.astype(float), Y.astype(float))
    off = np.abs(got - expected).max() / np.abs(expected).max()
    announced = any(issubclass(one.category, PrecisionWarning) for one in told)
    assert off < 1e-2 or announced, off
    assert off > 1e-5 or not announced, off


def test_it_is_said_once_however_small_the_portions_and_at_the_callers_own_line():
    stream = make_stream(60, 1, seed=0)
    K = (stream.K + 1e6 + np.eye(60)).astype(np.float32)
    Y, learner = stream.Y.astype(np.float32), rt.SGD(1e-7)
    tracker = rt.CorrectionTracker(K, learner, 0.1)
    corrector = rt.TargetCorrector(K, learner, 0.1, 1)
    for call in (
        lambda: [tracker.update(np.array([i]), Y[i : i + 1]) for i in range(60)],
        lambda: [corrector.correct(np.array([i]), Y[i : i + 1]) for i in range(60)],
        lambda: rt.offline_coefficients(K, Y, 0.1),
        lambda: rt.iterative_targets(K, Y, learner, 0.1, 3, 1.0),
    ):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            call()
        assert [(one.category, one.filename) for one in told] == [(PrecisionWarning, __file__)]
    with pytest.warns(DivergenceWarning) as told:
        rt.prequential_errors(K.astype(float), Y, rt.SGD(lr=0.1))
    assert {one.filename for one in told} == {__file__}
