"""Corrected targets for a loop that trains a network by cross-entropy."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import retarget as rt

LEARNER = rt.SGD(0.3, batch_size=3, reduction="mean")
TASKS = slice(0, 12), slice(12, 30)
GAMMA, BLOCK = 0.7, 6


def classes(outputs, n=30, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    if outputs == 1:
        return torch.tensor(X), torch.tensor(X[:, :1] > 0).double()
    return torch.tensor(X), torch.eye(outputs, dtype=torch.float64)[X[:, :outputs].argmax(1)]


def linear(outputs):
    network = nn.Linear(5, outputs, bias=False).double()
    nn.init.zeros_(network.weight)
    return network


def train(network, X, Z):
    optimiser = torch.optim.SGD(network.parameters(), lr=LEARNER.lr)
    binary = functional.binary_cross_entropy_with_logits
    loss_of = binary if Z.shape[1] == 1 else functional.cross_entropy
    for x, z in zip(X.split(3), Z.split(3), strict=True):
        optimiser.zero_grad()
        (loss_of(network(x), z, reduction="sum") / len(x)).backward()
        optimiser.step()


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("kind", ["iterative", "exact"])
@pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
def test_a_linear_network_agrees_with_logistic_regression_after_each_task(kind, outputs):
    (X, Y), network = classes(outputs), linear(outputs)
    corrector = rt.NetworkCorrector(network, LEARNER, GAMMA, BLOCK, kind=kind, loss="cross-entropy")
    for task in TASKS if kind == "iterative" else (slice(0, 30),):
        train(network, X[task], corrector.correct(X[task], Y[task]))
        seen = slice(0, task.stop)
        A = rt.offline_coefficients(X[seen] @ X[seen].T, Y[seen], GAMMA, loss="cross-entropy")
        rows = slice(task.stop - BLOCK if kind == "iterative" else 0, task.stop)
        # of a kernel of rank 5 a block of 6 samples pins all down
        torch.testing.assert_close(network(X[rows]), X[rows] @ X[seen].T @ A, rtol=0, atol=1e-7)


def test_the_network_is_compared_with_what_cross_entropy_makes_of_it():
    (X, Y), network = classes(3), nn.Linear(5, 3).double()  # linear: its kernel stands still
    corrector = rt.NetworkCorrector(network, LEARNER, 5.0, BLOCK, loss="cross-entropy")
    assert corrector.linearisation_error is None
    for task in TASKS:
        train(network, X[task], corrector.correct(X[task], Y[task]))
    corrector.correct(X[:3], Y[:3])
    assert 0 < corrector.linearisation_error < 1e-10
    corrector.trust()
    assert corrector.linearisation_error is None
