"""A kernel matrix in tiles and its targets, checked, ready to compute on."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
import torch
from dask.delayed import Delayed, delayed
from torch import Tensor

from retarget.arrays import as_targets, as_tensor, give_back, require_float
from retarget.distributed.cluster import computed
from retarget.distributed.tiles import checked_tile
from retarget.errors import InvalidInputError, InvalidTypeError


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

    def give(self, result: np.ndarray) -> np.ndarray:
        """A result (n, c) in the inputs' precision, with the shape of the caller's Y."""
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
    flat = np.ndim(Y) == 1
    targets = {"Y": _targets("Y", Y, len(K))}
    if initial is not None:
        targets["initial"] = _targets("initial", initial, len(K))
        if targets["initial"].shape != targets["Y"].shape:
            raise InvalidInputError(
                f"initial has shape {np.shape(initial)}, but Y has shape {np.shape(Y)}; expected "
                "the starting function's value for each target"
            )
    sample = as_tensor("K", np.empty(0, dtype=K.dtype))
    require_float("K", sample, "convert it first")
    given = sample.dtype
    for values in targets.values():
        given = torch.promote_types(given, values.dtype)
    wide = torch.promote_types(given, torch.float32)
    start = targets.get("initial")
    return TiledProblem(
        K=_aligned(K, multiple),
        Y=targets["Y"].to(wide).numpy(),
        start=None if start is None else start.to(wide).numpy(),
        dtype=wide,
        _given=given,
        _flat=flat,
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


def _targets(name: str, values: Any, n: int) -> Tensor:
    known = computed(values)[0] if isinstance(values, da.Array) else values
    targets = as_targets(name, known).cpu()
    if len(targets) != n:
        raise InvalidInputError(
            f"{name} has {len(targets)} rows, but K is {n} x {n}; expected one row a sample, in "
            "the same order"
        )
    return targets


def _aligned(K: da.Array, multiple: int) -> da.Array:
    """K with every chunk's end moved to the nearest multiple."""
    n = len(K)
    ends = np.cumsum(K.chunks[0])[:-1]
    moved = np.unique(np.rint(ends / multiple).astype(int) * multiple)
    bounds = [0, *moved[(moved > 0) & (moved < n)].tolist(), n]
    sizes = tuple(int(size) for size in np.diff(bounds))
    # "tasks": the other method writes all of K to disk first
    return K if sizes == K.chunks[0] else K.rechunk((sizes, sizes), method="tasks")
