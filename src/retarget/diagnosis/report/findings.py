"""What was found, a sentence each with its numbers; None where there is nothing to say."""

import math

import numpy as np

from retarget.diagnosis.report.evidence import Evidence, interval, opposite, percent
from retarget.diagnosis.result import GroupShift, LearnerName

STRONG_INTERFERENCE = 0.25  # of a target's length, moved by one other group
ROUNDING = 0.01  # by which the exactly corrected learner's error may differ from the offline one's
NAMES: dict[LearnerName, str] = {
    "offline": "batch",
    "online": "online",
    "corrected": "online on exactly corrected targets",
    "iterative": "online on iteratively corrected targets",
}


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
