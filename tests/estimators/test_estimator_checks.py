"""What scikit-learn asks of every estimator, and what its users do with one."""

import os
import pickle
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, StratifiedKFold, TimeSeriesSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import retarget as rt
from retarget.kernels import SklearnKernel

CORRECTIONS = ["none", "exact", "iterative"]
SETTINGS = [
    *((rt.OnlineKernelRegressor, {"correction": correction}) for correction in CORRECTIONS),
    (rt.OnlineKernelRegressor, {"batch_size": 3, "momentum": 0.5, "nesterov": True}),
    (rt.OnlineKernelClassifier, {"correction": "exact"}),
    (
        rt.OnlineKernelClassifier,
        {"correction": "iterative", "kernel": "linear", "batch_size": 2, "block_size": 4},
    ),
    *(
        (rt.OnlineKernelClassifier, {"correction": correction, "loss": "cross-entropy"})
        for correction in CORRECTIONS
    ),
]
CASES = [
    *SETTINGS,
    *(
        (estimator, settings)
        for estimator in (rt.StreamingRidgeRegressor, rt.StreamingRidgeClassifier)
        for settings in (
            {},
            {"gamma": 0.1, "fit_intercept": False},
            {"features": "rbf", "memory": 40},
        )
    ),
]


def polynomial(A, B):
    return (1 + A @ B.T) ** 2


@pytest.mark.parametrize(("estimator", "settings"), CASES, ids=str)
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


def test_no_sample_weight():
    X = np.eye(4)
    with pytest.raises(TypeError, match="sample_weight"):
        rt.OnlineKernelRegressor().fit(X, X[0], sample_weight=np.ones(4))


# --- what users do


def make_data(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, np.sin(X[:, 0]) + X[:, 1], np.where(X[:, 0] > 0, "up", "down")


def test_grid_search_over_a_pipeline():
    X, y, _ = make_data()
    pipeline = make_pipeline(StandardScaler(), rt.OnlineKernelRegressor(width=2.0, gamma=0.1))
    grid = {"onlinekernelregressor__correction": CORRECTIONS}
    search = GridSearchCV(pipeline, grid, cv=TimeSeriesSplit(3)).fit(X, y)
    assert search.best_params_ == {"onlinekernelregressor__correction": "exact"}
    scores = search.cv_results_["mean_test_score"]
    assert scores[0] < scores[1]
    # the folds of the search are those of a loop by hand
    train, test = next(iter(TimeSeriesSplit(3).split(X)))
    scaler = StandardScaler().fit(X[train])
    model = rt.OnlineKernelRegressor(width=2.0, gamma=0.1, correction="iterative")
    model.fit(scaler.transform(X[train]), y[train])
    by_hand = model.score(scaler.transform(X[test]), y[test])
    assert search.cv_results_["split0_test_score"][2] == pytest.approx(by_hand, abs=1e-12)


def test_cross_validation_of_a_classifier():
    X, _, labels = make_data()
    model = rt.OnlineKernelClassifier(kernel="laplacian", correction="exact", gamma=0.1)
    scores = cross_val_score(model, X, labels, cv=3)
    for score, (train, test) in zip(scores, StratifiedKFold(3).split(X, labels), strict=True):
        assert score == clone(model).fit(X[train], labels[train]).score(X[test], labels[test])
        assert score > 0.7


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize(
    "kernel",
    ["rbf", polynomial, SklearnKernel("poly", degree=2)],
    ids=["a name", "a function", "scikit-learn's"],
)
def test_clones_and_pickles_predict_the_same_and_go_on_alike(kernel, correction):
    X, y, _ = make_data()
    options = {"kernel": kernel, "batch_size": 4, "block_size": 8, "correction": correction}
    # a rate at which a polynomial kernel, whose last samples are larger, is stable too
    model = rt.OnlineKernelRegressor(gamma=0.3, ridge=0.2, lr=0.001, **options).fit(X[:41], y[:41])
    again = clone(model).fit(X[:41], y[:41])
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    loaded = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    for one in (model, loaded):
        one.partial_fit(X[41:], y[41:])
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(loaded.targets_, model.targets_)


def test_frames_give_the_names_of_features():
    X, y, labels = make_data()
    frame = pl.DataFrame(X, schema=["a", "b", "c"])
    for model, targets in (
        (rt.OnlineKernelRegressor(), pl.Series(y)),
        (rt.OnlineKernelClassifier(), pl.Series(labels)),
    ):
        model.fit(frame, targets)
        assert model.feature_names_in_.tolist() == ["a", "b", "c"]
        expected = clone(model).fit(X, targets.to_numpy()).predict(X)
        np.testing.assert_array_equal(model.predict(frame), expected)
        with pytest.raises(ValueError, match="[Ff]eature names"):
            model.predict(frame.rename({"a": "z"}))
        with pytest.raises(ValueError, match="[Ff]eature names"):
            model.partial_fit(frame.rename({"a": "z"}), targets)
