"""The online learner: closed forms against the paper's formulas and against torch.optim.SGD."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.theory.response import final_response, remaining_start, step_response
from support.oracles import literal
from support.oracles.simulation import train
from support.problems import (
    assert_same,
    gammas,
    make_stream,
    panel_sizes,
    panels_of,
    problems,
    rates,
    streams,
)


@given(problem=problems(), panel=panel_sizes)
def test_every_learner_equals_torch_optim_sgd(problem, panel):
    stream, learner = problem
    run = train(stream.features, stream.Y, learner)
    with panels_of(panel):
        A = rt.online_coefficients(stream.K, stream.Y, learner)
        errors = rt.prequential_errors(stream.K, stream.Y, learner)
    assert_same(errors, run.errors)
    assert_same(stream.K_query @ A, stream.queries @ run.weights)


@given(problem=problems(), seed=st.integers(0, 1000))
def test_a_start_that_is_not_zero_equals_torch_optim_sgd(problem, seed):
    stream, learner = problem
    start = np.random.default_rng(seed).normal(size=(stream.features.shape[1], stream.Y.shape[1]))
    run = train(stream.features, stream.Y, learner, start=start)
    initial = stream.features @ start
    A = rt.online_coefficients(stream.K, stream.Y, learner, initial=initial)
    errors = rt.prequential_errors(stream.K, stream.Y, learner, initial=initial)
    left = remaining_start(learner, len(stream))[-1]
    assert_same(errors, run.errors)
    assert_same(stream.K_query @ A + left * (stream.queries @ start), stream.queries @ run.weights)


@given(stream=streams, eta=rates, batch=st.integers(1, 9))
def test_plain_sgd_is_equation_6_and_7(stream, eta, batch):
    A = rt.online_coefficients(stream.K, stream.Y, rt.SGD(lr=eta, batch_size=batch))
    expected = literal.f_on(stream.Y, stream.K, stream.K_query.T, eta, batch)
    assert_same(stream.K_query @ A, expected)


@given(stream=streams, eta=st.floats(0.02, 0.6), gamma=st.floats(0.01, 0.9))
def test_weight_decay_is_lemma_3_1(stream, eta, gamma):
    A = rt.online_coefficients(stream.K, stream.Y, rt.SGD(lr=eta, weight_decay=gamma))
    expected = literal.f_on_regularised(stream.Y, stream.K, stream.K_query.T, eta, gamma)
    assert_same(stream.K_query @ A, expected)


@given(problem=problems(memory=False))
def test_coefficients_are_the_rate_times_the_error(problem):
    stream, learner = problem
    A = rt.online_coefficients(stream.K, stream.Y, learner)
    errors = rt.prequential_errors(stream.K, stream.Y, learner)
    n, b = len(stream), learner.batch_size
    lengths = np.array([min(b, n - (i // b) * b) for i in range(n)])
    scale = learner.lr / (lengths if learner.reduction == "mean" else 1)
    assert_same(A, np.broadcast_to(scale, n)[:, None] * errors)


@pytest.mark.parametrize("momentum", [0.5, 0.95])
def test_heavy_ball_memory_is_the_geometric_sum(momentum):
    memory = step_response(rt.SGD(lr=0.2, momentum=momentum), 0, 12)
    t, i = np.tril_indices(12, -1)
    assert_same(memory.responses[0][t, i], 0.2 * (1 - momentum ** (t - i)) / (1 - momentum))


@given(problem=problems())
def test_final_response_is_the_last_row_of_the_memory(problem):
    stream, learner = problem
    n = len(stream)
    memory = step_response(learner, 0, n)
    assert_same(final_response(learner, n), memory.deposit[0][memory.step_of])


def test_a_memory_that_starts_later_in_the_stream_uses_the_schedule_from_there():
    learner = rt.SGD(lr=[0.4, 0.3, 0.2, 0.1], momentum=0.5)
    assert_same(step_response(learner, 2, 2).deposit[0], [0.2 + 0.1 * 0.5, 0.1])


@given(stream=streams, gamma=gammas)
def test_offline_is_equation_2(stream, gamma):
    A = rt.offline_coefficients(stream.K, stream.Y, gamma)
    expected = literal.f_off(stream.Y, stream.K, stream.K_query.T, gamma)
    assert_same(stream.K_query @ A, expected)


def test_offline_is_scikit_learns_kernel_ridge():
    from sklearn.kernel_ridge import KernelRidge

    stream = make_stream(300, 2, seed=5)  # two panels
    A = rt.offline_coefficients(stream.K, stream.Y, gamma=0.37)
    peer = KernelRidge(alpha=0.37, kernel="precomputed").fit(stream.K, stream.Y)
    assert_same(A, peer.dual_coef_)
