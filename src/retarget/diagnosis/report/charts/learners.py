"""Charts of errors: of learners, groups, candidates for rate and ridge, and along the stream."""

import math
from itertools import pairwise
from typing import Any

import numpy as np

from retarget.diagnosis.report.charts import (
    ABOVE,
    BAND,
    COLD,
    INK,
    MUTED,
    SURFACE,
    WARM,
    Chart,
    Trace,
    View,
    layout,
    line,
    log_scale,
    plain,
    scale,
    scatter,
)
from retarget.diagnosis.report.charts.rows import group_of_row, running_mean
from retarget.diagnosis.report.words import (
    chart_text,
    interval,
    largest_moves,
    number,
    percent,
    with_interval,
)
from retarget.diagnosis.result import Choice, Diagnosis, Estimate, LearnerName
from retarget.learners import COLOURS, LABELS


def learner_label(learner: LearnerName) -> str:
    """The learner's name, as it begins a line."""
    return LABELS[learner].capitalize()


def error_chart(diagnosis: Diagnosis) -> Chart | None:
    """The learners' errors with their intervals."""
    return _estimates(
        "errors",
        "Error on rows not learned from",
        {score.learner: score.error for score in diagnosis.scores},
        "mean squared error",
        "The dot is the score, the line the range in which it lies with 95% confidence; farther "
        "left is better. Where the lines of two learners hardly overlap, their difference is not "
        "chance.",
        share=False,
    )


def accuracy_chart(diagnosis: Diagnosis) -> Chart | None:
    """The learners' accuracies with their intervals; for classes only."""
    return _estimates(
        "accuracies",
        "Rows whose class is right",
        {s.learner: s.accuracy for s in diagnosis.scores if s.accuracy is not None},
        "share of rows",
        "As above, for the share of rows whose class was predicted correctly: "
        "farther right is better.",
        share=True,
    )


def _estimates(
    key: str,
    title: str,
    estimates: dict[LearnerName, Estimate],
    axis: str,
    caption: str,
    share: bool,
) -> Chart | None:
    estimates = {name: e for name, e in estimates.items() if math.isfinite(e.value)}
    if not estimates:
        return None
    values = np.array([e.value for e in estimates.values()])
    wide = not share and values.min() > 0 and values.max() > 30 * values.min()
    x: dict[str, Any] = {"title": axis, "nticks": 6}
    x |= {"tickformat": ".0%"} if share else log_scale(values) if wide else {}
    y = {
        "type": "category",
        "categoryarray": [_in_two_lines(name) for name in reversed(estimates)],
        "categoryorder": "array",
        "tickfont": {"color": INK},
        "showgrid": False,
    }
    described = (f"{learner_label(n)}: {with_interval(e, share)}" for n, e in estimates.items())
    return Chart(
        key=key,
        title=title,
        caption=caption,
        alternative=f"{title}. {'; '.join(described)}",
        traces=[_estimate(name, e, share) for name, e in estimates.items()],
        layout=layout(90 + 48 * len(estimates), x, y),
    )


def _in_two_lines(learner: LearnerName) -> str:
    return learner_label(learner).replace(", ", ",<br>")


def _estimate(learner: LearnerName, estimate: Estimate, share: bool) -> Trace:
    value, colour = estimate.value, COLOURS[learner]
    low, high = (end if math.isfinite(end) else value for end in (estimate.low, estimate.high))
    written = (percent if share else number)(value)
    return scatter(
        "markers",
        learner_label(learner),
        [value],
        [_in_two_lines(learner)],
        f"{learner_label(learner)}<br>{written}<br>95%: {interval(estimate, share)}",
        marker={"size": 12, "color": colour},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [max(high - value, 0)],
            "arrayminus": [max(value - low, 0)],
            "color": colour,
            "thickness": 2.5,
            "width": 6,
        },
    )


def choice_chart(name: str, choice: Choice, largest: float | None = None) -> Chart | None:
    """The candidates for a parameter; `largest` marks the largest stable rate."""
    tried = choice.tried.sort("value")
    value = tried["value"].to_numpy().astype(float)
    score = tried["score"].cast(float).fill_null(math.nan).to_numpy().astype(float)
    finite = np.isfinite(score)
    if finite.sum() < 2:
        return None
    found, failed = score[finite], value[~finite]
    tip = f"{name} %{{x:.3g}}<br>"
    traces = [
        scatter(
            "lines+markers",
            "tried",
            value[finite],
            found,
            f"{tip}score %{{y:.3g}}",
            line={"color": MUTED, "width": 1.5},
            marker={"size": 7, "color": MUTED},
        ),
        _used(name, choice, value[finite], found),
    ]
    if len(failed):
        cross = {"symbol": "x", "size": 9, "color": COLOURS["iterative"]}
        top = np.full(len(failed), found.max())
        traces.append(scatter("markers", "diverged", failed, top, f"{tip}diverged", marker=cross))
    if largest is not None and value.min() <= largest <= 3 * value.max():
        tip = f"largest stable rate: {number(largest)}"
        traces.append(_upright("largest stable", largest, found, tip, COLOURS["iterative"]))
    best = value[finite][np.argmin(found)]
    return Chart(
        key=name,
        title=f"Candidates for the {name}",
        caption=f"Each dot is a {name} that was tried; lower is better. Green is what was used. "
        + ("A cross diverged: it has no score." if len(failed) else ""),
        alternative=f"{len(value)} candidates for the {name} from {number(value.min())} to "
        f"{number(value.max())}, the best at {number(best)}; {number(choice.value)} was used, and "
        f"{len(failed)} diverged.",
        traces=traces,
        layout=layout(
            260,
            {"title": name} | (log_scale(value) if value.min() > 0 else {}),
            {"title": "score", "nticks": 6} | scale(score, 30) | {"rangemode": "normal"},
            showlegend=True,
        ),
    )


def _used(name: str, choice: Choice, value: np.ndarray, score: np.ndarray) -> Trace:
    """A dot on the candidate that was used; a line if it is none of them."""
    nearest = int(np.argmin(np.abs(value - choice.value)))
    hover, colour = f"used: {name} {number(choice.value)}", COLOURS["corrected"]
    if not np.isclose(value[nearest], choice.value, rtol=1e-6):
        return _upright("used", choice.value, score, hover, colour)
    dot = {"size": 13, "color": colour}
    return scatter("markers", "used", [choice.value], score[[nearest]], hover, marker=dot)


def _upright(name: str, x: float, score: np.ndarray, hover: str, colour: str) -> Trace:
    ends = np.array([score.min(), score.max()])
    return line(name, [x, x], ends, hover, colour, width=2, dash="dash")


def prequential_chart(diagnosis: Diagnosis) -> Chart | None:
    """The online learner's error on each row, just before learning it."""
    stream = diagnosis.stream
    # Far past divergence a square overflows: it is drawn as missing.
    with np.errstate(over="ignore", invalid="ignore"):
        squares = (diagnosis.prequential**2).mean(axis=1)
    if not np.isfinite(squares).any():
        return None
    where, means, window = running_mean(squares)
    around, colour = "around position %{x}<br>", COLOURS["online"]
    online = "online learner"
    traces = [line(online, where, means, f"{around}mean squared error %{{y:.3g}}", colour)]
    views: tuple[View, ...] = ()
    if stream.kind == "classification":
        predicted = (stream.Y - diagnosis.prequential).argmax(axis=1)
        _, wrong, _ = running_mean((predicted != stream.Y.argmax(axis=1)).astype(float))
        traces.append(line(online, where, wrong, f"{around}share of rows %{{y:.0%}}", colour))
        traces[-1]["visible"] = False
        shares = {
            "yaxis.title.text": "share whose class was wrong",
            "yaxis.tickformat": ".0%",
            "yaxis.type": "linear",
            "yaxis.tickmode": "auto",
        }
        views = (
            View("Squared error", [{"visible": True}, {"visible": False}]),
            View("Wrong class", [{"visible": False}, {"visible": True}], shares),
        )
    else:
        level = float((stream.Y**2).mean())
        average, ends = "always the average", ([1, len(squares)], [level, level])
        tip = f"{average}: {number(level)}"
        traces.append(line(average, *ends, tip, MUTED, width=1.5, dash="dash"))
    bands, labels = _group_bands(diagnosis)
    finite = means[np.isfinite(means)]
    return Chart(
        key="prequential",
        title="Online error along the stream",
        caption=f"The online learner's squared error on each row just before it learned it, as the "
        f"mean over {window:,} rows at a time. A falling line is learning; a jump is "
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


def _group_bands(diagnosis: Diagnosis) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A band for each stretch of the stream that is one group's, if they are few; and its name."""
    groups = group_of_row(diagnosis)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(groups)) + 1, [len(groups)]])
    if not 2 <= len(starts) - 1 <= 30:
        return [], []
    across = {"xref": "x", "yref": "paper"}
    band = across | {"type": "rect", "y0": 0, "y1": 1, "fillcolor": BAND, "layer": "below"}
    # Fills are drawn only every second time: the paper is the other colour.
    shapes: list[dict[str, Any]] = [
        band | {"x0": int(start) + 0.5, "x1": int(stop) + 0.5, "line": {"width": 0}}
        for start, stop in zip(starts[:-1:2], starts[1::2], strict=False)
    ]
    label = across | {"y": 1, "yanchor": "top", "showarrow": False}
    labels: list[dict[str, Any]] = [
        label
        | {
            "text": chart_text(diagnosis.groups.names[groups[start]], 12),
            "x": float(start + stop) / 2,
            "font": {"color": MUTED, "size": 11},
        }
        for start, stop in pairwise(starts)
    ]
    # 6 pixels a letter, on the 300 that a phone has: names that would overlap are left out.
    widths = [6 * len(label["text"]) + 6 for label in labels]
    room = 300 * np.diff(starts) / len(groups)
    return shapes, labels if (widths <= room).all() else []


NUMBERED = 10  # groups up to which each cell has its number in it


def size_chart(diagnosis: Diagnosis) -> Chart | None:
    """How far learning each group moved the targets of each."""
    return _heat_map(
        diagnosis,
        key="group-size",
        title="How far groups moved each other",
        z=diagnosis.groups.size,
        colours=[SURFACE, WARM],
        verb="moved by",
        caption="Take a row of the picture: the stronger a square's colour, the farther learning "
        "that column's group moved the targets of this row's group, on average. The diagonal is "
        "later rows of the same group.",
    )


def pull_chart(diagnosis: Diagnosis) -> Chart | None:
    """Whether learning each group weakened or strengthened the targets of each."""
    return _heat_map(
        diagnosis,
        key="group-pull",
        title="In which direction",
        z=diagnosis.groups.pull,
        colours=[WARM, SURFACE, COLD],
        verb="changed along their own target by",
        caption="The same squares, with a direction. Orange: the targets were weakened "
        "(forgetting). Blue: they were strengthened. Without colour: neither.",
    )


def move_unit(diagnosis: Diagnosis) -> str:
    """What follows the size of a move in a sentence."""
    return "" if diagnosis.stream.kind == "classification" else " standard deviations"


def _heat_map(
    diagnosis: Diagnosis,
    key: str,
    title: str,
    z: np.ndarray,
    colours: list[str],
    verb: str,
    caption: str,
) -> Chart | None:
    """Of two colours, from 0; of three, as far below 0 as above."""
    names = diagnosis.groups.names
    if len(names) < 2 or not np.isfinite(z).any():
        return None
    top = float(f"{np.nanmax(np.abs(np.where(np.isfinite(z), z, 0.0))):.4g}") or 1.0
    numbered = len(names) <= NUMBERED
    full = [chart_text(text, 60) for text in names]
    squares: Trace = {
        "type": "heatmap",
        "z": plain(z, 4),
        "zmin": -top if len(colours) == 3 else 0.0,
        "zmax": top,
        "colorscale": [[k / (len(colours) - 1), colour] for k, colour in enumerate(colours)],
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "hovertext": [
            [
                f"learning {g}:<br>targets of {h}<br>{verb} {number(float(value))}"
                for g, value in zip(full, row, strict=True)
            ]
            for h, row in zip(full, z, strict=True)
        ],
        "hoverinfo": "text",
        "showscale": not numbered,
        "colorbar": ABOVE
        | {"y": 1.01, "len": 0.6, "ypad": 4, "thickness": 10, "outlinewidth": 0, "nticks": 5}
        | {"tickfont": {"color": MUTED}},
    }
    axis = {
        "tickvals": plain(np.arange(len(names))),
        "ticktext": [chart_text(text, 18 if numbered else 12) for text in names],
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
        "tickfont": {"color": INK, "size": 12 if numbered else 10},
    }
    across = (
        {"title": "while learning"} if numbered else {"title": "while learning", "tickangle": -90}
    )
    moves = " ".join(move.words(move_unit(diagnosis)) for move in largest_moves(diagnosis))
    return Chart(
        key=key,
        title=title,
        caption=caption + " An empty square is not defined." * bool(np.isnan(z).any()),
        alternative=f"{title}: {len(names)} by {len(names)} groups. {moves}",
        traces=[squares | ({"texttemplate": "%{z:.2f}"} if numbered else {})],
        layout=layout(
            170 + (44 if numbered else 18) * len(names),
            axis | across,
            axis | {"title": "targets of", "autorange": "reversed"},
        ),
    )
