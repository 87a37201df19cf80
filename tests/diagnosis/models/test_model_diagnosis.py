"""A user's model from end to end: run in every way, compared, and never taken on trust."""

import copy
import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from sklearn.linear_model import Perceptron, SGDRegressor
from sklearn.neural_network import MLPRegressor
from torch import nn

import retarget as rt
from retarget.diagnosis.measure.compare import Bootstrap, Split, any_of
from retarget.diagnosis.models import model_diagnosis, runs
from retarget.diagnosis.models.adapters import seeded
from retarget.diagnosis.models.model_diagnosis import agreement, diagnose_model
from retarget.diagnosis.options import Options
from support.diagnosis_streams import as_stream, classes, drifting
from support.user_models import FailsLater, NearestMeans, OneByOne, network

WAYS = ["as it came", "random order", "batch", "corrected"]
SGD = {"penalty": None, "learning_rate": "constant", "eta0": 0.04}


@pytest.fixture(autouse=True)
def _few_runs(monkeypatch):
    """Enough of them: what more epochs and orders do is tested with the runs."""
    monkeypatch.setattr(runs, "EPOCHS", 6)
    monkeypatch.setattr(model_diagnosis, "ORDERS", 3)


def sorted_stream(n=160, seed=0, linear=False):
    """A stream sorted by its first feature, and rows from everywhere to test on."""
    rng = np.random.default_rng(seed)
    X, w = rng.normal(size=(n + 200, 5)), rng.normal(size=5)
    y = X @ w if linear else 2 * np.sin(X @ w) + X[:, 0]
    y += 0.1 * rng.normal(size=len(y))
    y = (y - y.mean()) / y.std()
    order = np.argsort(X[:n, 0])
    stream = as_stream(X[:n][order], y[:n, None][order])
    return Split(stream, as_stream(X[n:], y[n:, None]), "test")


def progressive(stream):
    return Split(stream, None, "progressive")


def run(model, parted, **options):
    return diagnose_model(parted, Options(model=model, **options))


def test_a_linear_model_with_an_intercept_against_plain_loops_and_the_theory():
    parted = sorted_stream(seed=1, linear=True)
    X, y = parted.stream.X, parted.stream.Y[:, 0]
    given = SGDRegressor(**SGD)
    kept = copy.deepcopy(vars(given))
    found = run(given, parted, gamma=0.7, ridge=0.02, block_size=8)
    assert vars(given) == kept

    # SGD by hand, with the intercept as a weight of a constant feature
    A, w = np.column_stack([X, np.ones(len(X))]), np.zeros(6)
    before, after = np.empty(len(X)), np.empty(len(X))
    for row, a in enumerate(A):
        before[row] = a @ w
        w = w + 0.04 * (y[row] - a @ w) * a
        after[row] = a @ w
    np.testing.assert_allclose(found.before[:, 0], before, atol=1e-10)
    np.testing.assert_allclose(found.after[:, 0], after, atol=1e-10)
    np.testing.assert_allclose(found.end[:, 0], A @ w, atol=1e-10)
    # the same from the functions of the core
    K, learner = A @ A.T, rt.SGD(lr=0.04)
    errors = rt.prequential_errors(K, y, learner)
    np.testing.assert_allclose(y - found.before[:, 0], errors, atol=1e-9)
    later = np.triu(K, 1) @ rt.online_coefficients(K, y, learner)
    np.testing.assert_allclose(found.theory[:, 0], later, atol=1e-9)
    np.testing.assert_allclose(found.shift, found.theory, atol=1e-9)
    assert found.agreement == pytest.approx(1, abs=1e-9)
    targets = rt.iterative_targets(K, y, learner, 0.7, 8, ridge=0.02)
    np.testing.assert_allclose(found.corrected[:, 0], targets, atol=1e-8)
    size = np.abs(targets - y.mean()).max() / y.std()
    assert found.corrected_size == pytest.approx(size, rel=1e-6)

    assert [score.way for score in found.scores] == WAYS
    T = np.column_stack([parted.test.X, np.ones(200)])
    with seeded(0):
        batch = SGDRegressor(**SGD).fit(X, y).predict(parted.test.X)
    for way, said in (("as it came", T @ w), ("batch", batch)):
        expected = np.square(parted.test.Y[:, 0] - said).mean()
        assert found.score(way).error.value == pytest.approx(expected, rel=1e-9)
    assert found.prequential.value == pytest.approx(np.square(y - before).mean(), rel=1e-9)
    assert found.remembered.value == pytest.approx(np.square(y - A @ w).mean(), rel=1e-9)
    assert found.closed.value == pytest.approx(1, abs=0.3)
    assert found.order.high < 0
    assert len(found.orders) == 3
    assert found.score("random order").error.value == pytest.approx(np.mean(found.orders))


def test_corrected_targets_serve_a_linear_module_and_are_recommended():
    module, parted = network(5), sorted_stream(linear=True)
    kept = copy.deepcopy(module.state_dict())
    found = rt.diagnose(parted.stream.X, parted.stream.Y, lr=0.1, model=module, evaluation="random")
    torch.testing.assert_close(module.state_dict(), kept, rtol=0, atol=0)
    assert found.model.agreement == pytest.approx(1, abs=1e-9)
    assert found.model.closed.low > 0.9
    assert found.model.failures == ()
    assert found.model.helped
    assert any("iteratively corrected targets" in text for text in found.verdict.recommendations)


def test_corrected_targets_do_not_serve_a_narrow_network_and_the_run_shows_it():
    """Its movement is the theory's to 1%, and yet it cannot follow targets of this size."""
    found = run(network(5, hidden=64), sorted_stream(n=100), lr=0.003, gamma=0.3, ridge=0.0)
    assert found.agreement > 0.98
    assert found.corrected_size > 100
    came, corrected = (found.score(way).error for way in ("as it came", "corrected"))
    # so wrong that it may overflow: then there is no number, and a sentence
    assert corrected.low > 10 * came.high or math.isnan(corrected.value)
    assert found.closed.high < -10 or math.isnan(found.closed.value)
    assert found.failures[0].startswith("On targets corrected with ridge 0.3 and stabiliser 0, ")


def test_gentler_targets_are_tried_when_the_first_fail():
    found = run(network(5, hidden=32), sorted_stream(n=80), lr=0.03)
    first = next(sentence for sentence in found.failures if sentence.startswith("On targets"))
    assert "without correction" in first or "failed" in first
    assert found.corrected_size < 100


@pytest.mark.parametrize("model", [Perceptron(), NearestMeans()])
def test_classes_one_after_another_and_a_model_that_nothing_describes(model):
    found = run(model, Split(classes(90), classes(60), "test"))
    for score in found.scores[:3]:
        assert 0 <= score.accuracy.low <= score.accuracy.high <= 1
        assert score.error.low >= 0
    assert found.description.startswith("No kernel is known that describes")
    assert found.theory is found.agreement is found.corrected is None
    assert math.isnan(found.closed.value)
    assert math.isnan(found.score("corrected").error.value)
    assert found.scores[3].accuracy is not None
    if isinstance(model, Perceptron):
        assert found.order.value < 0
        assert found.score("random order").accuracy.value > found.scores[0].accuracy.value
    else:  # means know no order
        np.testing.assert_allclose(found.order, 0, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (MLPRegressor(hidden_layer_sizes=(5,), max_iter=5), {}),
        (lambda: nn.Linear(5, 1), {"lr": 0.02, "batch_size": 4}),
    ],
    ids=["scikit-learn", "torch"],
)
def test_a_seed_repeats_everything(model, options):
    parted = sorted_stream(n=20)
    one, two, other = (run(model, parted, seed=seed, **options) for seed in (3, 3, 4))
    for field in fields(one):
        mine, its = getattr(one, field.name), getattr(two, field.name)
        same = (mine.size, its.size) if field.name == "groups" else (mine, its)
        np.testing.assert_equal(*same)
    assert (other.end != one.end).any()
    assert other.orders != one.orders


def test_a_progressive_evaluation_judges_by_rows_not_learned_yet():
    stream = sorted_stream(n=64, linear=True).stream
    found = run(SGDRegressor(eta0=0.1), progressive(stream), block_size=16)
    assert found.score("as it came").error == found.prequential
    prequential = np.square(found.before - stream.Y).mean()
    assert found.prequential.value == pytest.approx(prequential)
    assert all(math.isfinite(score.error.value) for score in found.scores)
    # a shuffled stream, predicted row by row
    order = np.random.default_rng(0).permutation(64)
    model, errors = SGDRegressor(eta0=0.1), []
    for row in order:
        x, y = stream.X[[row]], stream.Y[row]
        errors.append(y[0] - (model.predict(x)[0] if errors else 0.0))
        model.partial_fit(x, y)
    assert found.orders[0] == pytest.approx(np.square(errors).mean(), rel=1e-9)


@pytest.mark.parametrize("held_out", [True, False])
def test_a_long_stream_is_thinned_for_its_orders(monkeypatch, held_out):
    monkeypatch.setattr(runs, "STEPS", 400)
    parted = sorted_stream() if held_out else progressive(sorted_stream().stream)
    found = run(OneByOne(0.01), parted)
    assert "tried on 40 rows, evenly spaced over the stream's 160" in found.failures[0]
    assert math.isfinite(found.order.value)
    assert len(found.orders) == 3


@pytest.mark.parametrize("nan", [False, True])
def test_a_model_that_fails_is_a_sentence_in_every_run(nan):
    parted = sorted_stream(n=60)
    found = run(FailsLater(30, nan=nan), parted)
    expected = "not finite numbers after 30 rows" if nan else "failed when learning row 30"
    assert expected in found.failures[0]
    said = "|".join(found.failures)
    for words in ("Over the stream as it came, FailsLater", "|As a batch", "random orders failed"):
        assert words in said
    assert all(math.isnan(score.error.value) for score in found.scores)
    assert np.isnan([*found.end.ravel(), *found.groups.size.ravel()]).all()
    assert found.orders == ()


def test_a_model_that_diverges_late_keeps_what_is_known():
    found = run(SGDRegressor(eta0=30.0, learning_rate="constant"), sorted_stream(n=60))
    assert "SGDRegressor diverges: its predictions reach" in found.failures[0]
    assert math.isnan(found.score("as it came").error.value)
    assert math.isnan(found.closed.value)


def test_weight_decay_from_a_start_has_no_corrected_targets():
    stream = drifting(40, outputs=2, dimensions=3)
    found = run(network(3, 2), progressive(stream), lr=0.02, batch_size=4, weight_decay=0.1)
    assert found.shift.shape == (40, 2)
    assert found.groups.names[0] == "part 1"
    assert found.agreement == pytest.approx(1, abs=1e-9)
    assert found.corrected is None
    assert found.failures[0].startswith("There are no corrected targets: weight decay")


def test_the_luck_of_the_draw_is_in_the_interval():
    rows, rng = 50, np.random.default_rng(1)
    bootstrap = Bootstrap(rows, 0)
    several = [np.full(rows, level) for level in (1.0, 2.0, 3.0)]
    means = any_of([bootstrap.means(level) for level in several], 5)
    assert means[0] == 2.0
    values, counts = np.unique(means[1:], return_counts=True)
    np.testing.assert_allclose(values, [1, 2, 3])
    assert counts.min() > 250
    one = bootstrap.means(rng.normal(size=rows))
    np.testing.assert_array_equal(any_of([one], 5), one)


def test_agreement():
    theory = np.array([[3.0], [4.0]])
    pairs = ((1.1 * theory, theory), (0 * theory, theory), (0 * theory,) * 2, (theory, 0 * theory))
    found = [agreement(shift, predicted) for shift, predicted in pairs]
    assert found == pytest.approx([0.9, 0, 1, -math.inf])


def test_the_diagnosis_runs_the_model_on_the_same_rows():
    stream = sorted_stream(n=80, linear=True).stream
    names = np.array(["north", "south"])[np.arange(80) // 40]
    found = rt.diagnose(
        3 + 2 * stream.X, 7 * stream.Y[:, 0], groups=names, kernel="linear", lr=0.01,
        model="sklearn.linear_model:SGDRegressor", model_options={"eta0": 0.05},
    )  # fmt: skip
    model = found.model
    assert model.name == "SGDRegressor"
    assert model.groups.names == ("north", "south")
    by_hand = SGDRegressor(eta0=0.05)
    for x, y in zip(found.stream.X, found.stream.Y, strict=True):
        by_hand.partial_fit(x[None], y)
    np.testing.assert_allclose(model.end[:, 0], by_hand.predict(found.stream.X), atol=1e-10)
