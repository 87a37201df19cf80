"""Shared by all adapters: compares the gradients of training with those of the corrector's loss."""

import math
from typing import Any

import torch
from torch import Tensor

from retarget.engine.losses import row_losses
from retarget.errors import InvalidInputError
from retarget.kernels.empirical.parameters import trained_parameters
from retarget.kernels.empirical.recording import outputs_with
from retarget.networks.base import Corrector
from retarget.samples import Samples

# Relative: float32 gradients have seven digits, and another loss differs by a factor or a term.
TOLERANCE = 1e-3
LAST_DIGITS = 32  # rounding of outputs and targets, in units of the last digit
LOSSES = {
    "squared": "0.5 * (outputs - targets).square().sum(1)",
    "cross-entropy": "torch.nn.functional.cross_entropy(outputs, targets, reduction='none')",
}


class GradientCheck:
    """Checks that the optimizer gets the gradients of the corrector's loss, and nothing else.

    The value of a loss at one point says little: penalties that keep weights where they were
    (L2-SP, EWC) start at zero. So gradients are compared, as they are when the optimizer takes its
    step, in the first two steps of a task and then at the steps 2, 4, 8, ... Each comparison costs
    another forward and backward pass; the network, its buffers, its gradients and the random
    numbers stay as they are.
    """

    def __init__(self) -> None:
        self._corrector: Any = None  # None if no task is watched
        self._hook: Any = None

    def open(self, corrector: Corrector, optimizer: torch.optim.Optimizer) -> None:
        """Watches the steps of an optimizer on a new task, until `close`."""
        self.close()
        self._corrector = corrector
        self._step = 0
        self._trained = trained_parameters(corrector.module, corrector.params)
        self._sums: list[Tensor] = []  # of the gradients of this step's samples so far
        self._samples = 0
        self._rounding = 0.0
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def close(self) -> None:
        """Stops watching."""
        if self._hook is not None:
            self._hook.remove()
        self._corrector = self._hook = None
        self._trained = {}
        self._sums = []

    def add(self, samples: Samples, targets: Tensor) -> None:
        """Takes note of a mini-batch, just before the network is called to train on it."""
        if self._corrector is None or self._step & (self._step - 1):  # compared: 0, 1, 2, 4, 8, ...
            return
        module = self._corrector.module
        weights = {name: value.detach() for name, value in module.named_parameters()}
        leaves = [weights[name].requires_grad_() for name in self._trained]
        weights |= {name: value.clone() for name, value in module.named_buffers()}
        device = leaves[0].device
        with torch.enable_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            outputs = outputs_with(module, samples, weights).flatten(1)
            targets = targets.to(outputs).reshape(outputs.shape)
            loss = row_losses(outputs, targets, self._corrector.loss).sum()
            (errors,) = torch.autograd.grad(loss, outputs, retain_graph=True)
            gradients = torch.autograd.grad(outputs, leaves, errors, materialize_grads=True)
        digits = torch.finfo(outputs.dtype).eps * LAST_DIGITS
        size = float(outputs.detach().norm() + targets.norm())
        self._rounding = max(self._rounding, digits * size / max(float(errors.norm()), 1e-300))
        self._samples += len(targets)
        before = self._sums or [torch.zeros_like(value) for value in gradients]
        self._sums = [a + b for a, b in zip(before, gradients, strict=True)]

    def _before_step(self, optimizer: Any, given: Any, named: dict[str, Any]) -> Any:
        """Compares the gradients; those that a closure computes, when it has computed them."""
        closure = named.get("closure", given[1] if len(given) > 1 else None)
        if closure is None:
            self._compare()
            return None

        def and_compare() -> Any:
            loss = closure()
            self._compare()
            return loss

        return given[:1], named | {"closure": and_compare}

    def _compare(self) -> None:
        step = self._step
        self._step += 1
        if not self._samples:
            return
        learner = self._corrector.learner
        loss = self._corrector.loss
        share = 1 / self._samples if learner.reduction == "mean" else 1.0
        ours = [share * value for value in self._sums]
        theirs = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._trained.values()]
        size = _dot(ours, ours)
        dot = _dot(ours, theirs)
        apart = [float((a - b).norm()) for a, b in zip(ours, theirs, strict=True)]
        off = math.hypot(*apart) / math.sqrt(size or 1.0)
        allowed = max(TOLERANCE, self._rounding)
        self._sums = []
        self._samples = 0
        self._rounding = 0.0
        if not math.isfinite(size) or off <= allowed:
            return
        factor = dot / size if size else 0.0
        scaled = [float((factor * a - b).norm()) for a, b in zip(ours, theirs, strict=True)]
        if math.hypot(*scaled) <= allowed * math.sqrt(_dot(theirs, theirs)):
            how = f"are {factor:.4g} times those"
        else:
            most = list(self._trained)[max(range(len(apart)), key=apart.__getitem__)]
            how = f"differ by {off:.1%} (most in {most}) from those"
        raise InvalidInputError(
            f"at step {step} of the task the gradients {how} of the corrector's loss, "
            f"{LOSSES[loss]}, with the {learner.reduction} over the mini-batch; train on exactly "
            "this loss, without penalties, clipping or other terms, and describe its mean or sum "
            "by the learner's reduction (to penalize large weights, use the optimizer's "
            "weight_decay)"
        )


def _dot(a: list[Tensor], b: list[Tensor]) -> float:
    return sum(float((x * y).sum()) for x, y in zip(a, b, strict=True))
