"""The offline learner: ridge regression on the whole stream at once (Eq. 2)."""

from typing import Any

import torch

from retarget.arrays import ArrayT, as_non_negative, as_problem
from retarget.theory.cholesky import factorise


@torch.no_grad()
def offline_coefficients(K: ArrayT, Y: Any, gamma: float, *, initial: Any = None) -> ArrayT:
    r"""Dual coefficients of offline ridge regression, $(\gamma I + K) A = Y$ (Eq. 2).

    Args:
        K: (n, n) Gram matrix of the stream.
        Y: (n,) or (n, c) targets.
        gamma: Ridge, 0 or more; without any, K must be positive definite.
        initial: Values of the starting function on the stream, if it is not zero: the ridge then
            pulls towards that function, and it is to be added to the prediction.

    Returns:
        A of the shape of Y; the prediction for a query is `K_query @ A`.

    Example:
        One sample of norm 1 with target 3: the prediction is shrunk to $3 / (1 + \gamma)$.

        >>> import numpy as np
        >>> offline_coefficients(np.array([[1.0]]), np.array([3.0]), gamma=0.5)
        array([2.])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = as_problem(K, Y, initial, factored=True)
    result: ArrayT = problem.give(factorise(problem.K, gamma).solve(problem.residual))
    return result
