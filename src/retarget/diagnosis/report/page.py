"""The report on a diagnosis: one HTML file that needs nothing else, not even a network."""

import base64
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

import retarget
from retarget.diagnosis.report.charts.chart import Chart, group_of_row, most_shifted
from retarget.diagnosis.report.charts.errors import (
    LEARNERS,
    accuracy_chart,
    choice_chart,
    error_chart,
    prequential_chart,
)
from retarget.diagnosis.report.charts.groups import largest_moves, pull_chart, size_chart
from retarget.diagnosis.report.charts.shift import density_chart, shift_chart, shift_unit
from retarget.diagnosis.report.charts.targets import targets_chart
from retarget.diagnosis.report.words import (
    approximation_rows,
    count,
    defined,
    interval,
    name,
    number,
    percent,
    setting,
    stability_words,
    tested_on,
)
from retarget.diagnosis.result import Diagnosis, Estimate, LearnerName
from retarget.storage import atomic_file

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
            moves=largest_moves(diagnosis),
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
    # A name may hold bytes that are no text: they become question marks.
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
    environment.filters.update(count=count, number=number, percent=percent)
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


@dataclass(frozen=True)
class ScoreRow:
    """One learner in the table of scores; each cell is a value and its interval."""

    learner: LearnerName
    label: str
    error: tuple[str, str]
    accuracy: tuple[str, str] | None
    gap: tuple[str, str]


def score_rows(diagnosis: Diagnosis) -> list[ScoreRow]:
    """The table of scores."""
    rows = []
    for score in diagnosis.scores:
        why = "its predictions are not finite numbers, so it diverged"
        if diagnosis.evaluation == "progressive" and score.learner == "corrected":
            why = "the exact correction has to know the whole stream before it begins"
        rows.append(
            ScoreRow(
                learner=score.learner,
                label=LEARNERS[score.learner],
                error=_cell(score.error, why),
                accuracy=None if score.accuracy is None else _cell(score.accuracy, why, True),
                gap=_gap(diagnosis, score.learner),
            )
        )
    return rows


def _cell(estimate: Estimate, why: str, share: bool = False) -> tuple[str, str]:
    if not math.isfinite(estimate.value):
        return "not defined", why
    return (percent if share else number)(estimate.value), interval(estimate, share)


def _gap(diagnosis: Diagnosis, learner: LearnerName) -> tuple[str, str]:
    """How much of the gap a learner closes; the two that make the gap have no such number."""
    if learner in ("offline", "online"):
        return "", ""
    errors = [
        s.error.value for s in diagnosis.scores if s.learner in ("offline", "online", learner)
    ]
    why = "the online learner is not clearly behind the offline one"
    if not np.isfinite(errors).all():
        why = "one of the errors in it is not defined"
    return _cell(diagnosis.gap_closed.get(learner, Estimate(*3 * (math.nan,))), why, True)


@dataclass(frozen=True)
class GroupRow:
    """One group in the table of groups."""

    name: str
    rows: str
    own: str
    same: str
    most: str
    by: str


def group_rows(diagnosis: Diagnosis) -> list[GroupRow]:
    """For each group: how far its targets were moved, and by whom most."""
    groups = diagnosis.groups
    others = np.where(np.isfinite(groups.size), groups.size, 0.0)
    np.fill_diagonal(others, 0.0)
    rows = []
    for g, group in enumerate(groups.names):
        most = int(others[g].argmax())
        moved = bool(others[g, most] > 0)
        lost = bool(np.isnan(groups.size[g]).any())
        unmoved = ("not defined", "the learner diverged") if lost else ("none", "no later group")
        rows.append(
            GroupRow(
                name=name(group),
                rows=count(int(groups.counts[g])),
                own=number(float(groups.own[g])),
                same=number(float(groups.size[g, g])),
                most=number(float(others[g, most])) if moved else unmoved[0],
                by=name(groups.names[most]) if moved else unmoved[1],
            )
        )
    return rows


@dataclass(frozen=True)
class ShiftedRow:
    """One of the most shifted rows."""

    row: str
    position: str
    time: str
    group: str
    shift: str
    true: str
    effective: str


def shifted_rows(diagnosis: Diagnosis) -> list[ShiftedRow]:
    """The ten rows whose targets moved farthest; none if no shift is finite."""
    stream = diagnosis.stream
    if not np.isfinite(diagnosis.shift_size).any():
        return []
    groups = group_of_row(diagnosis)
    rows = most_shifted(diagnosis)
    true, effective = (_target_texts(diagnosis, Z[rows]) for Z in (stream.Y, diagnosis.effective))
    return [
        ShiftedRow(
            row=count(int(stream.rows[i])),
            position=count(int(i) + 1),
            time="" if stream.times is None else name(str(stream.times[i]), 32),
            group=name(diagnosis.groups.names[groups[i]]),
            shift=defined(float(diagnosis.shift_size[i]), "it diverged"),
            true=true[k],
            effective=effective[k],
        )
        for k, i in enumerate(rows)
    ]


def _target_texts(diagnosis: Diagnosis, targets: np.ndarray, most: int = 6) -> list[str]:
    """Each row's targets in words: the class and how strong it is, or numbers in their units."""
    stream = diagnosis.stream
    if stream.kind == "classification":
        top = targets.argmax(axis=1)
        return [
            f"{name(stream.target_names[k])} ({number(float(row[k]))})"
            if np.isfinite(row).all()
            else "not defined: it diverged"
            for k, row in zip(top, targets, strict=True)
        ]
    texts = []
    for row in stream.in_units(targets):
        values = [number(float(value), 4) for value in row[:most]]
        texts.append(", ".join(values) + ", \u2026" * (len(row) > most))
    return texts
