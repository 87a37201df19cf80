"""What every learner made of the stream: offline, online, and online on corrected targets."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from retarget.diagnosis.kernels.base import Offline, StreamKernel
from retarget.diagnosis.measure.correction import choose_correction, settling_targets
from retarget.diagnosis.measure.passes import Pass, learn_online, targets_with_errors
from retarget.diagnosis.result import Choice
from retarget.errors import NotPositiveDefiniteError, UnreachableTargetsError
from retarget.learners import SGD
from retarget.theory.correction import errors_reaching
from retarget.theory.response import final_response

WORDS = {"corrected": "exactly corrected", "iterative": "iteratively corrected"}


@dataclass
class Learned:
    """The learners' results, (n, c) each; NaN where there is none, and why.

    Attributes:
        online: The online learner's pass over the true targets.
        dual: Its final dual coefficients.
        effective: Effective targets.
        corrected: Exactly corrected targets.
        iterative: Iteratively corrected targets.
        offline: The offline learner; None if there is none.
        aim: How the ridge of the offline learner that the iterative correction follows was chosen.
        ridge: How the iterative correction's stabiliser was chosen.
        coefficients: By learner, what a query's row is multiplied with; without those that failed.
        failures: What could not be computed, and why, a sentence each.
    """

    online: Pass
    dual: Tensor
    effective: Tensor
    corrected: Tensor
    iterative: Tensor
    offline: Offline | None = None
    aim: Choice | None = None
    ridge: Choice | None = None
    coefficients: dict[str, Tensor] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


@torch.no_grad()
def learn_all(
    kernel: StreamKernel,
    learner: SGD,
    gamma: Choice,
    block_size: int,
    ridge: float | None,
    limit: float,
) -> Learned:
    """Runs every learner. One that fails leaves the others be.

    Args:
        kernel: The stream's kernel.
        learner: The online learner.
        gamma: The offline learner's ridge.
        block_size: Rows corrected together.
        ridge: The iterative correction's stabiliser; None chooses it.
        limit: The largest stable rate, for messages.
    """
    nothing = torch.full_like(kernel.Y, math.nan)
    (online,) = learn_online(kernel, [(learner, kernel.Y)])
    learned = Learned(online, nothing, nothing, nothing, nothing)
    if online.diverged_at is None:
        _effective(learned, kernel, learner, gamma.value)
    else:
        learned.failures.append(
            f"The online learner diverges: from row {online.diverged_at} of the stream on, its "
            f"error is beyond numbers at lr = {learner.lr:.4g}; the largest stable rate is "
            f"{limit:.4g}."
        )
    try:
        choice, learned.offline = choose_correction(kernel, learner, gamma, block_size, ridge)
    except NotPositiveDefiniteError as error:
        learned.failures.append(f"There is no offline learner, and no correction: {error}.")
        return learned
    learned.coefficients["offline"] = learned.offline.coefficients
    _exact(learned, kernel, learner, learned.offline)
    learned.aim, learned.ridge = choice.aim, choice.ridge
    settled = settling_targets(kernel, learner, choice.aims, block_size, choice.ridge.value)
    learned.iterative = settled.targets
    if settled.run is None:
        learned.failures.append(f"There is no iterative correction: {settled.failure}.")
    else:
        _note(learned, "iterative", settled.run)
    return learned


def _effective(learned: Learned, kernel: StreamKernel, learner: SGD, gamma: float) -> None:
    """Y^e = (gamma I + K)(w * E)."""
    online = learned.online
    if online.errors is None or online.coefficients is None:
        return
    weight = online.errors.new_tensor(final_response(learner, len(kernel)))
    learned.coefficients["online"] = online.coefficients
    learned.dual = weight[:, None] * online.errors
    learned.effective = gamma * learned.dual + kernel.values(online.coefficients)


def _exact(learned: Learned, kernel: StreamKernel, learner: SGD, offline: Offline) -> None:
    """The targets that lead the learner to A = A_off / w."""
    try:
        errors = errors_reaching(offline.dual, learner)
    except UnreachableTargetsError as error:
        learned.failures.append(f"There is no exact correction: {error}.")
        return
    learned.corrected, run = targets_with_errors(kernel, learner, errors)
    _note(learned, "corrected", run)


def _note(learned: Learned, name: str, run: Pass) -> None:
    """Keeps what the online learner made of corrected targets."""
    if run.coefficients is not None:
        learned.coefficients[name] = run.coefficients
        return
    learned.failures.append(
        f"The online learner diverges on the {WORDS[name]} targets, from row {run.diverged_at} of "
        "the stream on."
    )
