"""The online learner as PyTorch runs it: step by step, in weight space, by torch.optim.SGD."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional


@dataclass
class Run:
    """What was seen on the way: the error before each step, the weights after each step.

    With several epochs, the errors are those of the last one.
    """

    errors: np.ndarray
    weights: np.ndarray
    history: list[np.ndarray] = field(default_factory=list)
    coasted: list[np.ndarray] = field(default_factory=list)


def train(
    features, targets, learner, start=None, coast_after=(), loss="squared", epochs=1, offset=None
):
    """Passes over explicit features (n, d) with targets (n, c), in mini-batches.

    For each step of `coast_after`, `coasted` holds the weights at which a copy of the optimizer
    comes to rest after that step, without gradient or decay. `offset` (n, c) is added to the
    predictions.
    """
    features, targets = torch.as_tensor(features), torch.as_tensor(targets)
    offset = torch.zeros_like(targets) if offset is None else torch.as_tensor(offset)
    W = torch.zeros(features.shape[1], targets.shape[1], dtype=features.dtype)
    if start is not None:
        W += torch.as_tensor(start)
    W.requires_grad_()
    optimizer = torch.optim.SGD(
        [W],
        lr=1.0,
        momentum=learner.momentum,
        nesterov=learner.nesterov,
        weight_decay=learner.weight_decay,
    )
    run = Run(np.zeros(targets.shape), np.zeros(W.shape))
    steps = learner.steps(len(targets))
    rates = np.broadcast_to(np.asarray(learner.lr), (epochs * steps,))
    for step, rate in enumerate(rates):
        first = step % steps * learner.batch_size
        rows = slice(first, first + learner.batch_size)
        optimizer.param_groups[0]["lr"] = float(rate)
        optimizer.zero_grad()
        outputs = offset[rows] + features[rows] @ W
        _loss(outputs, targets[rows], loss, learner.reduction).backward()
        optimizer.step()
        run.errors[rows] = (targets[rows] - _means(outputs.detach(), loss)).numpy()
        run.history.append(W.detach().numpy().copy())
        if step in coast_after:
            run.coasted.append(_coast(W, optimizer))
    run.weights = run.history[-1]
    return run


def _loss(outputs, targets, loss, reduction):
    """The loss of a mini-batch as PyTorch has it."""
    if loss == "squared":
        total = 0.5 * (targets - outputs).square().sum()
        return total / len(targets) if reduction == "mean" else total
    if targets.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(outputs, targets, reduction=reduction)
    return functional.cross_entropy(outputs, targets, reduction=reduction)


def _means(outputs, loss):
    if loss == "squared":
        return outputs
    return torch.sigmoid(outputs) if outputs.shape[1] == 1 else torch.softmax(outputs, 1)


def _coast(W, optimizer):
    copy = W.detach().clone().requires_grad_()
    group = optimizer.param_groups[0]
    other = torch.optim.SGD([copy], **{k: group[k] for k in ("lr", "momentum", "nesterov")})
    buffer = optimizer.state[W].get("momentum_buffer")
    if buffer is not None:
        other.state[copy]["momentum_buffer"] = buffer.clone()
        copy.grad = torch.zeros_like(copy)
        for _ in range(math.ceil(math.log(1e-18) / math.log(group["momentum"]))):
            other.step()
    return copy.detach().numpy()
