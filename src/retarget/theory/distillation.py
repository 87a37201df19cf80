"""The offline learner's own predictions as targets: what the iterative correction steers to."""

from typing import Any

import torch

from retarget.arrays import ArrayT, as_non_negative, as_problem, panels
from retarget.errors import InvalidInputError
from retarget.theory.cholesky import GrowingCholesky
from retarget.theory.sweep import newest_coefficients


@torch.no_grad()
def distilled_targets(K: ArrayT, Y: Any, gamma: float, block_size: int) -> ArrayT:
    r"""What the offline learner predicts for each block, once it has seen the stream up to there.

    $F_n = f_{off}(X_n; X_{p+n}, Y_{p+n})$, the aim of `iterative_targets`, without the correction
    that would make an online learner reach it: training on it is distillation. Causal.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        gamma: Ridge of the offline learner, 0 or more.
        block_size: Samples whose predictions are made together.

    Returns:
        Predictions of the shape of Y.

    Example:
        With $\gamma = 1$ and $k(x, x) = 1$, a first sample is met halfway.

        >>> import numpy as np
        >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
        >>> distilled_targets(K, np.array([1.0, 1.0]), gamma=1.0, block_size=1)
        array([0.5, 0.6])
    """
    gamma = as_non_negative("gamma", gamma)
    if block_size < 1:
        raise InvalidInputError(f"block_size is {block_size}; expected 1 or more samples")
    problem = as_problem(K, Y, factored=True)
    gram, n = problem.K, len(problem.K)
    factor = GrowingCholesky(gamma, lambda rows: gram[rows, rows])
    beta, targets = torch.empty_like(problem.Y), torch.empty_like(problem.Y)
    whole = n - n % block_size
    ranges = [(rows, block_size) for rows in panels(whole, block_size, gram.device)]
    if whole < n:
        ranges.append((slice(whole, n), n - whole))
    for rows, size in ranges:
        new = factor.extend(gram[rows, : rows.stop])
        beta[rows] = new.solve(problem.Y[rows], beta[: rows.start])
        # F_n = Y_n - gamma L_nn^-T beta_n
        targets[rows] = problem.Y[rows] - gamma * newest_coefficients(new.corner, beta[rows], size)
        factor.commit(new)
    factor.warn_once()
    result: ArrayT = problem.give(targets)
    return result
