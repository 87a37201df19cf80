"""The plain loop on corrected targets that every adapter must agree with, on small problems."""

import re

import torch
from torch import nn
from torch.nn import functional

import retarget as rt
from retarget.samples import take

LEARNER = rt.SGD(0.01, batch_size=6, reduction="mean")
OPTIONS = {"gamma": 20.0, "block_size": 12, "ridge": 3.0}
CLOSED = {"gamma": 0.5, "block_size": 12, "features": 64, "replay": 0, "seed": 4}


def network(seed=3):
    """Five inputs, two outputs."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 300), nn.Tanh(), nn.Linear(300, 2)).double()


def make(module, learner=LEARNER, **options):
    return rt.NetworkCorrector(module, learner, **(OPTIONS | options))


def closed_loop(module, learner=LEARNER, **options):
    return rt.ClosedLoopCorrector(module, learner, **(CLOSED | options))


def tasks(sizes=(48, 36), seed=0):
    """Inputs and real targets of each task."""
    random = torch.Generator().manual_seed(seed)
    found = []
    for n in sizes:
        x = torch.randn(n, 5, generator=random).double()
        found.append((x, torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2]], 1)))
    return found


def row_losses(outputs, targets, loss="squared"):
    """The loss of each row, written out."""
    if loss == "squared":
        return (outputs - targets).square().sum(1) / 2
    if targets.shape[1] == 1:
        entropy = functional.binary_cross_entropy_with_logits
        return entropy(outputs, targets, reduction="none")[:, 0]
    return functional.cross_entropy(outputs, targets, reduction="none")


def step_loss(outputs, targets, learner, loss="squared"):
    """The loss of one step."""
    each = row_losses(outputs, targets, loss)
    return each.mean() if learner.reduction == "mean" else each.sum()


def sgd(module, learner):
    trained = [value for value in module.parameters() if value.requires_grad]
    return torch.optim.SGD(
        trained,
        learner.rate(0),
        learner.momentum,
        weight_decay=learner.weight_decay,
        nesterov=learner.nesterov,
    )


def pass_over(module, X, Z, learner, loss="squared", step=0, optimizer=None):
    """Trains the module on targets, once, from this step on; gives the number of the next step."""
    optimizer = optimizer or sgd(module, learner)
    for x, z in zip(X.split(learner.batch_size), Z.split(learner.batch_size), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = learner.rate(step)
        optimizer.zero_grad()
        step_loss(module(x), z, learner, loss).backward()
        optimizer.step()
        step += 1
    return step


def by_hand(module, corrector, streams, *, optimizer=None, epochs=1, block=0, first_true=False):
    """Trains the module on corrected targets, step by step; gives the targets of each pass.

    Args:
        module: It is changed.
        corrector: A corrector of the module, of either kind.
        streams: Samples and true targets of each task.
        optimizer: SGD as the learner says, if none is given.
        epochs: Passes over each task.
        block: Samples in a block of the closed loop.
        first_true: Whether the first task is trained on its true targets.
    """
    optimizer = optimizer or sgd(module, corrector.learner)
    step, targets = 0, []
    for number, (X, Y) in enumerate(streams):
        for epoch in range(epochs):
            true = first_true and not number
            for samples, Z in _corrected(corrector, X, Y, epoch, block, true):
                targets.append(Z)
                for rows in torch.arange(len(Z)).split(corrector.learner.batch_size):
                    if not isinstance(corrector.learner.lr, float):
                        optimizer.param_groups[0]["lr"] = corrector.learner.rate(step)
                    inputs = take(samples, rows)
                    nested = isinstance(inputs, dict)
                    outputs = module(**inputs).logits if nested else module(inputs)
                    optimizer.zero_grad()
                    step_loss(outputs, Z[rows], corrector.learner, corrector.loss).backward()
                    optimizer.step()
                    step += 1
    return targets


def _corrected(corrector, X, Y, epoch, block, true):
    if true:
        corrector.resume([(X, Y)], Y)
        yield X, Y
    elif block:
        for rows in torch.arange(len(Y)).split(block):
            yield corrector.next_block(take(X, rows), Y[rows])
    else:
        yield X, corrector.recorrect() if epoch else corrector.correct(X, Y)


def trained(learner=LEARNER, streams=None, epochs=1, block=0, **options):
    """The small network after the tasks in a plain loop."""
    module = network()
    corrector = (closed_loop if block else make)(module, learner, **options)
    by_hand(module, corrector, streams or tasks(), epochs=epochs, block=block)
    return module


class Penalty:
    """Half the weighted squared distance from the weights at the start: 0 in the first step."""

    def __init__(self, size, weighted=False):
        self.size, self.weighted, self.start = size, weighted, None

    def __call__(self, module, step=0):
        if self.start is None:  # L2-SP, or EWC with some Fisher information
            self.start = [value.detach().clone() for value in module.parameters()]
        weights = [1 + value.abs() if self.weighted else 1.0 for value in self.start]
        pairs = zip(weights, module.parameters(), self.start, strict=True)
        return self.size / 2 * sum((w * (p - q).square()).sum() for w, p, q in pairs)


def arguments_in(message, setting):
    """The arguments that an error message says would do, as a dict."""
    advice = re.search(rf"set {setting}\((.*)\)", message)[1]
    return eval(f"dict({advice})")  # keyword arguments, as Python writes them


def assert_same(module, expected, tolerance=1e-10, start=None):
    """The same weights, which have moved away from where they started."""
    for (name, a), b in zip(module.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=0, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )
    if start is not None:
        pairs = zip(module.parameters(), start.parameters(), strict=True)
        assert max((a - b).abs().max() for a, b in pairs) > 1e-3
