"""The two theorems: the shift, the correction, and that each undoes the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import InvalidInputError, UnreachableTargetsError
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


@given(stream=streams, eta=rates, gamma=gammas, batch=st.integers(1, 6))
def test_effective_targets_are_equation_8(stream, eta, gamma, batch):
    learner = rt.SGD(lr=eta, batch_size=batch)
    expected = literal.effective(stream.Y, stream.K, eta, gamma, batch)
    assert_same(rt.effective_targets(stream.K, stream.Y, learner, gamma), expected)


@given(stream=streams, eta=rates, gamma=gammas, batch=st.integers(1, 6))
def test_corrected_targets_are_equation_12(stream, eta, gamma, batch):
    learner = rt.SGD(lr=eta, batch_size=batch)
    expected = literal.corrected(stream.Y, stream.K, eta, gamma, batch)
    assert_same(rt.corrected_targets(stream.K, stream.Y, learner, gamma), expected)


@pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
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


@pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
@each_loss
@given(data=st.data(), gamma=gammas, panel=panel_sizes)
def test_theorem_4_1_online_on_corrected_targets_is_offline(loss, data, gamma, panel):
    stream, learner, _ = data.draw(problems_of(loss))
    with panels_of(panel):
        Z = rt.corrected_targets(stream.K, stream.Y, learner, gamma, loss=loss)
    run = train(stream.features, Z, learner, loss=loss)
    # the simulation itself loses digits when the targets are much larger than the result
    tolerance = 1e-10 * max(1.0, np.abs(Z).max() / np.abs(stream.Y).max())
    if loss == "squared":
        offline = literal.f_off(stream.Y, stream.K, stream.K_query.T, gamma)
    else:
        offline = stream.K_query @ rt.offline_coefficients(stream.K, stream.Y, gamma, loss=loss)
        tolerance = 1e-9
    assert_same(stream.queries @ run.weights, offline, tolerance)
    gap = rt.discrepancy(stream.K, Z, stream.Y, learner, gamma, loss=loss)
    assert gap <= 1e-8 * max(1.0, np.abs(Z).max())


@pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
@each_loss
@given(data=st.data(), gamma=gammas)
def test_shift_and_correction_undo_each_other(loss, data, gamma):
    stream, learner, _ = data.draw(problems_of(loss))
    effective = rt.effective_targets(stream.K, stream.Y, learner, gamma, loss=loss)
    Z = rt.corrected_targets(stream.K, stream.Y, learner, gamma, loss=loss)
    tolerance = 1e-10 * max(1.0, np.abs(Z).max())
    again = rt.effective_targets(stream.K, Z, learner, gamma, loss=loss)
    assert_same(again, stream.Y, tolerance)
    back = rt.corrected_targets(stream.K, effective, learner, gamma, loss=loss)
    assert_same(back, stream.Y, tolerance if loss == "squared" else 1e-9)
    if loss != "squared" and stream.Y.shape[1] > 1:
        for targets in (Z, effective):
            assert_same(targets.sum(1), np.ones(len(stream)), 1e-10 * np.abs(targets).max())


@pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
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


def test_no_shift_of_the_newest_sample_at_the_matching_rate():
    stream = make_stream(9, 2, seed=3)
    gamma = 0.8
    learner = rt.SGD(lr=1 / (gamma + stream.K[-1, -1]))
    assert_same(rt.effective_targets(stream.K, stream.Y, learner, gamma)[-1], stream.Y[-1])


def test_small_rates_leave_the_newest_target_at_the_prediction():
    stream = make_stream(9, 1, seed=4)
    rate = 1e-7
    learner = rt.SGD(lr=[0.4] * 8 + [rate])
    prediction = stream.Y[-1] - rt.prequential_errors(stream.K, stream.Y, learner)[-1]
    effective = rt.effective_targets(stream.K, stream.Y, learner, gamma=0.5)[-1]
    assert np.abs(effective - prediction).max() < 10 * rate


def test_forgotten_samples_have_no_exact_target():
    stream = make_stream(30, 1, seed=0)
    learner = rt.SGD(lr=0.5, weight_decay=1.5)  # each step keeps a quarter: 4^-29 is beyond float64
    with pytest.raises(UnreachableTargetsError, match=r"sample 0 is forgotten .* 30 samples"):
        rt.corrected_targets(stream.K, stream.Y, learner, gamma=1.0)


@pytest.mark.parametrize(
    ("function", "more"),
    [(rt.effective_targets, ()), (rt.corrected_targets, ()), (rt.iterative_targets, (2,))],
)
def test_weight_decay_fades_a_start(function, more):
    stream = make_stream(4, 1, seed=0)
    decaying = rt.SGD(lr=0.1, weight_decay=0.1)
    with pytest.raises(InvalidInputError, match="fades the starting function"):
        function(stream.K, stream.Y, decaying, 1.0, *more, initial=stream.Y)
