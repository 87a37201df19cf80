"""What every offline learner that follows a stream can do."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
from torch import Tensor

from retarget.arrays import shallow
from retarget.engine.condition import warn_if_meaningless
from retarget.engine.stream import Window
from retarget.engine.sums import NORMAL_EQUATIONS, FeatureSums


class OfflineLearner(ABC):
    """An offline learner that follows a stream, as the iterative correction needs it."""

    _warned = False

    def learn(self, window: Window) -> Tensor:
        """(m, c) its prediction for each new block, once it has learned that block."""
        return self.predictions(window.panel, window.targets, window.block_size, window.start)

    @abstractmethod
    def predictions(
        self, rows: Any, Y: Tensor, block_size: int, start: Tensor | None = None
    ) -> Tensor:
        """(m, c) the same, from what a window holds.

        Args:
            rows: The new samples: kernel rows (m, n + m), or `FeatureRows`.
            Y: (m, c) their targets.
            block_size: Size of their blocks; m is a multiple of it.
            start: (m, c) logits of the starting function; least squares has it subtracted from Y.
        """

    def warn_once(self) -> bool:
        """Warns once if few digits are correct; returns whether it has ever warned."""
        return self._warned

    def fork(self, gram: Callable[[slice], Tensor]) -> Self:
        """Returns an independent learner that continues from here."""
        return shallow(self)  # enough if learning creates new arrays

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any], learned: int, shape: tuple[int, ...]) -> None:
        """Restores a saved state after `learned` samples; `shape` is the coefficients' shape."""


class RidgeFromSums(OfflineLearner):
    """Ridge regression from sums over features: m^2 numbers for m features.

    Attributes:
        condition: The largest estimate of the condition number of the normal equations so far.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.condition = 1.0
        self._dtype = torch.float64

    def _factor(self, sums: FeatureSums) -> Tensor:
        """(m, m) the Cholesky factor of the normal equations, whose condition is remembered."""
        factor = sums.factor(self.gamma)
        self.condition = max(self.condition, factor.condition)
        self._dtype = sums.normal.dtype
        return factor.lower

    def warn_once(self) -> bool:
        """Warns once if few digits are correct; returns whether it has ever warned."""
        if not self._warned:
            self._warned = warn_if_meaningless(NORMAL_EQUATIONS, self.condition, self._dtype)
        return self._warned


def block_bounds(rows: int, block_size: int) -> Iterator[tuple[int, int]]:
    """Where each of several whole blocks begins and ends."""
    return ((first, first + block_size) for first in range(0, rows, block_size))
