"""Which groups moved each other's targets, or consecutive parts of the stream without groups."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from retarget.diagnosis.result import GroupShift
from retarget.diagnosis.stream import Stream
from retarget.engine.stream_kernel import StreamKernel
from retarget.journal import KeptTensors

MOST_GROUPS = 30
PARTS = 10


class Partition(NamedTuple):
    """The groups' names in order of appearance, and (n,) each row's group, from 0."""

    names: tuple[str, ...]
    numbers: np.ndarray


def partition(stream: Stream) -> Partition:
    """Partitions rows by the stream's groups (the largest, if many), or into consecutive parts."""
    n = len(stream)
    if stream.groups is None:
        count = min(PARTS, n)
        names = tuple(f"part {part + 1}" for part in range(count))
        return Partition(names, np.arange(n) * count // n)
    groups, first, number, counts = np.unique(
        stream.groups, return_index=True, return_inverse=True, return_counts=True
    )
    appeared = np.argsort(first)
    labels, place = largest(groups[appeared], counts[appeared])
    order = np.empty(len(groups), dtype=np.int64)
    order[appeared] = place
    return Partition(labels, order[number.reshape(-1)])


def largest(
    names: Sequence[str] | np.ndarray, counts: np.ndarray
) -> tuple[tuple[str, ...], np.ndarray]:
    """Returns the names of the largest groups, with one for all others, and each group's place.

    The groups are in order of appearance, and keep that order.
    """
    many = len(names) > MOST_GROUPS
    kept = np.argsort(-counts, kind="stable")[: MOST_GROUPS - 1] if many else np.arange(len(names))
    kept = np.sort(kept)
    place = np.full(len(names), len(kept))  # all other groups come last, as one
    place[kept] = np.arange(len(kept))
    labels = [str(names[group]) for group in kept]
    if many:
        labels.append(f"the other {len(names) - len(kept):,}")
    return tuple(labels), place


def group_shift(
    kernel: StreamKernel, groups: Partition, C: Tensor, effective: Tensor, batch: int
) -> GroupShift:
    """Computes how groups moved each other's targets; NaN if the online learner diverged.

    `C` (n, c) are its final dual coefficients, `effective` (n, c) the effective targets, and
    `batch` the rows learned in one step.
    """
    count = len(groups.names)
    number = torch.from_numpy(groups.numbers)
    size = C.new_zeros(count, count)
    pull = C.new_zeros(count, count)
    own = C.new_zeros(count)
    if C.isnan().any():
        size, pull, own = (matrix.fill_(math.nan) for matrix in (size, pull, own))
    else:
        keeping = [KeptTensors(size=size, pull=pull, own=own)]
        for rows, moved in kernel.later(C, number, count, batch, keeping):
            targets = kernel.Y[rows]
            group = number[rows]
            size.index_add_(0, group, moved.norm(dim=2))
            pull.index_add_(0, group, (moved * directions(targets)[:, None]).sum(2))
            shift = effective[rows] - targets
            own.index_add_(0, group, (shift - moved.sum(1)).norm(dim=1))
    counts_of = [np.bincount(groups.numbers[rows], minlength=count) for rows in kernel.ranges()]
    counts = np.sum(counts_of, axis=0)
    per_row = counts[:, None]
    return GroupShift(
        groups.names, counts, size.numpy() / per_row, pull.numpy() / per_row, own.numpy() / counts
    )


def directions(Y: Tensor) -> Tensor:
    """Returns (m, c) unit vectors along targets; for one-hot targets, the targets."""
    lengths: Tensor = torch.linalg.vector_norm(Y, dim=1, keepdim=True)
    return Y / lengths.clamp(min=torch.finfo(Y.dtype).tiny)
