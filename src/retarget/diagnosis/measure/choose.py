"""What the user left open is chosen, and what other choices would have brought is tried out."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from retarget.arrays import as_positive
from retarget.diagnosis.kernels.base import StreamKernel
from retarget.diagnosis.measure.passes import Pass, learn_online
from retarget.diagnosis.result import Change, Choice
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.kernels import RBF, Kernel, Linear, as_kernel
from retarget.kernels.simple import median_distance
from retarget.learners import SGD

GAMMA_GRID = np.logspace(-4, 3, 22)  # times the mean of k(x, x)
RATES = 14  # each half of the one before, from 90% of the largest stable one
BLOCK_ROWS = 64
FEWEST_BLOCKS = 10
BETTER_RATE = 0.95  # a rate whose prequential error is below this share of the learner's is tried
BATCH_FACTOR = 4


def choose_kernel(kernel: Any, width: float | None, X: Tensor) -> tuple[Kernel, str]:
    """The kernel, and what it is in words."""
    name = kernel if isinstance(kernel, str) else None
    if width is not None and name != "rbf":
        raise InvalidInputError(
            f"width is {width!r} with kernel {kernel!r}; only 'rbf' takes a width: leave it out"
        )
    if name == "linear":
        return Linear(), "linear"
    if name == "rbf":
        if width is not None:
            return RBF(width), f"RBF of width {width:.4g} (given)"
        chosen = median_distance(X) or 1.0
        return RBF(chosen), f"RBF of width {chosen:.4g} (the median distance between rows)"
    known = as_kernel(kernel)
    return known, repr(known)


def choose_gamma(
    gamma: float | str, kernel: StreamKernel, scales: NDArray[np.float64], seed: int
) -> Choice:
    """The offline learner's ridge: given, or the one with the least leave-one-out error."""
    given = _given("gamma", gamma)
    candidates = GAMMA_GRID * (kernel.mean_diagonal() or 1.0)
    if given is not None:
        candidates = np.sort(np.append(candidates, given))
    errors, rows = kernel.leave_one_out(torch.from_numpy(candidates), seed)
    scores = (errors.numpy() * scales**2).mean(axis=1)
    tried = _table(candidates, scores)
    how = f"least leave-one-out error on {rows:,} rows, among {len(candidates)} values"
    if given is not None:
        return Choice(given, False, "given", tried)
    return Choice(float(candidates[scores.argmin()]), True, how, tried)


def choose_rate(
    lr: float | str,
    learner: SGD,
    kernel: StreamKernel,
    limit: float,
    scales: NDArray[np.float64],
) -> Choice:
    """The online learner's rate: given, or the one with the least prequential error.

    Args:
        lr: The rate, or "auto".
        learner: The online learner, whose own rate does not matter here.
        kernel: The stream's kernel.
        limit: The largest stable rate.
        scales: (c,) the targets' units.
    """
    given = _given("lr", lr)
    top = 0.9 * limit if math.isfinite(limit) else 1.0
    candidates = top * 0.5 ** np.arange(RATES - 1, -1, -1.0)
    if given is not None:
        candidates = np.unique(np.append(candidates, given))
    jobs = [(with_rate(learner, float(rate)), kernel.Y) for rate in candidates]
    passes = learn_online(kernel, jobs, keep_errors=False)
    scores = np.array([(run.squared_error.numpy() * scales**2).mean() for run in passes])
    tried = _table(candidates, scores)
    if given is not None:
        return Choice(given, False, "given", tried)
    how = f"least error on each row before it is learned, among {RATES} stable rates"
    if not np.isfinite(scores).any():
        return Choice(float(candidates[0]), True, "no rate kept the error finite", tried)
    return Choice(float(candidates[np.nanargmin(scores)]), True, how, tried)


def with_rate(learner: SGD, lr: float) -> SGD:
    """The same learner at another rate."""
    return SGD(**{**learner.to_dict(), "lr": lr})


def choose_block(block_size: int | None, batch_size: int, rows: int) -> int:
    """Rows corrected together: given, or about 64, and at most a tenth of the stream.

    A larger block closes more of the gap, and waits longer for its targets.
    """
    if block_size is not None:
        return block_size
    wanted = min(BLOCK_ROWS, rows // FEWEST_BLOCKS)
    return max(1, round(wanted / batch_size)) * batch_size


def _given(name: str, value: float | str) -> float | None:
    if isinstance(value, str):
        if value != "auto":
            raise InvalidInputError(f"{name} is {value!r}; expected a number or 'auto'")
        return None
    if np.ndim(value):
        raise InvalidTypeError(f"{name} is {value!r}; expected one number, or 'auto'")
    return as_positive(name, value)


def _table(values: NDArray[np.float64], scores: NDArray[np.float64]) -> pl.DataFrame:
    finite = [float(score) if math.isfinite(score) else None for score in scores]
    return pl.DataFrame(
        {"value": values, "score": finite}, schema={"value": pl.Float64, "score": pl.Float64}
    )


@dataclass(frozen=True)
class Attempt:
    """A trial that has run and is not measured yet."""

    change: Change
    value: float
    run: Pass


def attempt_changes(
    kernel: StreamKernel, learner: SGD, lr: Choice, seed: int, progressive: bool
) -> list[Attempt]:
    """Runs the learner at a better rate (if there is one), with other batches, and shuffled.

    In a progressive evaluation errors on the way are kept, and the order is left as it is: in
    another one, other rows would be predicted.
    """
    changes: list[tuple[Change, float, SGD]] = []
    better = better_rate(lr)
    if better is not None:
        changes.append(("rate", better, with_rate(learner, better)))
    b = learner.batch_size
    changes += [
        ("batch", batch, _with_batch(learner, batch))
        for batch in sorted({max(1, b // BATCH_FACTOR), b * BATCH_FACTOR} - {b})
        if batch <= len(kernel) // BATCH_FACTOR
    ]
    attempts = []
    if changes:
        jobs = [(other, kernel.Y) for _, _, other in changes]
        runs = learn_online(kernel, jobs, keep_errors=progressive)
        attempts = [
            Attempt(change, value, run)
            for (change, value, _), run in zip(changes, runs, strict=True)
        ]
    if progressive:
        return attempts
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(kernel)))
    (shuffled,) = learn_online(kernel, [(learner, kernel.Y)], keep_errors=False, order=order)
    return [*attempts, Attempt("order", seed, shuffled)]


def better_rate(lr: Choice) -> float | None:
    """The rate with the least prequential error, if it is clearly less than at the rate used."""
    tried = lr.tried.drop_nulls()
    if tried.is_empty():
        return None
    value, score = min(tried.iter_rows(), key=lambda row: float(row[1]))
    used = [row[1] for row in tried.iter_rows() if row[0] == lr.value]
    if used and score >= BETTER_RATE * used[0]:
        return None
    return float(value)


def _with_batch(learner: SGD, batch_size: int) -> SGD:
    return SGD(**{**learner.to_dict(), "batch_size": batch_size})
