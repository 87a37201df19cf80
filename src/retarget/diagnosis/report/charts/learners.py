"""Charts of errors: of learners, of candidates for rate and ridge, and along the stream."""

import math
from typing import Any, NamedTuple

import numpy as np

from retarget.diagnosis.report.charts import (
    INK,
    LEGEND,
    MUTED,
    Chart,
    Trace,
    View,
    layout,
    line,
    log_scale,
    scale,
    scatter,
)
from retarget.diagnosis.report.charts.rows import above, group_bands, position, running_mean
from retarget.diagnosis.report.words import (
    chart_text,
    interval,
    name,
    number,
    percent,
    with_interval,
)
from retarget.diagnosis.result import Choice, Diagnosis, Estimate, LearnerName
from retarget.learners import COLOURS, LABELS


def learner_label(learner: LearnerName) -> str:
    """The learner's name, as it begins a line."""
    return LABELS[learner].capitalize()


class Labelled(NamedTuple):
    """A score as a line of a chart: its name, its colour and what was measured."""

    label: str
    colour: str
    estimate: Estimate


def error_chart(diagnosis: Diagnosis) -> Chart | None:
    """The errors of learners and baselines with their intervals."""
    baselines = diagnosis.baselines
    return estimates_chart(
        "errors",
        "Error on rows not learned from",
        [
            *(
                Labelled(learner_label(s.learner), COLOURS[s.learner], s.error)
                for s in diagnosis.scores
            ),
            *(Labelled(baseline_label(b.name), MUTED, b.error) for b in baselines),
        ],
        "The dot is the score, the line the range in which it lies with 95% confidence; farther "
        "left is better. Where the lines of two learners hardly overlap, their difference is not "
        "chance.",
    )


def accuracy_chart(diagnosis: Diagnosis) -> Chart | None:
    """The accuracies of learners and baselines with their intervals; for classes only."""
    baselines = diagnosis.baselines
    return estimates_chart(
        "accuracies",
        "Rows whose class is right",
        [
            *(
                Labelled(learner_label(s.learner), COLOURS[s.learner], s.accuracy)
                for s in diagnosis.scores
                if s.accuracy is not None
            ),
            *(Labelled(baseline_label(b.name), MUTED, b.accuracy) for b in baselines if b.accuracy),
        ],
        "The same for the share of rows whose class was predicted correctly: farther right is "
        "better.",
        share=True,
    )


def baseline_label(baseline: str) -> str:
    """A baseline's name, as it begins a line."""
    return f"Baseline, {name(baseline)}"


def estimates_chart(
    key: str,
    title: str,
    scores: list[Labelled],
    caption: str,
    *,
    share: bool = False,
    dots: tuple[str, np.ndarray] | None = None,
) -> Chart | None:
    """Scores with their intervals, a line each, those that are finite.

    Args:
        key: The chart's name in the page.
        title: Its heading.
        scores: What is drawn, from top to bottom.
        caption: How to read it.
        share: Whether these are shares of rows, else squared errors.
        dots: The label of a line, and single results behind its score.
    """
    scores = [score for score in scores if math.isfinite(score.estimate.value)]
    if not scores:
        return None
    values = np.array([score.estimate.value for score in scores])
    wide = not share and values.min() > 0 and values.max() > 30 * values.min()
    x: dict[str, Any] = {"title": "share of rows" if share else "mean squared error", "nticks": 6}
    x |= {"tickformat": ".0%"} if share else log_scale(values) if wide else {}
    y = {
        "type": "category",
        "categoryarray": [_in_two_lines(score.label) for score in reversed(scores)],
        "categoryorder": "array",
        "tickfont": {"color": INK},
        "showgrid": False,
    }
    traces = [_estimate(score, share) for score in scores]
    if dots is not None:
        label, single = dots
        single = single[np.isfinite(single)]
        places = [_in_two_lines(label)] * len(single)
        look = {"size": 6, "color": MUTED, "opacity": 0.6}
        traces.insert(0, scatter("markers", "one run", single, places, "%{x:.3g}", marker=look))
    described = (f"{score.label}: {with_interval(score.estimate, share)}" for score in scores)
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
    return f"{chart_text(first)}{',<br>' if comma else ''}{chart_text(rest) if comma else ''}"


def _estimate(score: Labelled, share: bool) -> Trace:
    estimate, value = score.estimate, score.estimate.value
    low, high = (end if math.isfinite(end) else value for end in (estimate.low, estimate.high))
    written = (percent if share else number)(value)
    return scatter(
        "markers",
        chart_text(score.label, 60),
        [value],
        [_in_two_lines(score.label)],
        f"{written}<br>95%: {interval(estimate, share)}",
        marker={"size": 12, "color": score.colour},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [max(high - value, 0)],
            "arrayminus": [max(value - low, 0)],
            "color": score.colour,
            "thickness": 2.5,
            "width": 6,
        },
    )


def choice_chart(what: str, choice: Choice, largest: float | None = None) -> Chart | None:
    """The candidates for a parameter; `largest` marks the largest stable rate."""
    tried = choice.tried.sort("value")
    value = tried["value"].to_numpy().astype(float)
    score = tried["score"].cast(float).fill_null(math.nan).to_numpy().astype(float)
    finite = np.isfinite(score)
    if finite.sum() < 2:
        return None
    found, failed = score[finite], value[~finite]
    tip = f"{what} %{{x:.3g}}<br>"
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
        _used(what, choice, value[finite], found),
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
        key=what,
        title=f"Candidates for the {what}",
        caption=f"Each dot is a {what} that was tried; lower is better. Green is what was used. "
        + ("A cross diverged: it has no score." if len(failed) else ""),
        alternative=f"{len(value)} candidates for the {what} from {number(value.min())} to "
        f"{number(value.max())}, the best at {number(best)}; {number(choice.value)} was used, and "
        f"{len(failed)} diverged.",
        traces=traces,
        layout=layout(
            260,
            {"title": what} | (log_scale(value) if value.min() > 0 else {}),
            {"title": "score", "nticks": 6} | scale(score, 30) | {"rangemode": "normal"},
            showlegend=True,
        ),
    )


def _used(what: str, choice: Choice, value: np.ndarray, score: np.ndarray) -> Trace:
    """A dot on the candidate that was used; a line if it is none of them."""
    nearest = int(np.argmin(np.abs(value - choice.value)))
    hover, colour = f"used: {what} {number(choice.value)}", COLOURS["corrected"]
    if not np.isclose(value[nearest], choice.value, rtol=1e-6):
        return _upright("used", choice.value, score, hover, colour)
    dot = {"size": 13, "color": colour}
    return scatter("markers", "used", [choice.value], score[[nearest]], hover, marker=dot)


def _upright(label: str, x: float, score: np.ndarray, hover: str, colour: str) -> Trace:
    ends = np.array([score.min(), score.max()])
    return line(label, [x, x], ends, hover, colour, width=2, dash="dash")


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
    bands, labels = group_bands(diagnosis)
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
            position(len(squares)),
            {"title": "squared error" + ("" if views else " (standardised)"), "nticks": 6}
            | scale(means),
            showlegend=not views,
            shapes=bands,
            **above(labels, LEGEND),
        ),
        choose="Show" if views else "",
        views=views,
    )
