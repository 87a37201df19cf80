"""Fig. 7, ours and not the paper's: accuracy after every task, and against the memory it took."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Column, Table

from retarget.experiments.figures.cifar10 import cifar_family
from retarget.experiments.figures.core50 import core50_family
from retarget.experiments.figures.fig3 import PARAMETERS, data_of, final_accuracies, line_of
from retarget.experiments.figures.over_seeds import (
    Setting,
    draw_band,
    figure_style,
    letter,
    mean_and_error,
    settings,
    standard_error,
)
from retarget.learners import COLOURS

REFERENCE = "cumulative replay"
NOTHING = 1e3  # where what keeps no bytes is drawn, on an axis that has no zero
MARKERS = {"-": "o", "--": "D", ":": "s"}
LINES = {
    "tangent": (COLOURS["iterative"], "-"),
    "tangent, three epochs": (COLOURS["iterative"], "--"),
    "tangent, whole network": (COLOURS["iterative"], "-"),
    "tangent, 1,024 features": (COLOURS["iterative"], ":"),
    "last layer": (COLOURS["one step"], "-"),
    "last layer, random features": (COLOURS["one step"], "--"),
    "joint, ten epochs": (COLOURS["truth"], "-"),
    "corrected": (COLOURS["truth"], "--"),
    "corrected, summed loss": (COLOURS["truth"], "--"),
}


def draw(table: pl.DataFrame) -> Figure:
    """Left: accuracy after every task. Right: at the end, against what was kept of the stream."""
    with figure_style():
        figure, (curves, memory) = plt.subplots(1, 2, figsize=(9.6, 5.2))
        parts = settings(table, PARAMETERS)
        for place, part in enumerate(parts):
            colour, line = LINES.get(part.name) or line_of(part.name, place)
            mark = {"marker": MARKERS[line], "mfc": colour if line == "-" else "white", "ms": 5}
            # what learns nothing before the end has no curve
            first = part.table["tasks_learned"].max() if part.name.startswith("joint") else 1
            learned = part.table.filter(pl.col("tasks_learned") >= first)
            band = {"ls": line, "label": part.name, **mark}
            draw_band(curves, learned, "tasks_learned", "accuracy", colour, **band)
            accuracies = final_accuracies(part.table)
            memory.errorbar(
                [max(_kept(part), NOTHING)],
                [np.nanmean(accuracies) if np.isfinite(accuracies).any() else np.nan],
                yerr=[standard_error(accuracies)],
                color=colour,
                capsize=2,
                **mark,
            )
        letter(curves, "A", "after every task")
        curves.set_xlabel("tasks learned")
        curves.xaxis.set_major_locator(MaxNLocator(integer=True))
        curves.set_ylabel("accuracy on the test images of all classes")
        letter(memory, "B", "at the end, by memory")
        memory.set_xscale("log")
        memory.set_xlabel("kept of the stream, in bytes (at the left edge: nothing)")
        figure.suptitle(data_of(table))
        figure.legend(*curves.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def summarise(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Final accuracy, what was kept for it, and in how many seeds it is above cumulative replay."""
    seeds = table["seed"].n_unique()
    names = ("accuracy", f"less {REFERENCE}'s", "seeds above it", "kept")
    title = f"{escape(data_of(table))}: mean ± SEM over {seeds} seeds, at the end"
    shown = Table("case", *(Column(name, justify="right") for name in names), title=title)
    parts = settings(table, PARAMETERS)
    reference = next((_by_seed(part) for part in parts if part.name == REFERENCE), {})
    for part in parts:
        mine = _by_seed(part)
        gaps = np.array([mine[seed] - reference[seed] for seed in mine if seed in reference])
        compared = part.name != REFERENCE and len(gaps)
        shown.add_row(
            escape(part.name) or "all runs",
            mean_and_error(np.array(list(mine.values()))),
            mean_and_error(gaps) if compared else "",
            f"{(gaps > 0).sum()} of {len(gaps)}" if compared else "",
            f"{_kept(part) / 1e6:,.1f} MB",
        )
    return [shown]


def _kept(part: Setting) -> int:
    kept: int = part.table.select(pl.col("kept_bytes").max()).item()
    return kept


def _by_seed(part: Setting) -> dict[int, float]:
    last = part.table.group_by("seed", maintain_order=True).agg(pl.col("accuracy").last())
    return dict(last.iter_rows())


CIFAR_MEMORY = cifar_family(draw, summarise)
CORE50_MEMORY = core50_family(draw, summarise)
