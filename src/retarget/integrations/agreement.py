"""What every adapter shares: whether a framework's training is what the corrector was told.

Corrected targets are right for one learner, one loss and one order of the samples. Frameworks leave
these to their users, so the adapters check here that they are as the corrector expects.
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
# Relative: a loss in float32 has seven digits, and another loss differs by a factor or a term.
LOSS_TOLERANCE = 1e-3


class HalfSquaredError(nn.Module):
    r"""$\tfrac12\|y - f(x)\|^2$, summed over the outputs: the loss that corrected targets are for.

    `torch.nn.MSELoss` differs from it by a factor of 2 over the number of outputs, which amounts to
    another learning rate. Whole numbers (n,) are class labels, and are compared as one-hot rows.

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
        """The loss of a mini-batch, from outputs (n, c) and labels (n,) or targets (n, c)."""
        if targets.ndim == 1:
            targets = one_hot(targets, outputs.shape[-1])
        return half_squared_error(outputs, targets.to(outputs), self.reduction)


def half_squared_error(outputs: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
    """The loss that corrections are for; rows of outputs may be single numbers."""
    if len(targets) != len(outputs) or targets.numel() != outputs.numel():
        raise InvalidInputError(
            f"the targets have shape {tuple(targets.shape)}, but the outputs have shape "
            f"{tuple(outputs.shape)}; expected the same"
        )
    each = (outputs - targets.reshape(outputs.shape)).square().reshape(len(outputs), -1).sum(1) / 2
    return each.mean() if reduction == "mean" else each.sum()


def one_hot(labels: Tensor, outputs: int) -> Tensor:
    """Real targets: whole numbers (n,) are classes, real numbers are returned as they are."""
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
            f"{outputs} outputs; expected labels from 0 to {outputs - 1}"
        )
    return nn.functional.one_hot(labels.long(), outputs).double()


def true_targets(
    network: nn.Module, samples: Samples, labels: Tensor, number: int | None = None
) -> Tensor:
    """The true targets in the network's precision; classes need `number` outputs, or one each."""
    if not labels.is_floating_point():
        number = number or outputs(network, take(samples, slice(0, 1))).shape[1]
        labels = one_hot(labels, number)
    return labels.to(next(network.parameters()))


def refuse(reasons: Mapping[str, bool]) -> None:
    """Raises the first of the reasons that applies."""
    for reason, applies in reasons.items():
        if applies:
            raise InvalidInputError(reason)


def require_maker(corrector: Any) -> None:
    """Refuses what cannot make a corrector."""
    if not callable(corrector):
        raise InvalidTypeError(
            f"corrector is {corrector!r:.80}; expected a function that makes a NetworkCorrector, "
            "such as functools.partial(rt.NetworkCorrector, gamma=..., block_size=...)"
        )


def require_corrector(made: Any) -> NetworkCorrector:
    """What the user's function has made, if it is a corrector."""
    if not isinstance(made, NetworkCorrector):
        raise InvalidTypeError(
            f"corrector made a {type(made).__name__}; expected a NetworkCorrector"
        )
    return made


def description(optimizer: Any, batch_size: int, reduction: Reduction) -> SGD:
    """An optimiser as it is set, whatever steps it has taken before."""
    if type(optimizer) is torch.optim.SGD:
        optimizer = torch.optim.SGD([dict(group) for group in optimizer.param_groups])
    return SGD.from_torch(optimizer, batch_size, reduction)


def require_optimiser(optimizer: torch.optim.Optimizer, corrector: NetworkCorrector) -> None:
    """Refuses an optimiser other than the one that the corrector's learner describes."""
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
        if len(rates) > 1 and preconditioner is None:
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
    """The optimiser as a learner; the rates of a schedule are compared step by step instead."""
    scheduled = not isinstance(learner.lr, float) and type(optimizer) is torch.optim.SGD
    if scheduled:
        groups = [dict(group) for group in optimizer.param_groups]
        for group in groups:
            group.pop("initial_lr", None)
        optimizer = torch.optim.SGD(groups)
    found = description(optimizer, learner.batch_size, learner.reduction)
    return replace(found, lr=learner.lr) if scheduled else found


def require_parameters(optimizer: torch.optim.Optimizer, corrector: NetworkCorrector) -> None:
    """Refuses an optimiser that trains other parameters than the corrector assumes."""
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
    """Refuses a step at another rate than the learner's."""
    rate, expected = float(optimizer.param_groups[0]["lr"]), learner.rate(step)
    if abs(rate - expected) > 1e-9 * expected:
        raise InvalidInputError(
            f"the rate of step {step} is {rate:g}, but the corrector's learner has {expected:g}; "
            "leave the scheduler out, or describe it as SGD(lr=[...]), with one rate a step"
        )


def require_order(loader: Any) -> None:
    """Refuses a loader that is known to give its samples in another order every time."""
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
    """Refuses passes over a task that the corrector has no targets for; -1 is any number."""
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
    """Refuses a loss that is not half of the squared error, reduced as the learner says."""
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
    """A batch of the closed loop, which is trained on in one step, with stored samples behind."""
    learner = corrector.learner
    require_rate(optimizer, learner, 0)
    with evaluating(corrector.module):
        samples, targets = corrector.next_block(samples, true)
    if count(samples) > learner.batch_size:
        raise InvalidInputError(
            f"there are {len(true)} samples in a batch and {count(samples) - len(true)} stored "
            f"ones beside them, trained on in one step; expected a learner with batch_size="
            f"{count(samples)} or more, not {learner.batch_size}"
        )
    return samples, targets


def on_device_of(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Saved tensors, on the device of a network."""
    device = next(module.parameters()).device
    return {name: value.to(device) for name, value in tensors.items()}


class Shift:
    """How far targets were corrected, over as many portions as are added."""

    def __init__(self) -> None:
        self._squares, self._count, self._largest = 0.0, 0, 0.0

    def add(self, corrected: Tensor, true: Tensor) -> Self:
        """Counts a portion of targets (n, c)."""
        self._squares += float((corrected - true).double().square().sum())
        self._count += true.numel()
        self._largest = max(self._largest, float(corrected.abs().max()))
        return self

    def found(self, corrector: NetworkCorrector) -> dict[str, float]:
        """What is logged: shift, largest target and, once it is known, theory against network."""
        root = math.sqrt(self._squares / max(self._count, 1))
        found = {"shift": root, "largest_target": self._largest}
        error = corrector.linearisation_error
        return found if error is None else found | {"linearisation_error": error}
