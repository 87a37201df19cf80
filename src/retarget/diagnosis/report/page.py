"""Writes the report on a diagnosis: one self-contained HTML file that works offline."""

import base64
import hashlib
import json
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

import retarget
from retarget.diagnosis.report import page_tables as tables
from retarget.diagnosis.report import words
from retarget.diagnosis.report.charts import Chart, rows, scores, targets
from retarget.diagnosis.result import Diagnosis
from retarget.storage import atomic_file

# The chart on the first screen. If the learner diverged, the chart of rates shows why.
FIRST = ("model-shift", "shift", "rate")
# Characters that could end a <script> element or begin a comment in it; also &, for XHTML.
UNSAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def write_report(
    diagnosis: Diagnosis,
    path: str | PathLike[str],
    *,
    command: str | None = None,
    made: datetime | None = None,
) -> None:
    """Writes the report as one HTML file, atomically.

    It shows the command that reproduces it, or says that it was made from Python, and the date
    `made` (default: now).
    """
    page = report_html(diagnosis, command=command, made=made)
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")


def report_html(
    diagnosis: Diagnosis, *, command: str | None = None, made: datetime | None = None
) -> str:
    """Returns the report as HTML; the same diagnosis, command and date give the same text."""
    charts, stream, model = report_charts(diagnosis), diagnosis.stream, diagnosis.model
    plotly, script = _plotly(), _part("report.js")
    unit = targets.move_unit(diagnosis)
    page = _environment().get_template("report.html")
    text = page.render(
        diagnosis=diagnosis,
        stream=stream,
        classes=stream.kind == "classification",
        charts=charts,
        first=next((c for key in FIRST if (c := charts.get(key)) is not None), None),
        cards=tables.score_cards(diagnosis, model),
        measure=tables.measure(stream),
        model=model,
        model_scores=None if model is None else tables.model_table(diagnosis, model),
        model_facts=[] if model is None else tables.model_facts(model),
        scores=tables.score_table(diagnosis),
        targets=tables.target_table(diagnosis),
        groups=tables.group_table(diagnosis),
        shifted=tables.shifted_table(diagnosis),
        setting=words.setting(diagnosis),
        tested_on=words.tested_on(diagnosis),
        approximation=words.approximation_rows(diagnosis),
        stability=words.stability_words(diagnosis),
        moves=[move.words(unit) for move in words.largest_moves(diagnosis.groups)],
        unit=rows.shift_unit(diagnosis),
        command=None if command is None else _visible(command),
        version=retarget.__version__,
        made=(made or datetime.now()).strftime("%Y-%m-%d %H:%M"),
        policy=_policy(plotly, script),
        style=_part("report.css"),
        plotly=plotly,
        script=script,
        chart_data=chart_json(charts.values()),
    )
    # A name may contain bytes that are not text, which become question marks.
    return text.encode("utf-8", "replace").decode("utf-8")


def _visible(command: str) -> str:
    """Spells out invisible characters of a command, so that nobody pastes something hidden."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in command
    )


def _policy(*scripts: str) -> str:
    """Returns the content security policy: only these scripts, inline styles, no connections."""
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
    filters = {"name": words.name, "number": words.number, "percent": words.percent}
    environment.filters.update(filters, count="{:,}".format)
    return environment


@cache
def _part(file: str) -> str:
    """Returns the text of a template file that is included unchanged."""
    folder = resources.files("retarget.diagnosis.report") / "templates"
    return (folder / file).read_text("utf-8").strip()


@cache
def _plotly() -> str:
    """Returns Plotly's JavaScript with normalised line ends, as a browser hashes it."""
    text: str = get_plotlyjs()
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


def report_charts(diagnosis: Diagnosis) -> dict[str, Chart | None]:
    """Returns the charts by key; None if a chart's numbers are not defined."""
    model, charts = diagnosis.model, {}
    if model is not None:
        title = "Which group moved which"
        charts = {
            "model-shift": rows.model_shift_chart(diagnosis, model),
            "model-errors": scores.model_error_chart(model),
            "model-theory": targets.theory_chart(diagnosis, model),
            "model-groups": targets.size_chart(diagnosis, model.groups, "model-groups", title),
        }
    return charts | {
        "errors": scores.error_chart(diagnosis),
        "accuracies": scores.accuracy_chart(diagnosis),
        "rate": scores.choice_chart("rate", diagnosis.lr, diagnosis.stability.largest_lr),
        "ridge": scores.choice_chart("ridge", diagnosis.gamma),
        "shift": rows.shift_chart(diagnosis),
        "group-size": targets.size_chart(diagnosis, diagnosis.groups),
        "group-pull": targets.pull_chart(diagnosis),
        "prequential": rows.prequential_chart(diagnosis),
        "density": rows.density_chart(diagnosis),
        "targets": targets.targets_chart(diagnosis),
    }


def chart_json(charts: Iterable[Chart | None]) -> str:
    """Returns the charts as JSON, escaped so that any text is safe inside a <script> element."""
    drawings = {chart.key: chart.drawing() for chart in charts if chart is not None}
    text = json.dumps(drawings, allow_nan=False, separators=(",", ":"))
    return text.translate(UNSAFE)
