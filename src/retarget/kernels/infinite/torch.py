"""Runs a plan with plain torch operations, if nothing can be compiled.

A tensor of covariances has shape (row pairs, column pairs, left samples, right samples): the
samples are last, so that every operation runs over long stretches of memory whatever the geometry.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from retarget.arrays import free_memory
from retarget.kernels.infinite.plan import InfinitePlan, PairMap, Stage, Tile

Report = Callable[[int], None]

# Numbers in one tensor of covariances: on the CPU few enough to stay near the cache, elsewhere
# as many as a sixth of the free memory holds (about five such tensors live at once), but no more
# than keep the device busy.
NUMBERS_CPU = 1 << 21
NUMBERS_ELSEWHERE = 1 << 28
TENSORS_ALIVE = 6

# Half a kernel matrix is computed in this many strips, unless they become too thin.
STRIPS = 16
THINNEST = 64

# Above this many channels their products are summed by matrix multiplication.
CHANNELS_ADDED = 16


@dataclass(frozen=True)
class Maps:
    """A `PairMap` for each axis on the device, as (starts, taps), and the factor on the sums."""

    rows: tuple[Tensor, Tensor]
    columns: tuple[Tensor, Tensor]
    scale: Tensor | None  # (row pairs, column pairs, 1, 1); None for 1


@dataclass(frozen=True)
class StageTensors:
    """A `Stage` with its indices on the device."""

    stage: Stage
    pull: Maps
    push: Maps
    pairs: tuple[Tensor, Tensor]
    diagonals: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Program:
    """A plan with its indices on the device."""

    plan: InfinitePlan
    stages: tuple[StageTensors, ...]
    pairs: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Packed:
    """Samples, with what depends on one sample alone."""

    samples: Tensor  # (n, C, H, W)
    deviations: list[Tensor]  # by rectifier (2, H, W, n), standard deviations and their inverses
    diagonal: Tensor  # (n,) the kernel of each sample with itself

    def __len__(self) -> int:
        return len(self.samples)

    def part(self, start: int, stop: int) -> "Packed":
        """Some of the samples."""
        some = [sd[..., start:stop] for sd in self.deviations]
        return Packed(self.samples[start:stop], some, self.diagonal[start:stop])


def make_program(plan: InfinitePlan, dtype: torch.dtype, device: torch.device) -> Program:
    """Puts a plan's indices on a device."""

    def put(*arrays: Any) -> tuple[Tensor, Tensor]:
        one, other = (torch.as_tensor(array, device=device) for array in arrays)
        return one, other

    def both(maps: tuple[PairMap, PairMap], factor: float) -> Maps:
        rows, columns = (put(each.starts[:-1], each.taps) for each in maps)
        scale = factor * np.outer(maps[0].scale, maps[1].scale)[:, :, None, None]
        there = torch.as_tensor(scale, dtype=dtype, device=device)
        return Maps(rows, columns, None if (scale == 1).all() else there)

    stages = []
    for number, stage in enumerate(plan.stages):
        channels = 1 if number else plan.shape[0]
        pull = both(stage.pull, stage.weight_variance / channels)
        push = both(stage.push, 1.0)
        stages.append(StageTensors(stage, pull, push, put(*stage.pairs), put(*stage.diagonals)))
    return Program(plan, tuple(stages), put(*plan.pairs))


def pack(program: Program, samples: Tensor, tangent: bool, report: Report) -> Packed:
    """Measures what depends on one sample alone, a portion of the samples at a time."""
    size = max(1, pairs_at_once(program.plan.numbers_per_pair, samples))
    parts = []
    for start in range(0, len(samples), size):
        some = samples[start : start + size]
        part = Packed(some, [], samples.new_empty(len(some)))
        part.diagonal.copy_(_propagate(program, part, part, tangent, itself=True)[:, 0])
        parts.append(part)
        report(len(some))
    measured = zip(*(part.deviations for part in parts), strict=True)
    joined = [torch.cat(each, dim=-1) for each in measured]
    return Packed(samples, joined, torch.cat([part.diagonal for part in parts]))


def gram(program: Program, left: Packed, right: Packed, tangent: bool, report: Report) -> Tensor:
    """The kernel (len(left), len(right)); only half is computed for `left` with itself."""
    propagate = partial(_propagate, program, tangent=tangent, itself=False)
    return in_tiles(propagate, left, right, program.plan.numbers_per_pair, 1, report)


def in_tiles(
    propagate: Callable[[Any, Any], Tensor],
    left: Any,
    right: Any,
    numbers_per_pair: int,
    block: int,
    report: Report,
) -> Tensor:
    """The kernel matrix of packed samples, tile by tile, in whole blocks."""
    symmetric = left is right
    K: Tensor = left.samples.new_empty((len(left), len(right)))
    pairs = max(1, pairs_at_once(numbers_per_pair, K))
    for tile in tiles(len(left), len(right), symmetric, pairs, block):
        a = left.part(tile.top, tile.bottom)
        b = right.part(tile.first, tile.last)
        values = propagate(a, b)[: len(a), : len(b)]
        K[tile.top : tile.bottom, tile.first : tile.last] = values
        if K.is_cuda:
            torch.cuda.synchronize(K.device)  # keeps the progress bar from running ahead
        report(tile.pairs)
    if symmetric:
        K.diagonal().copy_(left.diagonal)
    return K


def pairs_at_once(numbers_per_pair: int, like: Tensor) -> int:
    """Pairs of samples that one tile should hold; 0 if there is no memory for one."""
    numbers = NUMBERS_CPU
    if like.device.type != "cpu":
        free = free_memory(like.device) or 0
        numbers = min(NUMBERS_ELSEWHERE, free // (TENSORS_ALIVE * like.element_size()))
    return numbers // max(numbers_per_pair, 1)


def tiles(rows: int, columns: int, lower: bool, pairs: int, block: int = 1) -> Iterator[Tile]:
    """Tiles of at most this many pairs, in whole blocks; with `lower`, up to the diagonal."""
    height = min(rows, max(math.isqrt(pairs), pairs // columns))
    if lower:  # thin, because half of a square on the diagonal is wasted
        height = min(height, max(THINNEST, rows // STRIPS))
    height = max(height // block, 1) * block
    width = max(pairs // height // block, 1) * block
    for top in range(0, rows, height):
        bottom = min(top + height, rows)
        stop = bottom if lower else columns
        for left in range(0, stop, width):
            yield Tile(top, bottom, left, min(left + width, stop), lower)


def _propagate(
    program: Program, left: Packed, right: Packed, tangent: bool, itself: bool
) -> Tensor:
    """The kernel (left samples, right samples); with `itself`, (samples, 1) of each with itself.

    With `itself` the standard deviations are measured on the way and appended to the samples'.
    """
    theta = None  # the tangent kernel is None while it is zero, and S while it is the same
    S = _products(program, left.samples, right.samples, itself)
    rectifier = 0
    for tensors in program.stages:
        stage = tensors.stage
        S = _apply(S, tensors.pull)
        theta = None if theta is None else _apply(theta, tensors.pull)
        if stage.bias_variance:
            S.add_(stage.bias_variance)
        if tangent and stage.trained:
            theta = S if theta is None else theta.add_(S)
        if stage.slope is not None or stage.gelu:
            if itself:
                rows, columns = tensors.diagonals
                left.deviations.append(measure(S[rows[:, None], columns][..., 0], stage))
            sds = left.deviations[rectifier], right.deviations[rectifier]
            S, theta = _rectify(S, theta, tensors, *sds, itself)
            rectifier += 1
            S = _apply(S, tensors.push)
            theta = None if theta is None else _apply(theta, tensors.push)
    result = theta if tangent and theta is not None else S
    return result[0, 0]


def _products(program: Program, left: Tensor, right: Tensor, itself: bool) -> Tensor:
    """The sum over channels of x(p) x'(q), in the same order for one sample with itself as for two.

    So two equal samples are found perfectly correlated to the last bit. (Vectors are a matrix
    product; there the last bits may differ.)
    """
    rows, columns = program.pairs
    # (channels, row pairs, column pairs, samples): small, compared to their products, whose
    # layout follows theirs
    a, b = (
        x[:, :, rows[:, side, None], columns[None, :, side]].permute(1, 2, 3, 0).contiguous()
        for side, x in enumerate((left, right))
    )
    a = a[..., None]
    b = b[..., None] if itself else b[..., None, :]
    if len(a) > CHANNELS_ADDED and b.shape[-1] > 1:
        return torch.matmul(a.movedim(0, -1).squeeze(-2), b.movedim(0, -2).squeeze(-3))
    S = a[0] * b[0]
    for channel in range(1, len(a)):
        S.addcmul_(a[channel], b[channel])
    return S


def _apply(values: Tensor, maps: Maps) -> Tensor:
    """A linear layer: the sums along both axes, scaled; gathered and added in one pass each."""
    (row_starts, row_taps), (starts, taps) = maps.rows, maps.columns
    if not len(row_taps) or not len(taps):  # only padding is seen
        return values.new_zeros((len(row_starts), len(starts), *values.shape[2:]))
    columns = values.shape[1]
    samples = values.shape[2:]
    values = embedding_bag(row_taps, values.flatten(1), row_starts, mode="sum")
    # along the second axis, as a sum over rows of the two axes flattened
    row = torch.arange(len(row_starts), device=values.device)[:, None]
    values = embedding_bag(
        (row * columns + taps).flatten(),
        values.view(len(row) * columns, -1),
        (row * len(taps) + starts).flatten(),
        mode="sum",
    ).view(len(row_starts), len(starts), *samples)
    return values if maps.scale is None else values.mul_(maps.scale)


def measure(variance: Tensor, stage: Stage) -> Tensor:
    """(2, H, W, samples) standard deviations and inverses, as in `sweep.measure`.

    The variances are those of the stage's diagonals. If a GELU follows, the inverses are those
    of the deviations with one more unit of variance.
    """
    deviation = variance.sqrt()
    inverse = (1 + variance).rsqrt()
    if not stage.gelu:
        inverse = _rounded_up_inverse(variance, deviation)
    both = variance.new_zeros((2, *stage.size, variance.shape[2]))
    rows, columns = (
        torch.as_tensor(pairs[diagonal, 0], device=variance.device)
        for pairs, diagonal in zip(stage.pairs, stage.diagonals, strict=True)
    )
    both[:, rows[:, None], columns] = torch.stack((deviation, inverse))
    return both


def _rounded_up_inverse(variance: Tensor, deviation: Tensor) -> Tensor:
    """1 / deviation, or 0; a sample's correlation with itself must not come out below 1."""
    inverse = torch.where(variance > 0, 1 / deviation, 0)
    for _ in range(4):  # eps / 2 lost in each of root, division and two products
        short = (variance > 0) & (variance * inverse * inverse < 1)
        inverse = torch.where(short, inverse.nextafter(2 * inverse), inverse)
    return inverse


def _rectify(
    S: Tensor,
    theta: Tensor | None,
    tensors: StageTensors,
    left_sd: Tensor,
    right_sd: Tensor,
    itself: bool,
) -> tuple[Tensor, Tensor | None]:
    """E[f f'] and theta * E[df df'] of a rectifier, as in `sweep.pull_and_rectify`."""
    slope = tensors.stage.slope or 0.0
    factor = (1 - slope) ** 2 / (2 * math.pi)
    rows, columns = tensors.pairs
    a, a_inverse = left_sd[:, rows[:, 0, None], columns[:, 0], :, None]
    b, b_inverse = right_sd[:, rows[:, 1, None], columns[:, 1], None, :]
    if itself:
        b = b.mT
        b_inverse = b_inverse.mT
    if tensors.stage.gelu:
        return _gelu(S, theta, a, b, a_inverse, b_inverse)
    opposite = (S * a_inverse).mul_(b_inverse).clamp_(-1, 1).neg_()
    angle = torch.acos(opposite)  # arccos(-c) = pi - arccos(c)
    one = S.new_ones(())
    sine = torch.addcmul(one, opposite, opposite, value=-1, out=opposite).sqrt_()
    derivative = angle.mul_(factor).add_(slope)
    covariance = sine.mul_(a * factor).mul_(b)
    if theta is S:
        theta = derivative.mul_(S)
        return covariance.add_(theta), theta
    covariance.addcmul_(derivative, S)
    return covariance, None if theta is None else theta.mul_(derivative)


def _gelu(
    S: Tensor, theta: Tensor | None, a: Tensor, b: Tensor, ra: Tensor, rb: Tensor
) -> tuple[Tensor, Tensor | None]:
    r"""E[f f'] and theta * E[df df'] of f(x) = x Phi(x), with Phi the normal distribution.

    With $r = 1/\sqrt{1 + \sigma^2}$ for each sample and $c = S r r'$, Stein's lemma gives
    $P = E[\Phi \Phi'] = (\pi - \arccos c) / 2\pi$, $D = E[\varphi \varphi'] = r r' / (2\pi
    \sqrt{1 - c^2})$ for the densities, $E[u \varphi(u) \Phi(v)] = S r^2 D$ and
    $E[u \varphi(u) v \varphi(v)] = S r^2 r'^2 D / (1 - c^2)$; E[f f'] and E[df df'] are made of
    these.
    """
    squares = ra.square() + rb.square()
    c = (S * ra).mul_(rb)
    rest = torch.addcmul(S.new_ones(()), c, c, value=-1)  # 1 - c^2, which is above 0
    density = (ra * rb) * rest.rsqrt() / (2 * math.pi)
    probability = torch.acos(-c).div_(2 * math.pi)
    covariance = S * probability + density * ((a * b).square() + S.square() * (squares - 1))
    if theta is None:
        return covariance, None
    derivative = probability + density * S * (squares + (ra * rb).square() / rest)
    return covariance, theta * derivative
