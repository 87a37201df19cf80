"""Adds up the sums of several processes, of which each has learned a part of the stream."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor, distributed

from retarget.arrays import FLOATS
from retarget.errors import InvalidInputError
from retarget.theory.moments import NUMBERS, Moments
from retarget.theory.triangle import Triangle

# What every process shares first, besides its type: whether it has learned anything, has an
# intercept, has flat targets; then numbers that must be the same, and their squares.
HEADER = 13


def adding_up(group: Any = None) -> Callable[[Tensor], None]:
    """Returns a function that replaces a tensor, in place, by its sum over a group's processes."""
    if not (distributed.is_available() and distributed.is_initialized()):
        raise InvalidInputError(
            "torch.distributed has no processes yet; call torch.distributed.init_process_group in "
            "each of them, or join the parts of one process with merge"
        )
    on_gpu = distributed.get_backend(group) == "nccl"  # which does not take tensors of the CPU

    def add(tensor: Tensor) -> None:
        sent = tensor.cuda() if on_gpu else tensor
        distributed.all_reduce(sent, group=group)
        tensor.copy_(sent)

    return add


def sums_of_all(
    held: Moments | None,
    flat: bool,
    dtype: torch.dtype | None,
    inputs: int | None,
    views: int,
    precision: torch.dtype,
    add: Callable[[Tensor], Any],
) -> tuple[Moments, bool, torch.dtype, int] | None:
    """Adds up what all processes have learned; None if no process has learned anything.

    The processes find their common means first, and move their sums there before these are added,
    so that features far from the origin cost no digits here either.

    Args:
        held: The sums of this process; None if it has learned nothing.
        flat: Whether its targets had one axis.
        dtype: The type of its predictions.
        inputs: How many numbers each of its samples has.
        views: How many rows each of its samples has.
        precision: The type in which it keeps C.
        add: Replaces a tensor, in place, by its sum over the processes.
    """
    device = torch.device("cpu") if held is None else held.mean.device
    own: list[float] = [0.0] * (HEADER + len(FLOATS))
    if held is not None and dtype is not None:
        sizes = [held.features, held.outputs, inputs or 0, views, precision.itemsize]
        types = [dtype == each for each in FLOATS]
        own = [1, held.intercept, flat, *sizes, *(size**2 for size in sizes), *types]
    header = torch.tensor(own, dtype=torch.float64, device=device)
    add(header)
    n, intercepts, flats, *told = (round(each) for each in header.tolist())
    sums, squares, types = told[:5], told[5:10], told[10:]
    if not n:
        return None
    # numbers are the same if and only if the square of their sum is n times the sum of squares
    alike = all(one**2 == n * other for one, other in zip(sums, squares, strict=True))
    m, c, size, v, width = (total / n for total in sums)
    if not alike or intercepts not in (0, n):
        raise InvalidInputError(
            f"the {n} learners have on average {m:g} features, {c:g} outputs, {size:g} numbers in "
            f"a sample, {v:g} views and {8 * width:g} bits of precision, and {intercepts} have an "
            "intercept; expected the same in every process"
        )
    total = Moments(int(m), int(c), intercepts > 0, device, views=views, precision=precision)
    _fill(total, total if held is None else held, add)
    found = [each for each, count in zip(FLOATS, types, strict=True) if count]
    return total, flats == n, reduce(torch.promote_types, found), int(size)


def _fill(total: Moments, held: Moments, add: Callable[[Tensor], Any]) -> None:
    """Adds up the sums of all processes about their common means."""
    weight = held.weight
    own = [held.mean.new_tensor([getattr(held, name) for name in NUMBERS])]
    first = torch.cat([*own, weight * held.mean, weight * held.target_mean])
    add(first)
    numbers, means = first[: len(NUMBERS)].tolist(), first[len(NUMBERS) :] / first[1]
    if held.intercept:
        total.mean, total.target_mean = means[: held.features], means[held.features :]
    sums = held.copy()
    sums.add_gap(held.mean - total.mean, held.target_mean - total.target_mean, weight)
    packed = sums.triangle.packed().double()
    total.cross, total.power = sums.cross.clone(), sums.power.clone()
    total.shared = sums.shared.clone()
    for tensor in (packed, total.cross, total.power, total.shared):
        if tensor.numel():
            add(tensor)
    total.triangle = Triangle.of_packed(packed.to(total.precision), total.mean)
    for (name, kind), number in zip(NUMBERS.items(), numbers, strict=True):
        setattr(total, name, kind(round(number) if kind is int else number))
