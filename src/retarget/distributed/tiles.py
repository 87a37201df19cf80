r"""Goes through a kernel matrix in tiles, column by column.

The tasks of one column of tiles finish before the next column begins. Only tiles on and below the
diagonal are computed, and they are released as soon as their column is done. So however the
scheduler orders the tasks of a column, no more of K than that column is in memory.

Column j of the Cholesky factor in tiles, $L L^\top = \gamma I + K$, follows from those before it:

    L_jj L_jj^T = gamma I + K_jj - sum_k L_jk L_jk^T
    L_ij = (K_ij - sum_k L_ik L_jk^T) L_jj^-T            i > j

(the left-looking form: a tile is written once). The tiles of L stay on the workers, in memory and
on disk. Small results, such as L^-1 Y, are kept here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import dask.array as da
import numpy as np
import torch
from dask.base import persist
from dask.delayed import Delayed, delayed
from torch import Tensor

from retarget.arrays import as_tensor, require_finite, require_float
from retarget.distributed.cluster import cluster_errors, computed
from retarget.engine.definite import not_positive_definite
from retarget.engine.triangular import solve_lower, solve_lower_right, solve_lower_transposed
from retarget.errors import InvalidInputError, InvalidTypeError, a_type
from retarget.form import Form
from retarget.locks import cached_property
from retarget.theory.problem import as_stream_targets

Tasks = dict[Any, Any]


@dataclass(frozen=True)
class TiledProblem:
    """K as a square of lazy tiles, with its targets and starting values."""

    K: da.Array  # (n, n) in square tiles
    Y: np.ndarray  # (n, c) targets
    start: np.ndarray | None  # (n, c) the starting function on the stream, or None for zero
    dtype: torch.dtype  # the dtype to compute in
    form: Form

    @cached_property
    def chunks(self) -> list[slice]:
        """The range of samples in each row of tiles."""
        ends = np.cumsum(self.K.chunks[0]).tolist()
        return [slice(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]

    @cached_property
    def tiles(self) -> np.ndarray:
        """The unchecked tiles of K, not computed yet."""
        return self.K.to_delayed()

    def tile(self, i: int, j: int) -> Delayed:
        """Returns the task that computes and checks a tile of K."""
        return delayed(checked_tile)(self.tiles[i, j], self.chunks[i].start, self.dtype)

    @property
    def residual(self) -> np.ndarray:
        """Returns a copy of the targets (n, c) minus the starting function."""
        return self.Y.copy() if self.start is None else self.Y - self.start

    def give(self, result: np.ndarray, from_residual: bool = False) -> np.ndarray:
        """Converts a result (n, c) to the inputs' precision, as `Problem.give`."""
        if from_residual and self.start is not None:
            result = result + self.start
        given: np.ndarray = self.form.give(torch.from_numpy(result))
        return given


def as_tiled_problem(K: Any, Y: Any, initial: Any, multiple: int = 1) -> TiledProblem:
    """Checks the inputs before any tile is computed; aligns chunks to multiples of rows."""
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
        form=Form(numpy=True, flat=np.ndim(Y) == 1, dtype=given),
    )


def _require_square(K: Any) -> None:
    if not isinstance(K, da.Array):
        raise InvalidTypeError(
            f"K is {a_type(K)}; expected a Dask array, such as the result of gram(...) "
            "(retarget's own functions take NumPy arrays and torch tensors)"
        )
    if K.ndim != 2 or not K.shape[0] == K.shape[1]:  # unknown sizes are nan, which equals nothing
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
            "chunks: use, for example, K.rechunk((960, 960))"
        )


def _aligned(K: da.Array, multiple: int) -> da.Array:
    """Moves the end of every chunk of K to the nearest multiple."""
    n = len(K)
    ends = np.cumsum(K.chunks[0])[:-1]
    moved = np.unique(np.rint(ends / multiple).astype(int) * multiple)
    bounds = [0, *moved[(moved > 0) & (moved < n)].tolist(), n]
    sizes = tuple(int(size) for size in np.diff(bounds))
    # method "tasks", because the other method writes all of K to disk first
    return K if sizes == K.chunks[0] else K.rechunk((sizes, sizes), method="tasks")


class ColumnWork(Protocol):
    """A computation that processes K column by column."""

    def tasks(self, j: int, column: dict[int, Delayed]) -> tuple[Tasks, Tasks]:
        """Returns the tasks of a column, given its tiles from the diagonal down, by row.

        First those whose results stay on the workers, then those whose results are needed here.
        """

    def collect(self, j: int, kept: Tasks, wanted: Tasks) -> None:
        """Receives the results of the tasks."""


def go_through_columns(problem: TiledProblem, *works: ColumnWork, check: bool = True) -> None:
    """Runs the works over all columns; set `check` when K is read for the first time."""
    count = len(problem.chunks)
    for j in range(count):
        column = {i: problem.tile(i, j) for i in range(j, count)}
        tasks = [work.tasks(j, column) for work in works]
        checks = _checks(problem, j) if check else []
        with cluster_errors():
            tasks, checks = persist(tasks, checks)
        results = computed([wanted for _, wanted in tasks], checks)[0]
        for work, (kept, _), wanted in zip(works, tasks, results, strict=True):
            work.collect(j, kept, wanted)


def _checks(problem: TiledProblem, j: int) -> list[Delayed]:
    """Checks that K is symmetric at the diagonal tile and at one other tile of the column."""
    rows = problem.chunks
    K = problem.tiles
    places = [j]
    below = len(rows) - j - 1
    if below:
        places.append(j + 1 + 7919 * j % below)  # scattered over K
    return [
        delayed(require_mirrored)(K[i, j], K[j, i], K[j, j], rows[i].start, rows[j].start)
        for i in places
    ]


# Operations on single tiles, run on the workers: they take and return NumPy arrays. Their arguments
# belong to Dask, which may need them again, so they are never written to.


def on_tensors(function: Callable[..., Tensor], *arrays: Any) -> Delayed:
    """Returns the task that applies a function of tensors to arrays, or to results of tasks."""
    return delayed(_applied)(function, *arrays)


def _applied(function: Callable[..., Tensor], *arrays: np.ndarray) -> np.ndarray:
    result = function(*(as_tensor("K", array) for array in arrays))
    return result.contiguous().numpy()  # it may be sent to other workers, and to disk


def transpose_times(tile: Tensor, values: Tensor) -> Tensor:
    """Returns the tile's transpose times values (m, c)."""
    return tile.mT @ values


def checked_tile(tile: np.ndarray, first_row: int, dtype: torch.dtype) -> np.ndarray:
    """Converts a tile of K to the dtype to compute in; raises if it is not finite."""
    tensor = as_tensor("K", tile)
    require_finite("K", tensor, first_row)
    return tensor.to(dtype).numpy()


def require_mirrored(
    tile: np.ndarray, mirrored: np.ndarray, diagonal: np.ndarray, first_row: int, first_column: int
) -> None:
    """Raises if a tile differs from its mirror image, relative to the size of the diagonal tile."""
    tolerance = 1e3 * np.finfo(tile.dtype).eps * np.abs(np.diagonal(diagonal)).max()
    gap = np.abs(tile - mirrored.T)
    if gap.max() > tolerance:
        row, column = np.unravel_index(int(gap.argmax()), gap.shape)
        i = first_row + int(row)
        j = first_column + int(column)
        raise InvalidInputError(
            f"K is not symmetric: entries ({i}, {j}) and ({j}, {i}) differ by {gap.max():.3g}; "
            "expected a Gram matrix, or pass (K + K.T) / 2 if the difference is noise"
        )


def less_products(tile: np.ndarray, left: list[np.ndarray], right: list[np.ndarray]) -> np.ndarray:
    """Returns the tile minus the sum of left_k right_k^T."""
    rest = as_tensor("K", tile).clone()
    for a, b in zip(left, right, strict=True):
        rest.addmm_(as_tensor("L", a), as_tensor("L", b).mT, alpha=-1)
    return rest.numpy()


def factor_diagonal(schur: np.ndarray, gamma: float, first_row: int) -> np.ndarray:
    """Returns L_jj, from a diagonal tile of K minus the products of earlier columns."""
    rest = as_tensor("K", schur).clone()
    rest.diagonal().add_(gamma)
    triangle, info = torch.linalg.cholesky_ex(rest)
    if info.item():
        raise not_positive_definite(rest, gamma, first_row + int(info) - 1)
    return triangle.numpy()


# Pairs of tiles multiplied in one task: more pairs mean fewer tasks, but need more memory at once.
PAIRS = 4


class TiledFactor:
    """Computes the Cholesky factor of gamma I + K while following the columns of K.

    Attributes:
        beta: (n, c) $L^{-1} Y$ in the rows of finished columns, the remainder of Y in the others.
        newest: The tasks for L_jj and its rows of beta in the present column.
    """

    newest: tuple[Delayed, Delayed]

    def __init__(self, problem: TiledProblem, gamma: float) -> None:
        self.gamma = gamma
        self.beta = problem.residual
        self._problem = problem
        self._tiles: dict[tuple[int, int], Delayed] = {}
        self._schur: Delayed | None = None  # for the next diagonal tile, started a column ahead
        # For the condition number: trace and squared norm of gamma I + K, and the smallest pivot.
        self._trace = 0.0
        self._squared_norm = 0.0
        self._least_pivot = math.inf

    def tasks(self, j: int, column: dict[int, Delayed]) -> tuple[Tasks, Tasks]:
        """Returns the column's tiles of L, and their products with the right-hand side."""
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
            # The next diagonal tile needs no other row, so the next column can start at once.
            diagonal = self._problem.tile(j + 1, j + 1)
            rest = self._less_products(diagonal, j + 1, j + 1, done=j)
            kept["schur"] = delayed(less_products)(rest, [kept[j + 1]], [kept[j + 1]])
        return kept, wanted

    def collect(self, j: int, kept: Tasks, wanted: Tasks) -> None:
        """Keeps the column."""
        chunks = self._problem.chunks
        self._schur = kept.pop("schur", None)
        self.beta[chunks[j]] = wanted["beta"]
        trace = float(wanted["trace"])
        size = len(wanted["pivots"])
        self._trace += trace + size * self.gamma
        self._least_pivot = min(self._least_pivot, float(wanted["pivots"].min()))
        self._squared_norm += self.gamma * (2 * trace + size * self.gamma)
        for i, tile in kept.items():
            self._tiles[i, j] = tile
            self._squared_norm += (1 if i == j else 2) * float(wanted["norm", i])
            if i > j:
                self.beta[chunks[i]] -= wanted["spent", i]

    def solve_transposed(self) -> np.ndarray:
        r"""Returns $L^{-\top} \beta = (\gamma I + K)^{-1} Y$, when all columns are done."""
        x = self.beta.copy()
        chunks = self._problem.chunks
        for i in reversed(range(len(chunks))):
            newest = on_tensors(solve_lower_transposed, self._tiles[i, i], x[chunks[i]])
            spent = [on_tensors(transpose_times, self._tiles[i, j], newest) for j in range(i)]
            x[chunks[i]], products = computed(newest, spent)
            for j, product in enumerate(products):
                x[chunks[j]] -= product
        return x

    @property
    def condition(self) -> float:
        r"""A lower bound on the condition number, from numbers that the factorization has anyway.

        The largest eigenvalue is at least $\|M\|_F^2 / \operatorname{tr} M$, and the smallest is at
        most the smallest squared pivot. (`GrowingCholesky` has a closer estimate, but it needs
        several solves, each a round trip through all tiles.)
        """
        return self._squared_norm / self._trace / self._least_pivot**2

    def _less_products(self, tile: Delayed, i: int, j: int, done: int) -> Delayed:
        """Returns K_ij minus the products of the tiles of L in finished columns."""
        for first in range(0, done, PAIRS):
            columns = range(first, min(first + PAIRS, done))
            left, right = ([self._tiles[row, k] for k in columns] for row in (i, j))
            tile = delayed(less_products)(tile, left, right)
        return tile
