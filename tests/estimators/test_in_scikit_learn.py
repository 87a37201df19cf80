"""The estimators inside scikit-learn's own tools, as docs/integrations/sklearn.md promises."""

import numpy as np
import pytest
import sklearn
from sklearn import ensemble, model_selection
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import permutation_importance
from sklearn.linear_model import Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import retarget as rt

EXACT = {"correction": "exact", "gamma": 0.1}
ENTROPY = {"correction": "iterative", "loss": "cross-entropy"}
RANDOM = {"kernel": "rbf", "features": 60}
RIDGE = rt.StreamingRidgeClassifier(**RANDOM)


def named(quick, *slow):
    slow = [pytest.param(each, marks=pytest.mark.slow) for each in slow]
    return pytest.mark.parametrize("estimator", [quick, *slow], ids=lambda each: repr(each)[:30])


regressors = named(rt.OnlineKernelRegressor(**EXACT), rt.StreamingRidgeRegressor(**RANDOM))
CLASSIFIERS = RIDGE, rt.OnlineKernelClassifier(**EXACT), rt.OnlineKernelClassifier(**ENTROPY)
classifiers = named(*CLASSIFIERS)
rng = np.random.default_rng(0)
X = rng.normal(size=(80, 4))
Y = np.sin(X[:, 0]) + X[:, 1]
LABELS = (Y > 0).astype(int) + (X[:, 2] > 1)


def searches_and_curves(estimator):
    targets = LABELS if is_classifier(estimator) else Y
    pipeline = make_pipeline(
        make_column_transformer((StandardScaler(), [0, 1]), remainder="passthrough"), estimator
    )
    name = f"{type(estimator).__name__.lower()}__gamma"
    search = model_selection.GridSearchCV(pipeline, {name: [0.1, 1.0]}, cv=3).fit(X, targets)
    assert search.best_score_ > 0.7
    halving = model_selection.HalvingGridSearchCV(
        estimator, {"gamma": [0.1, 1.0]}, cv=2, random_state=0
    )
    assert halving.fit(X, targets).best_score_ > 0.5
    predicted = model_selection.cross_val_predict(clone(estimator), X, targets, cv=3)
    assert predicted.shape == (80,)
    fitted = clone(estimator).fit(X, targets)
    importance = permutation_importance(fitted, X, targets, n_repeats=2, random_state=0)
    assert importance.importances_mean[:2].min() > importance.importances_mean[3]
    # portion by portion, where an automatic width or rate is that of the first portion
    _, _, scores = model_selection.learning_curve(
        clone(estimator), X, targets, cv=3, exploit_incremental_learning=True
    )
    assert scores[-1].mean() > 0.7
    assert FrozenEstimator(fitted).predict(X).shape == (80,)


@regressors
def test_what_regressors_are_put_into(estimator):
    searches_and_curves(estimator)
    transformed = TransformedTargetRegressor(clone(estimator), transformer=StandardScaler())
    assert transformed.fit(X, 100 + Y).score(X, 100 + Y) > 0.9
    both = np.stack([Y, -Y], 1)
    many = MultiOutputRegressor(clone(estimator))
    for rows in np.array_split(np.arange(80), 3):
        many.partial_fit(X[rows], both[rows])
    assert many.score(X, both) > 0.9
    for kind in (ensemble.BaggingRegressor, ensemble.AdaBoostRegressor):
        made = kind(clone(estimator), n_estimators=3, random_state=0)
        assert made.fit(X, Y).score(X, Y) > 0.9


@classifiers
def test_what_classifiers_are_put_into(estimator):
    searches_and_curves(estimator)
    pair = [("one", clone(estimator)), ("two", clone(RIDGE))]
    for made in (
        CalibratedClassifierCV(clone(estimator), cv=3),
        ensemble.VotingClassifier(pair),
        ensemble.StackingClassifier(pair),
        ensemble.BaggingClassifier(
            clone(estimator).set_params(gamma=0.1), n_estimators=3, random_state=0
        ),
    ):
        assert made.fit(X, LABELS).score(X, LABELS) > 0.8
    binary = model_selection.TunedThresholdClassifierCV(clone(estimator), cv=3).fit(X, LABELS > 0)
    assert binary.score(X, LABELS > 0) > 0.8
    one, many = OneVsRestClassifier(clone(estimator)), MultiOutputClassifier(clone(estimator))
    both, classes = np.stack([LABELS, LABELS], 1), np.arange(3)
    for rows in np.array_split(np.arange(80), 2):
        one.partial_fit(X[rows], LABELS[rows], classes=classes)
        many.partial_fit(X[rows], both[rows], classes=[classes, classes])
    assert one.score(X, LABELS) > 0.8
    assert many.score(X, both) > 0.7


def test_few_rows_in_bags_need_a_ridge():
    """Copies of a row predict each other, so that cross-validation finds that no ridge is best."""
    new = np.random.default_rng(1).normal(size=(1000, 4))
    labels = (np.sin(new[:, 0]) + new[:, 1] > 0).astype(int) + (new[:, 2] > 1)
    scores = {}
    for gamma in ("auto", 0.1):
        one = clone(RIDGE).set_params(gamma=gamma)
        bag = ensemble.BaggingClassifier(one, n_estimators=3, random_state=0).fit(X, LABELS)
        scores[gamma] = bag.score(new, labels)
        if gamma == "auto":  # about 50 different rows, 60 features
            assert max(each.gamma_ for each in bag.estimators_) < 1e-6
    assert scores["auto"] < 0.7
    assert scores[0.1] > 0.75
    assert clone(RIDGE).fit(X, LABELS).score(new, labels) > 0.75  # without copies, auto is fine


def test_boosting_needs_weights():
    boosted = ensemble.AdaBoostClassifier(RIDGE, n_estimators=3, random_state=0).fit(X, LABELS)
    assert boosted.score(X, LABELS) > 0.8
    with pytest.raises(ValueError, match="doesn't support sample_weight"):
        ensemble.AdaBoostClassifier(CLASSIFIERS[1], n_estimators=3).fit(X, LABELS)


def test_weights_are_routed():
    weights = rng.uniform(0.1, 3, size=80)
    with sklearn.config_context(enable_metadata_routing=True):
        ridge = rt.StreamingRidgeRegressor(gamma=0.7).set_fit_request(sample_weight=True)
        ridge = ridge.set_score_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        pipeline = make_pipeline(scaler, ridge).fit(X, Y, sample_weight=weights)
        score = pipeline.score(X, Y, sample_weight=weights)
        with pytest.raises(ValueError, match="not explicitly set as requested"):
            make_pipeline(scaler, rt.StreamingRidgeRegressor()).fit(X, Y, sample_weight=weights)
        part = rt.StreamingRidgeClassifier(gamma=0.7).set_partial_fit_request(sample_weight=True)
        many = MultiOutputClassifier(part)
        many.partial_fit(X, LABELS[:, None], classes=[np.arange(3)], sample_weight=weights)
    scaled = StandardScaler().fit_transform(X)
    expected = Ridge(alpha=0.7).fit(scaled, Y, sample_weight=weights)
    np.testing.assert_allclose(pipeline.predict(X), expected.predict(scaled), rtol=0, atol=1e-10)
    assert score == pytest.approx(expected.score(scaled, Y, sample_weight=weights), abs=1e-10)
    assert not hasattr(rt.OnlineKernelRegressor(), "set_fit_request")
    plain, weighted = (
        rt.StreamingRidgeClassifier(gamma=0.7).fit(X, LABELS, each).coef_
        for each in (None, weights)
    )
    np.testing.assert_allclose(many.estimators_[0].coef_, weighted, rtol=0, atol=1e-12)
    assert np.abs(weighted - plain).max() > 1e-3  # they count
