"""Gradients of training are compared with those of the corrector's loss at a few steps."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from retarget.errors import InvalidInputError
from retarget.integrations.gradients import GradientCheck
from support.corrected_training import (
    LEARNER,
    Penalty,
    assert_same,
    make,
    network,
    sgd,
    step_loss,
    tasks,
)

SUM = replace(LEARNER, reduction="sum", lr=0.002)
X, Y = tasks((72,))[0]
HOT = torch.eye(2).double()[(Y[:, 0] > 0).long()]


def nothing(module, step):
    return 0.0


def late(module, step):
    return 0.1 * module[0].bias.sum() if step >= 3 else 0.0


def train(
    penalty=nothing, learner=LEARNER, factor=1.0, targets=Y, parts=1, closure=False, checked=True,
    optimizer=None, change=None, module=None, **options,
):  # fmt: skip
    """A plain loop over all samples, watched; returns the network."""
    module = module or network()
    corrector = make(module, learner, **options)
    optimizer = (optimizer or sgd)(module, learner)
    check = GradientCheck()
    if checked:
        check.open(corrector, optimizer)
    for step, rows in enumerate(torch.arange(len(X)).split(learner.batch_size)):

        def gradients(step=step, rows=rows):
            optimizer.zero_grad()
            for part in rows.split(len(rows) // parts):
                check.add(X[part], targets[part])
                loss = step_loss(module(X[part]), targets[part], learner, corrector.loss)
                share = 1 / parts if learner.reduction == "mean" else 1.0
                (factor * share * loss + penalty(module, step)).backward()
            if change is not None:
                change(module)
            return loss

        if closure:
            optimizer.step(closure=gradients) if closure == "named" else optimizer.step(gradients)
        else:
            gradients()
            optimizer.step()
    check.close()
    return module


def clipped(module):
    nn.utils.clip_grad_norm_(module.parameters(), 1e-3)


def adam(module, learner):
    return torch.optim.Adam(module.parameters(), learner.lr)


def noisy():
    layers = list(network())
    layers.insert(1, nn.Dropout(0.4))
    layers.insert(1, nn.BatchNorm1d(300).double())
    return nn.Sequential(*layers)


SILENT = {
    "mean": {},
    "sum": {"learner": SUM},
    "cross-entropy": {"targets": HOT, "loss": "cross-entropy"},
    "accumulated": {"parts": 3},
    "accumulated sums": {"parts": 2, "learner": SUM},
    "closure": {"closure": True},
    "named closure": {"closure": "named"},
    "weight decay, as the message advises": {"learner": replace(LEARNER, weight_decay=0.3)},
    "Adam": {"optimizer": adam},
    "some parameters": {"params": "2"},
    "no error at all": {"targets": network()(X).detach()},
}


@pytest.mark.parametrize("what", SILENT)
def test_a_true_match_is_silent_and_changes_nothing(what):
    found, expected = train(**SILENT[what]), train(checked=False, **SILENT[what])
    assert_same(found, expected, tolerance=0)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_noise_and_buffers_as_without_it(precision, monkeypatch):
    monkeypatch.setattr("test_gradients.X", X.to(precision))
    monkeypatch.setattr("test_gradients.Y", Y.to(precision))
    found = []
    for checked in (True, False):
        torch.manual_seed(5)
        module = train(module=noisy().to(precision), targets=Y.to(precision), checked=checked)
        found.append((module.state_dict(), torch.get_rng_state()))
    (a, first), (b, second) = found
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert torch.equal(first, second)


FOUND = {
    "L2-SP": ({"penalty": Penalty(1.0)}, r"at step 1 of the task the gradients differ by"),
    "EWC": ({"penalty": Penalty(2.0, True)}, "at step 1 of the task the gradients differ by"),
    "weak": (
        {"penalty": Penalty(0.05)},
        "at step [248] of the task the gradients differ by 0.[1-9]%",
    ),
    "late": ({"penalty": late}, r"at step 4 of .* differ by .* .most in 0.bias. from those"),
    "L2-SP, accumulated": ({"penalty": Penalty(1.0), "parts": 2}, "at step 1 of the task"),
    "L2-SP, closure": ({"penalty": Penalty(1.0), "closure": True}, "at step 1 of the task"),
    "L2-SP, Adam": ({"penalty": Penalty(1.0), "optimizer": adam}, "at step 1 of the task"),
    "L2-SP, cross-entropy": (
        {"penalty": Penalty(1.0), "targets": HOT, "loss": "cross-entropy"},
        "at step 1 .*nn.functional.cross_entropy.outputs, targets, .* with the mean",
    ),
    "clipped": ({"change": clipped}, "at step 0 of the task the gradients are 0.0.* times those"),
    "mean squared error": ({"factor": 2.0}, r"at step 0 .* are 2 times those .*0.5 \* .outputs"),
    "sum for mean": ({"factor": 6.0}, "are 6 times .* the mean over the mini-batch; .*reduction"),
    "not a number": ({"factor": math.nan}, "at step 0 of the task the gradients differ by nan%"),
    "nothing learned": ({"factor": 0.0}, "at step 0 of the task the gradients are 0 times"),
}


@pytest.mark.parametrize("what", FOUND)
def test_changed_gradients_are_found_before_the_step(what):
    options, message = FOUND[what]
    if "penalty" in options and isinstance(options["penalty"], Penalty):
        options["penalty"].start = None
    module = network()
    with pytest.raises(InvalidInputError, match=message):
        train(module=module, **options)
    if "step 0" in message:
        assert_same(module, network(), tolerance=0)


def test_few_steps_are_compared():
    module, calls = network(), []
    module.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    train(module=module)
    assert len(calls) - 12 == len([0, 1, 2, 4, 8])  # of 12 steps


def test_what_is_closed_watches_no_more():
    module = network()
    optimizer = sgd(module, LEARNER)
    check = GradientCheck()
    check.open(make(module), optimizer)
    check.add(X[:6], Y[:6])
    check.close()
    module(X[:6]).sum().backward()
    optimizer.step()
