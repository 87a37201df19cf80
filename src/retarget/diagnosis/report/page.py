"""The report on a diagnosis: one HTML file that needs nothing else, not even a network."""

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
from retarget.diagnosis.report.charts import Chart
from retarget.diagnosis.report.charts.groups import move_unit, pull_chart, size_chart
from retarget.diagnosis.report.charts.learners import (
    accuracy_chart,
    choice_chart,
    error_chart,
    prequential_chart,
)
from retarget.diagnosis.report.charts.model import model_charts
from retarget.diagnosis.report.charts.rows import density_chart, shift_chart, shift_unit
from retarget.diagnosis.report.charts.targets import targets_chart
from retarget.diagnosis.report.page_tables import (
    group_table,
    measure,
    model_facts,
    model_table,
    score_cards,
    score_table,
    shifted_table,
    target_table,
)
from retarget.diagnosis.report.words import (
    approximation_rows,
    largest_moves,
    name,
    number,
    percent,
    setting,
    stability_words,
    tested_on,
)
from retarget.diagnosis.result import Diagnosis
from retarget.storage import atomic_file

# The picture of the first screen; of a learner that diverged, the rates show why.
FIRST = ("model-shift", "shift", "rate")
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
    model = diagnosis.model
    page = (
        _environment()
        .get_template("report.html")
        .render(
            diagnosis=diagnosis,
            stream=diagnosis.stream,
            classes=diagnosis.stream.kind == "classification",
            charts=charts,
            first=next((c for key in FIRST if (c := charts.get(key)) is not None), None),
            cards=score_cards(diagnosis, model),
            measure=measure(diagnosis.stream),
            model=model,
            model_scores=None if model is None else model_table(diagnosis, model),
            model_facts=[] if model is None else model_facts(model),
            scores=score_table(diagnosis),
            targets=target_table(diagnosis),
            groups=group_table(diagnosis),
            shifted=shifted_table(diagnosis),
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
    environment.filters.update(count="{:,}".format, name=name, number=number, percent=percent)
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
    model = diagnosis.model
    of_model = {} if model is None else model_charts(diagnosis, model)
    return of_model | {
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
