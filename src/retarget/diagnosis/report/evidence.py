"""What a verdict is made from, and how its numbers are worded."""

import math
from dataclasses import dataclass

from retarget.diagnosis.measure.trials import Trial
from retarget.diagnosis.result import (
    Approximation,
    Choice,
    Estimate,
    Evaluation,
    GroupShift,
    LearnerName,
)
from retarget.diagnosis.stream import TargetKind
from retarget.learners import SGD

WORTHWHILE = 0.05  # the least relative improvement that is spoken of


@dataclass(frozen=True)
class Evidence:
    """What the verdict is made from.

    Attributes:
        evaluation: On which rows the learners were compared.
        kind: Whether targets are numbers or classes.
        rows: How many rows were learned from.
        compared: On how many rows the learners were compared.
        learner: The online learner.
        largest_lr: The largest stable rate.
        errors: Mean squared errors.
        excess: How far the online learner's error is above the offline one's, relative to it.
        closed: The share of that which each correction takes away.
        shift: Mean length of the shift of a row.
        target: Mean length of a row's target.
        changed: Share of the rows whose sign or class was changed.
        groups: How groups shifted each other.
        trials: Changes that were tried.
        ridge: How the iterative correction's stabiliser came about.
        aim: How the ridge of the offline learner that it follows came about.
        gamma: The offline learner's own ridge.
        approximation: What was given up.
        reference: How far the error of an offline learner with the true kernel, on a sample of the
            rows, is above the offline learner's, relative to it; None where nothing stands for it.
        failures: What could not be computed, a sentence each.
    """

    evaluation: Evaluation
    kind: TargetKind
    rows: int
    compared: int
    learner: SGD
    largest_lr: float
    errors: dict[LearnerName, Estimate]
    excess: Estimate
    closed: dict[str, Estimate]
    shift: float
    target: float
    changed: float
    groups: GroupShift
    trials: tuple[Trial, ...] = ()
    ridge: Choice | None = None
    aim: Choice | None = None
    gamma: float = math.nan
    approximation: Approximation | None = None
    reference: Estimate | None = None
    failures: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """The online learner's rate, the largest of a schedule."""
        lr = self.learner.lr
        return lr if isinstance(lr, float) else max(lr)

    @property
    def limited_by_features(self) -> bool:
        """Whether the true kernel does better with a few rows than the features with all."""
        reference = self.reference
        return reference is not None and reference.value <= -WORTHWHILE and reference.high < 0


def percent(share: float) -> str:
    """A share in words: 31%, 0.4%, 12 times."""
    if math.isnan(share):
        return "an unknown share"
    if abs(share) >= 10:
        return f"{share:,.0f} times"
    digits = 0 if abs(share) >= 0.0995 else 1
    return f"{round(100 * share, digits) + 0.0:.{digits}f}%"  # + 0.0: there is no -0%


def interval(estimate: Estimate) -> str:
    """The range of an estimate in words: 71 to 92%."""
    low, high = percent(estimate.low), percent(estimate.high)
    for unit in ("%", " times"):
        if low.endswith(unit) and high.endswith(unit):
            low = low.removesuffix(unit)
    return f"{low} to {high}"


def opposite(estimate: Estimate) -> Estimate:
    """The same with the other sign."""
    return Estimate(-estimate.value, -estimate.high, -estimate.low)
