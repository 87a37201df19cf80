"""Shared by all adapters: checks that a framework trains as the corrector assumes.

Corrected targets are right for one learner, one loss and one order of the samples. Frameworks leave
these to their users, so the adapters check here that they are what the corrector expects.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from retarget.continual import NetworkCorrector
from retarget.continual.linearisation import outputs
from retarget.continual.steps import evaluating
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.kernels.empirical.parameters import trained_parameters
from retarget.learners import SGD, Reduction
from retarget.samples import Samples, count, take

RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
# Relative: a float32 loss has seven digits, and a different loss differs by a factor or a term.
LOSS_TOLERANCE = 1e-3


class HalfSquaredError(nn.Module):
    r"""$\tfrac12\|y - f(x)\|^2$, summed over the outputs: the loss to use with corrected targets.

    `torch.nn.MSELoss` is this loss times 2 over the number of outputs, which is like another
    learning rate. Whole numbers (n,) are class labels, and are compared as one-hot rows.

    Args:
        reduction: `"mean"` or `"sum"` over the mini-batch.

    Examples:
        >>> HalfSquaredError()(torch.tensor([[0.0, 3.0]]), torch.tensor([1]))
        tensor(2.)
    """

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum"):
            raise InvalidInputError(f"reduction is {reduction!r}; expected 'mean' or 'sum'")
        self.reduction = reduction

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss for outputs (n, c) and labels (n,) or targets (n, c)."""
        if targets.ndim == 1:
            targets = one_hot(targets, outputs.shape[-1])
        return half_squared_error(outputs, targets.to(outputs), self.reduction)


def half_squared_error(outputs: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
    """Returns the loss that corrections assume; outputs may be (n,) or (n, c)."""
    if len(targets) != len(outputs) or targets.numel() != outputs.numel():
        raise InvalidInputError(
            f"the targets have shape {tuple(targets.shape)}, but the outputs have shape "
            f"{tuple(outputs.shape)}; expected the same"
        )
    each = (outputs - targets.reshape(outputs.shape)).square().reshape(len(outputs), -1).sum(1) / 2
    return each.mean() if reduction == "mean" else each.sum()


def one_hot(labels: Tensor, outputs: int) -> Tensor:
    """Returns real targets: whole numbers (n,) are classes, real numbers stay as they are."""
    if labels.is_floating_point():
        return labels
    if labels.ndim != 1:
        raise InvalidInputError(
            f"the targets are whole numbers of shape {tuple(labels.shape)}; expected class labels "
            "(n,), or real numbers"
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < outputs:
        raise InvalidInputError(
            f"the class labels are {int(labels.min())} to {int(labels.max())}, and there are "
            f"{outputs} outputs; expected labels from 0 to {outputs - 1}, one for each output"
        )
    return nn.functional.one_hot(labels.long(), outputs).double()


def true_targets(
    network: nn.Module, samples: Samples, labels: Tensor, number: int | None = None
) -> Tensor:
    """Returns true targets in the network's dtype.

    Labels become one-hot rows of `number` columns; None for the number of the network's outputs.
    """
    if not labels.is_floating_point():
        number = number or outputs(network, take(samples, slice(0, 1))).shape[1]
        labels = one_hot(labels, number)
    return labels.to(next(network.parameters()))


def refuse(reasons: Mapping[str, bool]) -> None:
    """Raises an error with the first reason that applies."""
    for reason, applies in reasons.items():
        if applies:
            raise InvalidInputError(reason)


def require_maker(corrector: Any) -> None:
    """Raises if this is not a function that makes a corrector."""
    if not callable(corrector):
        raise InvalidTypeError(
            f"corrector is {corrector!r:.80}; expected a function that makes a NetworkCorrector, "
            "such as functools.partial(rt.NetworkCorrector, gamma=..., block_size=...)"
        )


def require_corrector(made: Any) -> NetworkCorrector:
    """Returns what the user's function made; raises if it is not a corrector."""
    if not isinstance(made, NetworkCorrector):
        raise InvalidTypeError(
            f"corrector made a {type(made).__name__}; expected a NetworkCorrector"
        )
    return made


def description(optimizer: Any, batch_size: int, reduction: Reduction) -> SGD:
    """Describes an optimiser by its settings, whatever steps it has taken before."""
    if type(optimizer) is torch.optim.SGD:
        optimizer = torch.optim.SGD([dict(group) for group in optimizer.param_groups])
    return SGD.from_torch(optimizer, batch_size, reduction)


def require_optimiser(optimizer: torch.optim.Optimizer, corrector: NetworkCorrector) -> None:
    """Raises if the corrector's learner does not describe this optimiser."""
    learner = corrector.learner
    preconditioner = getattr(corrector.kernel, "preconditioner", None)
    if preconditioner is not optimizer or isinstance(optimizer, torch.optim.SGD):
        found = _described(optimizer, learner)
        if found != learner:
            raise InvalidInputError(
                f"the optimiser is {found}, but the corrector's learner is {learner}; give the "
                "corrector rt.SGD.from_torch(optimizer, batch_size, reduction)"
            )
        rates = sorted({float(group["lr"]) for group in optimizer.param_groups})
        if len(rates) > 1 and preconditioner is not optimizer:
            raise InvalidInputError(
                f"the optimiser's parameter groups have the rates {rates}; expected one rate, or "
                "a corrector with preconditioner=optimizer"
            )
    has_velocity = any(optimizer.state.values())
    if learner.momentum and has_velocity != bool(corrector.samples):
        state = "has the velocity of earlier steps" if has_velocity else "is new, without velocity"
        raise InvalidInputError(
            f"momentum is {learner.momentum}, and the optimiser {state}, but the corrector has seen"
            f" {corrector.samples} samples; keep one optimiser for all tasks, or use momentum=0"
        )
    require_parameters(optimizer, corrector)


def _described(optimizer: torch.optim.Optimizer, learner: SGD) -> SGD:
    """Describes the optimiser; the rates of a schedule are compared step by step instead."""
    scheduled = not isinstance(learner.lr, float) and type(optimizer) is torch.optim.SGD
    if scheduled:
        groups = [dict(group) for group in optimizer.param_groups]
        for group in groups:
            group.pop("initial_lr", None)
        optimizer = torch.optim.SGD(groups)
    found = description(optimizer, learner.batch_size, learner.reduction)
    return replace(found, lr=learner.lr) if scheduled else found


def require_parameters(optimizer: torch.optim.Optimizer, corrector: NetworkCorrector) -> None:
    """Raises if the optimiser does not train the parameters that the corrector assumes."""
    trained = {id(value) for group in optimizer.param_groups for value in group["params"]}
    described = trained_parameters(corrector.module, corrector.params)
    for name, value in corrector.module.named_parameters():
        if value.requires_grad and (id(value) in trained) != (name in described):
            which = "trains" if id(value) in trained else "does not train"
            raise InvalidInputError(
                f"the optimiser {which} {name}, and the corrector assumes the opposite; choose the "
                "corrector's parameters with params=, or freeze what is not trained with "
                "requires_grad_(False)"
            )


def require_rate(optimizer: torch.optim.Optimizer, learner: SGD, step: int) -> None:
    """Raises if a step does not use the learner's rate."""
    rate, expected = float(optimizer.param_groups[0]["lr"]), learner.rate(step)
    if abs(rate - expected) > 1e-9 * expected:
        raise InvalidInputError(
            f"the rate of step {step} is {rate:g}, but the corrector's learner has {expected:g}; "
            "leave the scheduler out, or describe it as SGD(lr=[...]), with one rate a step"
        )


def require_order(loader: Any) -> None:
    """Raises if a loader is known to change the order of its samples."""
    if not isinstance(loader, DataLoader):
        return
    samplers = loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)
    why = "but corrected targets are for one order of the samples"
    random = [type(sampler).__name__ for sampler in samplers if isinstance(sampler, RANDOM)]
    if random:
        raise InvalidInputError(
            f"the loader has a {', '.join(random)}, {why}; use shuffle=False, and shuffle the data "
            "set beforehand if its order does not matter"
        )
    if not loader.in_order:
        raise InvalidInputError(f"the loader has in_order=False, {why}; use in_order=True")


def require_passes(corrector: NetworkCorrector, epochs: int) -> None:
    """Raises if the corrector has no targets for so many epochs; -1 is any number."""
    if epochs == 1:
        return
    known = epochs if epochs > 0 else "any number of"
    if corrector.memory is not None:
        raise InvalidInputError(
            f"there are {known} epochs, but in the closed loop (memory={corrector.memory}) every "
            "sample is learned once; train for one epoch"
        )
    if epochs < 1 or corrector.refresh != "epoch":
        raise InvalidInputError(
            f"there are {known} epochs, but the corrector has refresh={corrector.refresh!r}; train "
            "for one epoch, or use refresh='epoch', which corrects the targets before each of a "
            "known number"
        )


def require_loss(loss: Tensor, outputs: Tensor, targets: Tensor, reduction: Reduction) -> None:
    """Raises if the loss is not half the squared error with the learner's reduction."""
    expected = float(half_squared_error(outputs.detach(), targets.to(outputs), reduction))
    found = float(loss.detach())
    if not abs(found - expected) <= LOSS_TOLERANCE * max(abs(expected), 1e-6):
        raise InvalidInputError(
            f"the loss of the first mini-batch is {found:.6g}, but half of the squared error, "
            f"summed over the outputs, with the {reduction} over the samples, is {expected:.6g}; "
            "train on 0.5 * (outputs - targets).square().sum(1), and describe its mean or sum by "
            "the learner's reduction"
        )


def next_block(
    corrector: NetworkCorrector, optimizer: torch.optim.Optimizer, samples: Samples, true: Tensor
) -> tuple[Samples, Tensor]:
    """Returns a batch of the closed loop, with stored samples appended, for one training step."""
    learner = corrector.learner
    require_rate(optimizer, learner, 0)
    with evaluating(corrector.module):
        samples, targets = corrector.next_block(samples, true)
    if count(samples) > learner.batch_size:
        raise InvalidInputError(
            f"a step trains on {len(true)} samples of a batch and {count(samples) - len(true)} "
            f"stored ones, but the learner has batch_size={learner.batch_size}; expected "
            f"batch_size={count(samples)} or more"
        )
    return samples, targets


def on_device_of(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Moves saved tensors to the device of a network."""
    device = next(module.parameters()).device
    return {name: value.to(device) for name, value in tensors.items()}


class Shift:
    """Measures how far targets were corrected, over all portions added so far."""

    def __init__(self) -> None:
        self._squares, self._count, self._largest = 0.0, 0, 0.0

    def add(self, corrected: Tensor, true: Tensor) -> Self:
        """Adds a portion of targets (n, c)."""
        self._squares += float((corrected - true).double().square().sum())
        self._count += true.numel()
        self._largest = max(self._largest, float(corrected.abs().max()))
        return self

    def found(self, corrector: NetworkCorrector) -> dict[str, float]:
        """Returns what to log: shift, largest target and, once known, the linearisation error."""
        root = math.sqrt(self._squares / max(self._count, 1))
        found = {"shift": root, "largest_target": self._largest}
        error = corrector.linearisation_error
        return found if error is None else found | {"linearisation_error": error}
