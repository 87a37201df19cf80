"""The paper's one-dimensional toy (appendix B.1): noisy samples of a random smooth curve."""

from dataclasses import dataclass

import numpy as np

GRID = np.arange(200) * 0.005
WIDTH = np.sqrt(0.1)
NOISE = 0.3
TRAIN = 40


@dataclass(frozen=True)
class ToyCurve:
    """One draw of the curve: inputs and noisy targets, with training samples in stream order."""

    truth: np.ndarray  # the curve itself, on the grid
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def toy_curve(seed: int) -> ToyCurve:
    r"""Draws a Gaussian process with kernel $\exp(-(x-x')^2/0.1)$, sampled with noise 0.3.

    Args:
        seed: Seed for the curve, the noise and the choice of training points.

    Examples:
        >>> curve = toy_curve(seed=0)
        >>> curve.x_train.shape, curve.x_test.shape
        ((40,), (160,))
    """
    rng = np.random.default_rng(seed)
    covariance = np.exp(-(np.subtract.outer(GRID, GRID) ** 2) / WIDTH**2)
    # eigh: the covariance is singular to working precision, so a Cholesky factorization would fail
    truth = rng.multivariate_normal(np.zeros(len(GRID)), covariance, method="eigh")
    y = truth + NOISE * rng.normal(size=len(GRID))
    order = rng.permutation(len(GRID))
    train, test = np.split(order, [TRAIN])  # of the 200 points of the grid
    return ToyCurve(truth, GRID[train], y[train], GRID[test], y[test])
