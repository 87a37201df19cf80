"""The results of a training run: accuracies along the stream, and measures of forgetting."""

from dataclasses import dataclass

import numpy as np

from retarget.errors import InvalidInputError


@dataclass(frozen=True)
class History:
    """Accuracies of M members (networks) at E evaluations while learning T tasks.

    Attributes:
        samples: (E,) number of training samples so far, counted again in every epoch; samples that
            a method replays are not counted.
        task: (E,) number of tasks that have been learned completely.
        accuracy: (E, M) accuracy on the test samples of all tasks.
        task_accuracy: (E, M, T) accuracy on the test samples of each task.
        loss: (E, M) mean training loss of a step since the previous evaluation; NaN at the start.
        kept_bytes: Bytes that a member's methods keep at the end, besides the network.
    """

    samples: np.ndarray
    task: np.ndarray
    accuracy: np.ndarray
    task_accuracy: np.ndarray
    loss: np.ndarray
    kept_bytes: int = 0

    @property
    def matrix(self) -> np.ndarray:
        """(M, T, T) accuracy on each task (columns) right after each task (rows)."""
        ends = np.flatnonzero(np.diff(self.task, prepend=0))
        return self.task_accuracy[ends].swapaxes(0, 1)

    @property
    def final_accuracy(self) -> np.ndarray:
        """(M,) accuracy on all test samples, at the end."""
        return np.asarray(self.accuracy[-1])

    @property
    def average_accuracy(self) -> np.ndarray:
        """(M,) the mean accuracy over all tasks, at the end."""
        return average_accuracy(self.matrix)

    @property
    def forgetting(self) -> np.ndarray:
        """(M,) how far the accuracy on earlier tasks has fallen from its best, on average."""
        return forgetting(self.matrix)

    @property
    def backward_transfer(self) -> np.ndarray:
        """(M,) how far later tasks have changed the accuracy on earlier ones, on average."""
        return backward_transfer(self.matrix)


# The measures take the accuracy matrix R (..., T, T): R_ij is the accuracy on the test set of task
# j right after task i has been learned. Leading dimensions (members, seeds) are kept.


def average_accuracy(R: np.ndarray) -> np.ndarray:
    r"""$\frac1T \sum_j R_{Tj}$: mean accuracy over the tasks when all have been learned.

    Examples:
        >>> average_accuracy([[0.9, 0.5], [0.7, 0.8]])
        array(0.75)
    """
    return np.asarray(_checked(R, 1)[..., -1, :].mean(-1))


def forgetting(R: np.ndarray) -> np.ndarray:
    r"""$\frac1{T-1} \sum_{j<T} (\max_{i<T} R_{ij} - R_{Tj})$: loss since each task's best accuracy.

    As in Chaudhry et al., "Riemannian Walk for Incremental Learning" (2018).

    Examples:
        >>> print(forgetting([[0.9, 0.5], [0.7, 0.8]]).round(12))
        0.2
    """
    R = _checked(R)
    return np.asarray((R[..., :-1, :-1].max(-2) - R[..., -1, :-1]).mean(-1))


def backward_transfer(R: np.ndarray) -> np.ndarray:
    r"""$\frac1{T-1} \sum_{j<T} (R_{Tj} - R_{jj})$: effect of later tasks on each earlier one.

    As in Lopez-Paz and Ranzato, "Gradient Episodic Memory for Continual Learning" (2017).

    Examples:
        >>> print(backward_transfer([[0.9, 0.5], [0.7, 0.8]]).round(12))
        -0.2
    """
    R = _checked(R)
    return np.asarray((R[..., -1, :-1] - R.diagonal(axis1=-2, axis2=-1)[..., :-1]).mean(-1))


def _checked(R: np.ndarray, least: int = 2) -> np.ndarray:
    R = np.asarray(R, dtype=float)
    if R.ndim < 2 or R.shape[-1] != R.shape[-2] or R.shape[-1] < least:
        raise InvalidInputError(
            f"R has shape {R.shape}; expected (..., tasks, tasks), with {least} or more tasks"
        )
    return R
