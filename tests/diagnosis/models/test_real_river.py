"""The real river, where it is installed (it is not a dependency)."""

import numpy as np
import pytest

from retarget.diagnosis.measure.holdout import Split, split
from retarget.diagnosis.models import runs
from retarget.diagnosis.models.equivalent import NoDescriptionError, describe
from retarget.diagnosis.models.model_diagnosis import diagnose_model
from retarget.errors import InvalidInputError
from support.diagnosis_options import options_for
from support.diagnosis_streams import as_stream, classes, drifting
from support.user_models import opened

pytestmark = pytest.mark.slow
river = pytest.importorskip("river")
linear_model = pytest.importorskip("river.linear_model")
optim = pytest.importorskip("river.optim")


def run(model, stream, **options):
    return diagnose_model(Split(stream, {}), options_for(model=model, **options))


@pytest.fixture(autouse=True)
def _few_epochs(monkeypatch):
    monkeypatch.setattr(runs, "EPOCHS", 5)


def shifted(n=120):
    stream = drifting(n, dimensions=4)
    return as_stream(stream.X + 0.3, stream.Y + 0.6)


@pytest.mark.parametrize("intercept_lr", [0.0, 0.05])
def test_linear_regression_is_its_description(intercept_lr):
    model = linear_model.LinearRegression(
        optimizer=optim.SGD(0.02), intercept_lr=intercept_lr, intercept_init=0.4
    )
    found = run(model, shifted())
    assert found.name == "LinearRegression of river"
    np.testing.assert_allclose(found.shift, found.theory, atol=1e-9)
    assert np.abs(found.theory).max() > 0.1
    assert found.corrected is not None
    assert model.weights == {}
    found = run(linear_model.LinearRegression(optimizer=optim.SGD(0.02), l2=0.01), shifted())
    assert "nearly exact: the penalty l2 = 0.01" in found.description
    assert 0.8 < found.agreement < 1 - 1e-6


SLOWER = optim.schedulers.InverseScaling(0.1)


def test_what_no_kernel_describes():
    stream = shifted(20)
    for options, reason in (
        ({"optimizer": optim.Adam(0.01)}, "its optimizer is Adam"),
        (
            {"optimizer": optim.SGD(optim.schedulers.InverseScaling(0.1))},
            "a rate changes with time",
        ),
        ({"loss": optim.losses.Absolute()}, "its loss is Absolute"),
        ({"l1": 0.1}, "it has an l1 penalty"),
        ({"clip_gradient": 5.0}, "it clips gradients at 5"),
        ({"initializer": optim.initializers.Normal(seed=1)}, "its weights start from Normal"),
    ):
        model = opened(linear_model.LinearRegression(**options), stream)
        with pytest.raises(NoDescriptionError, match=f"LinearRegression of river: {reason}"):
            describe(model, None)


def test_pipelines_and_other_models_run():
    from river import preprocessing, tree

    stream = shifted()
    pipeline = preprocessing.StandardScaler() | linear_model.LinearRegression()
    for model in (pipeline, tree.HoeffdingTreeRegressor, "river.linear_model:PARegressor"):
        found = run(model, stream)
        assert found.theory is None
        assert np.isfinite(found.end).all()
        assert len(found.orders["progressive"]) == 10


def test_classes():
    from river import multiclass, naive_bayes

    three, two = classes(60), classes(60, count=2)
    several = multiclass.OneVsRestClassifier(linear_model.LogisticRegression())
    for model, stream in (
        (several, three),
        (naive_bayes.GaussianNB(), three),
        (linear_model.LogisticRegression(), two),
        (linear_model.Perceptron(), two),
    ):
        found = run(model, stream)
        assert found.score("random order", "progressive").accuracy.value > 0.5
        np.testing.assert_allclose(found.end.sum(1), 1)
    with pytest.raises(InvalidInputError, match="LogisticRegression of river"):
        run(linear_model.LogisticRegression(), three)


def test_nearest_neighbors_know_no_order():
    """The same rows are wrong in every order; where a resample has none of them, 0 / 0 is 0."""
    from river import neighbors

    options = options_for(model=neighbors.KNNClassifier(n_neighbors=1), metric="accuracy")
    found = diagnose_model(split(classes(150), None, options), options)
    for question in found.questions:
        came, shuffled = (found.score(way, question) for way in ("as it came", "random order"))
        np.testing.assert_allclose(shuffled.loss, came.loss, atol=1e-12)
        np.testing.assert_allclose(shuffled.change, 0, atol=1e-12)
