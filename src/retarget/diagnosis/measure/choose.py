"""Chooses what the user left open: the kernel's width, block size, ridge and rate."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from retarget.diagnosis.measure.passes import squared_errors_of_rates
from retarget.diagnosis.options import Auto, DiagnosisOptions
from retarget.diagnosis.result import ChosenValue, KernelUsed
from retarget.engine.stream_kernel import StreamKernel
from retarget.kernels import Kernel, as_kernel
from retarget.kernels.lookup import named_class

GAMMA_GRID = np.logspace(-7, 6, 40)  # times the mean of k(x, x)
GAMMAS = slice(9, 31)  # tried first, 1e-4 to 1e3; the rest only if the best is at an edge
RATES = 14  # each half of the previous, starting at 90% of the largest stable one
BLOCK_ROWS = 64
FEWEST_BLOCKS = 10
FOLDS = 10  # for a ridge that is chosen on groups left out
GROUP_ROWS = 2000  # of the stream, for the same


def choose_kernel(options: DiagnosisOptions, X: Tensor) -> tuple[Kernel, KernelUsed]:
    """Returns the kernel, and which one it is."""
    kernel = as_kernel(options.kernel, options.width, X)
    name = kernel.name if named_class(options.kernel) is not None else None
    if name is None:
        return kernel, KernelUsed(repr(kernel))
    width = getattr(kernel, "width", None)
    automatic = width is not None and options.width == "auto"
    return kernel, KernelUsed(name, width, automatic)


def choose_block(block_size: int | Auto, batch_size: int, rows: int) -> int:
    """Returns the given block size, or about 64 rows, at most a tenth of the stream.

    A larger block closes more of the gap, but delays its targets.
    """
    if not isinstance(block_size, str):
        return block_size
    wanted = min(BLOCK_ROWS, rows // FEWEST_BLOCKS)
    return max(1, round(wanted / batch_size)) * batch_size


def choose_gamma(
    options: DiagnosisOptions,
    kernel: StreamKernel,
    scales: NDArray[np.float64],
    groups: np.ndarray | None = None,
) -> ChosenValue:
    """Returns the given ridge, or the one with the smallest error on rows that are left out.

    One row at a time is left out; with `groups` (n,), all rows of some groups at a time, since a
    row says too much about the others of its group.
    """
    gamma = options.gamma
    candidates = GAMMA_GRID * kernel.mean_diagonal()
    if not isinstance(gamma, str):
        candidates = np.sort(np.append(candidates[GAMMAS], gamma))
    tried = torch.from_numpy(candidates)
    if groups is None:
        errors, rows = kernel.leave_one_out(tried, options.seed)
    else:
        errors, rows = leave_groups_out(kernel, groups, tried, options.seed)
    scores = (errors.numpy() * scales**2).mean(axis=1)
    if not isinstance(gamma, str):
        return ChosenValue(gamma, False, "given", tried_values(candidates, scores))
    # tries values beyond the first ones only if the best of these is at an edge
    low, high = GAMMAS.start, GAMMAS.stop
    while low > 0 and scores[low:high].argmin() == 0:
        low -= 1
    while high < len(scores) and scores[low:high].argmin() == high - low - 1:
        high += 1
    candidates = candidates[low:high]
    scores = scores[low:high]
    left_out = "leave-one-out error" if groups is None else "error on groups left out"
    how = f"smallest {left_out} on {rows:,} rows, among {len(candidates)} values"
    return ChosenValue(
        float(candidates[scores.argmin()]), True, how, tried_values(candidates, scores)
    )


def leave_groups_out(
    kernel: StreamKernel, groups: np.ndarray, gammas: Tensor, seed: int
) -> tuple[Tensor, int]:
    r"""Returns (gammas, c) mean squared errors on whole groups left out, and on how many rows.

    Groups are left out in ten folds. With $B = (\gamma I + K)^{-1}$ and $A = B Y$, the errors on
    the rows $F$ of a fold, of the learner that has not seen them, are $B_{FF}^{-1} A_F$.
    """
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(len(kernel))[:GROUP_ROWS])
    few = kernel.dense(torch.from_numpy(rows))
    names, number = np.unique(groups[rows], return_inverse=True)
    fold = torch.from_numpy(rng.permutation(len(names))[number] % FOLDS)
    S, U = torch.linalg.eigh(few.K)
    total = few.Y.new_zeros(len(gammas), few.Y.shape[1])
    for place, gamma in enumerate(gammas):
        scaled = U / (S.clamp(min=0) + gamma)
        A = scaled @ (U.mT @ few.Y)
        for number_of_fold in range(int(fold.max()) + 1):
            F = fold == number_of_fold
            errors = torch.linalg.solve(scaled[F] @ U[F].mT, A[F])
            total[place] += errors.square().sum(0)
    return total / len(few), len(few)


def choose_rate(
    options: DiagnosisOptions,
    kernel: StreamKernel,
    limit: float,
    scales: NDArray[np.float64],
    first_half: bool = False,
) -> ChosenValue:
    """Returns the given rate, or the one with the smallest prequential error.

    `limit` is the largest stable rate and `scales` (c,) are the targets' units. With `first_half`,
    only the first half of the stream is used, so that the choice can be evaluated on the second.
    """
    top = 0.9 * limit if math.isfinite(limit) else 1.0

    def scored(rates: NDArray[np.float64]) -> NDArray[np.float64]:
        squares = squared_errors_of_rates(kernel, options.learner, rates, first_half)
        return np.asarray((squares.numpy() * scales**2).mean(axis=1))

    candidates = top * 0.5 ** np.arange(RATES - 1, -1, -1.0)
    if not options.choose_lr:
        candidates = np.unique(np.append(candidates, options.learner.lr))
    scores = scored(candidates)
    if np.isfinite(scores).any() and np.nanargmin(scores) == 0:
        # only once: if nothing can be learned, the best rate is 0
        lower = candidates[0] * 0.5 ** np.arange(RATES // 2, 0, -1.0)
        candidates = np.append(lower, candidates)
        scores = np.append(scored(lower), scores)
    tried = tried_values(candidates, scores)
    if not options.choose_lr:
        return ChosenValue(options.learner.rate(0), False, "given", tried)
    if not np.isfinite(scores).any():
        return ChosenValue(float(candidates[0]), True, "no rate kept the error finite", tried)
    rows = "each row of the first half" if first_half else "each row"
    how = f"smallest error on {rows} before it is learned, among {len(scores)} stable rates"
    return ChosenValue(float(candidates[np.nanargmin(scores)]), True, how, tried)


def tried_values(values: Sequence[float] | NDArray[np.float64], scores: Any) -> pl.DataFrame:
    """Returns the candidates and their scores; null where a score is not finite."""
    finite = [float(score) if math.isfinite(score) else None for score in scores]
    schema = {"value": pl.Float64, "score": pl.Float64}
    return pl.DataFrame({"value": list(values), "score": finite}, schema=schema)
