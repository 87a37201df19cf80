"""Probabilities from the outputs of a model that was trained on the squared error."""

import numpy as np


def nearest_distributions(outputs: np.ndarray) -> np.ndarray:
    """Returns for each row the non-negative numbers with sum 1 that are nearest to it.

    They are the positive parts of the outputs minus a constant (Held, Wolfe and Crowder, 1974).

    Args:
        outputs: (n, c) rows of any real numbers.

    Examples:
        >>> nearest_distributions(np.array([[0.2, 0.8], [1.4, 0.6], [5.0, -3.0]]))
        array([[0.2, 0.8],
               [0.9, 0.1],
               [1. , 0. ]])
    """
    falling = -np.sort(-outputs, axis=1)
    excess = falling.cumsum(axis=1) - 1
    counts = np.arange(1, outputs.shape[1] + 1)
    last = (falling * counts > excess).sum(axis=1, keepdims=True)  # how many stay positive
    shares = np.maximum(outputs - np.take_along_axis(excess, last - 1, axis=1) / last, 0)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))  # the sum is 1 up to rounding
