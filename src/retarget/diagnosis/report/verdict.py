"""The numbers of a diagnosis in plain words, and what to change."""

import math

from retarget.diagnosis.report.evidence import Evidence, interval, opposite, percent
from retarget.diagnosis.report.findings import findings
from retarget.diagnosis.report.recommendations import recommendations
from retarget.diagnosis.result import Estimate, Verdict

MANY = 10.0  # an error that is so much above another is spoken of as a multiple of it


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
