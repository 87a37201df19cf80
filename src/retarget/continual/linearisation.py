"""Whether a network still does what its tangent kernel says that it will."""

import copy
import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from retarget.arrays import as_tensor, panels
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
    from_named,
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

# How far the outputs may be from where the theory would have them, relative to the way that they
# were to go. At 1 the theory says no more than that nothing happens.
TOLERANCE = 1.0
# What a comparison still counts after the next one: single blocks that were to move by little are
# often far off, also where all goes well.
REMEMBERED = 0.8
CHUNK = 256  # samples that go through the network together
ROUNDING = 1e-9  # of the outputs: a shorter way is none


class LinearisationWatch:
    """Compares what the theory said of the last block with what the network made of it.

    Attributes:
        samples: The last block; None if there is nothing to compare.
        before: (m, c) the network's outputs on it when its targets were given.
        predicted: (m, c) those that the theory expects once it was trained on.
        last: How far off the outputs were at the last comparison alone, relative to their way.
        warned: Whether it has warned.
    """

    def __init__(self) -> None:
        self.samples: Samples | None = None
        self.before = self.predicted = torch.empty(0)
        self._gap = self._way = 0.0  # sums of squares
        self.last: float | None = None
        self.warned = False

    @property
    def off(self) -> float | None:
        """How far off the outputs were at the last few comparisons, relative to their way.

        None before the first.
        """
        return math.sqrt(self._gap / self._way) if self._way > 0 else None

    def expect(self, samples: Samples, before: Tensor, predicted: Tensor) -> None:
        """Notes what is expected of a block."""
        if not predicted.isfinite().all():
            self.samples = None
            return
        self.samples, self.before, self.predicted = samples, before, predicted

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
        gap = float((now - self.predicted).norm())
        self.last = gap / way if math.isfinite(gap) else math.inf
        off = math.inf
        if math.isfinite(gap):
            self._gap, self._way = REMEMBERED * self._gap + gap**2, REMEMBERED * self._way + way**2
            off = math.sqrt(self._gap / self._way)
        if not self.warned and not off <= TOLERANCE:
            self.warned = True
            warn_caller(
                f"on the last block the network's outputs were to move by {way:.3g}, and are "
                f"{gap:.3g} from where they should be (of late, {off:.3g} times the way): it has "
                "left its linearisation, and corrected targets lead it astray; use a wider "
                "network, a smaller rate, a larger gamma, ridge or damping (or it was not "
                "trained on the targets as they were given)",
                LinearisationWarning,
            )

    def fork(self) -> Self:
        """A watch that goes on from here by itself."""
        return copy.copy(self)

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and plain values."""
        state: dict[str, Any] = {"sums": [self._gap, self._way], "warned": self.warned}
        if self.samples is not None:
            state |= named_leaves("samples", self.samples)
            state |= {"before": self.before, "predicted": self.predicted}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state; this watch must be new."""
        self._gap, self._way = (float(part) for part in state["sums"])
        self.warned = bool(state["warned"])
        if not (0 <= self._gap < math.inf and 0 <= self._way < math.inf):
            raise InvalidInputError(f"sums are {state['sums']}; expected squares")
        samples = from_named("samples", state)
        if samples is None:
            return
        if not all(isinstance(leaf, Tensor) and leaf.ndim for leaf in leaves(samples)):
            raise InvalidInputError("samples are not a tensor of samples")
        self.samples = samples
        self.before = require_shape("before", state["before"], count(samples), None)
        self.predicted = require_shape("predicted", state["predicted"], *self.before.shape)
        for name, values in (("before", self.before), ("predicted", self.predicted)):
            if values.dtype != torch.float64 or not values.isfinite().all():
                raise InvalidInputError(f"{name} is not of finite numbers of float64")


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
    K: Tensor,
    before: Tensor,
    Z: Tensor,
    learner: SGD,
    first_step: int,
    loss: Loss = "squared",
) -> Tensor:
    """(n, c) a network's outputs once plain SGD has gone over the samples, if its kernel is K.

    Args:
        K: (n, n) the kernel of the samples.
        before: (n, c) the outputs now.
        Z: (n, c) what it will be trained on.
        learner: Plain SGD.
        first_step: The optimiser's step that it begins with.
        loss: What it minimises.
    """
    dual = DualLearner(learner, len(K))
    dual.steps = first_step
    for rows in panels(len(K), learner.batch_size, K.device):
        window = dual.window(K[rows, : rows.stop])
        dual.learn(window, window.errors(Z[rows], loss, before[rows]))
    return before + K @ dual.coefficients


def tangent_kernel(kernel: Kernel, X: Samples) -> Tensor:
    """(n, n) a network's kernel, in double precision, refused where the network has broken down.

    Double whatever the network's own precision is: nearly singular systems are solved with it.
    """
    K = as_tensor("the kernel's result", kernel(X)).double()
    if not K.isfinite().all():
        raise TrainingDivergedError(
            "the network's kernel is not finite: its weights, or products of them, overflowed; use "
            "a smaller rate, or a larger gamma, ridge or damping",
            step=0,
            members=(0,),
        )
    return _with_unheard_apart(K)


def _with_unheard_apart(K: Tensor) -> Tensor:
    """The kernel, with samples that the network does not respond to set apart.

    Where all units of a ReLU layer are silent for a sample, its gradient is zero, and so is its row
    of K: the network can learn nothing from it, and the kernel of its block is singular. With any
    positive number on the diagonal it is a sample unlike all others, and they are corrected as if
    it were not there.
    """
    unheard = K.diagonal() == 0
    if unheard.all():
        raise TrainingDivergedError(
            "the network's gradients are zero for every sample: its units have died; use a smaller "
            "rate, or a larger gamma or ridge",
            step=0,
            members=(0,),
        )
    if unheard.any():
        K = K.clone()  # it may be the caller's own
        K.diagonal()[unheard] = K.diagonal()[~unheard].mean()
    return K


def require_outputs(module: nn.Module, samples: Samples, targets: Tensor) -> None:
    """Refuses targets that are not one for each output of the network."""
    with whole_numbers_explained(samples):
        found = outputs(module, take(samples, slice(0, 1))).shape[1]
    if found != targets.shape[1]:
        raise InvalidInputError(
            f"Y has {targets.shape[1]} columns, but the network has "
            f"{found} outputs; expected one target for each output"
        )
