"""Charts of the learners' scores."""

import math
from typing import Any

import numpy as np

from retarget.colours import COLOURS
from retarget.diagnosis.report.charts.chart import INK, Chart, Trace, layout, log_scale
from retarget.diagnosis.report.words import interval, number, percent
from retarget.diagnosis.result import Diagnosis, Estimate

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
