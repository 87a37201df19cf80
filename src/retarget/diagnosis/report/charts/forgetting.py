"""The forgetting curve: the error on the same rows, when they came and later."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from retarget.diagnosis.answers import Forgetting
from retarget.diagnosis.report.charts import (
    BAND,
    GREY,
    Chart,
    NotDrawn,
    figure,
    line,
    log_scale,
)
from retarget.diagnosis.report.curve import (
    half_life_words,
    shown_forgetting,
    times_at_first,
    why_no_curve,
)
from retarget.diagnosis.result import Diagnosis
from retarget.diagnosis.words.names import name
from retarget.diagnosis.words.numbers import multiple, multiples, percent
from retarget.learners import COLORS

FEW_TIMES = 10.0  # above this the axis is logarithmic
LOWEST = 0.01  # on a logarithmic axis, which has no place for an error of 0
HIGHEST = 1e9
WIDEST = 2.5  # times the curve's highest point: an interval beyond that is cut


def forgetting_chart(diagnosis: Diagnosis) -> Chart | NotDrawn:
    """Draws the error by age, relative to the error when the rows came, with its interval."""
    forgetting = shown_forgetting(diagnosis)
    model = diagnosis.model
    why = why_no_curve(diagnosis)
    if forgetting is None or why:
        return NotDrawn(why)
    who = "the online model" if model is None else name(model.name)
    ages, times = times_at_first(forgetting)
    logarithmic = bool(times.max() > FEW_TIMES)
    y_axis = _axis(forgetting, times, logarithmic)
    traces = [
        _band(forgetting, logarithmic),
        line("error on the same rows", ages, np.maximum(times, LOWEST * logarithmic),
             "%{customdata}", mode="lines+markers", customdata=_tips(forgetting),
             line={"color": COLORS["online"], "width": 3}),
        line("the same as when they came", ages[[0, -1]], [1.0, 1.0], "", hoverinfo="skip",
             line={"color": GREY, "dash": "dash", "width": 2}),
        *_half_life(forgetting, y_axis),
    ]  # fmt: skip
    overall = f"{multiple(forgetting.value)} times ({multiples(forgetting.increase)})"
    doubled = half_life_words(forgetting)
    share = f" The error had {doubled}." * bool(doubled)
    return Chart(
        title="What was forgotten?",
        caption=f"The error of {who} on held-out rows, relative to that on the same rows when they "
        f"came: above the dashed line it has become worse. Late in the stream it is {overall} "
        f"that.{share} The band is the 95% interval.",
        alternative=f"The error of {who} on the same rows, relative to that when they came, by the "
        f"number of rows learned since: {multiple(times[1] - 1)} times after {ages[1]:,.0f} rows, "
        f"{multiple(times[-1] - 1)} times after {ages[-1]:,.0f}; late in the stream {overall}, "
        f"which is {percent(abs(forgetting.value))} {'more' if forgetting.value > 0 else 'less'}."
        f"{share}",
        figure=figure(
            traces,
            300,
            {"title": "rows learned since the row came", "tickformat": ",d", "rangemode": "tozero"},
            {"title": "error / error when it came"} | y_axis,
            showlegend=True,
        ),
    )


def _axis(forgetting: Forgetting, times: NDArray[np.float64], logarithmic: bool) -> dict[str, Any]:
    """Returns the scale of the errors; far ends of intervals lie outside."""
    low, high = (1 + forgetting.curve[end].to_numpy() for end in ("low", "high"))
    top = max(1.2, min(float(np.nanmax(high, initial=0.0)), WIDEST * float(times.max())))
    if not logarithmic:
        return {"range": [0.0, 1.05 * top]}
    bottom = max(LOWEST, min(0.8, float(np.nanmin(low, initial=1.0))))
    scale = log_scale(np.array([bottom, top]))
    return scale | {"range": [float(np.log10(bottom)), float(np.log10(1.15 * top))]}


def _band(forgetting: Forgetting, logarithmic: bool) -> go.Scatter:
    """Returns the area between the ends of the intervals, which begins at a point."""
    ages = np.concatenate([[0.0], forgetting.curve["age"].to_numpy()])
    low, high = (
        np.concatenate([[1.0], 1 + forgetting.curve[end].to_numpy()]) for end in ("low", "high")
    )
    lowest = LOWEST if logarithmic else 0.0
    low = np.maximum(np.nan_to_num(low), lowest)
    high = np.clip(np.nan_to_num(high, nan=HIGHEST), lowest, HIGHEST)  # it may be infinite
    return go.Scatter(
        x=np.concatenate([ages, ages[::-1]]),
        y=np.concatenate([high, low[::-1]]),
        mode="lines",
        name="95% interval",
        fill="toself",
        fillcolor=BAND,
        showlegend=False,
        line={"width": 0, "color": BAND},
        hoverinfo="skip",
    )


def _tips(forgetting: Forgetting) -> list[str]:
    tips = ["when the rows came"]
    for age, value, low, high, rows in forgetting.curve.iter_rows():
        tips.append(
            f"{age:,.0f} rows later: {multiple(value)} times<br>95%: {multiple(low)} to "
            f"{multiple(high)}<br>{rows:,} rows"
        )
    return tips


def _half_life(forgetting: Forgetting, y_axis: dict[str, Any]) -> list[go.Scatter]:
    """Returns a line where the error has doubled, if it has."""
    doubled = half_life_words(forgetting)
    age = forgetting.half_life
    if age is None:
        return []
    low, high = y_axis["range"]
    if y_axis.get("type") == "log":
        low, high = 10**low, 10**high
    look = {"color": COLORS["iterative"], "dash": "dot", "width": 2}
    return [line(doubled, [age, age], [low, min(2.0, high)], doubled, line=look)]
