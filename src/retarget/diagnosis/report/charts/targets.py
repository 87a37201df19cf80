"""Charts of what was to be learned against what was learned."""

import numpy as np

from retarget.colours import COLOURS
from retarget.diagnosis.report.charts.chart import (
    DOTS,
    INK,
    MUTED,
    POINTS,
    Chart,
    Trace,
    View,
    drawn_rows,
    group_of_row,
    layout,
    legend_of_dots,
    most_shifted,
    plain,
)
from retarget.diagnosis.report.words import chart_text, count, name, percent
from retarget.diagnosis.result import Diagnosis

ALL_TARGETS = 20_000  # points in all, whatever the number of targets: the page's size
MOST_TARGETS = 40
MOST_CLASSES = 30


def targets_chart(diagnosis: Diagnosis) -> Chart | None:
    """True against effective targets; for classes, the rows of each that changed class."""
    if not np.isfinite(diagnosis.shift_size).any():
        return None
    if diagnosis.stream.kind == "classification":
        return _classes(diagnosis)
    return _numbers(diagnosis)


def _numbers(diagnosis: Diagnosis) -> Chart:
    stream = diagnosis.stream
    shown = min(len(stream.target_names), MOST_TARGETS)
    limit = min(POINTS, ALL_TARGETS // shown)
    rows = drawn_rows(group_of_row(diagnosis), most_shifted(diagnosis), limit)
    true, effective = (stream.in_units(Z[rows]) for Z in (stream.Y, diagnosis.effective))
    crossed = stream.Y[rows] * diagnosis.effective[rows] < 0
    traces: list[Trace] = []
    for target in range(shown):
        x, y = true[:, target], effective[:, target]
        numbers = stream.rows[rows]
        for side, label, colour in (
            (~crossed[:, target], "same side of the average", DOTS),
            (crossed[:, target], "other side", COLOURS["iterative"]),
        ):
            traces.append(_dots(x[side], y[side], numbers[side], label, colour))
        ends = np.array([np.nanmin(x), np.nanmax(x)])
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "learned as it is",
                "x": plain(ends),
                "y": plain(ends),
                "line": {"color": INK, "width": 1.5, "dash": "dash"},
                "hoverinfo": "skip",
            }
        )
    for trace in traces[3:]:
        trace["visible"] = False
    names = stream.target_names[:shown]
    drawn = f"{count(len(rows))} of {count(len(stream))} rows are drawn. " * (
        len(rows) < len(stream)
    )
    others = f"The first {shown} of {len(stream.target_names)} targets can be chosen. " * (
        shown < len(stream.target_names)
    )
    return Chart(
        key="targets",
        title="What was to be learned, and what was",
        caption="Each dot is a row: across, its true target; up, the target that the offline "
        "learner would need to be given to end up where the online one did. On the dashed line "
        "it was learned as it is; a flatter cloud was weakened. "
        f"{drawn}{others}".rstrip(),
        alternative=f"Effective against true targets. {percent(float(diagnosis.changed.mean()))} "
        "of the rows ended on the other side of the average.",
        traces=traces,
        layout=layout(
            420,
            {"title": f"true {chart_text(names[0], 40)}", "nticks": 6},
            {"title": "effective", "nticks": 7},
            showlegend=True,
            legend=legend_of_dots(),
        ),
        choose="Target" if shown > 1 else "",
        views=tuple(
            View(
                name(target),
                [{"visible": trace // 3 == place} for trace in range(len(traces))],
                {"xaxis.title.text": f"true {chart_text(target, 40)}"},
            )
            for place, target in enumerate(names)
        )
        if shown > 1
        else (),
    )


def _dots(x: np.ndarray, y: np.ndarray, rows: np.ndarray, label: str, colour: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label,
        "x": plain(x, 4),
        "y": plain(y, 4),
        "customdata": plain(rows),
        "marker": {"size": 5, "color": colour, "opacity": 0.6},
        "hovertemplate": "row %{customdata:,d}<br>true %{x:.4g}<br>effective %{y:.4g}"
        "<extra></extra>",
    }


def _classes(diagnosis: Diagnosis) -> Chart:
    stream = diagnosis.stream
    true = stream.Y.argmax(axis=1)
    classes = len(stream.target_names)
    rows = np.bincount(true, minlength=classes)
    changed = np.bincount(true[diagnosis.changed], minlength=classes)
    share = changed / np.maximum(rows, 1)
    shown = np.arange(classes)
    if classes > MOST_CLASSES:
        shown = np.sort(np.argsort(-share, kind="stable")[:MOST_CLASSES])
    became = _became(diagnosis, true)
    worst = int(np.argmax(share))
    return Chart(
        key="targets",
        title="Rows whose class changed",
        caption="For each class, the share of its rows whose effective target is largest for "
        "another class: the online learner has really learned that they are something else. "
        + (
            f"The {MOST_CLASSES} classes that changed most, of {count(classes)}."
            if len(shown) < classes
            else ""
        ).strip(),
        alternative=f"{percent(float(diagnosis.changed.mean()))} of all rows changed class; "
        f"most of all {name(stream.target_names[worst])}, {percent(float(share[worst]))} of its "
        "rows" + (f", most often to {became[worst]}." if changed[worst] else "."),
        traces=[
            {
                "type": "bar",
                "orientation": "h",
                "name": "changed class",
                "x": plain(share[shown]),
                "y": plain(np.arange(len(shown))),
                "text": [percent(float(s)) for s in share[shown]],
                "textposition": "outside",
                "customdata": [
                    f"{count(int(changed[k]))} of {count(int(rows[k]))} rows"
                    + (f", most often to {chart_text(became[k])}" if changed[k] else "")
                    for k in shown
                ],
                "marker": {"color": COLOURS["online"]},
                "textfont": {"color": MUTED},
                "cliponaxis": False,
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        ],
        layout=layout(
            100 + 26 * len(shown),
            {
                "title": "share of the class's rows",
                "tickformat": ".0%",
                "range": [0, max(float(share.max()) * 1.12, 0.05)],
            },
            {
                "tickvals": plain(np.arange(len(shown))),
                "ticktext": [chart_text(stream.target_names[k], 18) for k in shown],
                "autorange": "reversed",
                "showgrid": False,
                "zeroline": False,
                "tickfont": {"color": INK},
            },
            bargap=0.35,
        ),
    )


def _became(diagnosis: Diagnosis, true: np.ndarray) -> list[str]:
    """The class that changed rows of each class went to most often."""
    names = diagnosis.stream.target_names
    effective = diagnosis.effective.argmax(axis=1)
    to = np.zeros((len(names), len(names)), dtype=int)
    np.add.at(to, (true[diagnosis.changed], effective[diagnosis.changed]), 1)
    return [name(names[k]) for k in to.argmax(axis=1)]
