"""The functions of the theory, on a kernel that is bigger than memory."""

from typing import Any

import dask.array as da
import numpy as np
import torch
from dask.delayed import Delayed, delayed

from retarget.arrays import as_non_negative
from retarget.distributed.learning import (
    Start,
    TiledLearning,
    learn_chunk,
    reach_chunk,
    settle_chunk,
)
from retarget.distributed.tiles import (
    Follower,
    Tasks,
    TiledFactor,
    TiledProblem,
    as_tiled_problem,
    follow_columns,
    times,
    transpose_times,
)
from retarget.learners import SGD
from retarget.theory.cholesky import warn_if_meaningless
from retarget.theory.correction import errors_reaching
from retarget.theory.iterative import FirstBlock, Parts, check_correction
from retarget.theory.response import remaining_start, require_lasting_start


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

    Examples:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> offline_coefficients(K, np.array([3.0, 0.0]), gamma=1.0)
        array([ 1.6, -0.4])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = as_tiled_problem(K, Y, initial)
    return problem.give(_ridge_solution(problem, gamma))


@torch.no_grad()
def online_coefficients(K: da.Array, Y: Any, learner: SGD, *, initial: Any = None) -> np.ndarray:
    r"""Dual coefficients of what one online pass learns, as `retarget.online_coefficients`.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order, a Dask array in square chunks.
        Y: (n,) or (n, c) targets, in stream order, NumPy or Dask.
        learner: The online learner.
        initial: Values of the starting function on the stream, if it is not zero.

    Returns:
        A of the shape of Y, computed; the prediction for a query is `K_query @ A`.

    Examples:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> online_coefficients(K, np.array([1.0, 1.0]), SGD(lr=0.5))
        array([0.5  , 0.375])
    """
    problem = as_tiled_problem(K, Y, initial, learner.batch_size)
    return problem.give(_online_pass(problem, learner))


@torch.no_grad()
def effective_targets(
    K: da.Array, Y: Any, learner: SGD, gamma: float, *, initial: Any = None
) -> np.ndarray:
    r"""The targets that the online learner really learned, as `retarget.effective_targets`.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order, a Dask array in square chunks. It is
            computed twice, unless it was persisted.
        Y: (n,) or (n, c) targets, in stream order, NumPy or Dask.
        learner: The online learner.
        gamma: Ridge of the offline learner that it is compared with, 0 or more.
        initial: Values of the starting function on the stream, if it is not zero (without weight
            decay only).

    Returns:
        Effective targets of the shape of Y, computed.

    Examples:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> effective_targets(K, np.array([1.0, 1.0]), SGD(lr=0.5), gamma=1.0)
        array([1.1875, 1.    ])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = as_tiled_problem(K, Y, initial, learner.batch_size)
    require_lasting_start(initial, learner)
    A = _online_pass(problem, learner)
    product = _Product(problem, A)
    follow_columns(problem, product, check=False)
    return problem.give(product.total + gamma * A, from_residual=True)


@torch.no_grad()
def corrected_targets(
    K: da.Array, Y: Any, learner: SGD, gamma: float, *, initial: Any = None
) -> np.ndarray:
    r"""The targets that end online as offline learning does, as `retarget.corrected_targets`.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order, a Dask array in square chunks. It is
            computed twice, unless it was persisted.
        Y: (n,) or (n, c) targets, in stream order, NumPy or Dask.
        learner: The online learner.
        gamma: Ridge of the offline learner, 0 or more.
        initial: Values of the starting function on the stream, if it is not zero (without weight
            decay only).

    Returns:
        Corrected targets of the shape of Y, computed.

    Examples:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> corrected_targets(K, np.array([1.1875, 1.0]), SGD(lr=0.5), gamma=1.0)
        array([1., 1.])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = as_tiled_problem(K, Y, initial, learner.batch_size)
    require_lasting_start(initial, learner)
    learner.rates(len(problem.Y))
    coefficients = torch.from_numpy(_ridge_solution(problem, gamma))
    errors = errors_reaching(coefficients, learner).numpy()

    def lesson(j: int, tile: Delayed, start: Start) -> Delayed:
        return delayed(reach_chunk)(tile, start, errors[problem.chunks[j]])

    learning = TiledLearning(problem, learner, lesson)
    follow_columns(problem, learning, check=False)
    return problem.give(learning.targets, from_residual=True)


@torch.no_grad()
def iterative_targets(
    K: da.Array,
    Y: Any,
    learner: SGD,
    gamma: float,
    block_size: int,
    ridge: float = 0.0,
    parts: Parts = "both",
    first_block: FirstBlock = "corrected",
    *,
    initial: Any = None,
) -> np.ndarray:
    r"""Targets that follow the offline learner block by block, as `retarget.iterative_targets`.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order, a Dask array in square chunks.
        Y: (n,) or (n, c) targets, in stream order, NumPy or Dask.
        learner: The online learner that will be trained on the result.
        gamma: Ridge of the offline learner, 0 or more.
        block_size: Samples whose targets are found together, a multiple of the batch size.
        ridge: $\gamma_o$ of Eq. 15, for blocks whose kernel is nearly singular.
        parts: `"both"`, or one half of Eq. 16 alone: `"online"` or `"offline"`.
        first_block: `"plain"` leaves the first block's targets as they are.
        initial: Values of the starting function on the stream, if it is not zero (without weight
            decay only).

    Returns:
        Corrected targets of the shape of Y, computed.

    Examples:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> iterative_targets(K, np.array([1.0, 1.0]), SGD(lr=0.5), gamma=1.0, block_size=1)
        array([1.  , 0.95])
    """
    gamma, ridge = check_correction(learner, gamma, block_size, ridge, parts, first_block)
    problem = as_tiled_problem(K, Y, initial, block_size)
    require_lasting_start(initial, learner)
    options = (gamma, block_size, ridge, parts, first_block)
    residual = problem.residual
    factor = None if parts == "online" else TiledFactor(problem, gamma)

    def lesson(j: int, tile: Delayed, start: Start) -> Delayed:
        newest = None if factor is None else factor.newest
        return delayed(settle_chunk)(tile, start, residual[problem.chunks[j]], *options, newest)

    learning = TiledLearning(problem, learner, lesson)
    followers: tuple[Follower, ...] = (learning,) if factor is None else (factor, learning)
    follow_columns(problem, *followers)
    learning.warn_if_diverging()
    warned = warn_if_meaningless("the kernel of a block", learning.condition, problem.dtype)
    if factor is not None and not warned:
        warn_if_meaningless("gamma I + K", factor.condition, problem.dtype)
    return problem.give(learning.targets, from_residual=True)


def _ridge_solution(problem: TiledProblem, gamma: float) -> np.ndarray:
    """(gamma I + K)^-1 Y."""
    factor = TiledFactor(problem, gamma)
    follow_columns(problem, factor)
    warn_if_meaningless("gamma I + K", factor.condition, problem.dtype)
    return factor.solve_transposed()


def _online_pass(problem: TiledProblem, learner: SGD) -> np.ndarray:
    """The dual coefficients after the last step."""
    targets = problem.Y
    if problem.start is not None:
        remaining = remaining_start(learner, len(targets))[:-1, None].astype(targets.dtype)
        targets = targets - remaining * problem.start

    def lesson(j: int, tile: Delayed, start: Start) -> Delayed:
        return delayed(learn_chunk)(tile, start, targets[problem.chunks[j]])

    learning = TiledLearning(problem, learner, lesson)
    follow_columns(problem, learning)
    learning.warn_if_diverging()
    coefficients: np.ndarray = learning.shares[0]
    return coefficients


class _Product:
    """K A, each tile below the diagonal standing for the one above it too."""

    def __init__(self, problem: TiledProblem, A: np.ndarray) -> None:
        self.total = np.zeros_like(A)
        self._A, self._chunks = A, problem.chunks

    def tasks(self, j: int, column: dict[int, Delayed]) -> tuple[Tasks, Tasks]:
        A, chunks = self._A, self._chunks
        below = {i: delayed(times)(tile, A[chunks[j]]) for i, tile in column.items()}
        above = {
            i: delayed(transpose_times)(tile, A[chunks[i]]) for i, tile in column.items() if i > j
        }
        return {}, {"below": below, "above": above}

    def collect(self, j: int, kept: Tasks, wanted: Tasks) -> None:
        for i, part in wanted["below"].items():
            self.total[self._chunks[i]] += part
        for part in wanted["above"].values():
            self.total[self._chunks[j]] += part
