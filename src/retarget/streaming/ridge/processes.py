"""Adds up the sums of several processes, of which each has learned a part of the stream."""

import hashlib
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from retarget.arrays import FLOATS
from retarget.errors import InvalidInputError
from retarget.form import Form
from retarget.streaming.ridge.moments import NUMBERS, Moments
from retarget.streaming.ridge.rows import RidgeState
from retarget.streaming.ridge.triangle import Triangle

DIGEST_BYTES = 8  # of a description, by which descriptions are compared: as many as an int64 has


class Processes:
    """The processes of a group of `torch.distributed`; None stands for all of them."""

    def __init__(self, group: Any = None) -> None:
        if not (distributed.is_available() and distributed.is_initialized()):
            raise InvalidInputError(
                "torch.distributed has no processes yet; call torch.distributed.init_process_group "
                "in each of them, or join the parts of one process with merge"
            )
        self._group = group
        on_gpu = distributed.get_backend(group) == "nccl"  # which takes no tensors of the CPU
        self._device = torch.device("cuda" if on_gpu else "cpu")

    def add_up(self, tensor: Tensor) -> None:
        """Replaces a tensor, in place, by its sum over all processes."""
        total = tensor.to(self._device)
        distributed.all_reduce(total, group=self._group)
        tensor.copy_(total)

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """Returns the numbers of every process, in the same order in all of them."""
        own = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        everyone = [torch.empty_like(own) for _ in range(distributed.get_world_size(self._group))]
        distributed.all_gather(everyone, own, group=self._group)
        return [each.tolist() for each in everyone]


class Sizes(NamedTuple):
    """What must be the same in all processes that have learned something; 0 stands for any."""

    features: int
    outputs: int
    inputs: int
    network_outputs: int


SIZE_NAMES = ("features", "outputs", "numbers in a sample", "outputs of the network")


def sums_of_all(
    state: RidgeState,
    empty: Callable[[int, int], Moments],
    described: Mapping[str, str],
    processes: Processes,
) -> RidgeState:
    """Adds up what all processes have learned; returns `state` if none has learned anything.

    Args:
        state: What this process has learned, perhaps nothing.
        empty: Makes sums of nothing, for so many features and outputs.
        described: What must be the same in every process, by names that are: also in those that
            have learned nothing, because they will predict with the result.
        processes: The processes.
    """
    require_same_everywhere(described, processes)
    sizes, flats, dtypes = _learned_everywhere(state, processes)
    if not sizes:
        return state
    differing = [
        f"{' or '.join(map(str, sorted(values)))} {name}"
        for name, values in zip(SIZE_NAMES, map(set, zip(*sizes, strict=True)), strict=True)
        if len(values) > 1
    ]
    if differing:
        raise InvalidInputError(
            f"the {len(sizes)} learners have {', '.join(differing)}; expected the same in every "
            "process"
        )
    features, outputs, inputs, network_outputs = sizes[0]
    total = empty(features, outputs)
    _fill(total, total if state.moments is None else state.moments, processes)
    return RidgeState(
        total,
        Form(flat=all(flats), dtype=reduce(torch.promote_types, dtypes)),
        inputs=inputs or None,
        network_outputs=network_outputs or None,
    )


def _learned_everywhere(
    state: RidgeState, processes: Processes
) -> tuple[list[Sizes], list[bool], list[torch.dtype]]:
    """The sizes, axes and types of all processes that have learned something."""
    own = [0] * (3 + len(Sizes._fields))
    dtype = state.form.dtype
    if state.moments is not None and dtype is not None:
        shape = state.moments.features, state.outputs
        sizes = Sizes(*shape, state.inputs or 0, state.network_outputs or 0)
        own = [1, int(state.form.flat), FLOATS.index(dtype), *sizes]
    learned = [numbers for has_learned, *numbers in processes.gather(own) if has_learned]
    return (
        [Sizes(*sizes) for _, _, *sizes in learned],
        [bool(flat) for flat, *_ in learned],
        [FLOATS[dtype] for _, dtype, *_ in learned],
    )


def require_same_everywhere(described: Mapping[str, str], processes: Processes) -> None:
    """Raises the same error in all processes if these texts are not the same in all of them."""
    everyone = processes.gather([_digest(text) for text in described.values()])
    different = [
        name
        for name, digests in zip(described, zip(*everyone, strict=True), strict=True)
        if len(set(digests)) > 1
    ]
    if different:
        raise InvalidInputError(
            f"the learners of the {len(everyone)} processes have different "
            f"{', '.join(different)}; expected the same in every process: give all of them the "
            "same network, seed and options"
        )


def _digest(text: str) -> int:
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:DIGEST_BYTES], "big", signed=True)


def _fill(total: Moments, own: Moments, processes: Processes) -> None:
    """Adds up the sums of all processes about their common means.

    The processes find these first, and move their sums there before they are added, so that
    features far from the origin cost no digits here either.
    """
    weight = own.weight
    numbers = own.mean.new_tensor([getattr(own, name) for name in NUMBERS])
    first = torch.cat([numbers, weight * own.mean, weight * own.target_mean])
    processes.add_up(first)
    numbers = first[: len(NUMBERS)]
    means = first[len(NUMBERS) :] / first[1]
    if own.intercept:
        total.mean = means[: own.features]
        total.target_mean = means[own.features :]
    sums = own.copy()
    sums.add_gap(own.mean - total.mean, own.target_mean - total.target_mean, weight)
    packed = sums.triangle.packed().double()
    total.cross = sums.cross.clone()
    total.power = sums.power.clone()
    total.shared = sums.shared.clone()
    for tensor in (packed, total.cross, total.power, total.shared):
        if tensor.numel():
            processes.add_up(tensor)
    total.triangle = Triangle.of_packed(packed.to(total.precision), total.mean)
    for (name, kind), number in zip(NUMBERS.items(), numbers.tolist(), strict=True):
        setattr(total, name, kind(round(number) if kind is int else number))
