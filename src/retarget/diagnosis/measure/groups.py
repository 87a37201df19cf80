"""Which groups moved each other's targets, or consecutive parts of the stream without groups."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from retarget.diagnosis.result import GroupShift
from retarget.diagnosis.stream import Stream
from retarget.engine.stream_kernel import StreamKernel

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
    many = len(groups) > MOST_GROUPS
    kept = np.argsort(-counts, kind="stable")[: MOST_GROUPS - 1] if many else np.arange(len(groups))
    kept = kept[np.argsort(first[kept])]  # in order of appearance
    place = np.full(len(groups), len(kept))  # all other groups come last, as one
    place[kept] = np.arange(len(kept))
    labels = [str(groups[group]) for group in kept]
    if many:
        labels.append(f"the other {len(groups) - len(kept):,}")
    return Partition(tuple(labels), place[number.reshape(-1)])


def group_shift(
    kernel: StreamKernel, stream: Stream, groups: Partition, C: Tensor, shift: Tensor, batch: int
) -> GroupShift:
    """Computes how groups moved each other's targets; NaN if the online learner diverged.

    `C` (n, c) are its final dual coefficients, `shift` (n, c) the shift of each row, and `batch`
    the rows learned in one step.
    """
    count = len(groups.names)
    number = torch.from_numpy(groups.numbers)
    direction = directions(stream)
    size = C.new_zeros(count, count)
    pull = C.new_zeros(count, count)
    own = C.new_zeros(count)
    if C.isnan().any():
        size, pull, own = (matrix.fill_(math.nan) for matrix in (size, pull, own))
    else:
        for rows, moved in kernel.later(C, number, count, batch):
            size.index_add_(0, number[rows], moved.norm(dim=2))
            pull.index_add_(0, number[rows], (moved * direction[rows, None]).sum(2))
            own.index_add_(0, number[rows], (shift[rows] - moved.sum(1)).norm(dim=1))
    counts = np.bincount(groups.numbers, minlength=count)
    per_row = counts[:, None]
    return GroupShift(
        groups.names, counts, size.numpy() / per_row, pull.numpy() / per_row, own.numpy() / counts
    )


def directions(stream: Stream) -> Tensor:
    """Returns (n, c) unit vectors along each row's target; for one-hot targets, the target."""
    Y = torch.from_numpy(np.asarray(stream.Y, dtype=np.float64))
    lengths: Tensor = torch.linalg.vector_norm(Y, dim=1, keepdim=True)
    return Y / lengths.clamp(min=torch.finfo(Y.dtype).tiny)
