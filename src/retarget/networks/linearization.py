"""Checks whether a network still behaves as its tangent kernel predicts."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from retarget.arrays import as_tensor, require_no_overflow
from retarget.engine.dual import DualLearner
from retarget.engine.followers import Online, follow
from retarget.engine.losses import Loss
from retarget.engine.response import remaining_start
from retarget.engine.stream import SampleStream
from retarget.errors import (
    InvalidInputError,
    LinearizationWarning,
    ResultOverflowError,
    TrainingDivergedError,
    warn_caller,
)
from retarget.kernels.base import Kernel
from retarget.kernels.empirical.recording import outputs_with
from retarget.kernels.empirical.trial import require_settled_layers
from retarget.learners import SGD
from retarget.samples import (
    Samples,
    count,
    failure_explained,
    leaves,
    mapped,
    named_leaves,
    portions,
    take,
    with_type_of,
)
from retarget.scalars import as_non_negative
from retarget.state_files import require_shape

TOLERANCE = 1.0  # for the error below: at 1 the theory predicts as poorly as "nothing happens"
# Factor by which older comparisons count less with each new one: a single block that should move
# only a little is often far off, even if all is well.
REMEMBERED = 0.8
CHUNK = 256  # samples in one forward pass
# A shorter distance counts as zero: relative to the outputs, and in units of the last digit of the
# network's precision, because a block alone may be rounded differently than within its task.
ROUNDING = 1e-9
LAST_DIGITS = 32


class LinearizationWatch:
    """Compares the theory's prediction for the last block with what the network did.

    The error is the distance of the outputs from the prediction, relative to the predicted
    movement.

    Attributes:
        samples: The last block; None if there is nothing to compare.
        before: (m, c) the network's outputs on it when its targets were computed.
        predicted: (m, c) the outputs that the theory expects after training on it.
        last: The error of the last comparison alone.
    """

    def __init__(self) -> None:
        self.samples: Samples | None = None
        self.before = self.predicted = torch.empty(0, device="cpu")
        self._gap = self._way = 0.0  # sums of squares
        self.last: float | None = None
        self.warned = False

    @property
    def off(self) -> float | None:
        """The error over the last few comparisons; None before the first one."""
        return math.sqrt(self._gap / self._way) if self._way > 0 else None

    def expect(self, samples: Samples, before: Tensor, predicted: Tensor) -> None:
        """Stores the prediction for a block, and a copy of the block: a caller may reuse it."""
        self.samples = mapped(torch.clone, samples) if predicted.isfinite().all() else None
        self.before = before
        self.predicted = predicted

    def compare(self, module: nn.Module) -> None:
        """Compares the network with the prediction, and warns the first time that it is far off."""
        self.last = None
        if self.samples is None:
            return
        now = outputs(module, self.samples)
        precision = torch.finfo(next(module.parameters()).dtype).eps
        least = max(ROUNDING, LAST_DIGITS * precision) * float(self.before.norm())
        way = float((self.predicted - self.before).norm())
        if way <= least or float((now - self.before).norm()) <= least:
            return  # no movement was expected, or none happened
        gap = float((now - self.predicted).norm())
        off = math.inf
        self.last = gap / way if math.isfinite(gap) else math.inf
        if math.isfinite(gap):
            self._gap = REMEMBERED * self._gap + gap**2
            self._way = REMEMBERED * self._way + way**2
            off = math.sqrt(self._gap / self._way)
        if not self.warned and not off <= TOLERANCE:
            self.warned = True
            warn_caller(
                f"on the last block the network's outputs should have moved by {way:.3g}, but they "
                f"are {gap:.3g} from where they should be (recently {off:.3g} times the distance): "
                "the network has left its linearization, and corrected targets mislead it; use a "
                "wider network, a smaller rate, or a larger gamma, ridge or damping (or it was not "
                "trained on the given targets)",
                LinearizationWarning,
            )

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and plain values."""
        state: dict[str, Any] = {"sums": [self._gap, self._way], "warned": self.warned}
        if self.samples is not None:
            state |= named_leaves("samples", self.samples)
            state |= {"before": self.before, "predicted": self.predicted}
        return state

    def load_state_dict(self, state: dict[str, Any], samples: Samples | None, c: int) -> None:
        """Restores a state with these samples and c outputs; call it on a new watch."""
        self._gap, self._way = (as_non_negative("sums", total) for total in state["sums"])
        self.warned = bool(state["warned"])
        self.samples = samples
        if samples is None:
            return
        for name in ("before", "predicted"):
            values = require_shape(name, state[name], count(samples), c)
            if values.dtype != torch.float64 or not values.isfinite().all():
                raise InvalidInputError(f"{name} is not a tensor of finite float64 numbers")
            setattr(self, name, values)


@torch.no_grad()
def outputs(
    module: nn.Module, samples: Samples, weights: dict[str, Tensor] | None = None
) -> Tensor:
    """Returns a network's outputs (n, c) in float64; other threads may use the network meanwhile.

    If `weights` are given, they are used instead of its parameters and buffers.
    """
    if weights is None:
        weights = {name: value.detach() for name, value in module.named_parameters()}
        # copies of the buffers, because a forward pass may change them
        weights |= {name: value.clone() for name, value in module.named_buffers()}
    like = next(iter(weights.values()), leaves(samples)[0])
    predictions = [
        outputs_with(module, with_type_of(like, portion), weights).flatten(1)
        for portion in portions(samples, CHUNK)
    ]
    return torch.cat(predictions).double()


def decaying_part(module: nn.Module, samples: Samples, trained: Iterable[str]) -> Tensor:
    """Returns J w (n, c): how the outputs change if the trained weights grow by their own size.

    If weight decay shrinks them by a small share, the outputs lose this share of J w. It is found
    from the outputs at slightly larger and smaller weights.
    """
    weights = {name: value.detach() for name, value in module.named_parameters()}
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    step = torch.finfo(next(module.parameters()).dtype).eps ** (1 / 3)  # least error of the two
    larger, smaller = (
        outputs(module, samples, weights | {k: scale * weights[k] for k in trained} | buffers)
        for scale in (1 + step, 1 - step)
    )
    change: Tensor = (larger - smaller) / (2 * step)
    return change


def linear_outputs(
    K: Tensor,
    before: Tensor,
    Z: Tensor,
    learner: SGD,
    first_step: int,
    loss: Loss,
    decaying: Tensor | None = None,
) -> Tensor:
    """Returns the outputs (n, c) after SGD on Z from this step on, with kernel K (n, n).

    Weight decay shrinks the weights from which training starts, and with them the `decaying` part
    (n, c) of the outputs `before`. The learner must not have momentum.
    """
    lost = torch.zeros_like(before) if decaying is None else decaying
    kept = K.new_tensor(remaining_start(learner, len(K), first_step=first_step))[:, None]
    dual = DualLearner(learner, len(K))
    dual.steps = first_step
    online = Online(dual, loss=loss)
    stream = SampleStream.of_matrix(K, Z, before - (1 - kept[:-1]) * lost)
    follow(stream.windows(learner.batch_size), [online])
    return before - (1 - kept[-1]) * lost + K @ dual.coefficients


def tangent_kernel(kernel: Kernel, X: Samples) -> Tensor:
    """Returns a network's kernel (n, n); raises if the network has broken down.

    It is always in float64, because nearly singular systems are solved with it. If all units of a
    ReLU layer are silent for a sample, its gradient is zero, and so is its row of K: the network
    cannot learn from it, and the kernel of its block is singular. A positive number on the diagonal
    isolates such samples: the others are corrected as if they were not there.
    """
    try:
        K = as_tensor("the kernel's result", kernel(X)).double()
        require_no_overflow(K)
    except ResultOverflowError as error:
        raise TrainingDivergedError(
            "the network's kernel is not finite: its weights, or products of them, overflowed; use "
            "a smaller rate, or a larger gamma, ridge or damping",
            step=0,
            members=(0,),
        ) from error
    silent = K.diagonal() == 0
    if silent.all():
        raise TrainingDivergedError(
            "the network's gradients are zero for every sample, so its units have died; use a "
            "smaller rate, or a larger gamma or ridge",
            step=0,
            members=(0,),
        )
    if silent.any():
        K = K.clone()  # it may be the caller's tensor
        K.diagonal()[silent] = K.diagonal()[~silent].mean()
    return K


def number_of_outputs(module: nn.Module, samples: Samples) -> int:
    """Returns how many numbers a network returns for a sample, from the first of these."""
    with failure_explained(samples):
        try:
            return outputs(module, take(samples, slice(0, 1))).shape[1]
        except ValueError:  # in training, a batch normalization does not take a single sample
            require_settled_layers(module)
            raise
