"""Shared by all adapters: checks that a framework trains as the corrector assumes.

Corrected targets are right for one learner, one loss and one order of the samples. Frameworks leave
these to their users, so the adapters check here that they are what the corrector expects.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from retarget.engine.losses import batch_loss
from retarget.errors import InvalidInputError, InvalidTypeError, a_type
from retarget.kernels.empirical.parameters import trained_parameters
from retarget.labels import one_hot
from retarget.learners import SGD, Reduction, described_optimizer
from retarget.networks.base import Corrector
from retarget.networks.closed_loop import ClosedLoopCorrector
from retarget.networks.corrector import NetworkCorrector
from retarget.networks.linearization import outputs
from retarget.samples import Samples, count, evaluating, take

RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


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
        targets = real_targets(targets, outputs.shape[-1]).to(outputs)
        return batch_loss(outputs, targets, self.reduction)


def real_targets(labels: Tensor, outputs: int) -> Tensor:
    """Returns rows (n, c): one-hot for whole numbers (n,), which are classes, else as they are."""
    classes = labels.ndim == 1 and not labels.is_floating_point()
    rows: Tensor = one_hot(labels, outputs) if classes else labels
    return rows.reshape(len(rows), -1)


def true_targets(
    network: nn.Module, samples: Samples, labels: Tensor, number: int | None = None
) -> Tensor:
    """Returns true targets (n, c) in the network's dtype.

    Labels become one-hot rows of `number` columns; None for the number of the network's outputs.
    """
    if not labels.is_floating_point():
        number = number or outputs(network, take(samples, slice(0, 1))).shape[1]
    return real_targets(labels, number or 1).to(next(network.parameters()))


class Problems:
    """Collects everything that is wrong, so that one error says all of it.

    Args:
        setting: What has the arguments that would do, such as `"Trainer"`.
    """

    def __init__(self, setting: str = "") -> None:
        self._setting = setting
        self._problems = list[str]()
        self._instead: dict[str, Any] = {}

    def add(self, wrong: Any, reason: str, **instead: Any) -> None:
        """If something is wrong, adds the reason, and arguments with which it would not be."""
        if wrong:
            self._problems.append(reason)
            self._instead |= instead

    def check(self, require: Callable[..., Any], *given: Any, **instead: Any) -> Any:
        """Returns the result of a check; if the check raises, adds its message and returns None."""
        try:
            return require(*given)
        except (InvalidInputError, InvalidTypeError) as error:
            self.add(True, str(error), **instead)
        return None

    def __bool__(self) -> bool:
        return bool(self._problems)

    def refuse(self) -> None:
        """Raises if anything was added."""
        if not self._problems:
            return
        instead = ", ".join(f"{name}={value!r}" for name, value in self._instead.items())
        end = f"set {self._setting}({instead})" if instead else ""
        if len(self._problems) == 1:
            raise InvalidInputError(self._problems[0] + (f"; {end}" if end else ""))
        lines = [f"{len(self._problems)} things would make corrected targets wrong:"]
        lines += [f"- {reason}" for reason in self._problems]
        lines += [f"For a correct run, {end}"] if end else []
        raise InvalidInputError("\n".join(lines))


MAKER = "rt.NetworkCorrector itself, or functools.partial(rt.NetworkCorrector, gamma=...)"


def require_maker(corrector: Any) -> None:
    """Raises if this is not a function that makes a corrector."""
    if not callable(corrector):
        raise InvalidTypeError(
            f"corrector is {corrector!r:.80}; expected a function that makes a corrector, such "
            f"as {MAKER}"
        )


def made_by(
    maker: Callable[..., Any], module: nn.Module, learner: SGD, optimizer: torch.optim.Optimizer
) -> Corrector:
    """Calls the user's function that makes a corrector, as every adapter does.

    It is given the network and the learner and, for Adam, AdamW, RMSprop and several rates,
    `preconditioner=optimizer`.
    """
    preconditioned = described_optimizer(optimizer, learner.batch_size, learner.reduction)[1]
    given = {"preconditioner": optimizer} if preconditioned else {}
    try:
        inspect.signature(maker).bind(module, learner, **given)
    except (TypeError, ValueError) as error:  # a partial with a wrong name is the latter
        called = ", ".join(("module", "learner", *(f"{name}=optimizer" for name in given)))
        raise InvalidTypeError(
            f"corrector cannot be called as corrector({called}): {error}; expected a function such "
            f"as {MAKER}"
        ) from error
    corrector = maker(module, learner, **given)
    if not isinstance(corrector, Corrector):
        raise InvalidTypeError(
            f"corrector made {a_type(corrector)}; expected a NetworkCorrector or a "
            "ClosedLoopCorrector"
        )
    return corrector


def require_optimizer(
    optimizer: torch.optim.Optimizer,
    corrector: Corrector,
    keep: str = "keep one optimizer for all tasks",
) -> None:
    """Raises if the corrector's learner does not describe this optimizer.

    `keep` says in the framework's own words how one optimizer is kept.
    """
    learner = corrector.learner
    preconditioner = getattr(corrector.kernel, "preconditioner", None)
    described, preconditioned = described_optimizer(
        optimizer, learner.batch_size, learner.reduction
    )
    scheduled = any("initial_lr" in group for group in optimizer.param_groups)
    if scheduled and isinstance(learner.lr, float):
        raise InvalidInputError(
            "a scheduler changes the rate, but the corrector's learner has one rate; make the "
            "corrector from SGD(lr=[...]), with one rate for each step of all tasks"
        )
    kind = type(optimizer)
    if preconditioned and preconditioner is not optimizer:
        several = " with several rates" if kind is torch.optim.SGD else ""
        if preconditioner is None:
            raise InvalidInputError(
                f"the optimizer is {kind.__name__}{several}, but the corrector was made for plain "
                f"SGD; make it with preconditioner=optimizer, and {keep}"
            )
        raise InvalidInputError(
            f"the optimizer is {kind.__name__}{several}, but not the one that the corrector was "
            f"made with; {keep}"
        )
    if kind is not torch.optim.SGD:
        described = replace(described, momentum=learner.momentum)  # a choice: see NetworkCorrector
    if not isinstance(learner.lr, float):
        described = replace(described, lr=learner.lr)  # compared step by step instead
    if described != learner:
        raise InvalidInputError(
            f"the optimizer is {described}, but the corrector's learner is {learner}; make the "
            "corrector from an rt.SGD that matches the optimizer"
        )
    has_velocity = any(optimizer.state.values())
    if learner.momentum and has_velocity != bool(corrector.samples):
        state = "has the velocity of earlier steps" if has_velocity else "is new, without velocity"
        raise InvalidInputError(
            f"momentum is {learner.momentum}, and the optimizer {state}, but the corrector has seen"
            f" {corrector.samples} samples; {keep}, or use momentum=0"
        )
    require_parameters(optimizer, corrector)


def require_parameters(optimizer: torch.optim.Optimizer, corrector: Corrector) -> None:
    """Raises if the optimizer does not train the parameters that the corrector assumes."""
    parameters = [value for group in optimizer.param_groups for value in group["params"]]
    trained = {id(value) for value in parameters}
    inside = {id(p) for p in corrector.module.parameters()}
    outside = [value for value in parameters if value.requires_grad and id(value) not in inside]
    if outside:
        shapes = ", ".join(str(tuple(value.shape)) for value in outside[:3])
        raise InvalidInputError(
            f"the optimizer trains {len(outside)} parameters outside of the corrector's network, "
            f"of shape {shapes}{', ...' if len(outside) > 3 else ''}; make the corrector from the "
            "module that holds all of them, or freeze them with requires_grad_(False)"
        )
    described = trained_parameters(corrector.module, corrector.params)
    for name, value in corrector.module.named_parameters():
        if value.requires_grad and (id(value) in trained) != (name in described):
            which = "trains" if id(value) in trained else "does not train"
            raise InvalidInputError(
                f"the optimizer {which} {name}, and the corrector assumes the opposite; choose the "
                "corrector's parameters with params=, or freeze what is not trained with "
                "requires_grad_(False)"
            )


def require_rate(optimizer: torch.optim.Optimizer, learner: SGD, step: int) -> None:
    """Raises if a step does not use the learner's rate."""
    rate = float(optimizer.param_groups[0]["lr"])
    expected = learner.rate(step)
    if abs(rate - expected) > 1e-9 * expected:
        raise InvalidInputError(
            f"the rate of step {step} is {rate:g}, but the corrector's learner has {expected:g}; "
            "leave the scheduler out, or make the corrector from SGD(lr=[...]), with one rate for "
            "each step of all tasks"
        )


def require_order(loader: Any) -> None:
    """Raises if a loader is known to change the order of its samples."""
    if not isinstance(loader, DataLoader):
        return
    samplers = loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)
    why = "but corrected targets are for one order of the samples"
    names = [type(sampler).__name__ for sampler in samplers if isinstance(sampler, RANDOM)]
    random = list(dict.fromkeys(names))  # a loader has the same sampler in two places
    if random:
        raise InvalidInputError(
            f"the loader has a {', '.join(random)}, {why}; use shuffle=False, and shuffle the data "
            "set beforehand if its order does not matter"
        )
    if not loader.in_order:
        raise InvalidInputError(f"the loader has in_order=False, {why}; use in_order=True")


def require_passes(corrector: Corrector, epochs: int) -> None:
    """Raises if the corrector has no targets for so many epochs; -1 is any number."""
    if epochs == 1:
        return
    known = epochs if epochs > 0 else "any number of"
    if not isinstance(corrector, NetworkCorrector):
        raise InvalidInputError(
            f"there are {known} epochs, but in the closed loop every sample is learned once; train "
            "for one epoch"
        )
    if epochs < 1 or corrector.refresh != "epoch":
        raise InvalidInputError(
            f"there are {known} epochs, but the corrector has refresh={corrector.refresh!r}; train "
            "for one epoch, or use refresh='epoch', which corrects the targets before each of a "
            "known number"
        )
    if not isinstance(corrector.learner.lr, float):
        raise InvalidInputError(
            f"there are {known} epochs, but the corrector's learner has a schedule, which is for "
            "one; train for one epoch, or with one rate"
        )


def corrected(
    corrector: NetworkCorrector, optimizer: torch.optim.Optimizer, samples: Samples, true: Tensor
) -> Tensor:
    """Returns the targets of a task of the open loop.

    They are the true ones in the first task with a new Adam: it has no second moments before its
    first step, and the kernel needs them.
    """
    if type(optimizer) is not torch.optim.SGD and not (optimizer.state or corrector.samples):
        corrector.resume([(samples, true)], true)
        return true
    learner = corrector.learner
    if not isinstance(learner.lr, float):  # the steps of the tasks so far
        if corrector.samples % learner.batch_size:
            raise InvalidInputError(
                f"the tasks so far have {corrector.samples} samples, and the last mini-batch was "
                f"short, but a schedule needs full ones of {learner.batch_size}; leave the rest of "
                "a task out (drop_last=True), or train with one rate"
            )
        steps = range(learner.steps(corrector.samples + len(true)))
        corrector.learner = replace(learner, lr=[learner.rate(step) for step in steps])
    try:
        with evaluating(corrector.module):
            Z: Tensor = corrector.correct(samples, true)
    finally:
        corrector.learner = learner
    return Z


def next_block(
    corrector: ClosedLoopCorrector,
    optimizer: torch.optim.Optimizer,
    samples: Samples,
    labels: Tensor,
) -> tuple[Samples, Tensor, dict[str, float]]:
    """Returns a batch of the closed loop for one training step, and what to log.

    Stored samples are appended to the given ones.
    """
    learner = corrector.learner
    true = true_targets(corrector.module, samples, labels)
    require_rate(optimizer, learner, 0)
    with evaluating(corrector.module):
        samples, targets = corrector.next_block(samples, true)
    if count(samples) > learner.batch_size:
        raise InvalidInputError(
            f"a step trains on {len(true)} samples of a batch and {count(samples) - len(true)} "
            f"stored ones, but the learner has batch_size={learner.batch_size}; expected "
            f"batch_size={count(samples)} or more, or a corrector with replay=0"
        )
    return samples, targets, Shift().add(targets[: len(true)], true).numbers(corrector)


class Shift:
    """Measures how far targets were corrected, over all portions added so far."""

    def __init__(self) -> None:
        self._squares = 0.0
        self._count = 0
        self._largest = 0.0

    def add(self, corrected: Tensor, true: Tensor) -> Self:
        """Adds a portion of targets (n, c)."""
        self._squares += float((corrected - true).double().square().sum())
        self._count += true.numel()
        self._largest = max(self._largest, float(corrected.abs().max()))
        return self

    def numbers(self, corrector: Corrector) -> dict[str, float]:
        """Returns what to log: shift, largest target and, once known, the linearization error.

        Where `gamma="auto"` chose, also whether it chose a correction, and the held-out losses on
        true targets and on the best corrected ones.
        """
        root = math.sqrt(self._squares / max(self._count, 1))
        logged = {"shift": root, "largest_target": self._largest}
        error = corrector.linearization_error
        if error is not None:
            logged["linearization_error"] = error
        trials = corrector.trials if isinstance(corrector, NetworkCorrector) else ()
        if trials:
            logged["corrected"] = float(not trials[0].chosen)
            logged["loss_on_true_targets"] = trials[0].error
            logged["loss_on_corrected_targets"] = min(trial.error for trial in trials[1:])
        return logged
