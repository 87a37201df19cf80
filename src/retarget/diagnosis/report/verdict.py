"""The numbers of a diagnosis in plain words: a headline, what was found, and what to change.

Findings are a sentence each with its numbers, None where there is nothing to say. Of changes, only
what was tried and had a clear effect is recommended.
"""

import math

import numpy as np
from rich.filesize import decimal

from retarget.diagnosis.report.words import (
    approximation_rows,
    interval,
    largest_moves,
    percent,
    with_interval,
)
from retarget.diagnosis.result import Diagnosis, Estimate, Verdict
from retarget.learners import LABELS

WORTHWHILE = 0.05  # the least relative improvement that is spoken of
MANY = 10.0  # an error that is so much above another is spoken of as a multiple of it
STRONG_INTERFERENCE = 0.25  # of a target's length, moved by one other group
ROUNDING = 0.01  # by which the exactly corrected learner's error may differ from the offline one's
NEAR_LIMIT = 0.8  # of the largest stable rate
FEW_ROWS = 100
POOR_FEATURES = 0.2  # relative error of the shift


def verdict(diagnosis: Diagnosis) -> Verdict:
    """The verdict on what was found."""
    text, about = _headline(diagnosis), diagnosis.approximation
    if about is not None and _limited_by_features(diagnosis):
        text = f"As far as {about.words} can tell, {text[0].lower()}{text[1:]}"
    findings = (
        _errors(diagnosis),
        _shift(diagnosis),
        _interference(diagnosis),
        _rounding(diagnosis),
        _progressive(diagnosis),
        _aim(diagnosis),
        _ridge(diagnosis),
        _approximation(diagnosis),
        _limited(diagnosis),
    )
    advice = (
        _diverged(diagnosis),
        *_tried(diagnosis),
        _correction(diagnosis),
        _near_limit(diagnosis),
        _few_rows(diagnosis),
        _more_features(diagnosis),
    )
    nothing = "Nothing that was tried is clearly better: leave the learner as it is."
    return Verdict(
        text,
        (*diagnosis.failures, *(finding for finding in findings if finding)),
        tuple(change for change in advice if change) or (nothing,),
    )


def _opposite(estimate: Estimate) -> Estimate:
    return Estimate(-estimate.value, -estimate.high, -estimate.low)


def _limited_by_features(diagnosis: Diagnosis) -> bool:
    """Whether the true kernel does better with a few rows than the features with all."""
    reference = diagnosis.approximation and diagnosis.approximation.reference
    return bool(reference and reference.value <= -WORTHWHILE and reference.high < 0)


def _headline(diagnosis: Diagnosis) -> str:
    """How far the online model is from the batch model, and what corrects it."""
    excess = diagnosis.excess
    if math.isnan(diagnosis.score("online").error.value):
        return f"The online model diverges at lr = {diagnosis.lr.value:.3g}."
    if math.isnan(diagnosis.score("offline").error.value):
        return "There is no batch model to compare the online model with."
    if math.isnan(excess.value):
        return "The online and the batch model cannot be told apart: neither makes an error."
    if excess.high < 0:
        below = _opposite(excess)
        return (
            f"The online model's error is {percent(below.value)} below the batch model's "
            f"({interval(below, share=True)})."
        )
    if excess.low <= 0:
        return (
            "The online model is about as good as the batch model: its error differs by "
            f"{with_interval(excess, share=True)}."
        )
    closing = _closing(diagnosis.gap_closed["iterative"])
    return f"The online model's error is {_above(excess)}; {closing}."


def _above(excess: Estimate) -> str:
    if excess.value < MANY:
        return f"{percent(excess.value)} above the batch model's ({interval(excess, share=True)})"
    times, low, high = (f"{1 + value:,.0f}" for value in excess)
    return f"{times} times the batch model's ({low} to {high} times)"


def _closing(closed: Estimate) -> str:
    if math.isnan(closed.value):
        return "there is no iterative correction to compare with"
    share = f"{with_interval(closed, share=True)} of the gap"
    if closed.low > 0:
        return f"iterative correction closes {share}"
    if closed.high < 0:
        return f"iterative correction widens it, by {percent(-closed.value)} of the gap"
    return f"it is not clear that iterative correction helps: it closes {share}"


def _errors(diagnosis: Diagnosis) -> str:
    known = [
        f"{LABELS[score.learner]} {score.error.value:.4g}"
        for score in diagnosis.scores
        if math.isfinite(score.error.value)
    ]
    progressive = diagnosis.evaluation == "progressive"
    rows = "rows, each before its step" if progressive else "rows held out"
    return f"Mean squared error on {diagnosis.test_rows:,} {rows}: {'; '.join(known)}."


def _target_length(diagnosis: Diagnosis) -> float:
    return float(np.linalg.norm(diagnosis.stream.Y, axis=1).mean())


def _shift(diagnosis: Diagnosis) -> str | None:
    shift = float(diagnosis.shift_size.mean())
    if not math.isfinite(shift):
        return None
    classes = diagnosis.stream.kind == "classification"
    return (
        f"Learning moved the targets by {shift:.3g} on average, where a target's own "
        f"length is {_target_length(diagnosis):.3g}; {percent(float(diagnosis.changed.mean()))} "
        f"of the rows changed their {'class' if classes else 'sign (side of the mean)'}."
    )


def _interference(diagnosis: Diagnosis) -> str | None:
    length = _target_length(diagnosis)
    for move in largest_moves(diagnosis, most=1):
        if length and move.size >= STRONG_INTERFERENCE * length:
            return (
                f"Learning '{move.learned}' moved the targets of '{move.moved}' by "
                f"{move.size:.3g} on average ({percent(move.size / length)} of a target's length), "
                f"{'weakening' if move.pull < 0 else 'strengthening'} them by {abs(move.pull):.3g}."
            )
    return None


def _rounding(diagnosis: Diagnosis) -> str | None:
    offline, corrected = (
        diagnosis.score(learner).error.value for learner in ("offline", "corrected")
    )
    if math.isnan(offline + corrected) or abs(corrected - offline) <= ROUNDING * offline:
        return None
    return (
        "The exact correction does not survive rounding: on its targets the online learner ends "
        f"with the error {corrected:.4g}, not with the batch model's {offline:.4g}."
    )


def _progressive(diagnosis: Diagnosis) -> str | None:
    if diagnosis.evaluation != "progressive":
        return None
    return (
        "The exactly corrected learner has no score here: its targets know the whole stream, and "
        "it is right only at the end. The iteratively corrected one waits for its block: it is "
        "scored by what it predicts before any row of the block is learned."
    )


def _aim(diagnosis: Diagnosis) -> str | None:
    aim, gamma = diagnosis.aim, diagnosis.gamma.value
    if aim is None or not aim.automatic or aim.value == gamma:
        return None
    return (
        f"The iterative correction follows a smoother batch model, of ridge {aim.value:.3g} "
        f"instead of {gamma:.3g}: it {aim.how}."
    )


def _ridge(diagnosis: Diagnosis) -> str | None:
    ridge = diagnosis.ridge
    if ridge is None or not ridge.automatic or ridge.value == 0:
        return None
    return f"A ridge of {ridge.value:.3g} steadies the iterative correction: it {ridge.how}."


def _approximation(diagnosis: Diagnosis) -> str | None:
    about = diagnosis.approximation
    if about is None:
        return None
    stand = (
        f"{about.words} are used instead of the kernel matrix, which would need "
        f"{decimal(about.exact_memory)}"
    )
    if about.exact:
        return f"{stand}: nothing is approximated."
    errors = ", ".join(f"{what.lower()} {error}" for what, error in approximation_rows(diagnosis))
    return f"{stand}. Relative errors on {about.sample:,} rows: {errors}."


def _limited(diagnosis: Diagnosis) -> str | None:
    about = diagnosis.approximation
    if about is None or about.reference is None or not _limited_by_features(diagnosis):
        return None
    less = _opposite(about.reference)
    return (
        f"The features hold the batch model back: with the true kernel, {about.sample:,} of the "
        f"rows alone give {percent(less.value)} less error ({interval(less, share=True)}). What is "
        "said here is about models made of these features."
    )


def _diverged(diagnosis: Diagnosis) -> str | None:
    if not math.isnan(diagnosis.score("online").error.value):
        return None
    limit = diagnosis.stability.largest_lr
    if diagnosis.lr.value > limit:
        return f"Lower the rate: steps are stable up to lr = {limit:.3g}."
    return (
        f"Lower the rate: single steps are stable up to lr = {limit:.3g}, but together they are "
        "not."
    )


def _tried(diagnosis: Diagnosis) -> list[str]:
    """Changes that clearly lower the error, the best first."""
    words = {
        "rate": "Use lr = {:.3g}: its error is",
        "batch": "Use mini-batches of {:.0f} rows at the same rate: the error is",
        "order": "Learn the rows in random order, if you can: the error is",
    }
    useful = [
        trial
        for trial in diagnosis.trials
        if trial.effect.value <= -WORTHWHILE and trial.effect.high < 0
    ]
    return [
        f"{words[trial.change].format(trial.value)} {percent(-trial.effect.value)} lower "
        f"({interval(_opposite(trial.effect), share=True)})."
        for trial in sorted(useful, key=lambda trial: trial.effect.value)
    ]


def _correction(diagnosis: Diagnosis) -> str | None:
    closed, excess = diagnosis.gap_closed["iterative"], diagnosis.excess
    if math.isnan(closed.value):
        if not math.isnan(excess.value) and excess.low <= 0:
            return "No correction is needed: there is no clear gap to close."
        return None
    share = f"{with_interval(closed, share=True)} of the gap"
    if closed.low > 0:
        return f"Train on iteratively corrected targets: they close {share}."
    if closed.high < 0:
        return "Do not use iterative correction as it is: it widens the gap; try a larger block."
    return f"Iterative correction is not clearly worthwhile: it closes {share}."


def _near_limit(diagnosis: Diagnosis) -> str | None:
    rate, limit = diagnosis.lr.value, diagnosis.stability.largest_lr
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


def _few_rows(diagnosis: Diagnosis) -> str | None:
    rows, compared = len(diagnosis.stream), diagnosis.test_rows
    if min(rows, compared) >= FEW_ROWS:
        return None
    return (
        f"Take these numbers with care: {rows:,} rows were learned and the models were compared on "
        f"{compared:,}; {FEW_ROWS} or more of each would tell more."
    )


def _more_features(diagnosis: Diagnosis) -> str | None:
    about = diagnosis.approximation
    if about is None:
        return None
    if not about.shift_error > POOR_FEATURES and not _limited_by_features(diagnosis):
        return None
    return (
        f"Take more than {about.words}, or diagnose fewer rows exactly: the features do not stand "
        "for the kernel well enough here."
    )
