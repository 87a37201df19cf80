"""The online learner on a kernel that is bigger than memory."""

from typing import Any

import dask.array as da
import numpy as np
import torch
from dask.delayed import Delayed, delayed

from retarget.distributed.chunk_learner import Start, learn_chunk
from retarget.distributed.columns import follow_columns
from retarget.distributed.learning import TiledLearning
from retarget.distributed.problem import TiledProblem, as_tiled_problem
from retarget.learners import SGD
from retarget.theory.response import remaining_start


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

    Example:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> online_coefficients(K, np.array([1.0, 1.0]), SGD(lr=0.5))
        array([0.5  , 0.375])
    """
    problem = as_tiled_problem(K, Y, initial, learner.batch_size)
    return problem.give(online_pass(problem, learner))


def online_pass(problem: TiledProblem, learner: SGD) -> np.ndarray:
    """The dual coefficients after the last step."""
    learner.rates(len(problem.Y))  # a schedule of the wrong length is an error before any work
    targets = problem.Y
    if problem.start is not None:
        remaining = remaining_start(learner, len(targets))[:-1, None].astype(targets.dtype)
        targets = targets - remaining * problem.start

    def lesson(j: int, tile: Delayed, start: Start) -> Delayed:
        return delayed(learn_chunk)(tile, start, targets[problem.chunks[j]])

    learning = TiledLearning(problem, learner, lesson)
    follow_columns(problem, learning)
    learning.warn_if_diverging()
    return learning.coefficients
