"""What a user's model is given, and what becomes of what it says."""

import random

import numpy as np
import pytest
import torch
from sklearn.linear_model import Perceptron, SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPRegressor
from torch import nn

from retarget.diagnosis.models.adapters import ModelFailedError, seeded
from retarget.diagnosis.models.opening import open_model
from retarget.diagnosis.options import Options
from retarget.errors import InvalidInputError, InvalidTypeError
from support.diagnosis_streams import classes, drifting
from support.user_models import FailsLater, LabelsOnly, NearestMeans, OneByOne, RunningMean, network

NUMBERS = drifting(60, dimensions=3)
TWO = drifting(60, outputs=2, dimensions=3)
CLASSES = classes(60)
PAIR = classes(60, count=2)


def opened(model, stream=NUMBERS, **options):
    return open_model(stream, Options(model=model, **options))


def ran(model, stream, rows=40):
    model = model.fresh()
    for start in range(0, rows, model.batch_size):
        some = slice(start, start + model.batch_size)
        model.learn(stream.X[some], stream.Y[some])
    return model


def test_partial_fit_gets_rows_in_mini_batches_and_no_copy_knows_another():
    given = RunningMean()
    model = opened(given, batch_size=7)
    trained = ran(model, NUMBERS, 14)
    (inner,) = trained._models
    assert [X.shape for X, _ in inner.seen] == [(7, 3), (7, 3)]
    np.testing.assert_array_equal(inner.seen[1][0], NUMBERS.X[7:14])
    np.testing.assert_array_equal(inner.seen[1][1], NUMBERS.Y[7:14, 0])
    np.testing.assert_allclose(trained.predict(NUMBERS.X[:5]), NUMBERS.Y[:14].mean())
    assert given.seen == []
    assert trained.fresh().learned == 0
    np.testing.assert_array_equal(trained.fresh().predict(NUMBERS.X[:5]), np.zeros((5, 1)))


def test_a_regressor_of_one_output_is_copied_for_each_target():
    trained = ran(opened(SGDRegressor(eta0=0.05), TWO), TWO)
    alone = [SGDRegressor(eta0=0.05) for _ in range(2)]
    for column, one in enumerate(alone):
        for row in range(40):
            one.partial_fit(TWO.X[row : row + 1], TWO.Y[row : row + 1, column])
    expected = np.column_stack([one.predict(TWO.X) for one in alone])
    np.testing.assert_allclose(trained.predict(TWO.X), expected, atol=1e-12)
    whole = ran(opened(MLPRegressor(hidden_layer_sizes=(4,), random_state=1), TWO), TWO)
    assert len(whole._models) == 1
    assert whole.predict(TWO.X).shape == (60, 2)


def test_a_regressor_learns_classes_as_numbers():
    trained = ran(opened(SGDRegressor(), CLASSES), CLASSES)
    assert len(trained._models) == 3
    alone = SGDRegressor()
    for row in range(40):
        alone.partial_fit(CLASSES.X[row : row + 1], CLASSES.Y[row : row + 1, 1])
    np.testing.assert_allclose(trained.predict(CLASSES.X)[:, 1], alone.predict(CLASSES.X))


@pytest.mark.parametrize("kind", [SGDClassifier, Perceptron])
def test_a_classifier_gets_names_and_knows_all_of_them_from_the_start(kind):
    loss = {"loss": "log_loss"} if kind is SGDClassifier else {}
    trained = ran(opened(kind(**loss), CLASSES), CLASSES, 30)  # the third class is yet to come
    (inner,) = trained._models
    assert list(inner.classes_) == ["y0", "y1", "y2"]
    predicted = trained.predict(CLASSES.X)
    np.testing.assert_allclose(predicted.sum(axis=1), 1)
    labels = [CLASSES.target_names[k] for k in predicted.argmax(axis=1)]
    assert labels == list(inner.predict(CLASSES.X))
    assert np.isin(predicted, [0, 1]).all() == (kind is Perceptron)


@pytest.mark.parametrize("kind", [SGDClassifier, Perceptron, SGDRegressor])
def test_many_steps_in_one_call_are_the_same_steps(kind):
    stream = NUMBERS if kind is SGDRegressor else CLASSES
    model, batches = opened(kind(), stream), opened(kind(), stream, batch_size=3)
    assert model.quick
    assert not batches.quick
    done = []
    at_once = model.fresh()
    at_once.learn_in_turn(stream.X, stream.Y, done.append)
    one_by_one = ran(model, stream, 60)
    assert sum(done) == 60
    for name in ("coef_", "intercept_"):
        found, expected = (getattr(m._models[0], name) for m in (at_once, one_by_one))
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_batch_fit_is_that_of_scikit_learn_only():
    with seeded(3):
        expected = SGDRegressor().fit(NUMBERS.X, NUMBERS.Y[:, 0]).predict(NUMBERS.X)
    model = opened(SGDRegressor()).fresh()
    with seeded(3):
        assert model.fit(NUMBERS.X, NUMBERS.Y)
    np.testing.assert_array_equal(model.predict(NUMBERS.X)[:, 0], expected)

    class OnePass(SGDRegressor):
        def fit(self, X, y):
            return self.partial_fit(X, y)

    for other in (OnePass(), RunningMean(), OneByOne(), (network(3), nn.MSELoss())):
        assert not opened(other, lr=0.1).fresh().fit(NUMBERS.X, NUMBERS.Y)


def test_river_gets_one_row_at_a_time_as_a_dict():
    given = OneByOne(0.05)
    trained = ran(opened(given, TWO, batch_size=5), TWO)
    assert trained.batch_size == 1
    alone = OneByOne(0.05)
    for x, y in zip(TWO.X[:40], TWO.Y[:40, 1], strict=True):
        alone.learn_one(dict(zip(TWO.feature_names, x, strict=True)), y)
    expected = alone.intercept + TWO.X @ np.array(list(alone.weights.values()))
    np.testing.assert_allclose(trained.predict(TWO.X)[:, 1], expected, atol=1e-12)
    assert given.weights == {}
    np.testing.assert_array_equal(trained.fresh().predict(TWO.X[:4]), np.zeros((4, 2)))


def test_classes_of_river():
    trained = ran(opened(NearestMeans, CLASSES), CLASSES)
    assert set(trained._models[0].counts) == {"y0", "y1"}
    shares = trained.predict(CLASSES.X)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    np.testing.assert_array_equal(shares[:, 2], 0)
    labels = ran(opened(LabelsOnly, CLASSES), CLASSES).predict(CLASSES.X)
    np.testing.assert_array_equal(labels.argmax(1), shares.argmax(1))
    np.testing.assert_array_equal(trained.fresh().predict(CLASSES.X[:2]), np.zeros((2, 3)))
    pair = ran(opened(NearestMeans(multiclass=False), PAIR), PAIR)
    assert set(pair._models[0].counts) == {False, True}
    assert pair.predict(PAIR.X[35:]).argmax(1).mean() > 0.5


def own_optimiser(inputs, lr=0.1):
    module = network(inputs)
    return module, torch.optim.Adam(module.parameters(), lr=lr)


def test_every_form_of_a_torch_model():
    module = network(3)
    kept = module.weight.detach().clone()
    plain = ran(opened(module, lr=0.1, batch_size=4, momentum=0.5, reduction="mean"), NUMBERS)
    assert plain.name == "Linear with SGD"
    torch.testing.assert_close(module.weight.detach(), kept, rtol=0, atol=0)
    assert module.weight.grad is None
    copied = network(3)
    optimiser = torch.optim.SGD(copied.parameters(), lr=0.1, momentum=0.5)
    for rows in torch.arange(40).split(4):
        error = copied(torch.tensor(NUMBERS.X[rows])) - torch.tensor(NUMBERS.Y[rows])
        optimiser.zero_grad()
        (0.5 * error.square().sum() / 4).backward()
        optimiser.step()
    with torch.no_grad():
        expected = copied(torch.tensor(NUMBERS.X)).numpy()
    np.testing.assert_allclose(plain.predict(NUMBERS.X), expected, atol=1e-12)
    assert opened(own_optimiser, model_options={"inputs": 3}).name == "Linear with Adam"
    given = own_optimiser(3)
    assert ran(opened((*given, nn.HuberLoss())), NUMBERS).module is not given[0]
    assert opened(own_optimiser(3), lr=0.5).optimiser.defaults["lr"] == 0.1
    assert opened(nn.Linear, model_options={"in_features": 3, "out_features": 1}, lr=0.1)
    lbfgs = network(3)
    assert opened((lbfgs, torch.optim.LBFGS(lbfgs.parameters())))


def test_lazy_layers_learn_the_number_of_features_from_the_stream():
    network = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(1))
    stream = drifting(20, dimensions=3)
    model = open_model(stream, Options(model=network, lr=0.01))
    assert model.fresh().predict(stream.X).shape == (20, 1)
    assert isinstance(network[0].weight, nn.parameter.UninitializedParameter)  # still the user's


def test_a_module_may_give_one_number_a_row():
    flat = nn.Sequential(network(3), nn.Flatten(0))
    squeezed, plain = (ran(opened(m, lr=0.1), NUMBERS) for m in (flat, network(3)))
    np.testing.assert_allclose(squeezed.predict(NUMBERS.X), plain.predict(NUMBERS.X), atol=1e-14)


@pytest.mark.parametrize(
    ("loss", "link"),
    [
        (nn.CrossEntropyLoss(), lambda logits: logits.softmax(1)),
        (nn.BCEWithLogitsLoss(), torch.sigmoid),
    ],
    ids=["softmax", "logistic"],
)
def test_logits_become_probabilities(loss, link):
    trained = ran(opened((network(3, 3), loss), CLASSES, lr=0.5, batch_size=4), CLASSES)
    module = network(3, 3)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
    for rows in torch.arange(40).split(4):
        optimiser.zero_grad()
        loss(module(torch.tensor(CLASSES.X[rows])), torch.tensor(CLASSES.Y[rows])).backward()
        optimiser.step()
    with torch.no_grad():
        expected = link(module(torch.tensor(CLASSES.X))).numpy()
    np.testing.assert_allclose(trained.predict(CLASSES.X), expected, atol=1e-12)


def test_by_import_path(monkeypatch, tmp_path):
    (tmp_path / "my_models.py").write_text(
        "from sklearn.linear_model import SGDRegressor\n"
        "def make(eta0=0.1):\n    return SGDRegressor(eta0=eta0)\n"
        "made = SGDRegressor(eta0=0.3)\n"
        "def broken(**options):\n    raise RuntimeError('out of order')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert opened("my_models:make").original.eta0 == 0.1
    assert opened("my_models:make", model_options={"eta0": 0.2}).original.eta0 == 0.2
    assert opened("my_models:made").original.eta0 == 0.3
    sgd = opened("sklearn.linear_model:SGDRegressor", model_options={"eta0": 0.4})
    assert sgd.original.eta0 == 0.4
    with pytest.raises(
        InvalidInputError, match="'my_models:broken' failed .* with a=1: .*of order"
    ):
        opened("my_models:broken", model_options={"a": 1})
    with pytest.raises(InvalidInputError, match="the model 'my_models:no' cannot be imported"):
        opened("my_models:no")
    with pytest.raises(InvalidInputError, match="the model 'forest' cannot be imported"):
        opened("forest")
    with pytest.raises(InvalidTypeError, match="is a int; expected a function or class"):
        opened("os:O_RDONLY")


@pytest.mark.parametrize(
    ("model", "stream", "options", "error", "message"),
    [
        (SGDRegressor(), NUMBERS, {"model_options": {"eta0": 1}}, InvalidInputError, "made alre"),
        (SGDClassifier(), NUMBERS, {}, InvalidInputError, "is a classifier and the targets are n"),
        (NearestMeans(), NUMBERS, {}, InvalidInputError, "is a classifier and the targets are n"),
        (NearestMeans(False), CLASSES, {}, InvalidInputError, "for two classes .* has 3; wrap it"),
        (dict, NUMBERS, {}, InvalidTypeError, "model is {}; expected partial_fit and predict"),
        ((network(3), 3), NUMBERS, {}, InvalidTypeError, "a tuple of Linear, int; expected a mod"),
        (network(3), NUMBERS, {}, InvalidInputError, "without an optimiser and lr is 'auto'"),
        (network(3).requires_grad_(False), NUMBERS, {"lr": 1.0}, InvalidInputError, "no parameter"),
        (network(4), NUMBERS, {"lr": 0.1}, InvalidInputError, "given 1 rows of 3 features and 1 t"),
        (
            network(3, 2),
            NUMBERS,
            {"lr": 0.1},
            InvalidInputError,
            r"shape \(1, 2\); expected \(1, 1",
        ),
        (FailsLater(1), NUMBERS, {}, InvalidInputError, "FailsLater failed when learning row 1: R"),
        (
            FailsLater(1, nan=True),
            NUMBERS,
            {},
            InvalidInputError,
            "not finite numbers after 1 rows",
        ),
    ],
)
def test_what_is_not_a_model_of_this_stream(model, stream, options, error, message):
    with pytest.raises(error, match=message):
        opened(model, stream, **options)


def test_predictions_of_another_shape():
    class Wide(RunningMean):
        def predict(self, X):
            return np.zeros((len(X), 2))

    with pytest.raises(InvalidInputError, match=r"of shape \(1, 2\); expected \(1, 1\), one for"):
        opened(Wide())
    with pytest.raises(ModelFailedError, match="failed when learning row 5: RuntimeError: out of"):
        ran(opened(FailsLater(5)), NUMBERS)


def test_the_seed_is_for_the_run_alone():
    own = np.random.mtrand._rand  # what models without a seed draw from
    expected = own.get_state()[1].copy(), random.getstate(), torch.get_rng_state()
    drawn = []
    for _ in range(2):
        with seeded(8):
            drawn.append((own.rand(), random.random(), float(torch.rand(1))))
    assert drawn[0] == drawn[1]
    np.testing.assert_array_equal(own.get_state()[1], expected[0])
    assert random.getstate() == expected[1]
    torch.testing.assert_close(torch.get_rng_state(), expected[2], rtol=0, atol=0)


def test_options():
    with pytest.raises(InvalidInputError, match="and there is no model; give model= as well"):
        Options(model_options={"eta0": 1})
