"""Streams in Dask arrays: their Gram matrix in tiles, and learning from them in bounded memory."""

import copy
import math
import uuid
from typing import Any, TypeVar

import dask.array as da
import dask.config
import numpy as np
import torch
from dask.base import persist
from dask.delayed import Delayed, delayed
from dask.highlevelgraph import HighLevelGraph

from retarget.arrays import as_tensor, require_float
from retarget.distributed.cluster import cluster_errors, computed
from retarget.errors import InvalidInputError, InvalidTypeError, a_type
from retarget.form import Form
from retarget.kernels import Kernel, as_kernel
from retarget.scalars import as_count
from retarget.streaming.intake import require_unchanged
from retarget.streaming.ridge.learner import StreamingRidge
from retarget.streaming.ridge.rows import RidgeState

# Samples along a tile's side: 7 MB in float64, and a multiple of most common batch sizes.
TILE_SIZE = 960


def gram(kernel: Any, X: Any, tile_size: int = TILE_SIZE) -> da.Array:
    """Returns the Gram matrix of a stream as a Dask array (n, n) in square tiles.

    The matrix is lazy: a tile is computed where and when it is needed, and tiles above the diagonal
    are transposes of those below it. The samples are sent to the workers once, now: call it inside
    the `connect` whose workers will compute it.

    Args:
        kernel: A retarget kernel, or anything that `as_kernel` accepts.
        X: (n, ...) samples in stream order: a NumPy array, or a Dask array.
        tile_size: Samples along a tile's side. A worker should have memory for about 30 tiles; a
            multiple of the learner's batch size (or of the correction's blocks) saves time.

    Returns:
        The Gram matrix, in the kernel's precision.

    Examples:
        >>> from retarget import RBF
        >>> K = gram(RBF(width=2.0), np.array([0.0, 2.0, 4.0]), tile_size=2)
        >>> K.chunks
        ((2, 1), (2, 1))
        >>> K[:2, :2].compute().round(4)
        array([[1.    , 0.3679],
               [0.3679, 1.    ]])
    """
    tile_size = as_count("tile_size", tile_size)
    known = as_kernel(kernel)
    samples = X if isinstance(X, da.Array) else np.asarray(X)
    if samples.ndim == 0 or not samples.shape[0] > 0:  # an unknown size is nan: False
        raise InvalidInputError(
            f"X has shape {samples.shape}; expected samples as rows, and at least one"
        )
    # X and the kernel are sent to the workers here, once, and not with every column of tiles.
    chunks = (tile_size, *(-1,) * (samples.ndim - 1))
    samples, sent_kernel = _sent(da.asarray(samples, chunks=chunks).rechunk(chunks), _named(known))
    dtype = known(computed(samples[:1])[0]).dtype

    name = f"gram-{uuid.uuid4().hex}"
    zeros = (0,) * (samples.ndim - 1)
    tiles: dict[Any, tuple[Any, ...]] = {}
    for i in range(samples.numblocks[0]):
        for j in range(i):
            rows = (samples.name, i, *zeros)
            columns = (samples.name, j, *zeros)
            tiles[name, i, j] = (_tile, sent_kernel.key, rows, columns)
            tiles[name, j, i] = (np.transpose, (name, i, j))
        tiles[name, i, i] = (_tile, sent_kernel.key, (samples.name, i, *zeros))
    graph = HighLevelGraph.from_collections(name, tiles, dependencies=[samples, sent_kernel])
    return da.Array(graph, name, (samples.chunks[0], samples.chunks[0]), dtype)


def _tile(kernel: Kernel, *samples: np.ndarray) -> np.ndarray:
    return kernel(*samples)


def _named(thing: Any) -> Delayed:
    """Returns a constant to send to the workers, with a name of its own."""
    return delayed(thing, name=f"{type(thing).__name__}-{uuid.uuid4().hex}", traverse=False)


def _sent(*collections: Any) -> tuple[Any, ...]:
    """Sends collections to the workers, which keep them, however large they are."""
    large = {"distributed.admin.large-graph-warning-threshold": "1TB"}
    with dask.config.set(large), cluster_errors():
        return persist(*collections)


LearnerT = TypeVar("LearnerT", bound=StreamingRidge)


def learn(learner: LearnerT, X: Any, Y: Any) -> LearnerT:
    """Learns from a Dask array, as `learner.learn(X, Y)` would from an array in memory.

    An empty copy of the learner learns each block of rows, on the worker that has or reads it. Each
    block gives sums of a fixed size; they are added up in pairs, and the total is merged into the
    learner at the end. So the result is the same as on one machine (up to rounding), and a call
    that fails changes nothing. Each thread of a worker has in memory one block, a portion of its
    features, and at most three m x m matrices of float64.

    Blocks should have more rows than there are features, so that most of the time goes to the
    features and not to the m x m sums.

    Args:
        learner: A `StreamingRidge` or `TangentLearner`. It may have learned before. If its features
            are a function, it must be possible to send it to the workers (pickle).
        X: (n, ...) samples, a Dask array. The sizes of its blocks of rows may be unknown.
        Y: (n,) or (n, c) targets, a Dask or NumPy array.

    Returns:
        The learner itself.

    Examples:
        >>> import retarget as rt
        >>> X = da.random.default_rng(0).normal(size=(1000, 3), chunks=(300, 3))
        >>> learner = learn(rt.StreamingRidge(rt.Linear(), gamma=0.1), X, X.sum(axis=1))
        >>> learner.samples
        1000
        >>> learner.predict(np.ones((1, 3))).round(2)
        array([3.])
    """
    if not isinstance(learner, StreamingRidge):
        raise InvalidTypeError(
            f"learner is {a_type(learner)}; expected a StreamingRidge or a TangentLearner"
        )
    samples, targets = _in_blocks_of_rows(X, Y)
    dtype = _fitting_type(learner, targets)
    # The features (such as a network) are sent to the workers once, and not with every block.
    (empty,) = _sent(_named(learner.empty()))
    starts = np.cumsum([0, *samples.chunks[0][:-1]]).tolist()
    rows = samples.to_delayed().reshape(len(starts), -1)[:, 0]
    values = targets.to_delayed().reshape(len(starts), -1)[:, 0]
    sums = [
        delayed(_sums_of_block, pure=False)(empty, x, y, start)
        for x, y, start in zip(rows, values, starts, strict=True)
    ]
    (total,) = computed(_added_up(sums))
    if total.moments is None:
        return learner
    flat = targets.ndim == 1
    inputs = math.prod(samples.shape[1:])
    total = total._replace(form=Form(flat=flat, dtype=dtype), inputs=inputs)
    return learner.merge(learner.with_learned(total))


def _in_blocks_of_rows(X: Any, Y: Any) -> tuple[da.Array, da.Array]:
    """Cuts X and Y into the same blocks of whole rows."""
    if not isinstance(X, da.Array):
        raise InvalidTypeError(
            f"X is {a_type(X)}; expected a Dask array (for arrays in memory, use "
            "learner.learn(X, Y))"
        )
    if X.ndim == 0:
        raise InvalidInputError("X is a single number; expected samples as rows")
    X = X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    if not isinstance(Y, da.Array):
        Y = da.from_array(np.asarray(Y), chunks=-1)
    if Y.ndim not in (1, 2):
        raise InvalidInputError(f"Y has shape {Y.shape}; expected (n,) or (n, outputs)")
    Y = Y.rechunk(dict.fromkeys(range(1, Y.ndim), -1))
    if np.isnan([X.shape[0], Y.shape[0]]).any():  # the number of rows is unknown
        if X.numblocks[0] != Y.numblocks[0]:
            raise InvalidInputError(
                f"X has {X.numblocks[0]} blocks of rows and Y has {Y.numblocks[0]}, of unknown "
                "sizes; expected the same blocks: call compute_chunk_sizes() on them first"
            )
        return X, Y
    if len(X) != len(Y):
        raise InvalidInputError(
            f"X has {len(X)} rows and Y has {len(Y)}; expected the same number of rows"
        )
    return X, Y.rechunk({0: X.chunks[0]})


def _fitting_type(learner: StreamingRidge, Y: da.Array) -> torch.dtype:
    """Returns the dtype to learn the targets in; raises for bad targets before any work."""
    outputs = 1 if Y.ndim == 1 else Y.shape[1]
    require_unchanged("the number of outputs of Y", outputs, learner.learned.outputs or outputs)
    none = as_tensor("Y", np.empty(0, dtype=Y.dtype))
    require_float("Y", none, "convert it, or one-hot encode class labels, first")
    return none.dtype


def _sums_of_block(empty: StreamingRidge, X: np.ndarray, Y: np.ndarray, start: float) -> RidgeState:
    # A copy for every block, because threads must not run the same network at once.
    own = copy.deepcopy(empty)
    try:
        return own.learn(X, Y).learned
    except (InvalidInputError, InvalidTypeError) as error:
        where = "" if math.isnan(start) else f" that begins at row {start:.0f}"
        raise type(error)(f"in the block{where}: {error}") from error


def _added_up(sums: list[Delayed]) -> Delayed:
    """Adds the sums in pairs, so that no worker needs memory for all of them."""
    while len(sums) > 1:
        pairs = (sums[i : i + 2] for i in range(0, len(sums), 2))
        sums = [delayed(_joined, pure=False)(*pair) for pair in pairs]
    return sums[0]


def _joined(one: RidgeState, other: RidgeState | None = None) -> RidgeState:
    if other is None or other.moments is None:
        return one
    if one.moments is None:
        return other
    if one.moments.features != other.moments.features:
        raise InvalidInputError(
            f"a block has {one.moments.features} features and another has "
            f"{other.moments.features}; expected the same number in all blocks"
        )
    joined = one.moments.copy()
    joined.join(other.moments)
    return one._replace(moments=joined)
