"""All charts of the report, by their key, and their data as JSON for the page."""

import json
from collections.abc import Iterable

from retarget.diagnosis.report.charts.chart import Chart
from retarget.diagnosis.report.charts.choices import choice_chart
from retarget.diagnosis.report.charts.errors import accuracy_chart, error_chart
from retarget.diagnosis.report.charts.groups import pull_chart, size_chart
from retarget.diagnosis.report.charts.prequential import prequential_chart
from retarget.diagnosis.report.charts.shift import density_chart, shift_chart
from retarget.diagnosis.report.charts.targets import targets_chart
from retarget.diagnosis.result import Diagnosis

# What would end a <script> element or begin a comment in it; also & for readers of XHTML.
UNSAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


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
