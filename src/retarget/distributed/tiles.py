"""What is done to single tiles, on the workers: NumPy arrays come in and go out.

Arrays that come in belong to Dask, which may need them again: they are never written to.
"""

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import as_tensor, require_finite
from retarget.errors import InvalidInputError
from retarget.theory.cholesky import not_positive_definite
from retarget.theory.triangular import solve_lower, solve_lower_right, solve_lower_transposed


def checked_tile(tile: np.ndarray, first_row: int, dtype: torch.dtype) -> np.ndarray:
    """A tile of K in the precision that is computed in, if it is finite."""
    tensor = as_tensor("K", tile)
    require_finite("K", tensor, first_row)
    return _array(tensor.to(dtype))


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


def squared_norm(tile: np.ndarray) -> float:
    """The sum of the squares of a tile."""
    return float(torch.linalg.vector_norm(as_tensor("K", tile)) ** 2)


def less_products(tile: np.ndarray, left: list[np.ndarray], right: list[np.ndarray]) -> np.ndarray:
    """The tile less the sum of left_k right_k^T."""
    rest = as_tensor("K", tile).clone()
    for a, b in zip(left, right, strict=True):
        rest.addmm_(as_tensor("L", a), as_tensor("L", b).mT, alpha=-1)
    return _array(rest)


def factor_diagonal(schur: np.ndarray, gamma: float, first_row: int) -> np.ndarray:
    """L_jj, from what the columns before it leave of a diagonal tile of K."""
    rest = as_tensor("K", schur).clone()
    rest.diagonal().add_(gamma)
    triangle, info = torch.linalg.cholesky_ex(rest)
    if info.item():
        raise not_positive_definite(rest, gamma, first_row + int(info) - 1)
    return _array(triangle)


def factor_below(rest: np.ndarray, triangle: np.ndarray) -> np.ndarray:
    """L_ij, from what the columns before it leave of a tile of K below the diagonal."""
    # contiguous: it is sent to other workers and to disk
    return _array(solve_lower_right(as_tensor("L", triangle), as_tensor("K", rest)).contiguous())


def forward(triangle: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """L_jj^-1 B."""
    return _array(solve_lower(as_tensor("L", triangle), as_tensor("B", rhs)))


def backward(triangle: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """L_jj^-T B."""
    return _array(solve_lower_transposed(as_tensor("L", triangle), as_tensor("B", rhs)))


def times(tile: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The tile times (..., m, c) values."""
    return _array(as_tensor("K", tile) @ as_tensor("B", values))


def transpose_times(tile: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The tile's transpose times (m, c) values."""
    return _array(as_tensor("K", tile).mT @ as_tensor("B", values))


def diagonal_extent(tile: np.ndarray, triangle: np.ndarray) -> tuple[float, float]:
    """The trace of a diagonal tile of K, and the least entry on the diagonal of its L_jj."""
    return float(np.trace(tile)), float(np.diagonal(triangle).min())


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.numpy()
    return array
