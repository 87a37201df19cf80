"""The distance of Eq. 14: the number, what it is zero for, and what it bounds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget import arrays
from retarget.errors import InvalidInputError, InvalidTypeError
from support.oracles import literal
from support.oracles.simulation import train
from support.problems import gammas, make_stream, problems, rates, streams

LEARNER = rt.SGD(lr=0.3)


def norm(A, K):
    return np.sqrt(np.trace(A.T @ K @ A))


@given(stream=streams, eta=rates, gamma=gammas, batch=st.integers(1, 6), seed=st.integers(0, 99))
def test_half_its_square_is_the_first_term_of_equation_15(stream, eta, gamma, batch, seed):
    Z = stream.Y + np.random.default_rng(seed).normal(size=stream.Y.shape)
    got = rt.discrepancy(stream.K, Z, stream.Y, rt.SGD(lr=eta, batch_size=batch), gamma)
    expected = literal.block_loss(Z, stream.Y, stream.K, eta, gamma, 0.0, batch)
    assert got**2 / 2 == pytest.approx(expected, rel=1e-10, abs=1e-20)


@given(problem=problems(), gamma=gammas)
def test_it_is_the_distance_of_the_weights_that_torch_ends_with(problem, gamma):
    stream, learner = problem
    offline = stream.features.T @ np.linalg.solve(gamma * np.eye(len(stream)) + stream.K, stream.Y)
    gap = np.linalg.norm(train(stream.features, stream.Y, learner).weights - offline)
    got = rt.discrepancy(stream.K, stream.Y, stream.Y, learner, gamma)
    assert got == pytest.approx(gap, rel=1e-9, abs=1e-10)


@given(problem=problems(), gamma=gammas)
def test_it_is_zero_for_corrected_targets_only(problem, gamma):
    stream, learner = problem
    Z = rt.corrected_targets(stream.K, stream.Y, learner, gamma)
    scale = norm(rt.offline_coefficients(stream.K, stream.Y, gamma), stream.K)
    # the online solve starts from the targets, and loses digits where these are much larger
    scale *= max(1.0, np.abs(Z).max() / np.abs(stream.Y).max())
    assert rt.discrepancy(stream.K, Z, stream.Y, learner, gamma) <= 1e-10 * scale
    Z[-1] += 1.0
    assert rt.discrepancy(stream.K, Z, stream.Y, learner, gamma) > 1e-6


@given(problem=problems(), gamma=gammas)
def test_it_bounds_every_prediction(problem, gamma):
    stream, learner = problem
    A_on = rt.online_coefficients(stream.K, stream.Y, learner)
    gap = stream.K_query @ (A_on - rt.offline_coefficients(stream.K, stream.Y, gamma))
    bound = rt.discrepancy(stream.K, stream.Y, stream.Y, learner, gamma)
    own = np.linalg.norm(stream.queries, axis=1)
    assert (np.linalg.norm(gap, axis=1) <= bound * own * (1 + 1e-9) + 1e-12).all()


def test_outputs_add_up_as_squares():
    stream = make_stream(14, 3, seed=5)
    parts = [rt.discrepancy(stream.K, y, y, LEARNER, 0.4) for y in stream.Y.T]
    whole = rt.discrepancy(stream.K, stream.Y, stream.Y, LEARNER, 0.4)
    assert whole == pytest.approx(np.linalg.norm(parts), rel=1e-12)


def test_a_start_that_is_not_zero():
    stream = make_stream(14, 2, seed=6)
    initial, Z = np.cos(stream.Y), stream.Y**2
    got = rt.discrepancy(stream.K, Z, stream.Y, LEARNER, 0.4, initial=initial)
    moved = rt.discrepancy(stream.K, Z - initial, stream.Y - initial, LEARNER, 0.4)
    assert got == pytest.approx(moved, rel=1e-12)
    decaying = rt.SGD(lr=0.3, weight_decay=0.1)
    with pytest.raises(InvalidInputError, match="fades the starting function"):
        rt.discrepancy(stream.K, Z, stream.Y, decaying, 0.4, initial=initial)


def test_a_plain_number_of_any_library_and_precision():
    stream = make_stream(14, 2, seed=7)
    K, Y = stream.K, stream.Y
    expected = rt.discrepancy(K, Y, Y, LEARNER, 0.4)
    assert type(expected) is float
    got = rt.discrepancy(torch.tensor(K), torch.tensor(Y), torch.tensor(Y), LEARNER, 0.4)
    assert type(got) is float
    assert got == pytest.approx(expected, rel=1e-13)
    for dtype, digits in ((np.float16, 1e-2), (np.float32, 1e-5)):
        got = rt.discrepancy(*(part.astype(dtype) for part in (K, Y, Y)), LEARNER, 0.4)
        assert got == pytest.approx(expected, rel=digits)
    # targets in float64 are not cut to a kernel in float32: the last digit of Z counts
    K, Y = K.astype(np.float32), Y.astype(np.float32)
    moved = Y + 1e-9 * np.ones(Y.shape)
    same = rt.discrepancy(K, Y.astype(float), Y, LEARNER, 0.4)
    assert rt.discrepancy(K, moved, Y, LEARNER, 0.4) != same


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_squares_that_no_number_holds(scale):
    stream = make_stream(14, 2, seed=8)
    expected = rt.discrepancy(stream.K, stream.Y, stream.Y, LEARNER, 0.4)
    got = rt.discrepancy(stream.K, scale * stream.Y, scale * stream.Y, LEARNER, 0.4)
    assert got == pytest.approx(scale * expected, rel=1e-12)
    assert rt.discrepancy(stream.K, 0 * stream.Y, 0 * stream.Y, LEARNER, 0.4) == 0.0


def test_a_square_below_zero_by_rounding_is_zero():
    """The learners differ along (1, -1), where this kernel has the eigenvalue -1e-12."""
    K, y = np.array([[1.0, 1.0 + 1e-12], [1.0 + 1e-12, 1.0]]), np.array([1.0, -1.0])
    assert rt.discrepancy(K, y, y, rt.SGD(lr=0.1, batch_size=2), 1.0) == 0.0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"Z": np.ones((9, 1))}, InvalidInputError, r"Z has shape \(9, 1\), but Y .* \(9, 2\)"),
        ({"Z": np.ones((8, 2))}, InvalidInputError, r"Z has shape \(8, 2\), but Y .* \(9, 2\)"),
        ({"Z": np.ones((9, 2), int)}, InvalidTypeError, "Z has dtype int64"),
        ({"Z": np.full((9, 2), np.nan)}, InvalidInputError, "Z holds nan in row 0"),
        ({"Y": np.ones((8, 2))}, InvalidInputError, "Y has 8 rows, but K is 9 x 9"),
        ({"gamma": -1.0}, InvalidInputError, "gamma is -1.0; expected a finite"),
        ({"learner": rt.SGD(lr=[0.1] * 8)}, InvalidInputError, "8 rates, but 9 samples"),
    ],
)
def test_refused(change, error, message):
    stream = make_stream(9, 2, seed=0)
    given = {"K": stream.K, "Z": stream.Y, "Y": stream.Y, "learner": LEARNER, "gamma": 1.0}
    with pytest.raises(error, match=message):
        rt.discrepancy(**(given | change))


def test_targets_on_another_device(monkeypatch):
    # as if meta were a device with numbers
    monkeypatch.setattr(arrays, "_require_plain", lambda *_: None)
    monkeypatch.setattr(arrays, "require_finite", lambda *_: None)
    stream = make_stream(9, 2, seed=0)
    with pytest.raises(InvalidInputError, match="Z is on meta, but K is on cpu"):
        rt.discrepancy(stream.K, torch.empty((9, 2), device="meta"), stream.Y, LEARNER, 1.0)
