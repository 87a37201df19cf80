"""Runs every learner over the stream: online, offline, corrected, and with one change."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from retarget.diagnosis.answers import LearnerName, Predictor
from retarget.diagnosis.measure.choose_correction import choose_correction
from retarget.diagnosis.measure.passes import (
    IterativeCorrection,
    Job,
    OnlineRun,
    Probe,
    effective_targets,
    exact_correction,
    learn_online,
    unknown,
)
from retarget.diagnosis.measure.recall import ORDERS_AT_THE_END, Fold, FoldAnswers
from retarget.diagnosis.options import Auto
from retarget.diagnosis.result import ChosenValue
from retarget.engine.followers import Exact, Following, follow
from retarget.engine.stream_kernel import StreamKernel
from retarget.errors import NotPositiveDefiniteError, UnreachableTargetsError
from retarget.learners import SGD

BETTER_RATE = 0.95  # a rate is tried if its prequential error is below this share
BATCH_FACTOR = 4


def other_learners(rows: int, learner: SGD, lr: ChosenValue) -> dict[Predictor, SGD]:
    """Returns the learner at a better rate (if any), and with other batch sizes."""
    others: dict[Predictor, SGD] = {}
    better = better_rate(lr)
    if better is not None:
        others["rate", better] = replace(learner, lr=better)
    size = learner.batch_size
    for batch in sorted({max(1, size // BATCH_FACTOR), size * BATCH_FACTOR} - {size}):
        if batch <= rows // BATCH_FACTOR:
            others["batch", batch] = replace(learner, batch_size=batch)
    return others


def attempt_orders(
    kernel: StreamKernel,
    learner: SGD,
    seed: int,
    answers: FoldAnswers | None,
    progressive: bool,
) -> dict[Predictor, OnlineRun]:
    """Runs the learner in random orders: several, since one may be lucky.

    A progressive evaluation does not change the order: that would change which rows are predicted
    when.
    """
    rng = np.random.default_rng([seed, 0])
    if answers is not None:
        answers.orders = answers.fold.in_random_orders(learner, rng, last=True)
        ends = answers.orders.ends
    elif progressive:
        ends = []
    else:
        ends = [_in_random_order(kernel, learner, rng) for _ in range(ORDERS_AT_THE_END)]
    return {("order", float(number)): run for number, run in enumerate(ends)}


def _in_random_order(kernel: StreamKernel, learner: SGD, rng: np.random.Generator) -> OnlineRun:
    order = torch.from_numpy(rng.permutation(len(kernel)))
    (run,) = learn_online(kernel, [Job(learner, kernel.Y, keep_errors=False)], order)
    return run


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
    from its kernel row; `changed` holds runs of the learner with one change; `answers` is what was
    said about rows of the whole stream, if some are held out.
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
    changed: dict[Predictor, OnlineRun] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    answers: FoldAnswers | None = None


def learn_all(
    kernel: StreamKernel,
    learner: SGD,
    gamma: ChosenValue,
    block_size: int,
    ridge: float | Auto,
    limit: float,
    fold: Fold | None = None,
    others: dict[Predictor, SGD] | None = None,
    progressive: bool = False,
) -> LearnedStream:
    """Runs every learner; if one fails, the others are still run.

    `limit`, the largest stable rate, is used in messages; the rows of `fold` are asked about on the
    way; `others` are the learner with one change. A `progressive` evaluation keeps what they and
    the iteratively corrected learner predict along the way, the latter before each block.
    """
    others = {} if others is None else others
    nothing = unknown(kernel)
    probe: Probe | None = None
    answers: FoldAnswers | None = None
    probes: dict[Predictor, Probe] = {}
    if fold is not None:
        probe, later = fold.whole_probe()
        answers = FoldAnswers(fold, probe, later)
        probes = {change: fold.probe() for change in others}
    jobs = [Job(learner, kernel.Y, probe)]
    for change, other in others.items():
        jobs.append(Job(other, kernel.Y, probes.get(change), keep_errors=progressive))
    online, *changed = learn_online(kernel, jobs)
    if answers is not None:
        answers.note_online()
    dual, effective = effective_targets(kernel, online, learner, gamma.value)
    learned = LearnedStream(online, dual, effective, nothing, nothing, answers=answers)
    learned.changed = dict(zip(others, changed, strict=True))
    diverged = (
        f"The online learner diverges: {online.failure}, its error overflows at "
        f"lr = {learner.lr:.4g}; the largest stable rate is {limit:.4g}."
    )
    _note(learned, "online", online, diverged)
    _learn_corrected(kernel, learned, learner, gamma, block_size, ridge, progressive)
    if answers is not None:
        answers.said |= {change: one.predictions.numpy() for change, one in probes.items()}
    return learned


def _learn_corrected(
    kernel: StreamKernel,
    learned: LearnedStream,
    learner: SGD,
    gamma: ChosenValue,
    block_size: int,
    ridge: float | Auto,
    before_blocks: bool,
) -> None:
    """Chooses the correction, and runs the learner on exact and on iterative targets."""
    answers = learned.answers
    try:
        choice, offline = choose_correction(kernel, learner, gamma, block_size, ridge)
    except NotPositiveDefiniteError as error:
        learned.failures.append(f"There is no batch model and no correction: {error}.")
        return
    learned.iterative_gamma = choice.gamma
    learned.iterative_ridge = choice.ridge
    learned.coefficients["offline"] = offline.coefficients
    if answers is not None:
        answers.said["offline"] = answers.fold.batch_predictions(gamma.value)

    # the targets that lead the learner to A = A_off / w
    exact: Exact | None = None
    try:
        exact = exact_correction(kernel, learner, offline.dual)
    except UnreachableTargetsError as error:
        learned.failures.append(f"There is no exact correction: {error}.")
    iterative = IterativeCorrection(kernel, learner, choice.aims, choice.ridge.value)
    probe = None if answers is None else answers.fold.block_probe(block_size)
    on_iterative = OnlineRun(
        kernel, learner, iterative.targets, before_blocks=before_blocks, probe=probe
    )
    followers: list[Following] = [iterative, on_iterative]
    on_exact: OnlineRun | None = None
    if exact is not None:
        on_exact = OnlineRun(kernel, learner, exact.targets)
        followers += [exact, on_exact]
    follow(kernel.windows(block_size, keeping=followers), followers)

    diverged = "The online learner diverges on the {} corrected targets, {}."
    if exact is not None and on_exact is not None:
        learned.corrected = exact.targets
        _note(learned, "corrected", on_exact, diverged.format("exactly", on_exact.failure))
        if answers is not None and on_exact.coefficients is not None:
            # right only at the end: its targets depend on the whole stream
            answers.said["corrected"] = answers.fold.end_predictions(on_exact.coefficients)
    learned.iterative = iterative.targets
    if iterative.failure:
        learned.failures.append(f"There is no iterative correction: {iterative.failure}.")
    else:
        iterative.warn_if_meaningless()
        learned.before_blocks = on_iterative.before_blocks
        if answers is not None and probe is not None:
            answers.said["iterative"] = probe.predictions.numpy()
        failure = diverged.format("iteratively", on_iterative.failure)
        _note(learned, "iterative", on_iterative, failure)


def _note(learned: LearnedStream, name: LearnerName, run: OnlineRun, failure: str) -> None:
    """Stores the coefficients of a learner, or notes why there are none."""
    if run.coefficients is None:
        learned.failures.append(failure)
    else:
        learned.coefficients[name] = run.coefficients
