"""Charts of the rows' shift: along the stream, and by density."""

from typing import Any

import numpy as np

from retarget.colours import COLOURS
from retarget.diagnosis.report.charts.chart import (
    DOTS,
    GROUP_COLOURS,
    INK,
    Chart,
    Trace,
    View,
    drawn_rows,
    group_of_row,
    layout,
    legend_of_dots,
    mean_by_tenth,
    most_shifted,
    plain,
    running_mean,
    scale,
)
from retarget.diagnosis.report.words import chart_text, count, name, number, percent
from retarget.diagnosis.result import Diagnosis

FAINT = 0.6  # opacity of a dot: where there are many it shows


def shift_unit(diagnosis: Diagnosis) -> str:
    """What shifts are measured in, for an axis."""
    if diagnosis.stream.kind == "classification":
        return "1 = a whole class"
    return "standard deviations"


def shift_chart(diagnosis: Diagnosis) -> Chart | None:
    """How far each row's targets moved, along the stream."""
    groups = group_of_row(diagnosis)
    rows = drawn_rows(groups, most_shifted(diagnosis))
    size = diagnosis.shift_size
    if not np.isfinite(size).any():
        return None
    where, means, window = running_mean(size)
    names = diagnosis.groups.names
    told_apart = 1 < len(names) <= len(GROUP_COLOURS)
    traces = [
        _points(diagnosis, rows[groups[rows] == g], size, names[g], _colour(g, told_apart))
        for g in range(len(names))
    ]
    traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "running mean",
            "x": plain(where),
            "y": plain(means),
            "line": {"color": INK, "width": 2.5},
            "hovertemplate": "around position %{x}<br>mean shift %{y:.3g}<extra></extra>",
        }
    )
    tenth = max(len(size) // 10, 1)
    first, last = (_mean(part) for part in (size[:tenth], size[-tenth:]))
    colours = "coloured by group; " if told_apart else ""
    return Chart(
        key="shift",
        title="Shift along the stream",
        caption=f"{_which(rows, size, 'Each dot is a row')}, {colours}the line is the mean over "
        f"{count(window)} rows at a time. Dots high on the left are early rows whose targets later "
        f"learning has changed: forgetting.{_left_out(size)}",
        alternative=f"Size of the shift of {count(len(size))} rows in stream order. Its mean is "
        f"{number(first)} over the first tenth and {number(last)} over the last.",
        traces=traces,
        layout=layout(
            380,
            {"title": "position in the stream", "tickformat": ",d", "nticks": 6},
            {"title": f"shift ({shift_unit(diagnosis)})", "nticks": 7} | scale(size[rows]),
            showlegend=told_apart,
            legend=legend_of_dots(),
        ),
        choose="Group" if len(names) > 1 else "",
        views=_highlights(names, told_apart) if len(names) > 1 else (),
    )


def _points(
    diagnosis: Diagnosis, rows: np.ndarray, size: np.ndarray, group: str, colour: str
) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": chart_text(group),
        "x": plain(rows + 1),
        "y": plain(size[rows], 4),
        "customdata": _row_texts(diagnosis, rows),
        "marker": {"size": 5, "color": colour, "opacity": FAINT},
        "hovertemplate": "%{customdata}<br>shift %{y:.3g}<extra>%{fullData.name}</extra>",
    }


def _row_texts(diagnosis: Diagnosis, rows: np.ndarray) -> list[str]:
    stream = diagnosis.stream
    numbers = [f"row {row:,}" for row in stream.rows[rows].tolist()]
    if stream.times is None:
        return numbers
    times = (chart_text(str(time), 32) for time in stream.times[rows].tolist())
    return [f"{row}, {time}" for row, time in zip(numbers, times, strict=True)]


def _colour(group: int, told_apart: bool) -> str:
    return GROUP_COLOURS[group] if told_apart else DOTS


def _highlights(names: tuple[str, ...], told_apart: bool) -> tuple[View, ...]:
    """All groups alike, then each of them before the others, which fade."""
    everyone = View("All", [{"marker.opacity": FAINT, "marker.size": 5} for _ in names])
    faded = {"marker.opacity": 0.08, "marker.size": 4}
    strong: dict[str, Any] = {"marker.opacity": 0.9, "marker.size": 7}
    if not told_apart:
        strong["marker.color"] = COLOURS["online"]
    ones = (
        View(name(chosen), [strong if g == place else faded for g in range(len(names))])
        for place, chosen in enumerate(names)
    )
    return (everyone, *ones)


def density_chart(diagnosis: Diagnosis) -> Chart | None:
    """Shift against density: are rows in crowded places moved more?"""
    size, density = diagnosis.shift_size, diagnosis.density
    where, means = mean_by_tenth(density, size)
    if not len(where):
        return None
    rows = drawn_rows(group_of_row(diagnosis), most_shifted(diagnosis))
    return Chart(
        key="density",
        title="Shift against density",
        caption=f"{_which(rows, size, 'Each dot is a row')}: to the right, rows that have many "
        "others like them; the line is the mean over a tenth of the rows at a time. A line that "
        "rises to the right: crowded rows are moved more. One that falls: rare rows are.",
        alternative=f"Mean shift is {number(means[0])} where the stream is thinnest and "
        f"{number(means[-1])} where it is densest.",
        traces=[
            {
                "type": "scatter",
                "mode": "markers",
                "name": "rows",
                "x": plain(density[rows], 4),
                "y": plain(size[rows], 4),
                "customdata": plain(diagnosis.stream.rows[rows]),
                "marker": {"size": 5, "color": DOTS, "opacity": 0.5},
                "hovertemplate": "row %{customdata:,d}<br>density %{x:.3g}<br>shift %{y:.3g}"
                "<extra></extra>",
            },
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": "mean over a tenth",
                "x": plain(where),
                "y": plain(means),
                "line": {"color": INK, "width": 2.5},
                "marker": {"size": 6, "color": INK},
                "hovertemplate": "density %{x:.3g}<br>mean shift %{y:.3g}<extra></extra>",
            },
        ],
        layout=layout(
            340,
            {"title": "density (mean similarity to others)", "nticks": 6},
            {"title": f"shift ({shift_unit(diagnosis)})", "nticks": 7} | scale(size[rows]),
            showlegend=True,
            legend=legend_of_dots(),
        ),
    )


def _which(rows: np.ndarray, values: np.ndarray, begin: str) -> str:
    """The first words of a caption: whether all rows are drawn."""
    if len(rows) == len(values):
        return begin
    return (
        f"{begin} ({count(len(rows))} of {count(len(values))} are drawn, "
        f"{percent(len(rows) / len(values))}, and all are in the means)"
    )


def _left_out(values: np.ndarray) -> str:
    """A sentence on the rows that cannot be drawn."""
    rows = int((~np.isfinite(values)).sum())
    return f" {count(rows)} rows are left out: the shift is not finite, it diverged." * (rows > 0)


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")
