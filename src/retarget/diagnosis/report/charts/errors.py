"""Charts of errors: the learners', the candidates' for rate and ridge, and along the stream."""

import math
from itertools import pairwise
from typing import Any

import numpy as np

from retarget.colours import COLOURS
from retarget.diagnosis.report.charts.chart import (
    BAND,
    INK,
    MUTED,
    Chart,
    Trace,
    View,
    group_of_row,
    layout,
    log_scale,
    plain,
    running_mean,
    scale,
)
from retarget.diagnosis.report.words import chart_text, count, interval, number, percent
from retarget.diagnosis.result import Choice, Diagnosis, Estimate

LEARNERS = {
    "offline": "Offline",
    "online": "Online",
    "corrected": "Online, exactly corrected",
    "iterative": "Online, iteratively corrected",
}
IN_TWO_LINES = {name: label.replace(", ", ",<br>") for name, label in LEARNERS.items()}


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
    key: str, title: str, estimates: dict[str, Estimate], axis: str, caption: str, share: bool
) -> Chart | None:
    estimates = {name: e for name, e in estimates.items() if math.isfinite(e.value)}
    if not estimates:
        return None
    write = percent if share else number
    values = np.array([e.value for e in estimates.values()])
    wide = not share and values.min() > 0 and values.max() > 30 * values.min()
    x: dict[str, Any] = {"title": axis, "nticks": 6}
    x |= {"tickformat": ".0%"} if share else log_scale(values) if wide else {}
    return Chart(
        key=key,
        title=title,
        caption=caption,
        alternative=f"{title}. "
        + "; ".join(
            f"{LEARNERS[name]}: {write(e.value)} ({interval(e, share)})"
            for name, e in estimates.items()
        ),
        traces=[_estimate(name, e, write(e.value), share) for name, e in estimates.items()],
        layout=layout(
            90 + 48 * len(estimates),
            x,
            {
                "type": "category",
                "categoryarray": [IN_TWO_LINES[name] for name in reversed(estimates)],
                "categoryorder": "array",
                "tickfont": {"color": INK},
                "showgrid": False,
            },
        ),
    )


def _estimate(name: str, estimate: Estimate, text: str, share: bool) -> Trace:
    low, high = (
        end if math.isfinite(end) else estimate.value for end in (estimate.low, estimate.high)
    )
    return {
        "type": "scatter",
        "mode": "markers",
        "name": LEARNERS[name],
        "x": [estimate.value],
        "y": [IN_TWO_LINES[name]],
        "marker": {"size": 12, "color": COLOURS[name]},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [max(high - estimate.value, 0)],
            "arrayminus": [max(estimate.value - low, 0)],
            "color": COLOURS[name],
            "thickness": 2.5,
            "width": 6,
        },
        "hovertemplate": f"{LEARNERS[name]}<br>{text}<br>95%: {interval(estimate, share)}"
        "<extra></extra>",
    }


def choice_chart(name: str, choice: Choice, largest: float | None = None) -> Chart | None:
    """The candidates for a parameter; `largest` marks the largest stable rate."""
    value = choice.tried["value"].to_numpy().astype(float)
    score = choice.tried["score"].cast(float).fill_null(math.nan).to_numpy().astype(float)
    finite = np.isfinite(score)
    if finite.sum() < 2:
        return None
    order = np.argsort(value, kind="stable")
    value, score, finite = value[order], score[order], finite[order]
    failed = value[~finite]
    traces: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "tried",
            "x": plain(value[finite]),
            "y": plain(score[finite]),
            "line": {"color": MUTED, "width": 1.5},
            "marker": {"size": 7, "color": MUTED},
            "hovertemplate": f"{name} %{{x:.3g}}<br>score %{{y:.3g}}<extra></extra>",
        },
        _chosen(name, choice, value[finite], score[finite]),
    ]
    if len(failed):
        top = np.nanmax(score)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "diverged",
                "x": plain(failed),
                "y": plain(np.full(len(failed), top)),
                "marker": {"symbol": "x", "size": 9, "color": COLOURS["iterative"]},
                "hovertemplate": f"{name} %{{x:.3g}}<br>diverged<extra></extra>",
            }
        )
    marked = largest is not None and math.isfinite(largest) and value.min() <= largest
    if marked and largest is not None and largest <= 3 * value.max():
        traces.append(_limit(largest, score[finite]))
    best = value[finite][np.argmin(score[finite])]
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


def _chosen(name: str, choice: Choice, value: np.ndarray, score: np.ndarray) -> Trace:
    """A dot on the candidate that was used; a line if it is none of them."""
    nearest = int(np.argmin(np.abs(value - choice.value)))
    used: Trace = {
        "type": "scatter",
        "name": "used",
        "hovertemplate": f"used: {name} {number(choice.value)}<extra></extra>",
    }
    if np.isclose(value[nearest], choice.value, rtol=1e-6):
        return used | {
            "mode": "markers",
            "x": [choice.value],
            "y": plain(score[nearest : nearest + 1]),
            "marker": {"size": 13, "color": COLOURS["corrected"]},
        }
    return used | _upright(choice.value, score, COLOURS["corrected"])


def _limit(largest: float, score: np.ndarray) -> Trace:
    return {
        "type": "scatter",
        "name": "largest stable",
        "hovertemplate": f"largest stable rate: {number(largest)}<extra></extra>",
    } | _upright(largest, score, COLOURS["iterative"])


def _upright(x: float, score: np.ndarray, colour: str) -> Trace:
    return {
        "mode": "lines",
        "x": [x, x],
        "y": plain(np.array([score.min(), score.max()])),
        "line": {"color": colour, "dash": "dash", "width": 2},
    }


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
