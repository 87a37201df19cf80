"""What scikit-learn asks of every estimator, and what its users do with one."""

import os
import pickle
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone, is_classifier
from sklearn.utils.estimator_checks import check_estimator

import retarget as rt
from retarget.kernels import SklearnKernel

CORRECTIONS = ["none", "exact", "iterative"]
CE = {"loss": "cross-entropy"}
BLOCKS = {"correction": "iterative", "kernel": "linear", "block_size": 4}
BLOCKS |= {"batch_size": 2, "reduction": "sum"}
MOVING = {"batch_size": 3, "reduction": "sum", "momentum": 0.5, "nesterov": True}
RANDOM, BARE = {"kernel": "rbf", "features": 40}, {"gamma": 0.1, "fit_intercept": False}
QUICK = [
    (rt.OnlineKernelRegressor, BLOCKS),
    (rt.OnlineKernelClassifier, CE | {"batch_size": 8, "reduction": "sum"}),
    (rt.StreamingRidgeRegressor, {}),
    (rt.StreamingRidgeClassifier, RANDOM),
]
AT_LENGTH = [
    *((rt.OnlineKernelRegressor, {"correction": each}) for each in CORRECTIONS),
    *((rt.OnlineKernelClassifier, CE | {"correction": each}) for each in CORRECTIONS),
    *((rt.OnlineKernelClassifier, each) for each in ({"correction": "exact"}, BLOCKS)),
    (rt.OnlineKernelRegressor, MOVING),
    *((rt.StreamingRidgeRegressor, each) for each in (BARE, RANDOM)),
    *((rt.StreamingRidgeClassifier, each) for each in (BARE, {})),
]


def polynomial(A, B):
    return (1 + A @ B.T) ** 2


@pytest.mark.parametrize(
    ("estimator", "settings"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in AT_LENGTH)],
    ids=lambda each: str(getattr(each, "__name__", each)),
)
def test_check_estimator(estimator, settings):
    results = check_estimator(estimator(**settings), on_skip=None)
    not_passed = {result["check_name"] for result in results if result["status"] != "passed"}
    # it runs only in a process that was started for it: see the next test
    excused = {"check_array_api_input"}
    if find_spec("pandas") is None:
        excused |= {"check_regressor_data_not_an_array", "check_classifier_data_not_an_array"}
        excused |= {"check_sample_weights_pandas_series"}
    assert not_passed <= excused
    assert len(results) > 50


@pytest.mark.slow
def test_in_a_process_of_its_own():
    """Array API inputs are checked; importing retarget does not import scikit-learn by itself."""
    script = """
import sys, retarget as rt
assert "sklearn" not in sys.modules
assert "OnlineKernelRegressor" in dir(rt)
estimators = rt.OnlineKernelRegressor, rt.OnlineKernelClassifier
from sklearn.utils.estimator_checks import check_array_api_input
for correction in ("none", "exact", "iterative"):
    for estimator in estimators:
        check_array_api_input("", estimator(correction=correction), array_namespace="numpy")
for estimator in rt.StreamingRidgeRegressor, rt.StreamingRidgeClassifier:
    check_array_api_input("", estimator(), array_namespace="numpy")
print("passed")
"""
    environment = os.environ | {"SCIPY_ARRAY_API": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "passed\n", done.stderr


def make_data(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, np.sin(X[:, 0]) + X[:, 1], np.where(X[:, 0] > 0, "up", "down")


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize(
    "kernel",
    ["rbf", polynomial, SklearnKernel("poly", degree=2)],
    ids=["a name", "a function", "scikit-learn's"],
)
def test_clones_and_pickles_go_on_alike(kernel, correction):
    X, y, _ = make_data()
    options = {"kernel": kernel, "correction": correction, "block_size": 8}
    options |= {"batch_size": 4, "reduction": "sum"}
    # a rate at which a polynomial kernel, whose last samples are larger, is stable too
    model = rt.OnlineKernelRegressor(gamma=0.3, ridge=0.2, lr=0.001, **options).fit(X[:41], y[:41])
    twins = [clone(model).fit(X[:41], y[:41]), pickle.loads(pickle.dumps(model))]
    before = model.predict(X)
    for one in twins:
        np.testing.assert_array_equal(one.predict(X), before)
    for one in (model, *twins):
        one.partial_fit(X[41:], y[41:])
        np.testing.assert_array_equal(one.predict(X), model.predict(X))
        np.testing.assert_array_equal(one.targets_, model.targets_)


@pytest.mark.parametrize(
    "model",
    [
        rt.OnlineKernelRegressor(width=1.0),
        rt.OnlineKernelClassifier(width=1.0),
        rt.StreamingRidgeRegressor(gamma=0.3),
        rt.StreamingRidgeClassifier(gamma=0.3),
    ],
    ids=lambda model: type(model).__name__,
)
def test_frames_give_the_names_of_features(model):
    X, y, labels = make_data()
    frame = pl.DataFrame(X, schema=["a", "b", "c"])
    targets = pl.Series(labels if is_classifier(model) else y)
    model.fit(frame, targets)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    ask = "decision_function" if is_classifier(model) else "predict"
    same = clone(model).fit(X, targets.to_numpy())
    np.testing.assert_allclose(
        getattr(model, ask)(frame), getattr(same, ask)(X), rtol=0, atol=1e-12
    )
    other = frame.rename({"a": "z"})
    for refused in (model.predict, lambda frame: model.partial_fit(frame, targets)):
        with pytest.raises(ValueError, match="[Ff]eature names"):
            refused(other)
