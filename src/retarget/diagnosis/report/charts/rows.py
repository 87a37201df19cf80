"""Charts along the stream: shifts, errors, shift against density; and which rows are drawn."""

import math
from itertools import pairwise
from typing import Any

import numpy as np

from retarget.diagnosis.report.charts import (
    BAND,
    DOT_LEGEND,
    DOTS,
    FAINT,
    INK,
    LEGEND,
    MUTED,
    Chart,
    Trace,
    View,
    dots,
    layout,
    line,
    plain,
    scale,
)
from retarget.diagnosis.report.words import chart_text, name, number, percent
from retarget.diagnosis.result import Diagnosis, ModelDiagnosis
from retarget.diagnosis.stream import Stream
from retarget.learners import COLOURS

# Colours of groups, in order of appearance. If there are more groups, all have the same colour.
GROUP_COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#B5A800",
    "#8F63B8", "#8C5A3C",
)  # fmt: skip
POINTS = 4000  # approximate limit for a chart; a browser stays quick with 5,000
FEWEST = 20  # points drawn of each group, however small its share
AROUND = "around position %{x}<br>"


def shift_unit(diagnosis: Diagnosis) -> str:
    """Returns the unit of shifts, for an axis."""
    classes = diagnosis.stream.kind == "classification"
    return "1 = a whole class" if classes else "standard deviations"


def file_row(stream: Stream, row: int | np.integer[Any]) -> str:
    """Returns the number of a row in the user's file, counted from 1 without the header."""
    return f"{int(stream.rows[row]) + 1:,}"


def shift_chart(diagnosis: Diagnosis) -> Chart | None:
    """Draws how far each row's targets moved, along the stream."""
    return _along_the_stream(
        diagnosis,
        diagnosis.shift_size,
        key="shift",
        title="Shift along the stream",
        meaning="Dots high on the left are early rows whose targets later learning has changed: "
        "forgetting.",
    )


def model_shift_chart(diagnosis: Diagnosis, model: ModelDiagnosis) -> Chart | None:
    """Draws how far the user's model moved its predictions, and what the theory predicts."""
    return _along_the_stream(
        diagnosis,
        np.linalg.norm(model.shift, axis=1),
        key="model-shift",
        title="Shift of your model along the stream",
        meaning="The shift is the model's prediction for a row at the end, minus its prediction "
        "right after learning it. Dots high on the left are early rows that it has forgotten.",
        theory=None if model.theory is None else np.linalg.norm(model.theory, axis=1),
    )


def _along_the_stream(
    diagnosis: Diagnosis,
    size: np.ndarray,
    *,
    key: str,
    title: str,
    meaning: str,
    theory: np.ndarray | None = None,
) -> Chart | None:
    """Draws the `size` of each row's movement as a dot, and the size by `theory` as a line."""
    if not np.isfinite(size).any():
        return None
    groups, names = group_of_row(diagnosis), diagnosis.groups.names
    rows = drawn_rows(groups, most_shifted(size))
    # Parts of a stream without groups need no colours: their place tells them apart.
    grouped = diagnosis.stream.groups is not None and len(names) > 1
    told_apart = grouped and len(names) <= len(GROUP_COLOURS)
    colours = GROUP_COLOURS if told_apart else (DOTS,) * len(names)
    if not grouped:
        traces = [_points(diagnosis, size, rows, "rows", DOTS)]
    else:
        traces = [
            _points(diagnosis, size, rows[groups[rows] == g], group, colours[g])
            for g, group in enumerate(names)
        ]
    bands = {"shapes": [], "legend": DOT_LEGEND}
    if grouped:
        bands = _group_bands(diagnosis, DOT_LEGEND)
    named = told_apart and "annotations" not in bands
    for trace in traces:
        trace["showlegend"] = named
    where, means, window = running_mean(size)
    traces.append(line("running mean", where, means, f"{AROUND}mean shift %{{y:.3g}}", INK))
    if theory is not None and np.isfinite(theory).any():
        tip = f"{AROUND}the theory predicts %{{y:.3g}}"
        traces.append(line("theory", where, running_mean(theory)[1], tip, MUTED, dash="dot"))
    tenth = max(len(size) // 10, 1)
    first, last = (
        number(float(part[np.isfinite(part)].mean())) if np.isfinite(part).any() else "not defined"
        for part in (size[:tenth], size[-tenth:])
    )
    lost = int((~np.isfinite(size)).sum())
    return Chart(
        key=key,
        title=title,
        caption=f"{_which(rows, size)}{', coloured by group' * told_apart}; the line is the mean "
        f"over {window:,} rows at a time. {meaning}"
        + f" {lost:,} rows are left out: their shift is not finite, since the learner diverged."
        * (lost > 0),
        alternative=f"Size of the shift of {len(size):,} rows in stream order. Its mean is "
        f"{first} over the first tenth and {last} over the last.",
        traces=traces,
        layout=layout(
            340,
            _position(len(size)),
            {"title": f"shift ({shift_unit(diagnosis)})", "nticks": 7} | scale(size[rows]),
            showlegend=named or theory is not None,
            **bands,
        ),
        choose="Group" if grouped else "",
        views=_highlights(names, told_apart) if grouped else (),
    )


def _points(
    diagnosis: Diagnosis, size: np.ndarray, rows: np.ndarray, group: str, colour: str
) -> Trace:
    stream = diagnosis.stream
    texts = [f"row {file_row(stream, row)}" for row in rows]
    if stream.times is not None:
        times = (chart_text(str(time), 32) for time in stream.times[rows].tolist())
        texts = [f"{row}, {time}" for row, time in zip(texts, times, strict=True)]
    points = dots(chart_text(group), rows + 1, size[rows], "", texts, colour)
    tip = "%{customdata}<br>shift %{y:.3g}<extra>%{fullData.name}</extra>"
    return points | {"hovertemplate": tip}


def _highlights(names: tuple[str, ...], told_apart: bool) -> tuple[View, ...]:
    """Returns a view of all groups, then one for each group, in which the others fade."""
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
    """Draws shift against density, which shows whether rows in dense regions are moved more."""
    size, density = diagnosis.shift_size, diagnosis.density
    where, means = mean_by_tenth(density, size)
    if not len(where):
        return None
    rows = drawn_rows(group_of_row(diagnosis), most_shifted(size))
    tip, numbers = "density %{x:.3g}<br>", plain(diagnosis.stream.rows[rows] + 1)
    hover = f"row %{{customdata:,d}}<br>{tip}shift %{{y:.3g}}"
    mean = line("mean over a tenth", where, means, f"{tip}mean shift %{{y:.3g}}", INK)
    mean |= {"mode": "lines+markers", "marker": {"size": 6, "color": INK}}
    return Chart(
        key="density",
        title="Shift against density",
        caption=f"{_which(rows, size)}: on the right are rows with many "
        "similar ones; the line is the mean over a tenth of the rows at a time. If it rises to "
        "the right, rows in dense regions are moved more; if it falls, rare rows are.",
        alternative=f"Mean shift is {number(means[0])} where the stream is sparsest and "
        f"{number(means[-1])} where it is densest.",
        traces=[dots("rows", density[rows], size[rows], hover, numbers, opacity=0.5), mean],
        layout=layout(
            340,
            {"title": "density (mean similarity to others)", "nticks": 6},
            {"title": f"shift ({shift_unit(diagnosis)})", "nticks": 7} | scale(size[rows]),
            showlegend=True,
            legend=DOT_LEGEND,
        ),
    )


def _which(rows: np.ndarray, values: np.ndarray) -> str:
    """Begins a caption by saying whether all rows are drawn."""
    if len(rows) == len(values):
        return "Each dot is a row"
    return (
        f"Each dot is a row ({len(rows):,} of {len(values):,} are drawn, "
        f"{percent(len(rows) / len(values))}, and all are in the means)"
    )


def prequential_chart(diagnosis: Diagnosis) -> Chart | None:
    """Draws the online learner's error on each row, just before learning it."""
    stream = diagnosis.stream
    # After divergence a square may overflow: it is drawn as missing.
    with np.errstate(over="ignore", invalid="ignore"):
        squares = (diagnosis.prequential**2).mean(axis=1)
    if not np.isfinite(squares).any():
        return None
    where, means, window = running_mean(squares)
    online, colour = "online learner", COLOURS["online"]
    traces = [line(online, where, means, f"{AROUND}mean squared error %{{y:.3g}}", colour)]
    views: tuple[View, ...] = ()
    if stream.kind == "classification":
        predicted = (stream.Y - diagnosis.prequential).argmax(axis=1)
        _, wrong, _ = running_mean((predicted != stream.Y.argmax(axis=1)).astype(float))
        shares = line(online, where, wrong, f"{AROUND}share of rows %{{y:.0%}}", colour)
        traces.append(shares | {"visible": False})
        share_axis = {
            "yaxis.title.text": "share whose class was wrong",
            "yaxis.tickformat": ".0%",
            "yaxis.type": "linear",
            "yaxis.tickmode": "auto",
        }
        views = (
            View("Squared error", [{"visible": True}, {"visible": False}]),
            View("Wrong class", [{"visible": False}, {"visible": True}], share_axis),
        )
    else:
        level = float((stream.Y**2).mean())
        average, ends = "always the average", ([1, len(squares)], [level, level])
        tip = f"{average}: {number(level)}"
        traces.append(line(average, *ends, tip, MUTED, width=1.5, dash="dash"))
    bands = _group_bands(diagnosis, LEGEND)
    finite = means[np.isfinite(means)]
    return Chart(
        key="prequential",
        title="Online error along the stream",
        caption=f"The online learner's squared error on each row just before it learned it, as the "
        f"mean over {window:,} rows at a time. A falling line is learning; a jump is "
        f"something new, such as another group{' (each has a band)' if bands['shapes'] else ''}."
        + (" Above the dashed line, predicting the average would be better." if not views else ""),
        alternative=f"Mean squared error before learning: {number(finite[0])} at the start, "
        f"{number(finite[-1])} at the end, at most {number(finite.max())}.",
        traces=traces,
        layout=layout(
            320,
            _position(len(squares)),
            {"title": "squared error" + ("" if views else " (standardised)"), "nticks": 6}
            | scale(means),
            showlegend=not views,
            **bands,
        ),
        choose="Show" if views else "",
        views=views,
    )


def _position(rows: int) -> dict[str, Any]:
    """Returns the axis along a stream."""
    ends = [1 - 0.012 * rows, 1.012 * rows]
    return {"title": "position in the stream", "tickformat": ",d", "nticks": 6, "range": ends}


def group_of_row(diagnosis: Diagnosis) -> np.ndarray:
    """Returns (n,) the position of each row's group in `diagnosis.groups.names`.

    Without groups, these are consecutive parts of the stream. If there are too many groups, those
    without a name of their own have the last position.
    """
    names, groups = diagnosis.groups.names, diagnosis.stream.groups
    if groups is None:
        return np.repeat(np.arange(len(names)), diagnosis.groups.counts.astype(int))
    found, which = np.unique(groups.astype(str), return_inverse=True)
    places = {name: place for place, name in enumerate(names)}
    return np.array([places.get(str(name), len(names) - 1) for name in found])[which]


def _group_bands(diagnosis: Diagnosis, legend: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a layout with a band for each stretch of one group, and its name above.

    There are no bands if there are many stretches, and no names if they would overlap.
    """
    groups = group_of_row(diagnosis)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(groups)) + 1, [len(groups)]])
    if not 2 <= len(starts) - 1 <= 30:
        return {"shapes": [], "legend": legend}
    across = {"xref": "x", "yref": "paper"}
    band = across | {"type": "rect", "y0": 0, "y1": 1, "fillcolor": BAND, "layer": "below"}
    # Only every second band is filled: the background is the other colour.
    shapes = [
        band | {"x0": int(start) + 0.5, "x1": int(stop) + 0.5, "line": {"width": 0}}
        for start, stop in zip(starts[:-1:2], starts[1::2], strict=False)
    ]
    names = [chart_text(diagnosis.groups.names[groups[start]], 12) for start in starts[:-1]]
    # 6 pixels per letter, on the 300 pixels of a phone
    room = 300 * np.diff(starts) / len(groups)
    if any(6 * len(text) + 6 > space for text, space in zip(names, room, strict=True)):
        return {"shapes": shapes, "legend": legend}
    look = {"font": {"color": MUTED, "size": 11}}
    label = across | {"y": 1, "yanchor": "bottom", "showarrow": False} | look
    middles = ((start + stop) / 2 for start, stop in pairwise(starts))
    return {
        "shapes": shapes,
        "legend": legend | {"y": 1.12},
        "annotations": [
            label | {"text": text, "x": float(middle)}
            for text, middle in zip(names, middles, strict=True)
        ],
        "margin": {"l": 8, "r": 12, "t": 28, "b": 8},
    }


def drawn_rows(groups: np.ndarray, keep: np.ndarray, limit: int = POINTS) -> np.ndarray:
    """Returns the rows to draw, in order: all, or `limit` of them and those to `keep`.

    One row is drawn at random (with a fixed seed) from each stretch of its group: evenly spaced
    rows could miss periodic patterns.
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


def most_shifted(size: np.ndarray, rows: int = 10) -> np.ndarray:
    """Returns the rows that moved farthest, in descending order; diverged rows come first."""
    return np.argsort(-np.where(np.isnan(size), np.inf, size), kind="stable")[:rows]


def running_mean(values: np.ndarray, places: int = 300) -> tuple[np.ndarray, np.ndarray, int]:
    """Averages the finite values over a 40th of the rows, at `places` places along the stream.

    Returns the places (counted from 1), the means, and the number of rows in each.
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
    """Returns the means of both over tenths of the rows (fewer for few rows), by rising `order`."""
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
