"""The shift, on a kernel that is bigger than memory."""

from typing import Any

import dask.array as da
import numpy as np
import torch
from dask.delayed import Delayed, delayed

from retarget.arrays import as_non_negative
from retarget.distributed.columns import Tasks, follow_columns
from retarget.distributed.online import online_pass
from retarget.distributed.problem import TiledProblem, as_tiled_problem
from retarget.distributed.tiles import times, transpose_times
from retarget.learners import SGD
from retarget.theory.start import require_lasting_start


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

    Example:
        >>> K = da.from_array(np.array([[1.0, 0.5], [0.5, 1.0]]), chunks=1)
        >>> effective_targets(K, np.array([1.0, 1.0]), SGD(lr=0.5), gamma=1.0)
        array([1.1875, 1.    ])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = as_tiled_problem(K, Y, initial, learner.batch_size)
    require_lasting_start(initial, learner)
    A = online_pass(problem, learner)
    product = _Product(problem, A)
    follow_columns(problem, product, check=False)
    effective = product.total + gamma * A
    if problem.start is not None:
        effective += problem.start
    return problem.give(effective)


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

    def take(self, j: int, kept: Tasks, wanted: Tasks) -> None:
        for i, part in wanted["below"].items():
            self.total[self._chunks[i]] += part
        for part in wanted["above"].values():
            self.total[self._chunks[j]] += part
