"""What a user's model is given, and what becomes of what it says."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Perceptron, SGDClassifier, SGDRegressor
from sklearn.naive_bayes import ComplementNB, GaussianNB, MultinomialNB
from sklearn.neural_network import MLPRegressor
from torch import nn

from retarget.diagnosis.models import adapters
from retarget.diagnosis.models.adapters import seeded
from retarget.errors import InvalidInputError, InvalidTypeError
from support import user_models as users
from support.diagnosis_streams import classes, drifting
from support.user_models import RunningMean, network, opened

NUMBERS = drifting(60, dimensions=3)
TWO = drifting(60, outputs=2, dimensions=3)
CLASSES = classes(60)
PAIR = classes(60, count=2)


def ran(model, stream, rows=40):
    model = model.fresh()
    for start in range(0, rows, model.batch_size):
        some = slice(start, start + model.batch_size)
        model.learn(stream.X[some], stream.Y[some])
    return model


def test_partial_fit_in_mini_batches():
    given = RunningMean()
    trained = ran(opened(given, NUMBERS, batch_size=7), NUMBERS, 14)
    (inner,) = trained._models
    for seen, rows in zip(inner.seen, (slice(7), slice(7, 14)), strict=True):
        np.testing.assert_array_equal(seen[0], NUMBERS.X[rows])
        np.testing.assert_array_equal(seen[1], NUMBERS.Y[rows, 0])
    np.testing.assert_allclose(trained.predict(NUMBERS.X[:5]), NUMBERS.Y[:14].mean())
    assert given.seen == []
    assert trained.fresh().learned == 0
    np.testing.assert_array_equal(trained.fresh().predict(NUMBERS.X[:5]), np.zeros((5, 1)))


@pytest.mark.parametrize("stream", [TWO, CLASSES], ids=["numbers", "classes"])
def test_one_output_is_copied_for_each_target(stream, monkeypatch):
    monkeypatch.setattr(adapters, "PREDICTED_AT_ONCE", 7)
    predicted = ran(opened(SGDRegressor(eta0=0.05), stream), stream).predict(stream.X)
    for column, y in enumerate(stream.Y.T):
        alone = SGDRegressor(eta0=0.05)
        for row in range(40):
            alone.partial_fit(stream.X[[row]], y[[row]])
        np.testing.assert_allclose(predicted[:, column], alone.predict(stream.X), atol=1e-12)
    whole = ran(opened(MLPRegressor(hidden_layer_sizes=(4,), random_state=1), stream), stream)
    assert len(whole._models) == 1
    assert whole.predict(stream.X).shape == stream.Y.shape


@pytest.mark.parametrize("model", [SGDClassifier(loss="log_loss"), Perceptron()])
def test_a_classifier_knows_all_names(model):
    trained = ran(opened(model, CLASSES), CLASSES, 30)  # the third class is yet to come
    (inner,) = trained._models
    assert list(inner.classes_) == ["y0", "y1", "y2"]
    predicted = trained.predict(CLASSES.X)
    np.testing.assert_allclose(predicted.sum(axis=1), 1)
    labels = [CLASSES.target_names[k] for k in predicted.argmax(axis=1)]
    assert labels == list(inner.predict(CLASSES.X))
    assert np.isin(predicted, [0, 1]).all() == isinstance(model, Perceptron)


@pytest.mark.parametrize(
    ("kind", "stream"),
    [(SGDClassifier, CLASSES), (Perceptron, CLASSES), (SGDRegressor, NUMBERS)],
)
def test_many_steps_in_one_call(kind, stream):
    model, done = opened(kind(), stream), []
    assert (model.quick, opened(kind(), stream, batch_size=3).quick) == (True, False)
    at_once = model.fresh()
    at_once.learn_in_turn(stream.X, stream.Y, done.append)
    one_by_one = ran(model, stream, 60)
    assert sum(done) == 60
    for name in ("coef_", "intercept_"):
        found, expected = (getattr(m._models[0], name) for m in (at_once, one_by_one))
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_batch_fit_of_scikit_learn():
    with seeded(3):
        expected = SGDRegressor().fit(NUMBERS.X, NUMBERS.Y[:, 0]).predict(NUMBERS.X)
    model = opened(SGDRegressor(), NUMBERS).fresh()
    with seeded(3):
        assert model.fit(NUMBERS.X, NUMBERS.Y)
    np.testing.assert_array_equal(model.predict(NUMBERS.X)[:, 0], expected)

    class OnePass(SGDRegressor):
        def fit(self, X, y):
            return self.partial_fit(X, y)

    for other in (OnePass(), RunningMean(), users.OneByOne(), (network(3), nn.MSELoss())):
        assert not opened(other, NUMBERS, lr=0.1).fresh().fit(NUMBERS.X, NUMBERS.Y)


def test_river_gets_dicts_of_one_row():
    given = users.OneByOne(0.05)
    trained = ran(opened(given, TWO, batch_size=5), TWO)
    assert trained.batch_size == 1
    alone = users.OneByOne(0.05)
    for x, y in zip(TWO.X[:40], TWO.Y[:40, 1], strict=True):
        alone.learn_one(dict(zip(TWO.feature_names, x, strict=True)), y)
    expected = alone.intercept + TWO.X @ np.array(list(alone.weights.values()))
    np.testing.assert_allclose(trained.predict(TWO.X)[:, 1], expected, atol=1e-12)
    assert given.weights == {}

    trained = ran(opened(users.NearestMeans, CLASSES), CLASSES)
    assert set(trained._models[0].counts) == {"y0", "y1"}
    shares = trained.predict(CLASSES.X)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_array_equal(shares[:, 2], 0)
    labels = ran(opened(users.LabelsOnly, CLASSES), CLASSES).predict(CLASSES.X)
    np.testing.assert_array_equal(labels.argmax(1), shares.argmax(1))
    np.testing.assert_array_equal(trained.fresh().predict(CLASSES.X[:2]), np.zeros((2, 3)))
    pair = ran(opened(users.NearestMeans(multiclass=False), PAIR), PAIR)
    assert set(pair._models[0].counts) == {False, True}
    assert pair.predict(PAIR.X[35:]).argmax(1).mean() > 0.5


def trained_by_hand(outputs, stream, loss, **sgd):
    """The outputs of a linear module after 40 rows in mini-batches of 4."""
    module = network(3, outputs)
    optimizer = torch.optim.SGD(module.parameters(), **sgd)
    for rows in torch.arange(40).split(4):
        optimizer.zero_grad()
        loss(module(torch.tensor(stream.X[rows])), torch.tensor(stream.Y[rows])).backward()
        optimizer.step()
    with torch.no_grad():
        return module(torch.tensor(stream.X))


def test_every_form_of_a_torch_model():
    module, sgd = network(3), {"lr": 0.1, "momentum": 0.5}
    kept = module.weight.detach().clone()
    options = {"batch_size": 4, "reduction": "mean", **sgd}
    expected = trained_by_hand(1, NUMBERS, lambda p, y: (p - y).square().sum() / 8, **sgd)
    for form in (module, nn.Sequential(network(3), nn.Flatten(0))):  # the latter: one number a row
        predicted = ran(opened(form, NUMBERS, **options), NUMBERS).predict(NUMBERS.X)
        np.testing.assert_allclose(predicted, expected, atol=1e-12)
    torch.testing.assert_close(module.weight.detach(), kept, rtol=0, atol=0)
    assert module.weight.grad is None

    def own_optimizer(inputs):
        module = network(inputs)
        return module, torch.optim.Adam(module.parameters(), lr=0.1)

    assert opened(own_optimizer, NUMBERS, model_options={"inputs": 3}).name == "Linear with Adam"
    assert opened(own_optimizer(3), NUMBERS, lr=0.5).optimizer.defaults["lr"] == 0.1
    assert opened((module, torch.optim.LBFGS(module.parameters())), NUMBERS)
    lazy = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(1))
    assert opened(lazy, NUMBERS, lr=0.01).fresh().predict(NUMBERS.X).shape == (60, 1)
    assert isinstance(lazy[0].weight, nn.parameter.UninitializedParameter)  # still the user's


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss()])
def test_logits_become_probabilities(loss):
    trained = ran(opened((network(3, 3), loss), CLASSES, lr=0.5, batch_size=4), CLASSES)
    logits = trained_by_hand(3, CLASSES, loss, lr=0.5)
    softmax = isinstance(loss, nn.CrossEntropyLoss)
    expected = logits.softmax(1) if softmax else torch.sigmoid(logits)
    np.testing.assert_allclose(trained.predict(CLASSES.X), expected, atol=1e-12)


def test_by_import_path(monkeypatch, tmp_path):
    (tmp_path / "my_models.py").write_text(
        "from sklearn.linear_model import SGDRegressor\n"
        "def make(eta0=0.1):\n    return SGDRegressor(eta0=eta0)\n"
        "made = SGDRegressor(eta0=0.3)\n"
        "def broken(**options):\n    raise RuntimeError('out of order')\n"
        "def leaves(**options):\n    raise SystemExit('good bye')\n"
    )
    (tmp_path / "my_script.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "my_mistake.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    for path, options, eta0 in (
        ("my_models:make", None, 0.1),
        ("my_models:made", None, 0.3),
        ("sklearn.linear_model:SGDRegressor", {"eta0": 0.4}, 0.4),
    ):
        assert opened(path, NUMBERS, model_options=options).original.eta0 == eta0
    for path, message in (
        ("my_models:broken", "failed .* with a=1: RuntimeError: out of order"),
        ("my_models:leaves", "failed .* with a=1: SystemExit: good bye"),
        ("my_script:make", "importing my_script raises SystemExit: 3; correct that first"),
        ("my_mistake:make", "importing my_mistake raises ZeroDivisionError: division by zero"),
        ("forest", "the model 'forest' cannot be imported"),
        ("os:O_RDONLY", "is an int; expected a function or class"),
    ):
        error = InvalidTypeError if path == "os:O_RDONLY" else InvalidInputError
        with pytest.raises(error, match=message):
            opened(path, NUMBERS, model_options={"a": 1})


class Wide(RunningMean):
    def predict(self, X):
        return np.zeros((len(X), 2))


class Speechless(RunningMean):
    def predict(self, X):
        raise RuntimeError("nothing to say")


class Leaves(RunningMean):
    """Calls exit, as a script may."""

    def partial_fit(self, X, y):
        raise SystemExit


class Unique(RunningMean):
    """It cannot be copied."""

    def __deepcopy__(self, memo):
        raise TypeError("there is only one of me")


FROZEN = network(3).requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "stream", "options", "message"),
    [
        (SGDRegressor(), NUMBERS, {"model_options": {"eta0": 1}}, "already an instance"),
        (SGDClassifier(), NUMBERS, {}, "is a classifier and the targets are numbers"),
        (users.NearestMeans(), NUMBERS, {}, "is a classifier and the targets are numbers"),
        (users.NearestMeans(False), CLASSES, {}, "for two classes .* has 3; wrap it"),
        (dict, NUMBERS, {}, "model is {}; expected partial_fit and predict"),
        ((network(3), 3), NUMBERS, {}, "a tuple of Linear, int; expected a module"),
        (network(3), NUMBERS, {}, "without an optimizer and lr .--lr. is 'auto'"),
        (FROZEN, NUMBERS, {"lr": 1.0}, "no parameter that requires a gradient"),
        (network(4), NUMBERS, {"lr": 0.1}, r"given features of shape \(1, 3\) and numbers as"),
        (network(3, 2), NUMBERS, {"lr": 0.1}, r"shape \(1, 2\); expected \(1, 1"),
        (users.FailsLater(1), NUMBERS, {}, "FailsLater failed when learning row 1: RuntimeError"),
        (users.FailsLater(1, nan=True), NUMBERS, {}, "not finite numbers after 1 rows"),
        (Speechless(), NUMBERS, {}, "Speechless failed when predicting after 1 rows: RuntimeErr"),
        (Leaves(), NUMBERS, {}, "Leaves failed when learning row 1: SystemExit; it was given feat"),
        (
            Unique(),
            NUMBERS,
            {},
            "Unique failed when it was copied: .* only one .*; every run start",
        ),
        (Wide(), NUMBERS, {}, r"of shape \(1, 2\); expected \(1, 1\), one for"),
    ],
)
def test_what_is_not_a_model_of_this_stream(model, stream, options, message):
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message) as raised:
        opened(model, stream, **options)
    assert isinstance(raised.value, InvalidTypeError) == (model is dict or isinstance(model, tuple))


class Interrupted(RunningMean):
    def partial_fit(self, X, y):
        raise KeyboardInterrupt


def test_an_interruption_is_not_a_failure():
    with pytest.raises(KeyboardInterrupt):
        opened(Interrupted(), NUMBERS)


@pytest.mark.parametrize("kind", [MultinomialNB, ComplementNB])
def test_a_model_that_needs_positive_features(kind):
    needs = r"\(1, 3\) and classes .* \(1, 3\), some of them negative, .* standardize=False .--as"
    with pytest.raises(InvalidInputError, match=needs):
        opened(kind(), CLASSES)
    as_they_are = replace(CLASSES, X=np.abs(CLASSES.X))  # what standardize=False gives
    assert ran(opened(kind(), as_they_are), as_they_are).learned == 40


def test_a_model_that_needs_several_rows():
    needs = r"GaussianNB gave predictions .* more rows at a time; .*learner=.*batch_size=8"
    with pytest.raises(InvalidInputError, match=needs):
        opened(GaussianNB(), CLASSES)
    trained = ran(opened(GaussianNB(), CLASSES, batch_size=8), CLASSES)
    np.testing.assert_allclose(trained.predict(CLASSES.X).sum(axis=1), 1)
    alone = replace(CLASSES, X=CLASSES.X[:5], Y=CLASSES.Y[:5])  # too few rows for such advice
    with pytest.raises(InvalidInputError, match=r"as targets, of shape \(1, 3\)$"):
        opened(GaussianNB(), alone)


def test_the_seed_is_for_the_run_alone():
    own = np.random.mtrand._rand  # what models without a seed draw from
    expected = own.get_state()[1].copy(), random.getstate(), torch.get_rng_state()
    drawn = set()
    for _ in range(2):
        with seeded(8):
            drawn.add((own.rand(), random.random(), float(torch.rand(1))))
    assert len(drawn) == 1
    np.testing.assert_array_equal(own.get_state()[1], expected[0])
    assert random.getstate() == expected[1]
    torch.testing.assert_close(torch.get_rng_state(), expected[2], rtol=0, atol=0)
