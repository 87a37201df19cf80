"""What a chart of the report is, and the parts that charts are made of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from retarget.diagnosis.report.words import number

# Colours that depend on the theme are names of the style sheet's properties: `report.js` looks
# them up, in colour attributes only, when it draws.
INK, MUTED, LINE, SURFACE, BAND = "--ink", "--muted", "--line", "--surface", "--band"
DOTS, WARM, COLD = "--dots", "--warm", "--cold"
FAINT = 0.6  # opacity of a dot: many dots in one place are darker

# Above the chart, where it hides nothing and wraps on a phone.
ABOVE = {"orientation": "h", "x": 0, "xanchor": "left", "yanchor": "bottom"}
LEGEND = ABOVE | {"y": 1.02, "bgcolor": SURFACE}
DOT_LEGEND = LEGEND | {"itemsizing": "constant"}  # for charts of small, faint dots

Trace = dict[str, Any]


@dataclass(frozen=True)
class View:
    """One of the pictures that a chart can show; the reader picks it from a list.

    It says what changes in each trace and in the layout: attribute paths ("marker.opacity") and
    values.
    """

    label: str
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Chart:
    """A Plotly chart with its words."""

    key: str  # its name in the page, as `chart-KEY`
    title: str
    caption: str  # how to read it
    alternative: str  # what it shows, for those who do not see it
    traces: list[Trace]
    layout: dict[str, Any]
    choose: str = ""  # what the views are ("Target")
    views: tuple[View, ...] = ()  # empty if there is nothing to choose

    def drawing(self) -> dict[str, Any]:
        """All that `report.js` needs to draw it."""
        return {
            "data": self.traces,
            "layout": self.layout,
            "views": [{"traces": list(v.traces), "layout": v.layout} for v in self.views],
        }


def layout(height: int, x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A layout with the common look; `x` and `y` are its axes."""
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
    """An axis with a name at each whole number, and no grid."""
    ticks = {"tickvals": list(range(len(names))), "ticktext": list(names)}
    return ticks | {"showgrid": False, "zeroline": False} | more


def scatter(
    mode: str, name: str, x: Any, y: Any, hover: str, *, digits: int = 5, **more: Any
) -> Trace:
    """Dots or lines: arrays become plain lists, and hovering shows `hover` alone."""
    x, y = (part if isinstance(part, list) else plain(part, digits) for part in (x, y))
    trace = {"type": "scatter", "mode": mode, "name": name, "x": x, "y": y}
    return trace | {"hovertemplate": f"{hover}<extra></extra>"} | more


def dots(
    name: str, x: Any, y: Any, hover: str, rows: list[Any], colour: str = DOTS, **more: Any
) -> Trace:
    """Small dots; `rows` says of each which row it is, as %{customdata} in `hover`."""
    look = {"size": 5, "color": colour, "opacity": FAINT} | more
    return scatter("markers", name, x, y, hover, digits=4, customdata=rows, marker=look)


def line(name: str, x: Any, y: Any, hover: str, colour: str, **style: Any) -> Trace:
    """A line; `style` is Plotly's: width (2.5), dash."""
    return scatter("lines", name, x, y, hover, line={"color": colour, "width": 2.5} | style)


def diagonal(name: str, *values: np.ndarray) -> Trace:
    """The dashed line on which both axes have the same value, as long as these values reach."""
    ends = np.array([np.nanmin(values), np.nanmax(values)])
    return line(name, ends, ends, "", INK, width=1.5, dash="dash") | {"hoverinfo": "skip"}


def scale(values: np.ndarray, apart: float = 100) -> dict[str, Any]:
    """An axis's scale: logarithmic if positive values reach `apart` times their median."""
    values = values[np.isfinite(values)]
    if not len(values) or values.min() <= 0 or values.max() < apart * np.median(values):
        return {"rangemode": "tozero"}
    return log_scale(values)


def log_scale(values: np.ndarray) -> dict[str, Any]:
    """A logarithmic scale for positive values, with at most six ticks, in plain numbers."""
    low, high = np.log10(values.min()), np.log10(values.max())
    steps: tuple[int, ...] = (1,) if high - low > 2.5 else (1, 3) if high - low > 1 else (1, 2, 5)
    powers = np.arange(np.floor(low), np.ceil(high) + 1, max(np.ceil((high - low) / 6), 1))
    ticks = [step * 10.0**power for power in powers for step in steps]
    return {"type": "log", "tickvals": ticks, "ticktext": [number(tick) for tick in ticks]}


def plain(values: np.ndarray, digits: int = 5) -> list[Any]:
    """An array as a list for JSON: few digits, and null for what is not a finite number."""
    if values.ndim > 1:
        return [plain(row, digits) for row in values]
    if values.dtype.kind in "iub":
        return [int(value) for value in values]
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]
