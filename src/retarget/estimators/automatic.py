"""Parameters that the estimators find by themselves, from the first samples of the stream."""

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import as_tensor, panels
from retarget.errors import InvalidInputError
from retarget.kernels import Kernel
from retarget.kernels.simple import median_distance
from retarget.learners import SGD
from retarget.theory.stability import largest_stable_lr


def usual_width(X: np.ndarray) -> float:
    """The median distance between samples that differ."""
    width = median_distance(as_tensor("X", X))
    if width is None:
        raise InvalidInputError(
            "width=None means the median distance between samples that differ, and with "
            f"n_samples = {len(X)} there is no such pair; give a width, or more samples at first"
        )
    return width


def safe_rate(kernel: Kernel, X: np.ndarray, learner: SGD) -> float:
    """Half of the largest stable rate.

    It is the rate at which plain SGD learns the steepest mini-batch in one step, and at which no
    step takes it away from a function that fits all samples.
    """
    limit = min(
        _largest_rate(as_tensor("the kernel's result", kernel(X[rows])), learner)
        for rows in panels(len(X), learner.batch_size, torch.device("cpu"))
    )
    # A kernel of zeros learns nothing at any rate.
    return limit / 2 if np.isfinite(limit) else 1.0


def _largest_rate(gram: Tensor, learner: SGD) -> float:
    return largest_stable_lr(lambda batch: gram[batch, batch], learner, len(gram))
