"""What a framework's training must agree on with the corrector: optimiser, loss, order, targets.

Corrected targets are right for one learner and one order of the samples. The frameworks leave both
to their users, so the adapters ask here whether they are what the corrector was told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from retarget.continual import NetworkCorrector
from retarget.errors import InvalidInputError
from retarget.kernels.empirical.parameters import trained_parameters
from retarget.learners import SGD, Reduction

RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
# Relative: a loss in float32 has seven digits, and another loss is a factor or a term away.
LOSS_TOLERANCE = 1e-3


def require_optimiser(optimizer: torch.optim.Optimizer, corrector: NetworkCorrector) -> None:
    """Refuses an optimiser other than what the corrector's learner describes."""
    learner = corrector.learner
    preconditioner = getattr(corrector.kernel, "preconditioner", None)
    if preconditioner is not optimizer or isinstance(optimizer, torch.optim.SGD):
        found = description(optimizer, learner)
        if found != learner:
            raise InvalidInputError(
                f"the optimiser is {found}, but the corrector's learner is {learner}; give the "
                "corrector rt.SGD.from_torch(optimizer, batch_size, reduction)"
            )
        rates = {float(group["lr"]) for group in optimizer.param_groups}
        if len(rates) > 1 and preconditioner is None:
            raise InvalidInputError(
                f"the optimiser's parameter groups have the rates {sorted(rates)}; expected one "
                "rate, or a corrector with preconditioner=optimizer"
            )
    if learner.momentum and corrector.samples and not any(optimizer.state.values()):
        raise InvalidInputError(
            f"momentum is {learner.momentum}, but the optimiser is new, without the velocity of the"
            f" {corrector.samples} samples before; keep one optimiser for all tasks, or use "
            "momentum=0"
        )
    trained = {id(value) for group in optimizer.param_groups for value in group["params"]}
    described = trained_parameters(corrector.module, corrector.params)
    for name, value in corrector.module.named_parameters():
        if value.requires_grad and (id(value) in trained) != (name in described):
            which = "trains" if id(value) in trained else "does not train"
            raise InvalidInputError(
                f"the optimiser {which} {name}, and the corrector takes the opposite; choose the "
                "corrector's parameters with params=, or freeze what is not trained"
            )


def description(optimizer: torch.optim.Optimizer, learner: SGD) -> SGD:
    """The optimiser as it is set, with the learner's batch, reduction and, if any, schedule."""
    if type(optimizer) is torch.optim.SGD:
        # one without the velocity of earlier steps, and without the mark that a scheduler leaves
        # where the learner has a schedule: its rates are compared step by step
        scheduled = not isinstance(learner.lr, float)
        groups = [
            {key: value for key, value in group.items() if not (scheduled and key == "initial_lr")}
            for group in optimizer.param_groups
        ]
        optimizer = torch.optim.SGD(groups)
        found = SGD.from_torch(optimizer, learner.batch_size, learner.reduction)
        return replace(found, lr=learner.lr) if scheduled else found
    return SGD.from_torch(optimizer, learner.batch_size, learner.reduction)  # type: ignore[arg-type]


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
    for sampler in samplers:
        if isinstance(sampler, RANDOM):
            raise InvalidInputError(
                f"the loader has a {type(sampler).__name__}, but corrected targets are for one "
                "order of the samples; use shuffle=False, and shuffle the data set beforehand "
                "where its order does not matter"
            )
    if not getattr(loader, "in_order", True):
        raise InvalidInputError(
            "the loader has in_order=False, but corrected targets are for one order of the "
            "samples; use in_order=True"
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


def half_squared_error(outputs: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
    """The loss that corrections are for; rows of outputs may be single numbers."""
    each = (outputs - targets.reshape(outputs.shape)).square().reshape(len(outputs), -1).sum(1) / 2
    return each.mean() if reduction == "mean" else each.sum()


def one_hot(labels: Tensor, outputs: int, dtype: torch.dtype) -> Tensor:
    """Targets as real numbers: whole numbers (n,) are classes, anything else stays as it is."""
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
    return torch.nn.functional.one_hot(labels.long(), outputs).to(dtype)


def shift_of(corrected: Tensor, true: Tensor, corrector: NetworkCorrector) -> dict[str, float]:
    """What is logged: the shift, the targets' largest size, and theory against network.

    Args:
        corrected: (n, c) what is trained on.
        true: The true targets, of the same shape.
        corrector: Which knows how far the network is from the theory, if it has compared them.
    """
    found = {
        "shift": float((corrected - true).square().mean().sqrt()),
        "largest_target": float(corrected.abs().max()),
    }
    error = corrector.linearisation_error
    return found if error is None else found | {"linearisation_error": error}


class Places:
    """Where the inputs and the targets are in a batch.

    Args:
        inputs: The position or key of the inputs, or several of them; None for the first entry of a
            list or tuple, and for everything but the targets in a dict.
        targets: The position or key of the targets.
    """

    def __init__(self, inputs: int | str | Sequence[int | str] | None, targets: int | str) -> None:
        self.inputs, self.targets = inputs, targets

    def split(self, batch: Any) -> tuple[Any, Tensor]:
        """The inputs and the targets of a batch."""
        keys, many = self._keys(batch)
        try:
            entries = {key: batch[key] for key in (*keys, self.targets)}
        except (LookupError, TypeError) as error:
            raise InvalidInputError(
                f"the batch is {_in_words(batch)}, and has no entry {error}; say where they are "
                "with inputs= and targets="
            ) from error
        targets = entries.pop(self.targets)
        if not isinstance(targets, Tensor):
            raise InvalidInputError(
                f"the batch's targets are a {type(targets).__name__}; expected a tensor, one row "
                "a sample: say where they are with targets="
            )
        if not many:
            return entries[keys[0]], targets
        return (entries if isinstance(batch, Mapping) else tuple(entries.values())), targets

    def put(self, batch: Any, inputs: Any, targets: Tensor) -> Any:
        """The batch with other inputs and targets; the given one stays as it is."""
        keys, many = self._keys(batch)
        parts = (
            [inputs] if not many else list(inputs.values() if isinstance(inputs, dict) else inputs)
        )
        new = dict(zip(keys, parts, strict=True)) | {self.targets: targets}
        if isinstance(batch, Mapping):
            return {**batch, **new}
        changed = [new.get(i, entry) for i, entry in enumerate(batch)]
        if hasattr(batch, "_fields"):
            return type(batch)(*changed)
        return type(batch)(changed)

    def _keys(self, batch: Any) -> tuple[list[Any], bool]:
        """The keys of the inputs, and whether the inputs are several."""
        if self.inputs is not None:
            several = not isinstance(self.inputs, int | str)
            return (list(self.inputs) if several else [self.inputs]), several  # type: ignore[arg-type]
        if isinstance(batch, Mapping):
            keys = [key for key in batch if key != self.targets]
            return keys, len(keys) != 1
        return [0], False


def _in_words(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a dict with {', '.join(map(repr, batch))}"
    length = f" of {len(batch)}" if isinstance(batch, Sequence) else ""
    return f"a {type(batch).__name__}{length}"
