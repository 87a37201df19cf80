"""Charts of targets: true against effective, real against predicted movements, and groups."""

from typing import Any

import numpy as np

from retarget.diagnosis.report.charts import (
    ABOVE,
    COLD,
    DOT_LEGEND,
    DOTS,
    INK,
    MUTED,
    SURFACE,
    WARM,
    Chart,
    Trace,
    View,
    diagonal,
    dots,
    layout,
    name_axis,
    plain,
)
from retarget.diagnosis.report.charts.rows import (
    POINTS,
    drawn_rows,
    file_row,
    group_of_row,
    most_shifted,
    shift_unit,
)
from retarget.diagnosis.report.words import chart_text, largest_moves, name, number, percent
from retarget.diagnosis.result import Diagnosis, GroupShift, ModelDiagnosis
from retarget.learners import COLOURS

ALL_TARGETS = 20_000  # points for all targets together, to limit the page's size
MOST_TARGETS = 40
MOST_CLASSES = 30
NUMBERED = 10  # with at most so many groups, each square shows its number


def targets_chart(diagnosis: Diagnosis) -> Chart | None:
    """Draws true against effective targets; for classes, the share that changed class."""
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
    tip = "row %{customdata:,d}<br>true %{x:.4g}<br>effective %{y:.4g}"
    traces: list[Trace] = []
    for target in range(len(names)):
        x, y, other = true[:, target], effective[:, target], crossed[:, target]
        for side, label, colour in (
            (~other, "same side of the average", DOTS),
            (other, "other side", COLOURS["iterative"]),
        ):
            numbers = plain(stream.rows[rows][side] + 1)
            traces.append(dots(label, x[side], y[side], tip, numbers, colour))
        traces.append(diagonal("learned as it is", x))
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
        title="True targets, and what was learned",
        caption="Each dot is a row: across, its true target; up, the target that the offline "
        "learner would need to end up where the online one did. On the dashed line, a target was "
        "learned as it is; if the cloud is flatter, targets were weakened. "
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
    few = f" The {MOST_CLASSES} classes that changed most, of {len(names):,}."
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
    ticks = [chart_text(names[k], 18) for k in shown]
    return Chart(
        key="targets",
        title="Rows whose class changed",
        caption="For each class, the share of its rows whose effective target is largest for "
        "another class: the online learner has really learned the wrong class for them."
        + few
        * (len(shown) < len(names)),
        alternative=f"{percent(float(diagnosis.changed.mean()))} of all rows changed class; "
        f"most of all {name(names[worst])}, {percent(float(share[worst]))} of its rows"
        f"{name(became[worst]) if changed[worst] else ''}.",
        traces=[bars],
        # The shares are written beside the bars, the longest of which needs the right margin.
        layout=layout(
            100 + 26 * len(shown),
            x,
            name_axis(ticks, autorange="reversed", tickfont={"color": INK}),
            bargap=0.35,
            margin={"l": 8, "r": 44, "t": 12, "b": 8},
        ),
    )


def theory_chart(diagnosis: Diagnosis, model: ModelDiagnosis) -> Chart | None:
    """Draws the movement that the theory predicts against the real one, one dot per target."""
    if model.theory is None:
        return None
    stream, outputs = diagnosis.stream, model.shift.shape[1]
    most = most_shifted(np.linalg.norm(model.shift, axis=1))
    rows = drawn_rows(group_of_row(diagnosis), most, max(POINTS // outputs, 1))
    x, y = model.theory[rows].ravel(), model.shift[rows].ravel()
    both = np.isfinite(x) & np.isfinite(y)
    if not both.any():
        return None
    names = [chart_text(target) for target in stream.target_names]
    texts = [f"row {file_row(stream, row)}, {target}" for row in rows for target in names]
    shown = [text for text, finite in zip(texts, both, strict=True) if finite]
    x, y = x[both], y[both]
    tip = "%{customdata}<br>predicted %{x:.3g}<br>real %{y:.3g}"
    across = {"title": f"predicted ({shift_unit(diagnosis)})", "nticks": 6}
    return Chart(
        key="model-theory",
        title="The shift that the theory predicts, and the real one",
        caption=f"Each dot is a {'target of a ' * (outputs > 1)}row: across, the movement that the "
        "theory predicts; up, the real one. On the dashed line, the theory is right.",
        alternative=f"Real against predicted movement of {len(x):,} targets; their correlation "
        f"is {np.corrcoef(x, y)[0, 1] if len(x) > 1 else np.nan:.2f}.",
        traces=[dots("targets", x, y, tip, shown), diagonal("as predicted", x, y)],
        layout=layout(320, across, {"title": "real", "nticks": 6}),
    )


def move_unit(diagnosis: Diagnosis) -> str:
    """Returns the unit that follows the size of a move in a sentence."""
    return "" if diagnosis.stream.kind == "classification" else " standard deviations"


def size_chart(
    diagnosis: Diagnosis,
    groups: GroupShift,
    key: str = "group-size",
    title: str = "How far groups moved each other",
) -> Chart | None:
    """Draws how far learning each group moved the targets of each."""
    caption = (
        "The stronger a square's colour, the farther learning the group of its column moved the "
        "targets of the group of its row, on average. The diagonal shows the effect of later "
        "rows of the same group."
    )
    words, unit = (key, title, caption, "moved by"), move_unit(diagnosis)
    return _heat_map(groups, unit, groups.size, [SURFACE, WARM], *words)


def pull_chart(diagnosis: Diagnosis) -> Chart | None:
    """Draws whether learning each group weakened or strengthened the targets of each."""
    caption = (
        "The same squares, with a direction. Orange: the targets were weakened "
        "(forgetting). Blue: they were strengthened. No colour: neither."
    )
    title, verb = "In which direction groups moved each other", "changed along their own target by"
    words, groups = ("group-pull", title, caption, verb), diagnosis.groups
    return _heat_map(groups, move_unit(diagnosis), groups.pull, [WARM, SURFACE, COLD], *words)


def _heat_map(
    groups: GroupShift,
    unit: str,
    z: np.ndarray,
    colours: list[str],
    key: str,
    title: str,
    caption: str,
    verb: str,
) -> Chart | None:
    """Draws a square for each pair of groups. Two colours start at 0, three are centred on 0."""
    names = groups.names
    if len(names) < 2 or not np.isfinite(z).any():
        return None
    top = float(f"{np.abs(z[np.isfinite(z)]).max():.4g}") or 1.0
    numbered = len(names) <= NUMBERED
    full = [chart_text(text, 60) for text in names]
    squares: Trace = {
        "type": "heatmap",
        "z": plain(z, 4),
        "zmin": -top if len(colours) == 3 else 0.0,
        "zmax": top,
        "colorscale": [[k / (len(colours) - 1), colour] for k, colour in enumerate(colours)],
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "hovertext": [
            [
                f"learning {g}:<br>targets of {h}<br>{verb} {number(float(value))}"
                for g, value in zip(full, row, strict=True)
            ]
            for h, row in zip(full, z, strict=True)
        ],
        "hoverinfo": "text",
        "showscale": not numbered,
        "colorbar": ABOVE
        | {"y": 1.01, "len": 1, "ypad": 4, "thickness": 10, "outlinewidth": 0, "nticks": 5}
        | {"tickfont": {"color": MUTED}, "tickangle": 0},
    }
    if numbered:  # the text colour is legible on --warm and --cold, the strongest colours
        form = ".2~f" if 0.05 <= top < 1000 else ".1~e"
        squares |= {"texttemplate": f"%{{z:{form}}}", "textfont": {"color": INK}}
    axis: dict[str, Any] = name_axis(
        [chart_text(text, 18 if numbered else 12) for text in names],
        ticks="",
        tickfont={"color": INK, "size": 12 if numbered else 10},
    )
    moves = " ".join(move.words(unit) for move in largest_moves(groups))
    return Chart(
        key=key,
        title=title,
        caption=caption + " An empty square is not defined." * bool(np.isnan(z).any()),
        alternative=f"{title}: {len(names)} by {len(names)} groups. {moves}",
        traces=[squares],
        layout=layout(
            170 + (44 if numbered else 18) * len(names),
            axis | {"title": "while learning"},
            axis | {"title": "targets of", "autorange": "reversed"},
        ),
    )
