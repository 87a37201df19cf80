"""The three ways to learn a stream: on its targets as they are, and on corrected ones."""

from abc import ABC, abstractmethod

import numpy as np

from retarget.arrays import as_tensor, require_memory
from retarget.kernels import Kernel
from retarget.learners import SGD
from retarget.streaming.corrector import TargetCorrector
from retarget.streaming.trackers import CorrectionTracker, ShiftTracker


class LearnedStream(ABC):
    """A stream, as far as it has been learned. A portion that fails leaves it as it was."""

    _tracker: ShiftTracker | CorrectionTracker | TargetCorrector

    def __len__(self) -> int:
        return len(self._tracker)

    @property
    def samples(self) -> np.ndarray:
        """(n, d) all samples so far."""
        rows: np.ndarray = self._tracker.samples
        return rows

    @abstractmethod
    def learn(self, X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Learns more samples.

        Returns:
            The dual coefficients, and the targets that were learned, of all samples so far. What
            is open (a mini-batch, a block) counts as if the stream ended here, and stays open.
        """


class Uncorrected(LearnedStream):
    """Learns the targets as they are: the online learner itself."""

    _tracker: ShiftTracker

    def __init__(self, kernel: Kernel, learner: SGD, gamma: float) -> None:
        self._tracker = ShiftTracker(kernel, learner, gamma)
        self._targets: np.ndarray | None = None

    def learn(self, X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Learns more samples."""
        after = self._tracker.fork()
        after.update(X, Y)
        coefficients, targets = after.coefficients, _joined(self._targets, Y)
        self._tracker, self._targets = after, targets
        return coefficients, targets


class ExactlyCorrected(LearnedStream):
    """Learns the targets that make it end as the offline learner of all samples so far."""

    _tracker: CorrectionTracker

    def __init__(self, kernel: Kernel, learner: SGD, gamma: float) -> None:
        self._tracker = CorrectionTracker(kernel, learner, gamma)

    def learn(self, X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Learns all samples again, with the new ones."""
        _require_room(len(self), X, Y)
        after = self._tracker.fork()
        after.update(X, Y)
        learned = after.coefficients, after.corrected_targets
        self._tracker = after
        return learned


class IterativelyCorrected(LearnedStream):
    """Learns targets that lead it, block by block, to the offline learner's predictions."""

    _tracker: TargetCorrector

    def __init__(
        self, kernel: Kernel, learner: SGD, gamma: float, block_size: int, ridge: float
    ) -> None:
        self._tracker = TargetCorrector(kernel, learner, gamma, block_size, ridge)
        self._targets: np.ndarray | None = None  # of the blocks that are complete

    def learn(self, X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Learns more samples."""
        _require_room(len(self), X, Y)
        after = self._tracker.fork()
        targets = _joined(self._targets, after.correct(X, Y))
        open_targets, coefficients = after.preview()
        self._tracker, self._targets = after, targets
        return coefficients, _joined(targets, open_targets)


def _joined(before: np.ndarray | None, new: np.ndarray) -> np.ndarray:
    """All targets, with as many axes as the first ones (the trackers check their number)."""
    if before is None:
        return new.copy()
    return np.concatenate([before, new.reshape(len(new), *before.shape[1:])])


def _require_room(before: int, X: np.ndarray, Y: np.ndarray) -> None:
    """Refuses samples whose part of the n^2/2 numbers of the factor cannot fit."""
    n = before + len(X)
    require_memory(
        f"the factor of {n} samples",
        (n**2 - before**2) / 2,
        as_tensor("Y", Y),
        "use fewer samples, float32, or correction='none', which keeps no factor",
    )
