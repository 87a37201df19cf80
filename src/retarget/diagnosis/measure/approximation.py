"""Features instead of the kernel: whether, how many, and what they change."""

import math
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from retarget.arrays import free_memory
from retarget.diagnosis.kernels.base import Advance, StreamKernel
from retarget.diagnosis.kernels.features import FeatureKernel, FeatureMap, feature_map
from retarget.diagnosis.kernels.full import FullKernel, exact_memory
from retarget.diagnosis.measure.passes import learn_online
from retarget.diagnosis.result import Approximation, Mode
from retarget.errors import InvalidInputError, InvalidTypeError, StreamTooLargeError
from retarget.kernels import Kernel, PrecomputedKernel
from retarget.learners import SGD
from retarget.theory.response import final_response

MOST_MEMORY = 4_000_000_000
# n rows with m features take time in proportion to n m^2: this keeps it at a minute or two.
FEATURE_WORK = 2.7e11
KEPT_SHARE = 0.6  # of the memory, for features that are kept
WINDOW_ROWS = 2000  # rows whose kernel among themselves is a small matter
FEWEST_FEATURES, MOST_FEATURES = 128, 2048
SAMPLE_ROWS = 2000


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


def measure_approximation(
    kernel: Kernel,
    features: FeatureMap,
    X: Tensor,
    Y: Tensor,
    learner: SGD,
    gamma: float,
    needed: int,
    limit: int,
) -> Approximation:
    """Runs the learner on evenly spaced rows of the stream with the kernel and with the features.

    Evenly spaced, so that the sample tells the whole stream's story in its order.

    Args:
        kernel: The kernel.
        features: What takes its place.
        X: (n, d) the stream.
        Y: (n, c) its targets.
        learner: The online learner.
        gamma: The offline learner's ridge.
        needed: Bytes of the exact method.
        limit: Bytes that it may have.
    """
    sample = sample_kernel(kernel, X, Y)
    n, Y, K = len(sample), sample.Y, sample.K
    Phi = features(sample.X)
    near = Phi @ Phi.mT
    shift, predicted = _shift(K, Y, learner, gamma)
    shift_near, predicted_near = _shift((near + near.mT) / 2, Y, learner, gamma)
    return Approximation(
        features=features.size,
        kind=features.kind,
        exact_memory=needed,
        memory_limit=limit,
        sample=n,
        kernel_error=relative_difference(near, K),
        shift_error=relative_difference(shift_near, shift),
        prediction_error=relative_difference(predicted_near, predicted),
    )


def sample_kernel(kernel: Kernel, X: Tensor, Y: Tensor) -> FullKernel:
    """The true kernel of rows evenly spaced over the stream."""
    last, n = len(X) - 1, min(len(X), SAMPLE_ROWS)
    chosen = torch.linspace(0, last, n, dtype=torch.float64).round().long()
    return FullKernel(kernel, X[chosen], Y[chosen], lambda _: None)


def relative_difference(got: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference over that of what was expected."""
    size, gap = (float(torch.linalg.vector_norm(part)) for part in (expected, got - expected))
    return gap / size if size else gap


def _shift(K: Tensor, Y: Tensor, learner: SGD, gamma: float) -> tuple[Tensor, Tensor]:
    """The shift of each row, and what the learner predicts for it before learning it."""
    rows = torch.arange(len(K))
    kernel = FullKernel(PrecomputedKernel(K), rows, Y, lambda _: None)
    (run,) = learn_online(kernel, [(learner, Y)])
    if run.errors is None or run.coefficients is None:
        return torch.full_like(Y, math.nan), torch.full_like(Y, math.nan)
    dual = run.errors.new_tensor(final_response(learner, len(K)))[:, None] * run.errors
    return gamma * dual + K @ dual - Y, Y - run.errors
