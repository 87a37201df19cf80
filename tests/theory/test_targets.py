"""The two theorems: the shift, the correction, and that each undoes the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import UnreachableTargetsError
from support.oracles import literal
from support.oracles.simulation import train
from support.problems import (
    assert_same,
    each_loss,
    gammas,
    make_stream,
    panel_sizes,
    panels_of,
    problems_of,
    rates,
    streams,
)

# What the tests ask is exact, however large the targets of small gamma and rates are.
pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")


@given(stream=streams, eta=rates, gamma=gammas, batch=st.integers(1, 6))
def test_effective_and_corrected_targets_are_equations_8_and_12(stream, eta, gamma, batch):
    learner = rt.SGD(lr=eta, batch_size=batch)
    for function, formula in (
        (rt.effective_targets, literal.effective),
        (rt.corrected_targets, literal.corrected),
    ):
        expected = formula(stream.Y, stream.K, eta, gamma, batch)
        assert_same(function(stream.K, stream.Y, learner, gamma), expected)


@each_loss
@given(data=st.data(), gamma=gammas, panel=panel_sizes)
def test_theorem_3_2_offline_on_effective_targets_is_online(loss, data, gamma, panel):
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
def test_theorem_4_1_online_on_corrected_targets_is_offline(loss, data, gamma, panel):
    """And the correction undoes the shift, and the shift the correction."""
    stream, learner, _ = data.draw(problems_of(loss))
    with panels_of(panel):
        Z = rt.corrected_targets(stream.K, stream.Y, learner, gamma, loss=loss)
    run = train(stream.features, Z, learner, loss=loss)
    size = max(1.0, np.abs(Z).max())
    # the simulation itself loses digits when the targets are much larger than the result
    tolerance = 1e-10 * max(1.0, np.abs(Z).max() / np.abs(stream.Y).max())
    if loss == "squared":
        offline = literal.f_off(stream.Y, stream.K, stream.K_query.T, gamma)
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
@given(data=st.data(), gamma=gammas, seed=st.integers(0, 1000))
def test_both_theorems_hold_from_a_start_that_is_not_zero(loss, data, gamma, seed):
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
