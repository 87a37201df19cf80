"""Charts of the candidates for the rate and the ridge."""

import math

import numpy as np

from retarget.colours import COLOURS
from retarget.diagnosis.report.charts.chart import (
    MUTED,
    Chart,
    Trace,
    layout,
    log_scale,
    plain,
    scale,
)
from retarget.diagnosis.report.words import number
from retarget.diagnosis.result import Choice


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
