"""The plan carried out with plain torch operations, where nothing can be compiled.

A tensor of covariances has shape (row pairs, column pairs, left samples, right samples): the
samples are last, so that every operation runs over long stretches of memory whatever the geometry.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from retarget.arrays import free_memory
from retarget.kernels.infinite.plan import PairMap, Plan, Stage, Tile

Report = Callable[[int], None]

# Numbers in one tensor of covariances: on the CPU few enough to stay near the cache, elsewhere
# as many as a sixth of the free memory holds (about five such tensors live at once), but no more
# than keep the device busy.
NUMBERS_CPU = 1 << 21
NUMBERS_ELSEWHERE = 1 << 28
TENSORS_ALIVE = 6

# Half a kernel matrix is computed in so many strips, if they are not too thin to be worth it.
STRIPS = 16
THINNEST = 64

# Beyond so many channels their products are summed by matrix multiplication.
CHANNELS_ADDED = 16


@dataclass(frozen=True)
class AxisPairs:
    """A `PairMap` on the device."""

    starts: Tensor
    taps: Tensor
    scale: Tensor
    uniform: float | None


@dataclass(frozen=True)
class StageTensors:
    """A `Stage` with its indices on the device."""

    stage: Stage
    pull: tuple[AxisPairs, AxisPairs]
    push: tuple[AxisPairs, AxisPairs]
    pairs: tuple[Tensor, Tensor]
    diagonals: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Program:
    """A plan with its indices on the device."""

    plan: Plan
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

    def part(self, rows: slice) -> "Packed":
        """Some of the samples."""
        some = [sd[..., rows] for sd in self.deviations]
        return Packed(self.samples[rows], some, self.diagonal[rows])


def make_program(plan: Plan, dtype: torch.dtype, device: torch.device) -> Program:
    """Puts a plan's indices on a device."""

    def put(array: Any) -> Tensor:
        return torch.as_tensor(array, device=device)

    def axis(pairs: PairMap) -> AxisPairs:
        uniform = float(pairs.scale[0]) if (pairs.scale == pairs.scale[0]).all() else None
        scale = put(pairs.scale).to(dtype)
        return AxisPairs(put(pairs.starts[:-1]), put(pairs.taps), scale, uniform)

    stages = [
        StageTensors(
            stage,
            (axis(stage.pull[0]), axis(stage.pull[1])),
            (axis(stage.push[0]), axis(stage.push[1])),
            (put(stage.pairs[0]), put(stage.pairs[1])),
            (put(stage.diagonals[0]), put(stage.diagonals[1])),
        )
        for stage in plan.stages
    ]
    return Program(plan, tuple(stages), (put(plan.pairs[0]), put(plan.pairs[1])))


def pack(program: Program, samples: Tensor, tangent: bool, report: Report) -> Packed:
    """Measures what depends on one sample alone, a portion of the samples at a time."""
    size = max(1, pairs_at_once(program.plan.numbers_per_pair, samples))
    parts = []
    for start in range(0, len(samples), size):
        some = samples[start : start + size]
        deviations: list[Tensor] = []
        diagonal = _propagate(program, some, some, deviations, deviations, tangent, itself=True)
        parts.append(Packed(some, deviations, diagonal[:, 0]))
        report(len(some))
    measured = zip(*(part.deviations for part in parts), strict=True)
    joined = [torch.cat(each, dim=-1) for each in measured]
    return Packed(samples, joined, torch.cat([part.diagonal for part in parts]))


def gram(program: Program, left: Packed, right: Packed, tangent: bool, report: Report) -> Tensor:
    """The kernel (len(left), len(right)); of `left` with itself, half of it is computed."""
    symmetric = left is right
    K = left.samples.new_empty((len(left), len(right)))
    pairs = max(1, pairs_at_once(program.plan.numbers_per_pair, K))
    for tile in tiles(len(left), len(right), symmetric, pairs):
        rows, columns = slice(tile.top, tile.bottom), slice(tile.first, tile.last)
        a, b = left.part(rows), right.part(columns)
        K[rows, columns] = _propagate(
            program, a.samples, b.samples, a.deviations, b.deviations, tangent, itself=False
        )
        if K.is_cuda:
            torch.cuda.synchronize(K.device)  # or the progress bar would run ahead of the work
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
    """Rectangles of at most so many pairs, in whole blocks; with `lower`, up to the diagonal."""
    height = min(rows, max(math.isqrt(pairs), pairs // columns))
    if lower:  # thin, as half a square on the diagonal is computed in vain
        height = min(height, max(THINNEST, rows // STRIPS))
    height = max(height // block, 1) * block
    width = max(pairs // height // block, 1) * block
    for top in range(0, rows, height):
        bottom = min(top + height, rows)
        stop = bottom if lower else columns
        for left in range(0, stop, width):
            yield Tile(top, bottom, left, min(left + width, stop), lower)


def _propagate(
    program: Program,
    left: Tensor,
    right: Tensor,
    left_sds: list[Tensor],
    right_sds: list[Tensor],
    tangent: bool,
    itself: bool,
) -> Tensor:
    """The kernel (left samples, right samples); with `itself`, (samples, 1) of each with itself.

    With `itself` the standard deviations are measured on the way and appended to `left_sds`.
    """
    S, theta = left, None  # the tangent kernel is None while it is zero or the same as S
    rectifier = 0
    for number, tensors in enumerate(program.stages):
        stage = tensors.stage
        if number == 0:
            S = _pull_products(program, left, right, itself)
        else:
            S = _apply(S, tensors.pull, stage.weight_variance)
            theta = None if theta is None else _apply(theta, tensors.pull, stage.weight_variance)
        if stage.bias_variance:
            S.add_(stage.bias_variance)
        if tangent and stage.trained:
            theta = S if theta is None else theta.add_(S)
        if stage.slope is not None or stage.gelu:
            if itself:
                rows, columns = tensors.diagonals
                left_sds.append(measure(S[rows[:, None], columns][..., 0], stage))
            sds = left_sds[rectifier], right_sds[rectifier]
            S, theta = _rectify(S, theta, tensors, *sds, itself)
            rectifier += 1
            shared = theta is S
            S = _apply(S, tensors.push, 1.0)
            if theta is not None:
                theta = S if shared else _apply(theta, tensors.push, 1.0)
    result = theta if tangent and theta is not None else S
    return result[0, 0]


def _pull_products(program: Program, left: Tensor, right: Tensor, itself: bool) -> Tensor:
    """The first layer, straight from the samples: S(p, q) = sum of x(p) x'(q) / channels."""
    tensors = program.stages[0]
    (vertical, horizontal), channels = tensors.pull, left.shape[1]
    rows, columns = program.pairs
    factor = tensors.stage.weight_variance / channels
    uniform = vertical.uniform is not None and horizontal.uniform is not None
    if vertical.uniform is not None and horizontal.uniform is not None:
        factor *= vertical.uniform * horizontal.uniform
    # (channels, row pairs, column pairs, samples): small, compared to their products, whose
    # layout follows theirs
    a, b = (
        x[:, :, rows[:, side, None], columns[None, :, side]].permute(1, 2, 3, 0).contiguous()
        for side, x in enumerate((left * factor, right))
    )
    S = _products(a[..., None], b[..., None] if itself else b[..., None, :])
    S = _sum_columns(_sum_rows(S, vertical), horizontal)
    return S if uniform else _scale(S, tensors.pull, 1.0)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """The sum over channels of a * b, in the same order for one sample with itself as for two.

    So two equal samples are found perfectly correlated to the last bit. (Vectors are a matrix
    product; there the last bits may differ.)
    """
    if len(a) > CHANNELS_ADDED and b.shape[-1] > 1:
        return torch.matmul(a.movedim(0, -1).squeeze(-2), b.movedim(0, -2).squeeze(-3))
    S = a[0] * b[0]
    for channel in range(1, len(a)):
        S.addcmul_(a[channel], b[channel])
    return S


def _apply(values: Tensor, maps: tuple[AxisPairs, AxisPairs], factor: float) -> Tensor:
    """A linear layer: the sums along both axes, scaled."""
    return _scale(_sum_columns(_sum_rows(values, maps[0]), maps[1]), maps, factor)


def _scale(values: Tensor, maps: tuple[AxisPairs, AxisPairs], factor: float) -> Tensor:
    vertical, horizontal = maps
    if vertical.uniform is not None and horizontal.uniform is not None:
        number = factor * vertical.uniform * horizontal.uniform
        return values if number == 1 else values.mul_(number)
    scale = factor * vertical.scale[:, None] * horizontal.scale
    return values.mul_(scale[:, :, None, None])


def _sum_rows(values: Tensor, pairs: AxisPairs) -> Tensor:
    """out[e] = the sum of values[taps of e]: gathered and added in one pass over memory."""
    if not len(pairs.taps):  # only padding is seen
        return values.new_zeros((len(pairs.starts), *values.shape[1:]))
    summed = embedding_bag(pairs.taps, values.flatten(1), pairs.starts, mode="sum")
    return summed.view(-1, *values.shape[1:])


def _sum_columns(values: Tensor, pairs: AxisPairs) -> Tensor:
    """The same along the second axis, as a sum over rows of the two axes flattened."""
    rows, columns = values.shape[:2]
    if not len(pairs.taps):
        return values.new_zeros((rows, len(pairs.starts), *values.shape[2:]))
    row = torch.arange(rows, device=values.device)[:, None]
    taps = (row * columns + pairs.taps).flatten()
    starts = (row * len(pairs.taps) + pairs.starts).flatten()
    summed = embedding_bag(taps, values.flatten(0, 1).flatten(1), starts, mode="sum")
    return summed.view(rows, -1, *values.shape[2:])


def measure(variance: Tensor, stage: Stage) -> Tensor:
    """(2, H, W, samples) standard deviations and inverses, as in `sweep.measure`.

    The variances are those of the stage's diagonals. Where a GELU follows, the inverses are those
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
        b, b_inverse = b.mT, b_inverse.mT
    if tensors.stage.gelu:
        return _gelu(S, theta, a, b, a_inverse, b_inverse)
    correlation = (S * a_inverse).mul_(b_inverse)
    opposite = correlation.clamp_(-1, 1).neg_()
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
