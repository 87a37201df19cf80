"""Where a network does not do what its kernel says, the corrector says so, once."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt

LEARNER = rt.SGD(0.002, batch_size=4, reduction="sum")


def relu_net(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2)).double()


def curves():
    X = np.random.default_rng(1).normal(size=(48, 6))
    return torch.tensor(X), torch.tensor(np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], axis=1))


def train(module, X, Z):
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNER.lr)
    for x, z in zip(X.split(4), Z.split(4), strict=True):
        optimizer.zero_grad()
        ((module(x) - z).square().sum() / 2).backward()
        optimizer.step()


@pytest.mark.parametrize("loop", [{}, {"memory": 64}], ids=["open", "closed"])
def test_a_wide_network_is_where_it_should_be_and_a_narrow_one_is_not(loop):
    for width, far in ((2048, 1), (3, 100 if loop else 20)):
        module, (X, Y) = relu_net(width), curves()
        corrector = rt.NetworkCorrector(module, LEARNER, 1.0 if loop else width / 4, 8, **loop)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            block = X[:8].clone()  # one array for all blocks, as a loader may have
            for x, y in zip(X.split(8), far * torch.stack(Y.split(8)), strict=True):
                block.copy_(x)
                train(module, x, corrector.correct(block, y))
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


@pytest.mark.parametrize(("loop", "trusted"), [({}, False), ({"memory": 64}, False), ({}, True)])
def test_a_warning_that_is_an_error_is_raised_once_and_never_after_trust(loop, trusted):
    module, (X, Y) = relu_net(3), curves()
    corrector = rt.NetworkCorrector(module, LEARNER, 1.0, 8, **loop)
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
def test_a_network_that_was_not_trained_is_not_compared(dtype):
    """Rounding is no training: other shapes and other CPUs round the last digits differently."""
    module, (X, Y) = relu_net(16).to(dtype), (part.to(dtype) for part in curves())
    corrector = rt.NetworkCorrector(module, LEARNER, 4.0, 8)
    corrector.correct(X[:8], Y[:8])
    with torch.no_grad():
        module[2].weight.mul_(1 + 4 * torch.finfo(dtype).eps)
    corrector.correct(X[8:], Y[8:])
    assert corrector.linearization_error is None


def test_a_second_pass_over_a_task_is_not_compared():
    module, (X, Y) = relu_net(3), curves()
    corrector = rt.NetworkCorrector(module, LEARNER, 1.0, 8)
    corrector.correct(X[:8], Y[:8])
    corrector.recorrect()
    module[2].weight.data.add_(50.0)
    corrector.correct(X[8:16], Y[8:16])
    assert corrector.linearization_error is None
