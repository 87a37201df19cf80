"""What a chart of the report is, how all of them look, and which rows they draw."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from retarget.diagnosis.report.words import number
from retarget.diagnosis.result import Diagnosis

# For groups, in the order in which they appear. More groups than this are not told apart by colour.
GROUP_COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#B5A800",
    "#8F63B8", "#8C5A3C",
)  # fmt: skip
# Colours that depend on the theme are names of the style sheet's properties: `report.js` looks
# them up, in colour attributes only, when it draws.
INK, MUTED, LINE, SURFACE, BAND = "--ink", "--muted", "--line", "--surface", "--band"
DOTS, WARM, COLD = "--dots", "--warm", "--cold"

# Above the chart, where it hides nothing and wraps on a phone.
LEGEND = {
    "orientation": "h",
    "x": 0,
    "y": 1.02,
    "xanchor": "left",
    "yanchor": "bottom",
    "bgcolor": SURFACE,
}

Trace = dict[str, Any]
POINTS = 4000  # drawn in a chart, at most about; a browser stays quick with 5,000
FEWEST = 20  # of each group, however small its share


@dataclass(frozen=True)
class View:
    """One of the pictures that a chart can show; the reader picks it from a list.

    Attributes:
        label: Its name in the list.
        traces: What changes in each trace: attribute paths ("marker.opacity") and values.
        layout: What changes in the layout.
    """

    label: str
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Chart:
    """A Plotly chart with its words.

    Attributes:
        key: Its name in the page, as `chart-KEY`.
        title: Its heading.
        caption: How to read it, a sentence or two.
        alternative: What it shows, for those who do not see it.
        traces: Plotly's traces.
        layout: Plotly's layout.
        choose: What the views are ("Target"); empty if there is one view only.
        views: The views, the first one shown first; none if there is nothing to choose.
    """

    key: str
    title: str
    caption: str
    alternative: str
    traces: list[Trace]
    layout: dict[str, Any]
    choose: str = ""
    views: tuple[View, ...] = ()

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
        "xaxis": axis(**x),
        "yaxis": axis(**y),
    } | more


def legend_of_dots() -> dict[str, Any]:
    """The legend with dots of one size, for charts of small, faint ones."""
    return LEGEND | {"itemsizing": "constant"}


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis with the common look."""
    return {
        "title": {"text": title, "standoff": 8, "font": {"color": MUTED}},
        "automargin": True,
        "gridcolor": LINE,
        "linecolor": LINE,
        "zerolinecolor": LINE,
        "tickfont": {"color": MUTED},
    } | more


def scale(values: np.ndarray, apart: float = 100) -> dict[str, Any]:
    """An axis's scale: logarithmic if positive values differ from the median `apart` times."""
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


def plain(values: Any, digits: int = 5) -> Any:
    """Arrays as lists for JSON: few digits, and null for what is not a finite number."""
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return [plain(row, digits) for row in values]
    if np.asarray(values).dtype.kind in "iub":
        return [int(value) for value in np.asarray(values)]
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in np.asarray(values)]


def group_of_row(diagnosis: Diagnosis) -> np.ndarray:
    """(n,) the place of each row's group in `diagnosis.groups.names`.

    These are the stream's own groups (if they are many, the last place is for those without one
    of their own), or its consecutive parts.
    """
    names, groups = diagnosis.groups.names, diagnosis.stream.groups
    if groups is None:
        return np.repeat(np.arange(len(names)), diagnosis.groups.counts.astype(int))
    found, which = np.unique(groups.astype(str), return_inverse=True)
    places = {name: place for place, name in enumerate(names)}
    return np.array([places.get(str(name), len(names) - 1) for name in found])[which]


def drawn_rows(groups: np.ndarray, keep: np.ndarray, limit: int = POINTS) -> np.ndarray:
    """The rows to draw, in order: all, or `limit` of them and those to `keep`.

    One row is drawn at random (always the same) out of each stretch of its group: evenly
    spaced rows would miss whatever comes in a rhythm.
    """
    n = len(groups)
    if n <= limit:
        return np.arange(n)
    rng = np.random.default_rng(0)
    chosen = [keep]
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        wanted = min(len(rows), max(math.ceil(limit * len(rows) / n), FEWEST))
        edges = np.linspace(0, len(rows), wanted + 1)
        chosen.append(rows[(edges[:-1] + rng.random(wanted) * np.diff(edges)).astype(int)])
    return np.unique(np.concatenate(chosen))


def most_shifted(diagnosis: Diagnosis, rows: int = 10) -> np.ndarray:
    """The rows whose targets moved farthest, the farthest first."""
    size = np.where(np.isnan(diagnosis.shift_size), np.inf, diagnosis.shift_size)
    return np.argsort(-size, kind="stable")[:rows]


def running_mean(values: np.ndarray, places: int = 300) -> tuple[np.ndarray, np.ndarray, int]:
    """The mean over a window of a 40th of the rows, at `places` places along the stream.

    Returns:
        Where (counted from 1), the means over the rows whose value is finite, and the window.
    """
    n = len(values)
    window = min(n, max(5, math.ceil(n / 40)))
    finite = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    number = np.concatenate([[0], np.cumsum(finite)])
    middle = np.unique(np.linspace(0, n - 1, min(places, n)).round().astype(int))
    low = np.clip(middle - window // 2, 0, n - window)
    seen = number[low + window] - number[low]
    means = (total[low + window] - total[low]) / np.where(seen > 0, seen, np.nan)
    return middle + 1, means, window


def mean_by_tenth(order: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The means of both over tenths of the rows (fewer for few rows), by rising `order`."""
    both = np.isfinite(order) & np.isfinite(values)
    order, values = order[both], values[both]
    if not len(order):
        return np.empty(0), np.empty(0)
    rows = np.argsort(order, kind="stable")
    tenths = np.array_split(rows, min(10, max(len(rows) // 5, 1)))
    return (
        np.array([order[tenth].mean() for tenth in tenths]),
        np.array([values[tenth].mean() for tenth in tenths]),
    )
