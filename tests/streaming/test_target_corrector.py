"""Bounded memory, and aims other than all the past, against their formulas typed literally."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import InvalidInputError, NotPositiveDefiniteError, PrecisionWarning
from retarget.kernels.feature_maps import RandomFourier
from retarget.theory.offline import aims
from support.lab_problems import mlp
from support.oracles import literal
from support.oracles.empirical_ntk import gram
from support.problems import (
    assert_same,
    fewer_examples,
    gammas,
    make_stream,
    panel_sizes,
    panels_of,
    plain_learners,
    streams,
)
from support.streaming_objects import CE

LINEAR = rt.Linear()
LEARNER = rt.SGD(0.05, batch_size=2, momentum=0.5)


def made(n=40, d=5, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(n, outputs))


def in_portions(corrector, X, Y, cuts, **more):
    parts = [
        corrector.correct(X[a:b], Y[a:b], **{name: value[a:b] for name, value in more.items()})
        for a, b in pairwise(cuts)
    ]
    return np.concatenate([*parts, corrector.flush()])


# --- bounded memory (exact features: see test_trackers.py)


def test_fewer_features_than_samples_in_a_block_and_a_start():
    X, Y = made(n=61, d=3)
    given = rt.Features(lambda x: np.hstack([x, x**2])), rt.SGD(0.02, batch_size=4), 0.3, 12
    kept, bounded = (
        in_portions(corrector, X, Y, [*range(0, 61, 7), 61], initial=np.sin(X[:, :2]))
        for corrector in (rt.TargetCorrector(*given), rt.TargetCorrector(*given, memory=6))
    )
    assert_same(bounded, kept, 1e-9)


def test_against_the_literal_formula():
    X, Y = made(n=22)
    expected = literal.iterative(Y, X @ X.T, 0.04, 0.6, 4, batch=2)
    bounded = rt.TargetCorrector(rt.Linear(), rt.SGD(0.04, batch_size=2), 0.6, 4, memory=5)
    assert_same(in_portions(bounded, X, Y, [0, 9, 18, 22]), expected, 1e-9)


def test_random_features_and_their_error():
    X, Y = made(n=48)
    errors = []
    for memory in (40, 2000):
        bounded = rt.TargetCorrector(rt.RBF(3.0), LEARNER, 0.6, 4, memory=memory, seed=3)
        got = bounded.correct(X, Y)
        features = RandomFourier(rt.RBF(3.0), memory, 3)(X).numpy()
        expected = rt.iterative_targets(features @ features.T, Y, LEARNER, 0.6, 4)
        assert_same(got, expected, 1e-9)
        K, approximate = rt.RBF(3.0)(X[:32]), features[:32] @ features[:32].T
        errors.append(bounded.feature_error)
        expected_error = np.linalg.norm(approximate - K) / np.linalg.norm(K)
        assert errors[-1] == pytest.approx(expected_error, rel=1e-9)
    assert errors[1] < errors[0] / 3
    alone = rt.TargetCorrector(rt.RBF(3.0), rt.SGD(0.1), 0.6, 1, memory=8)
    alone.correct(X[:1], Y[:1])
    assert np.isnan(alone.feature_error)


def test_a_network_as_it_is_now(tmp_path):
    network, (X, Y) = mlp(1), made(n=24, outputs=3)
    kernel = rt.EmpiricalNTK(network)
    features = rt.EmpiricalNTK(network, sketch=50, seed=4).features(X)
    expected = rt.iterative_targets(features @ features.T, Y, LEARNER, 0.6, 4)
    K = gram(network, torch.tensor(X), torch.tensor(X)).numpy()
    bounded = rt.TargetCorrector(kernel, LEARNER, 0.6, 4, memory=50, seed=4)
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


def storages(thing, found=None):
    """Bytes of every tensor that can be reached from an object."""
    found = {} if found is None else found
    if isinstance(thing, torch.Tensor):
        found[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    elif isinstance(thing, dict):
        [storages(value, found) for value in thing.values()]
    elif isinstance(thing, tuple | list):
        [storages(value, found) for value in thing]
    elif type(thing).__module__.startswith("retarget"):
        storages(vars(thing), found)
    return found


@pytest.mark.parametrize("learner", [rt.SGD(0.02, batch_size=2), LEARNER], ids=["plain", "memory"])
def test_no_tensor_grows_with_the_stream(learner):
    X, Y = made(n=3000)
    bounded = rt.TargetCorrector(rt.RBF(2.0), learner, 1.0, 4, ridge=0.1, memory=16)
    sizes = []
    for start in range(0, len(X), 50):  # an open block of two samples every other time
        bounded.correct(X[start : start + 50], Y[start : start + 50])
        sizes.append(sum(storages(bounded).values()))
    assert len(set(sizes[2:])) <= 2
    assert max(sizes[2:4]) == max(sizes[-2:]) < 50_000
    bounded.correct(X, Y)  # all at once: neither does the portion stay
    assert sum(storages(bounded).values()) in sizes


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_single_precision_is_computed_in_double(dtype):
    X, Y = (torch.tensor(part, dtype=dtype) for part in made())
    got = rt.TargetCorrector(rt.Linear(), LEARNER, 0.6, 4, memory=5).correct(X, Y)
    wide = rt.TargetCorrector(rt.Linear(), LEARNER, 0.6, 4).correct(X.double(), Y.double())
    assert got.dtype == dtype
    assert_same(got, wide.to(dtype), 0)


def test_a_rate_that_is_too_large_is_told_with_one_that_is_not():
    X, Y = made(n=1500)
    learner = rt.SGD(20.0, batch_size=2, reduction="mean")
    told = {}
    for memory in (None, 5):
        corrector = rt.TargetCorrector(
            rt.Linear(), learner, 0.6, 2, parts="offline", ridge=0.1, memory=memory
        )
        with pytest.warns(rt.errors.DivergenceWarning) as caught:
            corrector.correct(X[:40], Y[:40])
        with pytest.raises(rt.errors.DivergedError) as error:
            corrector.correct(X[40:], Y[40:])
        told[memory] = str(caught[0].message).split("below")[1], error.value.step
    assert told[5] == told[None]


def test_normal_equations_that_mean_nothing_are_told():
    X, Y = made()
    one = rt.TargetCorrector(rt.Linear(), rt.SGD(0.01), 1e-15, 1, memory=5)
    one.correct(10 * X[:1], Y[:1])
    with pytest.warns(PrecisionWarning, match="normal equations of the features"):
        one.correct(X[1:2], Y[1:2])


def test_without_the_offline_half_no_ridge_is_needed():
    X, Y = made(d=30)
    got = rt.TargetCorrector(rt.Linear(), LEARNER, 0.0, 4, parts="online", memory=30).correct(X, Y)
    assert_same(got, rt.iterative_targets(X @ X.T, Y, LEARNER, 0.0, 4, parts="online"), 1e-9)


# --- aims other than all the past


def weights(text, n):
    """Of n samples, the newest last."""
    kind, amount = text.split(":")
    ages = np.arange(n)[::-1]
    return (ages < int(amount)).astype(float) if kind == "window" else float(amount) ** ages


def weighted_prediction(features, Y, queries, gamma, w):
    """Least squares with weights, in feature space, by the normal equations."""
    normal = features.T @ (w[:, None] * features) + gamma * np.eye(features.shape[1])
    return queries @ np.linalg.solve(normal, features.T @ (w[:, None] * Y))


def literal_targets(stream, text, learner, gamma, block, ridge, first_block="corrected"):
    """The sweep with another aim, block by block, with explicit inverses."""
    n, rates, X = len(stream), np.empty(len(stream)), stream.features
    for first in range(0, n, learner.batch_size):
        rows = slice(first, min(first + learner.batch_size, n))
        rates[rows] = learner.lr / (rows.stop - first if learner.reduction == "mean" else 1)
    Z, A = np.empty_like(stream.Y), np.zeros_like(stream.Y)
    for first in range(0, n, block):
        stop = min(first + block, n)
        rows, seen = slice(first, stop), slice(0, stop)
        K = stream.K[rows, rows]
        step = np.arange(first, stop) // learner.batch_size
        steps = np.diag(1 / rates[rows]) + np.where(step[:, None] > step, K, 0.0)
        before = stream.K[rows, :first] @ A[:first]
        if first == 0 and first_block == "plain":
            A[rows] = np.linalg.solve(steps, stream.Y[rows] - before)
        else:
            F = weighted_prediction(X[seen], stream.Y[seen], X[rows], gamma, weights(text, stop))
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
    memory=st.sampled_from([None, 200]),
    first_block=st.sampled_from(["corrected", "plain"]),
    panel=panel_sizes,
    cut=st.integers(0, 33),
)
def test_targets_are_those_of_the_weighted_offline_learner(
    stream, learner, gamma, text, blocks, ridge, memory, first_block, panel, cut
):
    block, n = blocks * learner.batch_size, len(stream)
    expected = literal_targets(stream, text, learner, gamma, block, ridge, first_block)
    options = {"first_block": first_block, "memory": memory, "aim": text}
    with panels_of(panel):
        corrector = rt.TargetCorrector(rt.Linear(), learner, gamma, block, ridge, **options)
        Z = in_portions(corrector, stream.features, stream.Y, sorted({0, min(cut, n), n}))
    assert_same(Z, expected, 1e-9 * max(1.0, np.abs(expected).max()))


@fewer_examples
@given(stream=streams, gamma=gammas, memory=st.sampled_from([None, 200]))
def test_a_window_of_everything_is_the_aim_at_all(stream, gamma, memory):
    learner, found = rt.SGD(lr=0.3, batch_size=2), []
    for aim in ("all", "window:33"):
        corrector = rt.TargetCorrector(rt.Linear(), learner, gamma, 4, memory=memory, aim=aim)
        found.append(in_portions(corrector, stream.features, stream.Y, [0, len(stream)]))
    assert_same(found[1], found[0], 1e-9 * np.abs(found[0]).max())


def test_a_start_that_is_not_zero():
    stream = make_stream(20, 2, seed=2)
    initial = np.random.default_rng(0).normal(size=stream.Y.shape)
    one, other = (
        rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.2), 0.5, 5, aim="discount:0.8")
        for _ in range(2)
    )
    from_start = one.correct(stream.features, stream.Y, initial=initial)
    assert_same(from_start, other.correct(stream.features, stream.Y - initial) + initial)


@pytest.mark.parametrize("aim", ["window:50", "discount:0.97"])
def test_under_drift_an_aim_at_what_is_recent_helps_and_all_the_past_hurts(aim):
    """A curve that turns slowly: what was learned long ago is wrong now."""
    rng, n, learner = np.random.default_rng(3), 600, rt.SGD(lr=0.05)
    X, angle = rng.uniform(-1, 1, size=(n, 1)), np.linspace(0, np.pi, n)
    Y, kernel = np.sin(4 * X[:, 0] + angle) + 0.1 * rng.normal(size=n), rt.RBF(0.5)

    def running_error(targets):
        """The mean error on each sample before it is learned, of the learner of these targets."""
        predictions = targets - rt.prequential_errors(kernel(X), targets, learner)
        return np.abs(Y - predictions).mean()

    corrected, models = {}, {}
    for each in ("all", aim):
        corrector = rt.TargetCorrector(kernel, learner, 0.3, 4, 0.1, aim=each)
        corrected[each] = running_error(in_portions(corrector, X, Y, [0, n]))
        models[each] = rt.OnlineKernelRegressor(
            kernel, lr=0.5, gamma=0.1, correction="iterative", block_size=4, ridge=0.1, aim=each
        )
        for rows in (slice(0, 100), slice(100, n)):
            models[each].partial_fit(X[rows], Y[rows])
    plain = running_error(Y)
    assert corrected["all"] > 1.2 * plain
    assert corrected[aim] < plain / 2
    now = np.sin(4 * X[:, 0] + np.pi)
    errors = {each: np.abs(model.predict(X) - now).mean() for each, model in models.items()}
    assert errors[aim] < errors["all"] / 2


def test_a_discount_keeps_what_counts_above_rounding():
    assert aims.as_aim("discount:0.5").horizon == 53
    stream = make_stream(80, 1, seed=4)
    corrector = rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.1), 1.0, 8, aim="discount:0.5")
    corrector.correct(stream.features, stream.Y)
    assert len(corrector._sweep._offline._Y) == 53


def test_precision_that_is_lost_is_said():
    X = np.linspace(0, 1, 20)[:, None]
    corrector = rt.TargetCorrector(rt.RBF(0.3), rt.SGD(lr=0.1), 0.0, 20, 0.1, aim="window:20")
    with pytest.warns(PrecisionWarning, match="the aim's kernel has a condition number"):
        corrector.correct(X, X[:, 0])


# --- what is refused


def corrector_of(kernel=LINEAR, gamma=0.6, **options):
    return rt.TargetCorrector(kernel, LEARNER, gamma, 4, **options)


def estimator_of(**options):
    rt.OnlineKernelRegressor(width=1.0, **options).fit(np.eye(3), np.ones(3))


def with_other_features():
    one = corrector_of(rt.Features(lambda x: x[:, : 3 + (len(x) > 8)]), memory=9)
    one.correct(*made(n=8))
    one.correct(*made(n=12))


def without_factor():
    K = np.diag([1.0, -0.5, 1.0, 1.0])
    corrector = rt.TargetCorrector(K, rt.SGD(lr=0.1), 0.01, 2, 1.0, aim="window:2")
    corrector.correct(np.arange(4), np.ones(4))


REFUSED = {
    "gamma": (lambda: corrector_of(gamma=0.0, memory=9), "gamma is 0 with memory"),
    "function": (lambda: corrector_of(lambda a, b: a @ b.T, memory=9), r"rt\.Features of your"),
    "matrix": (lambda: corrector_of(np.eye(3), memory=9), r"rt\.Features"),
    "none": (lambda: corrector_of(memory=0), "memory is 0; expected 1 or more"),
    "a word": (lambda: corrector_of(memory="much"), "memory is 'much'; expected a whole number"),
    "huge": (lambda: corrector_of(rt.RBF(1.0), memory=10**7), "use a smaller memory"),
    "few": (lambda: corrector_of(memory=4).correct(*made()), r"has 5 features, but memory is 4"),
    "samples": (lambda: corrector_of(memory=9).samples, "not kept with memory=9"),
    "loss": (lambda: corrector_of(memory=9, loss=CE), "memory=.* with loss='cross-entropy'"),
    "other features": (with_other_features, "features of X is 4; expected 3"),
    "aim of another loss": (lambda: corrector_of(loss=CE, aim="window:5"), "'window:5' with loss="),
    "aim of another type": (lambda: corrector_of(aim=500), "aim is 500; expected a string"),
    **{
        f"aim {text!r}": (lambda text=text: corrector_of(aim=text), f"aim is '{text}'; expected")
        for text in ("", "All", "window", "window:0", "window:2.5", "discount:1", "discount:0")
    },
    "aim of an estimator": (
        lambda: estimator_of(correction="iterative", aim="half:2"),
        "aim is 'half:2'; expected 'all', 'window:N'",
    ),
    **{
        f"aim of {correction}": (
            lambda correction=correction: estimator_of(correction=correction, aim="window:5"),
            f"'window:5' with correction='{correction}'",
        )
        for correction in ("none", "exact")
    },
    "no factor": (without_factor, "would do"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_is_refused(name):
    call, words = REFUSED[name]
    with pytest.raises((rt.RetargetError, NotPositiveDefiniteError), match=words):
        call()


def test_an_aim_that_is_too_large_for_the_memory(monkeypatch):
    corrector = corrector_of(aim="discount:0.999")
    monkeypatch.setattr("retarget.arrays.free_memory", lambda device: 100)
    with pytest.raises(rt.errors.StreamTooLargeError, match="an aim that counts 4 samples .* mem"):
        corrector.correct(np.eye(4), np.ones(4))
    assert len(corrector) == 0
