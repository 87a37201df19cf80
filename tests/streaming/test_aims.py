"""Aims other than all the past: the weighted offline learner, literally; what drift asks for."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.errors import (
    InvalidInputError,
    InvalidTypeError,
    NotPositiveDefiniteError,
    PrecisionWarning,
    StreamTooLargeError,
)
from retarget.theory.offline import aims
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

texts = st.sampled_from(["window:1", "window:7", "window:1000", "discount:0.5", "discount:0.97"])


def weights(text, n):
    """Of n samples, the newest last."""
    kind, amount = text.split(":")
    ages = np.arange(n)[::-1]
    if kind == "window":
        return (ages < int(amount)).astype(float)
    return float(amount) ** ages


def weighted_prediction(features, Y, queries, gamma, w):
    """Least squares with weights, in feature space, by the normal equations."""
    normal = features.T @ (w[:, None] * features) + gamma * np.eye(features.shape[1])
    return queries @ np.linalg.solve(normal, features.T @ (w[:, None] * Y))


def literal_targets(stream, text, learner, gamma, block, ridge, first_block="corrected"):
    """The sweep with another aim, block by block, with explicit inverses."""
    n, rates = len(stream), np.empty(len(stream))
    for first in range(0, n, learner.batch_size):
        rows = slice(first, min(first + learner.batch_size, n))
        size = rows.stop - first if learner.reduction == "mean" else 1
        rates[rows] = learner.lr / size
    Z, A = np.empty_like(stream.Y), np.zeros_like(stream.Y)
    for first in range(0, n, block):
        rows, stop = slice(first, min(first + block, n)), min(first + block, n)
        seen = slice(0, stop)
        K = stream.K[rows, rows]
        step = np.arange(first, stop) // learner.batch_size
        steps = np.diag(1 / rates[rows]) + np.where(step[:, None] > step, K, 0.0)
        before = stream.K[rows, :first] @ A[:first]
        if first == 0 and first_block == "plain":
            A[rows] = np.linalg.solve(steps, stream.Y[rows] - before)
        else:
            F = weighted_prediction(
                stream.features[seen],
                stream.Y[seen],
                stream.features[rows],
                gamma,
                weights(text, stop),
            )
            A[rows] = np.linalg.solve(K + ridge * np.eye(len(K)), F - before)
        Z[rows] = before + steps @ A[rows]
    return Z


def in_portions(corrector, stream, cuts):
    returned = [corrector.correct(stream.features[a:b], stream.Y[a:b]) for a, b in pairwise(cuts)]
    return np.concatenate([*returned, corrector.flush()])


@given(
    stream=streams,
    learner=plain_learners(),
    gamma=gammas,
    text=texts,
    blocks=st.integers(1, 5),
    ridge=st.sampled_from([0.0, 0.3]),
    memory=st.booleans(),
    first_block=st.sampled_from(["corrected", "plain"]),
    panel=panel_sizes,
    cut=st.integers(0, 33),
)
def test_targets_are_those_of_the_weighted_offline_learner(
    stream, learner, gamma, text, blocks, ridge, memory, first_block, panel, cut
):
    block, n = blocks * learner.batch_size, len(stream)
    expected = literal_targets(stream, text, learner, gamma, block, ridge, first_block)
    with panels_of(panel):
        corrector = rt.TargetCorrector(
            rt.Linear(),
            learner,
            gamma,
            block,
            ridge,
            first_block=first_block,
            memory=200 if memory else None,
            aim=text,
        )
        Z = in_portions(corrector, stream, sorted({0, min(cut, n), n}))
    assert_same(Z, expected, 1e-9 * max(1.0, np.abs(expected).max()))


@fewer_examples
@given(stream=streams, gamma=gammas, memory=st.booleans())
def test_a_window_of_everything_is_the_aim_at_all(stream, gamma, memory):
    learner, options = rt.SGD(lr=0.3, batch_size=2), {"memory": 200 if memory else None}
    whole = [0, len(stream)]
    expected = in_portions(
        rt.TargetCorrector(rt.Linear(), learner, gamma, 4, **options), stream, whole
    )
    corrector = rt.TargetCorrector(rt.Linear(), learner, gamma, 4, aim="window:33", **options)
    assert_same(in_portions(corrector, stream, whole), expected, 1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("memory", [None, 100])
@pytest.mark.parametrize("text", ["window:9", "discount:0.9"])
@pytest.mark.parametrize("parts", ["both", "online", "offline"])
def test_saved_and_loaded_it_goes_on_to_the_last_bit(memory, text, parts, tmp_path):
    stream = make_stream(40, 2, seed=1)
    options = {"memory": memory, "aim": text, "parts": parts}
    one = rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.2, batch_size=2), 0.5, 4, 0.1, **options)
    one.correct(stream.features[:22], stream.Y[:22])
    one.save(tmp_path / "state")
    other = rt.TargetCorrector.load(tmp_path / "state")
    assert other.aim == text
    rest = stream.features[22:], stream.Y[22:]
    np.testing.assert_array_equal(other.correct(*rest), one.correct(*rest))


def test_a_start_that_is_not_zero():
    stream = make_stream(20, 2, seed=2)
    initial = np.random.default_rng(0).normal(size=stream.Y.shape)
    learner = rt.SGD(lr=0.2)
    one = rt.TargetCorrector(rt.Linear(), learner, 0.5, 5, aim="discount:0.8")
    other = rt.TargetCorrector(rt.Linear(), learner, 0.5, 5, aim="discount:0.8")
    from_start = one.correct(stream.features, stream.Y, initial=initial)
    assert_same(from_start, other.correct(stream.features, stream.Y - initial) + initial)


# -- drift -------------------------------------------------------------------------------------


def drifting(n=600, seed=3):
    """A curve that turns slowly: what was learned long ago is wrong now."""
    rng = np.random.default_rng(seed)
    x, angle = rng.uniform(-1, 1, size=(n, 1)), np.linspace(0, np.pi, n)
    Y = np.sin(4 * x[:, 0] + angle) + 0.1 * rng.normal(size=n)
    return x, Y


def running_error(X, Y, learner, aim):
    """Mean absolute error on each sample before it is learned, of the corrected learner."""
    kernel = rt.RBF(0.5)
    if aim is None:
        return np.abs(rt.prequential_errors(kernel(X), Y, learner)).mean()
    corrector = rt.TargetCorrector(kernel, learner, 0.3, 4, 0.1, aim=aim)
    Z = np.concatenate([corrector.correct(X, Y), corrector.flush()])
    predictions = Z - rt.prequential_errors(kernel(X), Z, learner)
    return np.abs(Y - predictions).mean()


@pytest.mark.parametrize("aim", ["window:50", "discount:0.97"])
def test_under_drift_an_aim_at_what_is_recent_helps_and_all_the_past_hurts(aim):
    X, Y = drifting()
    learner = rt.SGD(lr=0.05)
    plain = running_error(X, Y, learner, None)
    assert running_error(X, Y, learner, "all") > 1.2 * plain
    assert running_error(X, Y, learner, aim) < plain / 2


@pytest.mark.parametrize("aim", ["window:50", "discount:0.97"])
def test_an_estimator_follows_the_drift(aim):
    X, Y = drifting()
    query = np.linspace(-1, 1, 50)[:, None]
    now = np.sin(4 * query[:, 0] + np.pi)
    options = {"width": 0.5, "lr": 0.5, "gamma": 0.1, "correction": "iterative", "block_size": 4}
    errors = {}
    for each in ("all", aim):
        model = rt.OnlineKernelRegressor(**options, ridge=0.1, aim=each)
        for rows in (slice(0, 100), slice(100, 600)):
            model.partial_fit(X[rows], Y[rows])
        errors[each] = np.abs(model.predict(query) - now).mean()
    assert errors[aim] < errors["all"] / 2


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "All", "window", "window:0", "window:2.5", "discount:1", "discount:0", "half:2"]
)
def test_texts_that_name_no_aim(text):
    for make in (
        lambda: rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.1), 1.0, 2, aim=text),
        lambda: rt.OnlineKernelRegressor(width=1.0, correction="iterative", aim=text).fit(
            np.eye(3), np.ones(3)
        ),
    ):
        with pytest.raises(InvalidInputError, match=f"aim is '{text}'; expected 'all', 'window:N'"):
            make()
    with pytest.raises(InvalidTypeError, match="aim is 500; expected a text"):
        rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.1), 1.0, 2, aim=500)


@pytest.mark.parametrize("correction", ["none", "exact"])
def test_an_aim_is_of_the_iterative_correction(correction):
    model = rt.OnlineKernelRegressor(width=1.0, correction=correction, aim="window:5")
    with pytest.raises(InvalidInputError, match=f"'window:5' with correction='{correction}'"):
        model.fit(np.eye(3), np.ones(3))


def test_cross_entropy_aims_at_all_the_past():
    with pytest.raises(InvalidInputError, match="'window:5' with loss='cross-entropy'"):
        rt.TargetCorrector(
            rt.Linear(), rt.SGD(lr=0.1), 1.0, 2, loss="cross-entropy", aim="window:5"
        )


def test_an_aim_that_is_too_large_for_the_memory(monkeypatch):
    corrector = rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.1), 1.0, 4, aim="discount:0.999")
    monkeypatch.setattr("retarget.arrays.free_memory", lambda device: 100)
    with pytest.raises(StreamTooLargeError, match="an aim that counts 4 samples .* memory="):
        corrector.correct(np.eye(4), np.ones(4))
    assert len(corrector) == 0


def test_a_discount_keeps_what_counts_above_rounding():
    assert aims.as_aim("discount:0.5").horizon == 53
    stream = make_stream(80, 1, seed=4)
    corrector = rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.1), 1.0, 8, aim="discount:0.5")
    corrector.correct(stream.features, stream.Y)
    assert len(corrector._sweep._offline._Y) == 53


def test_a_kernel_that_has_no_factor_says_what_would_do():
    K = np.diag([1.0, -0.5, 1.0, 1.0])
    corrector = rt.TargetCorrector(K, rt.SGD(lr=0.1), 0.01, 2, 1.0, aim="window:2")
    with pytest.raises(NotPositiveDefiniteError, match="would do"):
        corrector.correct(np.arange(4), np.ones(4))


def test_precision_that_is_lost_is_said():
    X = np.linspace(0, 1, 20)[:, None]
    corrector = rt.TargetCorrector(rt.RBF(0.3), rt.SGD(lr=0.1), 0.0, 20, 0.1, aim="window:20")
    with pytest.warns(PrecisionWarning, match="the aim's kernel has a condition number"):
        corrector.correct(X, X[:, 0])
