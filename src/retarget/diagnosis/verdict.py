"""The numbers of a diagnosis in plain words, and what to change.

Every sentence says what was measured; a change is recommended only where it was tried and its
effect is clear.
"""

import math
from dataclasses import dataclass

import numpy as np

from retarget.diagnosis.result import (
    Approximation,
    Choice,
    Estimate,
    Evaluation,
    GroupShift,
    LearnerName,
    Verdict,
)
from retarget.diagnosis.stream import TargetKind
from retarget.diagnosis.trials import Trial
from retarget.learners import SGD

WORTHWHILE = 0.05  # the least relative improvement that is recommended
NEAR_LIMIT = 0.8  # of the largest stable rate
STRONG_INTERFERENCE = 0.25  # of a target's length, moved by one other group
FEW_ROWS = 100
ROUNDING = 0.01  # by which the exactly corrected learner's error may differ from the offline one's
POOR_FEATURES = 0.2  # relative error of the shift
NAMES: dict[LearnerName, str] = {
    "offline": "batch",
    "online": "online",
    "corrected": "online on exactly corrected targets",
    "iterative": "online on iteratively corrected targets",
}


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
        approximation: What was given up.
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
    approximation: Approximation | None = None
    failures: tuple[str, ...] = ()


def verdict(evidence: Evidence) -> Verdict:
    """The verdict on what was found."""
    findings = [
        *evidence.failures,
        _errors(evidence),
        _shift(evidence),
        _interference(evidence),
        _rounding(evidence),
        _progressive(evidence),
        _ridge(evidence),
        _approximation(evidence),
    ]
    advice = [
        _diverged(evidence),
        *_tried(evidence),
        _correction(evidence),
        _near_limit(evidence),
        _few_rows(evidence),
        _more_features(evidence),
    ]
    recommendations = tuple(text for text in advice if text)
    nothing = "Nothing that was tried is clearly better: leave the learner as it is."
    return Verdict(
        headline(evidence), tuple(text for text in findings if text), recommendations or (nothing,)
    )


def headline(evidence: Evidence) -> str:
    """One sentence: how far the online model is from the batch model, and what corrects it."""
    excess = evidence.excess
    if math.isnan(evidence.errors["online"].value):
        return f"The online model diverges at lr = {_rate(evidence):.3g}."
    if math.isnan(evidence.errors["offline"].value):
        return "There is no batch model to compare the online model with."
    if math.isnan(excess.value):
        return "The online and the batch model cannot be told apart: neither makes an error."
    if excess.high < 0:
        return (
            f"The online model's error is {percent(-excess.value)} below the batch model's "
            f"({interval(Estimate(-excess.value, -excess.high, -excess.low))})."
        )
    if excess.low <= 0:
        return (
            "The online model is about as good as the batch model: its error differs by "
            f"{percent(excess.value)} ({interval(excess)})."
        )
    above = f"The online model's error is {percent(excess.value)} above the batch model's"
    return f"{above} ({interval(excess)}); {_closing(evidence.closed['iterative'])}."


def _closing(closed: Estimate) -> str:
    if math.isnan(closed.value):
        return "there is no iterative correction to compare with"
    share = f"{percent(closed.value)} ({interval(closed)}) of the gap"
    if closed.low > 0:
        return f"iterative correction closes {share}"
    if closed.high < 0:
        return f"iterative correction widens it, by {percent(-closed.value)} of the gap"
    return f"it is not clear that iterative correction helps: it closes {share}"


def _errors(evidence: Evidence) -> str:
    known = [
        f"{NAMES[learner]} {error.value:.4g}"
        for learner, error in evidence.errors.items()
        if not math.isnan(error.value)
    ]
    rows = "rows held out" if evidence.evaluation != "progressive" else "rows, each before its step"
    return f"Mean squared error on {evidence.compared:,} {rows}: {', '.join(known)}."


def _shift(evidence: Evidence) -> str | None:
    if math.isnan(evidence.shift):
        return None
    what = "class" if evidence.kind == "classification" else "sign (side of the mean)"
    return (
        f"Learning moved the targets by {evidence.shift:.3g} on average, where a target's own "
        f"length is {evidence.target:.3g}; {percent(evidence.changed)} of the rows changed their "
        f"{what}."
    )


def strongest_interference(groups: GroupShift) -> tuple[int, int] | None:
    """The group that was moved most by another one, and that other one."""
    between = np.where(np.eye(len(groups.names), dtype=bool), -np.inf, groups.size)
    if len(groups.names) < 2 or np.isnan(groups.size).any():
        return None
    moved, mover = np.unravel_index(int(between.argmax()), between.shape)
    return int(moved), int(mover)


def _interference(evidence: Evidence) -> str | None:
    pair = strongest_interference(evidence.groups)
    if pair is None or evidence.target == 0:
        return None
    size, pull = evidence.groups.size[pair], evidence.groups.pull[pair]
    if size < STRONG_INTERFERENCE * evidence.target:
        return None
    moved, mover = (evidence.groups.names[place] for place in pair)
    way = "weakening" if pull < 0 else "strengthening"
    return (
        f"Learning '{mover}' moved the targets of '{moved}' by {size:.3g} on average "
        f"({percent(size / evidence.target)} of a target's length), {way} them by {abs(pull):.3g}."
    )


def _rounding(evidence: Evidence) -> str | None:
    offline, corrected = evidence.errors["offline"].value, evidence.errors["corrected"].value
    if math.isnan(offline + corrected) or abs(corrected - offline) <= ROUNDING * offline:
        return None
    return (
        "The exact correction does not survive rounding: on its targets the online learner ends "
        f"with the error {corrected:.4g}, not with the batch model's {offline:.4g}."
    )


def _progressive(evidence: Evidence) -> str | None:
    if evidence.evaluation != "progressive":
        return None
    return (
        "The exactly corrected learner has no score here: its targets know the whole stream, and "
        "it is right only at the end. The iteratively corrected one waits for its block: it is "
        "scored by what it predicts before any row of the block is learned."
    )


def _ridge(evidence: Evidence) -> str | None:
    ridge = evidence.ridge
    if ridge is None or not ridge.automatic or ridge.value == 0:
        return None
    return f"A ridge of {ridge.value:.3g} steadies the iterative correction: it {ridge.how}."


def _approximation(evidence: Evidence) -> str | None:
    given_up = evidence.approximation
    if given_up is None:
        return None
    return (
        f"{given_up.features:,} features stand for the kernel, which would need "
        f"{given_up.exact_memory / 1e9:.1f} GB. On {given_up.sample:,} rows this changes the "
        f"kernel by {percent(given_up.kernel_error)}, the shifts by "
        f"{percent(given_up.shift_error)} and the online predictions by "
        f"{percent(given_up.prediction_error)}."
    )


def _diverged(evidence: Evidence) -> str | None:
    if not math.isnan(evidence.errors["online"].value):
        return None
    if _rate(evidence) > evidence.largest_lr:
        return f"Lower the rate: steps are stable up to lr = {evidence.largest_lr:.3g}."
    return (
        f"Lower the rate: single steps are stable up to lr = {evidence.largest_lr:.3g}, but "
        "together they are not."
    )


def _tried(evidence: Evidence) -> list[str]:
    """Changes that clearly lower the error, the best first."""
    useful = [
        trial
        for trial in evidence.trials
        if trial.effect.value <= -WORTHWHILE and trial.effect.high < 0
    ]
    words = {
        "rate": "Use lr = {:.3g}: its error is",
        "batch": "Use mini-batches of {:.0f} rows at the same rate: the error is",
        "order": "Learn the rows in random order, if you can: the error is",
    }
    return [
        f"{words[trial.change].format(trial.value)} {percent(-trial.effect.value)} lower "
        f"({interval(Estimate(-trial.effect.value, -trial.effect.high, -trial.effect.low))})."
        for trial in sorted(useful, key=lambda trial: trial.effect.value)
    ]


def _correction(evidence: Evidence) -> str | None:
    closed, excess = evidence.closed["iterative"], evidence.excess
    if math.isnan(closed.value):
        if not math.isnan(excess.value) and excess.low <= 0:
            return "No correction is needed: there is no clear gap to close."
        return None
    share = f"{percent(closed.value)} ({interval(closed)}) of the gap"
    if closed.low > 0:
        return f"Train on iteratively corrected targets: they close {share}."
    if closed.high < 0:
        return "Do not use iterative correction as it is: it widens the gap; try a larger block."
    return f"Iterative correction is not clearly worthwhile: it closes {share}."


def _near_limit(evidence: Evidence) -> str | None:
    rate, limit = _rate(evidence), evidence.largest_lr
    if not NEAR_LIMIT * limit < rate:
        return None
    if rate > limit:
        return (
            f"The rate {rate:.3g} is above the largest stable one, {limit:.3g}: some steps make "
            "their own error larger. Lower it."
        )
    return (
        f"The rate {rate:.3g} is {percent(rate / limit)} of the largest stable one, {limit:.3g}: "
        "leave it more room."
    )


def _few_rows(evidence: Evidence) -> str | None:
    if min(evidence.rows, evidence.compared) >= FEW_ROWS:
        return None
    return (
        f"Take these numbers with care: {evidence.rows:,} rows were learned and the models were "
        f"compared on {evidence.compared:,}; {FEW_ROWS} or more of each would tell more."
    )


def _more_features(evidence: Evidence) -> str | None:
    given_up = evidence.approximation
    if given_up is None or not given_up.shift_error > POOR_FEATURES:
        return None
    return (
        "Allow more memory or more features, or diagnose fewer rows: the features change the "
        f"shifts by {percent(given_up.shift_error)}."
    )


def percent(share: float) -> str:
    """A share in words: 31%, 0.4%, 12 times."""
    if math.isnan(share):
        return "an unknown share"
    if abs(share) >= 10:
        return f"{share:,.0f} times"
    return f"{100 * share:.{0 if abs(share) >= 0.0995 else 1}f}%"


def interval(estimate: Estimate) -> str:
    """The range of an estimate in words: 71 to 92%."""
    low, high = percent(estimate.low), percent(estimate.high)
    for unit in ("%", " times"):
        if low.endswith(unit) and high.endswith(unit):
            low = low.removesuffix(unit)
    return f"{low} to {high}"


def _rate(evidence: Evidence) -> float:
    lr = evidence.learner.lr
    return lr if isinstance(lr, float) else max(lr)
