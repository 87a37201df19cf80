"""Charts of the rows: how far each was shifted, along the stream and by density, and to where."""

import math
from typing import Any

import numpy as np

from retarget.diagnosis.report.charts import (
    DOT_LEGEND,
    DOTS,
    INK,
    MUTED,
    Chart,
    Trace,
    View,
    layout,
    line,
    plain,
    scale,
    scatter,
)
from retarget.diagnosis.report.words import chart_text, name, number, percent
from retarget.diagnosis.result import Diagnosis
from retarget.learners import COLOURS

# For groups, in the order in which they appear. More groups than this are not told apart by colour.
GROUP_COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#B5A800",
    "#8F63B8", "#8C5A3C",
)  # fmt: skip
FAINT = 0.6  # opacity of a dot: where there are many it shows
POINTS = 4000  # drawn in a chart, at most about; a browser stays quick with 5,000
FEWEST = 20  # of each group, however small its share
ALL_TARGETS = 20_000  # points in all, whatever the number of targets: the page's size
MOST_TARGETS = 40
MOST_CLASSES = 30


def shift_unit(diagnosis: Diagnosis) -> str:
    """What shifts are measured in, for an axis."""
    classes = diagnosis.stream.kind == "classification"
    return "1 = a whole class" if classes else "standard deviations"


def shift_chart(diagnosis: Diagnosis) -> Chart | None:
    """How far each row's targets moved, along the stream."""
    groups, size = group_of_row(diagnosis), diagnosis.shift_size
    rows = drawn_rows(groups, most_shifted(diagnosis))
    if not np.isfinite(size).any():
        return None
    where, means, window = running_mean(size)
    names = diagnosis.groups.names
    told_apart = 1 < len(names) <= len(GROUP_COLOURS)
    colours = GROUP_COLOURS if told_apart else (DOTS,) * len(names)
    traces = [
        _points(diagnosis, rows[groups[rows] == g], group, colours[g])
        for g, group in enumerate(names)
    ]
    hover = "around position %{x}<br>mean shift %{y:.3g}"
    traces.append(line("running mean", where, means, hover, INK))
    tenth = max(len(size) // 10, 1)
    first, last = (
        number(float(part[np.isfinite(part)].mean())) if np.isfinite(part).any() else "not defined"
        for part in (size[:tenth], size[-tenth:])
    )
    lost = int((~np.isfinite(size)).sum())
    return Chart(
        key="shift",
        title="Shift along the stream",
        caption=f"{_which(rows, size)}, {'coloured by group; ' * told_apart}the line is the mean "
        f"over {window:,} rows at a time. Dots high on the left are early rows whose targets later "
        "learning has changed: forgetting."
        + f" {lost:,} rows are left out: the shift is not finite, it diverged."
        * (lost > 0),
        alternative=f"Size of the shift of {len(size):,} rows in stream order. Its mean is "
        f"{first} over the first tenth and {last} over the last.",
        traces=traces,
        layout=layout(
            380,
            {"title": "position in the stream", "tickformat": ",d", "nticks": 6},
            {"title": f"shift ({shift_unit(diagnosis)})", "nticks": 7} | scale(size[rows]),
            showlegend=told_apart,
            legend=DOT_LEGEND,
        ),
        choose="Group" if len(names) > 1 else "",
        views=_highlights(names, told_apart) if len(names) > 1 else (),
    )


def _points(diagnosis: Diagnosis, rows: np.ndarray, group: str, colour: str) -> Trace:
    stream = diagnosis.stream
    texts = [f"row {row:,}" for row in stream.rows[rows].tolist()]
    if stream.times is not None:
        times = (chart_text(str(time), 32) for time in stream.times[rows].tolist())
        texts = [f"{row}, {time}" for row, time in zip(texts, times, strict=True)]
    return scatter(
        "markers",
        chart_text(group),
        rows + 1,
        diagnosis.shift_size[rows],
        "",
        digits=4,
        customdata=texts,
        marker={"size": 5, "color": colour, "opacity": FAINT},
        hovertemplate="%{customdata}<br>shift %{y:.3g}<extra>%{fullData.name}</extra>",
    )


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
    tip = "density %{x:.3g}<br>"
    dots = scatter(
        "markers",
        "rows",
        density[rows],
        size[rows],
        f"row %{{customdata:,d}}<br>{tip}shift %{{y:.3g}}",
        digits=4,
        customdata=plain(diagnosis.stream.rows[rows]),
        marker={"size": 5, "color": DOTS, "opacity": 0.5},
    )
    mean = line("mean over a tenth", where, means, f"{tip}mean shift %{{y:.3g}}", INK)
    mean |= {"mode": "lines+markers", "marker": {"size": 6, "color": INK}}
    return Chart(
        key="density",
        title="Shift against density",
        caption=f"{_which(rows, size)}: to the right, rows that have many "
        "others like them; the line is the mean over a tenth of the rows at a time. A line that "
        "rises to the right: crowded rows are moved more. One that falls: rare rows are.",
        alternative=f"Mean shift is {number(means[0])} where the stream is thinnest and "
        f"{number(means[-1])} where it is densest.",
        traces=[dots, mean],
        layout=layout(
            340,
            {"title": "density (mean similarity to others)", "nticks": 6},
            {"title": f"shift ({shift_unit(diagnosis)})", "nticks": 7} | scale(size[rows]),
            showlegend=True,
            legend=DOT_LEGEND,
        ),
    )


def _which(rows: np.ndarray, values: np.ndarray) -> str:
    """The first words of a caption: whether all rows are drawn."""
    if len(rows) == len(values):
        return "Each dot is a row"
    return (
        f"Each dot is a row ({len(rows):,} of {len(values):,} are drawn, "
        f"{percent(len(rows) / len(values))}, and all are in the means)"
    )


def targets_chart(diagnosis: Diagnosis) -> Chart | None:
    """True against effective targets; for classes, the rows of each that changed class."""
    if not np.isfinite(diagnosis.shift_size).any():
        return None
    classes = diagnosis.stream.kind == "classification"
    return _classes(diagnosis) if classes else _numbers(diagnosis)


def _numbers(diagnosis: Diagnosis) -> Chart:
    stream = diagnosis.stream
    names = stream.target_names[:MOST_TARGETS]
    limit = min(POINTS, ALL_TARGETS // len(names))
    rows = drawn_rows(group_of_row(diagnosis), most_shifted(diagnosis), limit)
    true, effective = (stream.in_units(Z[rows]) for Z in (stream.Y, diagnosis.effective))
    crossed = stream.Y[rows] * diagnosis.effective[rows] < 0
    traces: list[Trace] = []
    for target in range(len(names)):
        x, y, other = true[:, target], effective[:, target], crossed[:, target]
        for side, label, colour in (
            (~other, "same side of the average", DOTS),
            (other, "other side", COLOURS["iterative"]),
        ):
            dots = scatter(
                "markers",
                label,
                x[side],
                y[side],
                "row %{customdata:,d}<br>true %{x:.4g}<br>effective %{y:.4g}",
                digits=4,
                customdata=plain(stream.rows[rows][side]),
                marker={"size": 5, "color": colour, "opacity": FAINT},
            )
            traces.append(dots)
        ends = np.array([np.nanmin(x), np.nanmax(x)])
        traces.append(line("learned as it is", ends, ends, "", INK, width=1.5, dash="dash"))
        traces[-1]["hoverinfo"] = "skip"
    for trace in traces[3:]:
        trace["visible"] = False
    drawn = f"{len(rows):,} of {len(stream):,} rows are drawn. " * (len(rows) < len(stream))
    others = f"The first {len(names)} of {len(stream.target_names)} targets can be chosen. " * (
        len(names) < len(stream.target_names)
    )
    titles = [f"true {chart_text(target, 40)}" for target in names]
    views = tuple(
        View(
            name(target),
            [{"visible": trace // 3 == place} for trace in range(len(traces))],
            {"xaxis.title.text": titles[place]},
        )
        for place, target in enumerate(names)
    )
    return Chart(
        key="targets",
        title="What was to be learned, and what was",
        caption="Each dot is a row: across, its true target; up, the target that the offline "
        "learner would need to be given to end up where the online one did. On the dashed line "
        "it was learned as it is; a flatter cloud was weakened. "
        f"{drawn}{others}".rstrip(),
        alternative=f"Effective against true targets. {percent(float(diagnosis.changed.mean()))} "
        "of the rows ended on the other side of the average.",
        traces=traces,
        layout=layout(
            420,
            {"title": titles[0], "nticks": 6},
            {"title": "effective", "nticks": 7},
            showlegend=True,
            legend=DOT_LEGEND,
        ),
        choose="Target" if len(names) > 1 else "",
        views=views if len(names) > 1 else (),
    )


def _classes(diagnosis: Diagnosis) -> Chart:
    names = diagnosis.stream.target_names
    true = diagnosis.stream.Y.argmax(axis=1)
    to = np.zeros((len(names), len(names)), dtype=int)  # changed rows, from class to class
    effective = diagnosis.effective.argmax(axis=1)
    np.add.at(to, (true[diagnosis.changed], effective[diagnosis.changed]), 1)
    rows, changed = np.bincount(true, minlength=len(names)), to.sum(axis=1)
    share = changed / np.maximum(rows, 1)
    shown = np.sort(np.argsort(-share, kind="stable")[:MOST_CLASSES])
    became = [f", most often to {names[k]}" for k in to.argmax(axis=1)]
    worst = int(np.argmax(share))
    few = f"The {MOST_CLASSES} classes that changed most, of {len(names):,}."
    bars: Trace = {
        "type": "bar",
        "orientation": "h",
        "name": "changed class",
        "x": plain(share[shown]),
        "y": plain(np.arange(len(shown))),
        "text": [percent(float(s)) for s in share[shown]],
        "textposition": "outside",
        "customdata": [
            f"{changed[k]:,} of {rows[k]:,} rows{chart_text(became[k], 60) if changed[k] else ''}"
            for k in shown
        ],
        "marker": {"color": COLOURS["online"]},
        "textfont": {"color": MUTED},
        "cliponaxis": False,
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    x = {
        "title": "share of the class's rows",
        "tickformat": ".0%",
        "range": [0, max(float(share.max()) * 1.12, 0.05)],
    }
    y = {
        "tickvals": plain(np.arange(len(shown))),
        "ticktext": [chart_text(names[k], 18) for k in shown],
        "autorange": "reversed",
        "showgrid": False,
        "zeroline": False,
        "tickfont": {"color": INK},
    }
    return Chart(
        key="targets",
        title="Rows whose class changed",
        caption="For each class, the share of its rows whose effective target is largest for "
        "another class: the online learner has really learned that they are something else."
        + f" {few}"
        * (len(shown) < len(names)),
        alternative=f"{percent(float(diagnosis.changed.mean()))} of all rows changed class; "
        f"most of all {name(names[worst])}, {percent(float(share[worst]))} of its rows"
        f"{name(became[worst]) if changed[worst] else ''}.",
        traces=[bars],
        layout=layout(100 + 26 * len(shown), x, y, bargap=0.35),
    )


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
