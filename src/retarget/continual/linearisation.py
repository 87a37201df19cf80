"""Whether a network still does what its tangent kernel says that it will."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from retarget.arrays import as_non_negative, as_tensor, panels
from retarget.errors import (
    InvalidInputError,
    LinearisationWarning,
    TrainingDivergedError,
    warn_caller,
)
from retarget.kernels.simple import Kernel
from retarget.learners import SGD
from retarget.samples import (
    Samples,
    count,
    leaves,
    named_leaves,
    outputs_of,
    portions,
    take,
    whole_numbers_explained,
    with_type_of,
)
from retarget.state_files import require_shape
from retarget.theory.dual import DualLearner
from retarget.theory.losses import Loss

TOLERANCE = 1.0  # of the error below: at 1 the theory is no better than "nothing happens"
# Weight of a comparison after the next one: single blocks that were to move by little are often far
# off, even if all goes well.
REMEMBERED = 0.8
CHUNK = 256  # samples that go through the network together
ROUNDING = 1e-9  # of the outputs: a shorter distance is none


class LinearisationWatch:
    """Compares what the theory said of the last block with what the network did.

    Its error is the distance of the outputs from where they should be, relative to the distance
    that they were to move.

    Attributes:
        samples: The last block; None if there is nothing to compare.
        before: (m, c) the network's outputs on it when its targets were given.
        predicted: (m, c) the outputs that the theory expects after training on it.
        last: The error of the last comparison alone.
    """

    def __init__(self) -> None:
        self.samples: Samples | None = None
        self.before = self.predicted = torch.empty(0)
        self._gap = self._way = 0.0  # sums of squares
        self.last: float | None = None
        self.warned = False

    @property
    def off(self) -> float | None:
        """The error over the last few comparisons; None before the first."""
        return math.sqrt(self._gap / self._way) if self._way > 0 else None

    def expect(self, samples: Samples, before: Tensor, predicted: Tensor) -> None:
        """Notes what is expected of a block."""
        self.samples = samples if predicted.isfinite().all() else None
        self.before, self.predicted = before, predicted

    def compare(self, module: nn.Module) -> None:
        """Looks at the network, and warns the first time that it is not where it should be."""
        self.last = None
        if self.samples is None:
            return
        now = outputs(module, self.samples)
        way = float((self.predicted - self.before).norm())
        still = way <= ROUNDING * float(self.before.norm())
        if still or torch.equal(now, self.before):  # nothing was to happen, or nothing has
            return
        gap, off = float((now - self.predicted).norm()), math.inf
        self.last = gap / way if math.isfinite(gap) else math.inf
        if math.isfinite(gap):
            self._gap, self._way = REMEMBERED * self._gap + gap**2, REMEMBERED * self._way + way**2
            off = math.sqrt(self._gap / self._way)
        if not self.warned and not off <= TOLERANCE:
            self.warned = True
            warn_caller(
                f"on the last block the network's outputs were to move by {way:.3g}, and are "
                f"{gap:.3g} from where they should be (recently {off:.3g} times the distance): it "
                "has left its linearisation, and corrected targets lead it astray; use a wider "
                "network, a smaller rate, a larger gamma, ridge or damping (or it was not "
                "trained on the targets as they were given)",
                LinearisationWarning,
            )

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and plain values."""
        state: dict[str, Any] = {"sums": [self._gap, self._way], "warned": self.warned}
        if self.samples is not None:
            state |= named_leaves("samples", self.samples)
            state |= {"before": self.before, "predicted": self.predicted}
        return state

    def load_state_dict(self, state: dict[str, Any], samples: Samples | None, c: int) -> None:
        """Restores a state with these samples and c outputs; this watch must be new."""
        self._gap, self._way = (as_non_negative("sums", part) for part in state["sums"])
        self.warned, self.samples = bool(state["warned"]), samples
        if samples is None:
            return
        for name in ("before", "predicted"):
            values = require_shape(name, state[name], count(samples), c)
            if values.dtype != torch.float64 or not values.isfinite().all():
                raise InvalidInputError(f"{name} does not hold finite numbers of float64")
            setattr(self, name, values)


@torch.no_grad()
def outputs(module: nn.Module, samples: Samples) -> Tensor:
    """(n, c) a network's outputs, in double precision; nothing in it changes."""
    # stand-ins for the buffers: a forward pass may change them
    weights = {name: value.detach() for name, value in module.named_parameters()}
    weights |= {name: value.clone() for name, value in module.named_buffers()}
    like = next(iter(weights.values()), leaves(samples)[0])
    found = [
        outputs_of(module, with_type_of(like, part), weights).flatten(1)
        for part in portions(samples, CHUNK)
    ]
    return torch.cat(found).double()


def linear_outputs(
    K: Tensor, before: Tensor, Z: Tensor, learner: SGD, first_step: int, loss: Loss
) -> Tensor:
    """(n, c) the outputs after plain SGD on Z from this step on, if the kernel (n, n) is K."""
    dual = DualLearner(learner, len(K))
    dual.steps = first_step
    for rows in panels(len(K), learner.batch_size, K.device):
        window = dual.window(K[rows, : rows.stop])
        dual.learn(window, window.errors(Z[rows], loss, before[rows]))
    return before + K @ dual.coefficients


def tangent_kernel(kernel: Kernel, X: Samples) -> Tensor:
    """(n, n) a network's kernel; refused if the network has broken down.

    It has double precision whatever the network's own is: nearly singular systems are solved with
    it. If all units of a ReLU layer are silent for a sample, its gradient is zero, and so is its
    row of K: the network can learn nothing from it, and the kernel of its block is singular. Any
    positive number on the diagonal sets such samples apart: the others are corrected as if they
    were not there.
    """
    K = as_tensor("the kernel's result", kernel(X)).double()
    if not K.isfinite().all():
        raise TrainingDivergedError(
            "the network's kernel is not finite: its weights, or products of them, overflowed; use "
            "a smaller rate, or a larger gamma, ridge or damping",
            step=0,
            members=(0,),
        )
    silent = K.diagonal() == 0
    if silent.all():
        raise TrainingDivergedError(
            "the network's gradients are zero for every sample: its units have died; use a smaller "
            "rate, or a larger gamma or ridge",
            step=0,
            members=(0,),
        )
    if silent.any():
        K = K.clone()  # it may be the caller's own
        K.diagonal()[silent] = K.diagonal()[~silent].mean()
    return K


def require_outputs(module: nn.Module, samples: Samples, targets: Tensor) -> None:
    """Refuses targets whose number is not that of the network's outputs."""
    with whole_numbers_explained(samples):
        found = outputs(module, take(samples, slice(0, 1))).shape[1]
    if found != targets.shape[1]:
        raise InvalidInputError(
            f"Y has {targets.shape[1]} columns, but the network has "
            f"{found} outputs; expected one target for each output"
        )
