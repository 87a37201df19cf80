r"""A kernel matrix in tiles and its targets, gone through column by column.

The tasks of one column of tiles are done before the next begins. Only tiles on and below the
diagonal are computed, each when its column comes, and they are released as soon as it is over. So
however the scheduler orders the tasks of a column, no more of K than that column is ever alive.

The Cholesky factor in tiles, $L L^\top = \gamma I + K$, has in the column j, after all before it,

    L_jj L_jj^T = gamma I + K_jj - sum_k L_jk L_jk^T
    L_ij = (K_ij - sum_k L_ik L_jk^T) L_jj^-T            i > j

(the left-looking form: a tile is written once). The tiles of L stay with the workers, in memory and
on their disks. What is small, such as L^-1 Y, is kept here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import dask.array as da
import numpy as np
import torch
from dask.base import persist
from dask.delayed import Delayed, delayed
from torch import Tensor

from retarget.arrays import (
    as_stream_targets,
    as_tensor,
    give_back,
    require_finite,
    require_float,
)
from retarget.distributed.cluster import cluster_errors, computed
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.theory.cholesky import (
    not_positive_definite,
    solve_lower,
    solve_lower_right,
    solve_lower_transposed,
)

Tasks = dict[Any, Any]


@dataclass(frozen=True)
class TiledProblem:
    """K as a square of lazy tiles, and what goes with it."""

    K: da.Array  # (n, n) in square tiles
    Y: np.ndarray  # (n, c) targets
    start: np.ndarray | None  # (n, c) the starting function on the stream, or None for zero
    dtype: torch.dtype  # the precision that is computed in
    _given: torch.dtype
    _flat: bool

    @cached_property
    def chunks(self) -> list[slice]:
        """The rows of each row of tiles."""
        ends = np.cumsum(self.K.chunks[0]).tolist()
        return [slice(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]

    @cached_property
    def tiles(self) -> np.ndarray:
        """The tiles of K as they are, to be computed."""
        return self.K.to_delayed()

    def tile(self, i: int, j: int) -> Delayed:
        """A tile of K, to be computed and checked."""
        return delayed(checked_tile)(self.tiles[i, j], self.chunks[i].start, self.dtype)

    @property
    def residual(self) -> np.ndarray:
        """(n, c) a copy of the targets, less the starting function."""
        return self.Y.copy() if self.start is None else self.Y - self.start

    def give(self, result: np.ndarray, from_residual: bool = False) -> np.ndarray:
        """A result (n, c) in the inputs' precision, as `retarget.arrays.Problem.give`."""
        if from_residual and self.start is not None:
            result = result + self.start
        given = give_back(torch.from_numpy(result), None, self._given)
        return given[:, 0] if self._flat else given


def as_tiled_problem(K: Any, Y: Any, initial: Any, multiple: int = 1) -> TiledProblem:
    """Checks the inputs before any tile is computed; makes chunks begin at multiples of rows."""
    _require_square(K)
    sample = as_tensor("K", np.empty(0, dtype=K.dtype))
    require_float("K", sample, "convert it first")
    Y, initial = (computed(v)[0] if isinstance(v, da.Array) else v for v in (Y, initial))
    targets, start, given = as_stream_targets(Y, initial, len(K), sample.dtype)
    wide = torch.promote_types(given, torch.float32)
    return TiledProblem(
        K=_aligned(K, multiple),
        Y=targets.to("cpu", wide).numpy(),
        start=None if start is None else start.to("cpu", wide).numpy(),
        dtype=wide,
        _given=given,
        _flat=np.ndim(Y) == 1,
    )


def _require_square(K: Any) -> None:
    if not isinstance(K, da.Array):
        raise InvalidTypeError(f"K is a {type(K).__name__}; expected a Dask array, as of gram(...)")
    if K.ndim != 2 or not K.shape[0] == K.shape[1]:  # unknown sizes are nan, equal to nothing
        raise InvalidInputError(
            f"K has shape {K.shape}; expected (n, n), the Gram matrix of the stream"
        )
    if K.shape[0] == 0:
        raise InvalidInputError("K is empty; expected at least one sample")
    if K.chunks[0] != K.chunks[1]:
        rows, columns = (
            ", ".join(map(str, sizes[:3])) + ", ..." * (len(sizes) > 3) for sizes in K.chunks
        )
        raise InvalidInputError(
            f"K has rows in chunks of {rows} and columns in chunks of {columns}; expected the same "
            "both ways: use K.rechunk((960, 960)), say"
        )


def _aligned(K: da.Array, multiple: int) -> da.Array:
    """K with every chunk's end moved to the nearest multiple."""
    n = len(K)
    ends = np.cumsum(K.chunks[0])[:-1]
    moved = np.unique(np.rint(ends / multiple).astype(int) * multiple)
    bounds = [0, *moved[(moved > 0) & (moved < n)].tolist(), n]
    sizes = tuple(int(size) for size in np.diff(bounds))
    # "tasks": the other method writes all of K to disk first
    return K if sizes == K.chunks[0] else K.rechunk((sizes, sizes), method="tasks")


class Follower(Protocol):
    """Something that is computed as the columns go by."""

    def tasks(self, j: int, column: dict[int, Delayed]) -> tuple[Tasks, Tasks]:
        """The tasks of a column, given its tiles from the diagonal on, by row.

        First those whose results stay on the workers, then those whose results are wanted.
        """

    def collect(self, j: int, kept: Tasks, wanted: Tasks) -> None:
        """Receives what came of the tasks."""


def follow_columns(problem: TiledProblem, *followers: Follower, check: bool = True) -> None:
    """Leads the followers over all columns; `check` where K is seen for the first time."""
    count = len(problem.chunks)
    for j in range(count):
        column = {i: problem.tile(i, j) for i in range(j, count)}
        tasks = [follower.tasks(j, column) for follower in followers]
        checks = _checks(problem, j) if check else []
        with cluster_errors():
            tasks, checks = persist(tasks, checks)
        results = computed([wanted for _, wanted in tasks], checks)[0]
        for follower, (kept, _), wanted in zip(followers, tasks, results, strict=True):
            follower.collect(j, kept, wanted)


def _checks(problem: TiledProblem, j: int) -> list[Delayed]:
    """Compares tiles with those across the diagonal: the one on it, and another of the column."""
    rows, K, places = problem.chunks, problem.tiles, [j]
    below = len(rows) - j - 1
    if below:
        places.append(j + 1 + 7919 * j % below)  # here and there
    return [
        delayed(require_mirrored)(K[i, j], K[j, i], K[j, j], rows[i].start, rows[j].start)
        for i in places
    ]


# What is done to single tiles, on the workers: NumPy arrays come in and go out. Those that come in
# belong to Dask, which may need them again: they are never written to.


def on_tensors(function: Callable[..., Tensor], *arrays: Any) -> Delayed:
    """The task that applies a function of tensors to arrays, or to the results of other tasks."""
    return delayed(_applied)(function, *arrays)


def _applied(function: Callable[..., Tensor], *arrays: np.ndarray) -> np.ndarray:
    result = function(*(as_tensor("K", array) for array in arrays))
    return result.contiguous().numpy()  # it may be sent to other workers, and to disk


def transpose_times(tile: Tensor, values: Tensor) -> Tensor:
    """The tile's transpose times (m, c) values."""
    return tile.mT @ values


def checked_tile(tile: np.ndarray, first_row: int, dtype: torch.dtype) -> np.ndarray:
    """A tile of K in the precision that is computed in, if it is finite."""
    tensor = as_tensor("K", tile)
    require_finite("K", tensor, first_row)
    return tensor.to(dtype).numpy()


def require_mirrored(
    tile: np.ndarray, mirrored: np.ndarray, diagonal: np.ndarray, first_row: int, first_column: int
) -> None:
    """Refuses a tile unlike its mirror image; the diagonal tile tells how large K is."""
    tolerance = 1e3 * np.finfo(tile.dtype).eps * np.abs(np.diagonal(diagonal)).max()
    gap = np.abs(tile - mirrored.T)
    if gap.max() > tolerance:
        row, column = np.unravel_index(int(gap.argmax()), gap.shape)
        i, j = first_row + int(row), first_column + int(column)
        raise InvalidInputError(
            f"K is not symmetric: entries ({i}, {j}) and ({j}, {i}) differ by {gap.max():.3g}; "
            "expected a Gram matrix, or pass (K + K.T) / 2 if the difference is noise"
        )


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


# Pairs of tiles multiplied in one task: more of them are fewer tasks, but all in memory at once.
PAIRS = 4


class TiledFactor:
    """The factor of gamma I + K, a follower of K's columns.

    Attributes:
        beta: (n, c) $L^{-1} Y$ in the rows of the columns done, what is left of Y in the others.
        newest: L_jj and its rows of beta, to be computed, of the present column.
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
        beta = on_tensors(solve_lower, triangle, self.beta[rows])
        self.newest = triangle, beta
        kept: Tasks = {j: triangle}
        wanted: Tasks = {"beta": beta, "pivots": delayed(np.diagonal)(triangle)}
        wanted["trace"] = delayed(np.trace)(column[j])
        for i, tile in column.items():
            wanted["norm", i] = delayed(np.vdot)(tile, tile)
            if i > j:
                rest = self._less_products(tile, i, j, done=j)
                kept[i] = on_tensors(solve_lower_right, triangle, rest)
                wanted["spent", i] = on_tensors(torch.matmul, kept[i], beta)
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
        trace, size = float(wanted["trace"]), len(wanted["pivots"])
        self._trace += trace + size * self.gamma
        self._least_pivot = min(self._least_pivot, float(wanted["pivots"].min()))
        self._squared_norm += self.gamma * (2 * trace + size * self.gamma)
        for i, tile in kept.items():
            self._tiles[i, j] = tile
            self._squared_norm += (1 if i == j else 2) * float(wanted["norm", i])
            if i > j:
                self.beta[chunks[i]] -= wanted["spent", i]

    def solve_transposed(self) -> np.ndarray:
        r"""$L^{-\top} \beta$, that is $(\gamma I + K)^{-1} Y$, when all columns are done."""
        x, chunks = self.beta.copy(), self._problem.chunks
        for i in reversed(range(len(chunks))):
            newest = on_tensors(solve_lower_transposed, self._tiles[i, i], x[chunks[i]])
            spent = [on_tensors(transpose_times, self._tiles[i, j], newest) for j in range(i)]
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
