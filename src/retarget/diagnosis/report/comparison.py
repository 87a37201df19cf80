"""Compares a diagnosis with an earlier one: before and after a change."""

import math
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from retarget.diagnosis.answers import Estimate
from retarget.diagnosis.report.schema import DiagnosisJson
from retarget.diagnosis.report.words import LEARNERS, QUESTIONS, number, percent, with_interval
from retarget.errors import InvalidInputError
from retarget.storage import user_path
from retarget.text import shown


class Compared(NamedTuple):
    """A line of the comparison, in words."""

    what: str
    before: str
    now: str
    change: str


def read_earlier(path: Path) -> DiagnosisJson:
    """Reads the JSON of an earlier run.

    Raises:
        InvalidInputError: It is not the JSON of a diagnosis, or of another version of retarget.
    """
    try:
        text = user_path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"--compare is {path}, which cannot be read: {error}") from error
    try:
        return DiagnosisJson.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InvalidInputError(
            f"--compare is {path}, which is not the result of a diagnosis: {where}: "
            f"{first['msg']}; expected the diagnosis.json of an earlier run of this version"
        ) from error


def compared_with(earlier: DiagnosisJson, now: dict[str, Any]) -> list[Compared]:
    """Returns what changed, line by line: the verdict, and the scores on the same questions.

    The two runs may have other rows, so their difference has no interval of its own: it is called
    clear only if the two intervals do not overlap.
    """
    later = DiagnosisJson.model_validate(now)
    if earlier.kind != later.kind or earlier.targets != later.targets:
        raise InvalidInputError(
            f"the earlier run was a {earlier.kind} of {shown(earlier.targets)}, this one is a "
            f"{later.kind} of {shown(later.targets)}; compare runs with the same targets"
        )
    lines = [
        Compared("Verdict", earlier.verdict.kind, later.verdict.kind, _same(earlier, later)),
        Compared("Rows learned", f"{earlier.rows:,}", f"{later.rows:,}", ""),
    ]
    before = {answer.question: answer for answer in earlier.answers}
    for answer in later.answers:
        if answer.question not in before:
            continue
        old = {score.learner: score for score in before[answer.question].scores}
        for score in answer.scores:
            was, measure = old[score.learner], "error" if score.accuracy is None else "accuracy"
            pair = was.accuracy or was.error, score.accuracy or score.error
            label = f"{LEARNERS[score.learner]}, {measure}, {QUESTIONS[answer.question]}"
            lines.append(_line(label, pair[0].estimate, pair[1].estimate, measure))
        gaps = before[answer.question].excess.estimate, answer.excess.estimate
        lines.append(_line(f"gap, {QUESTIONS[answer.question]}", *gaps, "gap"))
    return lines


def _same(earlier: DiagnosisJson, later: DiagnosisJson) -> str:
    return "the same" if earlier.verdict.kind == later.verdict.kind else "another"


def _line(label: str, was: Estimate, became: Estimate, measure: str) -> Compared:
    """Words two estimates and their difference."""
    share = measure != "error"
    texts = with_interval(was, share), with_interval(became, share)
    if not (math.isfinite(was.value) and math.isfinite(became.value)):
        return Compared(label, *texts, "not defined")
    if was == became:
        return Compared(label, *texts, "the same")
    if was.low <= became.high and became.low <= was.high:
        return Compared(label, *texts, "not clear")
    better = (became.value > was.value) == (measure == "accuracy")
    gap = abs(became.value - was.value)
    if measure == "error":
        by = percent(gap / was.value) if was.value > 0 else number(gap)
    else:
        by = f"{100 * gap:,.0f} points"
    return Compared(label, *texts, f"{by} {'better' if better else 'worse'}")
