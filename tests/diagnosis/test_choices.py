"""Width, ridge, rate and block: what is chosen is the best of what was tried."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch

import retarget as rt
from retarget.diagnosis.measure import choose_correction as correction
from retarget.diagnosis.measure import stability
from retarget.diagnosis.measure.choose import (
    choose_block,
    choose_gamma,
    choose_kernel,
    choose_rate,
    leave_groups_out,
)
from retarget.diagnosis.measure.choose_correction import choose_correction
from retarget.diagnosis.measure.passes import offline_aims
from retarget.diagnosis.measure.stability import largest_rate, non_normality
from retarget.diagnosis.result import ChosenValue, KernelUsed
from retarget.engine.stability import largest_stable_lr
from support.diagnosis_options import options_for
from support.diagnosis_streams import both_kernels, by_hand, drifting
from support.problems import make_stream

TWO = np.array([2.0, 0.5])


def test_gamma_has_the_least_leave_one_out_error():
    stream = make_stream(20, 2, seed=0)
    for kernel in both_kernels(stream):
        choice = choose_gamma(options_for(), kernel, TWO)
        tried = choice.tried.to_numpy()
        assert choice.automatic
        assert choice.value == tried[tried[:, 1].argmin(), 0]
        # one row of the table against literal refits
        gamma, total = tried[13, 0], 0.0
        for i in range(20):
            rest = np.arange(20) != i
            K, k = stream.K[rest][:, rest], stream.K[i, rest]
            left_out = stream.Y[i] - k @ np.linalg.solve(gamma * np.eye(19) + K, stream.Y[rest])
            total += np.mean((left_out * TWO) ** 2) / 20
        assert tried[13, 1] == pytest.approx(total)
        given = choose_gamma(options_for(gamma=0.123), kernel, TWO)
        assert (given.value, given.automatic, given.how) == (0.123, False, "given")
        assert 0.123 in given.tried["value"]


@pytest.mark.parametrize("memory", [{"momentum": 0.4}, {}])
def test_rate_has_the_least_prequential_error(memory):
    stream = make_stream(20, 2, seed=0)
    options = {"batch_size": 3, "reduction": "sum", **memory}
    for kernel in both_kernels(stream):
        limit = largest_rate(kernel, rt.SGD(1.0, **options))
        choice = choose_rate(options_for(**options), kernel, limit, TWO)
        tried = choice.tried.to_numpy()
        assert choice.automatic
        assert tried[:, 0].max() == pytest.approx(0.9 * limit)
        learners = [rt.SGD(rate, **options) for rate in tried[:, 0]]
        errors = [rt.prequential_errors(stream.K, stream.Y, learner) for learner in learners]
        scores = [np.square(made * TWO).mean() for made in errors]
        np.testing.assert_allclose(tried[:, 1], scores)
        assert choice.value == tried[np.argmin(scores), 0]
        half = choose_rate(options_for(**options), kernel, limit, TWO, first_half=True).tried
        scores = [np.square(made[:10] * TWO).mean() for made in errors]
        np.testing.assert_allclose(half["score"], scores)
        given = choose_rate(options_for(lr=0.0123, **options), kernel, limit, TWO)
        assert (given.value, given.automatic) == (0.0123, False)
        assert 0.0123 in given.tried["value"]
    choice = choose_rate(options_for(lr=1e20), kernel, 1.0, np.ones(1))
    assert choice.tried.filter(choice.tried["value"] == 1e20)["score"].item() is None
    wild = choose_rate(options_for(), kernel, 1e60, np.ones(1))
    assert wild.how == "no rate kept the error finite"


def test_a_schedule_by_its_first_rate():
    """Options refuse schedules, so that this is for callers of the measure alone."""
    kernel = both_kernels(make_stream(20, 2, seed=0))[0]
    options = SimpleNamespace(learner=rt.SGD([0.3, 0.2, 0.1]), choose_lr=False)
    choice = choose_rate(options, kernel, largest_rate(kernel, rt.SGD(1.0)), TWO)
    assert (choice.value, choice.automatic, choice.how) == (0.3, False, "given")
    assert {0.3, 0.2, 0.1} <= set(choice.tried["value"])


def test_smaller_rates_where_the_smallest_is_best():
    stream = make_stream(20, 2, seed=0)
    stream.features[:] = stream.features[0]
    stream.Y = (-1.0) ** np.arange(20)[:, None] * TWO  # what was learned is wrong for the next row
    for kernel in both_kernels(stream):
        choice = choose_rate(options_for(), kernel, 1.0, TWO)
        tried = choice.tried["value"].to_numpy()
        np.testing.assert_allclose(tried, 0.9 * 0.5 ** np.arange(20, -1, -1.0))
        assert choice.value == tried[0]


def settled_at(stream, aim, ridge, gamma, block):
    """Distance of the learner that follows the offline one of ridge `aim` from that of `gamma`."""
    Z = rt.iterative_targets(stream.K, stream.Y, LEARNER, aim, block, ridge)
    A_off = rt.offline_coefficients(stream.K, stream.Y, gamma)
    return np.square(stream.K @ (rt.online_coefficients(stream.K, Z, LEARNER) - A_off)).mean()


LEARNER = rt.SGD(lr=0.3, batch_size=2, reduction="sum")


def automatic(gamma):
    return ChosenValue(gamma, True, "least error", pl.DataFrame())


def test_the_ridges_that_are_tried():
    kernel = both_kernels(make_stream(20, 2, seed=2))[0]
    found, _ = choose_correction(kernel, LEARNER, by_hand(0.1), 6, "auto")
    ridges = [0.0, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0]
    np.testing.assert_allclose(
        found.ridge.tried["value"], kernel.mean_diagonal() * np.array(ridges)
    )


def test_the_stabilizer_ends_nearest_to_the_offline_learner():
    stream = make_stream(20, 2, seed=2)
    for kernel in both_kernels(stream):
        found, _ = choose_correction(kernel, LEARNER, by_hand(0.1), 6, "auto")
        tried, scores = found.ridge.tried["value"].to_list(), found.ridge.tried["score"].to_numpy()
        distances = [settled_at(stream, 0.1, ridge, 0.1, 6) for ridge in tried]
        np.testing.assert_allclose(scores, distances, rtol=1e-6)
        assert found.ridge.value == tried[int(np.argmin(distances))]
        assert found.distance == pytest.approx(min(distances))
        # what was given is followed as it is
        found, _ = choose_correction(kernel, LEARNER, by_hand(0.1), 6, 0.7)
        assert (found.ridge.value, found.ridge.automatic) == (0.7, False)
        assert found.ridge.tried.rows() == [(0.7, found.distance)]
        assert (found.gamma.value, found.gamma.automatic, len(found.gamma.tried)) == (0.1, False, 0)
        np.testing.assert_allclose(found.aims, offline_aims(kernel, 0.1, 6))


@pytest.mark.parametrize(
    ("seed", "gamma", "ridge", "followed"),
    [(2, 1e-3, "auto", 2), (2, 30.0, "auto", 0), (1, 0.01, 0.1, 0)],
)
def test_a_smoother_offline_learner_that_is_nearer(seed, gamma, ridge, followed):
    stream, block = make_stream(60, 2, seed=seed), 4
    A_off = rt.offline_coefficients(stream.K, stream.Y, gamma)
    for kernel in both_kernels(stream):
        found, offline = choose_correction(kernel, LEARNER, automatic(gamma), block, ridge)
        K_A = kernel.values(offline.coefficients).numpy()
        np.testing.assert_allclose(K_A, stream.K @ A_off, rtol=1e-6)
        values, scores = found.gamma.tried["value"].to_list(), found.gamma.tried["score"].to_list()
        np.testing.assert_allclose(values, gamma * correction.AIMS[: len(values)])
        assert scores[-1] >= scores[-2]  # it is tried until it leads no nearer
        near = [score <= (1 + correction.AS_NEAR) * min(scores) for score in scores]
        assert near.index(True) == followed
        assert found.gamma.value == values[followed]
        literal = settled_at(stream, found.gamma.value, found.ridge.value, gamma, block)
        assert found.distance == pytest.approx(literal, rel=1e-5)
        assert ridge == "auto" or found.ridge.value == ridge
        if ridge == "auto" and followed:  # with smoother aims, the ridge that worked, and none
            tried = found.ridge.tried["value"].to_list()
            assert len(tried) == 2
            assert tried[0] == 0 < tried[1]
        np.testing.assert_allclose(found.aims, offline_aims(kernel, found.gamma.value, block))


@pytest.mark.parametrize(("number", "rows"), [(0, "CHOOSING_ROWS"), (1, "CHOOSING_FEATURE_ROWS")])
def test_of_a_long_stream_evenly_spaced_rows_choose(number, rows, monkeypatch):
    stream, gamma = make_stream(60, 2, seed=2), 0.02
    kernel = both_kernels(stream)[number]
    few = kernel.part(kernel.spread_rows(30))
    expected, _ = choose_correction(few, LEARNER, automatic(gamma / 2), 4, "auto")
    monkeypatch.setattr(correction, "CHOOSING_ROWS", 4)
    monkeypatch.setattr(correction, rows, 30)
    found, offline = choose_correction(kernel, LEARNER, automatic(gamma), 4, "auto")
    assert found.gamma.value == pytest.approx(2 * expected.gamma.value)
    assert found.ridge.value == expected.ridge.value
    tried, of_few = found.gamma.tried.to_numpy(), expected.gamma.tried.to_numpy()
    np.testing.assert_allclose(tried, of_few * [2, 1])
    np.testing.assert_allclose(found.aims, offline_aims(kernel, found.gamma.value, 4))
    A_off = rt.offline_coefficients(stream.K, stream.Y, gamma)
    np.testing.assert_allclose(offline.dual, A_off, rtol=1e-6, atol=1e-9)


def test_fewer_rows_choose_if_there_are_many_features(monkeypatch):
    kernel = both_kernels(make_stream(60, 2, seed=2))[1]
    monkeypatch.setattr(correction, "CHOOSING_ROWS", 10)
    monkeypatch.setattr(correction, "CHOOSING_WORK", 35 * kernel.feature_count**2)
    assert correction.choosing_rows(kernel) == 35
    monkeypatch.setattr(correction, "CHOOSING_WORK", 5 * kernel.feature_count**2)
    assert correction.choosing_rows(kernel) == 10


def test_smoother_ones_while_targets_are_too_large(monkeypatch):
    kernel = both_kernels(make_stream(60, 2, seed=1))[0]
    choices = [choose_correction(kernel, LEARNER, by_hand(0.01 * 10**k), 4, 0.1) for k in range(3)]
    sizes = [target_size(kernel, choice.aims, 0.1) for choice, _ in choices]
    assert sizes[0] > sizes[1] > sizes[2]
    nearest, _ = choose_correction(kernel, LEARNER, automatic(0.01), 4, 0.1)
    assert (nearest.gamma.value, nearest.usable) == (0.01, True)
    monkeypatch.setattr(correction, "TOO_LARGE", (sizes[1] + sizes[2]) / 2)
    found, _ = choose_correction(kernel, LEARNER, automatic(0.01), 4, 0.1)
    assert found.usable
    assert found.gamma.value == pytest.approx(1.0)


def target_size(kernel, aims, ridge):
    tried = correction.TriedCorrection(kernel, LEARNER, aims, ridge)
    correction.follow(kernel.windows(4), [tried])
    return tried.size


def test_where_nothing_keeps_the_targets_finite():
    kernel = both_kernels(make_stream(12, 1, seed=2))[0]
    kernel.Y *= 1e300
    found, _ = choose_correction(kernel, LEARNER, automatic(0.1), 4, "auto")
    assert (found.gamma.value, found.distance) == (0.1, np.inf)
    assert found.ridge.how == "no value kept the targets finite"
    assert set(found.gamma.tried["score"]) == {None}


def test_kernels_by_name_object_and_function():
    X = torch.from_numpy(drifting(30).X)
    kernel, words = choose_kernel(options_for(), X)
    distances = (X[:, None] - X).norm(dim=2)[np.triu_indices(30, 1)]
    assert kernel.width == pytest.approx(np.median(distances))
    assert words == KernelUsed("rbf", kernel.width, automatic=True)
    assert choose_kernel(options_for(width=0.5), X)[0].width == 0.5
    linear, words = choose_kernel(options_for(kernel="linear"), X)
    assert (repr(linear), words) == ("Linear()", KernelUsed("linear"))
    assert "laplacian" in choose_kernel(options_for(kernel="laplacian"), X)[1].name
    own = rt.RBF(3.0)
    assert choose_kernel(options_for(kernel=own), X) == (own, KernelUsed("RBF(width=3)"))
    # rows that repeat
    X = torch.zeros(5, 2, dtype=torch.float64)
    assert choose_kernel(options_for(), X)[0].width == np.sqrt(2)
    X[0, 0] = 3.0
    assert choose_kernel(options_for(), X)[0].width == 3.0


def test_blocks_are_multiples_of_the_batch():
    for block, batch, rows, expected in (
        *(("auto", 1, 5000, 64), ("auto", 7, 5000, 63), ("auto", 100, 5000, 100)),
        *(("auto", 1, 50, 5), ("auto", 3, 2, 3), (12, 4, 5, 12)),
    ):
        assert choose_block(block, batch, rows) == expected


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("limit", [1024, 2])
def test_the_largest_rate_is_that_of_the_theory(monkeypatch, reduction, limit):
    monkeypatch.setattr(stability, "LARGEST_EIGENPROBLEM", limit)
    monkeypatch.setattr(stability, "PRECISION", 1e-12)
    stream = make_stream(11, 1, seed=0)
    K = torch.from_numpy(stream.K)
    for batch, momentum in [(1, 0.0), (3, 0.0), (4, 0.7)]:
        learner = rt.SGD(1.0, batch, momentum, momentum > 0, 0.1, reduction)
        expected = largest_stable_lr(lambda rows: K[rows, rows], learner, 11)
        for kernel in both_kernels(stream):
            assert largest_rate(kernel, learner) == pytest.approx(expected, rel=1e-6)


def test_non_normality_is_a_condition_number(monkeypatch):
    monkeypatch.setattr(stability, "PRECISION", 1e-12)
    stream = make_stream(20, 1, seed=0)
    learner = rt.SGD(lr=0.6, batch_size=3, reduction="mean")
    step = np.arange(20) // 3
    rates = np.where(step < 6, 0.6 / 3, 0.6 / 2)
    M = np.eye(20) + stream.K * (step[:, None] > step) * rates
    for kernel in both_kernels(stream):
        assert non_normality(kernel, learner, 0) == pytest.approx(np.linalg.cond(M), rel=1e-5)
        assert non_normality(kernel, rt.SGD(lr=1e200), 0) == np.inf
    monkeypatch.setattr(stability, "NON_NORMALITY_ROWS", 10)
    for kernel in both_kernels(stream):
        leading = non_normality(kernel, learner, 0)
        assert leading == pytest.approx(np.linalg.cond(M[:9, :9]), rel=1e-5)
        assert leading <= np.linalg.cond(M)


@pytest.mark.parametrize("number", [0, 1])
def test_the_ridge_of_groups(number):
    stream = make_stream(60, 2, seed=5)
    groups = np.array([f"g{i % 12}" for i in range(60)])
    kernel, gammas = both_kernels(stream)[number], torch.tensor([0.1, 3.0]).double()
    errors, rows = leave_groups_out(kernel, groups, gammas, seed=1)
    rng = np.random.default_rng(1)
    kept = np.sort(rng.permutation(60)[:2000])
    names, which = np.unique(groups[kept], return_inverse=True)
    fold = rng.permutation(len(names))[which] % 10
    for place, gamma in enumerate(gammas.tolist()):
        left_out = np.empty_like(stream.Y)
        for f in range(10):
            out, learned = fold == f, fold != f
            A = rt.offline_coefficients(stream.K[learned][:, learned], stream.Y[learned], gamma)
            left_out[out] = stream.Y[out] - stream.K[out][:, learned] @ A
        np.testing.assert_allclose(errors[place], np.square(left_out).mean(0), rtol=1e-7)
    assert rows == 60
    chosen = choose_gamma(options_for(), kernel, np.ones(2), groups)
    assert "groups left out" in chosen.how
