"""Charts of scores: of the learners, of the ways of training a model, and of the rates tried."""

import math

import numpy as np
import plotly.graph_objects as go

from retarget.diagnosis.answers import Estimate
from retarget.diagnosis.report.charts import (
    GREY,
    Chart,
    NotDrawn,
    figure,
    finite,
    line,
    log_scale,
    scale,
)
from retarget.diagnosis.report.scores import Measure, score_table
from retarget.diagnosis.result import Diagnosis
from retarget.diagnosis.words.names import QUESTIONS, chart_text
from retarget.diagnosis.words.numbers import number, with_interval
from retarget.learners import COLORS

SYMBOLS = ("circle", "diamond-open")  # of the first and the second question


def score_chart(diagnosis: Diagnosis) -> Chart | NotDrawn:
    """Draws the scores of the page's table with their intervals.

    There is a line for each, with a symbol for each question.
    """
    title = "Which learner predicts best?"
    if diagnosis.model is not None:
        title = "Which way of training your model is best?"
    table = score_table(diagnosis)
    asked = table.questions
    shown = table.measure
    lines = [line for line in table.lines if line.known]
    marks = [
        (place, number_of_question, one.score)
        for place, line in enumerate(lines)
        for number_of_question, one in enumerate(line.scores)
        if one.score is not None and one.known
    ]
    if not marks:
        return NotDrawn("No score is a finite number, so there is no chart.")
    traces = [
        _marks_of_question(
            QUESTIONS[question],
            [(place, score) for place, of, score in marks if of == k],
            [line.mark for line in lines],
            shown,
            k,
            aside=0.3 * (k - (len(asked) - 1) / 2),  # side by side, if there are two questions
        )
        for k, question in enumerate(asked)
    ]
    values = np.array([score.value for *_, score in marks])
    wide = not shown.share and values.min() > 0 and values.max() > 30 * values.min()
    labels = [chart_text(line.title, 40).replace(", ", ",<br>", 1) for line in lines]
    texts = (
        f"{lines[place].title}, {QUESTIONS[asked[k]]}: {with_interval(score, shown.share)}"
        for place, k, score in marks
    )
    scale_x = {"tickformat": ".0%"} if shown.share else log_scale(values) if wide else {}
    better = "right" if shown.share else "left"
    return Chart(
        title=title,
        caption="Each mark is a score, and the line its 95% confidence interval; farther "
        f"{better} is better.",
        alternative=f"{title} {'; '.join(texts)}",
        figure=figure(
            traces,
            100 + 46 * len(lines),
            {"title": chart_text(shown.words.partition(",")[0], 60)} | scale_x,
            {
                "tickvals": list(range(len(lines))),
                "ticktext": labels,
                "range": [len(lines) - 0.5, -0.5],
                "showgrid": False,
                "zeroline": False,
            },
            showlegend=len(asked) > 1,
        ),
    )


def _marks_of_question(
    label: str,
    marks: list[tuple[int, Estimate]],
    colors: list[str],
    shown: Measure,
    number: int,
    aside: float,
) -> go.Scatter:
    """Draws the scores on one set of rows, each on its line."""
    value, low, high = np.array([score for _, score in marks]).T.reshape(3, -1)
    above = finite(np.fmax(high - value, 0))
    below = finite(np.fmax(value - low, 0))
    return go.Scatter(
        mode="markers",
        name=label,
        x=value,
        y=[place + aside for place, _ in marks],
        customdata=[shown.interval(score) for _, score in marks],
        hovertemplate=f"%{{x:.{'0%' if shown.share else '3g'}}}<br>95%: %{{customdata}}"
        "<extra>%{fullData.name}</extra>",
        marker={
            "size": 11,
            "color": [COLORS.get(colors[place], GREY) for place, _ in marks],
            "symbol": SYMBOLS[number],
            "line": {"width": 2 if number else 0},
        },
        error_x={
            "array": above,
            "arrayminus": below,
            "symmetric": False,
            "color": GREY,
            "thickness": 2,
            "width": 5,
        },
    )


def rate_chart(diagnosis: Diagnosis) -> Chart | NotDrawn:
    """Draws the rates that were tried, and the largest stable one."""
    choice = diagnosis.lr
    largest = diagnosis.stability.largest_lr
    tried = choice.tried.sort("value")
    value = tried["value"].to_numpy().astype(float)
    score = tried["score"].cast(float).fill_null(math.nan).to_numpy().astype(float)
    known = np.isfinite(score)
    if known.sum() < 2:
        return NotDrawn("No other rates were tried, or all of them diverged.")
    stable = value[known]
    errors = score[known]
    failed = value[~known]
    red = COLORS["iterative"]
    green = COLORS["corrected"]
    marks = {"size": 7, "color": GREY}
    traces = [
        line("tried", stable, errors, "rate %{x:.3g}<br>error %{y:.3g}", mode="lines+markers",
             line={"color": GREY}, marker=marks)
    ]  # fmt: skip
    if len(failed):
        top = np.full(len(failed), errors.max())
        cross = {"symbol": "x", "size": 9, "color": red}
        tip = "rate %{x:.3g}<br>diverged"
        traces.append(line("diverged", failed, top, tip, mode="markers", marker=cross))
    for label, rate, color in (("used", choice.value, green), ("largest stable", largest, red)):
        if value.min() <= rate <= 3 * value.max():
            ends = [errors.min(), errors.max()]
            look = {"color": color, "dash": "dash"}
            tip = f"{label}: {number(rate)}"
            traces.append(line(label, [rate, rate], ends, tip, line=look))
    return Chart(
        title="Was the rate a good choice?",
        caption="Each dot is a rate that was tried, and the error on each row before it was "
        f"learned; lower is better.{' A cross marks a rate that diverged.' * (len(failed) > 0)}",
        alternative=f"{len(value)} rates from {number(value.min())} to {number(value.max())}, the "
        f"best at {number(stable[np.argmin(errors)])}; {number(choice.value)} was used, and "
        f"{len(failed)} diverged. The largest stable rate is {number(largest)}.",
        figure=figure(
            traces,
            280,
            {"title": "rate"} | (log_scale(value) if value.min() > 0 else {}),
            {"title": "error"} | scale(score, 30) | {"rangemode": "normal"},
            showlegend=True,
        ),
    )
