"""The report on a diagnosis: one HTML file that needs nothing else, not even a network."""

import base64
import hashlib
from datetime import datetime
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

import retarget
from retarget.diagnosis.report.charts.all_charts import chart_json, report_charts
from retarget.diagnosis.report.charts.groups import largest_moves
from retarget.diagnosis.report.charts.shift import shift_unit
from retarget.diagnosis.report.rows_of_tables import group_rows, score_rows, shifted_rows
from retarget.diagnosis.report.setting import approximation_rows, setting, tested_on
from retarget.diagnosis.report.stability import stability_words
from retarget.diagnosis.report.words import count, number, percent
from retarget.diagnosis.result import Diagnosis
from retarget.storage import atomic_file


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
