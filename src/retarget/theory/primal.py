r"""The online learner in feature space: its weights themselves, where the features are few.

With explicit features, $k(x, x') = \phi(x)^\top \phi(x')$, the past need not be kept: what a window
of new samples inherits is its features times the weights (and the velocity). Within the window the
system is the triangular one of `dual`, so that the errors, and all that follows from them, are the
same numbers.
"""

import copy
from functools import cached_property
from typing import Any, Self

from torch import Tensor

from retarget.errors import InvalidInputError
from retarget.learners import SGD
from retarget.state_files import require_shape
from retarget.theory.dual import Window
from retarget.theory.response import StepResponse, step_response

MEMORIES = 8  # lengths of windows whose response is kept


class FeatureRows:
    """The features (m, features) of a few consecutive samples."""

    def __init__(self, features: Tensor) -> None:
        self.features = features

    @cached_property
    def gram(self) -> Tensor:
        """(m, m) their kernel among themselves."""
        return self.features @ self.features.mT


class FeatureWindow(Window):
    """The next few samples, with their features."""

    def __init__(
        self, start: int, rows: FeatureRows, past: tuple[Tensor, ...], memory: StepResponse
    ) -> None:
        super().__init__(start, rows.gram, past, memory)
        self.features = rows.features


class PrimalLearner:
    """The state of an online learner after the samples so far, in feature space."""

    def __init__(self, learner: SGD) -> None:
        self.learner = learner
        self.steps = 0
        self._size = 0
        self._parts: tuple[Tensor, ...] = ()  # weights and, where there is a memory, velocity
        self._memories: dict[int, StepResponse] = {}

    def __len__(self) -> int:
        return self._size

    @property
    def coefficients(self) -> Tensor:
        """(features, c) the weights: the prediction for a query is its features times these."""
        return self._parts[0]

    def window(self, rows: FeatureRows) -> FeatureWindow:
        """The next samples."""
        memory = self._memory(len(rows.features))
        return FeatureWindow(self._size, rows, self.past(rows), memory)

    def past(self, rows: FeatureRows) -> tuple[Tensor, ...]:
        """(m, c) what the weights, and the velocity, give at the next samples."""
        return tuple(rows.features @ part for part in self._parts)

    def fork(self) -> Self:
        """A learner that goes on from here by itself."""
        return copy.copy(self)  # learning makes new weights, and leaves the old ones be

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and numbers."""
        parts = {f"part{i}": part for i, part in enumerate(self._parts)}
        return {"steps": self.steps, "size": self._size} | parts

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state; this learner must be new."""
        self.steps, self._size = int(state["steps"]), int(state["size"])
        if not -(-self._size // self.learner.batch_size) <= self.steps <= self._size:
            raise InvalidInputError(f"steps is {self.steps}, where there are {self._size} samples")
        if self._size:
            shape = require_shape("part0", state["part0"], None, None).shape
            kept = range(2 if self.learner.has_memory else 1)
            self._parts = tuple(require_shape(f"part{i}", state[f"part{i}"], *shape) for i in kept)

    def learn(self, window: FeatureWindow, errors: Tensor) -> None:
        """Takes the steps of the window, on which these errors were made."""
        kept = 2 if self.learner.has_memory else 1
        new = [window.features.mT @ part for part in window.deposits(errors)[:kept]]
        if self._parts:
            transfer = window.memory.transfer[:kept, :kept].tolist()
            for part, shares in zip(new, transfer, strict=True):
                for share, old in zip(shares, self._parts, strict=True):
                    part.add_(old, alpha=share)
        self._parts = tuple(new)
        self._size += len(errors)
        self.steps += window.memory.deposit.shape[1]

    def _memory(self, m: int) -> StepResponse:
        """That of the next `m` samples, which at one rate is that of any `m` samples."""
        if not isinstance(self.learner.lr, float):
            return step_response(self.learner, self.steps, m)
        if m not in self._memories:
            if len(self._memories) == MEMORIES:  # a stream in odd portions has no end of lengths
                self._memories.clear()
            self._memories[m] = step_response(self.learner, 0, m)
        return self._memories[m]
