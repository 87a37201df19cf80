"""What was to be learned, and what was: numbers row by row, classes by their share."""

import numpy as np

from retarget.diagnosis.report.charts import (
    DOT_LEGEND,
    DOTS,
    INK,
    MUTED,
    Chart,
    Trace,
    View,
    layout,
    line,
    plain,
    scatter,
)
from retarget.diagnosis.report.charts.rows import (
    FAINT,
    POINTS,
    drawn_rows,
    group_of_row,
    most_shifted,
)
from retarget.diagnosis.report.words import chart_text, name, percent
from retarget.diagnosis.result import Diagnosis
from retarget.learners import COLOURS

ALL_TARGETS = 20_000  # points in all, whatever the number of targets: the page's size
MOST_TARGETS = 40
MOST_CLASSES = 30


def targets_chart(diagnosis: Diagnosis) -> Chart | None:
    """True against effective targets; for classes, the rows of each that changed class."""
    if not np.isfinite(diagnosis.shift_size).any():
        return None
    classes = diagnosis.stream.kind == "classification"
    return _classes(diagnosis) if classes else _numbers(diagnosis)


def _numbers(diagnosis: Diagnosis) -> Chart:
    stream = diagnosis.stream
    names = stream.target_names[:MOST_TARGETS]
    limit = min(POINTS, ALL_TARGETS // len(names))
    rows = drawn_rows(group_of_row(diagnosis), most_shifted(diagnosis.shift_size), limit)
    true, effective = (stream.in_units(Z[rows]) for Z in (stream.Y, diagnosis.effective))
    crossed = stream.Y[rows] * diagnosis.effective[rows] < 0
    traces: list[Trace] = []
    for target in range(len(names)):
        x, y, other = true[:, target], effective[:, target], crossed[:, target]
        for side, label, colour in (
            (~other, "same side of the average", DOTS),
            (other, "other side", COLOURS["iterative"]),
        ):
            dots = scatter(
                "markers",
                label,
                x[side],
                y[side],
                "row %{customdata:,d}<br>true %{x:.4g}<br>effective %{y:.4g}",
                digits=4,
                customdata=plain(stream.rows[rows][side] + 1),
                marker={"size": 5, "color": colour, "opacity": FAINT},
            )
            traces.append(dots)
        ends = np.array([np.nanmin(x), np.nanmax(x)])
        traces.append(line("learned as it is", ends, ends, "", INK, width=1.5, dash="dash"))
        traces[-1]["hoverinfo"] = "skip"
    for trace in traces[3:]:
        trace["visible"] = False
    drawn = f"{len(rows):,} of {len(stream):,} rows are drawn. " * (len(rows) < len(stream))
    others = f"The first {len(names)} of {len(stream.target_names)} targets can be chosen. " * (
        len(names) < len(stream.target_names)
    )
    titles = [f"true {chart_text(target, 40)}" for target in names]
    views = tuple(
        View(
            name(target),
            [{"visible": trace // 3 == place} for trace in range(len(traces))],
            {"xaxis.title.text": titles[place]},
        )
        for place, target in enumerate(names)
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
            {"title": titles[0], "nticks": 6},
            {"title": "effective", "nticks": 7},
            showlegend=True,
            legend=DOT_LEGEND,
        ),
        choose="Target" if len(names) > 1 else "",
        views=views if len(names) > 1 else (),
    )


def _classes(diagnosis: Diagnosis) -> Chart:
    names = diagnosis.stream.target_names
    true = diagnosis.stream.Y.argmax(axis=1)
    to = np.zeros((len(names), len(names)), dtype=int)  # changed rows, from class to class
    effective = diagnosis.effective.argmax(axis=1)
    np.add.at(to, (true[diagnosis.changed], effective[diagnosis.changed]), 1)
    rows, changed = np.bincount(true, minlength=len(names)), to.sum(axis=1)
    share = changed / np.maximum(rows, 1)
    shown = np.sort(np.argsort(-share, kind="stable")[:MOST_CLASSES])
    became = [f", most often to {names[k]}" for k in to.argmax(axis=1)]
    worst = int(np.argmax(share))
    few = f"The {MOST_CLASSES} classes that changed most, of {len(names):,}."
    bars: Trace = {
        "type": "bar",
        "orientation": "h",
        "name": "changed class",
        "x": plain(share[shown]),
        "y": plain(np.arange(len(shown))),
        "text": [percent(float(s)) for s in share[shown]],
        "textposition": "outside",
        "customdata": [
            f"{changed[k]:,} of {rows[k]:,} rows{chart_text(became[k], 60) if changed[k] else ''}"
            for k in shown
        ],
        "marker": {"color": COLOURS["online"]},
        "textfont": {"color": MUTED},
        "cliponaxis": False,
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    x = {
        "title": "share of the class's rows",
        "tickformat": ".0%",
        "range": [0, max(float(share.max()) * 1.02, 0.05)],
    }
    y = {
        "tickvals": plain(np.arange(len(shown))),
        "ticktext": [chart_text(names[k], 18) for k in shown],
        "autorange": "reversed",
        "showgrid": False,
        "zeroline": False,
        "tickfont": {"color": INK},
    }
    return Chart(
        key="targets",
        title="Rows whose class changed",
        caption="For each class, the share of its rows whose effective target is largest for "
        "another class: the online learner has really learned that they are something else."
        + f" {few}"
        * (len(shown) < len(names)),
        alternative=f"{percent(float(diagnosis.changed.mean()))} of all rows changed class; "
        f"most of all {name(names[worst])}, {percent(float(share[worst]))} of its rows"
        f"{name(became[worst]) if changed[worst] else ''}.",
        traces=[bars],
        # The shares stand outside the bars, and the longest bar is as long as the chart.
        layout=layout(
            100 + 26 * len(shown), x, y, bargap=0.35, margin={"l": 8, "r": 44, "t": 12, "b": 8}
        ),
    )
