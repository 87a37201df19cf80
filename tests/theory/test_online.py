"""The online learner: closed forms against the paper's formulas and against torch.optim.SGD."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.theory.response import final_response, remaining_start, step_response
from support.oracles import literal
from support.oracles.simulation import train
from support.problems import (
    assert_same,
    each_loss,
    gammas,
    make_stream,
    panel_sizes,
    panels_of,
    problems,
    problems_of,
    rates,
    streams,
)


@each_loss
@given(data=st.data(), panel=panel_sizes, seed=st.integers(0, 1000), started=st.booleans())
def test_every_learner_equals_torch_optim_sgd(loss, data, panel, seed, started):
    """From any start, in one epoch or several."""
    stream, learner, epochs = data.draw(problems_of(loss, most_epochs=4))
    size = (stream.features.shape[1], stream.Y.shape[1])
    start = started * np.random.default_rng(seed).normal(size=size)
    options = {"initial": stream.features @ start if started else None, "loss": loss}
    run = train(stream.features, stream.Y, learner, start=start, loss=loss, epochs=epochs)
    with panels_of(panel):
        A = rt.online_coefficients(stream.K, stream.Y, learner, epochs=epochs, **options)
        if epochs == 1:
            assert_same(rt.prequential_errors(stream.K, stream.Y, learner, **options), run.errors)
    left = remaining_start(learner, len(stream), epochs)[-1]
    assert_same(stream.K_query @ A + left * (stream.queries @ start), stream.queries @ run.weights)


@given(stream=streams, eta=st.floats(0.02, 0.9), epochs=st.integers(1, 5))
def test_several_epochs_are_one_pass_over_the_stream_repeated(stream, eta, epochs):
    """The triangular system of E n rows, written out."""
    K, Y = np.tile(stream.K, (epochs, epochs)), np.tile(stream.Y, (epochs, 1))
    expected = literal.f_on(Y, K, np.tile(stream.K_query.T, (epochs, 1)), eta)
    A = rt.online_coefficients(stream.K, stream.Y, rt.SGD(lr=eta), epochs=epochs)
    assert_same(stream.K_query @ A, expected)


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


# Learning curves


@given(stream=streams, gamma=gammas, panel=panel_sizes, every=st.integers(1, 9))
def test_offline_curve_is_one_solve_a_prefix(stream, gamma, panel, every):
    stops = list(range(1, len(stream) + 1, every))
    with panels_of(panel):
        curve = rt.offline_learning_curve(stream.K, stream.Y, stream.K_query, gamma, stops)
    assert curve.shape == (len(stops), *stream.K_query.shape[:1], stream.Y.shape[1])
    for t, got in zip(stops, curve, strict=True):
        expected = literal.f_off(stream.Y[:t], stream.K[:t, :t], stream.K_query[:, :t].T, gamma)
        assert_same(got, expected)


@given(problem=problems(), panel=panel_sizes, every=st.integers(1, 4))
def test_online_curve_is_torch_optim_sgd_on_the_way(problem, panel, every):
    stream, learner = problem
    run = train(stream.features, stream.Y, learner)
    stops = list(range(learner.batch_size, len(stream), every * learner.batch_size))
    stops.append(len(stream))
    with panels_of(panel):
        curve = rt.online_learning_curve(stream.K, stream.Y, stream.K_query, learner, stops)
    for t, got in zip(stops, curve, strict=True):
        assert_same(got, stream.queries @ run.history[learner.steps(t) - 1])


def test_flat_targets_and_torch():
    stream = make_stream(8, 1, seed=0)
    K, Y, query = (torch.tensor(part) for part in (stream.K, stream.Y[:, 0], stream.K_query))
    offline = rt.offline_learning_curve(K, Y, query, 0.5, [3, 8])
    online = rt.online_learning_curve(K, Y, query, rt.SGD(lr=0.5), [3, 8])
    assert isinstance(offline, torch.Tensor)
    assert offline.shape == online.shape == (2, 5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"stops": []}, InvalidInputError, r"stops are \[\]; expected increasing"),
        ({"stops": [2, 2]}, InvalidInputError, "expected increasing lengths from 1 to 6"),
        ({"stops": [0, 4]}, InvalidInputError, "expected increasing"),
        ({"stops": [2, 8]}, InvalidInputError, "expected increasing"),
        ({"stops": [3, 6]}, InvalidInputError, "the stop at 3 is inside a mini-batch of 2"),
        ({"K_query": np.ones((2, 5))}, InvalidInputError, r"K_query has shape \(2, 5\); exp"),
        ({"K_query": np.ones((2, 6), int)}, InvalidTypeError, "K_query has dtype int64"),
        ({"K_query": np.full((2, 6), np.nan)}, InvalidInputError, "K_query holds nan"),
    ],
)
def test_curves_refuse(change, error, message):
    stream = make_stream(6, 1, seed=0)
    arguments = {"K_query": stream.K_query, "stops": [2, 6]} | change
    with pytest.raises(error, match=message):
        rt.online_learning_curve(
            stream.K, stream.Y, learner=rt.SGD(lr=0.1, batch_size=2), **arguments
        )
