"""Bounded memory, and aims other than all the past, against their formulas typed literally."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.engine.offline import recent
from retarget.errors import InvalidInputError, NotPositiveDefiniteError, PrecisionWarning
from retarget.kernels.stationary import RandomFourier
from support.lab_problems import mlp
from support.oracles.empirical_ntk import gram
from support.problems import (
    assert_same,
    gammas,
    make_stream,
    panel_sizes,
    panels_of,
    plain_learners,
    streams,
)
from support.streaming_objects import CE

LINEAR = rt.Linear()
LEARNER = rt.SGD(0.05, batch_size=2, momentum=0.5, reduction="sum")


def random_stream(n=40, d=5, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(n, outputs))


def in_portions(corrector, X, Y, cuts, **more):
    parts = [
        corrector.correct(X[a:b], Y[a:b], **{name: value[a:b] for name, value in more.items()})
        for a, b in pairwise(cuts)
    ]
    return np.concatenate([*parts, corrector.flush()])


# --- bounded memory (exact features: see test_trackers.py)


def test_few_features_and_a_start():
    X, Y = random_stream(n=61, d=3)
    given = (
        rt.Features(lambda x: np.hstack([x, x**2])),
        rt.SGD(0.02, batch_size=4, reduction="sum"),
        0.3,
        12,
    )
    kept, bounded = (
        in_portions(corrector, X, Y, [*range(0, 61, 7), 61], initial=np.sin(X[:, :2]))
        for corrector in (rt.TargetCorrector(*given), rt.TargetCorrector(*given, features=6))
    )
    assert_same(bounded, kept, 1e-9)


def test_random_features_and_their_error():
    X, Y = random_stream(n=48)
    errors = []
    for size in (40, 2000):
        bounded = rt.TargetCorrector(rt.RBF(3.0), LEARNER, 0.6, 4, features=size, seed=3)
        got = bounded.correct(X, Y)
        features = RandomFourier(rt.RBF(3.0), size, 3)(X).numpy()
        expected = rt.iterative_targets(features @ features.T, Y, LEARNER, 0.6, 4)
        assert_same(got, expected, 1e-9)
        K, approximate = rt.RBF(3.0)(X[:32]), features[:32] @ features[:32].T
        errors.append(bounded.feature_error)
        expected_error = np.linalg.norm(approximate - K) / np.linalg.norm(K)
        assert errors[-1] == pytest.approx(expected_error, rel=1e-9)
    assert errors[1] < errors[0] / 3
    alone = rt.TargetCorrector(rt.RBF(3.0), rt.SGD(0.1), 0.6, 1, features=8)
    alone.correct(X[:1], Y[:1])
    assert np.isnan(alone.feature_error)


def test_a_network_as_it_is_now(tmp_path):
    network, (X, Y) = mlp(1), random_stream(n=24, outputs=3)
    kernel = rt.EmpiricalNTK(network)
    features = rt.EmpiricalNTK(network, sketch=50, seed=4).features(X)
    expected = rt.iterative_targets(features @ features.T, Y, LEARNER, 0.6, 4)
    K = gram(network, torch.tensor(X), torch.tensor(X)).numpy()
    bounded = rt.TargetCorrector(kernel, LEARNER, 0.6, 4, features=50, seed=4)
    first = bounded.correct(X[:12], Y[:12])
    bounded.save(tmp_path / "state")
    loaded = rt.TargetCorrector.load(tmp_path / "state", kernel=kernel)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3)
    assert_same(np.concatenate([first, bounded.correct(X[12:], Y[12:])]), expected, 1e-9)
    assert_same(loaded.correct(X[12:], Y[12:]), expected[12:], 1e-9)
    halves = [slice(0, 12), slice(12, 24)]
    gap = sum(np.sum((features[r] @ features[r].T - K[r, r]) ** 2) for r in halves)
    size = sum(np.sum(K[r, r] ** 2) for r in halves)
    assert bounded.feature_error == pytest.approx(np.sqrt(gap / size), rel=1e-9)
    with pytest.raises(InvalidInputError, match="saved with the features"):
        rt.TargetCorrector.load(tmp_path / "state", kernel=rt.EmpiricalNTK(network))


def test_nothing_grows_with_the_stream():
    X, Y = random_stream(n=1000)
    bounded = rt.TargetCorrector(rt.RBF(2.0), LEARNER, 1.0, 4, ridge=0.1, features=16)
    # an open block of two samples every other time; and all at once: neither does that stay
    portions = [*(slice(start, start + 50) for start in range(0, 1000, 50)), slice(0, 1000)]
    sizes = []
    for rows in portions * 2:
        bounded.correct(X[rows], Y[rows])
        sizes.append(len(pickle.dumps(bounded)))  # with whatever a view is a part of
    again = sizes[len(portions) :]  # by then the response to windows of each length is known
    assert max(again) - min(again) < 500


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_single_precision_is_computed_in_double(dtype):
    X, Y = (torch.tensor(part, dtype=dtype) for part in random_stream())
    got = rt.TargetCorrector(rt.Linear(), LEARNER, 0.6, 4, features=5).correct(X, Y)
    wide = rt.TargetCorrector(rt.Linear(), LEARNER, 0.6, 4).correct(X.double(), Y.double())
    assert got.dtype == dtype
    assert_same(got, wide.to(dtype), 0)


def test_a_better_rate_is_named():
    X, Y = random_stream(n=1500)
    learner = rt.SGD(20.0, batch_size=2, reduction="mean")
    told = {}
    for features in (None, 5):
        corrector = rt.TargetCorrector(
            rt.Linear(), learner, 0.6, 2, parts="offline", ridge=0.1, features=features
        )
        with pytest.warns(rt.errors.DivergenceWarning) as caught:
            corrector.correct(X[:40], Y[:40])
        with pytest.raises(rt.errors.DivergedError) as error:
            corrector.correct(X[40:], Y[40:])
        told[features] = str(caught[0].message).split("below")[1], error.value.step
    assert told[5] == told[None]


def test_targets_and_kernels_with_autograd():
    network, X = mlp(3, classes=1), torch.tensor(random_stream()[0])
    Y = X[:, :1]
    kernel = rt.EmpiricalNTK(network)
    streamed = rt.TargetCorrector(kernel, rt.SGD(0.01), 0.5, 4).correct(X, Y)
    for targets in (streamed, rt.iterative_targets(kernel(X, X), Y, rt.SGD(0.01), 0.5, 4)):
        weights = torch.ones(5, 1, dtype=X.dtype, requires_grad=True)
        torch.nn.functional.mse_loss(X @ weights, targets).backward()  # it keeps the targets
        assert_same(weights.grad, 2 * X.mT @ (X @ weights.detach() - targets) / len(X), 1e-12)
    diverging = rt.TargetCorrector(kernel, rt.SGD(1e200), 0.5, 4, parts="offline")
    with pytest.raises(rt.errors.DivergedError, match=r"below lr = [\d.e-]+ it would be stable"):
        diverging.correct(X, Y)
    assert len(diverging) == 0


@pytest.mark.parametrize("aim", ["all", "window:40", "discount:0.99"])
def test_lost_digits_of_features_are_said(aim):
    X, Y = random_stream(n=40)
    X = 1e4 * np.hstack([X, X + 1e-7 * random_stream(n=40, seed=1)[0]])  # every column nearly twice
    learner = rt.SGD(1e-12)
    one = rt.TargetCorrector(rt.Linear(), learner, 1e-6, 8, aim=aim, features=X.shape[1])
    with pytest.warns(PrecisionWarning, match="normal equations of the features"):
        in_portions(one, X, Y, [0, 16, 40])
    one.correct(X, Y)  # and is not said again


def test_lost_digits_of_a_window_are_said():
    X = np.linspace(0, 1, 20)[:, None]
    one = rt.TargetCorrector(rt.RBF(0.3), rt.SGD(lr=0.1), 0.0, 20, 0.1, aim="window:20")
    with pytest.warns(PrecisionWarning, match=r"gamma I \+ K has a condition number"):
        one.correct(X, X[:, 0])


def test_without_the_offline_half_no_ridge_is_needed():
    X, Y = random_stream(d=30)
    got = rt.TargetCorrector(rt.Linear(), LEARNER, 0.0, 4, parts="online", features=30).correct(
        X, Y
    )
    assert_same(got, rt.iterative_targets(X @ X.T, Y, LEARNER, 0.0, 4, parts="online"), 1e-9)


# --- aims other than all the past


def literal_targets(stream, Y, text, learner, gamma, block, ridge, first_block):
    """The sweep with another aim, block by block, with explicit inverses."""
    n, rates, X = len(stream), np.empty(len(stream)), stream.features
    for first in range(0, n, learner.batch_size):
        rows = slice(first, min(first + learner.batch_size, n))
        rates[rows] = learner.lr / (rows.stop - first if learner.reduction == "mean" else 1)
    kind, amount = text.split(":")
    Z, A = np.empty_like(Y), np.zeros_like(Y)
    for first in range(0, n, block):
        stop = min(first + block, n)
        rows, seen, ages = slice(first, stop), slice(0, stop), np.arange(stop)[::-1]
        K = stream.K[rows, rows]
        step = np.arange(first, stop) // learner.batch_size
        steps = np.diag(1 / rates[rows]) + np.where(step[:, None] > step, K, 0.0)
        before = stream.K[rows, :first] @ A[:first]
        if first == 0 and first_block == "plain":
            A[rows] = np.linalg.solve(steps, Y[rows] - before)
        else:  # least squares with weights, in feature space
            w = ages < int(amount) if kind == "window" else float(amount) ** ages
            normal = X[seen].T @ (w[:, None] * X[seen]) + gamma * np.eye(X.shape[1])
            F = X[rows] @ np.linalg.solve(normal, X[seen].T @ (w[:, None] * Y[seen]))
            A[rows] = np.linalg.solve(K + ridge * np.eye(len(K)), F - before)
        Z[rows] = before + steps @ A[rows]
    return Z


@given(
    stream=streams,
    learner=plain_learners(),
    gamma=gammas,
    text=st.sampled_from(["window:1", "window:7", "window:1000", "discount:0.5", "discount:0.97"]),
    blocks=st.integers(1, 5),
    ridge=st.sampled_from([0.0, 0.3]),
    features=st.sampled_from([None, 200]),
    first_block=st.sampled_from(["corrected", "plain"]),
    panel=panel_sizes,
    cut=st.integers(0, 33),
    start=st.sampled_from([0.0, 0.7]),
)
def test_targets_are_those_of_the_weighted_offline_learner(
    stream, learner, gamma, text, blocks, ridge, features, first_block, panel, cut, start
):
    """From any start, which is added to targets and predictions."""
    block, n, Y = blocks * learner.batch_size, len(stream), stream.Y
    initial = start * np.cos(Y)
    expected = literal_targets(stream, Y - initial, text, learner, gamma, block, ridge, first_block)
    options = {"first_block": first_block, "features": features, "aim": text}
    with panels_of(panel):
        corrector = rt.TargetCorrector(rt.Linear(), learner, gamma, block, ridge, **options)
        cuts, more = sorted({0, min(cut, n), n}), {"initial": initial} if start else {}
        Z = in_portions(corrector, stream.features, Y, cuts, **more)
    assert_same(Z - initial, expected, 1e-9 * max(1.0, np.abs(expected).max()))


@pytest.mark.slow
def test_recent_aims_help_under_drift():
    """A curve that turns slowly: what was learned long ago is wrong now."""
    rng, n, learner = np.random.default_rng(3), 600, rt.SGD(lr=0.05)
    X, angle = rng.uniform(-1, 1, size=(n, 1)), np.linspace(0, np.pi, n)
    Y, kernel = np.sin(4 * X[:, 0] + angle) + 0.1 * rng.normal(size=n), rt.RBF(0.5)
    now, running, ending = np.sin(4 * X[:, 0] + np.pi), {}, {}
    for aim in ("none", "all", "window:50", "discount:0.97"):
        targets = Y
        if aim != "none":
            corrector = rt.TargetCorrector(kernel, learner, 0.3, 4, 0.1, aim=aim)
            targets = in_portions(corrector, X, Y, [0, n])
            options = {"correction": "iterative", "block_size": 4, "ridge": 0.1, "aim": aim}
            model = rt.OnlineKernelRegressor(kernel, lr=0.5, gamma=0.1, **options).fit(X, Y)
            ending[aim] = np.abs(model.predict(X) - now).mean()
        # on each sample before it is learned, of the learner of these targets
        predictions = targets - rt.prequential_errors(kernel(X), targets, learner)
        running[aim] = np.abs(Y - predictions).mean()
    assert running["all"] > 1.2 * running["none"]
    for aim in ("window:50", "discount:0.97"):
        assert running[aim] < running["none"] / 2
        assert ending[aim] < ending["all"] / 2


def test_a_discount_keeps_what_counts_above_rounding():
    assert recent.as_aim("discount:0.5").horizon == 53
    stream = make_stream(80, 1, seed=4)
    corrector = rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.1), 1.0, 8, aim="discount:0.5")
    corrector.correct(stream.features, stream.Y)
    assert len(corrector._sweep.offline._Y) == 53


# --- what is refused


def corrector_of(kernel=LINEAR, gamma=0.6, **options):
    return rt.TargetCorrector(kernel, LEARNER, gamma, 4, **options)


def estimator_of(**options):
    rt.OnlineKernelRegressor(width=1.0, **options).fit(np.eye(3), np.ones(3))


def with_other_features():
    one = corrector_of(rt.Features(lambda x: x[:, : 3 + (len(x) > 8)]), features=9)
    one.correct(*random_stream(n=8))
    one.correct(*random_stream(n=12))


def without_factor():
    K = np.diag([1.0, -0.5, 1.0, 1.0])
    corrector = rt.TargetCorrector(K, rt.SGD(lr=0.1), 0.01, 2, 1.0, aim="window:2")
    corrector.correct(np.arange(4), np.ones(4))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: corrector_of(gamma=0.0, features=9), "gamma is 0 with features"),
        (
            lambda: corrector_of(lambda a, b: a @ b.T, features=9),
            "which has no features; expected a function",
        ),
        (lambda: corrector_of(features=0), "features is 0; expected 1 or more"),
        (lambda: corrector_of(features="much"), "features is 'much'; expected a whole number"),
        (lambda: corrector_of(rt.RBF(1.0), features=10**7), "use fewer features"),
        (
            lambda: corrector_of(features=4).correct(*random_stream()),
            r"has 5 features, more than features=4",
        ),
        (lambda: corrector_of(features=9).samples, "not kept with features=9"),
        (lambda: corrector_of(features=9, loss=CE), "features=.* with loss='cross-entropy'"),
        (with_other_features, "features of X is 4; expected 3"),
        (lambda: corrector_of(loss=CE, aim="window:5"), "'window:5' with loss="),
        (lambda: corrector_of(aim=500), "aim is 500; expected a string"),
        *(
            (lambda text=text: corrector_of(aim=text), f"aim is '{text}'; expected")
            for text in ("", "All", "window", "window:0", "window:2.5", "discount:1", "discount:0")
        ),
        (lambda: estimator_of(correction="iterative", aim="half:2"), "aim is 'half:2'; expected"),
        (lambda: estimator_of(correction="exact", aim="window:5"), "with correction='exact'"),
        (without_factor, "would do"),
    ],
)
def test_what_has_no_meaning_is_refused(call, words):
    with pytest.raises((rt.RetargetError, NotPositiveDefiniteError), match=words):
        call()


def test_an_aim_beyond_memory(monkeypatch):
    corrector = corrector_of(aim="discount:0.999")
    monkeypatch.setattr("retarget.arrays.free_memory", lambda device: 100)
    with pytest.raises(rt.errors.StreamTooLargeError, match="an aim that counts 4 .* or features="):
        corrector.correct(np.eye(4), np.ones(4))
    assert len(corrector) == 0
