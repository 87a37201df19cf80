"""Rates that are stable, and learners that blow up: an error, or at least a warning."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.engine.probes import CHUNK, random_probes, random_signs
from retarget.engine.stability import largest_stable_lr
from retarget.errors import DivergedError, DivergenceWarning
from support.problems import core_functions, make_stream, panels_of


def random_stream(d, n, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, X @ X.T, rng.normal(size=n)


@given(
    d=st.sampled_from([1, 2, 5, 50]), seed=st.integers(0, 999),
    momentum=st.sampled_from([0.0, 0.5, 0.9, 0.99]), nesterov=st.booleans(),
    decay=st.sampled_from([0.0, 0.1, 2.0]), batch=st.sampled_from([1, 4, 16]),
    reduction=st.sampled_from(["sum", "mean"]),
)  # fmt: skip
def test_rates_below_the_offered_one_are_stable(
    d, seed, momentum, nesterov, decay, batch, reduction
):
    _, K, Y = random_stream(d, 300, seed)
    unit = rt.SGD(1.0, batch, momentum, nesterov and momentum > 0, decay, reduction)
    gram = torch.tensor(K)
    limit = largest_stable_lr(lambda rows: gram[rows, rows], unit, 300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        errors = rt.prequential_errors(K, Y, replace(unit, lr=0.9 * limit))
    assert np.abs(errors).max() < 10 * np.abs(Y).max()


@pytest.mark.parametrize(
    ("learner", "limit"),
    [
        (rt.SGD(lr=30.0), 2.0),
        (rt.SGD(lr=30.0, weight_decay=0.5), 2 / 1.5),
        (rt.SGD(lr=40.0, momentum=0.5), 1.0),
        (rt.SGD(lr=40.0, momentum=0.5, nesterov=True), 1.0),
        (rt.SGD(lr=400.0, batch_size=4, reduction="mean"), 2.0),
        (rt.SGD(lr=30.0, batch_size=4, reduction="sum"), 0.5),
    ],
)
def test_divergence_names_the_step_and_a_stable_rate(learner, limit):
    K = np.ones((1000, 1000))
    with pytest.raises(DivergedError, match="overflows at step .* would be stable") as caught:
        rt.online_coefficients(K, np.ones(1000), learner)
    assert caught.value.largest_stable_lr == pytest.approx(limit)
    fine = min(1000, caught.value.step * learner.batch_size)
    with pytest.warns(DivergenceWarning):
        errors = rt.prequential_errors(K[:fine, :fine], np.ones(fine), learner)
    assert np.isfinite(errors).all()
    calm = replace(learner, lr=0.99 * limit)
    assert np.abs(rt.prequential_errors(K, np.ones(1000), calm)[-1]) < 10


BLOWING_UP = rt.SGD(lr=3.2)  # 300 steps multiply an error by about 1e14, and none overflows


def watched(learner):
    """The functions that run an online learner."""
    functions = core_functions(learner, 0.5, 4, 0.1)
    del functions["offline_coefficients"], functions["distilled_targets"]
    stops = [100, 300]
    return functions | {"curve": lambda K, Y: rt.online_learning_curve(K, Y, K[:2], learner, stops)}


@pytest.mark.parametrize("name", watched(rt.SGD(lr=1.0)))
def test_growth_without_overflow_is_a_warning(name):
    _, K, Y = random_stream(5, 300, seed=1)
    with pytest.warns(DivergenceWarning, match=r"lr = 3\.2; below 2 it would be stable"):
        watched(BLOWING_UP)[name](K, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched(rt.SGD(lr=1.8))[name](K, Y)


def test_corrected_targets_that_fail_are_announced():
    """Theorem 4.1 holds until rounding has grown to the size of the result; then there is a word.

    The learner's errors on these targets are small by design: it is the probe that tells.
    """
    for lr in (0.5, 1.9, 2.6, 3.2, 4.0):
        _, K, Y = random_stream(5, 300, seed=1)
        learner = rt.SGD(lr=lr)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            Z = rt.corrected_targets(K, Y, learner, 0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            A = rt.online_coefficients(K, Z, learner)
        offline = rt.offline_coefficients(K, Y, 0.5)
        off = np.abs(A - offline).max() / np.abs(offline).max()
        announced = any(issubclass(one.category, DivergenceWarning) for one in told)
        assert off < 1e-2 or announced, (lr, off)
        assert off > 1e-6 or not announced, (lr, off)  # and no alarm where all is well


def test_the_word_comes_once_whatever_the_portions(tmp_path):
    X, _, Y = random_stream(5, 300, seed=1)
    for verb, tracker in (
        ("update", rt.ShiftTracker(rt.Linear(), BLOWING_UP, 0.5)),
        ("correct", rt.TargetCorrector(rt.Linear(), BLOWING_UP, 0.5, 4, 0.1)),
    ):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for start in range(0, 300, 30):
                getattr(tracker, verb)(X[start : start + 30], Y[start : start + 30])
                tracker.save(tmp_path / "state")
                tracker = type(tracker).load(tmp_path / "state")
        assert [one.category for one in told].count(DivergenceWarning) == 1
    exact = rt.CorrectionTracker(rt.Linear(), BLOWING_UP, 0.5)
    exact.update(X, Y)
    with pytest.warns(DivergenceWarning):
        _ = exact.corrected_targets


def test_a_probe_that_overflows_is_a_warning(tmp_path):
    """The targets are zero, and so are the errors on them, but not for long."""
    K, learner, Y = 1e12 * make_stream(100, 1, seed=0).K, rt.SGD(lr=1.0), np.zeros(100)
    Y[-1] = 1.0
    with panels_of(30), pytest.warns(DivergenceWarning, match="rounding errors by inf"):
        rt.online_coefficients(K, Y, learner)
    tracker = rt.ShiftTracker(K, learner, 1.0)
    with pytest.warns(DivergenceWarning, match="amplifies rounding errors by inf"):
        tracker.update(np.arange(100), Y)
    tracker.save(tmp_path / "state")
    again = rt.ShiftTracker.load(tmp_path / "state", kernel=K)
    np.testing.assert_array_equal(again.coefficients, tracker.coefficients)


def test_the_overflowing_sample_counts_for_the_stable_rate():
    K = np.array([[1.0, 1e30], [1e30, 1e61]])
    with pytest.raises(DivergedError) as told:
        rt.online_coefficients(K, np.array([1e300, 0.0]), rt.SGD(0.5))
    assert told.value.step == 1
    assert told.value.largest_stable_lr < 1e-60


def test_zeros_are_stable_at_any_rate():
    assert largest_stable_lr(lambda rows: torch.zeros(1, 1), rt.SGD(lr=1.0), 1) == np.inf
    np.testing.assert_array_equal(
        rt.prequential_errors(np.zeros((3, 3)), np.ones(3), rt.SGD(lr=1e9)), np.ones(3)
    )


@pytest.mark.parametrize("nesterov", [False, True])
def test_with_momentum_the_limit_is_what_separates(nesterov):
    """d = 50, mu = .9: above it streams blow up, below they do not."""
    _, K, Y = random_stream(50, 2000, seed=0)
    options, gram = {"momentum": 0.9, "nesterov": nesterov}, torch.tensor(K)
    limit = largest_stable_lr(lambda rows: gram[rows, rows], rt.SGD(3.0, **options), 2000)
    assert limit == pytest.approx(0.2)
    assert np.abs(rt.prequential_errors(K, Y, rt.SGD(0.9 * limit, **options))).max() < 50
    with pytest.warns(DivergenceWarning, match=r"below 0\.2 it would be stable"):
        rt.prequential_errors(K, Y, rt.SGD(2 * limit, **options))


@pytest.mark.parametrize("numbers", [random_probes, random_signs])
def test_random_numbers_however_a_stream_is_split(numbers):
    n = 2 * CHUNK + 30
    whole, start = numbers(0, torch.empty(n, 1, dtype=torch.float64)), 0
    for rows in (20, CHUNK - 30, 20, CHUNK, n - 2 * CHUNK - 10):  # some reach into the next chunk
        part = numbers(start, torch.empty(rows, 3, dtype=torch.float64))
        assert torch.equal(part, whole[start : start + rows])
        start += rows
    assert start == n
