"""Charts of the rows: their shift along the stream and by density, and the online error."""

from itertools import pairwise
from typing import Any

import numpy as np

from retarget.diagnosis.report_chart import (
    BAND,
    COLOURS,
    DOTS,
    GROUP_COLOURS,
    INK,
    MUTED,
    Chart,
    Trace,
    View,
    layout,
    legend_of_dots,
    plain,
    scale,
)
from retarget.diagnosis.report_rows import (
    drawn_rows,
    group_of_row,
    mean_by_tenth,
    most_shifted,
    running_mean,
)
from retarget.diagnosis.report_words import chart_text, count, name, number, percent
from retarget.diagnosis.result import Diagnosis

FAINT = 0.6  # opacity of a dot: where there are many it shows


def shift_unit(diagnosis: Diagnosis) -> str:
    """What shifts are measured in, for an axis."""
    if diagnosis.stream.kind == "classification":
        return "1 = a whole class"
    return "standard deviations"


def shift_chart(diagnosis: Diagnosis) -> Chart:
    """How far each row's targets moved, along the stream."""
    groups = group_of_row(diagnosis)
    rows = drawn_rows(groups, most_shifted(diagnosis))
    size = diagnosis.shift_size
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


def prequential_chart(diagnosis: Diagnosis) -> Chart | None:
    """The online learner's error on each row, just before learning it."""
    stream = diagnosis.stream
    # Far past divergence a square overflows: it is drawn as missing.
    with np.errstate(over="ignore", invalid="ignore"):
        squares = (diagnosis.prequential**2).mean(axis=1)
    if not np.isfinite(squares).any():
        return None
    where, means, window = running_mean(squares)
    traces = [_online_line(where, means, "mean squared error", ".3g")]
    views: tuple[View, ...] = ()
    if stream.kind == "classification":
        predicted = (stream.Y - diagnosis.prequential).argmax(axis=1)
        _, wrong, _ = running_mean((predicted != stream.Y.argmax(axis=1)).astype(float))
        traces.append(_online_line(where, wrong, "share of rows", ".0%") | {"visible": False})
        views = (
            View("Squared error", [{"visible": True}, {"visible": False}]),
            View(
                "Wrong class",
                [{"visible": False}, {"visible": True}],
                {
                    "yaxis.title.text": "share whose class was wrong",
                    "yaxis.tickformat": ".0%",
                    "yaxis.type": "linear",
                    "yaxis.tickmode": "auto",
                },
            ),
        )
    else:
        level = float((stream.Y**2).mean())
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "always the average",
                "x": [1, len(squares)],
                "y": [level, level],
                "line": {"color": MUTED, "dash": "dash", "width": 1.5},
                "hovertemplate": f"always the average: {number(level)}<extra></extra>",
            }
        )
    bands, labels = _group_bands(diagnosis)
    finite = means[np.isfinite(means)]
    return Chart(
        key="prequential",
        title="Online error along the stream",
        caption=f"The online learner's squared error on each row just before it learned it, as the "
        f"mean over {count(window)} rows at a time. A falling line is learning; a jump is "
        f"something new, such as another group{' (each has a band)' if bands else ''}."
        + (" Above the dashed line, the average would be a better guess." if not views else ""),
        alternative=f"Mean squared error before learning: {number(finite[0])} at the start, "
        f"{number(finite[-1])} at the end, at most {number(finite.max())}.",
        traces=traces,
        layout=layout(
            320,
            {"title": "position in the stream", "tickformat": ",d", "nticks": 6},
            {"title": "squared error" + ("" if views else " (standardised)"), "nticks": 6}
            | scale(means),
            showlegend=not views,
            shapes=bands,
            annotations=labels,
        ),
        choose="Show" if views else "",
        views=views,
    )


def _online_line(where: np.ndarray, means: np.ndarray, label: str, form: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "online learner",
        "x": plain(where),
        "y": plain(means),
        "line": {"color": COLOURS["online"], "width": 2.5},
        "hovertemplate": f"around position %{{x}}<br>{label} %{{y:{form}}}<extra></extra>",
    }


def _group_bands(diagnosis: Diagnosis) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A band for each stretch of the stream that is one group's, if they are few; and its name."""
    groups = group_of_row(diagnosis)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(groups)) + 1, [len(groups)]])
    if not 2 <= len(starts) - 1 <= 30:
        return [], []
    # Fills are drawn only every second time: the paper is the other colour.
    shapes = [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": int(start) + 0.5,
            "x1": int(stop) + 0.5,
            "y0": 0,
            "y1": 1,
            "fillcolor": BAND,
            "line": {"width": 0},
            "layer": "below",
        }
        for start, stop in zip(starts[:-1:2], starts[1::2], strict=False)
    ]
    labels: list[dict[str, Any]] = [
        {
            "text": chart_text(diagnosis.groups.names[groups[start]], 12),
            "xref": "x",
            "yref": "paper",
            "x": float(start + stop) / 2,
            "y": 1,
            "yanchor": "top",
            "showarrow": False,
            "font": {"color": MUTED, "size": 11},
        }
        for start, stop in pairwise(starts)
    ]
    # 6 pixels a letter, on the 300 that a phone has: names that would overlap are left out.
    widths = [6 * len(label["text"]) + 6 for label in labels]
    room = 300 * np.diff(starts) / len(groups)
    return shapes, labels if (widths <= room).all() else []


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
                "marker": {"size": 5, "color": DOTS, "opacity": 0.4},
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
