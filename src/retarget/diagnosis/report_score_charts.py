"""Charts of the learners' scores, and of the candidates for the rate and the ridge."""

import math
from typing import Any

import numpy as np

from retarget.diagnosis.report_chart import (
    COLOURS,
    INK,
    MUTED,
    Chart,
    Trace,
    layout,
    log_scale,
    plain,
    scale,
)
from retarget.diagnosis.report_words import interval, number, percent
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
        "As above, for the share of rows whose class was told rightly: farther right is better.",
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
