"""Charts of targets: what was really learned, and which group overwrote which."""

import numpy as np
import plotly.graph_objects as go

from retarget.diagnosis.measure.groups import partition
from retarget.diagnosis.report.charts import Chart, NotDrawn, dots, figure, finite, line
from retarget.diagnosis.report.charts.rows import (
    GROUP_COLORS,
    POINTS,
    drawn_rows,
    most_shifted,
    moved,
)
from retarget.diagnosis.result import Diagnosis
from retarget.diagnosis.words.names import chart_text, name
from retarget.diagnosis.words.numbers import number, percent
from retarget.diagnosis.words.setting import move_words
from retarget.learners import COLORS

MOST_CLASSES = 30
NUMBERED = 10  # with at most so many groups, each square shows its number


def targets_chart(diagnosis: Diagnosis) -> Chart | NotDrawn:
    """Draws true against effective targets; for classes, the share that changed class."""
    if not np.isfinite(diagnosis.shift_size).any():
        return NotDrawn(
            "Not defined: no effective target is a finite number, since the online model diverged."
        )
    classes = diagnosis.stream.kind == "classification"
    return _classes(diagnosis) if classes else _numbers(diagnosis)


def _numbers(diagnosis: Diagnosis) -> Chart:
    stream = diagnosis.stream
    names = stream.target_names[: len(GROUP_COLORS)]
    limit = max(POINTS // len(names), 1)
    rows = drawn_rows(partition(stream).numbers, most_shifted(diagnosis.shift_size), limit)
    # Several targets have units of their own, so they are drawn in standard deviations.
    single = len(stream.target_names) == 1
    true, effective = (
        stream.in_units(Z[rows]) if single else Z[rows] for Z in (stream.Y, diagnosis.effective)
    )
    tip = "row %{customdata:,d}<br>true %{x:.4g}<br>effective %{y:.4g}"
    numbers = stream.rows[rows]
    traces = [
        dots(chart_text(label), x, y, tip, numbers, color)
        for label, x, y, color in zip(names, true.T, effective.T, GROUP_COLORS, strict=False)
    ]
    ends = [float(true.min()), float(true.max())]
    traces.append(line("learned as it is", ends, ends, "", hoverinfo="skip", line={"dash": "dash"}))
    drawn = f" {len(rows):,} of {stream.length:,} rows are drawn." * (len(rows) < stream.length)
    few = f" The first {len(names)} of {len(stream.target_names):,} targets are drawn."
    unit = chart_text(names[0], 40) if single else "standard deviations from the mean"
    return Chart(
        title="What did it really learn?",
        caption="Each dot is a row: horizontally its true target, vertically its effective "
        "target, on which a batch model would equal the online model. On the dashed line, a "
        f"target was learned as it is; if the cloud is flatter, targets were weakened.{drawn}"
        f"{few * (len(names) < len(stream.target_names))}",
        alternative=f"Effective against true targets. {percent(float(diagnosis.changed.mean()))} "
        "of the rows moved across the mean.",
        figure=figure(
            traces, 420, {"title": f"true ({unit})"}, {"title": "effective"}, showlegend=True
        ),
    )


def _classes(diagnosis: Diagnosis) -> Chart:
    names = diagnosis.stream.target_names
    true = diagnosis.stream.Y.argmax(axis=1)
    to = np.zeros((len(names), len(names)), dtype=int)  # changed rows, from class to class
    effective = diagnosis.effective.argmax(axis=1)
    np.add.at(to, (true[diagnosis.changed], effective[diagnosis.changed]), 1)
    rows = np.bincount(true, minlength=len(names))
    changed = to.sum(axis=1)
    share = changed / np.maximum(rows, 1)
    shown = np.sort(np.argsort(-share, kind="stable")[:MOST_CLASSES])
    became = [f", most often to {names[k]}" for k in to.argmax(axis=1)]
    worst = int(np.argmax(share))
    few = f" The {MOST_CLASSES} classes that changed most, of {len(names):,}."
    bars = go.Bar(
        orientation="h",
        x=share[shown],
        y=np.arange(len(shown)),
        text=[percent(float(s)) for s in share[shown]],
        textposition="outside",
        cliponaxis=False,
        customdata=[
            f"{changed[k]:,} of {rows[k]:,} rows{chart_text(became[k], 60) if changed[k] else ''}"
            for k in shown
        ],
        hovertemplate="%{customdata}<extra></extra>",
        marker={"color": COLORS["online"]},
    )
    return Chart(
        title="Which classes were lost?",
        caption="For each class, the share of its rows whose effective target is largest for "
        "another class: the online model has really learned the wrong class for them."
        f"{few * (len(shown) < len(names))}",
        alternative=f"{percent(float(diagnosis.changed.mean()))} of all rows changed class; "
        f"most of all {name(names[worst])}, {percent(float(share[worst]))} of its rows"
        f"{name(became[worst]) if changed[worst] else ''}.",
        figure=figure(
            [bars],
            100 + 26 * len(shown),
            {
                "title": "share of the class's rows",
                "tickformat": ".0%",
                "range": [0, max(float(share.max()) * 1.02, 0.05)],
            },
            {
                "tickvals": list(range(len(shown))),
                "ticktext": [chart_text(names[k], 18) for k in shown],
                "showgrid": False,
                "zeroline": False,
                "autorange": "reversed",
            },
            bargap=0.35,
            margin={"r": 44},  # for the shares, which are written beside the bars
        ),
    )


def move_unit(diagnosis: Diagnosis) -> str:
    """Returns the unit that follows the size of a move in a sentence."""
    return "" if diagnosis.stream.kind == "classification" else " standard deviations"


def group_chart(diagnosis: Diagnosis) -> Chart | NotDrawn:
    """Draws how far learning each group moved the targets of each, as a heat map."""
    movement = moved(diagnosis)
    groups = movement.groups
    z = finite(movement.groups.size)
    names = groups.names
    if len(names) < 2:
        return NotDrawn("There is only one group, so there is nothing to compare.")
    if not np.isfinite(z).any():
        return NotDrawn("Not drawn: no movement between groups is a finite number.")
    what = "predictions for" if movement.yours else "targets of"
    numbered = len(names) <= NUMBERED
    top = float(np.nanmax(z)) or 1.0
    full = [chart_text(text, 60) for text in names]
    squares = go.Heatmap(
        z=z,
        zmin=0,
        zmax=top,
        xgap=1,
        ygap=1,
        hoverongaps=False,
        hovertext=[
            [
                f"learning {g}:<br>{what} {h}<br>moved by {number(float(value))}"
                for g, value in zip(full, row, strict=True)
            ]
            for h, row in zip(full, z, strict=True)
        ],
        hoverinfo="text",
        texttemplate=f"%{{z:{'.2~f' if 0.05 <= top < 1000 else '.1~e'}}}" if numbered else None,
        showscale=not numbered,
    )
    axis = {
        "tickvals": list(range(len(names))),
        "ticktext": [chart_text(text, 18 if numbered else 12) for text in names],
        "showgrid": False,
        "zeroline": False,
    }
    unit = move_unit(diagnosis)
    moves = " ".join(move_words(move, unit) for move in groups.largest_moves())
    empty = " An empty square is not defined." * bool(np.isnan(z).any())
    title = "Which group overwrote which?"
    return Chart(
        title=title,
        caption="The stronger a square's color, the farther learning the group of its column "
        f"moved the {what} the group of its row, on average. The diagonal shows the effect of "
        f"later rows of the same group.{empty}",
        alternative=f"{title} {len(names)} by {len(names)} groups. {moves}",
        figure=figure(
            [squares],
            170 + (44 if numbered else 18) * len(names),
            axis | {"title": "while learning"},
            axis | {"title": what, "autorange": "reversed"},
        ),
    )
