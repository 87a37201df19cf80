"""The chart of the online learner's error along the stream."""

from itertools import pairwise
from typing import Any

import numpy as np

from retarget.colours import COLOURS
from retarget.diagnosis.report.charts.chart import (
    BAND,
    MUTED,
    Chart,
    Trace,
    View,
    layout,
    plain,
    scale,
)
from retarget.diagnosis.report.charts.rows import group_of_row, running_mean
from retarget.diagnosis.report.words import chart_text, count, number
from retarget.diagnosis.result import Diagnosis


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
