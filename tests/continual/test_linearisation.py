"""Where a network does not do what its kernel says, the corrector says so, once."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt

RATE, BATCH, BLOCK = 0.002, 4, 8


def network(width, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2)).double()


def problem(n=48):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 6))
    return torch.tensor(X), torch.tensor(np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], axis=1))


def train(module, X, Z):
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    for x, z in zip(X.split(BATCH), Z.split(BATCH), strict=True):
        optimiser.zero_grad()
        ((module(x) - z).square().sum() / 2).backward()
        optimiser.step()


def follow(width, mode):
    """Corrects and trains, block by block or task by task; what was warned of, and how far off."""
    module, (X, Y) = network(width), problem()
    learner = rt.SGD(RATE, batch_size=BATCH)
    loop = {"memory": 64} if mode == "closed" else {}
    if width == 3:
        Y = Y * (100 if mode == "closed" else 20)  # far to go
    gamma = 1.0 if mode == "closed" else width / 4
    corrector = rt.NetworkCorrector(module, learner, gamma, BLOCK, **loop)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x, y in zip(X.split(BLOCK), Y.split(BLOCK), strict=True):
            train(module, x, corrector.correct(x, y))
        corrector.correct(X[:BLOCK], Y[:BLOCK])
    return caught, corrector.linearisation_error


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_a_wide_network_is_where_it_should_be_and_a_narrow_one_is_not(mode):
    caught, off = follow(2048, mode)
    assert not caught
    assert off < 0.01
    caught, off = follow(3, mode)
    (told,) = caught  # once, at the caller's line
    assert told.category is rt.errors.LinearisationWarning
    assert "has left its linearisation" in str(told.message)
    assert told.filename == __file__
    assert off is not None


def start(**options):
    """A corrector of a narrow network, after its first block."""
    module, (X, Y) = network(3), problem()
    corrector = rt.NetworkCorrector(module, rt.SGD(RATE, batch_size=BATCH), 1.0, BLOCK, **options)
    corrector.correct(X[:8], Y[:8])
    return corrector, module, (X[8:16], Y[8:16])


def test_a_network_that_was_not_trained_is_not_compared():
    corrector, _, task = start()
    corrector.correct(*task)
    assert corrector.linearisation_error is None


@pytest.mark.parametrize("options", [{}, {"memory": 64}], ids=["open", "closed"])
def test_a_warning_that_is_an_error_is_raised_once(options):
    corrector, module, task = start(**options)
    with torch.no_grad():
        module[2].weight.add_(50.0)
    with pytest.raises(rt.errors.LinearisationWarning, match="has left its linearisation"):
        corrector.correct(*task)
    assert len(corrector.correct(*task)) == 8


def test_it_can_be_switched_off():
    corrector, module, task = start()
    corrector.trust()
    with torch.no_grad():
        module[2].weight.add_(50.0)
    corrector.correct(*task)
    assert corrector.linearisation_error is None
    corrector.recorrect()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_not_taken_for_training(dtype):
    """Other shapes and other CPUs round the last digits differently."""
    module, (X, Y) = network(16).to(dtype), (part.to(dtype) for part in problem())
    corrector = rt.NetworkCorrector(module, rt.SGD(RATE, batch_size=BATCH), 4.0, BLOCK)
    corrector.correct(X[:BLOCK], Y[:BLOCK])
    with torch.no_grad():
        module[2].weight.mul_(1 + 4 * torch.finfo(dtype).eps)
    corrector.correct(X[BLOCK:], Y[BLOCK:])
    assert corrector.linearisation_error is None
