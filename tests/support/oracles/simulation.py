"""The online learner as PyTorch runs it: step by step, in weight space, by torch.optim.SGD."""

from dataclasses import dataclass, field

import numpy as np
import torch


@dataclass
class Run:
    """What was seen on the way: the error before each step, the weights after each step."""

    errors: np.ndarray
    weights: np.ndarray
    history: list[np.ndarray] = field(default_factory=list)
    coasted: list[np.ndarray] = field(default_factory=list)


def train(features, targets, learner, start=None, coast_steps=0):
    """One pass over explicit features (n, d) with targets (n, c), in mini-batches.

    With `coast_steps`, `coasted` holds the weights after each step once a copy of the optimiser
    has gone on for that many steps without gradient or decay.
    """
    features, targets = torch.as_tensor(features), torch.as_tensor(targets)
    W = torch.zeros(features.shape[1], targets.shape[1], dtype=features.dtype)
    if start is not None:
        W += torch.as_tensor(start)
    W.requires_grad_()
    optimiser = torch.optim.SGD(
        [W],
        lr=1.0,
        momentum=learner.momentum,
        nesterov=learner.nesterov,
        weight_decay=learner.weight_decay,
    )
    run = Run(np.zeros(targets.shape), np.zeros(W.shape))
    rates = np.broadcast_to(np.asarray(learner.lr), (learner.steps(len(targets)),))
    for step, rate in enumerate(rates):
        rows = slice(step * learner.batch_size, (step + 1) * learner.batch_size)
        optimiser.param_groups[0]["lr"] = float(rate)
        optimiser.zero_grad()
        residual = targets[rows] - features[rows] @ W
        loss = 0.5 * residual.square().sum()
        if learner.reduction == "mean":
            loss = loss / len(residual)
        loss.backward()
        optimiser.step()
        run.errors[rows] = residual.detach().numpy()
        run.history.append(W.detach().numpy().copy())
        if coast_steps:
            run.coasted.append(_coast(W, optimiser, coast_steps))
    run.weights = run.history[-1]
    return run


def _coast(W, optimiser, steps):
    copy = W.detach().clone().requires_grad_()
    group = dict(optimiser.param_groups[0], weight_decay=0.0)
    group.pop("params")
    other = torch.optim.SGD([copy], **{k: group[k] for k in ("lr", "momentum", "nesterov")})
    buffer = optimiser.state[W].get("momentum_buffer")
    if buffer is not None:
        other.state[copy]["momentum_buffer"] = buffer.clone()
        for _ in range(steps):
            copy.grad = torch.zeros_like(copy)
            other.step()
    return copy.detach().numpy()
