"""Exact or through features: decided by the memory that the exact method would take."""

import math
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from retarget.arrays import free_memory
from retarget.diagnosis.kernels.base import Advance, StreamKernel
from retarget.diagnosis.kernels.feature_maps import FeatureMap, feature_map
from retarget.diagnosis.kernels.features import FeatureKernel
from retarget.diagnosis.kernels.full import FullKernel, exact_memory
from retarget.diagnosis.result import Mode
from retarget.errors import InvalidInputError, InvalidTypeError, StreamTooLargeError
from retarget.kernels import Kernel

MOST_MEMORY = 4_000_000_000
# n rows with m features take time in proportion to n m^2: this keeps it at a minute or two.
FEATURE_WORK = 2.7e11
KEPT_SHARE = 0.6  # of the memory, for features that are kept
WINDOW_ROWS = 2000  # rows whose kernel among themselves is a small matter
FEWEST_FEATURES, MOST_FEATURES = 128, 2048


@dataclass(frozen=True)
class Opened:
    """The kernel of a stream, in one of the modes.

    Attributes:
        kernel: The kernel of the stream.
        features: What stands for the kernel in mode "features".
        memory: Bytes that the exact method needs, and bytes that it may have.
    """

    kernel: StreamKernel
    features: FeatureMap | None
    memory: tuple[int, int]


def open_kernel(
    kernel: Kernel,
    X: Tensor,
    Y: Tensor,
    *,
    mode: str,
    features: int | None,
    memory: int | None,
    batch_size: int,
    seed: int,
    advance: Advance,
) -> Opened:
    """The kernel of the stream, exact where memory allows (or as wanted)."""
    if mode not in ("auto", *get_args(Mode)):
        raise InvalidInputError(f"mode is {mode!r}; expected 'auto', 'exact' or 'features'")
    limit = memory_limit(memory)
    needed = exact_memory(len(X), X.shape[1], Y.shape[1])
    if mode == "exact" and needed > limit:
        raise StreamTooLargeError(
            f"the exact method on {len(X):,} rows needs {needed / 1e9:.1f} GB, and may have "
            f"{limit / 1e9:.1f} GB; use mode 'features', fewer rows, or allow more memory"
        )
    if mode == "exact" or (mode == "auto" and needed <= limit):
        return Opened(FullKernel(kernel, X, Y, advance), None, (needed, limit))
    batch = min(batch_size, len(X))
    if batch > WINDOW_ROWS and 32 * batch**2 > limit:
        raise StreamTooLargeError(
            f"mini-batches of {batch:,} rows need {32 * batch**2 / 1e9:.1f} GB, and may have "
            f"{limit / 1e9:.1f} GB; use a smaller batch_size, or allow more memory"
        )
    chosen = feature_map(kernel, X, feature_count(features, len(X)), seed)
    room = int(KEPT_SHARE * limit)
    return Opened(FeatureKernel(chosen, X, Y, advance, room), chosen, (needed, limit))


def memory_limit(memory: int | None) -> int:
    """Bytes that the exact method may take: given, or half of what is free, at most 4 GB."""
    if memory is None:
        free = free_memory(torch.device("cpu"))
        return MOST_MEMORY if free is None else min(MOST_MEMORY, free // 2)
    if isinstance(memory, bool) or not isinstance(memory, int | float):
        raise InvalidTypeError(f"memory is {memory!r}; expected a number of bytes")
    if not memory > 0:
        raise InvalidInputError(f"memory is {memory}; expected a positive number of bytes")
    return int(memory)


def feature_count(features: int | None, n: int) -> int:
    """Number of Nyström features: given, or the power of two that n rows have time for."""
    if features is None:
        affordable = int(2 ** math.floor(math.log2(FEATURE_WORK / n) / 2))
        return min(max(FEWEST_FEATURES, affordable), MOST_FEATURES)
    if isinstance(features, bool) or not isinstance(features, int):
        raise InvalidTypeError(f"features is {features!r}; expected a whole number")
    if features < 2:
        raise InvalidInputError(f"features is {features}; expected 2 or more")
    return features
