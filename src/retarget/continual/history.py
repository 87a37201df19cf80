"""What a run of the lab leaves behind: accuracies along the stream."""

from dataclasses import dataclass

import numpy as np

from retarget.continual.metrics import average_accuracy, backward_transfer, forgetting


@dataclass(frozen=True)
class History:
    """Accuracies of M members at E times during the learning of T tasks.

    Attributes:
        samples: (E,) samples learned from so far: in every epoch again, but not those that a
            method replays.
        task: (E,) number of tasks that have been learned to their end.
        accuracy: (E, M) on all test samples of all tasks.
        task_accuracy: (E, M, T) on each task's own.
        loss: (E, M) mean training loss of a step, of whatever pass, since the time before; NaN at
            the start.
    """

    samples: np.ndarray
    task: np.ndarray
    accuracy: np.ndarray
    task_accuracy: np.ndarray
    loss: np.ndarray

    @property
    def matrix(self) -> np.ndarray:
        """(M, T, T) accuracy on each task (columns) right after each task (rows)."""
        ends = np.flatnonzero(np.diff(self.task, prepend=0))
        return self.task_accuracy[ends].swapaxes(0, 1)

    @property
    def final_accuracy(self) -> np.ndarray:
        """(M,) on all test samples, at the end."""
        last: np.ndarray = self.accuracy[-1]
        return last

    @property
    def average_accuracy(self) -> np.ndarray:
        """(M,) see `metrics.average_accuracy`."""
        return average_accuracy(self.matrix)

    @property
    def forgetting(self) -> np.ndarray:
        """(M,) see `metrics.forgetting`."""
        return forgetting(self.matrix)

    @property
    def backward_transfer(self) -> np.ndarray:
        """(M,) see `metrics.backward_transfer`."""
        return backward_transfer(self.matrix)
