"""Which group moved which: a square for each pair of groups."""

import numpy as np

from retarget.diagnosis.report.charts import (
    ABOVE,
    COLD,
    INK,
    MUTED,
    SURFACE,
    WARM,
    Chart,
    Trace,
    layout,
    plain,
)
from retarget.diagnosis.report.words import chart_text, largest_moves, number
from retarget.diagnosis.result import Diagnosis

NUMBERED = 10  # groups up to which each cell has its number in it


def size_chart(
    diagnosis: Diagnosis,
    key: str = "group-size",
    title: str = "How far groups moved each other",
) -> Chart | None:
    """How far learning each group moved the targets of each."""
    return _heat_map(
        diagnosis,
        key=key,
        title=title,
        z=diagnosis.groups.size,
        colours=[SURFACE, WARM],
        verb="moved by",
        caption="Take a row of the picture: the stronger a square's colour, the farther learning "
        "that column's group moved the targets of this row's group, on average. The diagonal is "
        "later rows of the same group.",
    )


def pull_chart(diagnosis: Diagnosis) -> Chart | None:
    """Whether learning each group weakened or strengthened the targets of each."""
    return _heat_map(
        diagnosis,
        key="group-pull",
        title="In which direction groups moved each other",
        z=diagnosis.groups.pull,
        colours=[WARM, SURFACE, COLD],
        verb="changed along their own target by",
        caption="The same squares, with a direction. Orange: the targets were weakened "
        "(forgetting). Blue: they were strengthened. Without colour: neither.",
    )


def move_unit(diagnosis: Diagnosis) -> str:
    """What follows the size of a move in a sentence."""
    return "" if diagnosis.stream.kind == "classification" else " standard deviations"


def _heat_map(
    diagnosis: Diagnosis,
    key: str,
    title: str,
    z: np.ndarray,
    colours: list[str],
    verb: str,
    caption: str,
) -> Chart | None:
    """Of two colours, from 0; of three, as far below 0 as above."""
    names = diagnosis.groups.names
    if len(names) < 2 or not np.isfinite(z).any():
        return None
    top = float(f"{np.nanmax(np.abs(np.where(np.isfinite(z), z, 0.0))):.4g}") or 1.0
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
    axis = {
        "tickvals": plain(np.arange(len(names))),
        "ticktext": [chart_text(text, 18 if numbered else 12) for text in names],
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
        "tickfont": {"color": INK, "size": 12 if numbered else 10},
    }
    moves = " ".join(move.words(move_unit(diagnosis)) for move in largest_moves(diagnosis))
    return Chart(
        key=key,
        title=title,
        caption=caption + " An empty square is not defined." * bool(np.isnan(z).any()),
        alternative=f"{title}: {len(names)} by {len(names)} groups. {moves}",
        traces=[squares | (_digits(top) if numbered else {})],
        layout=layout(
            170 + (44 if numbered else 18) * len(names),
            axis | {"title": "while learning"},
            axis | {"title": "targets of", "autorange": "reversed"},
        ),
    )


def _digits(top: float) -> dict[str, object]:
    """The numbers in the squares, of which `top` is the largest.

    --warm and --cold, the strongest colours, are chosen so that ink can be read on them.
    """
    form = ".2~f" if 0.05 <= top < 1000 else ".1~e"
    return {"texttemplate": f"%{{z:{form}}}", "textfont": {"color": INK}}
