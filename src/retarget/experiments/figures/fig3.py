"""Fig. 3: networks on CIFAR-10 and CORe50, test accuracy along the stream."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Column, Table

from retarget.continual import backward_transfer, forgetting
from retarget.experiments.figures.cifar10 import CifarRun, cifar_family
from retarget.experiments.figures.core50 import Core50Run, core50_family
from retarget.experiments.figures.over_seeds import (
    draw_band,
    figure_style,
    mean_and_error,
    settings,
)
from retarget.learners import COLOURS

PARAMETERS = CifarRun.model_fields.keys() | Core50Run.model_fields.keys()
BASELINE = "vanilla SGD"
MOST_LINES = 20  # in one panel
# Colour and line of the cases; dashed is what the paper does not have.
LINES = {
    "cumulative replay": (COLOURS["offline"], "-"),
    "vanilla SGD": (COLOURS["online"], "-"),
    "EWC": (COLOURS["corrected"], "-"),
    "corrected": (COLOURS["iterative"], "-"),
    "corrected, fixed kernel": (COLOURS["one step"], "-"),
    "corrected, summed loss": (COLOURS["iterative"], "--"),
    "offline prediction, uncorrected": (COLOURS["truth"], "--"),
    "ER": (COLOURS["offline"], "--"),
    "DER": (COLOURS["corrected"], "--"),
    "DER++": (COLOURS["corrected"], ":"),
    "label smoothing": (COLOURS["online"], "--"),
    "DER, corrected": (COLOURS["iterative"], ":"),
    "corrected, online half": (COLOURS["one step"], "--"),
    "corrected, offline half": (COLOURS["truth"], "-"),
}


# Of those that have none: colours of their own.
OTHER_LINES = [(colour, line) for line in ("-", "--", ":") for colour in COLOURS.values()]


def draw(table: pl.DataFrame) -> Figure:
    """One panel: a line for each case, a band of one standard error around it.

    Where something is swept, each of its values has a line. More than a legend has room for are
    left out, and the title says so.

    Along the samples of several tasks, the passes over one, or, where networks were evaluated
    after each task only, along the tasks.
    """
    with figure_style():
        figure, axes = plt.subplots(figsize=(6.4, 5.4))
        ends = task_ends(table)
        along, name = _axis(table)
        parts = settings(table, PARAMETERS)
        for place, part in enumerate(parts[:MOST_LINES]):
            colour, line = line_of(part.name, place)
            # by task, not before the first has been learned
            shown = part.table.filter(pl.col(along) >= (along == "tasks_learned"))
            draw_band(axes, shown, along, "accuracy", colour, ls=line, label=part.name, lw=1.5)
        if along == "samples":
            for end in ends[:-1]:
                axes.axvline(end, color="lightgray", lw=0.7, zorder=0)
        few = f": the first {MOST_LINES} of {len(parts)}" if len(parts) > MOST_LINES else ""
        axes.set_title(data_of(table) + few)
        axes.set_xlabel(name)
        if along == "tasks_learned":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # there are no half tasks
        axes.set_ylabel("accuracy on the test images of all classes")
        if any(part.name for part in parts):
            figure.legend(loc="outside lower center", ncols=2)
    return figure


def summarise(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Final accuracy of each case and, where there are several tasks, what was forgotten.

    Seeds differ in their tasks, so that the spread over them is wide; a difference to plain SGD is
    taken seed by seed.
    """
    seeds = table["seed"].n_unique()
    several = len(task_ends(table)) > 1
    parts = settings(table, PARAMETERS)
    plain = next((part.table for part in parts if part.name == BASELINE), None)
    columns = ["accuracy"] + [f"less {BASELINE}'s"] * (plain is not None)
    columns += ["forgetting", "backward transfer"] if several else ["after one pass"]
    title = f"{escape(data_of(table))}: mean ± SEM over {seeds} seeds, at the end"
    shown = Table("case", *(Column(name, justify="right") for name in columns), title=title)
    for part in parts:
        values = [final_accuracies(part.table)]
        if plain is not None:
            values.append(_less(part.table, plain))
        if several:
            values += _lost(accuracy_matrices(part.table))
        else:
            values.append(_after_one_pass(part.table))
        shown.add_row(escape(part.name) or "all runs", *map(mean_and_error, values))
    return [shown]


def data_of(table: pl.DataFrame) -> str:
    """What was learned, in words."""
    return " and ".join(table["data"].unique(maintain_order=True))


def line_of(name: str, place: int) -> tuple[str, str]:
    """Colour and line of a case, or of another one by its place."""
    return LINES.get(name, OTHER_LINES[place % len(OTHER_LINES)])


def task_ends(table: pl.DataFrame) -> list[int]:
    """Samples seen when each task has been learned."""
    learned = table.filter(pl.col("tasks_learned") > 0).group_by("tasks_learned")
    ends: list[int] = learned.agg(pl.col("samples").min())["samples"].sort().to_list()
    return ends


def final_accuracies(table: pl.DataFrame) -> np.ndarray:
    """One number a seed, in their order; NaN for a run that diverged."""
    return _by_seed(table)["accuracy"].to_numpy()


def accuracy_matrices(table: pl.DataFrame) -> np.ndarray:
    """(seeds, T, T) accuracy on each task after each task; NaN for a run that diverged."""
    tasks = table.select(pl.col("tasks_learned").max()).item()
    matrices = []
    for _, run_table in table.group_by("seed", maintain_order=True):
        ends = run_table.filter(
            pl.col("tasks_learned") > 0, pl.col("tasks_learned").diff().fill_null(1) > 0
        )
        rows = np.array(ends["task_accuracy"].to_list(), dtype=float)
        matrices.append(rows if len(rows) == tasks else np.full((tasks, tasks), np.nan))
    return np.array(matrices)


CIFAR_CURVES = cifar_family(draw, summarise)
CORE50_CURVES = core50_family(draw, summarise)


def _axis(table: pl.DataFrame) -> tuple[str, str]:
    """What the curves are drawn along, and its name."""
    tasks = len(task_ends(table))
    if tasks == 1:
        return "passes", "passes over the data"
    runs = [part.table.group_by("seed").len() for part in settings(table, PARAMETERS)]
    evaluations = pl.concat(runs)["len"].max()
    # one before everything, one after each task
    if evaluations == tasks + 1:
        return "tasks_learned", "tasks learned"
    return "samples", "samples seen (a task between two lines)"


def _by_seed(table: pl.DataFrame) -> pl.DataFrame:
    last = table.group_by("seed", maintain_order=True).agg(pl.col("accuracy").last())
    return last.sort("seed")


def _less(table: pl.DataFrame, plain: pl.DataFrame) -> np.ndarray:
    """Final accuracies less those of plain SGD, for each seed that both have."""
    both = _by_seed(table).join(_by_seed(plain), on="seed", maintain_order="left")
    return (both["accuracy"] - both["accuracy_right"]).to_numpy()


def _lost(matrices: np.ndarray) -> list[np.ndarray]:
    """Forgetting and backward transfer; nothing where there was a single task."""
    if matrices.shape[-1] == 1:
        return [np.empty(0)] * 2
    return [forgetting(matrices), backward_transfer(matrices)]


def _after_one_pass(table: pl.DataFrame) -> np.ndarray:
    """Accuracy when every image has been seen once; one number a seed."""
    once = table.filter(pl.col("passes") >= 1).group_by("seed", maintain_order=True)
    return once.agg(pl.col("accuracy").first())["accuracy"].to_numpy()
