"""Fig. 3: networks on CIFAR-10 and CORe50, test accuracy along the stream."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import RenderableType
from rich.table import Table

from retarget.colours import COLOURS
from retarget.continual.metrics import backward_transfer, forgetting
from retarget.experiments import cifar_training, core50_training
from retarget.experiments.cifar_training import CifarRun
from retarget.experiments.core50_training import Core50Run
from retarget.experiments.experiment import Family
from retarget.experiments.network_training import trained_together
from retarget.experiments.over_seeds import draw_band
from retarget.experiments.style import figure_style

BASELINE = "vanilla SGD"
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


def draw(table: pl.DataFrame) -> Figure:
    """One panel: a line for each case, a band of one standard error around it.

    Along the samples of several tasks, the passes over one, or, where networks were evaluated
    after each task only, along the tasks.
    """
    with figure_style():
        figure, axes = plt.subplots(figsize=(6.4, 5.4))
        ends = task_ends(table)
        along, name = _axis(table)
        for case in table["case"].unique(maintain_order=True):
            colour, line = LINES.get(case, ("black", ":"))
            part = table.filter(pl.col("case") == case, pl.col(along) >= _start(along))
            draw_band(axes, part, along, "accuracy", colour, ls=line, label=case, lw=1.5)
        if along == "samples":
            for end in ends[:-1]:
                axes.axvline(end, color="lightgray", lw=0.7, zorder=0)
        axes.set_title(table["data"][0])
        axes.set_xlabel(name)
        if along == "tasks_learned":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # there are no half tasks
        axes.set_ylabel("accuracy on the test images of all classes")
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def summarise(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Final accuracy of each case and, where there are several tasks, what was forgotten.

    Seeds differ in their tasks, so that the spread over them is wide; a difference to plain SGD is
    taken seed by seed.
    """
    seeds = table["seed"].n_unique()
    several = len(task_ends(table)) > 1
    shown = Table(title=f"{table['data'][0]}: mean ± SEM over {seeds} seeds, at the end")
    shown.add_column("case")
    plain = table.filter(case=BASELINE)
    columns = ["accuracy"] + [f"less {BASELINE}'s"] * (not plain.is_empty())
    columns += ["forgetting", "backward transfer"] if several else ["after one pass"]
    for column in columns:
        shown.add_column(column, justify="right")
    for case in table["case"].unique(maintain_order=True):
        part = table.filter(case=case)
        values = [final_accuracies(part)]
        if not plain.is_empty():
            values.append(values[0] - final_accuracies(plain))
        if several:
            matrices = accuracy_matrices(part)
            values += [forgetting(matrices), backward_transfer(matrices)]
        else:
            values.append(_after_one_pass(part))
        shown.add_row(case, *(_text(value) for value in values))
    return [shown]


def task_ends(table: pl.DataFrame) -> list[int]:
    """Samples seen when each task has been learned."""
    learned = table.filter(pl.col("tasks_learned") > 0).group_by("tasks_learned")
    ends: list[int] = learned.agg(pl.col("samples").min())["samples"].sort().to_list()
    return ends


def final_accuracies(table: pl.DataFrame) -> np.ndarray:
    """One number a seed, in their order; NaN for a run that diverged."""
    last = table.group_by("seed", maintain_order=True).agg(pl.col("accuracy").last())
    return last.sort("seed")["accuracy"].to_numpy()


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


CIFAR_CURVES = Family(
    CifarRun, cifar_training.run, draw, summarise, cifar_training.cifar_checksums, trained_together
)
CORE50_CURVES = Family(
    Core50Run,
    core50_training.run,
    draw,
    summarise,
    core50_training.core50_checksums,
    trained_together,
)


def _axis(table: pl.DataFrame) -> tuple[str, str]:
    """What the curves are drawn along, and its name."""
    tasks = len(task_ends(table))
    if tasks == 1:
        return "passes", "passes over the data"
    evaluations = table.group_by("case", "seed").len()["len"].max()
    # one before everything, one after each task
    if evaluations == tasks + 1:
        return "tasks_learned", "tasks learned"
    return "samples", "samples seen (a task between two lines)"


def _start(along: str) -> int:
    """Where the curves begin: by task, not before the first has been learned."""
    return 1 if along == "tasks_learned" else 0


def _after_one_pass(table: pl.DataFrame) -> np.ndarray:
    """Accuracy when every image has been seen once; one number a seed."""
    once = table.filter(pl.col("passes") >= 1).group_by("seed", maintain_order=True)
    return once.agg(pl.col("accuracy").first())["accuracy"].to_numpy()


def _text(values: np.ndarray) -> str:
    """Mean and standard error."""
    if np.isnan(values).any():
        return f"{np.isnan(values).sum()} of {len(values)} diverged"
    sem = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{values.mean():.3f} ± {sem:.3f}"
