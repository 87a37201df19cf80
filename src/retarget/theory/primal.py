r"""The online learner in feature space: nothing of the past is kept but its weights.

With explicit features, $k(x, x') = \phi(x)^\top \phi(x')$, what a window of new samples inherits
is its features times the weights (and the velocity). Within the window the system is the
triangular one of `dual`, so the errors are the same numbers, and every window costs the same,
however many came before it.
"""

import copy
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from retarget.errors import InvalidInputError
from retarget.learners import SGD
from retarget.state_files import require_shape
from retarget.theory.dual import Window, diagonal_blocks
from retarget.theory.response import StepResponse, step_response
from retarget.theory.stability import GrowthWatch, stable_limit

MEMORIES = 8  # lengths of windows whose response is kept


class FeatureRows:
    """The features (m, features) of a few consecutive samples."""

    def __init__(self, features: Tensor) -> None:
        self.features = features

    @cached_property
    def gram(self) -> Tensor:
        """(m, m) their kernel among themselves."""
        return self.features @ self.features.mT


class PrimalLearner:
    """The state of an online learner after the samples so far, in feature space."""

    def __init__(self, learner: SGD) -> None:
        self.learner = learner
        self.steps = 0
        self._size = 0
        self._kept = 2 if learner.has_memory else 1
        self._parts: tuple[Tensor, ...] = ()  # weights and, if there is a memory, velocity
        self._memories: dict[int, StepResponse] = {}

    def __len__(self) -> int:
        return self._size

    @property
    def coefficients(self) -> Tensor:
        """(features, c) the weights: the prediction for a query is its features times these."""
        return self._parts[0]

    def window(self, rows: FeatureRows) -> Window:
        """The next samples."""
        past, memory = self.past(rows), self._memory(len(rows.features))
        return Window(self._size, rows.gram, past, memory, self.steps, rows.features)

    def past(self, rows: FeatureRows) -> tuple[Tensor, ...]:
        """(m, c) the next samples' features times the weights, and the velocity."""
        return tuple(rows.features @ part for part in self._parts)

    def fork(self) -> Self:
        """A learner that goes on from here by itself."""
        return copy.copy(self)  # learning makes new weights and does not change the old ones

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and numbers."""
        parts = {f"part{i}": part for i, part in enumerate(self._parts)}
        return {"steps": self.steps, "size": self._size} | parts

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state; this learner must be new."""
        self.steps, self._size = int(state["steps"]), int(state["size"])
        if not self.learner.steps(self._size) <= self.steps <= self._size:
            raise InvalidInputError(f"steps is {self.steps}, where there are {self._size} samples")
        if self._size:
            shape = require_shape("part0", state["part0"], None, None).shape
            names = [f"part{i}" for i in range(self._kept)]
            self._parts = tuple(require_shape(name, state[name], *shape) for name in names)

    def learn(self, window: Window, errors: Tensor) -> None:
        """Takes the steps of the window, on which it made these errors."""
        new = [window.place.mT @ part for part in window.deposits(errors)[: self._kept]]
        if self._parts:
            transfer = window.memory.transfer[: self._kept, : self._kept].tolist()
            for part, shares in zip(new, transfer, strict=True):
                for share, old in zip(shares, self._parts, strict=True):
                    part.add_(old, alpha=share)
        self._parts = tuple(new)
        self._size += len(errors)
        self.steps += window.memory.deposit.shape[1]

    def _memory(self, m: int) -> StepResponse:
        """The response over the next `m` samples: at one rate, that over any `m` samples."""
        if not isinstance(self.learner.lr, float):
            return step_response(self.learner, self.steps, m)
        if m not in self._memories:
            if len(self._memories) == MEMORIES:  # a stream in odd portions has ever new lengths
                self._memories.clear()
            self._memories[m] = step_response(self.learner, 0, m)
        return self._memories[m]


class FeatureGrowthWatch(GrowthWatch):
    """The same watch, with a probe in feature space.

    The rate that would do comes from the largest curvature of the mini-batches so far, which is
    kept as one number, because the samples cannot be looked at again.

    Attributes:
        curvature: The largest eigenvalue of a mini-batch's kernel, times its loss's reduction.
    """

    def __init__(self, learner: SGD) -> None:
        super().__init__(learner, no_past, PrimalLearner(learner))
        self.curvature = 0.0

    def follow(self, K_rows: Any, window: Window, targets: Tensor, errors: Tensor) -> None:
        """As `GrowthWatch.follow`, from the features of the samples."""
        batch, m = self.learner.batch_size, len(window.gram)
        whole = m - m % batch
        full = diagonal_blocks(window.gram[:whole, :whole], batch)
        for blocks in (full, window.gram[None, whole:, whole:]):
            if blocks.numel():
                scale = 1.0 if self.learner.reduction == "sum" else 1.0 / blocks.shape[-1]
                top = torch.linalg.eigvalsh(blocks)[:, -1].max().item()
                self.curvature = max(self.curvature, scale * top)
        super().follow(K_rows, window, targets, errors)

    def stable_lr(self, n: int) -> float:
        """A rate at which the samples so far are learned without blowing up."""
        return stable_limit(self.curvature, self.learner)

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and numbers."""
        return super().state_dict() | {"curvature": self.curvature}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state; this watch must be new."""
        super().load_state_dict(state)
        self.curvature = float(state["curvature"])


def no_past(rows: slice) -> Tensor:
    """Stands for the kernel of the past, which is never asked for in feature space."""
    raise AssertionError(f"nothing is kept of the samples {rows.start} to {rows.stop}")
