"""Runs a plan on CUDA, as launches of the kernel in `triton.py`.

Samples are last in memory, so that neighboring threads read neighboring numbers, and padded with
zeros to whole blocks: nothing needs a mask.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from retarget.arrays import free_memory
from retarget.kernels.infinite.plan import Indices, InfinitePlan, PairMap, Stage
from retarget.kernels.infinite.torch import (
    TENSORS_ALIVE,
    Report,
    in_tiles,
    measure,
    pairs_at_once,
)

Maps = tuple[PairMap, PairMap]

# A program of the kernel computes BLOCK x BLOCK pairs of samples, on WARPS warps.
BLOCK = 32
WARPS = 2

# Pooling of more rows than this (global pooling) is finished by a launch of its own: few programs,
# each of them long, would leave most of the device idle.
ROWS_POOLED = 32


class Axis(NamedTuple):
    """The maps of a launch along one axis, in the kernel's order.

    Pixels and stored pairs are given by their place in memory: along the row axis they are
    multiplied by the length of a row.

    Attributes:
        targets: (targets, 2) first and last source of a pooled pair.
        sources: (sources, 4) a rectified pair's first and last tap, left and right pixel.
        taps: (taps, 2) left and right pixel of the samples; or twice the stored pair.
        shares: (targets,) factors on the sum over the sources.
        scales: (sources,) factors on the sum over the taps.
    """

    targets: Tensor
    sources: Tensor
    taps: Tensor
    shares: Tensor
    scales: Tensor


@dataclass(frozen=True)
class Launch:
    """What one launch computes, from the samples or from what was stored before it.

    Attributes:
        numbers: Variance of the biases, 1 if there are weights to train, the rectifier's slope
            and its factor (1 - slope)^2 / 2 pi.
        products: Whether it starts from the samples.
        rectifier: The number of the rectifier that it applies.
        pixels: The number of pixels that the rectifier acts on.
    """

    rows: Axis
    columns: Axis
    numbers: Tensor
    products: bool
    rectifier: int | None
    pixels: int

    @property
    def targets(self) -> tuple[int, int]:
        """Rows and columns of what is stored for a pair of samples."""
        return len(self.rows.shares), len(self.columns.shares)


@dataclass(frozen=True)
class StageLaunches:
    """A stage's launches; `variances` computes S for pairs of a rectifier's pixel with itself."""

    stage: Stage
    variances: Launch | None
    launches: list[Launch]


@dataclass(frozen=True)
class Program:
    """A plan as the tables that the kernel reads."""

    stages: list[StageLaunches]

    @property
    def numbers_per_pair(self) -> int:
        """Covariances that the widest launch stores for one pair of samples."""
        every = [each for stage in self.stages for each in (stage.variances, *stage.launches)]
        return max(math.prod(launch.targets) for launch in every if launch is not None)


@dataclass(frozen=True)
class Packed:
    """Samples, with what depends on one sample alone.

    Attributes:
        count: Samples, without those that fill the last block.
        samples: (C, H, W, n).
        deviations: For each rectifier (2, H, W, n) standard deviations and their inverses.
        diagonal: (count,) the kernel of each sample with itself.
    """

    count: int
    samples: Tensor
    deviations: list[Tensor]
    diagonal: Tensor

    def __len__(self) -> int:
        return self.count

    def part(self, start: int, stop: int) -> "Packed":
        """Some of the samples, in whole blocks."""
        whole = slice(start, stop + -stop % BLOCK)
        some = [sd[..., whole] for sd in self.deviations]
        return Packed(stop - start, self.samples[..., whole], some, self.diagonal[start:stop])


def make_program(plan: InfinitePlan, dtype: torch.dtype, device: torch.device) -> Program:
    """Lays a plan out for the kernel, in one precision."""
    like = torch.empty(0, dtype=dtype, device=device)
    stages: list[StageLaunches] = []
    rectifiers = 0
    for number, stage in enumerate(plan.stages):
        source = plan if number == 0 else None
        if stage.slope is None:
            stages.append(StageLaunches(stage, None, [_launch(stage, stage.push, source, like)]))
            continue
        now, later = _split(stage.push)
        launches = [_launch(stage, now, source, like, rectifiers)]
        if later is not None:
            launches.append(_launch(_only(later), _identity(later), None, like))
        variances = _launch(stage, _diagonals(stage), source, like)
        stages.append(StageLaunches(stage, variances, launches))
        rectifiers += 1
    return Program(stages)


def _launch(
    stage: Stage,
    push: Maps,
    source: InfinitePlan | None,
    like: Tensor,
    rectifier: int | None = None,
) -> Launch:
    """A stage with this push instead of its own; the first stage has the plan as its source."""
    channels, _, width = source.shape if source else (1, 1, stage.pull[1].inputs)
    rows, columns = source.pairs if source else (_same(stage.pull[0].inputs), _same(width))
    slope = stage.slope or 0.0
    weight = stage.weight_variance / channels
    factor = (1 - slope) ** 2 / (2 * math.pi)
    return Launch(
        _axis(stage.pull[0], push[0], stage.pairs[0] * stage.size[1], rows * width, weight, like),
        _axis(stage.pull[1], push[1], stage.pairs[1], columns, 1.0, like),
        like.new_tensor([stage.bias_variance, stage.trained, slope, factor]),
        products=source is not None,
        rectifier=rectifier,
        pixels=stage.size[0] * stage.size[1],
    )


def _axis(
    pull: PairMap, push: PairMap, pairs: Indices, inputs: Indices, weight: float, like: Tensor
) -> Axis:
    """Both maps along an axis; `pairs` and `inputs` are places in memory."""

    def put(array: Any, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(array, dtype=dtype, device=like.device)

    entries = np.stack((pull.starts[:-1], pull.starts[1:], *pairs.T), axis=1)
    return Axis(
        targets=put(np.stack((push.starts[:-1], push.starts[1:]), axis=1), torch.int32),
        sources=put(entries[push.taps], torch.int32),
        taps=put(inputs[pull.taps], torch.int32),
        shares=put(push.scale, like.dtype),
        scales=put(pull.scale[push.taps] * weight, like.dtype),
    )


def _same(size: int) -> Indices:
    return np.arange(size)[:, None].repeat(2, axis=1)


def _identity(maps: Maps) -> Maps:
    return PairMap.identity(maps[0].outputs), PairMap.identity(maps[1].outputs)


def _diagonals(stage: Stage) -> Maps:
    """Maps that pick the pairs whose two pixels are the same."""
    rows, columns = (replace(PairMap.identity(len(d)), taps=d) for d in stage.diagonals)
    return rows, columns


def _only(maps: Maps) -> Stage:
    """A stage that only applies these maps."""
    pairs = _same(maps[0].outputs), _same(maps[1].outputs)
    return Stage(maps, _identity(maps), 1.0, 0.0, False, None, pairs, (1, 1))


def _split(push: Maps) -> tuple[Maps, Maps | None]:
    """Splits pooling into what is done with the rectifier and what has a launch of its own.

    If windows overlap, the rectifier's values would be computed once for each of them.
    """
    now = []
    later = []
    for axis, longest in zip(push, (ROWS_POOLED, math.inf), strict=True):
        apart = len(axis.taps) <= axis.inputs
        at_once = apart and np.diff(axis.starts).max() <= longest
        now.append(axis if at_once else PairMap.identity(axis.inputs))
        later.append(PairMap.identity(axis.outputs) if at_once else axis)
    done = now[0] is push[0] and now[1] is push[1]
    return (now[0], now[1]), None if done else (later[0], later[1])


def probe() -> None:
    """Compiles and runs the kernel: an error here means that it cannot be used."""
    one = PairMap.identity(1)
    pair = np.zeros((1, 2), dtype=np.int64)
    stage = Stage((one, one), (one, one), 2.0, 1.0, True, None, (pair, pair), (1, 1))
    samples = torch.arange(3.0, device="cuda")
    plan = InfinitePlan((1, 1, 1), (pair, pair), (stage,))
    program = make_program(plan, samples.dtype, samples.device)
    packed = pack(program, samples[:, None, None, None], False, lambda pairs: None)
    K = gram(program, packed, packed, False, lambda pairs: None)
    if not torch.equal(K, 2 * samples.outer(samples) + 1):
        raise RuntimeError("a compiled kernel gave wrong numbers")


def fits(program: Program, like: Tensor) -> bool:
    """Whether the device has the memory for the smallest tile."""
    needed = program.numbers_per_pair * BLOCK**2 * TENSORS_ALIVE * like.element_size()
    return needed <= (free_memory(like.device) or 0)


def pack(program: Program, samples: Tensor, tangent: bool, report: Report) -> Packed:
    """Measures what depends on one sample alone, a portion of the samples at a time."""
    portion = max(1, pairs_at_once(program.numbers_per_pair, samples) // BLOCK**2) * BLOCK
    parts = []
    for start in range(0, len(samples), portion):
        some = samples[start : start + portion]
        blocks = pad(some.permute(1, 2, 3, 0), (0, -len(some) % BLOCK)).contiguous()
        part = Packed(len(some), blocks, [], samples.new_empty(len(some)))
        values = _propagate(program, part, part, tangent, itself=True)
        part.diagonal.copy_(_own(values)[: len(some)])
        parts.append(part)
        report(len(some))
    measured = zip(*(part.deviations for part in parts), strict=True)
    return Packed(
        len(samples),
        torch.cat([part.samples for part in parts], dim=-1),
        [torch.cat(each, dim=-1) for each in measured],
        torch.cat([part.diagonal for part in parts]),
    )


def gram(program: Program, left: Packed, right: Packed, tangent: bool, report: Report) -> Tensor:
    """The kernel (len(left), len(right)); only half is computed for `left` with itself."""
    propagate = partial(_propagate, program, tangent=tangent, itself=False)
    return in_tiles(propagate, left, right, program.numbers_per_pair, BLOCK, report)


def _propagate(
    program: Program, left: Packed, right: Packed, tangent: bool, itself: bool
) -> Tensor:
    """The kernel (left samples, right samples).

    With `itself` every block of samples meets only itself, (samples, BLOCK), and the standard
    deviations are measured on the way and appended to `left.deviations`.
    """
    stored: list[Tensor] = []
    for stage in program.stages:
        if itself and stage.variances is not None:
            S = _run(stage.variances, left, right, stored[:1], False, itself)[0]
            left.deviations.append(measure(_own(S), stage.stage))
        for launch in stage.launches:
            stored = _run(launch, left, right, stored, tangent, itself)
    return stored[-1][0, 0]


def _own(values: Tensor) -> Tensor:
    """(..., n) each sample with itself, from (..., n, BLOCK), each block with itself."""
    rows = torch.arange(values.shape[-2], device=values.device)
    return values[..., rows, rows % BLOCK]


def _run(
    launch: Launch, left: Packed, right: Packed, stored: list[Tensor], tangent: bool, itself: bool
) -> list[Tensor]:
    """Launches the kernel: computes S and the tangent kernel from those stored before."""
    # Triton comes with torch for CUDA only; the tables above are made, and tested, without it.
    from retarget.kernels.infinite.triton import run_stage

    rows = left.samples.shape[-1]
    width = BLOCK if itself else right.samples.shape[-1]
    n_rows, n_columns = launch.targets
    out = [left.samples.new_empty((n_rows, n_columns, rows, width)) for _ in range(1 + tangent)]
    samples = (left.samples, right.samples)
    number = launch.rectifier
    read = samples if launch.products else (stored[0], stored[-1])
    deviations = samples if number is None else (left.deviations[number], right.deviations[number])
    channels, height, across = left.samples.shape[:3]
    blocks = width // BLOCK
    with torch.cuda.device(left.samples.device):
        run_stage[(n_rows * n_columns * (rows // BLOCK) * blocks,)](
            *read, *deviations, out[0], out[-1], *launch.rows, *launch.columns,
            launch.numbers, n_rows * n_columns, n_columns, blocks, int(itself), height * across,
            channels, launch.pixels, samples[0].stride(-2), samples[1].stride(-2), width,
            rows * width, PRODUCTS=launch.products, RECTIFIED=number is not None, TANGENT=tangent,
            TANGENT_READ=tangent and not launch.products, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return out
