"""The two theorems, that each undoes the other, and the distance of Eq. 14."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import (
    UnreachableTargetsError,
)
from support.oracles import literal
from support.oracles.simulation import train
from support.problems import (
    assert_same,
    each_loss,
    fewer_examples,
    gammas,
    make_stream,
    panel_sizes,
    panels_of,
    problems,
    problems_of,
    rates,
    streams,
)

# What the tests ask is exact, however large the targets of small gamma and rates are.
pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")


@given(stream=streams, eta=rates, gamma=gammas, batch=st.integers(1, 6))
def test_equations_8_and_12(stream, eta, gamma, batch):
    learner = rt.SGD(lr=eta, batch_size=batch, reduction="sum")
    for function, formula in (
        (rt.effective_targets, literal.effective),
        (rt.corrected_targets, literal.corrected),
    ):
        expected = formula(stream.Y, stream.K, eta, gamma, batch)
        assert_same(function(stream.K, stream.Y, learner, gamma), expected)


@each_loss
@given(data=st.data(), gamma=gammas, panel=panel_sizes)
def test_theorem_3_2(loss, data, gamma, panel):
    stream, learner, epochs = data.draw(problems_of(loss, most_epochs=4))
    run = train(stream.features, stream.Y, learner, loss=loss, epochs=epochs)
    options = {"loss": loss, "epochs": epochs}
    with panels_of(panel):
        effective = rt.effective_targets(stream.K, stream.Y, learner, gamma, **options)
    offline = stream.K_query @ rt.offline_coefficients(stream.K, effective, gamma, loss=loss)
    exact = loss == "squared" and epochs == 1
    assert_same(offline, stream.queries @ run.weights, 1e-10 if exact else 1e-9)
    if loss == "squared":
        assert_same(offline, literal.f_off(effective, stream.K, stream.K_query.T, gamma), 1e-9)


@each_loss
@given(data=st.data(), gamma=gammas, panel=panel_sizes)
def test_theorem_4_1(loss, data, gamma, panel):
    """And the correction undoes the shift, and the shift the correction."""
    stream, learner, _ = data.draw(problems_of(loss))
    with panels_of(panel):
        Z = rt.corrected_targets(stream.K, stream.Y, learner, gamma, loss=loss)
    run = train(stream.features, Z, learner, loss=loss)
    size = max(1.0, np.abs(Z).max())
    if loss == "squared":
        offline = literal.f_off(stream.Y, stream.K, stream.K_query.T, gamma)
        # the simulation itself loses digits when the targets are much larger than the result
        tolerance = 1e-10 * max(1.0, np.abs(Z).max() / np.abs(stream.Y).max())
    else:
        offline = stream.K_query @ rt.offline_coefficients(stream.K, stream.Y, gamma, loss=loss)
        tolerance = 1e-9
    assert_same(stream.queries @ run.weights, offline, tolerance)
    assert rt.discrepancy(stream.K, Z, stream.Y, learner, gamma, loss=loss) <= 1e-8 * size

    again = rt.effective_targets(stream.K, Z, learner, gamma, loss=loss)
    assert_same(again, stream.Y, 1e-10 * size)
    effective = rt.effective_targets(stream.K, stream.Y, learner, gamma, loss=loss)
    back = rt.corrected_targets(stream.K, effective, learner, gamma, loss=loss)
    assert_same(back, stream.Y, 1e-10 * size if loss == "squared" else 1e-9)
    if loss != "squared" and stream.Y.shape[1] > 1:
        for targets in (Z, effective):
            assert_same(targets.sum(1), np.ones(len(stream)), 1e-10 * np.abs(targets).max())


@each_loss
@fewer_examples
@given(data=st.data(), gamma=gammas, seed=st.integers(0, 1000))
def test_both_theorems_from_a_start(loss, data, gamma, seed):
    stream, learner, _ = data.draw(problems_of(loss, memory=False))
    options = {"initial": np.random.default_rng(seed).normal(size=stream.Y.shape), "loss": loss}
    tolerance = 1e-10 if loss == "squared" else 1e-9

    effective = rt.effective_targets(stream.K, stream.Y, learner, gamma, **options)
    run = train(stream.features, stream.Y, learner, loss=loss, offset=options["initial"])
    A = rt.offline_coefficients(stream.K, effective, gamma, **options)
    assert_same(stream.K_query @ A, stream.queries @ run.weights, tolerance)

    Z = rt.corrected_targets(stream.K, stream.Y, learner, gamma, **options)
    run = train(stream.features, Z, learner, loss=loss, offset=options["initial"])
    A = rt.offline_coefficients(stream.K, stream.Y, gamma, **options)
    assert_same(stream.queries @ run.weights, stream.K_query @ A, tolerance)


def test_forgotten_samples_have_no_exact_target():
    stream = make_stream(30, 1, seed=0)
    learner = rt.SGD(lr=0.5, weight_decay=1.5)  # each step keeps a quarter: 4^-29 is beyond float64
    with pytest.raises(UnreachableTargetsError, match=r"sample 0 is forgotten .* 30 samples"):
        rt.corrected_targets(stream.K, stream.Y, learner, gamma=1.0)


LEARNER = rt.SGD(lr=0.3)


@given(stream=streams, eta=rates, gamma=gammas, batch=st.integers(1, 6), seed=st.integers(0, 99))
def test_half_its_square_is_in_equation_15(stream, eta, gamma, batch, seed):
    Z = stream.Y + np.random.default_rng(seed).normal(size=stream.Y.shape)
    got = rt.discrepancy(
        stream.K, Z, stream.Y, rt.SGD(lr=eta, batch_size=batch, reduction="sum"), gamma
    )
    expected = literal.block_loss(Z, stream.Y, stream.K, eta, gamma, 0.0, batch)
    assert got**2 / 2 == pytest.approx(expected, rel=1e-10, abs=1e-20)


@given(problem=problems(), gamma=gammas)
def test_it_bounds_every_prediction(problem, gamma):
    """Of the weights that torch ends with; it is zero for corrected targets only."""
    stream, learner = problem
    A = np.linalg.solve(gamma * np.eye(len(stream)) + stream.K, stream.Y)
    gap = train(stream.features, stream.Y, learner).weights - stream.features.T @ A
    distance = rt.discrepancy(stream.K, stream.Y, stream.Y, learner, gamma)
    assert distance == pytest.approx(np.linalg.norm(gap), rel=1e-9, abs=1e-10)
    own = np.linalg.norm(stream.queries, axis=1)
    away = np.linalg.norm(stream.queries @ gap, axis=1)
    assert (away <= distance * own * (1 + 1e-9) + 1e-12).all()

    Z = rt.corrected_targets(stream.K, stream.Y, learner, gamma)
    scale = np.sqrt(np.trace(A.T @ stream.K @ A))
    # the online solve starts from the targets, and loses digits where these are much larger
    scale *= max(1.0, np.abs(Z).max() / np.abs(stream.Y).max())
    assert rt.discrepancy(stream.K, Z, stream.Y, learner, gamma) <= 1e-10 * scale
    Z[-1] += 1.0
    assert rt.discrepancy(stream.K, Z, stream.Y, learner, gamma) > 1e-6


def test_a_start_only_moves_the_targets():
    stream = make_stream(14, 2, seed=6)
    initial, Z = np.cos(stream.Y), stream.Y**2
    got = rt.discrepancy(stream.K, Z, stream.Y, LEARNER, 0.4, initial=initial)
    moved = rt.discrepancy(stream.K, Z - initial, stream.Y - initial, LEARNER, 0.4)
    assert got == pytest.approx(moved, rel=1e-12)


def test_a_plain_number():
    stream = make_stream(14, 2, seed=7)
    K, Y = stream.K, stream.Y
    expected = rt.discrepancy(K, Y, Y, LEARNER, 0.4)
    for convert, digits in (
        (torch.tensor, 1e-13),
        (lambda part: part.astype(np.float16), 1e-2),
        (lambda part: part.astype(np.float32), 1e-5),
    ):
        got = rt.discrepancy(convert(K), convert(Y), convert(Y), LEARNER, 0.4)
        assert type(got) is type(expected) is float
        assert got == pytest.approx(expected, rel=digits)
    for scale in (1e-200, 0.0, 1e200):  # squares that no number holds
        got = rt.discrepancy(K, scale * Y, scale * Y, LEARNER, 0.4)
        assert got == pytest.approx(scale * expected, rel=1e-12, abs=0)
    # targets in float64 are not cut to a kernel in float32: the last digit of Z counts
    K, Y = K.astype(np.float32), Y.astype(np.float32)
    moved = Y + 1e-9 * np.ones(Y.shape)
    same = rt.discrepancy(K, Y.astype(float), Y, LEARNER, 0.4)
    assert rt.discrepancy(K, moved, Y, LEARNER, 0.4) != same


def test_a_square_below_zero_by_rounding_is_zero():
    """The learners differ along (1, -1), where this kernel has the eigenvalue -1e-12."""
    K, y = np.array([[1.0, 1.0 + 1e-12], [1.0 + 1e-12, 1.0]]), np.array([1.0, -1.0])
    assert rt.discrepancy(K, y, y, rt.SGD(lr=0.1, batch_size=2, reduction="sum"), 1.0) == 0.0
