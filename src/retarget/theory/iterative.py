"""The causal, iterative correction (Proposition 4.2, Eq. 16-17), and what it steers to."""

from typing import Any, get_args

import numpy as np
import torch

from retarget.arrays import ArrayT, as_non_negative, as_problem
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.learners import SGD
from retarget.theory.cholesky import GrowingCholesky
from retarget.theory.response import require_lasting_start
from retarget.theory.sweep import FirstBlock, Parts, Sweep, equal_blocks, newest_coefficients


@torch.no_grad()
def iterative_targets(
    K: ArrayT,
    Y: Any,
    learner: SGD,
    gamma: float,
    block_size: int,
    ridge: float = 0.0,
    parts: Parts = "both",
    first_block: FirstBlock = "corrected",
    *,
    initial: Any = None,
) -> ArrayT:
    r"""Targets that lead the online learner, block by block, to the offline learner's predictions.

    Causal: the targets of a block depend on this block and the past alone. With `ridge=0` and
    `parts="both"`, the online learner's function agrees after each corrected block, on that block,
    with the offline learner that has seen the stream so far; a ridge makes this approximate, and
    neither part alone does it. With momentum, what agrees is the function that the learner would
    coast to if it made no more errors, not its function at that moment.

    For plain SGD whose first block is corrected too, the learning rate decides which targets are
    needed, and has no influence on the function learned. (With weight decay it has.)

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        learner: The online learner that will be trained on the result.
        gamma: Ridge of the offline learner, 0 or more; without any, K must be positive definite.
        block_size: Samples whose targets are found together, a multiple of the batch size. A last
            block that is not full is a block of its own.
        ridge: $\gamma_o$ of Eq. 15, for blocks whose kernel is nearly singular: it keeps the
            targets small. A block whose kernel is singular needs none.
        parts: `"both"`, or one half of Eq. 16 alone: `"online"` ($C_{on}$) or `"offline"`
            ($C_{off}$).
        first_block: `"plain"` leaves the first block's targets as they are.
        initial: Values of the starting function on the stream, if it is not zero (without weight
            decay only).

    Returns:
        Corrected targets of the shape of Y.

    Example:
        The first of two single-sample blocks aims at its own offline prediction, 1/2 with
        $\gamma = 1$; a step at the rate 1/2 reaches that from the target 1.

        >>> import numpy as np
        >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
        >>> iterative_targets(K, np.array([1.0, 1.0]), SGD(lr=0.5), gamma=1.0, block_size=1)
        array([1.  , 0.95])
    """
    gamma, ridge = check_correction(learner, gamma, block_size, ridge, parts, first_block)
    problem = as_problem(K, Y, initial, factored=parts != "online")
    require_lasting_start(initial, learner)
    gram, n = problem.K, len(problem.K)
    learner.rates(n)
    residual = problem.residual
    targets = torch.empty_like(residual)
    sweep = Sweep(
        learner, gamma, ridge, parts, first_block, lambda rows: gram[rows, rows], capacity=n
    )
    for rows, size in sweep.portions(n, block_size, gram.device):
        targets[rows] = sweep.correct(gram[rows, : rows.stop], residual[rows], size)
    sweep.warn_once()
    result: ArrayT = problem.give(targets, from_residual=True)
    return result


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
    for rows, size in equal_blocks(0, n, block_size, "corrected", gram.device):
        new = factor.extend(gram[rows, : rows.stop])
        beta[rows] = new.solve(problem.Y[rows], beta[: rows.start])
        # F_n = Y_n - gamma L_nn^-T beta_n
        targets[rows] = problem.Y[rows] - gamma * newest_coefficients(new.corner, beta[rows], size)
        factor.commit(new)
    factor.warn_once()
    result: ArrayT = problem.give(targets)
    return result


def check_correction(
    learner: SGD, gamma: float, block_size: int, ridge: float, parts: str, first_block: str
) -> tuple[float, float]:
    """Refuses options of the iterative correction that have no meaning; returns gamma and ridge."""
    if isinstance(block_size, bool) or not isinstance(block_size, int | np.integer):
        raise InvalidTypeError(f"block_size is {block_size!r}; expected a whole number of samples")
    if block_size < 1 or block_size % learner.batch_size:
        raise InvalidInputError(
            f"block_size is {block_size}; expected a positive multiple of the learner's "
            f"batch_size, {learner.batch_size}"
        )
    if parts not in get_args(Parts):
        raise InvalidInputError(f"parts is {parts!r}; expected one of {get_args(Parts)}")
    if first_block not in get_args(FirstBlock):
        raise InvalidInputError(
            f"first_block is {first_block!r}; expected one of {get_args(FirstBlock)}"
        )
    return as_non_negative("gamma", gamma), as_non_negative("ridge", ridge)
