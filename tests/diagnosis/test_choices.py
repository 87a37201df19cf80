"""Width, ridge, rate and block: what is chosen is the best of what was tried."""

import numpy as np
import polars as pl
import pytest
import torch

import retarget as rt
from retarget.diagnosis.measure import stability
from retarget.diagnosis.measure.choose import (
    choose_block,
    choose_gamma,
    choose_kernel,
    choose_rate,
)
from retarget.diagnosis.measure.correction import (
    AIMS,
    AS_NEAR,
    choose_correction,
    choose_ridge,
    offline_aims,
    settle,
)
from retarget.diagnosis.measure.stability import largest_rate, non_normality
from retarget.diagnosis.result import Choice
from retarget.theory.stability import largest_stable_lr
from support.diagnosis_streams import both_kernels, by_hand, drifting
from support.problems import make_stream

TWO = np.array([2.0, 0.5])


def test_gamma_has_the_least_leave_one_out_error_in_the_users_units():
    stream = make_stream(20, 2, seed=0)
    for kernel in both_kernels(stream):
        choice = choose_gamma("auto", kernel, TWO, seed=0)
        tried = choice.tried.to_numpy()
        assert choice.automatic
        assert len(tried) == 22
        assert "22 values" in choice.how
        assert choice.value == tried[tried[:, 1].argmin(), 0]
        # one row of the table against literal refits
        gamma, total = tried[13, 0], 0.0
        for i in range(20):
            rest = np.arange(20) != i
            K, k = stream.K[rest][:, rest], stream.K[i, rest]
            left_out = stream.Y[i] - k @ np.linalg.solve(gamma * np.eye(19) + K, stream.Y[rest])
            total += np.mean((left_out * TWO) ** 2) / 20
        assert tried[13, 1] == pytest.approx(total)
        given = choose_gamma(0.123, kernel, TWO, seed=0)
        assert (given.value, given.automatic, given.how) == (0.123, False, "given")
        assert 0.123 in given.tried["value"]


def test_rate_has_the_least_prequential_error_among_stable_rates():
    stream = make_stream(20, 2, seed=0)
    learner = rt.SGD(lr=1.0, batch_size=3, momentum=0.4)
    for kernel in both_kernels(stream):
        limit = largest_rate(kernel, learner)
        choice = choose_rate("auto", learner, kernel, limit, TWO)
        tried = choice.tried.to_numpy()
        assert choice.automatic
        assert tried[:, 0].max() == pytest.approx(0.9 * limit)
        scores = []
        for rate in tried[:, 0]:
            same = rt.SGD(lr=rate, batch_size=3, momentum=0.4)
            errors = rt.prequential_errors(stream.K, stream.Y, same)
            scores.append(np.square(errors * TWO).mean())
        np.testing.assert_allclose(tried[:, 1], scores)
        assert choice.value == tried[np.argmin(scores), 0]
        given = choose_rate(0.0123, learner, kernel, limit, TWO)
        assert (given.value, given.automatic) == (0.0123, False)
        assert 0.0123 in given.tried["value"]


def test_a_rate_that_diverges_has_no_score():
    kernel = both_kernels(make_stream(40, 1, seed=0))[0]
    choice = choose_rate(1e20, rt.SGD(lr=1.0), kernel, 1.0, np.ones(1))
    assert choice.tried.filter(choice.tried["value"] == 1e20)["score"].item() is None
    wild = choose_rate("auto", rt.SGD(lr=1.0), kernel, 1e60, np.ones(1))
    assert wild.how == "no rate kept the error finite"


@pytest.mark.parametrize("value", ["best", [0.1, 0.2]])
def test_a_rate_or_ridge_is_a_number_or_auto(value):
    kernel = both_kernels(make_stream(5, 1, seed=0))[0]
    error = rt.errors.InvalidInputError if value == "best" else rt.errors.InvalidTypeError
    with pytest.raises(error, match=r"lr is .*; expected (a|one) number,? or 'auto'"):
        choose_rate(value, rt.SGD(lr=1.0), kernel, 1.0, np.ones(1))
    with pytest.raises(error, match=r"gamma is .*; expected (a|one) number,? or 'auto'"):
        choose_gamma(value, kernel, np.ones(1), 0)


def test_ridge_ends_nearest_to_the_offline_learner():
    stream = make_stream(30, 2, seed=2)
    learner = rt.SGD(lr=0.3, batch_size=2)
    for kernel in both_kernels(stream):
        aims, offline = offline_aims(kernel, 0.1, 6), kernel.offline(0.1)
        choice, distance = choose_ridge(kernel, learner, aims, 6, offline.coefficients)
        A_off = rt.offline_coefficients(stream.K, stream.Y, 0.1)
        distances = []
        for ridge in choice.tried["value"]:
            Z = rt.iterative_targets(stream.K, stream.Y, learner, 0.1, 6, ridge)
            A = rt.online_coefficients(stream.K, Z, learner)
            distances.append(np.square(stream.K @ (A - A_off)).mean())
        np.testing.assert_allclose(choice.tried["score"].to_numpy(), distances, rtol=1e-6)
        assert choice.value == choice.tried["value"][int(np.argmin(distances))]
        assert distance == pytest.approx(min(distances))
        fixed, distance = choose_ridge(kernel, learner, aims, 6, offline.coefficients, 0.7)
        assert (fixed.value, fixed.automatic) == (0.7, False)
        assert fixed.tried.rows() == [(0.7, distance)]
        lost, distance = choose_ridge(kernel, learner, aims * 1e200, 6, offline.coefficients)
        assert lost.how == "no value kept the targets finite"
        assert distance == np.inf


def settled_at(stream, learner, aim, ridge, gamma, block):
    """Distance of the learner that follows the offline one of ridge `aim` from that of `gamma`."""
    Z = rt.iterative_targets(stream.K, stream.Y, learner, aim, block, ridge)
    A_off = rt.offline_coefficients(stream.K, stream.Y, gamma)
    return np.square(stream.K @ (rt.online_coefficients(stream.K, Z, learner) - A_off)).mean()


def test_a_smoother_offline_learner_is_followed_where_it_leads_nearer():
    learner, block = rt.SGD(lr=0.3, batch_size=2), 4
    followed = set()
    for seed, gamma, ridge in ((2, 1e-3, None), (2, 30.0, None), (5, 0.01, None), (1, 0.01, 0.1)):
        stream = make_stream(60, 2, seed=seed)
        for kernel in both_kernels(stream):
            chosen = Choice(gamma, True, "least error", pl.DataFrame())
            way, offline = choose_correction(kernel, learner, chosen, block, ridge)
            A_off = rt.offline_coefficients(stream.K, stream.Y, gamma)
            K_A = kernel.values(offline.coefficients).numpy()
            np.testing.assert_allclose(K_A, stream.K @ A_off, rtol=1e-6)
            values, scores = way.aim.tried["value"].to_list(), way.aim.tried["score"].to_list()
            np.testing.assert_allclose(values, gamma * np.array(AIMS))
            near = [score <= (1 + AS_NEAR) * min(scores) for score in scores]
            assert way.aim.value == values[near.index(True)]
            assert "among 4 ridges" in way.aim.how
            literal = settled_at(stream, learner, way.aim.value, way.ridge.value, gamma, block)
            assert way.distance == pytest.approx(literal, rel=1e-5)
            assert ridge is None or way.ridge.value == ridge
            np.testing.assert_allclose(way.aims, offline_aims(kernel, way.aim.value, block))
            followed.add(near.index(True))
    assert len(followed) > 1


def test_where_no_way_keeps_the_targets_finite():
    stream = make_stream(12, 1, seed=2)
    kernel = both_kernels(stream)[0]
    kernel.Y *= 1e300
    chosen = Choice(0.1, True, "least error", pl.DataFrame())
    way, _ = choose_correction(kernel, rt.SGD(lr=0.3), chosen, 3, None)
    assert (way.aim.value, way.distance) == (0.1, np.inf)
    assert way.aim.tried["score"].to_list() == [None] * 4


def test_a_ridge_that_was_given_is_followed_as_it_is():
    stream = make_stream(60, 2, seed=2)
    for kernel in both_kernels(stream):
        way, _ = choose_correction(kernel, rt.SGD(lr=0.3, batch_size=2), by_hand(1e-4), 4, 0.5)
        assert (way.aim.value, way.aim.automatic, len(way.aim.tried)) == (1e-4, False, 0)
        assert (way.ridge.value, way.ridge.automatic) == (0.5, False)
        np.testing.assert_allclose(way.aims, offline_aims(kernel, 1e-4, 4))


def test_settling_on_no_ridge_where_a_row_is_nothing():
    stream = make_stream(6, 1, seed=2)
    stream.features[2] = 0.0
    kernel = both_kernels(stream)[0]
    aims, learner = offline_aims(kernel, 0.1, 3), rt.SGD(lr=0.3)
    choice, _ = choose_ridge(kernel, learner, aims, 3, kernel.offline(0.1).coefficients)
    (end,) = settle(kernel, learner, aims, 3, [0.0])
    assert end.isfinite().all()
    assert None not in choice.tried["score"].to_list()


def test_kernels_by_name_object_and_function():
    X = torch.from_numpy(drifting(30).X)
    kernel, words = choose_kernel("rbf", None, X)
    distances = [float((a - b).norm()) for i, a in enumerate(X) for b in X[:i]]
    assert kernel.width == pytest.approx(np.median(distances))
    assert "median distance" in words
    assert choose_kernel("rbf", 0.5, X)[0].width == 0.5
    linear, words = choose_kernel("linear", None, X)
    assert (repr(linear), words) == ("Linear()", "linear")
    assert "laplacian" in choose_kernel("laplacian", None, X)[1]
    own = rt.RBF(3.0)
    assert choose_kernel(own, None, X) == (own, "RBF(width=3)")
    with pytest.raises(rt.errors.InvalidInputError, match=r"only 'rbf' takes a width"):
        choose_kernel("linear", 2.0, X)


def test_the_width_of_rows_that_repeat():
    X = torch.zeros(5, 2, dtype=torch.float64)
    assert choose_kernel("rbf", None, X)[0].width == 1.0
    X[0, 0] = 3.0
    assert choose_kernel("rbf", None, X)[0].width == 3.0


@pytest.mark.parametrize(
    ("block", "batch", "rows", "expected"),
    [
        (None, 1, 5000, 64),
        (None, 7, 5000, 63),
        (None, 100, 5000, 100),
        (None, 1, 50, 5),
        (None, 3, 2, 3),
        (12, 4, 5, 12),
    ],
)
def test_blocks_are_multiples_of_the_batch(block, batch, rows, expected):
    assert choose_block(block, batch, rows) == expected


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("limit", [1024, 2])
def test_the_largest_rate_is_that_of_the_theory(monkeypatch, reduction, limit):
    monkeypatch.setattr(stability, "LARGEST_EIGENPROBLEM", limit)
    monkeypatch.setattr(stability, "PRECISION", 1e-12)
    stream = make_stream(11, 1, seed=0)
    for batch, momentum in [(1, 0.0), (3, 0.0), (4, 0.7)]:
        learner = rt.SGD(
            lr=1.0, batch_size=batch, momentum=momentum, nesterov=momentum > 0,
            weight_decay=0.1, reduction=reduction,
        )  # fmt: skip
        K = torch.from_numpy(stream.K)
        expected = largest_stable_lr(lambda rows, K=K: K[rows, rows], learner, 11)
        for kernel in both_kernels(stream):
            assert largest_rate(kernel, learner) == pytest.approx(expected, rel=1e-6)


def test_non_normality_is_the_condition_number_of_the_online_system(monkeypatch):
    monkeypatch.setattr(stability, "PRECISION", 1e-12)
    stream = make_stream(20, 1, seed=0)
    learner = rt.SGD(lr=0.6, batch_size=3, reduction="mean")
    step = np.arange(20) // 3
    rates = np.where(step < 6, 0.6 / 3, 0.6 / 2)
    M = np.eye(20) + stream.K * (step[:, None] > step) * rates
    for kernel in both_kernels(stream):
        assert non_normality(kernel, learner, 0) == pytest.approx(np.linalg.cond(M), rel=1e-5)
    monkeypatch.setattr(stability, "NON_NORMALITY_ROWS", 10)
    for kernel in both_kernels(stream):
        leading = non_normality(kernel, learner, 0)
        assert leading == pytest.approx(np.linalg.cond(M[:9, :9]), rel=1e-5)
        assert leading <= np.linalg.cond(M)


def test_an_online_system_beyond_numbers_has_no_condition():
    kernel = both_kernels(make_stream(20, 1, seed=0))[0]
    assert non_normality(kernel, rt.SGD(lr=1e200), 0) == np.inf
