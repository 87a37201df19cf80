"""The plan carried out on CUDA, by the kernel of `triton`.

Samples are last in memory, so that neighbouring threads read neighbouring numbers, and padded with
zeros to whole blocks: nothing needs a mask.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from retarget.arrays import free_memory
from retarget.kernels.infinite.launches import Launch, Program, make_program
from retarget.kernels.infinite.plan import PairMap, Plan, Stage
from retarget.kernels.infinite.torch import TENSORS_ALIVE, measure, pairs_at_once, tiles
from retarget.kernels.infinite.triton import BLOCK, WARPS, run_stage

__all__ = ["Packed", "fits", "gram", "make_program", "pack", "probe"]

Report = Callable[[int], None]


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


def probe() -> None:
    """Compiles and runs the kernel: an error here means that it cannot be used."""
    one, pair = PairMap.identity(1), np.zeros((1, 2), dtype=np.int64)
    stage = Stage((one, one), (one, one), 2.0, 1.0, True, None, (pair, pair), (1, 1))
    samples = torch.arange(3.0, device="cuda")
    plan = Plan((1, 1, 1), (pair, pair), (stage,))
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
    """The kernel (len(left), len(right)); of `left` with itself, half of it is computed."""
    symmetric = left is right
    K = left.samples.new_empty((len(left), len(right)))
    pairs = pairs_at_once(program.numbers_per_pair, K)
    for tile in tiles(len(left), len(right), symmetric, pairs, BLOCK):
        a, b = left.part(tile.top, tile.bottom), right.part(tile.first, tile.last)
        values = _propagate(program, a, b, tangent, itself=False)
        K[tile.top : tile.bottom, tile.first : tile.last] = values[: len(a), : len(b)]
        torch.cuda.synchronize(K.device)  # or the progress bar would run ahead of the work
        report(tile.pairs)
    if symmetric:
        K.diagonal().copy_(left.diagonal)
    return K


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
    """(..., n) of (..., n, BLOCK), where every block of samples met itself: one with itself."""
    rows = torch.arange(values.shape[-2], device=values.device)
    return values[..., rows, rows % BLOCK]


def _run(
    launch: Launch, left: Packed, right: Packed, stored: list[Tensor], tangent: bool, itself: bool
) -> list[Tensor]:
    """Launches the kernel: S, and the tangent kernel, from those stored before."""
    rows, width = left.samples.shape[-1], BLOCK if itself else right.samples.shape[-1]
    n_rows, n_columns = launch.targets
    out = [left.samples.new_empty((n_rows, n_columns, rows, width)) for _ in range(1 + tangent)]
    samples, number = (left.samples, right.samples), launch.rectifier
    read = samples if launch.products else (stored[0], stored[-1])
    deviations = samples if number is None else (left.deviations[number], right.deviations[number])
    channels, height, across = left.samples.shape[:3]
    blocks = width // BLOCK
    with torch.cuda.device(left.samples.device):
        run_stage[(n_rows * n_columns * (rows // BLOCK) * blocks,)](
            *read, *deviations, out[0], out[-1], *launch.rows.tables, *launch.columns.tables,
            launch.numbers, n_rows * n_columns, n_columns, blocks, int(itself), height * across,
            channels, launch.pixels, samples[0].stride(-2), samples[1].stride(-2), width,
            rows * width, PRODUCTS=launch.products, RECTIFIED=number is not None, TANGENT=tangent,
            TANGENT_READ=tangent and not launch.products, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return out
