"""Compares a diagnosis with an earlier one: before and after a change."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError

from retarget.diagnosis.answers import BaselineKind, Estimate, Question
from retarget.diagnosis.report.schema import DIAGNOSIS_JSON
from retarget.diagnosis.report.scores import OF_MODEL
from retarget.diagnosis.words.names import QUESTIONS, name
from retarget.diagnosis.words.numbers import multiple, multiples, number, percent, with_interval
from retarget.errors import InvalidInputError
from retarget.storage import user_path
from retarget.text import shown


class Compared(NamedTuple):
    """A line of the comparison, in words."""

    what: str
    before: str
    now: str
    change: str


def read_earlier(path: Path) -> dict[str, Any]:
    """Reads the JSON of an earlier run.

    Raises:
        InvalidInputError: It is not the JSON of a diagnosis, or of another version of retarget.
    """
    try:
        text = user_path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"--compare is {path}, which cannot be read: {error}") from error
    try:
        earlier = DIAGNOSIS_JSON.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(place) for place in first["loc"]) or "the file"
        raise InvalidInputError(
            f"--compare is {path}, which is not the result of a diagnosis: {where}: "
            f"{first['msg']}; expected the diagnosis.json of an earlier run of this version"
        ) from error
    return earlier.model_dump()


def compared_with(earlier: dict[str, Any], now: dict[str, Any]) -> list[Compared]:
    """Returns what changed, line by line: the verdict, and the scores on the same questions.

    The two runs may have other rows, so their difference has no interval of its own: it is called
    clear only if the two intervals do not overlap.
    """
    if earlier["kind"] != now["kind"] or earlier["targets"] != now["targets"]:
        raise InvalidInputError(
            f"the earlier run was a {earlier['kind']} of {shown(earlier['targets'])}, this one is "
            f"a {now['kind']} of {shown(now['targets'])}; compare runs with the same targets"
        )
    if earlier["metric"] != now["metric"]:
        raise InvalidInputError(
            f"the earlier run was compared by {earlier['metric']!r}, this one by "
            f"{now['metric']!r}; compare runs by the same metric"
        )
    kinds = earlier["verdict"]["kind"], now["verdict"]["kind"]
    lines = [
        Compared("Verdict", *kinds, "the same" if kinds[0] == kinds[1] else "changed"),
        Compared("Rows learned", f"{earlier['rows']:,}", f"{now['rows']:,}", ""),
    ]
    for question in (answer["question"] for answer in now["answers"]):
        lines += _of_question(earlier, now, question)
    return [*lines, *_of_memory(earlier, now, "")]


def _of_question(
    earlier: dict[str, Any], now: dict[str, Any], question: Question
) -> Iterator[Compared]:
    """Yields what changed in the scores on one set of rows, if both runs were asked about it."""
    gaps = [
        answer["excess"]
        for run in (earlier, now)
        for answer in run["answers"]
        if answer["question"] == question
    ]
    if len(gaps) < 2:
        return
    before = {one["of"]: one for one in earlier["score_table"] if one["question"] == question}
    of_models = [run["model"] and run["model"]["name"] for run in (earlier, now)]
    for score in now["score_table"]:
        was = before.get(score["of"])
        of_model = score["of"].startswith(OF_MODEL)
        if score["question"] != question or was is None or score["of"] in get_args(BaselineKind):
            continue
        if of_model and of_models[0] != of_models[1]:
            continue
        whose = f"{name(of_models[1])}, " if of_model else ""
        measure = score["measure"]
        label = f"{whose}{score['name']}, {measure}, {QUESTIONS[question]}"
        unit = "share" if score["higher_is_better"] else "loss"
        yield _line(label, was, score, unit)
    yield _line(f"gap, {QUESTIONS[question]}", gaps[0], gaps[1], "gap")


def _of_memory(earlier: dict[str, Any], now: dict[str, Any], whose: str) -> Iterator[Compared]:
    """Yields what changed in forgetting and its causes, where both runs measured them."""
    for field, label in (
        ("forgetting", "forgetting"),
        ("order_cost", "cost of the order"),
        ("one_pass_cost", "cost of a single pass"),
    ):
        if earlier[field] is not None and now[field] is not None:
            yield _line(f"{whose}{label}", earlier[field], now[field], "times")
    was = earlier.get("model")
    model = now.get("model")
    if was and model and was["name"] == model["name"]:
        yield from _of_memory(was, model, f"{name(model['name'])}, ")


def as_estimate(interval: dict[str, float | None]) -> Estimate:
    """Returns an interval of the JSON, with NaN for null."""
    parts = (interval[end] for end in ("value", "low", "high"))
    return Estimate(*(math.nan if part is None else part for part in parts))


def _as_times(increase: Estimate) -> str:
    """Words an increase as a multiple with its interval; a dash if it is not known."""
    if not math.isfinite(increase.value):
        return "-"
    return f"{multiple(increase.value)} times ({multiples(increase)})"


def _line(label: str, before: Any, now: Any, measure: str) -> Compared:
    """Words two intervals of the JSON and their difference."""
    was = as_estimate(before)
    became = as_estimate(now)
    if measure == "times":
        texts = _as_times(was), _as_times(became)
    else:
        share = measure != "loss"
        texts = with_interval(was, share), with_interval(became, share)
    if not (math.isfinite(was.value) and math.isfinite(became.value)):
        return Compared(label, *texts, "not defined")
    if was == became:
        return Compared(label, *texts, "the same")
    if was.low <= became.high and became.low <= was.high:
        return Compared(label, *texts, "not clear")
    better = (became.value > was.value) == (measure == "share")
    gap = abs(became.value - was.value)
    if measure == "times":
        by = f"{percent(gap / (1 + was.value))} of the error"
    elif measure == "loss":
        by = percent(gap / was.value) if was.value > 0 else number(gap)
    else:
        by = f"{100 * gap:,.0f} points"
    return Compared(label, *texts, f"{by} {'better' if better else 'worse'}")
