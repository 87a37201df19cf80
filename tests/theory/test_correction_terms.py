"""C_on and C_off of Eq. 17: as printed, and that Eq. 16 with them is the iterative correction."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget import arrays
from retarget.errors import (
    NotPositiveDefiniteError,
    PrecisionWarning,
    StreamTooLargeError,
)
from support.oracles import literal
from support.oracles.simulation import train
from support.problems import (
    assert_same,
    batches,
    gammas,
    make_stream,
    panel_sizes,
    panels_of,
    rates,
    reductions,
    ridges,
    streams,
)

MATRICES = ("online", "offline", "modulation")


@given(
    stream=streams, eta=rates, gamma=gammas, batch=st.integers(1, 4), blocks=st.integers(1, 6),
    ridge=ridges, panel=panel_sizes,
)  # fmt: skip
def test_they_are_equation_17(stream, eta, gamma, batch, blocks, ridge, panel):
    block, n = batch * blocks, len(stream)
    learner = rt.SGD(lr=eta, batch_size=batch)
    with panels_of(panel):
        terms = rt.correction_terms(stream.K, learner, gamma, block, ridge)
    starts = range(0, n, block)
    assert [term.rows for term in terms] == [slice(i, min(i + block, n)) for i in starts]
    for term in terms:
        past = slice(0, term.rows.start)
        C_on, C_off = literal.correction_terms(stream.K, past, term.rows, eta, gamma, ridge, batch)
        assert_same(term.online, C_on.T)
        assert_same(term.offline, C_off.T)
        assert_same(term.modulation, np.eye(len(C_on)) + C_on.T)


@st.composite
def plain_problems(draw):
    """A stream, any SGD without a memory (schedules too), and a block of whole mini-batches."""
    stream, batch = draw(streams), draw(batches)
    lr = draw(rates)
    if draw(st.booleans()):
        lr = tuple(lr * draw(st.floats(0.3, 1.0)) for _ in range(-(-len(stream) // batch)))
    learner = rt.SGD(lr=lr, batch_size=batch, reduction=draw(reductions))
    return stream, learner, batch * draw(st.integers(1, 6))


def equation_16(stream, learner, gamma, terms):
    """The targets block by block: the online learner is torch.optim.SGD on those made so far."""
    Z = np.zeros_like(stream.Y)
    for term in terms:
        p, n = slice(0, term.rows.start), term.rows
        on = off = np.zeros_like(stream.Y[n])
        if p.stop:
            lr = learner.lr
            lr = lr if isinstance(lr, float) else lr[: learner.steps(p.stop)]
            run = train(stream.features[p], Z[p], replace(learner, lr=lr))
            on = stream.features[n] @ run.weights
            off = literal.f_off(stream.Y[p], stream.K[p, p], stream.K[p, n], gamma)
        Z[n] = stream.Y[n] + term.online @ (stream.Y[n] - on) + term.offline @ (off - stream.Y[n])
        assert_same(
            Z[n] - on, term.modulation @ (stream.Y[n] - on) + term.offline @ (off - stream.Y[n])
        )
    return Z


@given(problem=plain_problems(), gamma=gammas, ridge=ridges, panel=panel_sizes)
def test_equation_16_with_them_is_the_iterative_correction(problem, gamma, ridge, panel):
    stream, learner, block = problem
    with panels_of(panel):
        terms = rt.correction_terms(stream.K, learner, gamma, block, ridge)
    expected = rt.iterative_targets(stream.K, stream.Y, learner, gamma, block, ridge)
    scale = max(1.0, np.abs(expected).max())
    assert_same(equation_16(stream, learner, gamma, terms), expected, 1e-10 * scale)


def test_a_singular_block_takes_the_coefficients_of_least_norm():
    """Samples that repeat: the targets rebuilt from the terms still settle the learner exactly."""
    base = make_stream(6, 2, seed=1)
    twice = np.repeat(np.arange(6), 2)
    features, Y = base.features[twice], base.Y[twice] + np.arange(12)[:, None]
    K = features @ features.T
    stream = replace(base, features=features, K=(K + K.T) / 2, Y=Y)
    learner, gamma, block = rt.SGD(lr=0.3), 0.7, 4
    terms = rt.correction_terms(stream.K, learner, gamma, block)
    Z = equation_16(stream, learner, gamma, terms)
    for term in terms:
        n, seen = term.rows, slice(0, term.rows.stop)
        K_nn = stream.K[n, n]
        W = (np.eye(block) / 0.3 + np.tril(K_nn, -1)) @ np.linalg.pinv(K_nn, rcond=1e-12)
        assert_same(term.modulation, W)
        weights = train(features[seen], Z[seen], learner).weights
        offline = literal.f_off(Y[seen], stream.K[seen, seen], stream.K[seen, n], gamma)
        assert_same(features[n] @ weights, offline)


@pytest.mark.parametrize("seed", range(4))
def test_whether_a_pivot_is_just_above_or_below_zero_does_not_matter(seed):
    """Three features for a block of eight: rounding decides how far a Cholesky factor gets."""
    features = np.random.default_rng(seed).normal(size=(8, 3))
    K = features @ features.T
    (term,) = rt.correction_terms((K + K.T) / 2, rt.SGD(lr=0.1), gamma=0.5, block_size=8)
    W = (np.eye(8) / 0.1 + np.tril(K, -1)) @ np.linalg.pinv(K, rcond=1e-12)
    assert_same(term.modulation, W)


def test_a_matrix_that_is_no_kernel_needs_the_ridge_that_the_error_names():
    K = np.diag([1.0, 1.0, 1.0, -0.25])
    said = r"block of samples 2 to 3 .* -0.25 with ridge = 0,"
    with pytest.raises(NotPositiveDefiniteError, match=said) as caught:
        rt.correction_terms(K, rt.SGD(lr=0.1), gamma=1.0, block_size=2)
    assert caught.value.deficit == pytest.approx(0.25)
    with pytest.warns(PrecisionWarning):
        rt.correction_terms(K, rt.SGD(lr=0.1), 1.0, 2, ridge=caught.value.jitter)
    # few digits are said too
    K = np.diag([1.0, 2e-6]).astype(np.float32)
    with pytest.warns(PrecisionWarning, match="the kernel of a block") as warned:
        rt.correction_terms(K, rt.SGD(lr=0.5), 1.0, 2)
    assert warned[0].filename == __file__  # the caller's line, not one of ours


def test_the_callers_library_and_dtype():
    stream = make_stream(9, 1, seed=3)
    learner = rt.SGD(lr=0.2, batch_size=2)
    expected = rt.correction_terms(stream.K, learner, 0.7, 4)
    assert all(isinstance(vars(expected[0])[name], np.ndarray) for name in MATRICES)
    for dtype in (np.float16, np.float32):
        got = rt.correction_terms(stream.K.astype(dtype), learner, 0.7, 4)
        for one, other in zip(got, expected, strict=True):
            for name in MATRICES:
                assert vars(one)[name].dtype == dtype
                assert_same(vars(one)[name], vars(other)[name], 100 * np.finfo(dtype).eps)
    got = rt.correction_terms(torch.tensor(stream.K, requires_grad=True), learner, 0.7, 4)
    assert isinstance(got[0].online, torch.Tensor)
    assert not got[0].online.requires_grad
    assert_same(got[-1].online.numpy(), expected[-1].online, 1e-14)


def test_what_cannot_fit_is_said_beforehand(monkeypatch):
    K, needed = make_stream(6, 1, seed=0).K, 8 * (6 * 6 / 2 + 3 * 6 * 2)
    monkeypatch.setattr(arrays, "free_memory", lambda device: needed - 1)
    with pytest.raises(StreamTooLargeError, match="the terms of 6 samples in blocks of 2"):
        rt.correction_terms(K, rt.SGD(lr=0.1), 1.0, 2)
    monkeypatch.setattr(arrays, "free_memory", lambda device: needed)
    rt.correction_terms(K, rt.SGD(lr=0.1), 1.0, 2)
