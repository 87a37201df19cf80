"""The Gram matrix as a Dask array: every tile is computed by the worker that needs it."""

import uuid
from typing import Any

import dask.array as da
import dask.config
import numpy as np
from dask.base import persist
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph

from retarget.distributed.cluster import cluster_errors, computed
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.kernels import Kernel, as_kernel

# Samples in a tile's side: 7 MB in float64, a multiple of nearly every usual mini-batch.
TILE_SIZE = 960


def gram(kernel: Any, X: Any, tile_size: int = TILE_SIZE) -> da.Array:
    """The Gram matrix of a stream as a Dask array (n, n) in square tiles.

    Nothing of it is computed yet. A tile is computed where, and when, it is needed; those above the
    diagonal are the transposes of those below it. The samples themselves are handed to the workers
    now, once: call it inside the `connect` whose workers are to compute it.

    Args:
        kernel: A kernel of retarget, or whatever `as_kernel` takes.
        X: (n, ...) samples in stream order: a NumPy array, or a Dask array.
        tile_size: Samples in a tile's side. A worker should have room for some 30 tiles; a
            multiple of the learner's mini-batch (or of the correction's blocks) saves time.

    Returns:
        The Gram matrix, of the kernel's own precision.

    Example:
        >>> from retarget import RBF
        >>> K = gram(RBF(width=2.0), np.array([0.0, 2.0, 4.0]), tile_size=2)
        >>> K.chunks
        ((2, 1), (2, 1))
        >>> K[:2, :2].compute().round(4)
        array([[1.    , 0.3679],
               [0.3679, 1.    ]])
    """
    if isinstance(tile_size, bool) or not isinstance(tile_size, int | np.integer):
        raise InvalidTypeError(f"tile_size is {tile_size!r}; expected a whole number of samples")
    if tile_size < 1:
        raise InvalidInputError(f"tile_size is {tile_size}; expected 1 or more")
    known = as_kernel(kernel)
    token = uuid.uuid4().hex
    samples = X if isinstance(X, da.Array) else np.asarray(X)
    if samples.ndim == 0 or not samples.shape[0] > 0:  # nan > 0 is False: rows nobody counted
        raise InvalidInputError(
            f"X has shape {samples.shape}; expected at least one sample, as rows"
        )
    chunks = (int(tile_size), *(-1,) * (samples.ndim - 1))
    if isinstance(samples, da.Array):
        samples = samples.rechunk(chunks)
    else:
        samples = da.from_array(samples, chunks)
    # All of X and the kernel go to the workers here, and not again with every column of tiles.
    large = {"distributed.admin.large-graph-warning-threshold": "1TB"}
    with dask.config.set(large), cluster_errors():
        samples, held = persist(samples, delayed(known, name=f"kernel-{token}", traverse=False))
    first = computed(samples[:1])[0]
    dtype = known(first).dtype

    name, zeros = f"gram-{token}", (0,) * (samples.ndim - 1)
    count = samples.numblocks[0]
    tiles: dict[Any, tuple[Any, ...]] = {}
    for i in range(count):
        for j in range(i):
            rows, columns = (samples.name, i, *zeros), (samples.name, j, *zeros)
            tiles[name, i, j] = (_tile, held.key, rows, columns)
            tiles[name, j, i] = (np.transpose, (name, i, j))
        tiles[name, i, i] = (_tile, held.key, (samples.name, i, *zeros))
    graph = HighLevelGraph.from_collections(name, tiles, dependencies=[samples, held])
    return da.Array(graph, name, (samples.chunks[0], samples.chunks[0]), dtype)


def _tile(kernel: Kernel, *samples: np.ndarray) -> np.ndarray:
    tile: np.ndarray = kernel(*samples)
    return tile
