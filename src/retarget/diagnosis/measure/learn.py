"""Runs every learner over the stream: online, offline, corrected, and with one change."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from retarget.diagnosis.answers import Change, LearnerName
from retarget.diagnosis.measure.choose_correction import choose_correction
from retarget.diagnosis.measure.passes import (
    ExactCorrection,
    IterativeCorrection,
    OnlineRun,
    effective_targets,
    learn_corrected,
    learn_online,
)
from retarget.diagnosis.options import Auto
from retarget.diagnosis.result import ChosenValue
from retarget.errors import NotPositiveDefiniteError, UnreachableTargetsError
from retarget.learners import SGD
from retarget.theory.correction import errors_reaching
from retarget.theory.stream_kernel import StreamKernel

BETTER_RATE = 0.95  # a rate is tried if its prequential error is below this share
BATCH_FACTOR = 4
# Several random orders are tried, since a single one may be lucky; fewer for a long stream, whose
# rows average luck out, so that all orders together have at most about this many rows.
ORDERS, FEWEST_ORDERS, ORDERED_ROWS = 10, 3, 2_400_000


def attempt_changes(
    kernel: StreamKernel, learner: SGD, lr: ChosenValue, seed: int, progressive: bool
) -> dict[tuple[Change, float], OnlineRun]:
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


def better_rate(lr: ChosenValue) -> float | None:
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
class LearnedStream:
    """What each learner learned from the stream, (n, c) each; NaN, with a failure, if it failed.

    `dual` are the online learner's final dual coefficients; `before_blocks` the errors of the
    iteratively corrected learner before each block; `coefficients`, by learner, predict a query
    from its kernel row; `changed` holds runs of the learner with one change.
    """

    online: OnlineRun
    dual: Tensor
    effective: Tensor
    corrected: Tensor
    iterative: Tensor
    before_blocks: Tensor | None = None
    iterative_gamma: ChosenValue | None = None
    iterative_ridge: ChosenValue | None = None
    coefficients: dict[LearnerName, Tensor] = field(default_factory=dict)
    changed: dict[tuple[Change, float], OnlineRun] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def learn_all(
    kernel: StreamKernel,
    learner: SGD,
    gamma: ChosenValue,
    block_size: int,
    ridge: float | Auto,
    limit: float,
    before_blocks: bool = False,
) -> LearnedStream:
    """Runs every learner; if one fails, the others are still run.

    `limit`, the largest stable rate, is used in messages; `before_blocks` requests the predictions
    of the iteratively corrected learner before each block.
    """
    nothing = torch.full_like(kernel.Y, math.nan)
    (online,) = learn_online(kernel, [(learner, kernel.Y)])
    dual, effective = effective_targets(kernel, online, learner, gamma.value)
    learned = LearnedStream(online, dual, effective, nothing, nothing)
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


def _note(learned: LearnedStream, name: LearnerName, run: OnlineRun, failure: str) -> None:
    """Stores the coefficients of a learner, or notes why there are none."""
    if run.coefficients is None:
        learned.failures.append(failure)
    else:
        learned.coefficients[name] = run.coefficients
