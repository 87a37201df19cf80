"""The correction, on a kernel that is bigger than memory."""

from typing import Any

import dask.array as da
import numpy as np
import torch
from dask.delayed import Delayed, delayed

from retarget.arrays import as_non_negative
from retarget.distributed.chunk_learner import Start, reach_chunk
from retarget.distributed.columns import follow_columns
from retarget.distributed.learning import TiledLearning
from retarget.distributed.offline import ridge_solution
from retarget.distributed.problem import as_tiled_problem
from retarget.learners import SGD
from retarget.theory.correction import errors_reaching
from retarget.theory.start import require_lasting_start


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

    Example:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> corrected_targets(K, np.array([1.1875, 1.0]), SGD(lr=0.5), gamma=1.0)
        array([1., 1.])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = as_tiled_problem(K, Y, initial, learner.batch_size)
    require_lasting_start(initial, learner)
    learner.rates(len(problem.Y))
    coefficients = torch.from_numpy(ridge_solution(problem, gamma))
    errors = errors_reaching(coefficients, learner).numpy()

    def lesson(j: int, tile: Delayed, start: Start) -> Delayed:
        return delayed(reach_chunk)(tile, start, errors[problem.chunks[j]])

    learning = TiledLearning(problem, learner, lesson)
    follow_columns(problem, learning, check=False)
    targets = learning.targets
    return problem.give(targets if problem.start is None else targets + problem.start)
