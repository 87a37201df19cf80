"""The plan laid out for the compiled loops, and the threads that run them."""

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from retarget.arrays import require_memory
from retarget.kernels.infinite import sweep as loops
from retarget.kernels.infinite.plan import InfinitePlan, PairMap, Stage, Tile
from retarget.kernels.infinite.sweep import LANES
from retarget.kernels.infinite.torch import Report

Numbers = npt.NDArray[Any]

# A task computes about this many covariances: some 30 ms, long enough that scheduling costs
# nothing, short enough to stop quickly and to keep the progress bar moving. Little work is divided
# more finely, so that no thread waits long for the last task.
TASK_NUMBERS = 30_000_000
TASKS_PER_THREAD = 8


@dataclass(frozen=True)
class Program:
    """A plan as the flat arrays that the compiled loops read."""

    header: Numbers
    index: Numbers
    scale: Numbers
    work_size: int
    deviations_size: int
    task_blocks: int


@dataclass(frozen=True)
class Packed:
    """Samples sixteen to a block, with what depends on one sample alone."""

    samples: Numbers
    deviations: Numbers
    diagonal: Tensor

    def __len__(self) -> int:
        return len(self.diagonal)


class _Writer:
    """Appends arrays end to end and remembers where each begins."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.size = 0

    def add(self, values: Any) -> int:
        start = self.size
        self.parts.append(np.atleast_1d(values))
        self.size += len(self.parts[-1])
        return start


def probe() -> None:
    """Compiles and runs the smallest of the loops: an error here means that none will run."""
    target = torch.empty(LANES, device="cpu").numpy()
    loops.spread(torch.arange(float(LANES), device="cpu").numpy(), 3, target)
    if not (target == 3).all():
        raise RuntimeError("a compiled loop gave wrong numbers")


def make_program(plan: InfinitePlan, dtype: torch.dtype, device: torch.device) -> Program:
    """Lays a plan out for the compiled loops, in one precision."""
    index = _Writer()
    scale = _Writer()
    work_size, places = _work_layout(plan)
    require_memory(
        "the covariances between all pixels that this network needs",
        work_size * torch.get_num_threads(),
        torch.empty(0, dtype=dtype, device=device),
        "use smaller images, or pool less widely",
    )
    header = np.zeros((len(plan.stages), len(loops.COLUMNS)), dtype=np.int64)
    deviations = 0
    for number, stage in enumerate(plan.stages):
        first = number == 0
        fields = _stage_fields(stage, plan.shape[0] if first else 1, index, scale)
        fields |= places[number]
        fields |= {loops.FROM_INPUT: int(first), loops.DEVIATIONS: deviations}
        if first:
            fields |= _input_fields(plan, index)
        if stage.slope is not None:
            deviations += 2 * stage.size[0] * stage.size[1] * LANES
        for column, value in fields.items():
            header[number, column] = value
    numbers = sum(stage.pull[0].outputs * stage.pull[1].outputs for stage in plan.stages)
    return Program(
        header=header,
        index=np.concatenate(index.parts).astype(np.int64),
        scale=torch.from_numpy(np.concatenate(scale.parts).astype(float)).to(dtype).numpy(),
        work_size=work_size,
        deviations_size=max(deviations, LANES),
        task_blocks=max(1, TASK_NUMBERS // (LANES * max(numbers, 1))),
    )


def _stage_fields(stage: Stage, channels: int, index: _Writer, scale: _Writer) -> dict[int, int]:
    """Where the stage's maps are, by column of the header."""
    (pull_y, pull_x), (push_y, push_x) = stage.pull, stage.push
    rows, columns = stage.pairs
    width = stage.size[1]
    starts, targets = push_y.transposed
    # a pixel's standard deviation and its inverse lie side by side
    row_offsets = rows * (2 * width * LANES)
    column_offsets = columns * (2 * LANES)
    variance = stage.weight_variance / channels
    return {
        loops.ROWS: pull_y.outputs,
        loops.COLUMNS_PULLED: pull_x.outputs,
        loops.COLUMNS_READ: pull_x.inputs,
        loops.COLUMNS_STORED: push_x.outputs,
        loops.NUMBERS_STORED: push_y.outputs * push_x.outputs,
        loops.PULL_ROW_STARTS: index.add(pull_y.starts),
        loops.PULL_ROW_TAPS: index.add(pull_y.taps),
        loops.PULL_COLUMN_STARTS: index.add(pull_x.starts),
        loops.PULL_COLUMN_TAPS: index.add(pull_x.taps * LANES),
        loops.PUSH_ROW_STARTS: index.add(starts),
        loops.PUSH_ROW_TARGETS: index.add(targets),
        loops.PUSH_COLUMN_STARTS: index.add(push_x.starts),
        loops.PUSH_COLUMN_TAPS: index.add(push_x.taps * LANES),
        loops.ROW_LEFT: index.add(row_offsets[:, 0]),
        loops.ROW_RIGHT: index.add(row_offsets[:, 1]),
        loops.COLUMN_LEFT: index.add(column_offsets[:, 0]),
        loops.COLUMN_RIGHT: index.add(column_offsets[:, 1]),
        loops.PULL_ROW_SCALE: scale.add(pull_y.scale * variance),
        loops.PULL_COLUMN_SCALE: scale.add(pull_x.scale),
        loops.PUSH_ROW_SCALE: scale.add(push_y.scale),
        loops.PUSH_COLUMN_SCALE: scale.add(push_x.scale),
        loops.BIAS: scale.add(stage.bias_variance),
        loops.SLOPE: scale.add(stage.slope or 0.0),
        loops.TRAINED: int(stage.trained),
        loops.RECTIFIED: int(stage.slope is not None),
        loops.CHANNELS: channels,
    }


def _input_fields(plan: InfinitePlan, index: _Writer) -> dict[int, int]:
    """Where the pixels of the input pairs are in a packed sample."""
    rows, columns = plan.pairs
    _, height, width = plan.shape
    return {
        loops.INPUT_ROW_LEFT: index.add(rows[:, 0] * (width * LANES)),
        loops.INPUT_ROW_RIGHT: index.add(rows[:, 1] * (width * LANES)),
        loops.INPUT_COLUMN_LEFT: index.add(columns[:, 0] * LANES),
        loops.INPUT_COLUMN_RIGHT: index.add(columns[:, 1] * LANES),
        loops.CHANNEL_STRIDE: height * width * LANES,
    }


def _work_layout(plan: InfinitePlan) -> tuple[int, list[dict[int, int]]]:
    """The size of a work array, and where each stage reads and writes: two levels, four rows."""

    def numbers(maps: tuple[PairMap, PairMap]) -> int:
        return maps[0].outputs * maps[1].outputs

    levels = [max((numbers(s.push) for s in plan.stages[i::2]), default=0) for i in (0, 1)]
    read = max(stage.pull[1].inputs for stage in plan.stages)
    pulled = max(stage.pull[1].outputs for stage in plan.stages)
    sizes = [read, read, pulled, pulled, levels[0], levels[0], levels[1], levels[1]]
    offsets = [int(offset) * LANES for offset in np.cumsum([0, *sizes])]
    rows = (loops.SUM, loops.SUM_TANGENT, loops.ROW, loops.ROW_TANGENT)
    stored = (loops.STORED, loops.STORED_TANGENT, loops.READ, loops.READ_TANGENT)
    read_next = (*stored[2:], *stored[:2])  # in every other stage
    fields = [
        dict(zip((*rows, *(read_next if i % 2 else stored)), offsets[:8], strict=True))
        for i in range(len(plan.stages))
    ]
    return max(offsets[-1], LANES), fields


def pack(program: Program, samples: Tensor, tangent: bool, report: Report) -> Packed:
    """Packs samples (n, C, H, W) and measures what depends on one sample alone."""
    n = len(samples)
    blocks = -(-n // LANES)
    size = samples[0].numel()
    # torch's memory starts at a cache line, NumPy's does not
    packed = samples.new_zeros((blocks, LANES, size))
    packed.view(-1, size)[:n] = samples.reshape(n, size)
    lanes = packed.mT.contiguous().view(blocks, size * LANES).numpy()
    deviations = samples.new_zeros((blocks, program.deviations_size)).numpy()
    diagonal = samples.new_empty(n)
    out = diagonal.numpy()

    def task(span: tuple[int, int]) -> int:
        work = samples.new_zeros(program.work_size).numpy()
        loops.fill_self(
            program.header, program.index, program.scale, lanes, deviations, work, tangent, span,
            out,
        )  # fmt: skip
        return min(span[1] * LANES, n) - span[0] * LANES

    step = program.task_blocks
    _run(task, ((i, min(i + step, blocks)) for i in range(0, blocks, step)), report)
    return Packed(lanes, deviations, diagonal)


def gram(program: Program, left: Packed, right: Packed, tangent: bool, report: Report) -> Tensor:
    """The kernel (len(left), len(right)); only half is computed for `left` with itself."""
    like = left.diagonal
    symmetric = left is right
    K = like.new_empty((len(left), len(right)))
    out = K.numpy()

    def task(tile: Tile) -> int:
        blocks = tile.first // LANES, -(-tile.last // LANES)
        work = like.new_zeros(program.work_size).numpy()
        sample = like.new_empty(left.samples.shape[1]).numpy()
        sample_sd = like.new_empty(program.deviations_size).numpy()
        loops.fill_tile(
            program.header, program.index, program.scale, left.samples, left.deviations,
            right.samples, right.deviations, work, sample, sample_sd, tangent,
            (tile.top, tile.bottom), blocks, out,
        )  # fmt: skip
        return tile.pairs

    blocks = len(left) * len(right) // LANES // (2 if symmetric else 1)
    fair = blocks // (TASKS_PER_THREAD * torch.get_num_threads())
    _run(task, _tiles(len(left), len(right), symmetric, min(program.task_blocks, fair)), report)
    if symmetric:
        K.diagonal().copy_(left.diagonal)
    return K


def _tiles(rows: int, columns: int, lower: bool, task_blocks: int) -> Iterator[Tile]:
    """Tiles of about one task each; with `lower`, up to the diagonal."""
    for top in range(0, rows, LANES):
        bottom = min(top + LANES, rows)
        width = LANES * max(1, task_blocks // (bottom - top))
        stop = bottom if lower else columns
        for first in range(0, stop, width):
            yield Tile(top, bottom, first, min(first + width, stop), lower)


def _run(task: Callable[[Any], int], pieces: Iterator[Any], report: Report) -> None:
    """Runs the task on every piece, on as many threads as torch uses; reports pairs done."""
    threads = torch.get_num_threads()
    pieces = iter(pieces)
    with ThreadPoolExecutor(threads) as pool:
        running: set[Future[int]] = {pool.submit(task, piece) for piece in islice(pieces, threads)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                report(future.result())
            running |= {pool.submit(task, piece) for piece in islice(pieces, len(done))}
