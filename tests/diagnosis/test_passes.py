"""Learners run over both kernels of a stream, against refits and step-by-step simulation."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.linalg import solve

import retarget as rt
from retarget.diagnosis.measure.passes import (
    IterativeCorrection,
    Job,
    OnlineRun,
    learn_corrected,
    learn_online,
    offline_aims,
    offline_errors,
)
from retarget.engine.followers import Exact, follow
from retarget.theory.correction import errors_reaching
from support.diagnosis_streams import both_kernels
from support.oracles import simulation
from support.problems import (
    assert_same,
    fewer_examples,
    gammas,
    make_stream,
    panel_sizes,
    panels_of,
    problems,
    ridges,
)

blocks_of = st.sampled_from([1, 2, 3])


@fewer_examples
@given(problem=problems(), panel=panel_sizes, seed=st.integers(0, 99))
def test_learners_in_any_order(problem, panel, seed):
    stream, learner = problem
    order = np.random.default_rng(seed).permutation(len(stream))
    plain = simulation.train(stream.features, stream.Y, learner)
    other = rt.SGD(lr=0.01, batch_size=2, reduction="sum")
    second = simulation.train(stream.features, 2 * stream.Y, other)
    shuffled = simulation.train(stream.features[order], stream.Y[order], learner)
    queries = torch.from_numpy(stream.queries)
    with panels_of(panel):
        for kernel in both_kernels(stream):
            jobs = [Job(learner, kernel.Y), Job(other, 2 * kernel.Y)]
            first, twice = learn_online(kernel, jobs)
            assert_same(first.errors, plain.errors)
            assert_same(first.squared_error, np.square(plain.errors).mean(0))
            assert_same(twice.errors, second.errors)
            assert_same(kernel.predict(queries, first.coefficients), stream.queries @ plain.weights)
            assert_same(kernel.values(first.coefficients), stream.features @ plain.weights)
            job = Job(learner, kernel.Y, keep_errors=False)
            (again,) = learn_online(kernel, [job], torch.from_numpy(order))
            assert again.errors is None
            predicted = kernel.predict(queries, again.coefficients)
            assert_same(predicted, stream.queries @ shuffled.weights)


@fewer_examples
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
            settled = IterativeCorrection(kernel, learner, found, ridge)
            run = learn_corrected(kernel, learner, settled, block)
            assert settled.failure is None
            assert np.abs(settled.targets.numpy() - iterative).max() <= 1e-8 * max(1, scale)
            for end in (run.coefficients, settled.coefficients):
                values = kernel.values(end).numpy()
                assert np.abs(values - K @ reached).max() <= 1e-8 * max(1, scale)
            errors = errors_reaching(kernel.offline(gamma).dual, learner)
            exact = Exact(kernel.learner(learner), errors)
            run = learn_corrected(kernel, learner, exact, learner.batch_size)
            assert np.abs(exact.targets.numpy() - corrected).max() <= 1e-8 * max(1, scale)
            values = kernel.values(run.coefficients).numpy()
            offline = K @ rt.offline_coefficients(K, Y, gamma)
            assert np.abs(values - offline).max() <= 1e-8 * max(1, scale)


@given(problem=problems(), gamma=gammas, times=blocks_of, panel=panel_sizes)
def test_progressive_errors_are_those_of_refits(problem, gamma, times, panel):
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
            made = OnlineRun(kernel, learner, 1.7 * kernel.Y, before_blocks=True)
            follow(kernel.windows(block), [made])
            assert_same(made.before_blocks, before)


def test_a_learner_that_diverges_leaves_the_others_be():
    stream = make_stream(30, 2, seed=1)
    wild, tame = rt.SGD(lr=1e30), rt.SGD(lr=0.3)
    for kernel in both_kernels(stream):
        lost, kept = learn_online(kernel, [Job(wild, kernel.Y), Job(tame, kernel.Y)])
        expected = rt.prequential_errors(stream.K, stream.Y, tame)
        assert lost.coefficients is None
        assert 0 < lost.diverged_at < 30
        assert lost.squared_error.isnan().all()
        assert_same(kept.squared_error, np.square(expected).mean(0))
        assert kept.diverged_at is None


def test_a_block_without_an_inverse():
    stream = make_stream(9, 1, seed=1)
    for kernel in both_kernels(stream):
        aims, whole, shift = offline_aims(kernel, 0.5, 9), kernel.panel, 9 * torch.eye(9).double()

        def indefinite(rows, order=None, whole=whole, shift=shift):
            seen = whole(rows, order)
            if isinstance(seen, torch.Tensor):
                return seen - shift
            seen.gram = seen.gram - shift
            return seen

        kernel.panel = indefinite
        lost, kept = (IterativeCorrection(kernel, rt.SGD(lr=0.2), aims, r) for r in (0.0, 50.0))
        follow(kernel.windows(9), [lost, kept])
        assert "not positive definite" in lost.failure
        assert lost.targets.isnan().all()
        assert lost.coefficients is None
        assert kept.coefficients is not None
        # and one that overflows
        kernel.panel = whole
        lost = IterativeCorrection(kernel, rt.SGD(lr=0.2), aims * 1e300, 0.1)
        follow(kernel.windows(9), [lost])
        assert "overflow" in lost.failure
    stream.features[2] = 0.0  # a row of nothing needs no ridge
    kernel = both_kernels(stream)[0]
    settled = IterativeCorrection(kernel, rt.SGD(lr=0.3), offline_aims(kernel, 0.1, 3), 0.0)
    follow(kernel.windows(3), [settled])
    assert settled.coefficients.isfinite().all()
