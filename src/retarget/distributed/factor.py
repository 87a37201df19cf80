r"""The Cholesky factor in tiles, $L L^\top = \gamma I + K$, one column of tiles at a time.

For the column j, with every column k < j done,

    L_jj L_jj^T = gamma I + K_jj - sum_k L_jk L_jk^T
    L_ij = (K_ij - sum_k L_ik L_jk^T) L_jj^-T            i > j

(the left-looking form: a tile is written once, and the tiles of K that are alive are those of one
column). The tiles of L stay with the workers, in memory and on their disks. What is small, L^-1 Y
for one, is kept here.
"""

import math

import numpy as np
import torch
from dask.delayed import Delayed, delayed

from retarget.arrays import as_tensor
from retarget.distributed.cluster import computed
from retarget.distributed.problem import Tasks, TiledProblem, times, transpose_times
from retarget.theory.cholesky import (
    not_positive_definite,
    solve_lower,
    solve_lower_right,
    solve_lower_transposed,
)

# Pairs of tiles multiplied in one task: more of them are fewer tasks, but all in memory at once.
PAIRS = 4


class TiledFactor:
    """The factor of gamma I + K, a follower of K's columns.

    Args:
        problem: K and the targets.
        gamma: What is added to the diagonal of K.

    Attributes:
        beta: (n, c) $L^{-1} Y$ in the rows of the columns done, what is left of Y in the others.
        newest: L_jj and its rows of beta, to be computed, of the column at hand.
    """

    newest: tuple[Delayed, Delayed]

    def __init__(self, problem: TiledProblem, gamma: float) -> None:
        self.gamma = gamma
        self.beta = problem.residual
        self._problem = problem
        self._tiles: dict[tuple[int, int], Delayed] = {}
        self._schur: Delayed | None = None  # of the next diagonal tile, begun a column ahead
        # For the condition number: trace and squared norm of gamma I + K, and the least pivot.
        self._trace, self._squared_norm, self._least_pivot = 0.0, 0.0, math.inf

    def tasks(self, j: int, column: dict[int, Delayed]) -> tuple[Tasks, Tasks]:
        """The column's tiles of L, and what they say of the right hand side."""
        rows = self._problem.chunks[j]
        schur = column[j] if self._schur is None else self._schur
        triangle = delayed(factor_diagonal)(schur, self.gamma, rows.start)
        beta = delayed(forward)(triangle, self.beta[rows])
        self.newest = triangle, beta
        kept: Tasks = {j: triangle}
        wanted: Tasks = {"beta": beta, "extent": delayed(diagonal_extent)(column[j], triangle)}
        for i in column:
            wanted["norm", i] = delayed(squared_norm)(column[i])
            if i > j:
                rest = self._less_products(column[i], i, j, done=j)
                kept[i] = delayed(factor_below)(rest, triangle)
                wanted["spent", i] = delayed(times)(kept[i], beta)
        if j + 1 in kept:
            # The next diagonal tile waits for no other row: the next column can begin at once.
            diagonal = self._problem.tile(j + 1, j + 1)
            rest = self._less_products(diagonal, j + 1, j + 1, done=j)
            kept["schur"] = delayed(less_products)(rest, [kept[j + 1]], [kept[j + 1]])
        return kept, wanted

    def collect(self, j: int, kept: Tasks, wanted: Tasks) -> None:
        """Keeps the column."""
        chunks = self._problem.chunks
        self._schur = kept.pop("schur", None)
        self.beta[chunks[j]] = wanted["beta"]
        trace, pivot = wanted["extent"]
        size = chunks[j].stop - chunks[j].start
        self._trace += trace + size * self.gamma
        self._least_pivot = min(self._least_pivot, pivot)
        self._squared_norm += self.gamma * (2 * trace + size * self.gamma)
        for i, tile in kept.items():
            self._tiles[i, j] = tile
            self._squared_norm += (1 if i == j else 2) * wanted["norm", i]
            if i > j:
                self.beta[chunks[i]] -= wanted["spent", i]

    def solve_transposed(self) -> np.ndarray:
        r"""$L^{-\top} \beta$, that is $(\gamma I + K)^{-1} Y$, when all columns are done."""
        x, chunks = self.beta.copy(), self._problem.chunks
        for i in reversed(range(len(chunks))):
            newest = delayed(backward)(self._tiles[i, i], x[chunks[i]])
            spent = [delayed(transpose_times)(self._tiles[i, j], newest) for j in range(i)]
            x[chunks[i]], products = computed(newest, spent)
            for j, product in enumerate(products):
                x[chunks[j]] -= product
        return x

    @property
    def condition(self) -> float:
        r"""A lower bound on the condition number, from what the factorisation saw anyway.

        The largest eigenvalue is at least $\|M\|_F^2 / \operatorname{tr} M$, the smallest at most
        the least squared pivot. (The estimate of `GrowingCholesky` is closer, but takes several
        solves, each a round trip through all tiles.)
        """
        return self._squared_norm / self._trace / self._least_pivot**2

    def _less_products(self, tile: Delayed, i: int, j: int, done: int) -> Delayed:
        """K_ij less the products of the tiles of L in the columns that are done."""
        for first in range(0, done, PAIRS):
            columns = range(first, min(first + PAIRS, done))
            left, right = ([self._tiles[row, k] for k in columns] for row in (i, j))
            tile = delayed(less_products)(tile, left, right)
        return tile


# What is done to single tiles, on the workers: NumPy arrays come in and go out. Those that come in
# belong to Dask, which may need them again: they are never written to. See `problem`.


def squared_norm(tile: np.ndarray) -> float:
    """The sum of the squares of a tile."""
    return float(torch.linalg.vector_norm(as_tensor("K", tile)) ** 2)


def less_products(tile: np.ndarray, left: list[np.ndarray], right: list[np.ndarray]) -> np.ndarray:
    """The tile less the sum of left_k right_k^T."""
    rest = as_tensor("K", tile).clone()
    for a, b in zip(left, right, strict=True):
        rest.addmm_(as_tensor("L", a), as_tensor("L", b).mT, alpha=-1)
    return rest.numpy()


def factor_diagonal(schur: np.ndarray, gamma: float, first_row: int) -> np.ndarray:
    """L_jj, from what the columns before it leave of a diagonal tile of K."""
    rest = as_tensor("K", schur).clone()
    rest.diagonal().add_(gamma)
    triangle, info = torch.linalg.cholesky_ex(rest)
    if info.item():
        raise not_positive_definite(rest, gamma, first_row + int(info) - 1)
    return triangle.numpy()


def factor_below(rest: np.ndarray, triangle: np.ndarray) -> np.ndarray:
    """L_ij, from what the columns before it leave of a tile of K below the diagonal."""
    below = solve_lower_right(as_tensor("L", triangle), as_tensor("K", rest))
    return below.contiguous().numpy()  # it is sent to other workers and to disk


def forward(triangle: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """L_jj^-1 B."""
    return solve_lower(as_tensor("L", triangle), as_tensor("B", rhs)).numpy()


def backward(triangle: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """L_jj^-T B."""
    return solve_lower_transposed(as_tensor("L", triangle), as_tensor("B", rhs)).numpy()


def diagonal_extent(tile: np.ndarray, triangle: np.ndarray) -> tuple[float, float]:
    """The trace of a diagonal tile of K, and the least entry on the diagonal of its L_jj."""
    return float(np.trace(tile)), float(np.diagonal(triangle).min())
