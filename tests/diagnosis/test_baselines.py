"""Simple predictors and batch models of recent rows, against formulas written out."""

import numpy as np
import pytest
import torch

import retarget as rt
from retarget.diagnosis.measure.baselines import baseline_errors
from retarget.diagnosis.measure.compare import Split, split
from retarget.diagnosis.options import Options, batch_model_name
from support.diagnosis_streams import as_stream, both_kernels, classes, drifting
from support.problems import make_stream


def weighted_ridge(X, Y, weights, gamma):
    W = np.diag(weights)
    return np.linalg.solve(X.T @ W @ X + gamma * np.eye(X.shape[1]), X.T @ W @ Y)


@pytest.mark.parametrize("number", [0, 1])
def test_the_weighted_offline_learner_of_a_part_is_weighted_ridge_regression(number):
    problem, rows, gamma = make_stream(31, 3, seed=4), slice(5, 28), 0.37
    X, Y = problem.features[rows], problem.Y[rows]
    part = both_kernels(problem)[number].part(rows)
    assert len(part) == 23
    queries = np.random.default_rng(0).normal(size=(5, X.shape[1]))
    some = torch.rand(23, generator=torch.Generator().manual_seed(1)).double() + 0.05
    for given, weights in ((some, some), (some**0, some**0), (None, some**0)):
        expected = weighted_ridge(X, Y, weights.numpy(), gamma)
        found = part.offline(gamma, given)
        predicted = part.predict(torch.from_numpy(queries), found.coefficients)
        np.testing.assert_allclose(predicted, queries @ expected, atol=1e-10)
        np.testing.assert_allclose(X.T @ found.dual.numpy(), expected, atol=1e-10)
    alone = both_kernels(as_stream(X, Y))[number]
    scores = [kernel.leave_one_out(torch.tensor([0.1, 1.0]), 0)[0] for kernel in (part, alone)]
    np.testing.assert_allclose(*scores, atol=1e-10)


def test_the_mean_and_the_last_value():
    stream = drifting(50, 2)
    parted = split(stream, None, Options())
    kernel = both_kernels(parted.stream)[0]
    made = baseline_errors(kernel, parted, Options())
    assert list(made) == ["the mean", "the last value"]  # too few rows for a recent part
    np.testing.assert_allclose(made["the mean"], stream.Y[40:] - stream.Y[:40].mean(0))
    np.testing.assert_allclose(made["the last value"], stream.Y[40:] - stream.Y[39:49])
    on_the_way = Split(stream, None, "progressive")
    made = baseline_errors(both_kernels(stream)[0], on_the_way, Options())
    for row in (1, 7, 49):
        expected = stream.Y[row] - stream.Y[:row].mean(0)
        np.testing.assert_allclose(made["the mean"][row], expected, atol=1e-12)
        assert (made["the last value"][row] == stream.Y[row] - stream.Y[row - 1]).all()
    assert (made["the mean"][0] == stream.Y[0]).all()  # nothing is known then
    labels = split(classes(60), None, Options(evaluation="random"))
    made = baseline_errors(both_kernels(labels.stream)[0], labels, Options())
    assert list(made) == ["the most frequent class"]  # random rows have no row before them


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("reference", ["window:25", "discount:0.9"])
def test_batch_models_of_recent_rows(number, reference):
    stream = drifting(120, 2, dimensions=3)
    options = Options(reference=reference, gamma=0.4)
    recent, name = options.batch_model, batch_model_name(options.batch_model)
    rows = recent.window or 44  # 0.9^44 is the first below 1%

    def literal(start, stop):
        """Errors on rows from `start` on, of the model of the rows before."""
        ages = np.arange(start)[::-1]
        weights = np.where(ages < rows, recent.discount**ages, 0.0)
        W = weighted_ridge(stream.X[:start], stream.Y[:start], weights, 0.4)
        return stream.Y[start:stop] - stream.X[start:stop] @ W

    parted = split(stream, None, options)
    made = baseline_errors(both_kernels(parted.stream)[number], parted, options)[name]
    np.testing.assert_allclose(made, literal(len(parted.stream), 120), atol=1e-9)
    # progressively: of the rows before, each time that it is fitted anew
    on_the_way = Split(stream, None, "progressive")
    made = baseline_errors(both_kernels(stream)[number], on_the_way, options)[name]
    starts = np.unique(np.linspace(2, 120, 40, endpoint=False, dtype=int))
    start, stop = starts[30], starts[31]
    np.testing.assert_allclose(made[start:stop], literal(start, stop), atol=1e-9)


def test_under_drift_the_batch_model_is_called_what_it_is():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(650, 2))
    sign = np.where(np.arange(650) < 390, 1.0, -1.0)  # what the features mean turns around
    y = sign * X[:, 0] + 0.1 * rng.normal(size=650)
    found = rt.diagnose(X, y, kernel="linear", lr=0.05)
    mean, offline = found.baselines[0].error.value, found.score("offline").error.value
    assert offline > 0.8 * mean  # all of the past is hardly better than nothing
    assert found.excess.high < 0  # and the online learner, which follows, is far better
    words = " ".join(found.verdict.findings)
    assert "The stream drifts" in words
    assert "window:52" in words
    fair = rt.diagnose(X, y, kernel="linear", lr=0.05, reference="window:52")
    recent = next(one for one in fair.baselines if "last 52" in one.name)
    excess = fair.score("online").error.value / recent.error.value - 1
    assert fair.excess.value == pytest.approx(excess)
    assert fair.excess.value > found.excess.value + 0.5


def test_a_stream_sorted_by_class():
    stream = classes(300, 5, dimensions=4)
    labels = np.array(list("abcde"))[stream.Y.argmax(1)]
    found = rt.diagnose(stream.X, labels)  # holds out rows of every class
    assert (found.evaluation, found.unseen) == ("random", ())
    assert set(found.stream.target_names) == set("abcde")
    assert any("--evaluation last" in note for note in found.stream.notes)
    assert found.excess.low > 0.5  # forgetting is seen
    advice = " ".join(found.verdict.recommendations)
    assert "No correction is needed" not in advice
    assert "random order" in advice
    asked = rt.diagnose(stream.X, labels, evaluation="last")
    assert (asked.evaluation, asked.unseen) == ("last", ("e",))
    assert asked.verdict.findings[0].startswith("WARNING")
    assert "--evaluation random" in asked.verdict.recommendations[0]
    found = rt.diagnose(stream.X, labels, evaluation="progressive")
    dual = found.lr.value * found.prequential  # of plain SGD
    said = found.stream.Y - (found.effective - found.gamma.value * dual)
    assert found.hindsight == pytest.approx(np.square(said).mean(), rel=1e-6)
    assert found.hindsight > 2 * found.prequential_error
    assert any("hides what was forgotten" in finding for finding in found.verdict.findings)


def test_an_intercept_is_a_constant_feature():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = 5 + X[:, 0] + 0.1 * rng.normal(size=80)
    options = {"kernel": "linear", "lr": 0.05, "gamma": 0.1, "standardise": False}
    found = rt.diagnose(X, y, **options, intercept=True)
    constant = np.column_stack([X, np.ones(80)])
    w = np.zeros(3)
    for x, target in zip(constant[:64], y[:64], strict=True):
        w += 0.05 * (target - x @ w) * x
    expected = np.mean((y[64:] - constant[64:] @ w) ** 2)
    assert found.score("online").error.value == pytest.approx(expected)
    assert "intercept" in found.kernel
