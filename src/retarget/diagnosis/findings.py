"""Finds what the numbers of a diagnosis say, as typed values; `report.sentences` words them.

Every finding follows from a number with its interval. What an interval cannot tell is "not clear",
never "equal". A change is recommended only if it was tried and clearly helped on rows that took no
part in choosing it, and only if there are enough of them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from retarget.diagnosis.answers import (
    DIVERGED,
    TOO_LARGE,
    UNKNOWN,
    Answer,
    Baseline,
    Estimate,
    LearnerName,
    Question,
)
from retarget.diagnosis.facts import (
    POINTS,
    WORTHWHILE,
    Standing,
    clear_gain,
    compared,
    enough,
    evidence,
    inverted,
    judged,
)
from retarget.diagnosis.measure.holdout import ENOUGH
from retarget.diagnosis.result import Diagnosis, GroupShift, ModelDiagnosis

STRONG_INTERFERENCE = 0.25  # movement by one other group, as a share of a target's length
ROUNDING = 0.01  # difference allowed between exactly corrected and batch predictions
NEAR_LIMIT = 0.8  # share of the largest stable rate
POOR_FEATURES = 0.2  # relative error of the shift
HIDDEN = 2.0  # progressive validation hides an error that is this many times its own

CORRECTIONS: tuple[LearnerName, ...] = ("corrected", "iterative")
FindingKind = Literal[
    "failure", "adding up", "few rows", "unseen classes", "diverged", "no batch model",
    "bad batch model", "alternative", "baseline wins", "nothing learned", "standing",
    "forgetting", "order cost", "one-pass cost", "drift", "hidden", "shift", "interference",
    "rounding", "large targets", "smoother", "ridge", "features", "poor features", "trial",
    "correction", "gap closed", "batch", "near limit", "model log", "model diverged",
    "model movement", "model agreement", "model trial", "model closed", "model large targets",
]  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """Something that a diagnosis found.

    Attributes:
        kind: What it is about.
        question: The rows that it was found on; None if it is about the stream itself.
        value: The number that was found, such as the online learner's loss.
        against: The number it is compared with, such as the batch model's loss.
        effect: Their difference, relative to `against`, with its interval.
        standing: What the interval says: clearly behind or ahead, level within a tenth (or two
            points of accuracy), or not clear.
        subject: What it was found about: a learner, a change, a baseline, a group.
        other: What it is compared with, if that needs a name.
    """

    kind: FindingKind
    question: Question | None = None
    value: float = math.nan
    against: float = math.nan
    effect: Estimate = UNKNOWN
    standing: Standing | None = None
    subject: str = ""
    other: str = ""


def findings(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """Returns everything that a diagnosis found, in the order in which it is told."""
    found = [Finding("failure", subject=text) for text in diagnosis.failures]
    found += [Finding("adding up", subject=column) for column in diagnosis.stream.adding_up]
    for answer in diagnosis.answers:
        found += _of_answer(diagnosis, answer)
    for part in (_of_memory, _of_time, _of_movements, _of_correction, _of_features, _of_rate):
        found += part(diagnosis)
    if diagnosis.model is not None:
        found += _of_model(diagnosis, diagnosis.model)
    return tuple(found)


def _of_answer(diagnosis: Diagnosis, answer: Answer) -> Iterator[Finding]:
    """Yields what was found on one set of held-out rows."""
    question, constant = answer.question, answer.baselines[0]
    batch, online = (answer.score(name).loss.value for name in ("offline", "online"))
    for name in answer.unseen:
        yield Finding("unseen classes", question, subject=name)
    if answer.rows < ENOUGH:
        yield Finding("few rows", question, value=answer.rows, against=ENOUGH)
    if diagnosis.diverged:
        error = answer.score("online").error.value
        yield Finding("diverged", question, error, diagnosis.stream.variance)
        return
    if math.isnan(batch):
        yield Finding("no batch model", question)
        return
    simple, closest = constant.loss.value, min(online, batch)
    comparison = compared(answer)
    if comparison.bad_batch_model:
        yield Finding(
            "bad batch model",
            question,
            value=batch,
            against=simple,
            effect=constant.batch,
            standing="behind",
            subject=constant.kind,
        )
    winner = winning_baseline(answer) if enough(answer) else None
    if winner is not None:
        effect = min(winner.online, winner.batch, key=lambda effect: effect.value)
        losses, kind = (winner.loss.value, closest), winner.kind
        yield Finding("baseline wins", question, *losses, effect, subject=kind)
    elif enough(answer) and not comparison.beats_constant:
        yield Finding("nothing learned", question, closest, simple, constant.batch)
    yield Finding(
        "standing",
        question,
        value=online,
        against=batch,
        effect=answer.excess,
        standing=comparison.standing,
        subject="online",
        other="offline",
    )
    for trial in answer.trials:
        yield Finding(
            "trial",
            question,
            trial.value,
            effect=trial.effect,
            standing=judged(trial.effect, WORTHWHILE),
            subject=trial.change,
        )
    for name in CORRECTIONS:
        loss, effect = answer.score(name).loss.value, answer.effect[name]
        stands = judged(effect, WORTHWHILE)
        yield Finding("correction", question, loss, online, effect, stands, subject=name)
        closed = answer.gap_closed[name]
        if not math.isnan(closed.value):
            yield Finding("gap closed", question, loss, batch, closed, subject=name)
    effect = inverted(answer.excess)
    stands = judged(effect, WORTHWHILE)
    yield Finding("batch", question, batch, online, effect, stands, subject="offline")


def winning_baseline(answer: Answer) -> Baseline | None:
    """Returns the simple predictor that is clearly better than both models, if there is one.

    For classes it must be right more often as well, by two points: the last value of a sorted
    stream is hard to beat, and means nothing.
    """
    online, batch = answer.score("online"), answer.score("offline")

    def wins(one: Baseline) -> bool:
        right = [score.accuracy.value for score in (online, batch) if score.accuracy]
        if one.accuracy and not one.accuracy.low > max(right) + POINTS:
            return False
        return one.online.low > 0 and one.batch.low > 0

    winners = [one for one in answer.baselines if one.kind != "recent" and wins(one)]
    return min(winners, key=lambda one: one.loss.value, default=None)


def _of_memory(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Finds what was forgotten, what the order and the single pass cost, and better models."""
    shown = evidence(diagnosis)
    forgetting = shown.forgetting
    if forgetting is not None:
        yield Finding(
            "forgetting",
            value=forgetting.value,
            against=math.nan if forgetting.half_life is None else forgetting.half_life,
            effect=forgetting.increase,
            standing=judged(forgetting.increase),
        )
    costs: tuple[tuple[FindingKind, Estimate | None], ...] = (
        ("order cost", shown.order_cost),
        ("one-pass cost", shown.one_pass_cost),
    )
    for kind, cost in costs:
        if cost is not None and not math.isnan(cost.value):
            yield Finding(kind, value=cost.value, effect=cost, standing=judged(cost))
    for one in diagnosis.alternatives:
        yield Finding(
            "alternative",
            question=one.question,
            value=one.gamma,
            against=one.constant.value,
            effect=one.effect,
            standing=judged(one.constant),
            subject=one.kind,
        )


def _of_time(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Finds drift, and what progressive validation hides."""
    drift = diagnosis.drift
    if drift is not None and clear_gain(drift.effect):
        yield Finding("drift", value=drift.window, against=drift.refits, effect=drift.effect)
    before, again = diagnosis.prequential_error, diagnosis.hindsight
    if not diagnosis.diverged and before > 0 and again > HIDDEN * before:
        yield Finding("hidden", value=before, against=again)


def target_length(diagnosis: Diagnosis) -> float:
    """Returns the mean length of a row's targets."""
    return float(np.linalg.norm(diagnosis.stream.Y, axis=1).mean())


def largest_moves(groups: GroupShift, most: int = 3) -> list[tuple[str, str, float, float]]:
    """Returns the groups that moved another farthest: learned, moved, size and pull."""
    size = np.where(np.isfinite(groups.size), groups.size, 0.0)
    np.fill_diagonal(size, 0.0)
    pairs = [divmod(int(entry), len(size)) for entry in np.argsort(-size, axis=None, kind="stable")]
    return [
        (groups.names[g], groups.names[h], float(size[h, g]), float(groups.pull[h, g]))
        for h, g in pairs[:most]
        if size[h, g] > 0
    ]


def _of_movements(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Finds how far learning moved the targets, and which group moved another most."""
    shift, length = float(diagnosis.shift_size.mean()), target_length(diagnosis)
    if diagnosis.diverged or not math.isfinite(shift) or not length:
        return
    yield Finding("shift", value=shift / length, against=float(diagnosis.changed.mean()))
    for learned, moved, size, pull in largest_moves(diagnosis.groups, most=1):
        if size >= STRONG_INTERFERENCE * length:
            found = size / length, pull / length
            yield Finding("interference", None, *found, subject=learned, other=moved)


def _of_correction(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Finds how far the corrected targets can be relied on."""
    if diagnosis.exactness > ROUNDING:
        yield Finding("rounding", value=diagnosis.exactness, against=ROUNDING)
    for name in CORRECTIONS:
        size = diagnosis.target_size[name]
        if size > TOO_LARGE:
            yield Finding("large targets", value=size, against=TOO_LARGE, subject=name)
    gamma, ridge = diagnosis.iterative_gamma, diagnosis.iterative_ridge
    if gamma is not None and gamma.automatic and gamma.value != diagnosis.gamma.value:
        yield Finding("smoother", value=gamma.value, against=diagnosis.gamma.value)
    if ridge is not None and ridge.automatic and ridge.value != 0:
        yield Finding("ridge", value=ridge.value, against=len(ridge.tried))


def _of_features(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Finds what was lost by using features instead of the kernel."""
    about = diagnosis.approximation
    if about is None:
        return
    yield Finding("features", value=about.features, against=about.exact_memory, subject=about.words)
    true = about.true_kernel or UNKNOWN
    if about.shift_error > POOR_FEATURES or clear_gain(true):
        found = about.shift_error, about.sample
        yield Finding("poor features", None, *found, true, judged(true), about.words)


def _of_rate(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Finds a given rate that is near the largest stable one, or above it."""
    rate, limit = diagnosis.lr.value, diagnosis.stability.largest_lr
    if diagnosis.diverged or (rate > NEAR_LIMIT * limit and not diagnosis.lr.automatic):
        yield Finding("near limit", value=rate, against=limit)


def _of_model(diagnosis: Diagnosis, model: ModelDiagnosis) -> Iterator[Finding]:
    """Finds what running the user's own model showed: each change against the model as it came."""
    for came in (score for score in model.scores if score.way == "as it came"):
        question, variance = came.question, diagnosis.stream.variance
        if not model.logged and not came.error.value <= DIVERGED * variance:
            error = came.error.value
            yield Finding("model diverged", question, error, variance, subject=model.name)
            continue
        for score in model.scores:
            if score.question == question and score.way != "as it came":
                stands = judged(score.change, WORTHWHILE)
                losses = score.loss.value, came.loss.value
                yield Finding("model trial", question, *losses, score.change, stands, score.way)
        closed = model.closed.get(question, UNKNOWN)
        if not math.isnan(closed.value):
            yield Finding("model closed", question, effect=closed, subject=model.name)
    before, again = model.prequential.value, model.remembered.value
    yield Finding("model log", None, before, again, subject=model.name)
    shift, length = float(np.linalg.norm(model.shift, axis=1).mean()), target_length(diagnosis)
    if math.isfinite(shift) and length:
        yield Finding("model movement", value=shift / length, subject=model.name)
    if model.corrected_size > TOO_LARGE:
        size = model.corrected_size
        yield Finding("model large targets", value=size, against=TOO_LARGE, subject=model.name)
    if model.agreement is not None and math.isfinite(model.agreement):
        yield Finding("model agreement", value=max(0.0, model.agreement), subject=model.name)
