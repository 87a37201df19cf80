"""The plan as launches of the CUDA kernel: the tables that `triton.run_stage` reads."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retarget.kernels.infinite.plan import Indices, PairMap, Plan, Stage

Maps = tuple[PairMap, PairMap]

# Pooling of more rows than this (global pooling) is finished by a launch of its own: few programs,
# each of them long, would leave most of the device idle.
ROWS_POOLED = 32


@dataclass(frozen=True)
class Axis:
    """The maps of a launch along one axis.

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

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """All of them, in the kernel's order."""
        return self.targets, self.sources, self.taps, self.shares, self.scales


@dataclass(frozen=True)
class Launch:
    """What one launch computes, from the samples or from what was stored before it.

    Attributes:
        numbers: Variance of the biases, 1 where there are weights to train, the rectifier's slope
            and its factor (1 - slope)^2 / 2 pi.
        products: Whether it starts from the samples.
        rectifier: Which of the network's rectifiers it applies.
        pixels: How many that one acts on.
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
    """A stage's launches; `variances` gives S where the rectifier's two pixels are the same."""

    stage: Stage
    variances: Launch | None
    launches: list[Launch]

    @property
    def numbers_per_pair(self) -> int:
        """Covariances that the widest launch stores for one pair of samples."""
        every = self.launches if self.variances is None else [self.variances, *self.launches]
        return max(math.prod(launch.targets) for launch in every)


@dataclass(frozen=True)
class Program:
    """A plan as the tables that the kernel reads."""

    stages: list[StageLaunches]

    @property
    def numbers_per_pair(self) -> int:
        """Covariances that the widest launch stores for one pair of samples."""
        return max(stage.numbers_per_pair for stage in self.stages)


def make_program(plan: Plan, dtype: torch.dtype, device: torch.device) -> Program:
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
    stage: Stage, push: Maps, source: Plan | None, like: Tensor, rectifier: int | None = None
) -> Launch:
    """A stage with this push instead of its own; the first stage has the plan as its source."""
    channels, _, width = source.shape if source else (1, 1, stage.pull[1].inputs)
    rows, columns = source.pairs if source else (_same(stage.pull[0].inputs), _same(width))
    slope, weight = stage.slope or 0.0, stage.weight_variance / channels
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
    """A stage that does nothing else."""
    pairs = _same(maps[0].outputs), _same(maps[1].outputs)
    return Stage(maps, _identity(maps), 1.0, 0.0, False, None, pairs, (1, 1))


def _split(push: Maps) -> tuple[Maps, Maps | None]:
    """What is pooled together with the rectifier, and what by a launch of its own.

    Where windows overlap, the rectifier's values would be computed once for each of them.
    """
    now, later = [], []
    for axis, longest in zip(push, (ROWS_POOLED, math.inf), strict=True):
        apart = len(axis.taps) <= axis.inputs
        at_once = apart and np.diff(axis.starts).max() <= longest
        now.append(axis if at_once else PairMap.identity(axis.inputs))
        later.append(PairMap.identity(axis.outputs) if at_once else axis)
    done = now[0] is push[0] and now[1] is push[1]
    return (now[0], now[1]), None if done else (later[0], later[1])
