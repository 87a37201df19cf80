"""Simple predictors and batch models of recent rows, against formulas written out."""

import numpy as np
import pytest
import torch

import retarget as rt
from retarget.diagnosis.facts import enough, evidence, facts
from retarget.diagnosis.measure.baselines import baseline_predictions
from retarget.diagnosis.measure.compare import compare, rulers
from retarget.diagnosis.measure.holdout import Split, split
from retarget.diagnosis.measuring import diagnose_split
from retarget.diagnosis.metrics import METRICS
from support.diagnosis_options import options_for
from support.diagnosis_streams import as_stream, both_kernels, classes, drifting
from support.problems import make_stream


def weighted_ridge(X, Y, weights, gamma):
    W = np.diag(weights)
    return np.linalg.solve(X.T @ W @ X + gamma * np.eye(X.shape[1]), X.T @ W @ Y)


@pytest.mark.parametrize("number", [0, 1])
def test_offline_learners_of_a_part(number):
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
    stream, options = drifting(50, 2), options_for(evaluation="next", test_share=0.2)
    parted = split(stream, None, options)
    kernel = both_kernels(parted.stream)[0]
    made = baseline_predictions(kernel, parted, "next", options)
    assert list(made) == ["constant", "last"]
    np.testing.assert_allclose(made["constant"], np.tile(stream.Y[:40].mean(0), (10, 1)))
    np.testing.assert_allclose(made["last"], stream.Y[39:49])
    made = baseline_predictions(
        both_kernels(stream)[0], Split(stream, {}), "progressive", options_for()
    )
    for row in (1, 7, 49):
        np.testing.assert_allclose(made["constant"][row], stream.Y[:row].mean(0), atol=1e-12)
        assert (made["last"][row] == stream.Y[row - 1]).all()
    assert (made["constant"][0] == 0).all()  # nothing is known then
    labels = split(classes(60), None, options_for(evaluation="whole"))
    made = baseline_predictions(both_kernels(labels.stream)[0], labels, "whole", options_for())
    assert list(made) == ["constant"]  # rows from all over have no row before them


def test_the_most_frequent_of_balanced_classes():
    labels = np.tile(np.arange(7), 60)
    X = np.random.default_rng(0).normal(size=(420, 2))
    stream = as_stream(X, np.eye(7)[labels], "classification")
    parted = split(stream, None, options_for(evaluation="whole"))
    (ruler,) = rulers(parted, options_for())
    kernel = both_kernels(parted.stream)[0]
    made = baseline_predictions(kernel, parted, "whole", options_for())
    lost = {"online": np.zeros_like(ruler.truth.Y)}
    found = compare(lost, made, ruler, parted, options_for())
    assert found.baselines[0].accuracy.value == pytest.approx(6 / 42)


def test_useless_compared_with_the_spread():
    """Where a rare class does not come, its share is nearly without an error."""
    labels = np.append(np.zeros(198, dtype=int), [1, 1])
    stream = as_stream(np.ones((200, 1)), np.eye(2)[labels], "classification")
    parted = Split(stream, {"test": stream.part(slice(0, 40))})
    (ruler,) = rulers(parted, options_for())
    share, half = np.tile(stream.Y.mean(axis=0), (40, 1)), np.full((40, 2), 0.5)
    said = {"online": half, "offline": share, "iterative": 0.4 * half + 0.6 * share}
    found = compare(said, {"constant": share}, ruler, parted, options_for())
    assert found.baselines[0].online.value > 1000
    assert found.effect["iterative"].value == pytest.approx(0.16 - 1, abs=0.01)
    lost = {**said, "online": 50 * half}
    found = compare(lost, {"constant": share}, ruler, parted, options_for())
    assert np.isnan(found.effect["iterative"].value)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("aim", ["window:25", "discount:0.9"])
def test_batch_models_of_recent_rows(number, aim):
    stream = drifting(120, 2, dimensions=3)
    options = options_for(aim=aim, gamma=0.4, evaluation="next", test_share=0.2)
    recent = options.batch_model
    rows = recent.window or 44  # 0.9^44 is the first below 1%

    def literal(start, stop):
        """Predictions for rows from `start` on, of the model of the rows before."""
        ages = np.arange(start)[::-1]
        weights = np.where(ages < rows, recent.discount**ages, 0.0)
        W = weighted_ridge(stream.X[:start], stream.Y[:start], weights, 0.4)
        return stream.X[start:stop] @ W

    parted = split(stream, None, options)
    kernel = both_kernels(parted.stream)[number]
    made = baseline_predictions(kernel, parted, "next", options)["recent"]
    np.testing.assert_allclose(made, literal(len(parted.stream), 120), atol=1e-9)
    # progressively: of the rows before, each time that it is fitted anew
    kernel, whole = both_kernels(stream)[number], Split(stream, {})
    made = baseline_predictions(kernel, whole, "progressive", options)["recent"]
    starts = np.unique(np.linspace(2, 120, 40, endpoint=False, dtype=int))
    start, stop = starts[30], starts[31]
    np.testing.assert_allclose(made[start:stop], literal(start, stop), atol=1e-9)


@pytest.mark.parametrize(("rows", "chunk"), [(300, 30), (590, 30), (700, 35)])
@pytest.mark.parametrize("metric", ["squared", "absolute"])
def test_drift_compares_models_of_equal_points(rows, chunk, metric):
    rng = np.random.default_rng(rows)
    stream = as_stream(rng.normal(size=(rows, 3)), np.zeros((rows, 2)), scales=[2.0, 0.3])
    turned = np.linspace(0, 4, rows)[:, None]  # what the features mean turns around
    stream.Y[:] = np.cos(turned) * stream.X[:, :2] + np.sin(turned) * stream.X[:, 1:]
    options = options_for(gamma=0.7, kernel="linear", metric=metric, lr=0.05)
    found = diagnose_split(Split(stream, {"test": stream.part(slice(0, 40))}), options).drift

    def loss(first, start):
        """The losses on a chunk of the model of the rows between two places."""
        A, B = stream.X[first:start], stream.Y[first:start]
        W = weighted_ridge(A, B, np.ones(len(A)), 0.7)
        chunk_rows = slice(start, start + chunk)
        gaps = (stream.Y[chunk_rows] - stream.X[chunk_rows] @ W) * stream.target_scales
        return (np.abs(gaps) if metric == "absolute" else gaps**2).mean(axis=1)

    starts = range(4 * chunk, rows, chunk)
    recent = np.concatenate([loss(start - 2 * chunk, start) for start in starts])
    of_all = np.concatenate([loss(0, start) for start in starts])
    assert (found.window, found.refits) == (2 * chunk, len(starts))
    assert found.effect.value == pytest.approx(recent.mean() / of_all.mean() - 1, rel=1e-8)
    gained = np.array([(of_all - recent)[place:].sum() for place in range(len(recent))])
    assert found.onset == 4 * chunk + gained.argmax() + 1
    assert found.effect.low < found.effect.value < found.effect.high < 0


def test_the_fair_batch_model_under_drift():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1400, 2))
    angle = np.linspace(0, 9, 1400)  # what the features mean turns around
    y = np.cos(angle) * X[:, 0] + np.sin(angle) * X[:, 1] + 0.1 * rng.normal(size=1400)
    found = rt.diagnose(X, y, kernel="linear", lr=0.05, evaluation="next")
    assert found.answer("next").excess.high < 0  # the online learner, which follows, is better
    assert found.drift.effect.high < -0.2
    kinds = {one.kind: one for one in found.findings}
    assert kinds["drift"].value == found.drift.window
    fair = rt.diagnose(X, y, kernel="linear", lr=0.05, aim="window:56", evaluation="next")
    coming = fair.answer("next")
    excess = coming.score("online").error.value / coming.baseline("recent").error.value - 1
    assert coming.excess.value == pytest.approx(excess)
    assert coming.excess.value > found.answer("next").excess.value + 0.4


@pytest.mark.parametrize("seed", [1, 2])
def test_a_stream_that_changes_once(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(600, 5))
    y = X @ rng.normal(size=5) + 0.1 * rng.normal(size=600)
    y[300:] *= -1
    diagnosis = rt.diagnose(X, y)
    assert -1 <= diagnosis.drift.effect.low < diagnosis.drift.effect.high < 0
    # in rows of the array, held-out ones too: the chunk of the change, and the next
    assert 300 < diagnosis.drift.onset <= 300 + 2 * 30 / 0.8
    assert "drift" in {finding.kind for finding in diagnosis.findings}
    assert facts(evidence(diagnosis)).follows


def test_where_there_is_no_drift():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1000, 2))
    asked = {"evaluation": "next"}
    still = rt.diagnose(X, X[:, 0] + 0.1 * rng.normal(size=1000), kernel="linear", **asked)
    assert "drift" not in {one.kind for one in still.findings}
    time = np.arange(1000.0)[:, None]  # a batch model of the time extrapolates badly
    wave = np.sin(2 * np.pi * time[:, 0] / 37) + 0.3 * rng.normal(size=1000)
    found = rt.diagnose(time, wave, width=0.02, **asked)
    assert "drift" not in {one.kind for one in found.findings}


def test_a_stream_sorted_by_class():
    stream = classes(300, 5, dimensions=4)
    labels = np.array(list("abcde"))[stream.Y.argmax(1)]
    found = rt.diagnose(stream.X, labels)
    assert [one.unseen for one in found.answers] == [(), ()]
    assert set(found.stream.target_names) == set("abcde")
    assert found.answer("whole").excess.low > 0.5  # forgetting is seen
    assert found.verdict.kind == "forgotten"
    advice = " ".join(found.verdict.recommendations)
    assert "Nothing needs correcting" not in advice
    assert "random order" in advice
    late = np.append(labels[:-1], ["g"])  # a class of one row is either learned or asked about
    asked = rt.diagnose(stream.X, late, evaluation="next", test_share=0.05)
    assert asked.answer("next").unseen == ("g",)
    assert any("never learned" in text for text in asked.verdict.findings)
    many = rt.diagnose(stream.X, late, evaluation="next", test_share=0.2)
    assert many.answer("next").rows >= 30
    assert not enough(many.answer("next"))  # it says nothing of a class that it cannot know
    assert many.verdict.kind == "not clear"
    found = rt.diagnose(stream.X, labels, evaluation="progressive")
    dual = found.lr.value * found.prequential  # of plain SGD
    said = found.stream.Y - (found.effective - found.gamma.value * dual)
    assert found.hindsight == pytest.approx(np.square(said).mean(), rel=1e-6)
    assert found.hindsight > 2 * found.prequential_error
    assert "hidden" in {one.kind for one in found.findings}


def test_an_intercept_is_a_constant_feature():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = 5 + X[:, 0] + 0.1 * rng.normal(size=80)
    options = {"kernel": "affine", "lr": 0.05, "gamma": 0.1, "standardize": False}
    found = rt.diagnose(X, y, **options, evaluation="next", test_share=0.2)
    constant = np.column_stack([X, np.ones(80)])
    w = np.zeros(3)
    for x, target in zip(constant[:64], y[:64], strict=True):
        w += 0.05 * (target - x @ w) * x
    expected = np.mean((y[64:] - constant[64:] @ w) ** 2)
    assert found.score("online").error.value == pytest.approx(expected)
    assert found.kernel.name == "affine"


def test_what_a_wrong_class_costs():
    of, taken = [0, 0, 0, 1, 0], [0, 0, 1, 0, 0]
    stream = as_stream(np.zeros((5, 1)), np.eye(2)[of])
    predicted = np.eye(2)[taken]
    predicted[4] = np.nan
    np.testing.assert_array_equal(
        METRICS["accuracy"].losses(predicted, stream), [0, 0, 1, 1, np.nan]
    )
    balanced = METRICS["balanced-accuracy"].losses(predicted, stream)
    np.testing.assert_allclose(balanced, [0, 0, 4 / 6, 4 / 2, np.nan])
