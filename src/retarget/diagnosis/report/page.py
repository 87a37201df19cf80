"""The report on a diagnosis: one HTML file that needs nothing else, not even a network."""

import base64
import hashlib
import json
import math
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

import retarget
from retarget.diagnosis.report.charts import Chart
from retarget.diagnosis.report.charts.learners import (
    accuracy_chart,
    choice_chart,
    error_chart,
    learner_label,
    move_unit,
    prequential_chart,
    pull_chart,
    size_chart,
)
from retarget.diagnosis.report.charts.rows import (
    density_chart,
    group_of_row,
    most_shifted,
    shift_chart,
    shift_unit,
    targets_chart,
)
from retarget.diagnosis.report.words import (
    approximation_rows,
    interval,
    largest_moves,
    name,
    number,
    percent,
    setting,
    stability_words,
    tested_on,
)
from retarget.diagnosis.result import Diagnosis, Estimate, LearnerName
from retarget.diagnosis.stream import Stream
from retarget.storage import atomic_file

DIVERGED = "not defined: it diverged"
# What would end a <script> element or begin a comment in it; also & for readers of XHTML.
UNSAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def write_report(
    diagnosis: Diagnosis,
    path: str | PathLike[str],
    *,
    command: str | None = None,
    made: datetime | None = None,
) -> None:
    """Writes the report as one HTML file, whole or not at all.

    Args:
        diagnosis: What was found.
        path: Where the file goes.
        command: The command that makes it again; None if it was made from Python.
        made: The date on it; now if it is not given.
    """
    page = report_html(diagnosis, command=command, made=made)
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")


def report_html(
    diagnosis: Diagnosis, *, command: str | None = None, made: datetime | None = None
) -> str:
    """The report as HTML text. The same diagnosis, command and date give the same text."""
    charts = report_charts(diagnosis)
    plotly, script = _plotly(), _part("report.js")
    page = (
        _environment()
        .get_template("report.html")
        .render(
            diagnosis=diagnosis,
            stream=diagnosis.stream,
            classes=diagnosis.stream.kind == "classification",
            charts=charts,
            scores=score_rows(diagnosis),
            groups=group_rows(diagnosis),
            shifted=shifted_rows(diagnosis),
            setting=setting(diagnosis),
            tested_on=tested_on(diagnosis),
            approximation=approximation_rows(diagnosis),
            stability=stability_words(diagnosis),
            moves=[move.words(move_unit(diagnosis)) for move in largest_moves(diagnosis)],
            unit=shift_unit(diagnosis),
            command=None if command is None else _visible(command),
            version=retarget.__version__,
            made=(made or datetime.now()).strftime("%Y-%m-%d %H:%M"),
            policy=_policy(plotly, script),
            style=_part("report.css"),
            plotly=plotly,
            script=script,
            chart_data=chart_json(charts.values()),
        )
    )
    # A name may hold bytes that are not text: they become question marks.
    return page.encode("utf-8", "replace").decode("utf-8")


def _visible(command: str) -> str:
    """A command with what cannot be seen spelled out: nobody is to paste what it hides."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in command
    )


def _policy(*scripts: str) -> str:
    """The content security policy: these scripts, styles in the page, and no connection at all."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("retarget.diagnosis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(count="{:,}".format, number=number, percent=percent)
    return environment


@cache
def _part(file: str) -> str:
    """A part of the page that is taken as it is."""
    return (
        (resources.files("retarget.diagnosis.report") / "templates" / file)
        .read_text("utf-8")
        .strip()
    )


@cache
def _plotly() -> str:
    """Plotly's JavaScript, with the line ends that a browser makes before it takes the hash."""
    text: str = get_plotlyjs()
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


def report_charts(diagnosis: Diagnosis) -> dict[str, Chart | None]:
    """The charts by their key; None for one whose numbers are not defined."""
    largest = diagnosis.stability.largest_lr
    return {
        "errors": error_chart(diagnosis),
        "accuracies": accuracy_chart(diagnosis),
        "rate": choice_chart("rate", diagnosis.lr, largest),
        "ridge": choice_chart("ridge", diagnosis.gamma),
        "shift": shift_chart(diagnosis),
        "group-size": size_chart(diagnosis),
        "group-pull": pull_chart(diagnosis),
        "prequential": prequential_chart(diagnosis),
        "density": density_chart(diagnosis),
        "targets": targets_chart(diagnosis),
    }


def chart_json(charts: Iterable[Chart | None]) -> str:
    """The drawings as JSON that can stand inside a <script> element, whatever texts it holds."""
    drawings = {chart.key: chart.drawing() for chart in charts if chart is not None}
    text = json.dumps(drawings, allow_nan=False, separators=(",", ":"))
    return text.translate(UNSAFE)


def score_rows(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """The table of scores; each cell is a value and its interval, or why there is none."""
    rows = []
    for score in diagnosis.scores:
        why = "its predictions are not finite numbers, so it diverged"
        if diagnosis.evaluation == "progressive" and score.learner == "corrected":
            why = "the exact correction has to know the whole stream before it begins"
        rows.append(
            {
                "learner": score.learner,
                "label": learner_label(score.learner),
                "error": _cell(score.error, why),
                "accuracy": None if score.accuracy is None else _cell(score.accuracy, why, True),
                "gap": _gap(diagnosis, score.learner),
            }
        )
    return rows


def _cell(estimate: Estimate, why: str, share: bool = False) -> tuple[str, str]:
    if not math.isfinite(estimate.value):
        return "not defined", why
    return (percent if share else number)(estimate.value), interval(estimate, share)


def _gap(diagnosis: Diagnosis, learner: LearnerName) -> tuple[str, str]:
    """How much of the gap a learner closes; the two that make the gap have no such number."""
    if learner not in diagnosis.gap_closed:
        return "", ""
    errors = [diagnosis.score(name).error.value for name in ("offline", "online", learner)]
    why = "the online learner is not clearly behind the offline one"
    if not np.isfinite(errors).all():
        why = "one of the errors in it is not defined"
    return _cell(diagnosis.gap_closed[learner], why, True)


def group_rows(diagnosis: Diagnosis) -> list[dict[str, str]]:
    """For each group: how far its targets were moved, and by whom most."""
    groups = diagnosis.groups
    others = np.where(np.isfinite(groups.size), groups.size, 0.0)
    np.fill_diagonal(others, 0.0)
    rows = []
    for g, group in enumerate(groups.names):
        most = int(others[g].argmax())
        if others[g, most] > 0:
            moved = number(float(others[g, most])), name(groups.names[most])
        elif np.isnan(groups.size[g]).any():
            moved = "not defined", "the learner diverged"
        else:
            moved = "none", "no later group"
        rows.append(
            {
                "name": name(group),
                "rows": f"{groups.counts[g]:,}",
                "own": number(float(groups.own[g])),
                "same": number(float(groups.size[g, g])),
                "most": moved[0],
                "by": moved[1],
            }
        )
    return rows


def shifted_rows(diagnosis: Diagnosis) -> list[dict[str, str]]:
    """The ten rows whose targets moved farthest; none if no shift is finite."""
    stream, size = diagnosis.stream, diagnosis.shift_size
    if not np.isfinite(size).any():
        return []
    groups = group_of_row(diagnosis)
    rows = most_shifted(diagnosis)
    true, effective = (_target_texts(stream, Z[rows]) for Z in (stream.Y, diagnosis.effective))
    return [
        {
            "row": f"{stream.rows[i]:,}",
            "position": f"{i + 1:,}",
            "time": "" if stream.times is None else name(str(stream.times[i]), 32),
            "group": name(diagnosis.groups.names[groups[i]]),
            "shift": DIVERGED if math.isnan(size[i]) else number(float(size[i])),
            "true": true[k],
            "effective": effective[k],
        }
        for k, i in enumerate(rows)
    ]


def _target_texts(stream: Stream, targets: np.ndarray, most: int = 6) -> list[str]:
    """Each row's targets in words: the class and how strong it is, or numbers in their units."""
    if stream.kind == "classification":
        top = targets.argmax(axis=1)
        return [
            f"{name(stream.target_names[k])} ({number(float(row[k]))})"
            if np.isfinite(row).all()
            else DIVERGED
            for k, row in zip(top, targets, strict=True)
        ]
    more = ", \u2026" * (targets.shape[1] > most)
    return [
        ", ".join(number(float(value), 4) for value in row[:most]) + more
        for row in stream.in_units(targets)
    ]
