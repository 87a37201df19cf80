"""The online learner: closed forms against the paper's formulas and against torch.optim.SGD."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.kernel_ridge import KernelRidge

import retarget as rt
from retarget.engine.response import remaining_start, step_response
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


@given(
    stream=streams, eta=rates, batch=st.integers(1, 9), epochs=st.integers(1, 5), gamma=gammas,
    decay=st.floats(0.01, 0.9),
)  # fmt: skip
def test_equations_2_6_7_and_lemma_3_1(stream, eta, batch, epochs, gamma, decay):
    K, Y, query = stream.K, stream.Y, stream.K_query
    A = rt.offline_coefficients(K, Y, gamma)
    assert_same(query @ A, literal.f_off(Y, K, query.T, gamma))
    A = rt.online_coefficients(K, Y, rt.SGD(lr=eta, batch_size=batch, reduction="sum"))
    assert_same(query @ A, literal.f_on(Y, K, query.T, eta, batch))
    A = rt.online_coefficients(K, Y, rt.SGD(lr=2 / 3 * eta, weight_decay=decay))
    assert_same(query @ A, literal.f_on_regularized(Y, K, query.T, 2 / 3 * eta, decay))
    # several epochs are one pass over the stream repeated: E n rows, written out
    A = rt.online_coefficients(K, Y, rt.SGD(lr=eta), epochs=epochs)
    K, Y, query = np.tile(K, (epochs, epochs)), np.tile(Y, (epochs, 1)), np.tile(query, epochs)
    assert_same(stream.K_query @ A, literal.f_on(Y, K, query.T, eta))


def test_heavy_ball_memory_and_the_schedule():
    t, i = np.tril_indices(12, -1)
    for momentum in (0.5, 0.95):
        memory = step_response(rt.SGD(lr=0.2, momentum=momentum), 0, 12)
        assert_same(memory.responses[0][t, i], 0.2 * (1 - momentum ** (t - i)) / (1 - momentum))
    learner = rt.SGD(lr=[0.4, 0.3, 0.2, 0.1], momentum=0.5)
    assert_same(step_response(learner, 2, 2).deposit[0], [0.2 + 0.1 * 0.5, 0.1])


def test_offline_is_scikit_learns_kernel_ridge():
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
def test_the_curve_is_torch_optim_sgd(problem, panel, every):
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


@given(problem=problems(memory=False))
def test_coefficients_are_the_rate_times_the_error(problem):
    stream, learner = problem
    A = rt.online_coefficients(stream.K, stream.Y, learner)
    errors = rt.prequential_errors(stream.K, stream.Y, learner)
    n, b = len(stream), learner.batch_size
    lengths = np.array([min(b, n - (i // b) * b) for i in range(n)])
    scale = learner.lr / (lengths if learner.reduction == "mean" else 1)
    assert_same(A, np.broadcast_to(scale, n)[:, None] * errors)


def test_mini_batches_longer_than_the_stream():
    """One step for all samples, whatever the batch size says beyond them."""
    K, Y = np.eye(4) + 0.5, np.arange(8.0).reshape(4, 2)
    for options in ({}, {"momentum": 0.5, "weight_decay": 0.1}):
        exact, endless = (
            rt.SGD(0.1, 4, **options, reduction="sum"),
            rt.SGD(0.1, 2**53, **options, reduction="sum"),
        )
        for compute in (rt.effective_targets, rt.corrected_targets):
            assert_same(compute(K, Y, endless, 0.3), compute(K, Y, exact, 0.3))
    start = {"initial": Y, "epochs": 2}
    wanted = rt.effective_targets(K, Y, rt.SGD(0.1, 4, momentum=0.5, reduction="sum"), 0.3, **start)
    assert_same(
        rt.effective_targets(K, Y, rt.SGD(0.1, 2**53, momentum=0.5, reduction="sum"), 0.3, **start),
        wanted,
    )
