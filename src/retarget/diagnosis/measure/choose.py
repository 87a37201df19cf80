"""Chooses the parameters that the user left open, and runs every learner over the stream."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from retarget.diagnosis.answers import TOO_LARGE, Change, LearnerName
from retarget.diagnosis.measure.trials import (
    ExactCorrection,
    IterativeCorrection,
    Run,
    effective_targets,
    follow,
    learn_corrected,
    learn_online,
    offline_aims,
)
from retarget.diagnosis.options import Auto, DiagnosisOptions
from retarget.diagnosis.result import Choice, KernelUsed
from retarget.errors import NotPositiveDefiniteError, UnreachableTargetsError
from retarget.kernels import RBF, Features, Kernel, Linear, as_kernel
from retarget.kernels.simple import median_distance
from retarget.learners import SGD
from retarget.theory.cholesky import solve_lower, solve_lower_transposed
from retarget.theory.correction import errors_reaching
from retarget.theory.stability import stable_limit
from retarget.theory.stream_kernel import DenseKernel, Offline, StreamKernel

GAMMA_GRID = np.logspace(-7, 6, 40)  # times the mean of k(x, x)
GAMMAS = slice(9, 31)  # tried first, 1e-4 to 1e3; the rest only if the best is at an edge
RATES = 14  # each half of the previous, starting at 90% of the largest stable one
BLOCK_ROWS = 64
FEWEST_BLOCKS = 10
RIDGES = (0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # times the mean of k(x, x)
AIMS = 10.0 ** np.arange(7)  # times the offline learner's ridge, while that gets nearer
AS_NEAR = 0.05  # within this, distances count as equal and the smallest change wins
# The correction of a longer stream is chosen on so many evenly spaced rows. With the whole kernel
# each trial needs a factorization; with features it is cheap, and more rows close more of the gap.
CHOOSING_ROWS, CHOOSING_FEATURE_ROWS = 4000, 160_000
NEAREST = "closest to the batch model with targets of usable size, among"

BETTER_RATE = 0.95  # a rate is tried if its prequential error is below this share
BATCH_FACTOR = 4
# Several random orders are tried, since a single one may be lucky; fewer for a long stream, whose
# rows average luck out, so that all orders together have at most about this many rows.
ORDERS, FEWEST_ORDERS, ORDERED_ROWS = 10, 3, 2_400_000

FOLDS, GROUP_ROWS = 10, 2000  # for a ridge that is chosen on groups left out

LARGEST_EIGENPROBLEM = 1024
NON_NORMALITY_ROWS = 2000
ITERATIONS, PRECISION = 200, 1e-4  # for power iterations


def choose_kernel(options: DiagnosisOptions, X: Tensor) -> tuple[Kernel, KernelUsed]:
    """Returns the kernel, and which one it is."""
    kernel, width = options.kernel, options.width
    name = kernel if isinstance(kernel, str) else None
    if name == "linear":
        return Linear(), KernelUsed("linear")
    if name == "affine":
        return Features(with_constant), KernelUsed("linear", intercept=True)
    if name == "rbf":
        chosen = (median_distance(X) or 1.0) if isinstance(width, str) else width
        return RBF(chosen), KernelUsed("RBF", chosen, automatic=isinstance(width, str))
    known = as_kernel(kernel)
    return known, KernelUsed(repr(known))


def with_constant(X: Tensor) -> Tensor:
    """Appends a 1 to each row, for an intercept."""
    return torch.cat([X, X.new_ones(len(X), 1)], 1)


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
) -> Choice:
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
        return Choice(gamma, False, "given", _table(candidates, scores))
    # tries values beyond the first ones only if the best of these is at an edge
    low, high = GAMMAS.start, GAMMAS.stop
    while low > 0 and scores[low:high].argmin() == 0:
        low -= 1
    while high < len(scores) and scores[low:high].argmin() == high - low - 1:
        high += 1
    candidates, scores = candidates[low:high], scores[low:high]
    left_out = "leave-one-out error" if groups is None else "error on groups left out"
    how = f"smallest {left_out} on {rows:,} rows, among {len(candidates)} values"
    return Choice(float(candidates[scores.argmin()]), True, how, _table(candidates, scores))


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


def largest_rate(kernel: StreamKernel, learner: SGD) -> float:
    """Returns the largest rate at which every step over the stream is stable."""
    curvature = 0.0
    for blocks in kernel.blocks(learner.batch_size):
        scale = 1.0 if learner.reduction == "sum" else 1 / blocks.shape[-1]
        curvature = max(curvature, scale * _largest_eigenvalue(blocks))
    return stable_limit(curvature, learner)


@torch.no_grad()
def non_normality(kernel: StreamKernel, learner: SGD, seed: int) -> float:
    r"""Returns the condition number of the online system $M E = Y$, $M = I + c \circ K^L$.

    All eigenvalues of $M$ are 1, so no single step amplifies anything; a value above 1 is due to
    the interaction of steps. The largest and smallest singular values come from power iterations
    on $M^\top M$ and its inverse, by products and triangular solves. Only the first rows of a long
    stream are used: the inverse of a leading part is the leading part of the inverse, so the result
    is at most the condition number of the whole.
    """
    n = len(kernel)
    if n > NON_NORMALITY_ROWS:
        n = max(1, NON_NORMALITY_ROWS // learner.batch_size) * learner.batch_size
        n = min(n, len(kernel))
    M = kernel.learner(learner).window(kernel.panel(slice(0, n))).coupling.clone()
    if not bool(M.isfinite().all()):
        return math.nan
    M.diagonal().fill_(1.0)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(n, 1, generator=generator, dtype=M.dtype)
    largest = _growth(lambda v: M.mT @ (M @ v), start)
    smallest = _growth(lambda v: solve_lower(M, solve_lower_transposed(M, v)), start)
    condition = math.sqrt(largest) * math.sqrt(smallest)
    return condition if math.isfinite(condition) else math.inf


def _growth(step: Callable[[Tensor], Tensor], start: Tensor) -> float:
    """Returns the largest eigenvalue of a symmetric positive map, by power iteration."""
    v, value = start / start.norm(), 0.0
    for _ in range(ITERATIONS):
        v = step(v)
        before, value = value, v.norm().item()
        if not math.isfinite(value) or value == 0:
            return math.inf
        v = v / value
        if abs(value - before) <= PRECISION * value:
            break
    return value


def _largest_eigenvalue(blocks: Tensor) -> float:
    """Returns the largest eigenvalue of a few symmetric matrices (count, b, b)."""
    if blocks.shape[-1] == 1:
        return blocks.max().item()
    if blocks.shape[-1] <= LARGEST_EIGENPROBLEM:
        return float(torch.linalg.eigvalsh(blocks)[:, -1].max())
    generator = torch.Generator().manual_seed(0)
    start = torch.rand(blocks.shape[-1], 1, generator=generator, dtype=blocks.dtype)
    return max(_growth(block.matmul, start) for block in blocks)


def choose_rate(
    options: DiagnosisOptions,
    kernel: StreamKernel,
    limit: float,
    scales: NDArray[np.float64],
    first_half: bool = False,
) -> Choice:
    """Returns the given rate, or the one with the smallest prequential error.

    `limit` is the largest stable rate and `scales` (c,) are the targets' units. With `first_half`,
    only the first half of the stream is used, so that the choice can be evaluated on the second.
    """
    top = 0.9 * limit if math.isfinite(limit) else 1.0

    def scored(rates: NDArray[np.float64]) -> NDArray[np.float64]:
        jobs = [(replace(options.learner, lr=float(rate)), kernel.Y) for rate in rates]
        runs = learn_online(kernel, jobs, keep_errors=False)
        squares = [run.first_half if first_half else run.squared_error for run in runs]
        return np.array([(square.numpy() * scales**2).mean() for square in squares])

    candidates = top * 0.5 ** np.arange(RATES - 1, -1, -1.0)
    if not options.choose_lr:
        candidates = np.unique(np.append(candidates, options.learner.lr))
    scores = scored(candidates)
    if np.isfinite(scores).any() and np.nanargmin(scores) == 0:
        # only once: if nothing can be learned, the best rate is 0
        lower = candidates[0] * 0.5 ** np.arange(RATES // 2, 0, -1.0)
        candidates, scores = np.append(lower, candidates), np.append(scored(lower), scores)
    tried = _table(candidates, scores)
    if not options.choose_lr:
        return Choice(options.learner.rate(0), False, "given", tried)
    if not np.isfinite(scores).any():
        return Choice(float(candidates[0]), True, "no rate kept the error finite", tried)
    part = " of the first half" if first_half else ""
    how = f"smallest error on each row{part} before it is learned, among {len(scores)} stable rates"
    return Choice(float(candidates[np.nanargmin(scores)]), True, how, tried)


def _table(values: Sequence[float] | NDArray[np.float64], scores: Any) -> pl.DataFrame:
    finite = [float(score) if math.isfinite(score) else None for score in scores]
    schema = {"value": pl.Float64, "score": pl.Float64}
    return pl.DataFrame({"value": list(values), "score": finite}, schema=schema)


class CorrectionChoice(NamedTuple):
    """The parameters of the iterative correction.

    `aims` (n, c) are the offline predictions that it follows; `distance` is the mean squared
    distance of the corrected learner from the offline one on the stream's rows, infinite if no
    targets were finite; `usable` says whether the targets are of a usable size.
    """

    aims: Tensor
    gamma: Choice
    ridge: Choice
    distance: float
    usable: bool


def choose_correction(
    kernel: StreamKernel, learner: SGD, gamma: Choice, block_size: int, ridge: float | Auto
) -> tuple[CorrectionChoice, Offline]:
    """Returns the correction that ends nearest to the offline learner, and that learner.

    An automatically chosen gamma makes the best offline learner, which is often too rough to follow
    block by block: a larger gamma may end nearer to it. A given gamma is not changed. Excessively
    large targets are chosen only if all alternatives have them too. For a long stream, the choice
    is made on evenly spaced rows, with a ridge in proportion to their number.
    """
    most = CHOOSING_ROWS if isinstance(kernel, DenseKernel) else CHOOSING_FEATURE_ROWS
    if len(kernel) <= most:
        return _nearest(kernel, learner, gamma, block_size, ridge)
    few = kernel.part(kernel.spread_rows(most))
    times = len(kernel) / len(few)
    choice, _ = _nearest(few, learner, replace(gamma, value=gamma.value / times), block_size, ridge)
    followed = replace(
        choice.gamma,
        value=times * choice.gamma.value,
        tried=choice.gamma.tried.with_columns(pl.col("value") * times),
    )
    # the recursion that computes the aims ends as the offline learner of that ridge
    aims = offline_aims(kernel, followed.value, block_size)
    return choice._replace(aims=aims, gamma=followed), kernel.offline(gamma.value)


def _nearest(
    kernel: StreamKernel, learner: SGD, gamma: Choice, block_size: int, ridge: float | Auto
) -> tuple[CorrectionChoice, Offline]:
    """Like `choose_correction`, but tries each candidate on all rows of the kernel."""
    aims = offline_aims(kernel, gamma.value, block_size)
    offline = kernel.offline(gamma.value)
    scale, automatic = kernel.mean_diagonal(), isinstance(ridge, str)
    given = [share * scale for share in RIDGES] if isinstance(ridge, str) else [ridge]
    candidates: list[CorrectionChoice] = []
    for value in gamma.value * AIMS:
        if candidates:
            aims = offline_aims(kernel, value, block_size)
        tries = [IterativeCorrection(kernel, learner, aims, r, keep_targets=False) for r in given]
        follow(kernel, tries, block_size)
        distances = _distances(kernel, [one.coefficients for one in tries], offline.coefficients)
        wild = [one.failure is not None or one.size > TOO_LARGE for one in tries]
        unusable, nearest, best = min(zip(wild, distances, given, strict=True))
        how = f"{NEAREST} {len(given)} values" if automatic else "given"
        if automatic and not math.isfinite(nearest):
            best, how = given[-1], "no value kept the targets finite"
        chosen = Choice(best, automatic, how, _table(given, distances))
        followed = replace(gamma, value=float(value))
        candidates.append(CorrectionChoice(aims, followed, chosen, nearest, not unusable))
        before = candidates[-2] if len(candidates) > 1 else None
        # no nearer than the previous one: a smoother one will not be either
        worse = before is not None and before.usable and not nearest < before.distance
        if not gamma.automatic or worse:
            break
        if automatic:
            # the ridge that worked, and none: smoother aims seldom need more
            given = sorted({0.0, best})
    if not gamma.automatic:
        return candidates[0]._replace(gamma=replace(gamma, tried=_table([], []))), offline
    tried = _table([one.gamma.value for one in candidates], [one.distance for one in candidates])
    possible = [one for one in candidates if one.usable] or candidates
    least = min(one.distance for one in possible)
    near = next(one for one in possible if one.distance <= (1 + AS_NEAR) * least)
    how = f"{NEAREST} {len(candidates)} ridges"
    return near._replace(gamma=Choice(near.gamma.value, True, how, tried)), offline


def _distances(kernel: StreamKernel, ends: list[Tensor | None], offline: Tensor) -> list[float]:
    """Returns each predictor's mean squared distance from the offline one on the stream."""
    gaps = [end - offline for end in ends if end is not None]
    if not gaps:
        return [math.inf] * len(ends)
    values = kernel.values(torch.cat(gaps, dim=1)).reshape(len(kernel), len(gaps), -1)
    means = iter(values.square().mean((0, 2)).tolist())
    distances = [math.inf if end is None else next(means) for end in ends]
    return [distance if math.isfinite(distance) else math.inf for distance in distances]


def attempt_changes(
    kernel: StreamKernel, learner: SGD, lr: Choice, seed: int, progressive: bool
) -> dict[tuple[Change, float], Run]:
    """Runs the learner at a better rate (if any), with other batch sizes, and in random orders.

    Several orders are run, since one may be lucky. A progressive evaluation keeps the errors along
    the way and does not change the order: that would change which rows are predicted when.
    """
    changes: dict[tuple[Change, float], SGD] = {}
    better, b = better_rate(lr), learner.batch_size
    if better is not None:
        changes["rate", better] = replace(learner, lr=better)
    for batch in sorted({max(1, b // BATCH_FACTOR), b * BATCH_FACTOR} - {b}):
        if batch <= len(kernel) // BATCH_FACTOR:
            changes["batch", batch] = replace(learner, batch_size=batch)
    jobs = [(other, kernel.Y) for other in changes.values()]
    made = learn_online(kernel, jobs, keep_errors=progressive) if jobs else []
    runs = dict(zip(changes, made, strict=True))
    random = np.random.default_rng(seed)
    orders = min(ORDERS, max(FEWEST_ORDERS, ORDERED_ROWS // len(kernel)))
    for number in range(0 if progressive else orders):
        order = torch.from_numpy(random.permutation(len(kernel)))
        (shuffled,) = learn_online(kernel, [(learner, kernel.Y)], keep_errors=False, order=order)
        runs["order", number] = shuffled
    return runs


def better_rate(lr: Choice) -> float | None:
    """Returns the rate with the smallest prequential error, if it is clearly smaller."""
    tried = lr.tried.drop_nulls()
    if tried.is_empty():
        return None
    value, score = min(tried.iter_rows(), key=lambda row: float(row[1]))
    used = [row[1] for row in tried.iter_rows() if row[0] == lr.value]
    if used and score >= BETTER_RATE * used[0]:
        return None
    return float(value)


@dataclass
class Learned:
    """What each learner learned from the stream, (n, c) each; NaN, with a failure, if it failed.

    `dual` are the online learner's final dual coefficients; `before_blocks` the errors of the
    iteratively corrected learner before each block; `coefficients`, by learner, predict a query
    from its kernel row; `changed` holds runs of the learner with one change.
    """

    online: Run
    dual: Tensor
    effective: Tensor
    corrected: Tensor
    iterative: Tensor
    before_blocks: Tensor | None = None
    iterative_gamma: Choice | None = None
    iterative_ridge: Choice | None = None
    coefficients: dict[LearnerName, Tensor] = field(default_factory=dict)
    changed: dict[tuple[Change, float], Run] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def learn_all(
    kernel: StreamKernel,
    learner: SGD,
    gamma: Choice,
    block_size: int,
    ridge: float | Auto,
    limit: float,
    before_blocks: bool = False,
) -> Learned:
    """Runs every learner; if one fails, the others are still run.

    `limit`, the largest stable rate, is used in messages; `before_blocks` requests the predictions
    of the iteratively corrected learner before each block.
    """
    nothing = torch.full_like(kernel.Y, math.nan)
    (online,) = learn_online(kernel, [(learner, kernel.Y)])
    dual, effective = effective_targets(kernel, online, learner, gamma.value)
    learned = Learned(online, dual, effective, nothing, nothing)
    diverged = (
        f"The online learner diverges: {online.failure}, its error overflows at "
        f"lr = {learner.lr:.4g}; the largest stable rate is {limit:.4g}."
    )
    _note(learned, "online", online, diverged)

    try:
        choice, offline = choose_correction(kernel, learner, gamma, block_size, ridge)
    except NotPositiveDefiniteError as error:
        learned.failures.append(f"There is no batch model and no correction: {error}.")
        return learned
    learned.iterative_gamma, learned.iterative_ridge = choice.gamma, choice.ridge
    learned.coefficients["offline"] = offline.coefficients

    diverged = "The online learner diverges on the {} corrected targets, {}."
    try:
        # the targets that lead the learner to A = A_off / w
        exact = ExactCorrection(kernel, learner, errors_reaching(offline.dual, learner))
    except UnreachableTargetsError as error:
        learned.failures.append(f"There is no exact correction: {error}.")
    else:
        run = learn_corrected(kernel, learner, exact, learner.batch_size)
        learned.corrected = exact.targets
        _note(learned, "corrected", run, diverged.format("exactly", run.failure))

    iterative = IterativeCorrection(kernel, learner, choice.aims, choice.ridge.value)
    run = learn_corrected(kernel, learner, iterative, block_size, before_blocks)
    learned.iterative = iterative.targets
    if iterative.failure:
        learned.failures.append(f"There is no iterative correction: {iterative.failure}.")
    else:
        iterative.warn_if_meaningless()
        learned.before_blocks = run.before_blocks
        _note(learned, "iterative", run, diverged.format("iteratively", run.failure))
    return learned


def _note(learned: Learned, name: LearnerName, run: Run, failure: str) -> None:
    """Stores the coefficients of a learner, or notes why there are none."""
    if run.coefficients is None:
        learned.failures.append(failure)
    else:
        learned.coefficients[name] = run.coefficients
