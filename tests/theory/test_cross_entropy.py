"""Cross-entropy: scikit-learn, the formulas, what is watched (`test_targets`: the theorems)."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression

import retarget as rt
from retarget.engine.dual import DualLearner
from retarget.engine.offline import logistic
from retarget.engine.probes import random_signs
from retarget.engine.stability import GrowthWatch
from retarget.errors import (
    DivergenceWarning,
    InvalidInputError,
    LargeTargetsWarning,
    NotConvergedError,
    NotPositiveDefiniteError,
    PrecisionWarning,
)
from support.problems import (
    assert_same,
    class_streams,
    fewer_examples,
    gammas,
    make_class_stream,
    panel_sizes,
    panels_of,
    plain_learners,
)

CE = "cross-entropy"

# What the tests ask is exact, however large the targets of small gamma and rates are.
pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")


def sigma(logits):
    return expit(logits) if logits.shape[1] == 1 else softmax(logits, axis=1)


@given(stream=class_streams, gamma=gammas, panel=panel_sizes, seed=st.integers(0, 1000))
def test_offline_solves_its_equation_from_any_start(stream, gamma, panel, seed):
    start = np.random.default_rng(seed).normal(size=stream.Y.shape) if seed % 2 else None
    with panels_of(panel):
        A = rt.offline_coefficients(stream.K, stream.Y, gamma, initial=start, loss=CE)
    logits = stream.K @ A if start is None else stream.K @ A + start
    assert_same(gamma * A + sigma(logits), stream.Y, 1e-12)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("gamma", [7.0, 0.3, 1e-3])
def test_offline_is_scikit_learns_logistic_regression(outputs, gamma):
    rng = np.random.default_rng(8)
    features = rng.normal(size=(60, 5))  # fewer than samples: K is singular
    labels = (features[:, :3] + rng.normal(size=(60, 3))).argmax(1) % max(outputs, 2)
    Y = (labels == 1).astype(float) if outputs == 1 else np.eye(outputs)[labels]
    peer = LogisticRegression(
        C=1 / gamma, fit_intercept=False, solver="newton-cg", tol=1e-14, max_iter=10_000
    ).fit(features, labels)
    query = rng.normal(size=(20, 5))
    A = rt.offline_coefficients(features @ features.T, Y, gamma, loss=CE)
    # the dual coefficients are (Y - p) / gamma: what is lost to rounding grows as 1 / gamma
    tolerance = 1e-10 * max(1.0, 1e-2 / gamma)
    assert_same(query @ features.T @ A, peer.decision_function(query), tolerance)


@pytest.mark.parametrize("outputs", [1, 3])
def test_separable_classes_with_the_smallest_ridge(outputs, monkeypatch):
    stream = make_class_stream(40, outputs, seed=3, scale=5.0, certain=True)
    for gamma in (1e-4, 1e-8):
        A = rt.offline_coefficients(stream.K, stream.Y, gamma, loss=CE)
        assert_same(gamma * A + sigma(stream.K @ A), stream.Y, 1e-10)
        assert np.abs(stream.K @ A).max() > 5  # it is nearly certain
    by_iteration = rt.offline_coefficients(stream.K, stream.Y, 0.02, loss=CE)
    monkeypatch.setattr(logistic, "MOST_ITERATIONS", 0)  # the other way to a Newton step
    directly = rt.offline_coefficients(stream.K, stream.Y, 0.02, loss=CE)
    assert_same(by_iteration, directly, 1e-11)


@pytest.mark.parametrize("outputs", [1, 3])
def test_separable_classes_without_a_ridge(outputs):
    stream = make_class_stream(20, outputs, seed=5)
    A = rt.offline_coefficients(stream.K, stream.Y, 0.0, loss=CE)
    assert_same(sigma(stream.K @ A), stream.Y)
    if outputs > 1:
        assert_same(A.sum(1), np.zeros(20), 1e-9)
    certain = make_class_stream(20, outputs, seed=5, certain=True)
    with pytest.raises(NotConvergedError, match="targets of row 0"):
        rt.offline_coefficients(certain.K, certain.Y, 0.0, loss=CE)


def test_single_precision_and_a_stopped_method(monkeypatch):
    stream = make_class_stream(60, 3, seed=7, certain=True)
    K, Y = stream.K.astype("f4"), stream.Y.astype("f4")
    single = rt.offline_coefficients(K, Y, 0.5, loss=CE)
    assert single.dtype == np.float32
    assert_same(single, rt.offline_coefficients(stream.K, stream.Y, 0.5, loss=CE), 1e-4)
    monkeypatch.setattr(logistic, "MOST_STEPS", 2)
    with pytest.raises(NotConvergedError, match="still off by .* larger gamma"):
        rt.offline_coefficients(stream.K, stream.Y, 0.01, loss=CE)
    with pytest.raises(NotConvergedError, match="or compute in float64"):
        rt.offline_coefficients(K, Y, 0.01, loss=CE)


@fewer_examples
@given(stream=class_streams, learner=plain_learners(), gamma=gammas)
def test_effective_and_corrected_targets_are_their_formulas(stream, learner, gamma):
    A = rt.online_coefficients(stream.K, stream.Y, learner, loss=CE)
    effective = rt.effective_targets(stream.K, stream.Y, learner, gamma, loss=CE)
    assert_same(effective, sigma(stream.K @ A) + gamma * A)
    B = rt.offline_coefficients(stream.K, stream.Y, gamma, loss=CE)
    corrected = rt.corrected_targets(stream.K, stream.Y, learner, gamma, loss=CE)
    n, b = len(stream), learner.batch_size
    step = np.arange(n) // b
    earlier = np.where(step[:, None] > step, stream.K, 0.0)
    together = np.minimum(b, n - step * b) if learner.reduction == "mean" else np.ones(n)
    assert_same(corrected, sigma(earlier @ B) + B * together[:, None] / learner.lr)


def test_a_step_of_the_sweep_is_its_formula():
    """y = sigma(f) + a / eta, with a ridge and samples one at a time."""
    stream = make_class_stream(12, 3, seed=9)
    eta, gamma, ridge = 0.7, 0.4, 0.2
    Z = rt.iterative_targets(stream.K, stream.Y, rt.SGD(lr=eta), gamma, 1, ridge, loss=CE)
    a = np.zeros_like(stream.Y)
    for t in range(12):
        A = rt.offline_coefficients(stream.K[: t + 1, : t + 1], stream.Y[: t + 1], gamma, loss=CE)
        f = stream.K[[t], :t] @ a[:t]
        a[t] = (stream.K[t, : t + 1] @ A - f[0]) / (ridge + stream.K[t, t])
        assert_same(Z[[t]], sigma(f) + a[[t]] / eta)


def test_the_size_of_large_targets():
    stream = make_class_stream(30, 3, seed=11, certain=True)
    for options in ({}, {"epochs": 2}):
        with pytest.warns(LargeTargetsWarning, match=r"true targets in \[0, 1\]"):
            Z = rt.corrected_targets(stream.K, stream.Y, rt.SGD(lr=0.005), 0.1, loss=CE, **options)
        assert np.abs(Z).max() > 11
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Z = rt.corrected_targets(stream.K, stream.Y, rt.SGD(lr=0.5), 1.0, loss=CE)
        rt.iterative_targets(stream.K, stream.Y, rt.SGD(lr=0.5), 1.0, 5, loss=CE)
        rt.online_coefficients(np.eye(3), np.zeros(3), rt.SGD(lr=1.0), loss=CE)  # zeros alone
    assert np.abs(Z).max() < 11


def test_a_rate_that_makes_rounding_grow_is_said():
    """The probe is the learner's derivative: perturbed targets end as differently as it says."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(1500, 2))
    Y = (rng.random(1500) < 0.5).astype(float)
    learner = rt.SGD(lr=40.0, momentum=0.9)
    with pytest.warns(DivergenceWarning, match="amplifies rounding errors"):
        A = rt.online_coefficients(features @ features.T, Y, learner, loss=CE)
    nudged = Y + 1e-13 * rng.normal(size=1500)
    with pytest.warns(DivergenceWarning):
        B = rt.online_coefficients(features @ features.T, nudged, learner, loss=CE)
    assert np.abs(A - B).max() > 1e-3 * np.abs(A).max()


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_probe_is_the_learners_derivative(outputs):
    stream = make_class_stream(25, outputs, seed=12, scale=3.0)
    K, Y = torch.from_numpy(stream.K), torch.from_numpy(stream.Y)
    learner = rt.SGD(lr=0.6, batch_size=2, momentum=0.5, reduction="sum")
    lesson = DualLearner(learner).lesson(K)
    watch = GrowthWatch(learner, lambda rows: K[rows, rows], loss=CE)
    watch.follow(lesson, Y, lesson.errors(Y, CE))
    signs = random_signs(0, Y) * torch.tensor([1.0, -1.0, 1.0])[:outputs]
    up, down = (lesson.errors(Y + nudge * signs, CE) for nudge in (1e-5, -1e-5))
    assert watch.growth == pytest.approx(float((up - down).abs().max()) / 2e-5, rel=1e-6)


@pytest.mark.parametrize(
    ("Y", "message"),
    [
        (np.array([[1.0, 0.0], [1.0, 1.0]]), "Y sums to 2 in row 1"),
        (np.array([0.0, -1.0]), "holds the label -1 in row 1"),
        (np.array([3.0, 7.0]), "holds the label 3 in row 0; .* one-hot encode"),
    ],
)
def test_targets_that_do_not_fit_the_loss(Y, message):
    K, of = np.eye(2), (rt.SGD(lr=0.1), 1.0)
    for call in (
        lambda: rt.online_coefficients(K, Y, of[0], loss=CE),
        lambda: rt.prequential_errors(K, Y, of[0], loss=CE),
        lambda: rt.offline_coefficients(K, Y, 1.0, loss=CE),
        lambda: rt.effective_targets(K, Y, *of, loss=CE),
        lambda: rt.corrected_targets(K, Y, *of, loss=CE),
        lambda: rt.iterative_targets(K, Y, *of, 1, loss=CE),
        lambda: rt.discrepancy(K, Y, Y, *of, loss=CE),
        lambda: rt.ShiftTracker(rt.Linear(), *of, loss=CE).update(K, Y),
        lambda: rt.CorrectionTracker(rt.Linear(), *of, loss=CE).update(K, Y),
        lambda: rt.TargetCorrector(rt.Linear(), *of, 1, loss=CE).correct(K, Y),
    ):
        with pytest.raises(InvalidInputError, match=message):
            call()


def test_half_precision_probabilities_may_be_rounded():
    Y = torch.softmax(torch.randn(9, 5, generator=torch.Generator().manual_seed(0)), 1).half()
    A = rt.online_coefficients(torch.eye(9).half(), Y, rt.SGD(lr=0.5), loss=CE)
    assert A.dtype == torch.float16


def test_lost_precision_and_negative_eigenvalues():
    X = np.linspace(0, 1, 40)[:, None]
    K = np.exp(-((X - X.T) ** 2))
    with pytest.warns(PrecisionWarning, match="condition number"):
        rt.offline_coefficients(K, (X[:, 0] > 0.4).astype(float), 1e-13, loss=CE)
    K, Y = np.diag([1.0, -0.5]), np.array([1.0, 0.0])
    with pytest.raises(NotPositiveDefiniteError, match="negative eigen.* = 0.01; .* gamma = 0.125"):
        rt.offline_coefficients(K, Y, 0.01, loss=CE)
    with pytest.raises(NotPositiveDefiniteError, match="or compute in float64"):
        rt.offline_coefficients(K.astype("f4"), Y.astype("f4"), 0.01, loss=CE)
