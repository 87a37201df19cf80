"""Ridge estimators: scikit-learn's numbers, `partial_fit` in any order, classes as they come."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.preprocessing import OneHotEncoder
from torch import nn

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.estimators import ridge as ridge_estimators
from support.problems import assert_same

Regressor, Classifier = rt.StreamingRidgeRegressor, rt.StreamingRidgeClassifier


def random_stream(n=50, d=4, c=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 2
    Y = X @ rng.normal(size=(d, c)) + rng.normal(size=(n, c)) + 3
    return X, Y, rng.normal(size=(7, d)) + 2, rng.uniform(0.2, 3.0, size=n)


def labeled(names, n=60, seed=0):
    rng = np.random.default_rng(seed)
    numbers = rng.integers(len(names), size=n)
    numbers[: len(names)] = np.arange(len(names))
    X = rng.normal(size=(n, 3)) + np.eye(3)[numbers % 3] * (1 + numbers[:, None])
    return X, np.array(names)[numbers], rng.normal(size=(40, 3)) + 1, rng.uniform(0.2, 3, size=n)


@st.composite
def portions(draw, n):
    order = np.array(draw(st.permutations(range(n))))
    cuts = sorted(draw(st.sets(st.integers(1, n - 1), max_size=4)))
    return np.split(order, cuts)


def squares(X):
    return np.hstack([X, X**2])


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_it_is_scikit_learns_ridge(fit_intercept, weighted, flat, offset):
    X, Y, queries, weights = random_stream()
    X, queries = X + offset, queries + offset
    given = X, Y[:, 0] if flat else Y, weights if weighted else None
    peer = Ridge(alpha=1.7, fit_intercept=fit_intercept, solver="svd").fit(*given)
    model = Regressor(gamma=1.7, fit_intercept=fit_intercept).fit(*given)
    # without an intercept the sums are those of numbers far from zero: digits are lost to that
    tolerance = 1e-10 if fit_intercept or not offset else 1e-5
    assert_same(model.predict(queries), peer.predict(queries), tolerance)
    assert_same(model.coef_, peer.coef_, tolerance)
    assert_same(model.intercept_, peer.intercept_, tolerance * max(1.0, offset))
    assert model.gamma_ == 1.7


@given(data=st.data(), weighted=st.booleans(), gamma=st.sampled_from(["auto", 0.3]))
def test_partial_fit_is_fit_in_any_order(data, weighted, gamma):
    X, Y, queries, weights = random_stream(n=20, seed=data.draw(st.integers(0, 9)))
    kernel = data.draw(st.sampled_from(["linear", "rbf", squares]))
    model = Regressor(kernel, gamma, features=10)
    for rows in data.draw(portions(20)):
        model.partial_fit(X[rows], Y[rows], weights[rows] if weighted else None)
    whole = clone(model).fit(X, Y, weights if weighted else None)
    assert model.gamma_ == pytest.approx(whole.gamma_)
    assert_same(model.predict(queries), whole.predict(queries), 1e-8)


def test_weights_two_and_zero():
    X, Y, queries, _ = random_stream()
    weights = np.random.default_rng(0).integers(0, 4, size=50)
    assert (weights == 0).any()
    for model in (Regressor(), Regressor(gamma=0.5), Regressor(kernel="rbf", features=30)):
        found = clone(model).fit(X, Y, weights)
        twice = clone(model).fit(np.repeat(X, weights, axis=0), np.repeat(Y, weights, axis=0))
        assert found.gamma_ == pytest.approx(twice.gamma_)
        assert_same(found.predict(queries), twice.predict(queries), 1e-9)


def test_random_features_of_scikit_learns_width():
    X, Y, queries, _ = random_stream()
    model = Regressor("rbf", 0.5, features=1000, fit_intercept=False).fit(X[:5], Y[:5])
    peer = KernelRidge(alpha=0.5, kernel="rbf").fit(X[:5], Y[:5])
    assert np.abs(model.predict(queries) - peer.predict(queries)).max() < 0.4
    known = rt.StreamingRidge(rt.RBF(2.0), 0.5, 1000).learn(X[:5], Y[:5])  # of four columns
    assert_same(model.predict(queries), known.predict(queries), 1e-12)
    model = Regressor("rbf", 0.5, width=3.0, features=20)
    known = rt.StreamingRidge(rt.RBF(3.0), 0.5, 20, intercept=True).learn(X, Y)
    assert_same(model.fit(X, Y).predict(queries), known.predict(queries), 1e-12)
    for seed, same in ((3, True), (None, False)):  # None is another one in every fit
        states = (seed if seed is None else np.random.RandomState(seed) for _ in range(2))
        one, two = (
            model.set_params(random_state=each).fit(X, Y).predict(queries) for each in states
        )
        assert np.array_equal(one, two) is same


@pytest.mark.parametrize(
    "kernel",
    [squares, rt.Features(squares), rt.RBF(1.5), nn.Linear(4, 6).double(), rt.Linear()],
    ids=["function", "Features", "RBF", "module", "Linear"],
)
def test_features_are_those_of_streaming_ridge(kernel):
    X, Y, queries, _ = random_stream()
    model = Regressor(kernel, 0.3, features=20, random_state=4).fit(X, Y)
    peer = rt.StreamingRidge(kernel, 0.3, 20, intercept=True, seed=4).learn(X, Y)
    assert_same(model.predict(queries), peer.predict(queries), 0)
    for twin in (pickle.loads(pickle.dumps(model)), clone(model).fit(X, Y)):
        assert_same(twin.predict(queries), model.predict(queries), 0)
        twin.partial_fit(X, Y)
    assert model.learner_.samples == 50


def test_fit_begins_anew_and_learners_merge():
    X, Y, queries, _ = random_stream()
    whole = Regressor(gamma=0.3).fit(X, Y).predict(queries)
    model = Regressor(gamma=0.3).fit(X, Y).fit(X[:30], Y[:30])
    model.learner_.merge(Regressor(gamma=0.3).fit(X[30:40], Y[30:40]).learner_)
    model.set_params(gamma=50.0, kernel="rbf").partial_fit(X[40:], Y[40:])
    assert_same(model.predict(queries), whole)
    assert model.fit(X, Y).gamma_ == 50.0
    single = Regressor(gamma=0.3).fit(X.astype(np.float32), Y.astype(np.float32))
    assert single.predict(queries.astype(np.float32)).dtype == np.float32
    assert_same(single.predict(queries), whole, 1e-4)
    assert Regressor(gamma=0.3).fit(X, np.arange(50)).predict(queries).dtype == np.float64


@pytest.mark.parametrize("names", [("red", "green", "blue"), ("no", "yes"), (7, 3, 5, 1)])
@pytest.mark.parametrize("weighted", [True, False])
def test_it_is_scikit_learns_classifier(names, weighted):
    X, y, queries, weights = labeled(names)
    given = weights if weighted else None
    model, peer = (
        Classifier(gamma=1.7).fit(X, y, given),
        RidgeClassifier(alpha=1.7).fit(X, y, given),
    )
    np.testing.assert_array_equal(model.predict(queries), peer.predict(queries))
    np.testing.assert_array_equal(model.classes_, peer.classes_)
    decision = model.decision_function(queries)
    two = len(names) == 2
    assert_same(decision if two else 2 * decision - 1, peer.decision_function(queries), 1e-9)
    if not two:
        assert_same(2 * model.coef_, peer.coef_, 1e-9)
        assert_same(2 * model.intercept_ - 1, peer.intercept_, 1e-9)


@given(data=st.data(), weighted=st.booleans(), gamma=st.sampled_from(["auto", 0.3]))
def test_classes_may_come_in_any_call(data, weighted, gamma):
    names = data.draw(st.sampled_from([("red", "green", "blue"), ("b", "a"), (4, 2, 9, 7)]))
    X, y, queries, weights = labeled(names, n=16, seed=data.draw(st.integers(0, 9)))
    model = Classifier(gamma=gamma, fit_intercept=data.draw(st.booleans()))
    announced = data.draw(st.sampled_from([None, list(names), list(names)[1:]]))
    for i, rows in enumerate(data.draw(portions(16))):
        classes = announced if i == 0 else None
        model.partial_fit(X[rows], y[rows], classes, weights[rows] if weighted else None)
        known = set(model.classes_)
        assert set(y[rows]) <= known
        assert set(model.predict(queries)) <= known
    whole = clone(model).fit(X, y, weights if weighted else None)
    np.testing.assert_array_equal(model.classes_, np.sort(names))
    assert model.gamma_ == pytest.approx(whole.gamma_)
    assert_same(model.decision_function(queries), whole.decision_function(queries), 1e-8)
    assert_same(model.coef_, whole.coef_, 1e-7)


def test_one_class_two_classes_three_classes():
    X, y, queries, _ = labeled(("b", "a", "c"))
    model = Classifier(gamma=0.5)
    for name, shape in (("b", (40, 1)), ("c", (40,)), ("a", (40, 3))):
        model.partial_fit(X[y == name], y[y == name])
        assert model.decision_function(queries).shape == shape
    long = model.partial_fit(X[:2], ["a much longer name", "a"]).classes_
    assert long.tolist() == ["a", "a much longer name", "b", "c"]


def test_what_fails_leaves_the_classifier_as_it_was():
    X, y, queries, _ = labeled(("b", "a", "c"))
    told = {"fail": False}

    def features(X):
        if told["fail"]:
            raise RuntimeError("the features failed")
        return X

    model = Classifier(features, 0.5).fit(X[y != "c"], y[y != "c"])
    before = model.decision_function(queries)
    for labels, classes, match in (
        ([1, 2], None, "labels have type int64 .* to be text"),
        (y[:2], [1, 2], "labels have type int64"),
        ([0.5, 1.5], None, "Unknown label type"),
    ):
        with pytest.raises(ValueError, match=match):
            model.partial_fit(X[:2], labels, classes)
    told["fail"] = True
    for fit, *data in ((model.partial_fit, X, y, ["c", "d", "e"]), (model.fit, X[:, :2], y)):
        with pytest.raises(RuntimeError, match="the features failed"):
            fit(*data)
    told["fail"] = False
    np.testing.assert_array_equal(model.decision_function(queries), before)
    assert (model.classes_.tolist(), model.n_features_in_) == (["a", "b"], 3)
    model.partial_fit(X[y == "c"], y[y == "c"])
    whole = Classifier(gamma=0.5).fit(X, y)
    assert_same(model.decision_function(queries), whole.decision_function(queries), 1e-9)


def test_weights_that_are_refused():
    X, Y, queries, _ = random_stream()
    model = Regressor(gamma=0.5)
    for weights, match in ((np.zeros(50), "zero for all samples"), (-np.ones(50), "[Nn]egative")):
        with pytest.raises(ValueError, match=match):
            model.fit(X, Y, weights)
    with pytest.raises(NotFittedError):
        model.predict(queries)
    before = model.fit(X, Y).predict(queries)
    with pytest.raises(InvalidInputError, match="sample_weight is zero for all samples"):
        model.partial_fit(X, Y, 0)
    assert_same(model.predict(queries), before, 0)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"gamma": -1.0}, InvalidInputError, "gamma is -1.0"),
        ({"gamma": "best"}, InvalidTypeError, "gamma is 'best'"),
        (
            {"kernel": "poly"},
            InvalidTypeError,
            "kernel is 'poly', .* names affine, laplace, linear",
        ),
        ({"kernel": 3}, InvalidTypeError, "kernel is 3"),
        ({"kernel": "rbf", "width": -1.0}, InvalidInputError, "width is -1.0"),
        ({"kernel": "rbf", "width": "wide"}, InvalidTypeError, "width is 'wide'"),
        ({"kernel": "rbf", "features": 0}, InvalidInputError, "features is 0"),
        ({"random_state": "x"}, ValueError, "cannot be used to seed"),
    ],
    ids=str,
)
def test_options_are_checked_in_fit(options, error, match):
    X, Y, _, _ = random_stream()
    for estimator, targets in ((Regressor, Y), (Classifier, Y[:, 0] > 9)):
        model = estimator(**options)
        with pytest.raises(error, match=match):
            model.partial_fit(X, targets)
        for name in ("gamma_", "coef_", "intercept_"):
            assert not hasattr(model, name)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("estimator", [rt.StreamingRidgeRegressor, rt.StreamingRidgeClassifier])
def test_sparse_samples_are_learned_as_dense_ones(estimator, kernel, monkeypatch):
    rng = np.random.default_rng(3)
    values = rng.integers(0, 9, size=(83, 3))
    X = OneHotEncoder().fit_transform(values)
    y = values.sum(1) % 3 if estimator is rt.StreamingRidgeClassifier else rng.normal(size=(83, 2))
    weights = rng.integers(0, 4, size=83).astype(float)
    monkeypatch.setattr(ridge_estimators, "DENSE_NUMBERS", 10 * X.shape[1] + 1)
    rows, dense = [], type(X).toarray

    def counted(matrix):
        rows.append(matrix.shape[0])
        return dense(matrix)

    monkeypatch.setattr(type(X), "toarray", counted)
    options = {"kernel": kernel, "gamma": 0.3, "features": 20}
    one = estimator(**options).fit(X[:50], y[:50], sample_weight=weights[:50])
    one.partial_fit(X[50:].tocoo(), y[50:])
    found = getattr(one, "decision_function", one.predict)(X)
    assert max(rows) == 10
    whole = dense(X)
    other = estimator(**options).fit(whole[:50], y[:50], sample_weight=weights[:50])
    other.partial_fit(whole[50:], y[50:])
    expected = getattr(other, "decision_function", other.predict)(whole)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
