"""The causal, iterative correction, on a kernel that is bigger than memory."""

from typing import Any

import dask.array as da
import numpy as np
import torch
from dask.delayed import Delayed, delayed

from retarget.distributed.chunk_learner import SettleOptions, Start, settle_chunk
from retarget.distributed.columns import Follower, follow_columns
from retarget.distributed.factor import TiledFactor
from retarget.distributed.learning import TiledLearning
from retarget.distributed.problem import as_tiled_problem
from retarget.learners import SGD
from retarget.theory.iterative import check_correction
from retarget.theory.precision import warn_if_meaningless
from retarget.theory.start import require_lasting_start
from retarget.theory.sweep import FirstBlock, Parts


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

    Example:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> iterative_targets(K, np.array([1.0, 1.0]), SGD(lr=0.5), gamma=1.0, block_size=1)
        array([1.  , 0.95])
    """
    gamma, ridge = check_correction(learner, gamma, block_size, ridge, parts, first_block)
    problem = as_tiled_problem(K, Y, initial, block_size)
    require_lasting_start(initial, learner)
    options = SettleOptions(gamma, block_size, ridge, parts, first_block)
    residual = problem.residual
    factor = None if parts == "online" else TiledFactor(problem, gamma)

    def lesson(j: int, tile: Delayed, start: Start) -> Delayed:
        newest = () if factor is None else factor.newest
        return delayed(settle_chunk)(tile, start, residual[problem.chunks[j]], options, *newest)

    learning = TiledLearning(problem, learner, lesson)
    followers: tuple[Follower, ...] = (learning,) if factor is None else (factor, learning)
    follow_columns(problem, *followers)
    learning.warn_if_diverging()
    _warn_of_lost_digits(learning, factor, problem.dtype)
    targets = learning.targets
    return problem.give(targets if problem.start is None else targets + problem.start)


def _warn_of_lost_digits(
    learning: TiledLearning, factor: TiledFactor | None, dtype: torch.dtype
) -> None:
    warned = warn_if_meaningless("the kernel of a block", learning.condition, dtype)
    if factor is not None and not warned:
        warn_if_meaningless("gamma I + K", factor.condition, dtype)
