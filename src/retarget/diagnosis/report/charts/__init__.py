"""The charts of the report: their data class, and the parts that they are made of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from retarget.diagnosis.report.words import number

# Colours that depend on the theme are names of CSS properties, which `report.js` looks up when it
# draws, in colour attributes only.
INK, MUTED, LINE, SURFACE, BAND = "--ink", "--muted", "--line", "--surface", "--band"
DOTS, WARM, COLD = "--dots", "--warm", "--cold"
FAINT = 0.6  # opacity of a dot: overlapping dots look darker

# Above the chart, where it hides nothing and wraps on a phone.
ABOVE = {"orientation": "h", "x": 0, "xanchor": "left", "yanchor": "bottom"}
LEGEND = ABOVE | {"y": 1.02, "bgcolor": SURFACE}
DOT_LEGEND = LEGEND | {"itemsizing": "constant"}  # for charts of small, faint dots

Trace = dict[str, Any]


@dataclass(frozen=True)
class View:
    """One of the views of a chart, which the reader picks from a list.

    It holds the changes to each trace and to the layout: attribute paths ("marker.opacity") and
    values.
    """

    label: str
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Chart:
    """A Plotly chart with its texts."""

    key: str  # its name in the page, as `chart-KEY`
    title: str
    caption: str  # how to read it
    alternative: str  # what it shows, for screen readers
    traces: list[Trace]
    layout: dict[str, Any]
    choose: str = ""  # what the views stand for ("Target")
    views: tuple[View, ...] = ()  # empty if there is nothing to choose

    def drawing(self) -> dict[str, Any]:
        """Returns everything that `report.js` needs to draw it."""
        return {
            "data": self.traces,
            "layout": self.layout,
            "views": [{"traces": list(v.traces), "layout": v.layout} for v in self.views],
        }


def layout(height: int, x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Returns a layout in the report's style; `x` and `y` are its axes."""
    return {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "paper_bgcolor": SURFACE,
        "plot_bgcolor": SURFACE,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": SURFACE, "bordercolor": LINE, "font": {"color": INK}},
        "legend": LEGEND,
        "showlegend": False,
        "xaxis": _axis(**x),
        "yaxis": _axis(**y),
    } | more


def _axis(title: str = "", **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": title, "standoff": 8, "font": {"color": MUTED}},
        "automargin": True,
        "gridcolor": LINE,
        "linecolor": LINE,
        "zerolinecolor": LINE,
        "tickfont": {"color": MUTED},
    } | more


def name_axis(names: Sequence[str], **more: Any) -> dict[str, Any]:
    """Returns an axis with a name at each integer, and no grid."""
    ticks = {"tickvals": list(range(len(names))), "ticktext": list(names)}
    return ticks | {"showgrid": False, "zeroline": False} | more


def scatter(
    mode: str, name: str, x: Any, y: Any, hover: str, *, digits: int = 5, **more: Any
) -> Trace:
    """Returns dots or lines; arrays become plain lists, and hovering shows only `hover`."""
    x, y = (part if isinstance(part, list) else plain(part, digits) for part in (x, y))
    trace = {"type": "scatter", "mode": mode, "name": name, "x": x, "y": y}
    return trace | {"hovertemplate": f"{hover}<extra></extra>"} | more


def dots(
    name: str, x: Any, y: Any, hover: str, rows: list[Any], colour: str = DOTS, **more: Any
) -> Trace:
    """Returns small dots; `rows` names the row of each, as %{customdata} in `hover`."""
    look = {"size": 5, "color": colour, "opacity": FAINT} | more
    return scatter("markers", name, x, y, hover, digits=4, customdata=rows, marker=look)


def line(name: str, x: Any, y: Any, hover: str, colour: str, **style: Any) -> Trace:
    """Returns a line; `style` has Plotly's options: width (2.5), dash."""
    return scatter("lines", name, x, y, hover, line={"color": colour, "width": 2.5} | style)


def diagonal(name: str, *values: np.ndarray) -> Trace:
    """Returns the dashed line x = y over the range of these values."""
    ends = np.array([np.nanmin(values), np.nanmax(values)])
    return line(name, ends, ends, "", INK, width=1.5, dash="dash") | {"hoverinfo": "skip"}


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


def plain(values: np.ndarray, digits: int = 5) -> list[Any]:
    """Returns an array as a list for JSON, with few digits, and null if not finite."""
    if values.ndim > 1:
        return [plain(row, digits) for row in values]
    if values.dtype.kind in "iub":
        return [int(value) for value in values]
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]
