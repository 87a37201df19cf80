"""The charts of the report, each of which answers a question, and the parts that they share.

The template in `report.js` colors paper, text, axes and whatever has no color of its own by the
reader's theme. The colors that are named here are legible on light and on dark paper.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio

from retarget.diagnosis.words.numbers import number

BLUE, GREY = "#2E8BC9", "#808890"
BAND = "rgba(230, 159, 0, 0.2)"  # around the online learner's line


@dataclass(frozen=True)
class Chart:
    """A Plotly figure with its texts."""

    title: str  # the question that it answers
    caption: str  # how to read it
    alternative: str  # what it shows, for screen readers
    figure: go.Figure


@dataclass(frozen=True)
class NotDrawn:
    """A chart that there is not, and why."""

    why: str


def in_a_notebook(chart: Chart) -> go.Figure:
    """Returns a copy of a chart's figure with its title and a style of its own."""
    styled = go.Figure(chart.figure)
    shapes = {"fillcolor": "#f1f3f5", "line": {"width": 0}, "layer": "below"}
    base = pio.templates["plotly_white"]
    own = go.layout.Template(layout={"shapedefaults": shapes, "colorway": [GREY]})
    margin = chart.figure.layout.margin.to_plotly_json()
    return styled.update_layout(
        template=pio.templates.merge_templates(base, own),
        title={"text": chart.title},
        height=chart.figure.layout.height + 90,
        margin={"t": 90} | {side: room for side, room in margin.items() if side != "t"},
    )


def figure(traces: list[Any], height: int, x: Any, y: Any, **layout: Any) -> go.Figure:
    """Returns a figure without a style; `x` and `y` are its axes, `layout` has more of Plotly's."""
    axes = {"xaxis": x, "yaxis": y, "showlegend": False}
    return go.Figure(traces, axes | {"height": height, "template": {}} | layout)


def line(label: str, x: Any, y: Any, hover: str, *, mode: str = "lines", **more: Any) -> go.Scatter:
    """Returns a line; hovering shows only `hover`, and `more` has Plotly's options."""
    tip = f"{hover}<extra></extra>"
    return go.Scatter(mode=mode, name=label, x=x, y=finite(y), hovertemplate=tip, **more)


def dots(label: str, x: Any, y: Any, hover: str, rows: Any, color: str = BLUE) -> go.Scatter:
    """Returns small, faint dots; `rows` names the row of each, as %{customdata} in `hover`."""
    marker = {"size": 5, "color": color, "opacity": 0.6}
    return line(label, x, y, hover, mode="markers", marker=marker, customdata=rows)


def finite(values: Any) -> np.ndarray:
    """Returns the values with NaN, which Plotly leaves out, instead of infinity."""
    values = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def scale(values: np.ndarray, apart: float = 100) -> dict[str, Any]:
    """Returns an axis's scale: logarithmic if positive values exceed `apart` times their median."""
    values = values[np.isfinite(values)]
    if not len(values) or values.min() <= 0 or values.max() < apart * np.median(values):
        return {"rangemode": "tozero"}
    return log_scale(values)


def log_scale(values: np.ndarray) -> dict[str, Any]:
    """Returns a logarithmic scale for positive values, with at most six ticks in plain numbers."""
    low, high = np.log10(values.min()), np.log10(values.max())
    steps: tuple[int, ...] = (1,) if high - low > 2.5 else (1, 3) if high - low > 1 else (1, 2, 5)
    powers = np.arange(np.floor(low), np.ceil(high) + 1, max(np.ceil((high - low) / 6), 1))
    ticks = [step * 10.0**power for power in powers for step in steps]
    return {"type": "log", "tickvals": ticks, "ticktext": [number(tick) for tick in ticks]}
