"""The kernel machine that describes a model does what the model does."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import PassiveAggressiveRegressor, SGDRegressor
from torch import nn

from retarget.diagnosis.measure.groups import partition
from retarget.diagnosis.measure.holdout import as_tensors
from retarget.diagnosis.models import equivalent
from retarget.diagnosis.models.equivalent import (
    NoDescriptionError,
    describe,
    open_description,
    predicted_movement,
    squared_error_factor,
)
from retarget.diagnosis.models.runs import pass_as_it_came
from retarget.engine.losses import batch_loss
from retarget.engine.stream_kernel import DenseKernel, FeatureKernel
from retarget.errors import StreamTooLargeError
from support.diagnosis_streams import as_stream, drifting
from support.user_models import OneByOne, RunningMean, network, opened, quietly


def movements(model, stream, **options):
    """What the model did and what the theory says, end - after, and the description."""
    model = opened(model, stream, **options)
    passage = pass_as_it_came(model, stream, partition(stream), 0, quietly)
    X, Y = as_tensors(stream)
    described = describe(model, X)
    machine = open_description(described, X, Y)
    start = machine.start.numpy()
    np.testing.assert_allclose(start, model.fresh().predict(stream.X), atol=1e-12)
    np.testing.assert_allclose(machine.kernel.Y.numpy(), stream.Y - start, atol=1e-12)
    return passage, predicted_movement(machine), described, machine.kernel


CONSTANT = {"penalty": None, "learning_rate": "constant", "eta0": 0.03}


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("rate", ["constant", "invscaling"])
def test_a_linear_model_of_scikit_learn(intercept, rate):
    stream = drifting(157, dimensions=5)
    stream = as_stream(stream.X + 0.4, stream.Y + 0.7)
    options = CONSTANT | {"fit_intercept": intercept, "learning_rate": rate, "power_t": 0.3}
    passage, theory, described, kernel = movements(SGDRegressor(**options), stream)
    assert "is exact" in described.words
    assert isinstance(kernel, FeatureKernel)
    assert np.abs(theory).max() > 0.1
    np.testing.assert_allclose(passage.end - passage.after, theory, atol=1e-9)
    # the same by hand: one step moves the prediction of a row by eta (1 + x.x) times its error
    etas = 0.03 / np.arange(1, 158) ** (0.3 * (rate == "invscaling"))
    steps = etas * (np.square(stream.X).sum(1) + intercept)
    moved = passage.after - passage.before
    np.testing.assert_allclose(moved, steps[:, None] * (stream.Y - passage.before), atol=1e-10)


def test_a_penalty_leaves_the_intercept_alone():
    stream = drifting(157, dimensions=5)
    options = CONSTANT | {"penalty": "l2", "alpha": 0.01}
    shifted = as_stream(stream.X, stream.Y + 2)
    passage, theory, described, _ = movements(SGDRegressor(**options), shifted)
    assert "nearly exact: the penalty alpha = 0.01" in described.words
    gap = np.abs(passage.end - passage.after - theory).max()
    assert 1e-4 < gap < 0.2 * np.abs(theory).max()
    options["fit_intercept"] = False
    passage, theory, described, _ = movements(SGDRegressor(**options), stream)
    assert "is exact" in described.words
    np.testing.assert_allclose(passage.end - passage.after, theory, atol=1e-9)


LOSSES = {
    "half": partial(batch_loss, reduction="sum"),
    "half mean": partial(batch_loss, reduction="mean"),
    "mean": nn.MSELoss(),
    "sum": nn.MSELoss(reduction="sum"),
    "own": lambda p, y: 3 * (p - y).square().mean(1).sum(),
}


ALL = {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("loss", "optimizer"),
    [
        *((loss, ALL) for loss in LOSSES),
        ("half", {}),
        ("mean", {"momentum": 0.6}),
        ("sum", {"momentum": 0.6, "nesterov": True}),
        ("own", {"weight_decay": 0.2}),
    ],
)
def test_a_linear_module_is_its_description(loss, optimizer):
    stream = drifting(85, outputs=2, dimensions=4)
    module = network(4, 2, seed=3)
    sgd = torch.optim.SGD(module.parameters(), lr=0.02, **optimizer)
    passage, theory, described, _ = movements((module, sgd, LOSSES[loss]), stream, batch_size=6)
    assert "is exact" in described.words
    assert np.abs(theory).max() > 0.05
    np.testing.assert_allclose(passage.end - passage.after, theory, atol=1e-10)


def test_groups_with_different_rates():
    stream = drifting(85, outputs=2, dimensions=4)
    module = network(4, 2, seed=3)
    parts = [{"params": [module.weight]}, {"params": [module.bias], "lr": 0.09}]
    sgd = torch.optim.SGD(parts, lr=0.02, momentum=0.4)
    passage, theory, described, _ = movements((module, sgd, LOSSES["half"]), stream, batch_size=6)
    assert "is exact" in described.words
    np.testing.assert_allclose(passage.end - passage.after, theory, atol=1e-10)


class Scaled(nn.Module):
    """Linear in its parameters, but the second output is three times as sensitive, or the same."""

    def __init__(self, shared):
        super().__init__()
        self.weight, self.shared = nn.Parameter(torch.zeros(4, 2, dtype=torch.float64)), shared

    def forward(self, x):
        weight = self.weight[:, :1] if self.shared else self.weight
        return x @ weight * torch.tensor([1.0, 3.0], dtype=torch.float64)


@pytest.mark.parametrize("shared", [True, False])
def test_outputs_with_different_kernels(shared):
    stream, module = drifting(85, outputs=2, dimensions=4), Scaled(shared)
    sgd = torch.optim.SGD(module.parameters(), lr=0.01)
    model = module, sgd, LOSSES["half"]
    passage, theory, described, _ = movements(model, stream, batch_size=6)
    assert "outputs have different kernels or share parameters: this is approx" in described.words
    assert "the mean of their kernels is used" in described.words
    assert np.abs(passage.end - passage.after - theory).max() > 0.1 * np.abs(theory).max()


def test_frozen_and_unoptimized_parameters():
    stream = drifting(70, dimensions=4)
    frozen, other = network(4, 1, hidden=20), network(4, 1, hidden=20)
    frozen[0].requires_grad_(False)
    last = torch.optim.SGD(other[2].parameters(), lr=0.02)
    for model in (frozen, (other, last)):
        passage, theory, described, kernel = movements(model, stream, lr=0.02)
        assert "is exact" in described.words
        assert isinstance(kernel, FeatureKernel)
        np.testing.assert_allclose(passage.end - passage.after, theory, atol=1e-10)


def test_a_wide_network_is_nearly_described():
    stream = drifting(70, outputs=2, dimensions=4)
    passage, theory, described, kernel = movements(network(4, 2, hidden=300), stream, lr=0.002)
    assert isinstance(kernel, DenseKernel)
    assert "not linear in its parameters" in described.words
    assert "the mean of their kernels" in described.words
    shift = passage.end - passage.after
    gap = np.linalg.norm(shift - theory) / np.linalg.norm(theory)
    assert 1e-5 < gap < 0.5


def test_few_and_too_many_rows(monkeypatch):
    stream = drifting(9, dimensions=8)
    passage, theory, _, kernel = movements(SGDRegressor(**CONSTANT), stream)
    assert isinstance(kernel, DenseKernel)
    np.testing.assert_allclose(passage.end - passage.after, theory, atol=1e-9)
    long = drifting(400, dimensions=3)
    X, Y = as_tensors(long)
    wild = describe(opened(SGDRegressor(**(CONSTANT | {"eta0": 80.0})), long), X)
    assert predicted_movement(open_description(wild, X, Y)) is None
    monkeypatch.setattr(equivalent, "MOST_ROWS", 8)
    with pytest.raises(StreamTooLargeError, match="9 features; expected at most 8"):
        movements(SGDRegressor(**CONSTANT), stream)


def test_the_factor_of_a_squared_error_is_measured():
    for loss, factor in (
        (nn.MSELoss(), 2 / 15),
        (nn.MSELoss(reduction="sum"), 2.0),
        (partial(batch_loss, reduction="mean"), 1 / 5),
        (nn.L1Loss(), None),
        (nn.CrossEntropyLoss(), None),
        (lambda p, y: (p - 1.01 * y).square().sum(), None),
        (lambda p, y: (p - y).square().sum(0)[0], None),
        (lambda p: p, None),
    ):
        found = squared_error_factor(loss, 5, 3)
        assert found == (None if factor is None else pytest.approx(factor, rel=1e-12))


def with_optimizer(kind=torch.optim.SGD, **options):
    module = network(3)
    return module, kind(module.parameters(), lr=0.1, **options)


class Single(nn.Linear):
    """It knows single precision only."""

    def forward(self, X):
        return super().forward(X) + torch.ones(1).float() @ self.weight.new_ones(1)


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (RunningMean(), {}, "No known kernel describes RunningMean; among models with partial"),
        (PassiveAggressiveRegressor, {}, "No known kernel describes PassiveAggressiveRe"),
        (SGDRegressor(loss="huber"), {}, "with loss='huber'; a linear kernel would, with"),
        (SGDRegressor(penalty="l1", average=True), {}, "with penalty='l1', average=True"),
        (SGDRegressor(learning_rate="adaptive"), {}, "with learning_rate='adaptive'"),
        (SGDRegressor(), {"batch_size": 4}, "in mini-batches of 4 rows: it shuffles them"),
        (OneByOne(), {}, "models with learn_one, one is known for river's LinearReg"),
        (with_optimizer(torch.optim.Adam), {}, "with Adam: one is known only for torch.optim.SGD"),
        (with_optimizer(momentum=0.5, dampening=0.1), {}, "in parameter group 0 dampening is 0.1"),
        ((*with_optimizer(), nn.L1Loss()), {}, "its loss, L1Loss, is not a squared error"),
        (nn.Sequential(network(3), nn.Dropout()), {"lr": 0.1}, "its Dropout layer behaves diff"),
        (Single(3, 1), {"lr": 0.1}, "Single with SGD, which fails in double precis"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_no_kernel_describes(model, options, reason):
    stream = drifting(30, dimensions=3)
    model = opened(model, stream, **options)
    with pytest.raises(NoDescriptionError, match=reason):
        describe(model, as_tensors(stream)[0])
