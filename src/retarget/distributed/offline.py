"""The offline learner on a kernel that is bigger than memory."""

from typing import Any

import dask.array as da
import numpy as np
import torch

from retarget.arrays import as_non_negative
from retarget.distributed.columns import follow_columns
from retarget.distributed.factor import TiledFactor
from retarget.distributed.problem import TiledProblem, as_tiled_problem
from retarget.theory.precision import warn_if_meaningless


@torch.no_grad()
def offline_coefficients(K: da.Array, Y: Any, gamma: float, *, initial: Any = None) -> np.ndarray:
    r"""Dual coefficients of offline ridge regression, as `retarget.offline_coefficients`.

    Args:
        K: (n, n) Gram matrix of the stream, a Dask array in square chunks.
        Y: (n,) or (n, c) targets, NumPy or Dask.
        gamma: Ridge, 0 or more.
        initial: Values of the starting function on the stream, if it is not zero.

    Returns:
        A of the shape of Y, computed; the prediction for a query is `K_query @ A`.

    Example:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> offline_coefficients(K, np.array([3.0, 0.0]), gamma=1.0)
        array([ 1.6, -0.4])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = as_tiled_problem(K, Y, initial)
    return problem.give(ridge_solution(problem, gamma))


def ridge_solution(problem: TiledProblem, gamma: float) -> np.ndarray:
    """(gamma I + K)^-1 Y."""
    factor = TiledFactor(problem, gamma)
    follow_columns(problem, factor)
    warn_if_meaningless("gamma I + K", factor.condition, problem.dtype)
    return factor.solve_transposed()
