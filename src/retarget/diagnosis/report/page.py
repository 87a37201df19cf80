"""The page of a diagnosis: one self-contained HTML file that works offline."""

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

import retarget
from retarget.diagnosis.report import report_tables as tables
from retarget.diagnosis.report import scores
from retarget.diagnosis.report.charts import Chart, NotDrawn, rows, targets
from retarget.diagnosis.report.charts.catalog import report_charts
from retarget.diagnosis.report.charts.classes import class_question
from retarget.diagnosis.report.comparison import Compared
from retarget.diagnosis.report.curve import curve_in_text
from retarget.diagnosis.result import Diagnosis
from retarget.diagnosis.words import names, numbers, setting

# Characters that could end a <script> element or begin a comment in it; also &, for XHTML.
UNSAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def report_html(
    diagnosis: Diagnosis,
    *,
    command: str | None = None,
    made: datetime | None = None,
    compared: Sequence[Compared] = (),
) -> str:
    """Returns the report as HTML; the same diagnosis, command and date give the same text.

    It shows the command that reproduces it, or says that it was made from Python, the date `made`
    (default: now), and the comparison with an earlier run, if there is one.
    """
    charts = report_charts(diagnosis)
    stream = diagnosis.stream
    model = diagnosis.model
    plotly = _plotly()
    script = _part("report.js")
    moved = rows.moved(diagnosis)
    unit = targets.move_unit(diagnosis)
    text = (
        _environment()
        .get_template("report.html")
        .render(
            diagnosis=diagnosis,
            verdict=diagnosis.verdict,
            stream=stream,
            classes=stream.kind == "classification",
            charts=charts,
            yours=moved.yours,
            model=model,
            tables=tables,
            scores=scores,
            compared=compared,
            measure=scores.measure(diagnosis).words,
            setting=setting.setting(diagnosis),
            tested_on=setting.tested_on(diagnosis),
            definitions=setting.definitions(diagnosis),
            class_rows=names.QUESTIONS[class_question(diagnosis)],
            approximation=setting.approximation_rows(diagnosis),
            stability=setting.stability_words(diagnosis),
            moves=[setting.move_words(move, unit) for move in moved.groups.largest_moves()],
            unit=rows.shift_unit(diagnosis),
            command=None if command is None else _visible(command),
            version=retarget.__version__,
            made=(made or datetime.now()).strftime("%Y-%m-%d %H:%M"),
            policy=_policy(plotly, script),
            style=_part("report.css"),
            plotly=plotly,
            script=script,
            chart_data=chart_json(charts),
        )
    )
    return _encodable(text)


def first_screen(diagnosis: Diagnosis) -> str:
    """Returns headline, advice, scores and curve as HTML without scripts, for a notebook."""
    page = _environment().get_template("notebook.html")
    text = page.render(
        verdict=diagnosis.verdict,
        table=tables.first_table(diagnosis),
        caption=tables.first_caption(diagnosis),
        curve=curve_in_text(diagnosis),
    )
    return _encodable(text)


def _encodable(text: str) -> str:
    """Replaces what is not text, such as bytes in a file's name, by question marks."""
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
    environment.filters.update(name=names.name, number=numbers.number, percent=numbers.percent)
    environment.filters.update(sentence=numbers.sentence, count="{:,}".format)
    environment.tests.update(drawn=lambda chart: isinstance(chart, Chart))
    return environment


@cache
def _part(file: str) -> str:
    """Returns the text of a template file that is included unchanged."""
    folder = resources.files("retarget.diagnosis.report") / "templates"
    return (folder / file).read_text("utf-8").strip()


@cache
def _plotly() -> str:
    """Returns Plotly's JavaScript with normalized line ends, as a browser hashes it."""
    text: str = get_plotlyjs()
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


def chart_json(charts: dict[str, Chart | NotDrawn]) -> str:
    """Returns the charts as JSON, escaped so that any text is safe inside a <script> element."""
    parts = (
        f'"{key}":{chart.figure.to_json(engine="json")}'
        for key, chart in charts.items()
        if isinstance(chart, Chart)
    )
    return f"{{{','.join(parts)}}}".translate(UNSAFE)
