"""Which group moved which: the two heat maps, and the largest entries in words."""

from typing import Any

import numpy as np

from retarget.diagnosis.report.charts.chart import (
    COLD,
    INK,
    MUTED,
    SURFACE,
    WARM,
    Chart,
    layout,
    plain,
)
from retarget.diagnosis.report.words import chart_text, name, number
from retarget.diagnosis.result import Diagnosis

NUMBERED = 10  # groups up to which each cell has its number in it


def size_chart(diagnosis: Diagnosis) -> Chart | None:
    """How far learning each group moved the targets of each."""
    finite = diagnosis.groups.size[np.isfinite(diagnosis.groups.size)]
    top = float(finite.max()) if len(finite) else 0.0
    return _heat_map(
        diagnosis,
        key="group-size",
        title="How far groups moved each other",
        z=diagnosis.groups.size,
        scale=[[0, SURFACE], [1, WARM]],
        verb="moved by",
        caption="Take a row of the picture: the stronger a square's colour, the farther learning "
        "that column's group moved the targets of this row's group, on average. The diagonal is "
        "later rows of the same group.",
        zmin=0.0,
        zmax=top or 1.0,
    )


def pull_chart(diagnosis: Diagnosis) -> Chart | None:
    """Whether learning each group weakened or strengthened the targets of each."""
    finite = np.abs(diagnosis.groups.pull[np.isfinite(diagnosis.groups.pull)])
    top = float(finite.max()) if len(finite) else 0.0
    return _heat_map(
        diagnosis,
        key="group-pull",
        title="In which direction",
        z=diagnosis.groups.pull,
        scale=[[0, WARM], [0.5, SURFACE], [1, COLD]],
        verb="changed along their own target by",
        caption="The same squares, with a direction. Orange: the targets were weakened "
        "(forgetting). Blue: they were strengthened. Without colour: neither.",
        zmin=-(top or 1.0),
        zmax=top or 1.0,
    )


def largest_moves(diagnosis: Diagnosis, most: int = 3) -> list[str]:
    """Sentences on the groups that moved another group farthest."""
    groups = diagnosis.groups
    unit = "" if diagnosis.stream.kind == "classification" else " standard deviations"
    size = np.where(np.isfinite(groups.size), groups.size, 0.0)
    np.fill_diagonal(size, 0.0)
    sentences = []
    for entry in np.argsort(-size, axis=None, kind="stable")[:most]:
        moved, learned = divmod(int(entry), len(groups.names))
        if size[moved, learned] <= 0:
            break
        pull = float(groups.pull[moved, learned])
        effect = ""
        if np.isfinite(pull) and abs(pull) > 0.1 * size[moved, learned]:
            effect = f", and {'weakened' if pull < 0 else 'strengthened'} them"
        sentences.append(
            f"Learning {name(groups.names[learned])} moved the targets of "
            f"{name(groups.names[moved])} by {number(float(size[moved, learned]))}{unit} on average"
            f"{effect}."
        )
    return sentences


def _heat_map(
    diagnosis: Diagnosis,
    key: str,
    title: str,
    z: np.ndarray,
    scale: list[list[Any]],
    verb: str,
    caption: str,
    **limits: float,
) -> Chart | None:
    names = diagnosis.groups.names
    if len(names) < 2 or not np.isfinite(z).any():
        return None
    texts = [chart_text(text, 18 if len(names) <= NUMBERED else 12) for text in names]
    full = [chart_text(text, 60) for text in names]
    numbered = len(names) <= NUMBERED
    ticks = {
        "tickvals": plain(np.arange(len(names))),
        "ticktext": texts,
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
    }
    font = {"color": INK, "size": 12 if numbered else 10}
    moves = " ".join(largest_moves(diagnosis))
    return Chart(
        key=key,
        title=title,
        caption=caption + " An empty square is not defined." * bool(np.isnan(z).any()),
        alternative=f"{title}: {len(names)} by {len(names)} groups. {moves}",
        traces=[
            {
                "type": "heatmap",
                "z": plain(z, 4),
                "colorscale": scale,
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
                "colorbar": {
                    "orientation": "h",
                    "x": 0,
                    "xanchor": "left",
                    "y": 1.01,
                    "yanchor": "bottom",
                    "len": 0.6,
                    "ypad": 4,
                    "thickness": 10,
                    "outlinewidth": 0,
                    "tickfont": {"color": MUTED},
                    "nticks": 5,
                },
            }
            | ({"texttemplate": "%{z:.2f}"} if numbered else {})
            | {limit: plain(np.array([value]), 4)[0] for limit, value in limits.items()}
        ],
        layout=layout(
            170 + (44 if numbered else 18) * len(names),
            {
                "title": "while learning",
                "tickfont": font,
                **ticks,
                **({} if numbered else {"tickangle": -90}),
            },
            {
                "title": "targets of",
                "autorange": "reversed",
                "tickfont": font,
                **ticks,
            },
        ),
    )
