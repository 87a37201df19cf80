"""Estimators that learn cross-entropy: their probabilities, and who else would predict them."""

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

import retarget as rt
from retarget.errors import InvalidInputError
from support.oracles.simulation import train
from support.problems import assert_same

CE = "cross-entropy"


def problem(classes, seed=0):
    return make_classification(
        120, 6, n_informative=5, n_redundant=0, n_classes=classes, random_state=seed
    )


@pytest.mark.parametrize("classes", [2, 4])
def test_uncorrected_it_is_torch_sgd_on_cross_entropy(classes):
    X, y = problem(classes)
    options = {"lr": 0.02, "batch_size": 7, "momentum": 0.6, "reduction": "mean"}
    model = rt.OnlineKernelClassifier("linear", loss=CE, **options).fit(X, y)
    run = train(X, np.eye(classes)[y], rt.SGD(**options), loss=CE)
    assert_same(model.predict_proba(X), softmax(X @ run.weights, axis=1))
    np.testing.assert_array_equal(model.predict(X), (X @ run.weights).argmax(1))


@pytest.mark.parametrize("classes", [3, 4])
@pytest.mark.parametrize("gamma", [0.5, 20.0])
def test_exactly_corrected_it_is_logistic_regression(classes, gamma):
    X, y = problem(classes, seed=1)
    model = rt.OnlineKernelClassifier(
        "linear", loss=CE, gamma=gamma, lr=0.5, correction="exact"
    ).fit(X, y)
    peer = LogisticRegression(
        C=1 / gamma, fit_intercept=False, solver="newton-cg", tol=1e-14, max_iter=10_000
    ).fit(X, y)
    assert_same(model.predict_proba(X), peer.predict_proba(X), 1e-9)
    assert_same(model.decision_function(X), peer.decision_function(X), 1e-9)
    run = train(X, model.targets_, rt.SGD(lr=0.5), loss=CE)
    assert_same(X @ run.weights, peer.decision_function(X), 1e-7)
    assert_same(model.effective_targets(), np.eye(classes)[y], 1e-9)


def test_of_two_classes_the_probabilities_are_the_logistic_function_of_the_decision():
    X, y = problem(2)
    model = rt.OnlineKernelClassifier(loss=CE, correction="iterative", block_size=20).fit(X, y)
    second = expit(model.decision_function(X))
    assert_same(model.predict_proba(X), np.stack([1 - second, second], 1))
    assert not hasattr(rt.OnlineKernelClassifier().fit(X, y), "predict_proba")  # squared error


def test_the_automatic_rate_knows_the_loss():
    """The second derivative of cross-entropy is at most 1/2, and 1/4 for one output."""
    X, y = problem(3)
    assert rt.OnlineKernelClassifier(width=1.0, loss=CE).fit(X, y).lr_ == pytest.approx(2.0)
    p = np.full(len(X), 0.3)
    assert rt.OnlineKernelRegressor(width=1.0, loss=CE).fit(X, p).lr_ == pytest.approx(4.0)


def test_a_regressor_predicts_the_probabilities_that_it_was_taught():
    X, _ = problem(2)
    p = expit(X[:, 0])
    model = rt.OnlineKernelRegressor("linear", loss=CE, gamma=1e-6, correction="exact").fit(X, p)
    assert_same(model.predict(X), p, 1e-5)
    with pytest.raises(InvalidInputError, match="holds the label"):
        rt.OnlineKernelRegressor(loss=CE).fit(X, np.arange(len(X)))
