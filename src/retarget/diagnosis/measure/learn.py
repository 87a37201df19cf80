"""What every learner made of the stream: offline, online, and online on corrected targets."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from retarget.diagnosis.measure.choose import choose_correction
from retarget.diagnosis.measure.trials import (
    ExactCorrection,
    IterativeCorrection,
    Run,
    effective_targets,
    learn_corrected,
    learn_online,
)
from retarget.diagnosis.result import Change, Choice, LearnerName
from retarget.errors import NotPositiveDefiniteError, UnreachableTargetsError
from retarget.learners import SGD
from retarget.theory.correction import errors_reaching
from retarget.theory.stream_kernel import StreamKernel


@dataclass
class Learned:
    """The learners' results, (n, c) each; NaN where there is none, and why.

    Attributes:
        online: The online learner's run on the true targets.
        dual: Its final dual coefficients.
        effective: Effective targets.
        corrected: Exactly corrected targets.
        iterative: Iteratively corrected targets.
        before_blocks: Errors of the iteratively corrected learner's predictions before each block;
            None where they are not wanted, or there are none.
        aim: How the ridge of the offline learner that the iterative correction follows was chosen.
        ridge: How the iterative correction's stabiliser was chosen.
        coefficients: By learner, what a query's row is multiplied with; without those that failed.
        changed: Runs of the learner with one change, by what was changed and to which value.
        failures: What could not be computed, and why, a sentence each.
    """

    online: Run
    dual: Tensor
    effective: Tensor
    corrected: Tensor
    iterative: Tensor
    before_blocks: Tensor | None = None
    aim: Choice | None = None
    ridge: Choice | None = None
    coefficients: dict[LearnerName, Tensor] = field(default_factory=dict)
    changed: dict[tuple[Change, float], Run] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def learn_all(
    kernel: StreamKernel,
    learner: SGD,
    gamma: Choice,
    block_size: int,
    ridge: float | None,
    limit: float,
    before_blocks: bool = False,
) -> Learned:
    """Runs every learner. Where one fails, the others are run all the same.

    Args:
        kernel: The stream's kernel.
        learner: The online learner.
        gamma: The offline learner's ridge.
        block_size: Rows corrected together.
        ridge: The iterative correction's stabiliser; None chooses it.
        limit: The largest stable rate, for messages.
        before_blocks: Whether the iteratively corrected learner's predictions before each block
            are wanted.
    """
    nothing = torch.full_like(kernel.Y, math.nan)
    (online,) = learn_online(kernel, [(learner, kernel.Y)])
    dual, effective = effective_targets(kernel, online, learner, gamma.value)
    learned = Learned(online, dual, effective, nothing, nothing)
    diverged = (
        f"The online learner diverges: {online.failure}, its error is beyond numbers at "
        f"lr = {learner.lr:.4g}; the largest stable rate is {limit:.4g}."
    )
    _note(learned, "online", online, diverged)

    try:
        choice, offline = choose_correction(kernel, learner, gamma, block_size, ridge)
    except NotPositiveDefiniteError as error:
        learned.failures.append(f"There is no offline learner, and no correction: {error}.")
        return learned
    learned.aim, learned.ridge = choice.aim, choice.ridge
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
    """Keeps what a learner ended with, or says why there is nothing."""
    if run.coefficients is None:
        learned.failures.append(failure)
    else:
        learned.coefficients[name] = run.coefficients
