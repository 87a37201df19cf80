"""Where a network does not do what its kernel says, the corrector says so, once."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget.networks.linearization import decaying_part, linear_outputs, outputs
from support.corrected_training import pass_over

# no test is about how large targets are
pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
LEARNER = rt.SGD(0.002, batch_size=4, reduction="sum")


def relu_net(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2)).double()


def curves():
    X = np.random.default_rng(1).normal(size=(48, 6))
    return torch.tensor(X), torch.tensor(np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], axis=1))


def closed_loop(module, gamma):
    return rt.ClosedLoopCorrector(module, LEARNER, 1.0, 64, 8, replay=0)


def open_loop(module, gamma):
    return rt.NetworkCorrector(module, LEARNER, gamma, 8)


@pytest.mark.parametrize("made", [open_loop, closed_loop])
def test_wide_and_narrow_networks(made):
    for width, far in ((2048, 1), (3, 20 if made is open_loop else 300)):
        module, (X, Y) = relu_net(width), curves()
        corrector = made(module, width / 4)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", rt.errors.LargeTargetsWarning)
            block = X[:8].clone()  # one array for all blocks, as a loader may have
            for x, y in zip(X.split(8), far * torch.stack(Y.split(8)), strict=True):
                block.copy_(x)
                pass_over(module, x, corrector.correct(block, y), LEARNER)
            block.zero_()
            corrector.correct(X[:8], far * Y[:8])
        if width == 2048:
            assert not caught
            assert corrector.linearization_error < 0.01
        else:
            (told,) = caught  # once, at the caller's line
            assert told.category is rt.errors.LinearizationWarning
            assert "has left its linearization" in str(told.message)
            assert told.filename == __file__


@pytest.mark.parametrize("made", [open_loop, closed_loop])
def test_small_movements_are_compared_too(made):
    module, (X, Y) = nn.Linear(6, 2).double(), curves()
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    corrector = made(module, 1.0)
    pass_over(module, X[:8], corrector.correct(X[:8], 1e-6 * Y[:8]), LEARNER)
    corrector.correct(X[8:16], 1e-6 * Y[8:16])
    assert corrector.linearization_error < 1e-6  # a linear network does what its kernel says


@pytest.mark.parametrize(
    ("made", "trusted"), [(open_loop, False), (closed_loop, False), (open_loop, True)]
)
def test_the_warning_is_raised_once(made, trusted):
    module, (X, Y) = relu_net(3), curves()
    corrector = made(module, 1.0)
    corrector.correct(X[:8], Y[:8])
    with torch.no_grad():
        module[2].weight.add_(50.0)
    if trusted:
        corrector.trust()
    else:
        with pytest.raises(rt.errors.LinearizationWarning, match="has left its linearization"):
            corrector.correct(X[8:16], Y[8:16])
    assert len(corrector.correct(X[8:16], Y[8:16])) == 8
    if trusted:
        assert len(corrector.recorrect()) == 8
        assert corrector.linearization_error is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_untrained_network_is_not_compared(dtype):
    """Rounding is no training: other shapes and other CPUs round the last digits differently."""
    module, (X, Y) = relu_net(16).to(dtype), (part.to(dtype) for part in curves())
    corrector = rt.NetworkCorrector(module, LEARNER, 4.0, 8)
    corrector.correct(X[:8], Y[:8])
    with torch.no_grad():
        module[2].weight.mul_(1 + 4 * torch.finfo(dtype).eps)
    corrector.correct(X[8:], Y[8:])
    assert corrector.linearization_error is None


def test_a_second_pass_is_not_compared():
    module, (X, Y) = relu_net(3), curves()
    corrector = rt.NetworkCorrector(module, LEARNER, 1.0, 8)
    corrector.correct(X[:8], Y[:8])
    corrector.recorrect()
    module[2].weight.data.add_(50.0)
    corrector.correct(X[8:16], Y[8:16])
    assert corrector.linearization_error is None


DECAYING = rt.SGD([0.02, 0.015, 0.03] * 8, 3, weight_decay=0.7, reduction="mean")


def in_weight_space(module, names, X, Z):
    """Outputs of the linearized network after SGD with weight decay on Z, step by step."""
    weights = {name: value.detach() for name, value in module.named_parameters()}
    trained = {name: weights[name] for name in names}
    J = torch.func.jacrev(lambda w: torch.func.functional_call(module, weights | w, (X,))[:, 0])
    J = torch.cat([part.flatten(1) for part in J(trained).values()], 1)
    start = torch.cat([value.flatten() for value in trained.values()])
    f, w = module(X).detach()[:, 0], start.clone()
    for step, rows in enumerate(torch.arange(len(X)).split(3)):
        errors = Z[rows, 0] - f[rows] - J[rows] @ (w - start)
        w = w + DECAYING.lr[step] * (J[rows].T @ errors / len(rows) - 0.7 * w)
    return (f + J @ (w - start))[:, None]


@pytest.mark.parametrize("names", [["0.weight", "0.bias", "2.weight", "2.bias"], ["2.weight"]])
def test_weight_decay_shrinks_the_first_weights(names):
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    X, Y = curves()
    X, Z = X[:14], 3 * Y[:14, :1]  # the last mini-batch is short
    K = rt.EmpiricalNTK(module, params=names)(X)
    before, decaying = outputs(module, X), decaying_part(module, X, names)
    found = linear_outputs(K, before, Z, DECAYING, 0, "squared", decaying)
    expected = in_weight_space(module, names, X, Z)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
    assert (found - linear_outputs(K, before, Z, DECAYING, 0, "squared")).abs().max() > 0.01


def test_a_linear_network_with_weight_decay():
    torch.manual_seed(1)
    module, (X, Y) = nn.Linear(6, 2).double(), curves()
    corrector = rt.NetworkCorrector(module, DECAYING, 3.0, 6)
    step = 0
    for task in (slice(0, 24), slice(24, 48)):
        corrector.learner = replace(DECAYING, lr=DECAYING.lr[: task.stop // 3])
        step = pass_over(module, X[task], corrector.correct(X[task], Y[task]), DECAYING, step=step)
    assert 0 < corrector.linearization_error < 1e-8
