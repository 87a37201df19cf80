"""What is learned, against KernelRidge, torch.optim.SGD and kernel SGD step by step."""

import numpy as np
import pytest
from hypothesis import given
from scipy.special import expit, softmax
from sklearn.datasets import make_classification
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression

import retarget as rt
from retarget.errors import InvalidInputError
from retarget.estimators import online
from retarget.kernels import stationary
from support.oracles import literal, simulation
from support.problems import assert_same, gammas, problems

LEARNERS = [
    {"lr": 0.3},
    {"lr": 0.2, "batch_size": 4, "reduction": "sum"},
    {"lr": 0.9, "batch_size": 4, "reduction": "mean"},
    {"lr": 0.05, "batch_size": 3, "reduction": "sum", "momentum": 0.8},
    {
        "lr": 0.05,
        "batch_size": 3,
        "reduction": "sum",
        "momentum": 0.8,
        "nesterov": True,
        "weight_decay": 0.1,
    },
    {"lr": 0.2, "weight_decay": 0.3},
    {
        "lr": [0.3 / (1 + step) for step in range(9)],
        "batch_size": 5,
        "reduction": "sum",
        "momentum": 0.5,
    },
]


def make_data(n=43, d=3, outputs=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    Y = rng.normal(size=(n, outputs or 1)) + np.sin(X[:, :1])
    return X, Y if outputs else Y[:, 0], rng.normal(size=(7, d))


@pytest.mark.parametrize("outputs", [None, 2])
@pytest.mark.parametrize("options", LEARNERS, ids=str)
def test_corrections_are_kernel_sgd_on_their_targets(options, outputs):
    X, Y, queries = make_data(outputs=outputs)
    learner, kernel = rt.SGD(**options), rt.RBF(1.1)
    blocks = {"block_size": 2 * learner.batch_size, "ridge": 0.0 if outputs else 0.3}
    targets = {}
    for correction, tolerance in (("none", 1e-12), ("exact", 1e-8), ("iterative", 1e-9)):
        given = {"width": 1.1, "gamma": 0.4, "correction": correction} | blocks | options
        model = rt.OnlineKernelRegressor(**given).fit(X, Y)
        targets[correction] = model.targets_
        expected = kernel(queries, X) @ literal.kernel_sgd(kernel(X), model.targets_, learner)[0]
        assert_same(model.predict(queries), expected, tolerance)
        assert model.predict(queries).shape == queries.shape[:1] + Y.shape[1:]
    np.testing.assert_array_equal(targets["none"], Y)
    assert_same(targets["iterative"], rt.iterative_targets(kernel(X), Y, learner, 0.4, **blocks))


@given(problem=problems(), gamma=gammas)
def test_effective_targets_are_those_of_the_offline_learner(problem, gamma):
    stream, learner = problem
    options = learner.to_dict()
    model = rt.OnlineKernelRegressor("linear", gamma=gamma, **options)
    model.fit(stream.features, stream.Y)
    expected = rt.effective_targets(stream.K, stream.Y, learner, gamma)
    assert_same(model.effective_targets(), expected)
    offline = KernelRidge(alpha=gamma).fit(stream.features, model.effective_targets())
    assert_same(model.predict(stream.queries), offline.predict(stream.queries), 1e-8)


@pytest.mark.parametrize(("gamma", "outputs"), [(0.02, None), (30.0, 3)])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"width": 0.8}, {"kernel": "rbf", "gamma": 1 / 0.8**2}),
        ({"kernel": rt.RBF(1.2)}, {"kernel": "rbf", "gamma": 1 / 1.2**2}),
        ({"kernel": "linear"}, {"kernel": "linear"}),
        ({"kernel": "laplacian"}, {"kernel": "laplacian"}),
        ({"kernel": lambda A, B: (1 + A @ B.T) ** 2}, {"kernel": "poly", "degree": 2, "gamma": 1}),
    ],
    ids=["rbf", "RBF", "linear", "laplacian", "a function"],
)
def test_exactly_corrected_is_kernel_ridge(ours, theirs, gamma, outputs):
    X, Y, queries = make_data(outputs=outputs)
    model = rt.OnlineKernelRegressor(gamma=gamma, correction="exact", **ours).fit(X, Y + 5)
    ridge = KernelRidge(alpha=gamma, **theirs).fit(X, Y + 5)
    assert_same(model.predict(queries), ridge.predict(queries))
    assert_same(model.dual_coef_, ridge.dual_coef_)
    assert_same(model.effective_targets(), Y + 5)


def test_the_block_size_that_is_chosen():
    X, Y, _ = make_data(n=150)
    options = {
        "width": 1.0,
        "lr": 0.1,
        "batch_size": 9,
        "reduction": "sum",
        "correction": "iterative",
    }
    default = rt.OnlineKernelRegressor(**options).fit(X, Y)
    named = rt.OnlineKernelRegressor(block_size=72, **options).fit(X, Y)
    np.testing.assert_array_equal(default.targets_, named.targets_)


def test_the_width_and_the_rate_for_it(monkeypatch):
    X, Y, _ = make_data()
    X[1] = X[0]  # samples that are the same have no say
    distances = np.linalg.norm(X[:, None] - X[None], axis=2)[np.triu_indices(len(X), 1)]
    model = rt.OnlineKernelRegressor().fit(X, Y)
    assert model.width_ == pytest.approx(np.median(distances[distances > 0]), abs=1e-12)
    assert model.width == "auto"
    assert model.kernel_.width == model.width_
    assert model.lr_ == pytest.approx(1.0)
    assert model.predict(X[-1:]) == pytest.approx(Y[-1:])
    assert rt.OnlineKernelRegressor("linear", width=3.0).fit(X, Y).width_ is None
    monkeypatch.setattr(stationary, "MEDIAN_SAMPLES", 15)  # of a long stream, evenly spaced ones
    widths = [rt.OnlineKernelRegressor().fit(part, part[:, 0]).width_ for part in (X, X[::3])]
    assert widths[0] == widths[1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"batch_size": 5, "reduction": "sum", "momentum": 0.6, "nesterov": True},
        {"batch_size": 5, "reduction": "mean", "weight_decay": 0.2},
    ],
    ids=str,
)
def test_an_automatic_rate_is_half_the_stable_one(options, monkeypatch):
    monkeypatch.setitem(rt.arrays.PANEL_ROWS, "cpu", 11)  # several panels
    X, Y, _ = make_data()
    learner = rt.SGD(lr=1.0, **options)
    curvature = 0.0
    for start in range(0, len(X), learner.batch_size):
        batch = X[start : start + learner.batch_size]
        top = np.linalg.eigvalsh(batch @ batch.T)[-1]
        top /= len(batch) if learner.reduction == "mean" else 1
        curvature = max(curvature, top + learner.weight_decay)
    model = rt.OnlineKernelRegressor("linear", **options).fit(X, Y)
    assert model.lr_ == pytest.approx((1 - learner.momentum) / curvature, rel=1e-12)
    assert model.learner_ == rt.SGD(lr=model.lr_, **options)
    assert model.lr == "stable"


def test_samples_of_zeros_are_no_error():
    model = rt.OnlineKernelRegressor("linear").fit(np.zeros((3, 2)), np.ones(3))
    assert model.lr_ == 1.0
    np.testing.assert_array_equal(model.predict(np.ones((2, 2))), 0.0)


def test_precision_of_inputs_and_many_queries(monkeypatch):
    X, Y, queries = make_data()
    model = rt.OnlineKernelRegressor(width=1.0).fit(X, Y)
    exact = model.predict(queries)
    X, Y = X.astype(np.float32), Y.astype(np.float32)
    single = rt.OnlineKernelRegressor(width=1.0).fit(X, Y)
    assert single.dual_coef_.dtype == single.X_fit_.dtype == np.float32
    assert single.predict(queries).dtype == np.float32
    assert_same(single.predict(queries), exact, 1e-4)
    for entries in (2 * len(X), 1):
        monkeypatch.setattr(online, "QUERY_ENTRIES", entries)
        assert_same(model.predict(queries), exact, 1e-14)


@pytest.mark.parametrize("correction", ["none", "exact", "iterative"])
def test_inputs_are_left_alone_and_not_kept(correction):
    given, (X, Y, queries) = make_data(), make_data()
    model = rt.OnlineKernelRegressor(correction=correction).fit(X, Y)
    before = model.predict(queries), model.targets_.copy()
    for changed, first in zip((X, Y, queries), given, strict=True):
        np.testing.assert_array_equal(changed, first)
    X += 1.0
    Y += 1.0
    np.testing.assert_array_equal(model.predict(queries), before[0])
    np.testing.assert_array_equal(model.targets_, before[1])
    np.testing.assert_array_equal(model.X_fit_, given[0])


CE = "cross-entropy"


def problem(classes, seed=0):
    return make_classification(
        120, 6, n_informative=5, n_redundant=0, n_classes=classes, random_state=seed
    )


@pytest.mark.parametrize("classes", [2, 4])
def test_uncorrected_it_is_torch_sgd_on_cross_entropy(classes):
    X, y = problem(classes)
    options = {
        "lr": 0.02,
        "batch_size": 7,
        "momentum": 0.6,
        "reduction": "mean",
    }
    model = rt.OnlineKernelClassifier("linear", loss=CE, **options).fit(X, y)
    run = simulation.train(X, np.eye(classes)[y], rt.SGD(**options), loss=CE)
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
    run = simulation.train(X, model.targets_, rt.SGD(lr=0.5), loss=CE)
    assert_same(X @ run.weights, peer.decision_function(X), 1e-7)
    assert_same(model.effective_targets(), np.eye(classes)[y], 1e-9)


def test_two_classes_have_logistic_probabilities():
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


def test_a_regressor_predicts_taught_probabilities():
    X, _ = problem(2)
    p = expit(X[:, 0])
    model = rt.OnlineKernelRegressor("linear", loss=CE, gamma=1e-6, correction="exact").fit(X, p)
    assert_same(model.predict(X), p, 1e-5)
    with pytest.raises(InvalidInputError, match="holds the label"):
        rt.OnlineKernelRegressor(loss=CE).fit(X, np.arange(len(X)))
