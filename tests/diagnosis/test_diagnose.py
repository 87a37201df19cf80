"""The whole diagnosis: its identities in both modes, learners of every kind, and hard streams."""

import math
import warnings
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.diagnosis.measure.approximation import exact_memory
from retarget.diagnosis.measuring import changed_rows
from support.diagnosis_options import diagnosed
from support.diagnosis_streams import as_stream, classes, drifting, spread
from support.problems import assert_same, fewer_examples

LEARNERS = [
    {},
    {"batch_size": 3, "reduction": "sum"},
    {"momentum": 0.7},
    {"momentum": 0.7, "nesterov": True, "batch_size": 3, "reduction": "sum"},
    {"weight_decay": 0.02, "batch_size": 2, "reduction": "sum"},
    {"batch_size": 4, "reduction": "mean", "momentum": 0.5, "weight_decay": 0.01},
    {"batch_size": 100, "reduction": "mean"},  # one step
]


@fewer_examples
@given(
    learner=st.sampled_from(LEARNERS),
    seed=st.integers(0, 999),
    outputs=st.integers(1, 2),
    gamma=st.floats(0.05, 3.0),
    lr=st.floats(0.02, 0.3),
    features=st.sampled_from([None, 8]),
)
def test_the_theorems_hold_of_what_is_reported(learner, seed, outputs, gamma, lr, features):
    stream, test = drifting(31, outputs, seed, 3), spread(9, outputs, seed, 3)
    options = {"kernel": "linear", "gamma": gamma, "lr": lr, "features": features, "ridge": 0.1}
    found = diagnosed(stream, test, **options, **learner)
    X, Q, Y = stream.X, test.X, stream.Y
    K, K_query = X @ X.T, Q @ X.T
    sgd = rt.SGD(lr=lr, **learner)
    assert (found.learner, found.mode) == (sgd, "features" if features else "exact")

    def error_of(predictions):
        return np.square(test.Y - predictions).mean()

    offline = K_query @ rt.offline_coefficients(K, Y, gamma)
    online = K_query @ rt.online_coefficients(K, Y, sgd)
    # Theorem 3.2: offline on effective targets is online; Theorem 4.1: the other way round
    assert_same(K_query @ rt.offline_coefficients(K, found.effective, gamma), online, 1e-7)
    reached = K_query @ rt.online_coefficients(K, found.corrected, sgd)
    scale = max(1.0, np.abs(found.corrected).max())
    assert np.abs(reached - offline).max() <= 1e-8 * scale
    settled = K_query @ rt.online_coefficients(K, found.iterative, sgd)
    for name, predictions in (("offline", offline), ("online", online), ("iterative", settled)):
        assert found.score(name).error.value == pytest.approx(error_of(predictions), rel=1e-6)
    assert found.score("corrected").error.value == pytest.approx(error_of(offline), rel=1e-4)
    assert_same(found.prequential, rt.prequential_errors(K, Y, sgd), 1e-8)
    expected = rt.iterative_targets(K, Y, sgd, gamma, found.block_size, 0.1)
    assert np.abs(found.iterative - expected).max() <= 1e-7 * max(1, np.abs(expected).max())


def test_nystroem_features_come_near_and_say_how_near():
    stream, test = drifting(120), spread(40)
    options = {"kernel": "laplacian", "lr": 0.3, "gamma": 0.1}
    exact = diagnosed(stream, test, **options)
    rough = diagnosed(stream, test, max_memory=1, features=16, **options)
    fine = diagnosed(stream, test, features=40, **options)
    assert (exact.mode, rough.mode, fine.mode) == ("exact", "features", "features")
    # the sample is the whole stream here: the error reported is the error, but for rounding
    shift, made = exact.shift, rough.approximation
    gaps = [np.linalg.norm(one.shift - shift) / np.linalg.norm(shift) for one in (rough, fine)]
    assert gaps[1] < gaps[0]
    assert made.shift_error == pytest.approx(gaps[0])
    assert fine.approximation.shift_error == pytest.approx(gaps[1], abs=1e-6)
    assert made.exact_memory == exact_memory(120, 2, 1)
    assert (made.features, made.kind, made.sample) == (16, "nystroem", 120)
    # a true kernel that does better on a sample is a finding
    stream, test = drifting(300, noise=0.02), spread(100)
    starved = diagnosed(stream, test, features=3, width=1.0)
    assert starved.verdict.headline.startswith("As far as 3 Nyström features can tell")
    assert "poor features" in {one.kind for one in starved.findings}
    plenty = diagnosed(stream, test, features=300, width=1.0)
    assert not plenty.verdict.headline.startswith("As far as")


def test_classes_one_after_the_other():
    stream = classes(90, 3)
    order = np.random.default_rng(0).permutation(90)
    test = as_stream(stream.X[order], stream.Y[order], "classification")
    found = diagnosed(stream, test, batch_size=3, reduction="mean")
    assert found.groups.names == ("class 0", "class 1", "class 2")
    assert found.score("offline").accuracy.value > found.score("online").accuracy.value
    assert found.groups.pull[0, 2] < 0  # learning the last class has weakened the first
    assert found.changed.dtype == bool
    effective = found.effective.argmax(1) != stream.Y.argmax(1)
    assert (found.changed == effective).all()
    # numbers change sides, and zeros have none
    stream = as_stream(np.zeros((4, 1)), np.array([[1.0, 2.0], [-1.0, 0.0], [1.0, -1.0], [1, 1]]))
    effective = np.array([[0.5, 1.0], [-1.0, 9.0], [1.0, 0.1], [np.nan, -1.0]])
    assert changed_rows(stream, effective).tolist() == [False, False, True, False]


@pytest.mark.parametrize("features", [None, 8])
def test_progressive_scores_are_means_over_the_stream(features):
    stream = drifting(50, dimensions=4)
    options = {"evaluation": "progressive", "features": features, "kernel": "linear"}
    found = diagnosed(stream, lr=0.02, gamma=0.3, batch_size=2, reduction="sum", **options)
    K = stream.X @ stream.X.T
    online = rt.prequential_errors(K, stream.Y, rt.SGD(lr=0.02, batch_size=2, reduction="sum"))
    offline = stream.Y.copy()
    for start in range(2, 50, 2):
        A = rt.offline_coefficients(K[:start, :start], stream.Y[:start], 0.3)
        offline[start : start + 2] -= K[start : start + 2, :start] @ A
    assert found.answer("progressive").rows == 50
    assert found.score("online").error.value == pytest.approx(np.square(online).mean())
    assert found.score("offline").error.value == pytest.approx(np.square(offline).mean())
    assert math.isnan(found.score("corrected").error.value)
    assert math.isnan(found.answers[0].gap_closed["corrected"].value)
    assert found.score("iterative").error.value > 0
    assert "has no score here" in " ".join(found.verdict.findings)


def test_a_rate_that_is_too_small_is_advice():
    slow = diagnosed(drifting(200), evaluation="progressive", lr=1e-4, gamma=0.3, width=1.0)
    assert slow.verdict.recommendations[0].startswith("Use lr = ")  # another rate was tried
    assert not any("order" in text for text in slow.verdict.recommendations)


HARD = {
    "copies": replace(drifting(40), X=np.repeat(drifting(4).X, 10, axis=0)),
    "constant": replace(drifting(40), X=np.ones((40, 2))),
    "equal targets": as_stream(np.random.default_rng(0).normal(size=(30, 2)), np.zeros((30, 1))),
    "one class at the end": classes(40, 2),
    "four rows": drifting(4),
    "seven rows": drifting(7),
}


@pytest.mark.parametrize("features", [None, 20])
@pytest.mark.parametrize("name", HARD)
def test_hard_streams_get_a_diagnosis(name, features):
    found = diagnosed(HARD[name], features=features)
    assert found.verdict.headline
    assert np.isfinite(found.effective).all()
    assert np.isfinite(found.iterative).all()
    assert [len(one.scores) for one in found.answers] == [4, 4]
    assert found.effective.shape == found.stream.Y.shape


def test_features_that_are_all_zero_teach_nothing():
    stream = replace(drifting(20), X=np.zeros((20, 2)))
    found = diagnosed(stream, kernel="linear", batch_size=2, reduction="sum", ridge=0.0)
    assert found.stability.largest_lr == math.inf
    assert (found.prequential == found.stream.Y).all()
    np.testing.assert_array_equal(found.iterative, 0.0)


@pytest.mark.parametrize(
    ("lr", "features", "evaluation"),
    [
        (1e9, None, "test"),
        (1e9, 64, "test"),
        (1e9, None, "progressive"),
        (3.0, None, "next"),  # far too large an error, which is still a number
        (3.0, None, "progressive"),
    ],
)
def test_a_learner_that_diverges_leaves_the_rest(lr, features, evaluation):
    stream = drifting(60 if lr == 1e9 else 300)
    options = {"lr": lr, "width": 1.0, "gamma": 0.1, "evaluation": evaluation}
    found = diagnosed(
        stream, spread(30) if evaluation == "test" else None, features=features, **options
    )
    assert found.diverged
    assert found.score("offline").error.value < 1
    assert all(math.isnan(closed.value) for closed in found.answers[0].gap_closed.values())
    assert found.answers[0].trials == ()
    assert found.verdict.kind == "diverged"
    assert found.verdict.recommendations[0].startswith("Lower the rate")
    assert not any("corrected" in text for text in found.verdict.recommendations)
    if lr == 1e9:
        assert np.isnan(found.effective).all()
        assert not found.changed.any()
        assert np.isnan(found.groups.size).all()
        assert math.isnan(found.score("online").error.value)
        assert found.lr.tried["score"].null_count() == 1


def test_an_exact_correction_that_nothing_reaches():
    found = diagnosed(drifting(300), spread(30), weight_decay=0.9, lr=0.9, gamma=0.1)
    assert np.isnan(found.corrected).all()
    assert math.isnan(found.score("corrected").error.value)
    assert any("There is no exact correction" in text for text in found.verdict.findings)
    assert np.isfinite(found.effective).all()
    assert np.isfinite(found.iterative).all()


@pytest.mark.parametrize("features", [None, 64, 2])
def test_a_gamma_too_small_for_its_precision(features):
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(3, 2)), 40, axis=0) * 1e6
    stream = as_stream(X, rng.normal(size=(120, 1)))
    kernel = "linear"
    if features == 2:  # of rows that are the same to the kernel: a sample has no batch model either
        kernel = rt.as_kernel(lambda A, B: A @ B.T)
    found = diagnosed(stream, kernel=kernel, gamma=1e-300, lr=1e-14, features=features)
    words = " ".join([found.verdict.headline, *found.verdict.findings])
    assert "no batch model" in words
    assert "There is no batch model and no" in words
    assert np.isfinite(found.prequential).all()


def test_lost_digits_are_a_finding():
    stream = drifting(30, dimensions=1)
    found = diagnosed(stream, width=200.0, gamma=1e-15, lr=0.1)
    assert any("condition number" in text for text in found.verdict.findings)

    def careless(A, B):
        warnings.warn("a kernel's own", RuntimeWarning, stacklevel=1)
        return A @ B.T

    with pytest.warns(RuntimeWarning, match="a kernel's own"):
        diagnosed(stream, kernel=careless, lr=0.1)


def test_everything_random_repeats_with_the_seed():
    first, again, other = (diagnosed(drifting(40), features=9, seed=seed) for seed in (3, 3, 4))
    assert (first.effective == again.effective).all()
    assert first.scores == again.scores
    assert (first.effective != other.effective).any()


def test_errors_are_in_the_users_units():
    scales = np.array([10.0, 1000.0])
    stream, options = drifting(60, 2), {"lr": 0.2, "gamma": 0.12, "width": 1.0}
    options |= {"evaluation": "next", "test_share": 0.2}
    plain, found = (
        diagnosed(one, **options) for one in (stream, replace(stream, target_scales=scales))
    )
    assert (plain.effective == found.effective).all()
    for before, score in zip(plain.scores, found.scores, strict=True):
        expected = np.array([part.value for part in before.by_target]) * scales**2
        assert [part.value for part in score.by_target] == pytest.approx(expected)
        assert score.error.value == pytest.approx(np.mean(expected))
    assert diagnosed(drifting(60), **options).scores[0].by_target == ()  # of one target

    def tried(choice, value):
        return choice.tried.filter(pl.col("value") == value)["score"].item()

    online = np.square(found.prequential * scales).mean()
    assert tried(found.lr, 0.2) == pytest.approx(online)
    inverse = np.linalg.inv(0.12 * np.eye(48) + rt.RBF(1.0)(found.stream.X))
    left_out = inverse @ found.stream.Y / inverse.diagonal()[:, None]
    assert tried(found.gamma, 0.12) == pytest.approx(np.square(left_out * scales).mean())


def test_targets_without_correct_digits():
    """Each row comes twice, and next to nothing is added to the singular kernel of a block."""
    rows = np.random.default_rng(0).normal(size=(40, 3)).repeat(2, axis=0)
    stream = as_stream(rows, rows[:, :1] + 0.1 * np.cos(np.arange(80.0))[:, None])
    doubtful, sound = (
        diagnosed(stream, lr=0.1, gamma=0.1, block_size=8, ridge=ridge).failures
        for ridge in (2e-14, 1e-3)
    )
    (doubt,) = doubtful
    assert doubt.startswith("The kernel of a block has a condition number of about")
    assert doubt.endswith("raise gamma or ridge.")
    assert sound == ()
