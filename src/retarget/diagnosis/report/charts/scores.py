"""Charts of scores: of the learners, of the ways of training a model, and of the rates tried."""

import math
from typing import Literal, NamedTuple

import numpy as np
import plotly.graph_objects as go

from retarget.diagnosis.answers import Baseline, Estimate, ModelScore, Score
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
from retarget.diagnosis.report.words import (
    METRICS,
    QUESTIONS,
    chart_text,
    interval,
    name,
    number,
    score_lines,
    with_interval,
)
from retarget.diagnosis.result import Diagnosis
from retarget.learners import COLORS

SYMBOLS = ("circle", "diamond-open")  # of the first and the second question


class Measure(NamedTuple):
    """The number that scores are shown by: which of its fields, and what that means."""

    field: Literal["loss", "accuracy", "error"]
    words: str

    @property
    def share(self) -> bool:
        """Whether it is a share of the rows, of which more is better."""
        return self.field == "accuracy"

    def of(self, score: Score | Baseline | ModelScore | None) -> Estimate | None:
        """Returns this number of a score."""
        estimate: Estimate | None = getattr(score, self.field, None)
        return estimate


SQUARED = Measure("error", METRICS["squared"])


def measure(diagnosis: Diagnosis) -> Measure:
    """Returns what the scores are shown by, with the unit."""
    metric, stream = diagnosis.metric, diagnosis.stream
    if stream.kind == "classification":
        if metric in ("auto", "accuracy"):
            return Measure("accuracy", "share of rows whose class is right")
        return Measure("loss", METRICS[metric])
    targets = stream.target_names
    unit = "units" if metric == "absolute" else "squared units"
    whose = f"of {name(targets[0], 40)}" if len(targets) == 1 else f"of {len(targets):,} targets"
    return Measure("loss", f"{METRICS[metric]}, in {unit} {whose}")


def score_chart(diagnosis: Diagnosis) -> Chart | NotDrawn:
    """Draws the scores of the page's table with their intervals.

    There is a line for each, with a symbol for each question.
    """
    title = "Which learner predicts best?"
    if diagnosis.model is not None:
        title = "Which way of training your model is best?"
    asked, lines = score_lines(diagnosis)
    shown = measure(diagnosis)
    lines = [one for one in lines if any(_finite(shown.of(score)) for score in one.scores)]
    found = [
        (place, k, score)
        for place, one in enumerate(lines)
        for k, part in enumerate(one.scores)
        if (score := _finite(shown.of(part)))
    ]
    if not found:
        return NotDrawn("No score is a finite number, so there is no chart.")
    traces = []
    for k, question in enumerate(asked):
        ours = [(place, score) for place, of, score in found if of == k]
        aside = 0.3 * (k - (len(asked) - 1) / 2)  # side by side, if there are two questions
        value, low, high = np.array([score for _, score in ours]).T.reshape(3, -1)
        ends = (finite(np.fmax(length, 0)) for length in (high - value, value - low))
        bars = dict(zip(("array", "arrayminus"), ends, strict=True))
        traces.append(
            go.Scatter(
                mode="markers",
                name=QUESTIONS[question],
                x=value,
                y=[place + aside for place, _ in ours],
                customdata=[interval(score, shown.share) for _, score in ours],
                hovertemplate=f"%{{x:.{'0%' if shown.share else '3g'}}}<br>95%: %{{customdata}}"
                "<extra>%{fullData.name}</extra>",
                marker={
                    "size": 11,
                    "color": [COLORS.get(lines[place].mark, GREY) for place, _ in ours],
                    "symbol": SYMBOLS[k],
                    "line": {"width": 2 if k else 0},
                },
                error_x=bars | {"symmetric": False, "color": GREY, "thickness": 2, "width": 5},
            )
        )
    values = np.array([score.value for *_, score in found])
    wide = not shown.share and values.min() > 0 and values.max() > 30 * values.min()
    labels = [chart_text(one.title, 40).replace(", ", ",<br>", 1) for one in lines]
    told = (
        f"{lines[place].title}, {QUESTIONS[asked[k]]}: {with_interval(score, shown.share)}"
        for place, k, score in found
    )
    scale_x = {"tickformat": ".0%"} if shown.share else log_scale(values) if wide else {}
    better = "right" if shown.share else "left"
    return Chart(
        title=title,
        caption="Each mark is a score, and the line its 95% confidence interval; farther "
        f"{better} is better.",
        alternative=f"{title} {'; '.join(told)}",
        figure=figure(
            traces,
            100 + 46 * len(lines),
            {"title": shown.words.partition(",")[0]} | scale_x,
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


def _finite(score: Estimate | None) -> Estimate | None:
    return score if score is not None and math.isfinite(score.value) else None


def rate_chart(diagnosis: Diagnosis) -> Chart | NotDrawn:
    """Draws the rates that were tried, and the largest stable one."""
    choice, largest = diagnosis.lr, diagnosis.stability.largest_lr
    tried = choice.tried.sort("value")
    value = tried["value"].to_numpy().astype(float)
    score = tried["score"].cast(float).fill_null(math.nan).to_numpy().astype(float)
    known = np.isfinite(score)
    if known.sum() < 2:
        return NotDrawn("No other rates were tried, or all of them diverged.")
    stable, found, failed = value[known], score[known], value[~known]
    red, green = COLORS["iterative"], COLORS["corrected"]
    marks = {"size": 7, "color": GREY}
    traces = [
        line("tried", stable, found, "rate %{x:.3g}<br>error %{y:.3g}", mode="lines+markers",
             line={"color": GREY}, marker=marks)
    ]  # fmt: skip
    if len(failed):
        top = np.full(len(failed), found.max())
        cross = {"symbol": "x", "size": 9, "color": red}
        tip = "rate %{x:.3g}<br>diverged"
        traces.append(line("diverged", failed, top, tip, mode="markers", marker=cross))
    for label, rate, color in (("used", choice.value, green), ("largest stable", largest, red)):
        if value.min() <= rate <= 3 * value.max():
            ends, look = [found.min(), found.max()], {"color": color, "dash": "dash"}
            tip = f"{label}: {number(rate)}"
            traces.append(line(label, [rate, rate], ends, tip, line=look))
    return Chart(
        title="Was the rate a good choice?",
        caption="Each dot is a rate that was tried, and the error on each row before it was "
        f"learned; lower is better.{' A cross marks a rate that diverged.' * (len(failed) > 0)}",
        alternative=f"{len(value)} rates from {number(value.min())} to {number(value.max())}, the "
        f"best at {number(stable[np.argmin(found)])}; {number(choice.value)} was used, and "
        f"{len(failed)} diverged. The largest stable rate is {number(largest)}.",
        figure=figure(
            traces,
            280,
            {"title": "rate"} | (log_scale(value) if value.min() > 0 else {}),
            {"title": "error"} | scale(score, 30) | {"rangemode": "normal"},
            showlegend=True,
        ),
    )
