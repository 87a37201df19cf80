"""The charts of a diagnosis by name, in the order of the page."""

from collections.abc import Callable

import plotly.graph_objects as go

from retarget.diagnosis.report.charts import Chart, NotDrawn, in_a_notebook, rows, scores, targets
from retarget.diagnosis.report.charts.classes import confusion_chart
from retarget.diagnosis.report.charts.forgetting import forgetting_chart
from retarget.diagnosis.result import Diagnosis
from retarget.errors import InvalidInputError

CHARTS: dict[str, Callable[[Diagnosis], Chart | NotDrawn]] = {
    "forgetting": forgetting_chart,
    "along": rows.along_chart,
    "scores": scores.score_chart,
    "confusion": confusion_chart,
    "shift": rows.shift_chart,
    "groups": targets.group_chart,
    "targets": targets.targets_chart,
    "rate": scores.rate_chart,
}


def report_charts(diagnosis: Diagnosis) -> dict[str, Chart | NotDrawn]:
    """Returns every chart by name, or why it is not drawn."""
    return {name: draw(diagnosis) for name, draw in CHARTS.items()}


def all_figures(diagnosis: Diagnosis) -> dict[str, go.Figure]:
    """Returns the figures of the charts that are drawn, by name."""
    charts = report_charts(diagnosis).items()
    return {name: in_a_notebook(chart) for name, chart in charts if isinstance(chart, Chart)}


def one_figure(diagnosis: Diagnosis, name: str) -> go.Figure:
    """Returns the figure of one chart.

    Raises:
        InvalidInputError: There is no chart of that name, or its numbers are not defined.
    """
    if name not in CHARTS:
        raise InvalidInputError(
            f"there is no chart {name!r}; expected one of {', '.join(CHARTS)}, or no name for a "
            "dict of all charts"
        )
    chart = CHARTS[name](diagnosis)
    if isinstance(chart, NotDrawn):
        raise InvalidInputError(f"the chart {name!r} of this diagnosis is not drawn: {chart.why}")
    return in_a_notebook(chart)
