"""A stream in portions is learned as the whole; labels; what is refused."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

import retarget as rt
from retarget import arrays
from retarget.errors import InvalidInputError, InvalidTypeError, StreamTooLargeError
from support.problems import assert_same, make_stream, panel_sizes, panels_of, plain_learners

CORRECTIONS = ["none", "exact", "iterative"]


def batches(size):
    return {"batch_size": size, "reduction": "sum"}


@st.composite
def cuts(draw, n):
    inner = draw(st.sets(st.integers(1, n - 1), max_size=4)) if n > 1 else set()
    return [slice(a, b) for a, b in pairwise([0, *sorted(inner), n])]


@st.composite
def streams_in_portions(draw):
    stream = make_stream(
        draw(st.integers(1, 30)), draw(st.integers(1, 3)), draw(st.integers(0, 99))
    )
    return stream, draw(cuts(len(stream)))


@given(
    case=streams_in_portions(),
    learner=plain_learners(),
    momentum=st.sampled_from([0.0, 0.6]),
    weight_decay=st.sampled_from([0.0, 0.05]),
    blocks=st.integers(1, 4),
    correction=st.sampled_from(CORRECTIONS),
    panel=panel_sizes,
)
def test_portions_are_learned_as_the_whole_all_along(
    case, learner, momentum, weight_decay, blocks, correction, panel
):
    stream, portions = case
    options = learner.to_dict() | {"momentum": momentum, "weight_decay": weight_decay}
    options |= {"lr": learner.lr * (1 - momentum), "gamma": 0.7, "ridge": 0.0}
    options |= {"block_size": blocks * learner.batch_size, "correction": correction}
    model = rt.OnlineKernelRegressor("linear", **options)
    for rows in portions:
        with panels_of(panel):
            model.partial_fit(stream.features[rows], stream.Y[rows])
        seen = slice(0, rows.stop)
        whole = rt.OnlineKernelRegressor("linear", **options)
        whole.fit(stream.features[seen], stream.Y[seen])
        assert_same(model.predict(stream.queries), whole.predict(stream.queries), 1e-9)
        assert_same(model.dual_coef_, whole.dual_coef_, 1e-8)
        assert_same(model.targets_, whole.targets_, 1e-8)
        np.testing.assert_array_equal(model.X_fit_, stream.features[seen])


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_late_interrupt_changes_nothing(correction, monkeypatch):
    stream = make_stream(24, 2, 5)
    models = [
        rt.OnlineKernelRegressor(lr=0.2, gamma=0.5, correction=correction).partial_fit(
            stream.features[:10], stream.Y[:10]
        )
        for _ in range(2)
    ]

    def interrupt(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(models[0]._tracker), "samples", property(interrupt))
        with pytest.raises(KeyboardInterrupt):
            models[0].partial_fit(stream.features[10:17], stream.Y[10:17])
    for model in models:
        model.partial_fit(stream.features[17:], stream.Y[17:])
    assert_same(models[0].predict(stream.features), models[1].predict(stream.features))


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_partial_fit_goes_on_and_fit_begins_anew(correction):
    stream = make_stream(30, 2, seed=4)
    X, Y, queries = stream.features, stream.Y, stream.queries
    options = {"lr": 0.3, "block_size": 9, "correction": correction} | batches(3)
    model = rt.OnlineKernelRegressor("linear", **options).fit(X[:9], Y[:9])  # no block is open
    held = model.dual_coef_, model.targets_, model.X_fit_
    copies = [array.copy() for array in held]
    model.set_params(lr=1e9).partial_fit(X[9:], Y[9:])  # which is read when a stream begins
    assert model.lr_ == model.learner_.lr == 0.3
    for array, copy in zip(held, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    whole = rt.OnlineKernelRegressor("linear", **options).fit(X, Y).predict(queries)
    assert_same(model.predict(queries), whole)
    assert_same(model.set_params(lr=0.3).fit(X, Y).predict(queries), whole)


def test_what_was_found_on_the_first_portion_stays():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2)), rng.normal(size=30)
    model = rt.OnlineKernelRegressor(batch_size=3, reduction="sum").fit(X[:10], y[:10])
    found = model.width_, model.lr_
    model.partial_fit(5 * X[10:], y[10:])
    assert (model.width_, model.lr_) == found


def test_flat_and_one_column_targets_go_together():
    stream = make_stream(12, 1, seed=2)
    whole = rt.OnlineKernelRegressor("linear", lr=0.2).fit(stream.features, stream.Y[:, 0])
    for first, second in ((stream.Y[:5, 0], stream.Y[5:]), (stream.Y[:5], stream.Y[5:, 0])):
        model = rt.OnlineKernelRegressor("linear", lr=0.2).fit(stream.features[:5], first)
        model.partial_fit(stream.features[5:], second)
        assert model.targets_.ndim == model.predict(stream.queries).ndim == first.ndim
        assert_same(model.predict(stream.queries).ravel(), whole.predict(stream.queries))


def make_labels(n=50, names=("red", "green", "blue"), seed=0):
    rng = np.random.default_rng(seed)
    numbers = np.sort(rng.integers(len(names), size=n))  # class by class
    return rng.normal(size=(n, 2)) + 3 * numbers[:, None], np.array(names)[numbers]


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("names", [("red", "green", "blue"), (7, 3), (True, False)])
def test_a_classifier_regresses_one_hot_targets(names, correction):
    X, labels = make_labels(names=names)
    classes = sorted(names)
    one_hot = np.array([[label == name for name in classes] for label in labels], dtype=float)
    options = {"gamma": 0.2, "block_size": 6, "correction": correction} | batches(3)
    model = rt.OnlineKernelClassifier(**options).fit(X, labels)
    outputs = rt.OnlineKernelRegressor(**options).fit(X, one_hot).predict(X)
    assert model.classes_.tolist() == classes
    np.testing.assert_array_equal(model.predict(X), np.array(classes)[outputs.argmax(axis=1)])
    decision = outputs[:, 1] - outputs[:, 0] if len(classes) == 2 else outputs
    np.testing.assert_array_equal(model.decision_function(X), decision)
    assert model.score(X, labels) == np.mean(model.predict(X) == labels)
    if correction == "exact":
        assert model.score(X, labels) > 0.95
        assert_same(model.effective_targets(), one_hot)


@pytest.mark.parametrize(("loss", "tolerance"), [("squared", 1e-10), ("cross-entropy", 1e-9)])
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_class_missing_in_the_first_portion(correction, loss, tolerance):
    X, labels = make_labels()  # class by class: "red" alone in the first ten
    assert set(labels[:10]) == {"red"}
    options = {"width": 2.0, "lr": 0.5, "block_size": 8, "correction": correction, "loss": loss}
    options |= batches(4)
    model = rt.OnlineKernelClassifier(**options)
    model.partial_fit(X[:10], labels[:10], classes=["red", "green", "blue"])
    assert set(model.predict(X[:10])) == {"red"}
    model.partial_fit(X[10:33], labels[10:33], classes=["blue", "green", "red"])
    model.partial_fit(X[33:], labels[33:])
    whole = rt.OnlineKernelClassifier(**options).fit(X, labels)
    assert_same(model.decision_function(X), whole.decision_function(X), tolerance)


def test_labels_that_are_refused():
    X, labels = make_labels()
    model = rt.OnlineKernelClassifier()
    for match, classes in (
        ("classes is None in the first call", None),
        ("holds red in row 0, which is not one of", ["green", "blue"]),
    ):
        with pytest.raises(InvalidInputError, match=match):
            model.partial_fit(X, labels, classes)
    with pytest.raises(NotFittedError):
        model.predict(X)
    model.partial_fit(X[:20], labels[:20], classes=["red", "green"])
    before = model.decision_function(X)
    for match, fit, *data in (
        (r"holds blue in row \d+, which", model.partial_fit, X[20:], labels[20:]),
        (r"classes is \['blue' 'red'\], but", model.partial_fit, X, labels, ["red", "blue"]),
        ("holds 1 in row 0, which is not one of", model.partial_fit, X[:5], np.arange(1, 6)),
        # another number of features, too
        (r"y has 1 class, \['red'\]; expected two or more", model.fit, X[:5, :1], labels[:5]),
    ):
        with pytest.raises(InvalidInputError, match=match):
            fit(*data)
    np.testing.assert_array_equal(model.decision_function(X), before)
    assert model.n_features_in_ == 2


BAD_BLOCKS = {"correction": "iterative", "batch_size": 2, "reduction": "sum", "block_size": 3}
REFUSED = {
    "lr is 'fast'; expected 'stable'": {"lr": "fast"},
    "lr is -1.0; expected a positive, finite rate": {"lr": -1.0},
    "correction is 'some'; expected one of": {"correction": "some"},
    "aim is 'window:5' with correction='none'": {"aim": "window:5"},
    "gamma is -0.5": {"gamma": -0.5},
    "gamma is 'big'": {"gamma": "big", "correction": "exact"},
    "width is -1.0": {"width": -1.0},
    "kernel is 'nonsense'": {"kernel": "nonsense"},
    "kernel is 3": {"kernel": 3},
    "kernel is a precomputed matrix": {"kernel": np.eye(4)},
    "block_size is 3; expected a positive multiple": BAD_BLOCKS,
    "ridge is -1": {"correction": "iterative", "ridge": -1},
    "n_samples = 4 there is no such pair": {"width": "auto"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_options_are_checked_in_fit(message):
    X = np.ones((4, 4)) if "pair" in message else np.eye(4)
    model = rt.OnlineKernelRegressor(**REFUSED[message])
    wrong_type = message in ("gamma is 'big'", "kernel is 3")
    error = InvalidTypeError if wrong_type else InvalidInputError
    for fit in (model.fit, model.partial_fit):
        with pytest.raises(error, match=message):
            fit(X, X[:, 0])
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_failed_portion_changes_nothing(correction):
    stream = make_stream(40, 1, seed=0)
    X, Y = stream.features, stream.Y
    options = {"lr": 0.2, "correction": correction, "block_size": 4, "gamma": 0.5}
    one, other = (rt.OnlineKernelRegressor(failing_kernel, **options) for _ in range(2))
    for model in (one, other):
        model.fit(X[:6], Y[:6])
    with pytest.raises(rt.RetargetError):
        one.partial_fit(1e200 * X[6:], Y[6:])
    with pytest.raises(ValueError, match="feature|output"):
        one.fit(np.ones((3, 2)), Y[:3, :0])  # another number of features, and no targets
    one.partial_fit(X[6:], Y[6:])
    other.partial_fit(X[6:], Y[6:])
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    np.testing.assert_array_equal(one.targets_, other.targets_)


def failing_kernel(A, B):
    with np.errstate(over="ignore", invalid="ignore"):
        return A @ B.T


@pytest.mark.parametrize("correction", ["exact", "iterative"])
def test_a_stream_beyond_memory_is_refused_beforehand(correction, monkeypatch):
    stream = make_stream(60, 1, seed=0)
    X, Y = stream.features, stream.Y
    model = rt.OnlineKernelRegressor("linear", lr=0.2, correction=correction, block_size=1)
    model.partial_fit(X[:20], Y[:20])
    monkeypatch.setattr(arrays, "free_memory", lambda device: 8 * (50**2 - 20**2) // 2)
    with pytest.raises(StreamTooLargeError, match="the factor of 60 samples needs about"):
        model.partial_fit(X[20:], Y[20:])
    with pytest.raises(StreamTooLargeError, match="correction='none'"):
        model.fit(X, Y)
    rt.OnlineKernelRegressor("linear", lr=0.2).fit(X, Y)
    # what is there already needs no room
    monkeypatch.setattr(arrays, "free_memory", lambda device: 8 * (60**2 - 20**2) // 2)
    with panels_of(1):
        model.partial_fit(X[20:], Y[20:])
        assert len(model.X_fit_) == 60
        with pytest.raises(StreamTooLargeError, match="the factor of 60 samples needs about"):
            model.fit(X, Y)
