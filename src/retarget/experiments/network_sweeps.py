"""Fig. 6: what rate, strength, ridge and kernel do to networks on CIFAR-10 and CORe50."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from rich.console import RenderableType
from rich.table import Table

from retarget.experiments import cifar_training, core50_training
from retarget.experiments.cifar_training import CifarRun
from retarget.experiments.core50_training import Core50Run
from retarget.experiments.experiment import Family
from retarget.experiments.network_curves import LINES
from retarget.experiments.network_training import trained_together
from retarget.experiments.over_seeds import draw_band, mean_and_sem
from retarget.experiments.style import SWEEP_COLOURS, SWEEP_MARKERS, figure_style, letter

FEW = 4  # values on an axis, each of which is written
SYMBOLS = {"lr": r"\eta", "strength": r"\lambda", "gamma": r"\gamma"}
NAMES = {"lr": "rate", "strength": "strength"}


@dataclass(frozen=True)
class Panel:
    """A panel that shows a sweep.

    Attributes:
        title: What it is of.
        along: The parameter that is swept.
        lines: Another one, with a line for each of its values.
    """

    title: str
    along: str
    lines: str | None = None


# By the experiment's cases, which begin with the panel's letter. (A is none: it has curves.)
PANELS = {
    "B vanilla SGD": Panel("vanilla SGD, five tasks", "lr"),
    "C EWC": Panel("EWC, five tasks", "strength"),
    "D vanilla SGD": Panel("vanilla SGD, random order", "lr"),
    "E vanilla SGD": Panel("vanilla SGD", "lr"),
    "F EWC": Panel("EWC", "strength"),
    "G corrected": Panel("corrected", "lr", lines="gamma"),
    "H cumulative replay": Panel("cumulative replay", "lr"),
}


def draw(table: pl.DataFrame) -> Figure:
    """Four panels: A to D, or E to H."""
    with figure_style():
        figure, axes = plt.subplots(2, 2, figsize=(9.5, 7.2))
        figure.suptitle(table["data"][0])
        cases = [case for case in table["case"].unique(maintain_order=True) if case in PANELS]
        kernels = table.filter(~pl.col("case").is_in(cases))
        if len(kernels):
            letter(axes[0, 0], "A", "the kernel: fixed, or refreshed")
            _draw_kernels(axes[0, 0], kernels)
        for axis, case in zip(axes.flat[-len(cases) :], cases, strict=True):
            letter(axis, case[0], PANELS[case].title)
            _draw_sweep(axis, final_rows(table.filter(case=case)), case)
    return figure


def summarise(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Final accuracies: of the two kernels, and along each sweep."""
    shown = Table(title=f"{table['data'][0]}: final accuracy, mean ± SEM over seeds")
    for column in ("panel", "setting", "seeds", "accuracy"):
        shown.add_column(column, justify="right" if column in ("seeds", "accuracy") else "left")
    final = final_rows(table)
    for case in final["case"].unique(maintain_order=True):
        part = final.filter(case=case)
        panel = PANELS.get(case, Panel(case, "lr"))
        swept = [panel.along, panel.lines] if panel.lines else [panel.along]
        for row in mean_and_sem(part, swept, "accuracy").iter_rows(named=True):
            runs = part.filter(*(pl.col(name) == row[name] for name in swept))
            diverged = int(runs["accuracy"].is_nan().sum())
            text = f"{row['mean']:.3f} ± {row['sem']:.3f}"
            shown.add_row(
                case,
                ", ".join(f"{name} = {row[name]:g}" for name in swept),
                str(len(runs)),
                f"{diverged} diverged" if diverged else text,
            )
    return [shown]


def final_rows(table: pl.DataFrame) -> pl.DataFrame:
    """The last evaluation of each run."""
    swept = [name for name in SYMBOLS if name in table.columns]
    return table.group_by(["case", "seed", *swept], maintain_order=True).last()


CIFAR_SWEEPS = Family(
    CifarRun, cifar_training.run, draw, summarise, cifar_training.cifar_checksums, trained_together
)
CORE50_SWEEPS = Family(
    Core50Run,
    core50_training.run,
    draw,
    summarise,
    core50_training.core50_checksums,
    trained_together,
)


def _draw_kernels(axes: Axes, table: pl.DataFrame) -> None:
    for case in table["case"].unique(maintain_order=True):
        name = case.removeprefix("A ")
        colour, line = LINES.get(name, ("black", ":"))
        part = table.filter(case=case)
        draw_band(axes, part, "samples", "accuracy", colour, ls=line, label=name, lw=1.5)
    axes.set_xlabel("samples seen")
    axes.set_ylabel("test accuracy")
    axes.legend(loc="lower right")


def _draw_sweep(axes: Axes, final: pl.DataFrame, case: str) -> None:
    """Final accuracy against what is swept; a cross below where runs diverged."""
    panel = PANELS[case]
    if panel.lines is None:
        _draw_line(axes, final, panel.along, LINES[case[2:]][0], "o", None)
    else:
        values = final[panel.lines].unique().sort()
        for place, value in enumerate(values):
            part = final.filter(pl.col(panel.lines) == value)
            colour = SWEEP_COLOURS[place % len(SWEEP_COLOURS)]
            marker = SWEEP_MARKERS[place % len(SWEEP_MARKERS)]
            label = f"${SYMBOLS[panel.lines]}$ = {value:g}"
            _draw_line(axes, part, panel.along, colour, marker, label)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    axes.set_xscale("log")
    swept = final[panel.along].unique().sort()
    if len(swept) <= FEW:  # less than a decade or two, where the axis's own numbers overlap
        axes.set_xticks(swept, labels=[f"{value:g}" for value in swept])
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"{NAMES[panel.along]} ${SYMBOLS[panel.along]}$")
    axes.set_ylabel("final test accuracy")


def _draw_line(
    axes: Axes, final: pl.DataFrame, along: str, colour: str, marker: str, label: str | None
) -> None:
    curve = mean_and_sem(final, [along], "accuracy").sort(along)
    axes.errorbar(
        curve[along],
        curve["mean"],
        curve["sem"],
        fmt=f"{marker}-",
        ms=4,
        capsize=2,
        color=colour,
        label=label,
    )
    lost = curve.filter(pl.col("mean").is_nan())
    if len(lost):
        means = curve["mean"].to_numpy()
        low = 0.0 if np.isnan(means).all() else np.nanmin(means)
        labels = axes.get_legend_handles_labels()[1]
        name = None if "diverged" in labels else "diverged"
        axes.plot(lost[along], np.full(len(lost), low), "kx", label=name)
