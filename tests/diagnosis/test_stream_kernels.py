"""Both kernels of a stream against literal formulas, refits and step-by-step simulation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.linalg import solve

import retarget as rt
from retarget.diagnosis.kernels import features as feature_kernel
from retarget.diagnosis.kernels import full as full_kernel
from retarget.diagnosis.measure.correction import (
    offline_aims,
    offline_errors,
    settle,
    settling_targets,
)
from retarget.diagnosis.measure.passes import (
    errors_before_blocks,
    learn_online,
    targets_with_errors,
)
from retarget.theory.correction import errors_reaching
from support.diagnosis_streams import both_kernels
from support.oracles import simulation
from support.problems import (
    assert_same,
    gammas,
    make_stream,
    panel_sizes,
    panels_of,
    problems,
    ridges,
)

blocks_of = st.sampled_from([1, 2, 3])


@settings(max_examples=60)
@given(problem=problems(), panel=panel_sizes, seed=st.integers(0, 99))
def test_learners_in_any_order_are_those_of_the_optimiser(problem, panel, seed):
    stream, learner = problem
    order = np.random.default_rng(seed).permutation(len(stream))
    plain = simulation.train(stream.features, stream.Y, learner)
    other = rt.SGD(lr=0.01, batch_size=2)
    second = simulation.train(stream.features, 2 * stream.Y, other)
    shuffled = simulation.train(stream.features[order], stream.Y[order], learner)
    queries = torch.from_numpy(stream.queries)
    with panels_of(panel):
        for kernel in both_kernels(stream):
            first, twice = learn_online(kernel, [(learner, kernel.Y), (other, 2 * kernel.Y)])
            assert_same(first.errors, plain.errors)
            assert_same(first.squared_error, np.square(plain.errors).mean(0))
            assert_same(twice.errors, second.errors)
            assert_same(kernel.predict(queries, first.coefficients), stream.queries @ plain.weights)
            assert_same(kernel.values(first.coefficients), stream.features @ plain.weights)
            (again,) = learn_online(
                kernel, [(learner, kernel.Y)], order=torch.from_numpy(order), keep_errors=False
            )
            assert again.errors is None
            predicted = kernel.predict(queries, again.coefficients)
            assert_same(predicted, stream.queries @ shuffled.weights)


@given(problem=problems(), gamma=gammas, panel=panel_sizes)
def test_offline_density_and_blocks_are_the_formulas(problem, gamma, panel):
    stream, learner = problem
    n, b = len(stream), learner.batch_size
    A = solve(gamma * np.eye(n) + stream.K, stream.Y)
    density = [(row.sum() - row[i]) / max(1, n - 1) for i, row in enumerate(stream.K)]
    with panels_of(panel):
        for kernel in both_kernels(stream):
            offline = kernel.offline(gamma)
            assert_same(offline.dual, A, 1e-8)
            queries = torch.from_numpy(stream.queries)
            assert_same(kernel.predict(queries, offline.coefficients), stream.K_query @ A, 1e-8)
            assert_same(kernel.density(), density)
            assert kernel.mean_diagonal() == pytest.approx(stream.K.diagonal().mean())
            blocks = [block.numpy() for part in kernel.blocks(b) for block in part]
            assert len(blocks) == learner.steps(n)
            for place, block in enumerate(blocks):
                rows = slice(place * b, (place + 1) * b)
                assert_same(block, stream.K[rows, rows])


@given(problem=problems(), gamma=gammas)
def test_leave_one_out_is_one_refit_a_row(problem, gamma):
    stream, _ = problem
    n, grid = len(stream), np.array([gamma, 3 * gamma])
    expected = np.zeros((2, stream.Y.shape[1]))
    for place, ridge in enumerate(grid):
        for i in range(n):
            rest = np.arange(n) != i
            A = solve(ridge * np.eye(n - 1) + stream.K[rest][:, rest], stream.Y[rest])
            expected[place] += (stream.Y[i] - stream.K[i, rest] @ A) ** 2 / n
    for kernel in both_kernels(stream):
        errors, rows = kernel.leave_one_out(torch.from_numpy(grid), seed=0)
        assert rows == n
        assert_same(errors, expected, 1e-8)


def test_leave_one_out_of_a_long_stream_is_of_some_of_its_rows(monkeypatch):
    monkeypatch.setattr(full_kernel, "LEAVE_ONE_OUT_ROWS", 7)
    monkeypatch.setattr(feature_kernel, "LEAVE_ONE_OUT_ROWS", 5)
    stream = make_stream(13, 2, seed=4)
    full, features = both_kernels(stream)
    grid = torch.tensor([0.3, 2.0], dtype=torch.float64)
    chosen = torch.randperm(13, generator=torch.Generator().manual_seed(8))[:7].sort().values
    errors, rows = full.leave_one_out(grid, seed=8)
    small = make_stream(13, 2, seed=4)
    small.features, small.Y = small.features[chosen], small.Y[chosen]
    assert rows == 7
    assert_same(errors, both_kernels(small)[0].leave_one_out(grid, seed=8)[0])
    # through features: the learner of all other rows, asked about rows 0, 3, 6, 9 and 12
    errors, rows = features.leave_one_out(grid, seed=8)
    A = np.linalg.inv(0.3 * np.eye(13) + stream.K)
    left_out = (A @ stream.Y) / A.diagonal()[:, None]
    assert rows == 5
    assert_same(errors[0], np.square(left_out[[0, 3, 6, 9, 12]]).mean(0))


@settings(max_examples=60)
@given(problem=problems(), gamma=gammas, ridge=ridges, times=blocks_of, panel=panel_sizes)
def test_corrections_are_those_of_the_theory(problem, gamma, ridge, times, panel):
    stream, learner = problem
    block = times * learner.batch_size
    K, Y = stream.K, stream.Y
    aims = rt.distilled_targets(K, Y, gamma, block)
    iterative = rt.iterative_targets(K, Y, learner, gamma, block, ridge)
    corrected = rt.corrected_targets(K, Y, learner, gamma)
    reached = rt.online_coefficients(K, iterative, learner)
    scale = np.abs(iterative).max() + np.abs(corrected).max()
    with panels_of(panel):
        for kernel in both_kernels(stream):
            found = offline_aims(kernel, gamma, block)
            assert_same(found, aims, 1e-8)
            settled = settling_targets(kernel, learner, found, block, ridge)
            assert settled.failure is None
            assert np.abs(settled.targets.numpy() - iterative).max() <= 1e-8 * max(1, scale)
            values = kernel.values(settled.run.coefficients).numpy()
            assert np.abs(values - K @ reached).max() <= 1e-8 * max(1, scale)
            (end,) = settle(kernel, learner, found, block, [ridge])
            values = kernel.values(end).numpy()
            assert np.abs(values - K @ reached).max() <= 1e-8 * max(1, scale)
            errors = errors_reaching(kernel.offline(gamma).dual, learner)
            exact, run = targets_with_errors(kernel, learner, errors)
            assert np.abs(exact.numpy() - corrected).max() <= 1e-8 * max(1, scale)
            values = kernel.values(run.coefficients).numpy()
            offline = K @ rt.offline_coefficients(K, Y, gamma)
            assert np.abs(values - offline).max() <= 1e-8 * max(1, scale)


@settings(max_examples=60)
@given(problem=problems(), gamma=gammas, times=blocks_of, panel=panel_sizes)
def test_progressive_errors_are_those_of_refits_and_of_the_optimiser(problem, gamma, times, panel):
    stream, learner = problem
    n, b = len(stream), learner.batch_size
    offline, before = stream.Y.copy(), stream.Y.copy()
    for start in range(b, n, b):
        past, rows = slice(0, start), slice(start, start + b)
        A = solve(gamma * np.eye(start) + stream.K[past, past], stream.Y[past])
        offline[rows] -= stream.K[rows, past] @ A
    targets = stream.Y * 1.7
    run = simulation.train(stream.features, targets, learner)
    block = times * b
    for start in range(block, n, block):
        rows = slice(start, start + block)
        before[rows] -= stream.features[rows] @ run.history[start // b - 1]
    with panels_of(panel):
        for kernel in both_kernels(stream):
            assert_same(offline_errors(kernel, gamma, b), offline, 1e-8)
            made = errors_before_blocks(kernel, learner, 1.7 * kernel.Y, block)
            assert_same(made, before)


@pytest.mark.parametrize("keep", [True, False])
def test_a_learner_that_diverges_leaves_the_others_be(keep):
    stream = make_stream(30, 2, seed=1)
    wild, tame = rt.SGD(lr=1e30), rt.SGD(lr=0.3)
    for kernel in both_kernels(stream):
        lost, kept = learn_online(kernel, [(wild, kernel.Y), (tame, kernel.Y)], keep_errors=keep)
        expected = rt.prequential_errors(stream.K, stream.Y, tame)
        assert lost.coefficients is None
        assert 0 < lost.diverged_at < 30
        assert lost.squared_error.isnan().all()
        assert_same(kept.squared_error, np.square(expected).mean(0))
        assert kept.diverged_at is None


def test_a_block_without_an_inverse_is_a_reason_and_not_an_end():
    stream = make_stream(9, 1, seed=1)
    for kernel in both_kernels(stream):
        whole, shift = kernel.rows, 9 * torch.eye(9, dtype=torch.float64)

        def indefinite(rows, order=None, whole=whole, shift=shift):
            seen = whole(rows, order)
            if isinstance(seen, torch.Tensor):
                return seen - shift
            seen.gram = seen.gram - shift
            return seen

        aims = offline_aims(kernel, 0.5, 9)
        kernel.rows = indefinite
        settled = settling_targets(kernel, rt.SGD(lr=0.2), aims, 9, 0.0)
        assert settled.targets.isnan().all()
        assert "not positive definite" in settled.failure
        ends = settle(kernel, rt.SGD(lr=0.2), aims, 9, [0.0, 50.0])
        assert ends[0] is None
        assert ends[1] is not None
        # and one that overflows
        kernel.rows = whole
        settled = settling_targets(kernel, rt.SGD(lr=0.2), aims * 1e300, 9, 0.1)
        assert "grow beyond numbers" in settled.failure


def test_predictions_before_blocks_end_where_the_learner_diverges():
    stream = make_stream(30, 1, seed=1)
    for kernel in both_kernels(stream):
        errors = errors_before_blocks(kernel, rt.SGD(lr=1e60), kernel.Y, 2)
        assert errors[0].isfinite().all()
        assert errors[-1].isnan().all()
