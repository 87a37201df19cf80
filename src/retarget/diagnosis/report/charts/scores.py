"""Charts of scores: learners, ways of training, and candidates for rate and ridge."""

import math
from typing import Any

import numpy as np

from retarget.diagnosis.answers import Estimate
from retarget.diagnosis.report.charts import (
    INK,
    MUTED,
    Chart,
    Trace,
    layout,
    line,
    log_scale,
    scale,
    scatter,
)
from retarget.diagnosis.report.words import (
    ScoreLine,
    baseline_lines,
    chart_text,
    interval,
    learner_lines,
    model_lines,
    number,
    percent,
    with_interval,
)
from retarget.diagnosis.result import Choice, Diagnosis, ModelDiagnosis
from retarget.learners import COLOURS


def error_chart(diagnosis: Diagnosis) -> Chart | None:
    """Draws the errors of learners and baselines with their intervals."""
    return _scores_chart(
        "errors",
        "Error on rows not learned from",
        [*learner_lines(diagnosis), *baseline_lines(diagnosis)],
        "The dot is the score, the line its 95% confidence interval; farther left is better. If "
        "the lines of two learners hardly overlap, their difference is not "
        "chance.",
    )


def accuracy_chart(diagnosis: Diagnosis) -> Chart | None:
    """Draws the accuracies of learners and baselines; None for regression."""
    return _scores_chart(
        "accuracies",
        "Rows whose class is right",
        [*learner_lines(diagnosis), *baseline_lines(diagnosis)],
        "The same for the share of rows whose class was predicted correctly: farther right is "
        "better.",
        share=True,
    )


def model_error_chart(model: ModelDiagnosis) -> Chart | None:
    """Draws the errors of the user's model by way of training, and of each random order."""
    runs = len(model.orders)
    return _scores_chart(
        "model-errors",
        "Error by the way of training",
        model_lines(model),
        "The large dot is the score, the line its 95% confidence interval; farther left is "
        "better."
        + f" Each small dot is one of {runs} random orders: their spread is chance."
        * (runs > 0),
        orders=model.orders,
    )


def _scores_chart(
    key: str,
    title: str,
    lines: list[ScoreLine],
    caption: str,
    *,
    share: bool = False,
    orders: tuple[float, ...] = (),
) -> Chart | None:
    """Draws finite scores with their intervals, one per line: accuracy if `share`, else error."""
    found = [(one, one.accuracy if share else one.error) for one in lines]
    scores = [(one, score) for one, score in found if score and math.isfinite(score.value)]
    if not scores:
        return None
    values = np.array([score.value for _, score in scores])
    wide = not share and values.min() > 0 and values.max() > 30 * values.min()
    x: dict[str, Any] = {"title": "share of rows" if share else "mean squared error", "nticks": 6}
    x |= {"tickformat": ".0%"} if share else log_scale(values) if wide else {}
    y = {
        "type": "category",
        "categoryarray": [_in_two_lines(one.title) for one, _ in reversed(scores)],
        "categoryorder": "array",
        "tickfont": {"color": INK},
        "showgrid": False,
    }
    traces = [_score(one, score, share) for one, score in scores]
    if orders:
        single = np.array(orders)[np.isfinite(orders)]
        look = {"size": 6, "color": MUTED, "opacity": 0.6}
        places = ["Random order"] * len(single)
        traces.insert(0, scatter("markers", "one run", single, places, "%{x:.3g}", marker=look))
    described = (f"{one.title}: {with_interval(score, share)}" for one, score in scores)
    return Chart(
        key=key,
        title=title,
        caption=caption,
        alternative=f"{title}. {'; '.join(described)}",
        traces=traces,
        layout=layout(80 + 42 * len(scores), x, y),
    )


def _in_two_lines(label: str) -> str:
    first, comma, rest = label.partition(", ")
    return f"{chart_text(first)},<br>{chart_text(rest)}" if comma else chart_text(first)


def _score(one: ScoreLine, score: Estimate, share: bool) -> Trace:
    value, colour = score.value, COLOURS.get(one.mark, MUTED)
    low, high = (end if math.isfinite(end) else value for end in (score.low, score.high))
    return scatter(
        "markers",
        chart_text(one.title, 60),
        [value],
        [_in_two_lines(one.title)],
        f"{(percent if share else number)(value)}<br>95%: {interval(score, share)}",
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


def choice_chart(what: str, choice: Choice, largest: float | None = None) -> Chart | None:
    """Draws the candidates for a parameter; `largest` marks the largest stable rate."""
    tried = choice.tried.sort("value")
    value = tried["value"].to_numpy().astype(float)
    score = tried["score"].cast(float).fill_null(math.nan).to_numpy().astype(float)
    finite = np.isfinite(score)
    if finite.sum() < 2:
        return None
    stable, found, failed = value[finite], score[finite], value[~finite]
    tip = f"{what} %{{x:.3g}}<br>"
    grey = line("tried", stable, found, f"{tip}score %{{y:.3g}}", MUTED, width=1.5)
    traces = [grey | {"mode": "lines+markers", "marker": {"size": 7, "color": MUTED}}]
    nearest = int(np.argmin(np.abs(stable - choice.value)))
    used, green = f"used: {what} {number(choice.value)}", COLOURS["corrected"]
    if np.isclose(stable[nearest], choice.value, rtol=1e-6):
        dot, at = {"size": 13, "color": green}, found[[nearest]]
        traces.append(scatter("markers", "used", [choice.value], at, used, marker=dot))
    else:
        traces.append(_upright("used", choice.value, found, used, green))
    red = COLOURS["iterative"]
    if len(failed):
        cross, top = {"symbol": "x", "size": 9, "color": red}, np.full(len(failed), found.max())
        traces.append(scatter("markers", "diverged", failed, top, f"{tip}diverged", marker=cross))
    if largest is not None and value.min() <= largest <= 3 * value.max():
        tip = f"largest stable rate: {number(largest)}"
        traces.append(_upright("largest stable", largest, found, tip, red))
    return Chart(
        key=what,
        title=f"Candidates for the {what}",
        caption=f"Each dot is a {what} that was tried; lower is better. Green marks the one used. "
        + ("A cross marks one that diverged and has no score." if len(failed) else ""),
        alternative=f"{len(value)} candidates for the {what} from {number(value.min())} to "
        f"{number(value.max())}, the best at {number(stable[np.argmin(found)])}; "
        f"{number(choice.value)} was used, and {len(failed)} diverged.",
        traces=traces,
        layout=layout(
            260,
            {"title": what} | (log_scale(value) if value.min() > 0 else {}),
            {"title": "score", "nticks": 6} | scale(score, 30) | {"rangemode": "normal"},
            showlegend=True,
        ),
    )


def _upright(label: str, x: float, score: np.ndarray, hover: str, colour: str) -> Trace:
    ends = np.array([score.min(), score.max()])
    return line(label, [x, x], ends, hover, colour, width=2, dash="dash")
