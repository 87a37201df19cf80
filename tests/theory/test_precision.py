"""Digits that are lost are announced: the condition is estimated, not guessed from the pivots."""

import re
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.engine.cholesky import GrowingCholesky, factorize
from retarget.engine.condition import inverse_norm
from retarget.errors import (
    DivergenceWarning,
    InvalidInputError,
    NotPositiveDefiniteError,
    PrecisionWarning,
)
from support.problems import core_functions, make_stream, panels_of

LEARNER = rt.SGD(lr=0.3)


@given(seed=st.integers(0, 999), n=st.integers(1, 40), spread=st.floats(0, 12))
def test_the_estimate_is_a_lower_bound(seed, n, spread):
    """Symmetric matrices with eigenvalues from 1 down to 10^-spread, in any direction."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    M = (Q * np.logspace(0, -spread, n)) @ Q.T
    inverse = (Q * np.logspace(0, spread, n)) @ Q.T
    true = np.abs(inverse).sum(axis=0).max()
    estimate = float(inverse_norm(lambda rhs: torch.tensor(inverse) @ rhs, torch.tensor(M)))
    assert true / 3 <= estimate <= true * (1 + 1e-9)


def test_estimates_of_many_matrices():
    rng = np.random.default_rng(5)
    inverses = torch.tensor(rng.normal(size=(7, 9, 9)))
    inverses = inverses @ inverses.mT
    together = inverse_norm(lambda rhs: inverses @ rhs, inverses)
    for inverse, estimate in zip(inverses, together, strict=True):
        alone = inverse_norm(lambda rhs, inverse=inverse: inverse @ rhs, inverse)
        assert float(alone) <= float(estimate) * (1 + 1e-12)
        assert float(estimate) <= float(inverse.abs().sum(0).max()) * (1 + 1e-12)


@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_sorted_and_shuffled_streams(order):
    """Sorted, no pivot is small although the condition is 5e15: only an estimate can tell."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(size=300))
    X = X if order == "sorted" else rng.permutation(X)
    K = rt.RBF(0.2)(X)
    for gamma, least in ((1e-2, 1e4), (1e-10, 10)):  # where digits are plenty, one solve is enough
        true = np.linalg.cond(K + gamma * np.eye(300), 1)
        assert true / least < factorize(torch.tensor(K), gamma).condition < true * 1.01
    X = X[::4]
    K = rt.RBF(0.2)(X) + 1e-13 * np.eye(75)  # so that it can be factorized on every CPU
    with pytest.warns(PrecisionWarning, match="condition number of about"):
        rt.offline_coefficients(K, np.sin(6 * X), 3e-14)


def factorizing(gamma):
    """The functions that factorize a kernel."""
    core = core_functions(LEARNER, gamma, 5, 0.05)
    names = ["offline_coefficients", "corrected_targets", "distilled_targets", "iterative_targets"]

    def tracked(K, Y):
        tracker = rt.CorrectionTracker(K, LEARNER, gamma)
        tracker.update(np.arange(len(K)), Y)
        return tracker.corrected_targets

    def streamed(K, Y):
        return rt.TargetCorrector(K, LEARNER, gamma, 5, 0.05).correct(np.arange(len(K)), Y)

    return {name: core[name] for name in names} | {"tracked": tracked, "streamed": streamed}


@pytest.mark.parametrize("name", factorizing(1.0))
@pytest.mark.parametrize("gamma", [1e-1, 1e-3, 1e-5, 1e-6])
def test_float32_off_by_a_percent(name, gamma):
    """Samples that come again in other blocks: the block's own kernel is as good as any."""
    rng = np.random.default_rng(2)
    X = np.tile(rng.normal(size=(40, 3)), (3, 1))
    Y = rng.normal(size=120).astype(np.float32)
    K = rt.RBF(2.0)(X).astype(np.float32)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            got = factorizing(gamma)[name](K, Y)
        except NotPositiveDefiniteError:
            return
    expected = factorizing(gamma)[name](K.astype(float), Y.astype(float))
    off = np.abs(got - expected).max() / np.abs(expected).max()
    announced = any(issubclass(one.category, PrecisionWarning) for one in told)
    assert off < 1e-2 or announced, off
    assert off > 1e-5 or not announced, off


def test_it_is_said_once():
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


# --- announced exactly where it is true: rational arithmetic is the oracle


def exact_solution(M, Y):
    """Gaussian elimination in fractions; None if the matrix, taken as it is, is singular."""
    n = len(M)
    rows = [[Fraction(float(value)) for value in (*M[i], *Y[i])] for i in range(n)]
    for i in range(n):
        if rows[i][i] == 0:
            return None
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for other in range(n):
            if other != i and rows[other][i]:
                factor = rows[other][i]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[i], strict=True)]
    return np.array([[float(value) for value in row[n:]] for row in rows])


def relative_error(found, expected, share):
    """The largest over the columns, of the samples' shares in the function."""
    gap = np.linalg.norm(share * (found - expected), axis=0)
    return np.max(gap / np.linalg.norm(share * expected, axis=0))


def moved_by_rounding(K, Y, expected, share):
    """How far the exact solution moves if entries of K are rounded differently, at most of four."""
    moved = []
    for seed in range(4):
        last_digit = np.random.default_rng(seed).uniform(-1, 1, K.shape) * np.finfo(K.dtype).eps
        other = K.astype(float) * (1 + last_digit + last_digit.T)
        solution = exact_solution(other, Y)
        moved.append(np.inf if solution is None else relative_error(solution, expected, share))
    return max(moved)


def hard_problem(rng, dtype):
    """A kernel of any condition, whose samples have sizes that are up to eight digits apart."""
    n, most = int(rng.integers(3, 8)), 8 if dtype == np.float32 else 17
    Q, spread = np.linalg.qr(rng.normal(size=(n, n)))[0], rng.uniform(0, most)
    eigenvalues = [
        np.logspace(0, -spread, n),
        np.append(np.ones(n - 1), 10**-spread),
        np.append(np.full(n - 1, 10**-spread), 1.0),
    ][rng.integers(3)]
    K = (Q * eigenvalues) @ Q.T
    size = 10 ** (rng.choice([0, 2, 4]) * rng.uniform(-1, 1, size=n)) / np.sqrt(np.diag(K))
    K = (K * size[:, None] * size).astype(dtype)
    return (K + K.T) / 2, rng.normal(size=(n, 4)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_digits_lost_where_they_are(dtype):
    """The error is that of the samples' shares in the function, relative to all of them.

    A miss is an error above a percent without a warning: there is none. A false alarm is a warning
    of less than two digits where there are six (in float32 four): rounding errors can cancel by
    luck, in one of a hundred problems at most. Some CPUs compute small matrices more precisely than
    their type. So a warning is also right if rounding of the kernel alone moves the solution.
    """
    problems, told_of, alarms = 300, 0, 0
    few = 1e-6 if dtype == np.float64 else 1e-4
    for seed in range(problems):
        K, Y = hard_problem(np.random.default_rng(seed), dtype)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", PrecisionWarning)
            try:
                found = rt.offline_coefficients(K, Y, 0.0)
            except NotPositiveDefiniteError:
                continue
        share = np.sqrt(np.diag(K).astype(float))[:, None]
        expected = exact_solution(K, Y)
        error = np.inf
        if expected is not None:
            error = relative_error(found, expected, share)
        assert error < 1e-2 or told, (seed, error)
        told_of += bool(told)
        alarms += bool(told) and error < few and moved_by_rounding(K, Y, expected, share) < few
    assert told_of > problems / 20
    assert alarms <= problems / 100


SIZES = np.diag([1e8, 1.0, 1e-8])  # as good a kernel as the identity


@pytest.mark.parametrize("name", factorizing(1.0))
@pytest.mark.parametrize("gamma", [0.0, 1e-9])
def test_samples_of_very_different_sizes_cost_no_digits(name, gamma):
    learner = rt.SGD(1e-9)
    Y = np.array([[1.0, -2.0], [3.0, 4.0], [-5.0, 6.0]])
    functions = {
        "offline_coefficients": lambda: rt.offline_coefficients(SIZES, Y, gamma),
        "corrected_targets": lambda: rt.corrected_targets(SIZES, Y, learner, gamma),
        "distilled_targets": lambda: rt.distilled_targets(SIZES, Y, gamma, 1),
        "iterative_targets": lambda: rt.iterative_targets(SIZES, Y, learner, gamma, 3),
    }
    diagonal = np.diag(SIZES)[:, None]
    offline = Y / (diagonal + gamma)
    expected = {  # samples without anything in common: every formula is one for each of them
        "offline_coefficients": offline,
        "corrected_targets": offline * 1e9,
        "distilled_targets": diagonal * offline,
        "iterative_targets": offline * 1e9,
    }
    if name in functions:  # a warning would be an error here
        np.testing.assert_allclose(functions[name](), expected[name], rtol=1e-12)
        return
    rows = np.arange(3)
    if name == "tracked":
        tracker = rt.CorrectionTracker(SIZES, learner, gamma)
        tracker.update(rows, Y)
        got = tracker.corrected_targets
    else:
        got = rt.TargetCorrector(SIZES, learner, gamma, 3).correct(rows, Y)
    np.testing.assert_allclose(got, offline * 1e9, rtol=1e-12)


def test_features_of_very_different_sizes_cost_no_digits():
    """Each sample has a feature of its own, three times: its kernel is a number, s^2."""
    X, Y, gamma, eta = np.tile(np.diag([1e7, 1.0, 1e-3]), (3, 1)), np.arange(1.0, 10), 1e-8, 1e-15
    corrector = rt.TargetCorrector(rt.Linear(), rt.SGD(eta), gamma, 1, features=3)
    got = [corrector.correct(X[i : i + 1], Y[i : i + 1]) for i in range(9)]  # no warning
    square, count = np.array([1e14, 1.0, 1e-6]), np.arange(1.0, 4)[:, None]
    aims = square * np.cumsum(Y.reshape(3, 3), axis=0) / (gamma + count * square)
    before = np.vstack([np.zeros(3), aims[:-1]])
    expected = before + (aims - before) / (eta * square)
    np.testing.assert_allclose(np.concatenate(got), expected.ravel(), rtol=1e-9)


@pytest.mark.parametrize(("how", "small"), [("whole", 1e-4), ("parts", 1e-4), ("features", 1e-8)])
def test_a_ridge_far_above_the_kernel(how, small):
    """F_n = Y_n - gamma A_n has no digits where it is small; K A has. The first two in float32."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 20)) * np.where(np.arange(12) % 3 == 1, small, 1.0)[:, None]
    Y, learner, gamma = rng.normal(size=(12, 2)), rt.SGD(1 / 40), 1.0
    K = X @ X.T
    if how != "features":
        K, Y = K.astype(np.float32), Y.astype(np.float32)
    exact, A, expected = K.astype(float), np.zeros((12, 2)), np.zeros((12, 2))
    for n in (slice(first, first + 3) for first in range(0, 12, 3)):
        seen, past = slice(0, n.stop), slice(0, n.start)
        offline = np.linalg.solve(exact[seen, seen] + gamma * np.eye(n.stop), Y[seen])
        predicted = exact[n, past] @ A[past]
        A[n] = np.linalg.solve(exact[n, n], exact[n, seen] @ offline - predicted)
        expected[n] = predicted + A[n] / learner.lr + np.tril(exact[n, n], -1) @ A[n]
    if how == "whole":
        got = rt.iterative_targets(K, Y, learner, gamma, 3)
    elif how == "parts":
        corrector = rt.TargetCorrector(K, learner, gamma, 3)
        parts = (slice(0, 3), slice(3, 12))
        got = np.concatenate([corrector.correct(np.arange(12)[part], Y[part]) for part in parts])
    else:
        corrector = rt.TargetCorrector(rt.Linear(), learner, gamma, 3, features=20)
        got = np.concatenate([corrector.correct(X[:6], Y[:6]), corrector.correct(X[6:], Y[6:])])
    np.testing.assert_allclose(got, expected, rtol=1e-2, atol=1e-3)


def test_a_forged_diagonal():
    state = factorize(torch.eye(3, dtype=torch.float64), 1.0).state_dict()
    state["roots"] = torch.zeros_like(state["roots"])
    with pytest.raises(InvalidInputError, match="roots holds 0; expected numbers above 0"):
        GrowingCholesky(1.0, lambda rows: torch.eye(3)).load_state_dict(state)


def test_a_good_stream_takes_no_solve(monkeypatch):
    """The probes of the condition are columns of L^-1 Y, which is computed anyway."""
    calls = []
    for name in ("solve", "product"):
        monkeypatch.setattr(GrowingCholesky, name, lambda self, rhs: calls.append(rhs))
    stream = make_stream(60, 2, seed=3)
    rt.iterative_targets(stream.K, stream.Y, LEARNER, 0.5, 4)
    assert calls == []


def test_the_probe_of_divergence_rides_beside_the_learner(monkeypatch):
    """The kernel of new samples to the past is read once for both."""
    stream = make_stream(48, 2, seed=3)
    K, past, multiply = torch.tensor(stream.K), [], torch.Tensor.__matmul__

    def counted(self, other):
        of_K = self.untyped_storage().data_ptr() == K.untyped_storage().data_ptr()
        if of_K and self.storage_offset() % 48 == 0:
            past.append(self.shape[1])
        return multiply(self, other)

    monkeypatch.setattr(torch.Tensor, "__matmul__", counted)
    with panels_of(16):
        rt.iterative_targets(K, torch.tensor(stream.Y), LEARNER, 0.5, 4)
    assert past == [16, 32]


def test_forks_do_not_share_rows():
    """As two threads would: both compute rows before either makes them part of its factor."""
    A = torch.randn(16, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    K, streams = A @ A.mT, (list(range(13)), [*range(10), 15, 14, 13])
    factors = [GrowingCholesky(0.5, lambda rows: K[rows, rows], roomy=True)]
    factors[0].commit(factors[0].extend(K[:10, :10]))
    factors.append(factors[0].fork(factors[0]._gram))
    new = [each.extend(K[rows[10:]][:, rows]) for each, rows in zip(factors, streams, strict=True)]
    eye = torch.eye(13, dtype=torch.float64)
    for factor, added, rows in zip(factors, new, streams, strict=True):
        factor.commit(added)
        torch.testing.assert_close(factor.solve(K[rows][:, rows] + 0.5 * eye), eye)


def test_the_end_of_a_stream_in_portions():
    X = np.arange(22.0)[:, None] * 3
    X[20] = X[19] + 1.5e-3
    K, Y = rt.RBF(1.0)(X).astype(np.float32), (-1.0) ** np.arange(22, dtype=np.float32)
    kernel = rt.kernels.PrecomputedKernel(K)
    corrector = rt.TargetCorrector(kernel, rt.SGD(0.5), gamma=1e-9, block_size=2)
    for row in np.split(np.arange(21), 21):
        corrector.correct(row, Y[row])
    with pytest.warns(PrecisionWarning, match="gamma I \\+ K has a condition number"):
        corrector.correct(np.array([21]), Y[21:])


def test_no_digits_lost_without_a_ridge():
    """The offline learner fits every target then, and warnings are errors here."""
    rng = np.random.default_rng(0)
    F, Y, learner = rng.normal(size=(6, 6)), rng.normal(size=6), rt.SGD(0.02)
    F[5] = F[0] + 1e-7 * F[5]
    K = F @ F.T
    K = (K + K.T) / 2
    Z = rt.iterative_targets(K, Y, learner, gamma=0.0, block_size=1)
    for n in range(1, 7):  # after each sample, the learner meets its target
        met = K[n - 1, :n] @ rt.online_coefficients(K[:n, :n], Z[:n], learner)
        assert met == pytest.approx(Y[n - 1], abs=1e-10)


REFUSED = {
    # to four digits, the ridge that is needed rounds down
    "no Gram matrix": (np.diag([1.0, -0.123449]), 0.0, "; expected the Gram matrix"),
    "samples repeat": (np.ones((4, 4)), 0.0, "which is rounding beside the largest, 4"),
    "a huge kernel": (1e38 * np.outer(*2 * [np.arange(1.0, 6)]), 1.0, "gamma is too small"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_ridge_that_an_error_names_is_enough(name):
    K, gamma, why = REFUSED[name]
    y = np.arange(1.0, 1 + len(K))
    with pytest.raises(NotPositiveDefiniteError, match=why) as caught:
        rt.offline_coefficients(K, y, gamma)
    (advised,) = re.findall(r"gamma = (\S+) would do", str(caught.value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # enough to factorize, not more
        assert np.isfinite(rt.offline_coefficients(K, y, float(advised))).all()
    with pytest.raises(NotPositiveDefiniteError, match="the kernel of the block") as caught:
        rt.iterative_targets(
            K, y, rt.SGD(1e-40), 2 * float(advised), len(K), ridge=gamma, parts="online"
        )
    (advised,) = re.findall(r"ridge = (\S+) would do", str(caught.value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        rt.iterative_targets(
            K, y, rt.SGD(1e-40), 2 * float(advised), len(K), ridge=float(advised), parts="online"
        )
