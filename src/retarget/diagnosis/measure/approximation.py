"""Opens the kernel of the stream, exactly or through features, and measures what these change.

The inner products of the features equal the kernel, or approximate it. If a kernel has no features
of its own, Nystroem features are computed from random rows of the stream. (For the RBF kernel,
orthogonal random Fourier features were tried: with 512 of them on 20 dimensions the shifts were
wrong by 26%, with 512 Nystroem features by 4%.)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from retarget.arrays import free_memory
from retarget.diagnosis.measure.holdout import Split, as_tensors
from retarget.diagnosis.measure.passes import Job, effective_targets, learn_online
from retarget.diagnosis.options import Auto, DiagnosisOptions
from retarget.diagnosis.result import Approximation
from retarget.diagnosis.spelling import spelled
from retarget.engine.stream_kernel import (
    DENSE_LEAVE_ONE_OUT_ROWS,
    DenseKernel,
    FeatureKernel,
    StreamKernel,
)
from retarget.errors import StreamTooLargeError
from retarget.kernels import Kernel
from retarget.kernels.feature_maps import FeatureMap, feature_map, nystroem_map
from retarget.learners import SGD
from retarget.row_files import RowFiles

MOST_MEMORY = 4_000_000_000
MOST_EXACT_ROWS = 12_000  # unless mode is "exact": the time grows as the cube of the rows
# n rows with m features take time in proportion to n m^2: this keeps it at a minute or two.
FEATURE_WORK = 1e11
FEATURE_STEP = 128
KEPT_SHARE = 0.6  # share of the memory for features that are kept
WINDOW_ROWS = 2000  # the kernel of so many rows is small
FEWEST_FEATURES = 128
MOST_FEATURES = 1536  # with 2,048, twenty thousand rows take two thirds longer
SAMPLE_ROWS = 2000


def choose_features(
    kernel: Kernel, X: Tensor, size: int, seed: int, files: RowFiles | None = None
) -> FeatureMap:
    """Returns the kernel's own features if there are few enough, else Nystroem's.

    X may be in files.
    """
    if kernel.exact_features:
        own = feature_map(kernel)
        if own(X[:1]).shape[1] <= max(size, X.shape[1]):
            return own
    chosen = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed), device="cpu")[
        :size
    ]
    rows = chosen.sort().values
    return nystroem_map(kernel, X[rows] if files is None else files.taken(X, rows))


@dataclass(frozen=True)
class Opened:
    """The kernel of a stream, and the bytes that the exact method needs and may use.

    With features: also the features that replace the kernel, and the true kernel of a sample
    of rows, evenly spaced over the stream. `whole` is the kernel of all rows but the next ones, if
    they are held out in several folds.
    """

    kernel: StreamKernel
    needed: int
    limit: int
    features: FeatureMap | None = None
    sample: DenseKernel | None = None
    whole: StreamKernel | None = None


def open_kernel(
    kernel: Kernel, parted: Split, options: DiagnosisOptions, advance: Callable[[int], None]
) -> Opened:
    """Opens the kernel of the stream: exact if memory allows, or as the options say."""
    X, Y = as_tensors(parted.stream)
    files = None if parted.on_disk is None else parted.on_disk.files
    limit = memory_limit(options.max_memory)
    if files is not None:  # it decides which features are kept, in single precision
        limit = files.journal.same_number(limit)
    needed = exact_memory(len(X), X.shape[1], Y.shape[1])
    if options.features is None and needed > limit:
        raise StreamTooLargeError(
            f"the exact method on {len(X):,} rows needs {needed / 1e9:.1f} GB and may use "
            f"{limit / 1e9:.1f} GB; use features, {spelled('features', 'auto')}, or fewer rows, or "
            f"allow more memory by {spelled('max_memory')}"
        )
    fits = needed <= limit and len(X) <= MOST_EXACT_ROWS and parted.on_disk is None
    if options.features is None or (options.features == "auto" and fits):
        if parted.past is None or len(parted.folds) <= 1 or folds_memory(len(parted.past)) > limit:
            return Opened(DenseKernel(kernel, X, Y, advance), needed, limit)
        # their whole kernel is computed once, and each fold takes its part of it
        all_rows = DenseKernel(kernel, *as_tensors(parted.past))
        learned = all_rows.part(torch.from_numpy(parted.learned_in(0)))
        learned.follow_with(advance)
        return Opened(learned, needed, limit, whole=all_rows)
    batch = min(options.learner.batch_size, len(X))
    if batch > WINDOW_ROWS and 32 * batch**2 > limit:
        raise StreamTooLargeError(
            f"mini-batches of {batch:,} rows need {32 * batch**2 / 1e9:.1f} GB and may use "
            f"{limit / 1e9:.1f} GB; use a smaller {spelled('batch_size')}, or "
            f"allow more memory by {spelled('max_memory')}"
        )
    files = None if parted.on_disk is None else parted.on_disk.files
    count = feature_count(options.features, len(X))
    features = choose_features(kernel, X, count, options.seed, files)
    # Nystroem features are an approximation anyway, and may be stored with less precision
    room = int(KEPT_SHARE * limit) if not features.exact else 0
    opened = FeatureKernel(features, X, Y, advance, room, files)
    spread = opened.spread_rows(SAMPLE_ROWS)
    sample = DenseKernel(kernel, opened.taken(X, spread), opened.taken(Y, spread))
    whole = None
    if parted.past is not None and len(parted.folds) > 1:
        whole = opened.of(*as_tensors(parted.past))
    return Opened(opened, needed, limit, features, sample, whole)


def exact_memory(n: int, dimensions: int, outputs: int) -> int:
    r"""Returns the bytes that the exact method needs for `n` rows.

    $8 n^2$ for the kernel, $4 n^2$ for its Cholesky factor, $8 n (d + 48 c + 1024)$ for rows,
    results, the shift by 31 groups and temporary panels, and $32 \min(n, 2000)^2$ for
    the leave-one-out error.
    """
    beside = 8 * n * (dimensions + 48 * outputs + 1024)
    return 12 * n**2 + beside + 32 * min(n, DENSE_LEAVE_ONE_OUT_ROWS) ** 2


def folds_memory(n: int) -> int:
    """Returns the bytes that the kernel of all rows needs, with copies of it for two folds."""
    return 36 * n**2


def memory_limit(max_memory: float | str) -> int:
    """Returns the given number of bytes, or half of the free memory, at most 4 GB."""
    if not isinstance(max_memory, str):
        return int(max_memory)
    free = free_memory(torch.device("cpu"))
    return MOST_MEMORY if free is None else min(MOST_MEMORY, free // 2)


def feature_count(features: int | Auto, n: int) -> int:
    """Returns the given number of Nyström features, or as many as are quick for n rows."""
    if not isinstance(features, str):
        return features
    affordable = round(math.sqrt(FEATURE_WORK / n) / FEATURE_STEP) * FEATURE_STEP
    return min(max(FEWEST_FEATURES, affordable), MOST_FEATURES)


def measure_approximation(opened: Opened, learner: SGD, gamma: float) -> Approximation | None:
    """Compares the learner with the kernel to the learner with features, on the sample.

    The sample is evenly spaced, so it covers the whole stream in order. None without features.
    """
    features = opened.features
    sample = opened.sample
    if features is None or sample is None:
        return None
    Phi = features(sample.X)
    near = Phi @ Phi.mT
    symmetric = DenseKernel(lambda _: (near + near.mT) / 2, sample.X, sample.Y)
    shift, predicted = _shift(sample, learner, gamma)
    shift_near, predicted_near = _shift(symmetric, learner, gamma)
    return Approximation(
        features=Phi.shape[1],
        kind="own" if features.exact else "nystroem",
        exact_memory=opened.needed,
        memory_limit=opened.limit,
        sample=len(sample),
        kernel_error=relative_difference(near, sample.K),
        shift_error=relative_difference(shift_near, shift),
        prediction_error=relative_difference(predicted_near, predicted),
    )


def relative_difference(got: Tensor, expected: Tensor) -> float:
    """Returns the root mean square of the difference, relative to that of the expected values."""
    size, gap = (float(torch.linalg.vector_norm(values)) for values in (expected, got - expected))
    return gap / size if size else gap


def _shift(kernel: DenseKernel, learner: SGD, gamma: float) -> tuple[Tensor, Tensor]:
    """Returns the shift of each row, and the prediction for it before it is learned."""
    (run,) = learn_online(kernel, [Job(learner, kernel.Y)])
    effective = effective_targets(kernel, run, learner, gamma)[1]
    predicted = torch.full_like(kernel.Y, math.nan) if run.errors is None else kernel.Y - run.errors
    return effective - kernel.Y, predicted
