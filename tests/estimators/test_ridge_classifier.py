"""The verbs that both ridge classifiers have: forget, merge, probabilities, rejection."""

import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from torch import nn

import retarget as rt
from retarget.errors import InvalidInputError
from retarget.streaming.ridge.calibration import expected_calibration_error
from support.problems import assert_same


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 6)).double()


def array_classifier(**options):
    return rt.StreamingRidgeClassifier(**{"gamma": 0.3, **options})


def tangent_classifier(**options):
    return rt.TangentClassifier(network(), **{"gamma": 0.3, "features": 90, **options})


both = pytest.mark.parametrize(
    "make", [array_classifier, tangent_classifier], ids=["arrays", "network"]
)


def labelled_stream(n=60, names=("a", "b", "c", "d"), seed=0):
    rng = np.random.default_rng(seed)
    numbers = np.arange(n) % len(names)
    X = 2 * rng.normal(size=(len(names), 5))[numbers] + rng.normal(size=(n, 5))
    return X, np.array(names)[numbers], rng.normal(size=(9, 5)) * 2


def on_all_at_once(model, X, y, queries):
    """Ridge with an intercept on one-hot targets, by the features of a model."""
    phi = model.learner_._map(X).numpy()
    asked = model.learner_._map(queries).numpy()
    Y = (y[:, None] == model.classes_[None]).astype(float)
    centered = phi - phi.mean(0)
    matrix = centered.T @ centered + 0.3 * np.eye(phi.shape[1])
    weights = np.linalg.solve(matrix, centered.T @ (Y - Y.mean(0)))
    return (asked - phi.mean(0)) @ weights + Y.mean(0)


@both
@given(seed=st.integers(0, 5), order=st.permutations(range(60)), cuts=st.sets(st.integers(1, 59)))
def test_any_order_is_all_at_once(make, seed, order, cuts):
    X, y, queries = labelled_stream(seed=seed)
    model = make()
    for rows in np.split(np.array(order), sorted(cuts)[:4]):
        model.partial_fit(X[rows], y[rows])
    assert_same(model.decision_function(queries), on_all_at_once(model, X, y, queries), 1e-9)


@both
def test_a_forgotten_class_was_never_there(make):
    X, y, queries = labelled_stream()
    model = make().fit(X, y)
    model.forget(X[y == "b"][:4], y[y == "b"][:4])
    assert model.classes_.tolist() == ["a", "b", "c", "d"]
    model.forget(X[y == "b"][4:], y[y == "b"][4:])
    peer = make().fit(X[y != "b"], y[y != "b"])
    assert model.classes_.tolist() == ["a", "c", "d"]
    assert_same(model.decision_function(queries), peer.decision_function(queries), 1e-9)
    assert_same(model.predict_proba(queries), peer.predict_proba(queries), 1e-6)
    assert len(model.learner_.learned.kept.rows) == (y != "b").sum()
    again = model.partial_fit(X[y == "b"], y[y == "b"])
    assert_same(again.decision_function(queries), make().fit(X, y).decision_function(queries), 1e-9)


@both
def test_forgotten_samples_were_never_there(make):
    X, y, queries = labelled_stream()
    weights = np.random.default_rng(0).integers(0, 4, size=60).astype(float)
    model = make().fit(X, y, weights).forget(X[7:31], y[7:31], weights[7:31])
    rest = np.r_[0:7, 31:60]
    peer = make().fit(X[rest], y[rest], weights[rest])
    assert_same(model.decision_function(queries), peer.decision_function(queries), 1e-9)
    assert_same(model.predict_proba(queries), peer.predict_proba(queries), 1e-6)
    np.testing.assert_array_equal(
        model.predict(queries, reject=0.3), peer.predict(queries, reject=0.3)
    )


@both
def test_merged_classifiers_know_the_classes_of_both(make):
    X, y, queries = labelled_stream(names=("a", "b", "c", "d"))
    first, second = np.isin(y, ["d", "b"]), np.isin(y, ["c", "b", "a"])
    half = np.arange(60) < 30
    first, second = first & (half | (y == "d")), second & ~(half & (y == "b"))
    one, two = make().fit(X[first], y[first]), make().fit(X[second], y[second])
    before = two.decision_function(queries)
    one.merge(two)
    whole = make().fit(X, y)
    assert one.classes_.tolist() == ["a", "b", "c", "d"]
    assert_same(one.decision_function(queries), whole.decision_function(queries), 1e-9)
    assert_same(one.predict_proba(queries), whole.predict_proba(queries), 1e-9)
    assert_same(two.decision_function(queries), before, 0)
    assert two.classes_.tolist() == ["a", "b", "c"]
    one.forget(X[y == "d"], y[y == "d"])
    assert one.classes_.tolist() == ["a", "b", "c"]


@both
def test_probabilities(make):
    X, y, queries = labelled_stream()
    model = make().fit(X, y)
    probabilities = model.predict_proba(queries)
    assert probabilities.shape == (9, 4)
    assert_same(probabilities.sum(1), np.ones(9), 1e-12)
    np.testing.assert_array_equal(model.classes_[probabilities.argmax(1)], model.predict(queries))
    # the temperature is the best for samples that were left out
    left_out = model.learner_.left_out()
    own = left_out.targets.argmax(1)

    def loss(temperature):
        logs = torch.log_softmax(left_out.predictions / temperature, 1)
        smooth = logs.mean() / 61  # one sample more, spread over the classes
        return -float(logs[torch.arange(60), own].sum() / 61 + smooth)

    outputs = model.decision_function(queries)
    gaps = outputs[0] - outputs[0, 0]
    temperature = gaps[1] / np.log(probabilities[0, 1] / probabilities[0, 0])
    assert loss(temperature) < min(loss(0.95 * temperature), loss(1.05 * temperature))


@pytest.mark.parametrize(("kernel", "most"), [("linear", 0.05), ("rbf", 0.025)])
def test_probabilities_of_digits_are_calibrated(kernel, most):
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    X, y = images[order] / 16, labels[order]
    model = rt.StreamingRidgeClassifier(kernel, features=300).fit(X[:1000], y[:1000])
    probabilities = model.predict_proba(X[1000:])
    right = model.predict(X[1000:]) == y[1000:]
    assert expected_calibration_error(probabilities, right) < most
    # the outputs themselves are not
    outputs = model.decision_function(X[1000:])
    plain = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    assert expected_calibration_error(plain, right) > 0.5


def test_the_error_of_calibration():
    probabilities = np.array([[0.9, 0.1], [0.35, 0.65], [0.7, 0.3], [1.0, 0.0]])
    right = np.array([True, True, False, True])
    expected = (0.1 + abs(0.65 + 0.7 - 1) + 0.0) / 4
    assert expected_calibration_error(probabilities, right, bins=5) == pytest.approx(expected)


@both
def test_what_looks_like_nothing_learned_is_rejected(make):
    X, y, _ = labelled_stream(400, seed=1)
    model = make().fit(X[:200], y[:200])
    answers = model.predict(X[200:], reject=0.1)
    rejected = np.array([label is None for label in answers])
    assert 0.04 < rejected.mean() < 0.17
    np.testing.assert_array_equal(answers[~rejected], model.predict(X[200:])[~rejected])
    known = y[:200] != "d"
    model = make().fit(X[:200][known], y[:200][known])
    answers = model.predict(X[200:][y[200:] == "d"], reject=0.1)
    assert np.mean([label is None for label in answers]) > 2.5 * 0.1


@both
def test_a_share_is_rejected_by_rank(make):
    """Of the samples that were left out, at most this share has a score as low."""
    X, y, queries = labelled_stream()
    model = make().fit(X, y)
    left_out = model.learner_.left_out()
    score = (left_out.predictions.amax(1) / left_out.spreads.sqrt()).numpy()
    features = model.learner_.prepare(queries)
    outputs = np.asarray(model.learner_.predict(features))
    asked = outputs.max(1) / model.learner_.spread(features).sqrt().numpy()
    for reject in (0.02, 0.1, 0.5, 0.97):
        rank = (1 + (score[:, None] <= asked).sum(0)) / 61
        answers = model.predict(queries, reject=reject)
        np.testing.assert_array_equal([label is None for label in answers], rank <= reject)


@both
def test_what_cannot_be_known(make):
    X, y, queries = labelled_stream()
    with pytest.raises(NotFittedError):
        make().predict(queries, reject=0.1)
    with pytest.raises(NotFittedError):
        make().forget(X, y)
    with pytest.raises(NotFittedError):
        make().fit(X, y).merge(make())
    model = make().fit(X, y)
    with pytest.raises(InvalidInputError, match="60 samples .* at least 99"):
        model.predict(queries, reject=0.01)
    with pytest.raises(InvalidInputError, match="reject is 1.0; expected a share"):
        model.predict(queries, reject=1.0)
    with pytest.raises(InvalidInputError, match="reject is -0.1"):
        model.predict(queries, reject=-0.1)
    for ask in ("predict_proba", "predict"):
        options = {"reject": 0.1} if ask == "predict" else {}
        for unable, match in (
            (make(calibration=0).fit(X, y), "0 rows are kept of 60 samples"),
            (make().fit(X[:1], y[:1]), "1 rows are kept of 1 samples"),
        ):
            with pytest.raises(InvalidInputError, match=match):
                getattr(unable, ask)(queries, **options)
    assert make(calibration=0).fit(X, y).predict(queries).shape == (9,)


@both
def test_what_cannot_be_forgotten_or_merged_changes_nothing(make):
    X, y, queries = labelled_stream()
    model = make().fit(X, y)
    before = model.decision_function(queries)
    for rows, labels, match in (
        (X[:2], ["e", "a"], "1 samples of the class 'e' are to be forgotten, and 0 were"),
        (X, np.full(60, "a"), "60 samples of the class 'a' .* and 15 were"),
        (9 * X[:1], y[:1], "not learned"),
        (X, y, "expected some to remain"),
    ):
        with pytest.raises(InvalidInputError, match=match):
            model.forget(rows, labels)
    other = tangent_classifier if make is array_classifier else array_classifier
    with pytest.raises(InvalidInputError, match="other is a"):
        model.merge(other().fit(X, y))
    with pytest.raises(InvalidInputError, match="calibration"):
        model.merge(make(calibration=3).fit(X, y))
    assert_same(model.decision_function(queries), before, 0)
    assert model.classes_.tolist() == ["a", "b", "c", "d"]


@both
def test_an_announced_class_has_no_samples_and_stays(make):
    X, y, queries = labelled_stream(names=("a", "b", "c"))
    model = make().partial_fit(X, y, classes=["z", "a", "b"])
    assert model.classes_.tolist() == ["a", "b", "c", "z"]
    model.forget(X[y == "b"], y[y == "b"])
    assert model.classes_.tolist() == ["a", "c", "z"]
    assert model.predict_proba(queries).shape == (9, 3)


@both
def test_copies_and_pickles(make):
    X, y, queries = labelled_stream()
    model = make().fit(X, y)
    asked = model.predict_proba(queries)
    twin = pickle.loads(pickle.dumps(model))
    assert_same(twin.predict_proba(queries), asked, 1e-12)
    twin.forget(X[:3], y[:3])
    assert_same(model.predict_proba(queries), asked, 0)
    assert_same(clone(model).fit(X, y).predict_proba(queries), asked, 1e-12)


@both
def test_the_learner_inside_may_change_too(make):
    X, y, queries = labelled_stream()
    model = make().fit(X, y)
    model.predict_proba(queries)
    Y = (y[:, None] == np.array(model._classes.labels)).astype(float)
    features = model.learner_.prepare(X[:9]).parts[0][0].numpy()
    model.learner_.forget(X[:9], Y[:9])
    stored = pickle.dumps(model)
    assert not any(row.tobytes() in stored for row in features)
    peer = make().fit(X[9:], y[9:])
    assert_same(model.predict_proba(queries), peer.predict_proba(queries), 1e-6)


@both
def test_threads_learn_in_turn(make):
    X, y, queries = labelled_stream(80)
    model = make().fit(X[:8], y[:8])
    states = [make().fit(X[:n], y[:n]) for n in range(8, 81, 8)]
    expected = [state.predict_proba(queries) for state in states]
    wrong = []

    def ask():
        for _ in range(6):
            answer = model.predict_proba(queries)
            if min(np.abs(answer - each).max() for each in expected) > 1e-6:
                wrong.append(answer)

    def learn():
        for start in range(8, 80, 8):
            model.partial_fit(X[start : start + 8], y[start : start + 8])

    threads = [threading.Thread(target=each) for each in (ask, learn, ask)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert model.learner_.samples == 80
