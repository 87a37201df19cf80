"""Fig. 6 A to D: what rate, strength and kernel do to networks on CIFAR-10."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import RenderableType
from rich.table import Table

from retarget.experiments.cifar_curves import LINES
from retarget.experiments.cifar_training import CifarRun, run
from retarget.experiments.experiment import Family
from retarget.experiments.over_seeds import draw_band, mean_and_sem
from retarget.experiments.style import figure_style, letter

# The experiment's cases begin with the panel's letter. B to D: what is swept, and its name.
SWEEPS = {
    "B vanilla SGD": ("lr", r"rate $\eta$", "vanilla SGD, five tasks"),
    "C EWC": ("strength", r"strength $\lambda$", "EWC, five tasks"),
    "D vanilla SGD": ("lr", r"rate $\eta$", "vanilla SGD, random order"),
}


def draw(table: pl.DataFrame) -> Figure:
    """Panels A to D."""
    with figure_style():
        figure, axes = plt.subplots(2, 2, figsize=(9.5, 7.2))
        letter(axes[0, 0], "A", "the kernel: fixed, or refreshed")
        _draw_kernels(axes[0, 0], table.filter(pl.col("case").str.starts_with("A ")))
        for panel, case in zip(axes.flat[1:], SWEEPS, strict=True):
            parameter, name, title = SWEEPS[case]
            letter(panel, case[0], title)
            _draw_sweep(panel, final_rows(table.filter(case=case)), parameter, case)
            panel.set_xlabel(name)
    return figure


def summarise(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Final accuracies: of the two kernels, and along each sweep."""
    shown = Table(title="CIFAR-10: final accuracy, mean ± SEM over seeds")
    for column in ("panel", "setting", "seeds", "accuracy"):
        shown.add_column(column, justify="right" if column in ("seeds", "accuracy") else "left")
    final = final_rows(table)
    for case in final["case"].unique(maintain_order=True):
        part = final.filter(case=case)
        parameter = SWEEPS.get(case, ("lr",))[0]
        for row in mean_and_sem(part, [parameter], "accuracy").iter_rows(named=True):
            runs = part.filter(pl.col(parameter) == row[parameter])
            diverged = int(runs["accuracy"].is_nan().sum())
            text = f"{row['mean']:.3f} ± {row['sem']:.3f}"
            shown.add_row(
                case,
                f"{parameter} = {row[parameter]:g}",
                str(len(runs)),
                f"{diverged} diverged" if diverged else text,
            )
    return [shown]


def final_rows(table: pl.DataFrame) -> pl.DataFrame:
    """The last evaluation of each run."""
    return table.group_by(["case", "seed", "lr", "strength"], maintain_order=True).last()


FAMILY = Family(CifarRun, run, draw, summarise)


def _draw_kernels(axes: Axes, table: pl.DataFrame) -> None:
    for case in table["case"].unique(maintain_order=True):
        name = case.removeprefix("A ")
        colour, line = LINES.get(name, ("black", ":"))
        part = table.filter(case=case)
        draw_band(axes, part, "samples", "accuracy", colour, ls=line, label=name, lw=1.5)
    axes.set_xlabel("samples seen")
    axes.set_ylabel("test accuracy")
    axes.legend(loc="lower right")


def _draw_sweep(axes: Axes, final: pl.DataFrame, parameter: str, case: str) -> None:
    """Final accuracy against the parameter; a cross below where runs diverged."""
    curve = mean_and_sem(final, [parameter], "accuracy").sort(parameter)
    colour = LINES[case[2:]][0]
    axes.errorbar(
        curve[parameter], curve["mean"], curve["sem"], fmt="o-", ms=4, capsize=2, color=colour
    )
    lost = curve.filter(pl.col("mean").is_nan())
    if len(lost):
        means = curve["mean"].to_numpy()
        low = 0.0 if np.isnan(means).all() else np.nanmin(means)
        axes.plot(lost[parameter], np.full(len(lost), low), "kx", label="diverged")
        axes.legend()
    axes.set_xscale("log")
    axes.set_ylabel("final test accuracy")
