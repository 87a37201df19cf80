r"""Which pairs of pixels a network's infinite-width kernel needs, and how they are linked.

The kernel of two images is made of covariances $S(p, q)$ between pixel p of the one and pixel q of
the other. A read-out after Flatten needs only p = q; walking back from there, a convolution needs
the pairs $(sp + t, sq + t)$ for its taps t, pooling all pairs between two windows. What is never
reached is never computed.

Windows are rectangles, so the pairs needed at a layer are a product: pairs of rows
$(p_y, q_y)$ times pairs of columns $(p_x, q_x)$. Every linear layer is then a Kronecker product of
two sparse matrices, `PairMap`, whose rows hold one number each: a sum of taps times a scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from retarget.errors import InvalidInputError
from retarget.kernels.infinite.layers import (
    AdaptivePool,
    Conv,
    Dense,
    Flat,
    Gelu,
    Layer,
    Pool,
    Rectifier,
    Weighted,
)
from retarget.locks import cached_property

Indices = npt.NDArray[np.int64]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Tile:
    """Part of the kernel matrix: rows top to bottom, columns first to last, ends excluded."""

    top: int
    bottom: int
    first: int
    last: int
    lower: bool  # whether only entries on or below the matrix's diagonal are wanted

    @property
    def pairs(self) -> int:
        """Number of entries that are wanted.

        Examples:
            >>> Tile(0, 3, 0, 2, lower=True).pairs
            5
        """
        width = self.last - self.first
        below = np.arange(self.top, self.bottom) + 1 - self.first  # entries wanted in each row
        return int(np.clip(below, 0, width).sum()) if self.lower else len(below) * width


@dataclass(frozen=True)
class PairMap:
    """A linear layer along one axis: out[e] = scale[e] * sum of in[taps[starts[e]:starts[e+1]]]."""

    starts: Indices
    taps: Indices
    scale: npt.NDArray[np.float64]
    inputs: int

    @property
    def outputs(self) -> int:
        """Number of pairs that come out."""
        return len(self.scale)

    @cached_property
    def transposed(self) -> tuple[Indices, Indices]:
        """(starts, outputs): for every input, the outputs that it is a tap of, in order."""
        outputs = np.repeat(np.arange(self.outputs), np.diff(self.starts))
        order = np.argsort(self.taps, kind="stable")
        starts = np.searchsorted(self.taps[order], np.arange(self.inputs + 1))
        return starts, outputs[order]

    @staticmethod
    def identity(size: int) -> "PairMap":
        """The map that changes nothing."""
        return PairMap(np.arange(size + 1), np.arange(size), np.ones(size), size)


@dataclass(frozen=True)
class AxisLayer:
    """A linear layer along one axis, before it is known which pairs are needed.

    If it is aligned, the two pixels of a pair move together (a convolution's shared weights);
    else every pixel of one window meets every pixel of the other (pooling).
    """

    windows: list[Sequence[int | None]]  # the input pixels of each output pixel; None is padding
    divisors: list[int]  # of the sums over the windows
    aligned: bool

    def taps(self, pair: Pair) -> list[Pair]:
        """The pairs that an output pair is the sum of."""
        left, right = self.windows[pair[0]], self.windows[pair[1]]
        if self.aligned:
            taps = list(zip(left, right, strict=True))
        else:
            taps = [(p, q) for p in left for q in right]
        return [cast(Pair, tap) for tap in taps if None not in tap]

    def scale(self, pair: Pair) -> float:
        """The factor on the sum over the taps."""
        return 1.0 / (self.divisors[pair[0]] * (1 if self.aligned else self.divisors[pair[1]]))

    def needs(self, pairs: list[Pair]) -> tuple[PairMap, list[Pair]]:
        """The map to the given output pairs, and the input pairs that it starts from."""
        taps = [self.taps(pair) for pair in pairs]
        # outputs that see only padding need no input; one is kept, so that no map is empty
        inputs = sorted({tap for each in taps for tap in each}) or [(0, 0)]
        place = {pair: number for number, pair in enumerate(inputs)}
        starts = np.cumsum([0, *map(len, taps)])
        flat = np.array([place[tap] for each in taps for tap in each], dtype=np.int64)
        scale = np.array([self.scale(pair) for pair in pairs])
        return PairMap(starts, flat, scale, len(inputs)), inputs


@dataclass(frozen=True)
class Stage:
    """Pulls a linear layer, rectifies, pushes the pooling after it; each of the three is optional.

    Each row of pairs is pulled, rectified and pushed before the next: what the rectifier works on,
    by far the largest array, is never stored.
    """

    pull: tuple[PairMap, PairMap]  # vertical and horizontal, from stored pairs to the rectifier's
    push: tuple[PairMap, PairMap]  # from the rectifier's pairs to those stored next
    weight_variance: float  # factor on what is pulled
    bias_variance: float  # added to what is pulled
    trained: bool  # whether the pulled layer has weights, which add to the tangent kernel
    slope: float | None  # of the rectifier below zero; None for no rectifier
    pairs: tuple[Indices, Indices]  # the rectifier's row pairs (ny, 2) and column pairs (nx, 2)
    size: Pair  # height and width of the images that the rectifier acts on
    gelu: bool = False  # whether a GELU acts instead of a rectifier

    @property
    def diagonals(self) -> tuple[Indices, Indices]:
        """Where, among the row pairs and among the column pairs, the two pixels are the same."""
        rows, columns = (np.flatnonzero(axis[:, 0] == axis[:, 1]) for axis in self.pairs)
        return rows, columns


@dataclass(frozen=True)
class InfinitePlan:
    """All stages, and the pairs of input pixels that the first one starts from."""

    shape: tuple[int, int, int]
    pairs: tuple[Indices, Indices]
    stages: tuple[Stage, ...]

    @property
    def numbers_per_pair(self) -> int:
        """Covariances that the widest layer holds for one pair of samples."""
        maps = [each for stage in self.stages for each in (stage.pull, stage.push)]
        return max(y.inputs * x.inputs for y, x in maps)


def make_plan(layers: tuple[Layer, ...], shape: tuple[int, int, int]) -> InfinitePlan:
    """The plan for samples of shape (channels, height, width); vectors are 1 x 1 images."""
    sizes, maps, pairs = _links(layers, shape)
    stages: list[Stage] = []
    left = list(range(len(layers)))

    def next_of(*kinds: type[Layer]) -> int | None:
        return left.pop(0) if left and isinstance(layers[left[0]], kinds) else None

    while left:
        pulled = next_of(Conv, Dense, Pool, AdaptivePool, Flat)
        middle = left[0] if left else len(layers)
        rectified = next_of(Rectifier, Gelu)
        # A convolution behind the rectifier needs each of its values several times and adds to
        # the tangent kernel: that is pulled by the next stage. Pooling only ever shrinks.
        pushed = None if rectified is None else next_of(Pool, AdaptivePool, Flat)

        ny, nx = (len(axis) for axis in pairs[middle])
        unchanged = PairMap.identity(ny), PairMap.identity(nx)
        layer = None if pulled is None else layers[pulled]
        weights = layer if isinstance(layer, Weighted) else None
        rectifier = None if rectified is None else layers[rectified]
        stages.append(
            Stage(
                pull=unchanged if pulled is None else maps[pulled],
                push=unchanged if pushed is None else maps[pushed],
                weight_variance=weights.weight_variance if weights else 1.0,
                bias_variance=weights.bias_variance if weights else 0.0,
                trained=weights is not None,
                slope=rectifier.slope if isinstance(rectifier, Rectifier) else None,
                pairs=_both(pairs[middle]),
                size=sizes[middle],
                gelu=isinstance(rectifier, Gelu),
            )
        )
    return InfinitePlan(shape, _both(pairs[0]), tuple(stages))


def _both(pairs: tuple[list[Pair], list[Pair]]) -> tuple[Indices, Indices]:
    return np.array(pairs[0]), np.array(pairs[1])


def _links(
    layers: tuple[Layer, ...], shape: tuple[int, int, int]
) -> tuple[list[Pair], list[tuple[PairMap, PairMap]], list[tuple[list[Pair], list[Pair]]]]:
    """The image size before each layer, its maps, and the pairs that are needed before it.

    Sizes and pairs have one more entry, for what comes out of the last layer.
    """
    sizes: list[Pair] = [shape[1:]]
    axes: list[tuple[AxisLayer, AxisLayer]] = []
    for layer in layers:
        rows, columns = (_axis_layer(layer, axis, sizes[-1][axis]) for axis in (0, 1))
        if not rows.windows or not columns.windows:
            raise InvalidInputError(
                f"images of shape {shape} have shrunk to {sizes[-1]} pixels before layer "
                f"'{layer.name}', whose window is larger; use larger images, or fewer such layers"
            )
        axes.append((rows, columns))
        sizes.append((len(rows.windows), len(columns.windows)))
    pairs: list[tuple[list[Pair], list[Pair]]] = [([(0, 0)], [(0, 0)])]
    maps: list[tuple[PairMap, PairMap]] = []
    for rows, columns in reversed(axes):
        vertical, row_pairs = rows.needs(pairs[0][0])
        horizontal, column_pairs = columns.needs(pairs[0][1])
        pairs.insert(0, (row_pairs, column_pairs))
        maps.insert(0, (vertical, horizontal))
    return sizes, maps, pairs


def _axis_layer(layer: Layer, axis: int, size: int) -> AxisLayer:
    windows: list[Sequence[int | None]] = [[i] for i in range(size)]
    if isinstance(layer, Conv):
        kernel = layer.kernel[axis]
        stride = layer.stride[axis]
        dilation = layer.dilation[axis]
        before = layer.padding_before[axis]
        after = layer.padding_after[axis]
        starts = range(-before, size + after - dilation * (kernel - 1), stride)
        pixels = [range(start, start + dilation * kernel, dilation) for start in starts]
        windows = [[p if 0 <= p < size else None for p in window] for window in pixels]
        return AxisLayer(windows, [kernel] * len(windows), True)
    if isinstance(layer, Pool):
        kernel = layer.kernel[axis]
        padding = layer.padding[axis]
        starts = range(-padding, size + padding - kernel + 1, layer.stride[axis])
        windows = [range(max(start, 0), min(start + kernel, size)) for start in starts]
        divisors = [kernel if layer.count_padding else len(window) for window in windows]
        return AxisLayer(windows, divisors, False)
    if isinstance(layer, AdaptivePool):
        wanted = layer.size[axis] or size
        windows = [range(i * size // wanted, -(-(i + 1) * size // wanted)) for i in range(wanted)]
        return AxisLayer(windows, [len(window) for window in windows], False)
    if isinstance(layer, Flat):  # the mean over pixels of the covariance of a pixel with itself
        return AxisLayer([range(size)], [size], True)
    return AxisLayer(windows, [1] * size, True)
