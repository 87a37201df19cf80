"""What to change, by rules: only what was tried and had a clear effect is recommended."""

import math

from retarget.diagnosis.report.evidence import WORTHWHILE, Evidence, interval, opposite, percent

NEAR_LIMIT = 0.8  # of the largest stable rate
FEW_ROWS = 100
POOR_FEATURES = 0.2  # relative error of the shift


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
