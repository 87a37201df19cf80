"""Charts along the stream: where the errors are, and which rows were overwritten."""

import math
import re
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from retarget.diagnosis.measure.groups import partition
from retarget.diagnosis.report.charts import (
    BLUE,
    Chart,
    NotDrawn,
    dots,
    figure,
    finite,
    line,
    scale,
)
from retarget.diagnosis.result import Diagnosis, GroupShift
from retarget.diagnosis.stream import Stream
from retarget.diagnosis.words.names import chart_text, moment
from retarget.diagnosis.words.numbers import number, percent
from retarget.learners import COLORS

# Colors of groups, in order of appearance. If there are more groups, all have the same color.
GROUP_COLORS = (
    "#2E8BC9", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#B5A800",
    "#8F63B8", "#8C5A3C",
)  # fmt: skip
POINTS = 4000  # approximate limit for a chart; a browser stays quick with 5,000
FEWEST = 20  # points drawn of each group, however small its share
TICKS = 5  # dates on an axis along the stream
DATE = re.compile(r"\d{4}-\d\d-\d\d")


class Moved(NamedTuple):
    """What learning later rows has moved: predictions of the user's model, if it was run.

    Otherwise, these are the targets of the online learner.
    """

    yours: bool  # whether it is the user's model
    size: np.ndarray  # (n,) how far, of each row
    groups: GroupShift
    theory: np.ndarray | None = None  # (n,) how far the theory says, for the user's model


def moved(diagnosis: Diagnosis) -> Moved:
    """Returns what was moved: by the user's model, unless none of its movements is finite."""
    model = diagnosis.model
    if model is None or not np.isfinite(model.shift).any():
        return Moved(False, diagnosis.shift_size, diagnosis.groups)
    theory = None if model.theory is None else np.linalg.norm(model.theory, axis=1)
    return Moved(True, np.linalg.norm(model.shift, axis=1), model.groups, theory)


class DrawnChunk(NamedTuple):
    """The error on some consecutive rows (see `Diagnosis.along`), and where they are, in words."""

    where: str
    middle: float  # on the axis along the stream
    online: float
    batch: float
    now: float


def has_run(diagnosis: Diagnosis) -> bool:
    """Whether the user's own model predicted rows before it learned them."""
    return diagnosis.model is not None and bool(np.isfinite(diagnosis.model.before).any())


def chunks(diagnosis: Diagnosis) -> list[DrawnChunk]:
    """Returns the errors along the stream: of the user's model, or else of the online learner."""
    stream = diagnosis.stream
    along = diagnosis.along
    model = diagnosis.model
    at, unit = axis_of(stream)
    ends = [(first - 1, last - 1) for first, last in along.select("first", "last").iter_rows()]
    online, batch, now = (along[part].to_numpy() for part in ("online", "batch", "online_now"))
    if model is not None and has_run(diagnosis):
        online, now = (
            np.array([squares[a : b + 1].mean() for a, b in ends])
            for squares in (
                stream.squared(predictions - stream.Y) for predictions in (model.before, model.end)
            )
        )
    rows_together = []
    for end, *errors in zip(ends, online, batch, now, strict=True):
        a, b = (stream.nearest(position) for position in end)
        where = f"{unit}s {at[a]:,} to {at[b]:,}"
        if stream.times is not None:
            where += f" ({moment(stream.times[a])} to {moment(stream.times[b])})"
        rows_together.append(
            DrawnChunk(where, (at[a] + at[b]) / 2, *(float(error) for error in errors))
        )
    return rows_together


def along_chart(diagnosis: Diagnosis) -> Chart | NotDrawn:
    """Draws the error by chunk: before the rows were learned, of a batch model, and at the end.

    If the stream drifts, a line shows from where on.
    """
    parts = chunks(diagnosis)
    errors = finite([[chunk.online, chunk.batch, chunk.now] for chunk in parts])
    if not np.isfinite(errors[:, 0]).any():
        return NotDrawn(
            "Not drawn: the online model diverged, so none of its errors along the stream is a "
            "finite number."
        )
    who = "online model"
    other = "batch model"
    if has_run(diagnosis):
        who = "your model"
        other = "kernel batch model"
    names = (
        (f"{who}, just before it learned the rows", {"color": COLORS["online"]}),
        (f"{other} of all earlier rows", {"color": COLORS["offline"]}),
        (f"{who} at the end of the stream", {"color": COLORS["online"], "dash": "dash"}),
    )
    x = [chunk.middle for chunk in parts]
    places = [chart_text(chunk.where, 90) for chunk in parts]
    tip = "%{customdata}<br>error %{y:.3g}"
    traces = [
        line(label, x, values, tip, mode="lines+markers", customdata=places, line=look)
        for (label, look), values in zip(names, errors.T, strict=True)
        if np.isfinite(values).any()
    ]
    lines = [
        f"{label}: {number(float(known[0]))} at first, {number(float(known[-1]))} at last, at most "
        f"{number(float(known.max()))}"
        for (label, _), values in zip(names, errors.T, strict=True)
        if len(known := values[np.isfinite(values)])
    ]
    rise = np.nan_to_num(errors[:, 2] - errors[:, 0], nan=-np.inf)
    worst = parts[int(rise.argmax())]
    risen = (
        f" It rose most on {worst.where}: from {number(worst.online)} just before they were "
        f"learned to {number(worst.now)} at the end."
    )
    x_axis, bands = _along(diagnosis)
    drift = _drift_begins(diagnosis)
    drifted = ""
    if drift is not None:
        top = float(np.nanmax(errors))
        look = {"color": COLORS["iterative"], "dash": "dot", "width": 2}
        bottom = float(np.nanmin(errors)) if np.nanmin(errors) > 0 else 0.0
        tip = "the stream drifts from %{customdata} on"
        places = [chart_text(drift.where, 90)] * 2
        traces.append(
            line("drift begins", [drift.at] * 2, [bottom, top], tip, customdata=places, line=look)
        )
        drifted = (
            f" The dotted line is where the stream begins to drift ({drift.where}): from there on, "
            "recent rows predict the next ones better than all rows do."
        )
    return Chart(
        title="Where did it go wrong?",
        caption="Where the dashed line is above the solid one of the same color, the error on "
        "these rows has risen since they were learned. Where the solid one is above the batch "
        "model's, a batch model of the rows before does better."
        f"{risen * bool(rise.max() > 0)}{drifted}",
        alternative=f"Mean squared error along the stream. {'; '.join(lines)}.{drifted}",
        figure=figure(
            traces, 340, x_axis, {"title": "mean squared error"} | scale(errors.ravel(), 20),
            **bands | {"showlegend": True},
        ),
    )  # fmt: skip


class DriftBegins(NamedTuple):
    """The row from which on the stream drifts: its place on the axis, and in words."""

    at: float
    where: str


def _drift_begins(diagnosis: Diagnosis) -> DriftBegins | None:
    """Returns where drift begins, if the stream clearly drifts."""
    drift = diagnosis.drift
    stream = diagnosis.stream
    if drift is None or not any(one.kind == "drift" for one in diagnosis.findings):
        return None
    at, unit = axis_of(stream)
    row = int(np.flatnonzero(stream.rows == drift.onset)[0])
    where = f"{unit} {at[row]:,}"
    if stream.times is not None:
        where += f", {moment(stream.times[row])}"
    return DriftBegins(float(at[row]), where)


def shift_unit(diagnosis: Diagnosis) -> str:
    """Returns the unit of shifts, for an axis."""
    classes = diagnosis.stream.kind == "classification"
    return "1 = a whole class" if classes else "standard deviations"


def shift_chart(diagnosis: Diagnosis) -> Chart | NotDrawn:
    """Draws how far each row's target, or the model's prediction for it, was moved afterwards."""
    movement = moved(diagnosis)
    size = movement.size
    theory = movement.theory
    if not np.isfinite(size).any():
        return NotDrawn(
            "Not drawn: no row's shift is a finite number, since the online model diverged."
        )
    at, unit = axis_of(diagnosis.stream)
    names, groups = partition(diagnosis.stream)
    rows = drawn_rows(groups, most_shifted(size))
    texts = _row_texts(diagnosis, rows)
    tip = "%{customdata}<br>shift %{y:.3g}"
    x_axis, bands = _along(diagnosis)
    # Parts of a stream without groups need no colors: their place tells them apart.
    grouped = diagnosis.stream.groups is not None and 1 < len(names) <= len(GROUP_COLORS)
    named = grouped and "annotations" not in bands
    traces = []
    for g, group in enumerate(names if grouped else ("rows",)):
        ours = np.flatnonzero(groups[rows] == g) if grouped else np.arange(len(rows))
        of = rows[ours]
        color = GROUP_COLORS[g] if grouped else BLUE
        points = dots(chart_text(group), at[of], size[of], tip, [texts[i] for i in ours], color)
        traces.append(points.update(showlegend=named))
    middle, means, window = running_mean(size)
    around = f"around {unit} %{{x}}<br>"
    traces.append(line("running mean", at[middle], means, f"{around}mean shift %{{y:.3g}}"))
    if theory is not None and np.isfinite(theory).any():
        tip = f"{around}the theory predicts %{{y:.3g}}"
        predicted = running_mean(theory)[1]
        traces.append(line("theory", at[middle], predicted, tip, line={"dash": "dot"}))
    tenth = max(len(size) // 10, 1)
    first, last = (
        number(float(part[np.isfinite(part)].mean())) if np.isfinite(part).any() else "not defined"
        for part in (size[:tenth], size[-tenth:])
    )
    lost = int((~np.isfinite(size)).sum())
    meaning = "how far learning later rows moved its target"
    if movement.yours:
        meaning = "your model's prediction at the end, minus the one right after learning the row"
    drawn = f" {len(rows):,} of {len(size):,} rows are drawn ({percent(len(rows) / len(size))})."
    left_out = f" {lost:,} rows are left out: their shift is not finite, as the learner diverged."
    return Chart(
        title="Which predictions moved?" if movement.yours else "Which rows were overwritten?",
        caption=f"Each dot is a row, and its height is its shift: {meaning}. The line is the mean "
        f"over {window:,} rows at a time.{drawn * (len(rows) < len(size))}{left_out * (lost > 0)}",
        alternative=f"Size of the shift of {len(size):,} rows in stream order. Its mean is "
        f"{first} over the first tenth and {last} over the last.",
        figure=figure(
            traces, 340, x_axis,
            {"title": f"shift ({shift_unit(diagnosis)})"} | scale(size[rows]),
            **bands | {"showlegend": named or movement.theory is not None},
        ),
    )  # fmt: skip


def _row_texts(diagnosis: Diagnosis, rows: np.ndarray) -> list[str]:
    """Returns which row it is, with its time and group, for hovering."""
    stream = diagnosis.stream
    parts = [[f"row {stream.rows[row]:,}" for row in rows]]
    parts += [
        [chart_text(text, 32) for text in texts]
        for texts in (
            () if stream.times is None else [moment(time) for time in stream.times[rows]],
            () if stream.groups is None else [str(group) for group in stream.groups[rows]],
        )
        if len(texts)
    ]
    return [", ".join(texts) for texts in zip(*parts, strict=True)]


def axis_of(stream: Stream) -> tuple[np.ndarray, str]:
    """Returns where each row is drawn along the stream, and the unit.

    This is its number in the file, unless the stream was sorted: then it is its position.
    """
    if (np.diff(stream.rows) > 0).all():
        return stream.rows, "row"
    return stream.positions + 1, "position"


def _along(diagnosis: Diagnosis) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the axis along a stream, and a layout with a band for each stretch of one group.

    There are no bands without groups or with many stretches, and no names if they would overlap.
    """
    at, unit = axis_of(diagnosis.stream)
    room = 0.012 * (at[-1] - at[0] + 1)
    title = "row" if unit == "row" else "position in the stream"
    axis = {"title": title, "tickformat": ",d", "range": [at[0] - room, at[-1] + room]}
    if diagnosis.stream.times is not None:
        axis |= _time_ticks(at, diagnosis.stream.times)
    names, groups = partition(diagnosis.stream)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(groups)) + 1, [len(groups)]])
    if diagnosis.stream.groups is None or not 2 <= len(starts) - 1 <= 30:
        return axis, {}
    ends = [(float(at[a]) - 0.5, float(at[b - 1]) + 0.5) for a, b in pairwise(starts)]
    # Only every second band is filled: the background is the other color.
    band = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1}
    layout: dict[str, Any] = {"shapes": [band | {"x0": a, "x1": b} for a, b in ends[::2]]}
    labels = [chart_text(names[groups[start]], 12) for start in starts[:-1]]
    # 6 pixels per letter, on the 300 pixels of a phone
    space = 300 * np.diff(starts) / len(groups)
    if all(6 * len(text) + 6 <= wide for text, wide in zip(labels, space, strict=True)):
        label = {"yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
        layout["annotations"] = [
            label | {"text": text, "x": (a + b) / 2}
            for text, (a, b) in zip(labels, ends, strict=True)
        ]
        layout |= {"legend": {"y": 1.12}, "margin": {"t": 28}}
    return axis, layout


def _time_ticks(at: np.ndarray, times: np.ndarray) -> dict[str, Any]:
    """Returns ticks at some rows of the stream that say when these came."""
    rows = np.unique(((np.arange(TICKS) + 0.5) / TICKS * len(at)).astype(int))
    texts = [moment(times[row]) for row in rows]
    days = [text[:10] for text in texts]
    if all(DATE.match(text) for text in texts) and len(set(days)) == len(days):
        texts = days
    ticks = {"tickvals": [float(at[row]) for row in rows]}
    return ticks | {"ticktext": [chart_text(text, 20) for text in texts], "title": "when it came"}


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
    """Averages the finite values over a 40th of the rows, around `places` rows of the stream.

    Returns these rows (counted from 0), the means, and the number of rows in each.
    """
    n = len(values)
    window = min(n, max(5, math.ceil(n / 40)))
    known = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    middle = np.unique(np.linspace(0, n - 1, min(places, n)).round().astype(int))
    low = np.clip(middle - window // 2, 0, n - window)
    seen = count[low + window] - count[low]
    means = (total[low + window] - total[low]) / np.where(seen > 0, seen, np.nan)
    return middle, means, window
