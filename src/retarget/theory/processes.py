"""Adds up the sums of several processes, of which each has learned a part of the stream."""

import hashlib
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor, distributed

from retarget.arrays import FLOATS
from retarget.errors import InvalidInputError
from retarget.theory.moments import NUMBERS, Moments
from retarget.theory.triangle import Triangle

# A description is compared by the first of its digest's bytes, as so many whole numbers of 16 bits.
WORDS = 4


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
    network_outputs: int | None,
    empty: Callable[[int, int], Moments],
    described: Mapping[str, str],
    add: Callable[[Tensor], Any],
) -> tuple[Moments, bool, torch.dtype, int | None, int | None] | None:
    """Adds up what all processes have learned; None if no process has learned anything.

    The processes find their common means first, and move their sums there before these are added,
    so that features far from the origin cost no digits here either.

    Args:
        held: The sums of this process; None if it has learned nothing.
        flat: Whether its targets had one axis.
        dtype: The type of its predictions.
        inputs: How many numbers each of its samples has; None if they may differ.
        network_outputs: How many outputs the network has whose tangents it learns; None for others.
        empty: Makes sums of nothing, for so many features and outputs.
        described: What must be the same in every process, by names that are: also in those that
            have learned nothing, because they will predict with the result.
        add: Replaces a tensor, in place, by its sum over the processes.
    """
    require_same_everywhere(described, add)
    sizes, types = [0, 0, 0, 0], [False] * len(FLOATS)
    if held is not None:
        sizes = [held.features, held.outputs, inputs or 0, network_outputs or 0]
        types = [dtype == each for each in FLOATS]
    own = [held is not None, flat, *types, *sizes, *(size**2 for size in sizes)]
    header = torch.tensor(own, dtype=torch.float64, device="cpu")
    add(header)
    n, flats, *rest = (round(each) for each in header.tolist())
    types_of_all, sums, squares = rest[:-8], rest[-8:-4], rest[-4:]
    if not n:
        return None
    if not all(_are_same(n, *each) for each in zip(sums, squares, strict=True)):
        m, c, numbers, outputs = (total / n for total in sums)
        raise InvalidInputError(
            f"the {n} learners have on average {m:g} features, {c:g} outputs, {numbers:g} numbers "
            f"in a sample and {outputs:g} outputs of the network; expected the same in every "
            "process"
        )
    m, c, numbers, outputs = (total // n for total in sums)
    total = empty(m, c)
    _fill(total, total if held is None else held, add)
    found = [each for each, count in zip(FLOATS, types_of_all, strict=True) if count]
    return (
        total,
        flats == n,
        reduce(torch.promote_types, found),
        numbers or None,
        outputs or None,
    )


def require_same_everywhere(described: Mapping[str, str], add: Callable[[Tensor], Any]) -> None:
    """Raises the same error in all processes if these texts are not the same in all of them."""
    words = []
    for text in described.values():
        digest = hashlib.sha256(text.encode()).digest()
        words += [int.from_bytes(digest[2 * i : 2 * i + 2], "big") for i in range(WORDS)]
    counted = [1, *words, *(word**2 for word in words)]
    own = torch.tensor(counted, dtype=torch.float64, device="cpu")
    add(own)
    processes, *rest = (round(each) for each in own.tolist())
    sums, squares = rest[: len(words)], rest[len(words) :]
    same = [_are_same(processes, *each) for each in zip(sums, squares, strict=True)]
    different = [
        name for i, name in enumerate(described) if not all(same[WORDS * i : WORDS * (i + 1)])
    ]
    if different:
        raise InvalidInputError(
            f"the learners of the {processes} processes have different {', '.join(different)}; "
            "expected the same in every process: give all of them the same network, seed and "
            "options"
        )


def _are_same(n: int, total: int, squares: int) -> bool:
    """Whether n numbers are all the same, from their sum and the sum of their squares."""
    return total**2 == n * squares


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
