"""A kernel matrix in tiles and its targets, and how it is gone through, column by column.

The tasks of one column of tiles are done before the next begins. Only tiles on and below the
diagonal are computed, each when its column comes, and they are let go as soon as it is over. So
however the scheduler orders the tasks of a column, no more of K than that column is ever alive.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import dask.array as da
import numpy as np
import torch
from dask.base import persist
from dask.delayed import Delayed, delayed

from retarget.arrays import (
    as_stream_targets,
    as_tensor,
    give_back,
    require_finite,
    require_float,
)
from retarget.distributed.cluster import cluster_errors, computed
from retarget.errors import InvalidInputError, InvalidTypeError

Tasks = dict[Any, Any]


@dataclass(frozen=True)
class TiledProblem:
    """K as a square of lazy tiles, and what goes with it.

    Attributes:
        K: (n, n) Dask array in square tiles.
        Y: (n, c) targets.
        start: (n, c) values of the starting function on the stream, or None for zero.
        dtype: The precision that is computed in.
    """

    K: da.Array
    Y: np.ndarray
    start: np.ndarray | None
    dtype: torch.dtype
    _given: torch.dtype
    _flat: bool

    @cached_property
    def chunks(self) -> list[slice]:
        """The rows of each row of tiles."""
        ends = np.cumsum(self.K.chunks[0]).tolist()
        return [slice(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]

    @cached_property
    def _tiles(self) -> np.ndarray:
        tiles: np.ndarray = self.K.to_delayed()
        return tiles

    def raw_tile(self, i: int, j: int) -> Delayed:
        """A tile of K as it is, to be computed."""
        return self._tiles[i, j]

    def tile(self, i: int, j: int) -> Delayed:
        """A tile of K, to be computed and checked."""
        return delayed(checked_tile)(self._tiles[i, j], self.chunks[i].start, self.dtype)

    @property
    def residual(self) -> np.ndarray:
        """(n, c) a copy of the targets, less the starting function."""
        return self.Y.copy() if self.start is None else self.Y - self.start

    def give(self, result: np.ndarray, from_residual: bool = False) -> np.ndarray:
        """A result (n, c) in the inputs' precision, as `retarget.arrays.Problem.give`."""
        if from_residual and self.start is not None:
            result = result + self.start
        given: np.ndarray = give_back(torch.from_numpy(result), None, self._given)
        return given[:, 0] if self._flat else given


def as_tiled_problem(K: Any, Y: Any, initial: Any, multiple: int = 1) -> TiledProblem:
    """Checks the inputs, as far as that can be done before any tile is computed.

    Args:
        K: (n, n) Dask array, in the same chunks both ways.
        Y: (n,) or (n, c) targets, NumPy or Dask.
        initial: Values of the starting function like Y, or None.
        multiple: Chunks must begin at multiples of so many rows; those that do not are shifted.
    """
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
        raise InvalidTypeError(
            f"K is a {type(K).__name__}; expected a Dask array, as retarget.distributed.gram gives "
            "it (the functions of retarget itself take NumPy and torch)"
        )
    if K.ndim != 2 or not K.shape[0] == K.shape[1]:  # unknown sizes are nan, equal to nothing
        raise InvalidInputError(
            f"K has shape {K.shape}; expected (n, n), the Gram matrix of the stream"
        )
    if K.shape[0] == 0:
        raise InvalidInputError("K is empty; expected at least one sample")
    if K.chunks[0] != K.chunks[1]:
        raise InvalidInputError(
            f"K has rows in chunks of {_few(K.chunks[0])} and columns in chunks of "
            f"{_few(K.chunks[1])}; expected the same both ways: use K.rechunk((960, 960)), say"
        )


def _few(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes[:3])) + (", ..." if len(sizes) > 3 else "")


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

        Returns:
            Those whose results stay on the workers, and those whose (small) results are wanted.
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
    rows, places = problem.chunks, [j]
    below = len(rows) - j - 1
    if below:
        places.append(j + 1 + 7919 * j % below)  # here and there
    tile = problem.raw_tile
    return [
        delayed(require_mirrored)(tile(i, j), tile(j, i), tile(j, j), rows[i].start, rows[j].start)
        for i in places
    ]


# What is done to single tiles, on the workers: NumPy arrays come in and go out. Those that come in
# belong to Dask, which may need them again: they are never written to.


def checked_tile(tile: np.ndarray, first_row: int, dtype: torch.dtype) -> np.ndarray:
    """A tile of K in the precision that is computed in, if it is finite."""
    tensor = as_tensor("K", tile)
    require_finite("K", tensor, first_row)
    return tensor.to(dtype).numpy()


def require_mirrored(
    tile: np.ndarray, mirrored: np.ndarray, diagonal: np.ndarray, first_row: int, first_column: int
) -> None:
    """Refuses a tile that differs from the transpose of the one across the diagonal.

    Args:
        tile: A tile of K.
        mirrored: The tile whose transpose it should be.
        diagonal: The diagonal tile of its column, which tells how large K is.
        first_row: Where the tile's rows begin in K.
        first_column: Where its columns begin.
    """
    tolerance = 1e3 * np.finfo(tile.dtype).eps * np.abs(np.diagonal(diagonal)).max()
    gap = np.abs(tile - mirrored.T)
    if gap.max() > tolerance:
        row, column = np.unravel_index(int(gap.argmax()), gap.shape)
        i, j = first_row + int(row), first_column + int(column)
        raise InvalidInputError(
            f"K is not symmetric: entries ({i}, {j}) and ({j}, {i}) differ by {gap.max():.3g}; "
            "expected a Gram matrix, or pass (K + K.T) / 2 if the difference is noise"
        )


def times(tile: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The tile times (..., m, c) values."""
    return (as_tensor("K", tile) @ as_tensor("B", values)).numpy()


def transpose_times(tile: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The tile's transpose times (m, c) values."""
    return (as_tensor("K", tile).mT @ as_tensor("B", values)).numpy()
