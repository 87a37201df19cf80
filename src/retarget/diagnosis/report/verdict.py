"""The numbers of a diagnosis in plain words: a headline, what was found, and what to change.

Findings are a sentence each with its numbers, None where there is nothing to say. Of changes, only
what was tried and had a clear effect is recommended.
"""

import math
from dataclasses import dataclass

import numpy as np

from retarget.diagnosis.measure.choose import Trial
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
from retarget.learners import SGD

WORTHWHILE = 0.05  # the least relative improvement that is spoken of
MANY = 10.0  # an error that is so much above another is spoken of as a multiple of it
STRONG_INTERFERENCE = 0.25  # of a target's length, moved by one other group
ROUNDING = 0.01  # by which the exactly corrected learner's error may differ from the offline one's
NAMES: dict[LearnerName, str] = {
    "offline": "batch",
    "online": "online",
    "corrected": "online on exactly corrected targets",
    "iterative": "online on iteratively corrected targets",
}
NEAR_LIMIT = 0.8  # of the largest stable rate
FEW_ROWS = 100
POOR_FEATURES = 0.2  # relative error of the shift


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
        ridge: How the iterative correction's stabiliser was chosen.
        aim: How the ridge of the offline learner that it follows was chosen.
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


def verdict(evidence: Evidence) -> Verdict:
    """The verdict on what was found."""
    text = headline(evidence)
    if evidence.limited_by_features and evidence.approximation is not None:
        known = f"As far as {evidence.approximation.words} can tell"
        text = f"{known}, {text[0].lower()}{text[1:]}"
    return Verdict(text, findings(evidence), recommendations(evidence))


def headline(evidence: Evidence) -> str:
    """One sentence: how far the online model is from the batch model, and what corrects it."""
    excess = evidence.excess
    if math.isnan(evidence.errors["online"].value):
        return f"The online model diverges at lr = {evidence.rate:.3g}."
    if math.isnan(evidence.errors["offline"].value):
        return "There is no batch model to compare the online model with."
    if math.isnan(excess.value):
        return "The online and the batch model cannot be told apart: neither makes an error."
    if excess.high < 0:
        return (
            f"The online model's error is {percent(-excess.value)} below the batch model's "
            f"({interval(opposite(excess))})."
        )
    if excess.low <= 0:
        return (
            "The online model is about as good as the batch model: its error differs by "
            f"{percent(excess.value)} ({interval(excess)})."
        )
    return (
        f"The online model's error is {_above(excess)}; {_closing(evidence.closed['iterative'])}."
    )


def _above(excess: Estimate) -> str:
    if excess.value < MANY:
        return f"{percent(excess.value)} above the batch model's ({interval(excess)})"
    times, low, high = (f"{1 + value:,.0f}" for value in excess)
    return f"{times} times the batch model's ({low} to {high} times)"


def _closing(closed: Estimate) -> str:
    if math.isnan(closed.value):
        return "there is no iterative correction to compare with"
    share = f"{percent(closed.value)} ({interval(closed)}) of the gap"
    if closed.low > 0:
        return f"iterative correction closes {share}"
    if closed.high < 0:
        return f"iterative correction widens it, by {percent(-closed.value)} of the gap"
    return f"it is not clear that iterative correction helps: it closes {share}"


def findings(evidence: Evidence) -> tuple[str, ...]:
    """All of them; what failed comes first."""
    rules = (
        _errors,
        _shift,
        _interference,
        _rounding,
        _progressive,
        _aim,
        _ridge,
        _approximation,
        _limited,
    )
    said = [rule(evidence) for rule in rules]
    return (*evidence.failures, *(text for text in said if text))


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


def _aim(evidence: Evidence) -> str | None:
    aim = evidence.aim
    if aim is None or not aim.automatic or aim.value == evidence.gamma:
        return None
    return (
        f"The iterative correction follows a smoother batch model, of ridge {aim.value:.3g} "
        f"instead of {evidence.gamma:.3g}: it {aim.how}."
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
    stand = (
        f"{given_up.words} are used instead of the kernel matrix, which would need "
        f"{given_up.exact_memory / 1e9:.1f} GB"
    )
    if given_up.exact:
        return f"{stand}: nothing is approximated."
    return (
        f"{stand}. On {given_up.sample:,} rows this changes the "
        f"kernel by {percent(given_up.kernel_error)}, the shifts by "
        f"{percent(given_up.shift_error)} and the online predictions by "
        f"{percent(given_up.prediction_error)}."
    )


def _limited(evidence: Evidence) -> str | None:
    given_up, reference = evidence.approximation, evidence.reference
    if given_up is None or reference is None or not evidence.limited_by_features:
        return None
    less = opposite(reference)
    return (
        f"The features hold the batch model back: with the true kernel, {given_up.sample:,} of the "
        f"rows alone give {percent(less.value)} less error ({interval(less)}). What is said here "
        "is of models made of these features."
    )


def recommendations(evidence: Evidence) -> tuple[str, ...]:
    """What to change, the most useful first."""
    said = [
        _diverged(evidence),
        *_tried(evidence),
        _correction(evidence),
        _near_limit(evidence),
        _few_rows(evidence),
        _more_features(evidence),
    ]
    nothing = "Nothing that was tried is clearly better: leave the learner as it is."
    return tuple(text for text in said if text) or (nothing,)


def _diverged(evidence: Evidence) -> str | None:
    if not math.isnan(evidence.errors["online"].value):
        return None
    if evidence.rate > evidence.largest_lr:
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
        f"({interval(opposite(trial.effect))})."
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
    rate, limit = evidence.rate, evidence.largest_lr
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
    if given_up is None:
        return None
    if not given_up.shift_error > POOR_FEATURES and not evidence.limited_by_features:
        return None
    return (
        f"Take more than {given_up.words}, or diagnose fewer rows exactly: the "
        "features do not stand for the kernel well enough here."
    )
