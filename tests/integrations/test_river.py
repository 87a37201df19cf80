"""The adapter for river, beside river: its own checks, exactness, refusals."""

import copy
import doctest
import functools
import math
import pickle

import numpy as np
import pytest

pytest.importorskip("river")

import polars as pl
from river import checks, linear_model, optim, preprocessing

import retarget as rt
import retarget.integrations.river
from retarget.engine.losses import nearest_distributions
from retarget.errors import DivergedError, InvalidInputError, InvalidTypeError, RetargetError
from retarget.integrations.river import (
    StreamingRidgeClassifier,
    StreamingRidgeRegressor,
    TargetCorrectionRegressor,
)
from retarget.integrations.river_ridge import LEVEL
from retarget.streaming.corrector import TargetCorrector

NAMES = ["size", "age", 3, ("a", "pair")]
Linear, SLOWER = linear_model.LinearRegression, optim.schedulers.InverseScaling(0.1)
CHECKED = {
    "regressor": StreamingRidgeRegressor(),
    "regressor-rbf": StreamingRidgeRegressor("rbf", features=32),
    "classifier": StreamingRidgeClassifier(),
    "classifier-rbf": StreamingRidgeClassifier(rt.RBF(3.0), features=32),
    "correction": TargetCorrectionRegressor(**next(TargetCorrectionRegressor._unit_test_params())),
}


def rivers_checks():
    for name, model in CHECKED.items():
        for number, check in enumerate(checks.yield_checks(model)):
            yield pytest.param(model, check, id=f"{name}-{number}-{check.__name__}")


@pytest.mark.parametrize(("model", "check"), list(rivers_checks()))
def test_rivers_own_checks_pass(model, check):
    check(model.clone())


def stream(n=60, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, len(NAMES)))
    Y = X @ random.normal(size=len(NAMES)) + 2.0 + 0.3 * random.normal(size=n)
    return X, Y, [dict(zip(NAMES, x, strict=True)) for x in X.tolist()]


def come_and_go():
    """A stream in which one feature comes, and one goes."""
    X, Y, _ = stream()
    X[:24, 3], X[36:, 1] = 0, 0
    samples = [{name: v for name, v in zip(NAMES, x, strict=True) if v} for x in X.tolist()]
    return X, Y, samples


def learn_all(model, samples, targets):
    for x, y in zip(samples, targets, strict=True):
        model.learn_one(x, y)
    return model


def corrected(model=None, block_size=6, memory=None, gamma=0.7, **options):
    if model is None:
        model = Linear(optim.SGD(0.02), intercept_lr=0.03)
    make = functools.partial(
        rt.TargetCorrector, gamma=gamma, block_size=block_size, features=memory, **options
    )
    return TargetCorrectionRegressor(model, make, max_features=8)


RIDGE_OR_CORRECTION = [
    StreamingRidgeRegressor("rbf", features=8, max_features=8),
    corrected(memory=9, block_size=10),
]


@pytest.mark.parametrize("model", RIDGE_OR_CORRECTION)
def test_copies_and_bounded_memory(model):
    _, Y, samples = stream(n=200)
    model = learn_all(model.clone(), samples[:50], Y[:50])
    model.predict_one(samples[0])  # weights are kept from then on
    size = len(pickle.dumps(model))
    twins, fresh = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)], model.clone()
    assert fresh.predict_one(samples[0]) == 0.0
    for each in (model, *twins):
        learn_all(each, samples[50:], Y[50:])
    learn_all(fresh, samples, Y)
    expected = model.predict_one(samples[0])
    assert [each.predict_one(samples[0]) for each in (*twins, fresh)] == [expected] * 3
    assert len(pickle.dumps(model)) <= size + 64  # a counter may take more bytes


@pytest.mark.parametrize("model", RIDGE_OR_CORRECTION)
@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        ({"a": math.nan}, 1.0, InvalidInputError, "fill in missing"),
        ({"a": 1.0}, "much", InvalidTypeError, "y is 'much'; expected a number"),
        ({"a": 1.0}, math.inf, InvalidInputError, "y is inf; expected a finite number"),
        (dict.fromkeys("abcdefghi", 1.0), 1.0, InvalidInputError, "9 features; expected at most 8"),
    ],
)
def test_refused_samples_change_nothing(model, x, y, error, message):
    model = model.clone()
    model.learn_one({"a": 1.0}, 2.0)
    before = pickle.dumps(model)
    with pytest.raises(error, match=message):
        model.learn_one(x, y)
    assert pickle.dumps(model) == before


class TestStreamingRidge:
    def test_ridge_with_zeros_for_missing_features(self):
        X, Y, samples = come_and_go()
        model = learn_all(StreamingRidgeRegressor(gamma=0.7), samples, Y)
        wide = np.hstack([X, np.full((len(X), 1), math.sqrt(LEVEL))])
        exact = rt.StreamingRidge(rt.Linear(), gamma=0.7).learn(wide, Y).predict(wide)
        found = [model.predict_one(x | {"never seen": 9.0}) for x in samples]
        np.testing.assert_allclose(found, exact, rtol=1e-10, atol=1e-10)

    def test_frames_are_rows_one_after_the_other(self):
        X, Y, _ = stream()
        samples = [dict(zip("abcd", x, strict=True)) for x in X.tolist()]
        one, many = (StreamingRidgeRegressor("rbf", features=8) for _ in range(2))
        learn_all(one, samples, Y)
        frame = pl.DataFrame(samples)
        assert many.predict_many(frame).to_list() == [0.0] * len(X)
        learn_all(many, samples[:7], Y[:7])
        many.learn_many(frame[7:], pl.Series(Y[7:]))
        np.testing.assert_allclose(
            many.predict_many(frame).to_numpy(), [one.predict_one(x) for x in samples], rtol=1e-12
        )
        before = pickle.dumps(many)
        many.learn_many(frame[:0], pl.Series([], dtype=pl.Float64))
        with pytest.raises(InvalidInputError, match="X has 60 rows and y has 1"):
            many.learn_many(frame, pl.Series([1.0]))
        with pytest.raises(InvalidTypeError, match="a value that is not a number"):
            many.learn_many(pl.DataFrame({"a": [1.0], "w": ["red"]}), pl.Series([1.0]))
        with pytest.raises(InvalidInputError, match="y is nan; expected a finite"):
            many.learn_many(frame[:2], pl.Series([1.0, math.nan]))
        assert pickle.dumps(many) == before

    @pytest.mark.parametrize("labels", ["floats", "floats that fall", "dates"])
    def test_frames_of_pandas_whatever_their_labels(self, labels):
        pd = pytest.importorskip("pandas")
        X, Y, _ = stream()
        index = {
            "floats": pd.Index(np.arange(60) / 4),
            "floats that fall": pd.Index(np.arange(60)[::-1] / 4),
            "dates": pd.date_range("2026-01-01", periods=60)[::-1],
        }[labels]
        frame, y = pd.DataFrame(X, index=index, columns=list("abcd")), pd.Series(Y, index=index)
        plain = pl.DataFrame(X, schema=list("abcd"))
        for make, targets in (
            (StreamingRidgeRegressor, y),
            (StreamingRidgeClassifier, pd.Series(np.where(Y > 2, "high", "low"), index=index)),
        ):
            model, expected = make(), make()
            assert len(model.predict_many(frame)) in (0, 60)  # before it has learned
            model.learn_many(frame, targets)
            expected.learn_many(plain, pl.Series(targets.to_list()))
            predicted = model.predict_many(frame)
            assert predicted.to_list() == expected.predict_many(plain).to_list()
            assert predicted.index.equals(index)


class TestStreamingRidgeClassifier:
    def test_one_hot_targets_for_later_classes(self):
        _, Y, samples = stream()
        labels = np.where(Y > 2.5, "high", "low").astype(object)
        labels[40:50] = None  # any label that can be hashed
        model = learn_all(StreamingRidgeClassifier(gamma=0.3), samples, labels)
        known = list(dict.fromkeys(labels))
        alone = [
            learn_all(StreamingRidgeRegressor(gamma=0.3), samples, each)
            for each in [[float(label == one) for label in labels] for one in known]
        ]
        for x in samples:
            outputs = [each.predict_one(x) for each in alone]
            assert model.predict_one(x) == known[int(np.argmax(outputs))]
            nearest = nearest_distributions(np.array([outputs]))[0]
            expected = dict(zip(known, nearest, strict=True))
            assert model.predict_proba_one(x) == pytest.approx(expected, abs=1e-9)

    def test_topics_in_order_or_mixed(self):
        """River's own models, and a discount, answer with the last topic."""
        random = np.random.default_rng(0)
        topics = np.repeat(np.arange(10), 60)
        X = random.normal(size=(10, 30))[topics] + 2 * random.normal(size=(600, 30))
        samples = [{f"x{i}": value for i, value in enumerate(x)} for x in X.tolist()]
        answers = {}
        for name, rows, options in (
            ("in turn", range(600), {}),
            ("mixed", random.permutation(600), {}),
            ("discount", range(600), {"discount": 0.99}),
        ):
            model = StreamingRidgeClassifier(**options)
            learn_all(model, [samples[row] for row in rows], topics[list(rows)].tolist())
            answers[name] = [model.predict_one(x) for x in samples]
        assert answers["in turn"] == answers["mixed"]
        assert np.mean(answers["in turn"] == topics) > 0.8
        assert np.mean(answers["discount"] == topics) < 0.5

    def test_frames_are_rows_one_after_the_other(self):
        X, Y, _ = stream()
        samples = [dict(zip("abcd", x, strict=True)) for x in X.tolist()]
        labels = np.where(Y > 2, "high", "low").tolist()
        one = learn_all(StreamingRidgeClassifier(), samples, labels)
        many, frame = StreamingRidgeClassifier(), pl.DataFrame(samples)
        assert many.predict_proba_many(frame).width == 0
        assert many.predict_many(frame).len() == 0
        many.learn_many(frame, pl.Series(labels))
        assert many.predict_many(frame).to_list() == [one.predict_one(x) for x in samples]
        found = many.predict_proba_many(frame).to_dicts()
        for row, x in zip(found, samples, strict=True):
            assert row == pytest.approx(one.predict_proba_one(x), abs=1e-8)

    def test_no_classes_before_learning(self):
        assert StreamingRidgeClassifier().predict_proba_one({"a": 1.0}) == {}
        assert StreamingRidgeClassifier().predict_one({"a": 1.0}) is None
        model = learn_all(StreamingRidgeClassifier(), [{"a": 1.0}, {"a": 2.0}], ["one", "two"])
        with pytest.raises(InvalidInputError, match="not finite"):
            model.learn_one({"a": math.nan}, "three")
        assert set(model.predict_proba_one({"a": 1.0})) == {"one", "two"}


def _diverge(*args, **options):
    raise DivergedError("it blows up", step=0, largest_stable_lr=0.1)


class TestTargetCorrection:
    @pytest.mark.parametrize("memory", [None, 9])
    @pytest.mark.parametrize("block_size", [5, 7, 60])
    @pytest.mark.parametrize("intercept_lr", [0.0, 0.03])
    def test_the_end_is_the_offline_solution(self, intercept_lr, block_size, memory):
        """For blocks of at least as many samples as there are weights."""
        X, Y, samples = stream()
        plain = Linear(optim.SGD(0.02), intercept_lr=intercept_lr)
        model = learn_all(corrected(plain, block_size, memory), samples, Y)
        model.flush()
        scale = math.sqrt(intercept_lr / 0.02)
        Phi = np.hstack([X, np.full((len(X), 1), scale)])
        W = np.linalg.solve(Phi.T @ Phi + 0.7 * np.eye(5), Phi.T @ Y)
        weights = [model._wrapped_model.weights[name] for name in NAMES]
        if block_size == 7:  # the last block has four samples: what they say is matched, no more
            found = [model.predict_one(x) for x in samples[-4:]]
            np.testing.assert_allclose(found, (Phi @ W)[-4:], rtol=1e-8, atol=1e-8)
        else:
            np.testing.assert_allclose(weights, W[:4], rtol=1e-8, atol=1e-8)
            assert model._wrapped_model.intercept == pytest.approx(W[4] * scale, abs=1e-8)
        assert plain.weights == {}  # the caller's own has not learned

    def test_targets_with_zeros_for_missing_features(self):
        X, Y, samples = come_and_go()
        model = learn_all(corrected(block_size=10), samples, Y)
        Phi = np.hstack([X, np.full((len(X), 1), math.sqrt(0.03 / 0.02))])
        Z = rt.iterative_targets(Phi @ Phi.T, Y, rt.SGD(lr=0.04), gamma=0.7, block_size=10)
        by_hand = Linear(optim.SGD(0.02), intercept_lr=0.03)
        learn_all(by_hand, samples, Z.tolist())
        found = [model.predict_one(x) for x in samples]
        np.testing.assert_allclose(found, [by_hand.predict_one(x) for x in samples], rtol=1e-9)
        assert model.shift == pytest.approx(math.sqrt(np.mean((Z - Y) ** 2)), rel=1e-9)
        assert model.largest_target == pytest.approx(np.abs(Z).max(), rel=1e-9)

    def test_samples_wait_until_their_block_is_full(self):
        _, Y, samples = stream()
        model = corrected(block_size=3)
        assert math.isnan(model.shift)
        for count, (x, y) in enumerate(zip(samples[:7], Y, strict=False), start=1):
            before = model.predict_one(samples[0])
            model.learn_one(x, y)
            assert model.waiting == count % 3
            assert (model.predict_one(samples[0]) == before) == (count % 3 > 0)
        model.flush()
        assert model.waiting == 0
        after = pickle.dumps(model)
        model.flush()  # nothing waits
        assert pickle.dumps(model) == after

    def test_learning_starts_from_a_learned_model(self):
        X, Y, samples = stream()
        started = Linear(optim.SGD(0.02), intercept_lr=0.0, intercept_init=1.5)
        learn_all(started, samples[:10], Y[:10] ** 2)
        start = np.array([started.predict_one(x) for x in samples])
        model = learn_all(corrected(started, 6), samples, Y)
        W = np.linalg.solve(X.T @ X + 0.7 * np.eye(4), X.T @ (Y - start))
        found = [model.predict_one(x) for x in samples]
        np.testing.assert_allclose(found, start + X @ W, rtol=1e-8, atol=1e-8)

    def test_it_stands_at_the_end_of_a_pipeline(self):
        _, Y, samples = stream()
        piped, by_hand = preprocessing.StandardScaler() | corrected(), corrected()
        scaler = preprocessing.StandardScaler()
        learn_all(piped, samples, Y)
        for x, y in zip(samples, Y, strict=True):
            scaler.learn_one(x)
            by_hand.learn_one(scaler.transform_one(x), y)
        expected = by_hand.predict_one(scaler.transform_one(samples[0]))
        assert piped.predict_one(samples[0]) == expected

    def test_an_uncorrectable_block_is_not_learned(self, monkeypatch):
        model = corrected(block_size=2)
        model.learn_one({"a": 1.0}, 1.0)
        with monkeypatch.context() as patch:
            patch.setattr(TargetCorrector, "correct", _diverge)
            with pytest.raises(DivergedError):
                model.learn_one({"a": 2.0}, 2.0)
        assert (model.waiting, model.predict_one({"a": 1.0})) == (1, 0.0)
        model.learn_one({"a": 2.0}, 2.0)
        assert (model.waiting, model.predict_one({"a": 1.0}) != 0.0) == (0, True)

    def test_what_has_no_exact_description_is_refused(self):
        for model, reason in (
            (Linear(optim.Momentum()), "its optimizer is Momentum"),
            (Linear(loss=optim.losses.Huber()), "its loss is Huber"),
            (Linear(optim.SGD(SLOWER)), "a rate changes with time"),
            (Linear(intercept_lr=SLOWER), "a rate changes with time"),
            (Linear(l2=0.1), "it has an l2 penalty"),
            (Linear(l1=0.1), "it has an l1 penalty"),
            (Linear(clip_gradient=10.0), "it clips gradients at 10"),
            (Linear(initializer=optim.initializers.Normal()), "its weights start from Normal"),
            (linear_model.PARegressor(), "model is a PARegressor"),
            (preprocessing.StandardScaler() | Linear(), "a pipeline.*put its transformers before"),
        ):
            with pytest.raises(RetargetError, match=reason):
                corrected(model)
        for made, reason in ((3, "is 3; expected an rt.Tar"), (lambda *_: None, "returned None")):
            with pytest.raises(InvalidTypeError, match=f"corrector {reason}"):
                TargetCorrectionRegressor(Linear(), made)
        with pytest.raises(InvalidTypeError, match="learn_one got w; expected x and y alone"):
            corrected().learn_one({"a": 1.0}, 1.0, w=2.0)

    def test_a_ready_corrector_is_approximate(self):
        """Of a model with a penalty that decays its weights a little: nearer than uncorrected."""
        X, Y, samples = stream()
        order = np.argsort(Y)  # a stream that is hard to learn online
        penalized = Linear(optim.SGD(0.05), l2=1e-3, intercept_lr=0.0)
        guess = rt.TargetCorrector(rt.Linear(), rt.SGD(lr=0.1), gamma=0.7, block_size=12)
        model = TargetCorrectionRegressor(penalized, guess, max_features=8)
        plain = penalized.clone()
        for each in (model, plain):
            learn_all(each, [samples[i] for i in order], Y[order])
        W = np.linalg.solve(X.T @ X + 0.7 * np.eye(4), X.T @ Y)

        def error(one):
            return np.abs([one.predict_one(x) for x in samples] - X @ W).max()

        assert error(model) < 0.05 < 0.5 < error(plain)
        assert len(guess) == 0  # it is copied
        guess.correct(np.zeros((1, 8)), np.zeros(1))
        with pytest.raises(InvalidInputError, match="has taken in 1 samples"):
            TargetCorrectionRegressor(penalized, guess)


def test_the_examples_of_the_docstrings():
    found = doctest.testmod(retarget.integrations.river, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert (found.attempted > 10, found.failed) == (True, 0)
