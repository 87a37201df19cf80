"""Fig. 6: what rate, strength, ridge and kernel do to networks on CIFAR-10 and CORe50."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Column, Table

from retarget.experiments.figures.cifar10 import cifar_family
from retarget.experiments.figures.core50 import core50_family
from retarget.experiments.figures.fig3 import LINES, MOST_LINES, PARAMETERS, data_of, line_of
from retarget.experiments.figures.over_seeds import (
    draw_band,
    figure_style,
    letter,
    mean_and_error,
    mean_and_sem,
    settings,
    sweep_styles,
)

FEW = 4  # values on an axis, each of which is written
MOST_PANELS = 12
LETTERS = "ABCDEFGHIJKL"
SYMBOLS = {"lr": r"$\eta$", "strength": r"$\lambda$", "gamma": r"$\gamma$"}
NAMES = {"lr": "rate", "gamma": "ridge"}


# Title, and what is swept, of the experiment's cases, which begin with the panel's letter. (A is
# none: it has curves.)
PANELS = {
    "B vanilla SGD": ("vanilla SGD, five tasks", "lr"),
    "C EWC": ("EWC, five tasks", "strength"),
    "D vanilla SGD": ("vanilla SGD, random order", "lr"),
    "E vanilla SGD": ("vanilla SGD", "lr"),
    "F EWC": ("EWC", "strength"),
    "G corrected": ("corrected", "lr"),
    "H cumulative replay": ("cumulative replay", "lr"),
}


def draw(table: pl.DataFrame) -> Figure:
    """A panel with the curves of all cases in which nothing is swept, and one for each sweep.

    Fig. 6 has four: A to D, or E to H. Of more than fit a figure the first are drawn, and the title
    says so.
    """
    curves, sweeps = _panels(table)
    count = len(sweeps) + bool(curves)
    shown = sweeps[: MOST_PANELS - bool(curves)]
    rows = -(-(len(shown) + bool(curves)) // 2)
    with figure_style():
        figure = plt.figure(figsize=(9.5, 3.6 * max(rows, 1)))
        few = f": the first {MOST_PANELS} of {count} panels" if count > MOST_PANELS else ""
        figure.suptitle(data_of(table) + few)
        axes = [
            figure.add_subplot(rows, min(count, 2), place + 1)
            for place in range(len(shown) + bool(curves))
        ]
        if curves:
            papers = all(name.startswith("A ") for name, _ in curves)
            letter(axes[0], "A", "the kernel: fixed, or refreshed" if papers else "nothing swept")
            _draw_curves(axes[0], curves)
        for place, (case, title, along, part) in enumerate(shown, start=bool(curves)):
            letter(axes[place], case[0] if case in PANELS else LETTERS[place], title)
            _draw_sweep(axes[place], final_rows(part), case, along)
    return figure


def summarise(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Final accuracies: of what is not swept, and along each sweep."""
    numbers = (Column(name, justify="right") for name in ("seeds", "accuracy"))
    title = f"{escape(data_of(table))}: final accuracy, mean ± SEM over seeds"
    shown = Table("panel", "setting", *numbers, title=title)
    for case, part in _cases(table):
        names = _swept(case, part)
        for _, final in settings(final_rows(part), PARAMETERS):
            shown.add_row(
                escape(case or "all runs"),
                escape(", ".join(f"{name} = {_text(final[name][0])}" for name in names)),
                str(len(final)),
                mean_and_error(final["accuracy"]),
            )
    return [shown]


def final_rows(table: pl.DataFrame) -> pl.DataFrame:
    """The last evaluation of each run."""
    return table.group_by(_labels(table), maintain_order=True).last()


CIFAR_SWEEPS = cifar_family(draw, summarise)
CORE50_SWEEPS = core50_family(draw, summarise)


Curve = tuple[str, pl.DataFrame]
Sweep = tuple[str, str, str, pl.DataFrame]  # the case, its title, what is swept, its runs


def _labels(table: pl.DataFrame) -> list[str]:
    """The columns that tell one run from another."""
    return [name for name in table.columns if name in ("case", *PARAMETERS)]


def _cases(table: pl.DataFrame) -> list[Curve]:
    """The cases by name; all in one, without a name, where there are none."""
    if "case" not in table.columns:
        return [("", table)]
    parts = table.partition_by("case", maintain_order=True)
    return [(part["case"][0], part) for part in parts]


def _swept(case: str, table: pl.DataFrame) -> list[str]:
    """What is swept in a case, that of its panel first; of one without a sweep, its rate."""
    labels = [name for name in _labels(table) if name not in ("case", "seed")]
    varied = [name for name in (*SYMBOLS, *labels) if name in labels and _differs(table, name)]
    names = dict.fromkeys([*PANELS.get(case, ("",))[1:], *varied] or ["lr"])
    return [name for name in names if name in labels]


def _differs(table: pl.DataFrame, name: str) -> bool:
    return table[name].n_unique() > 1


def _panels(table: pl.DataFrame) -> tuple[list[Curve], list[Sweep]]:
    """What is drawn along the samples, and what along a parameter, case by case."""
    curves: list[Curve] = []
    sweeps: list[Sweep] = []
    for case, part in _cases(table):
        title, along = PANELS.get(case, ("", None))
        if along not in part.columns:
            title, along = case or "all runs", _swept_number(part)
        if along is not None:
            sweeps.append((case, title, along, part))
        else:  # a text may be swept, which makes no axis
            curves += [
                (", ".join(filter(None, (case, setting.name))), setting.table)
                for setting in settings(part, PARAMETERS)
            ]
    return curves, sweeps


def _swept_number(table: pl.DataFrame) -> str | None:
    """The parameter to draw along: a number that is swept, of the known ones if there is one."""
    numbers = [name for name in _labels(table) if table[name].dtype.is_numeric()]
    swept = [name for name in numbers if name != "seed" and _differs(table, name)]
    return next((name for name in (*SYMBOLS, *swept) if name in swept), None)


def _draw_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    for place, (case, part) in enumerate(curves[:MOST_LINES]):
        name = case.removeprefix("A ")
        colour, line = line_of(name, place)
        draw_band(axes, part, "samples", "accuracy", colour, ls=line, label=name, lw=1.5)
    axes.set_xlabel("samples seen")
    axes.set_ylabel("test accuracy")
    if axes.get_legend_handles_labels()[0]:
        left_out = len(curves) - MOST_LINES
        axes.legend(loc="lower right", title=f"and {left_out} more" if left_out > 0 else None)


def _draw_sweep(axes: Axes, final: pl.DataFrame, case: str, along: str) -> None:
    """Final accuracy against what is swept; a cross below where runs diverged."""
    parts = settings(final, PARAMETERS, but=[along])
    for part, (colour, marker) in zip(parts, sweep_styles(len(parts)), strict=True):
        label = ", ".join(f"{SYMBOLS.get(k, k)} = {_text(v)}" for k, v in part.values.items())
        if not label and case[2:] in LINES:
            colour, marker = LINES[case[2:]][0], "o"
        _draw_line(axes, part.table, along, colour, marker, label or None)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    swept = final[along].unique().sort()
    if (swept > 0).all():  # a logarithm leaves out 0
        axes.set_xscale("log")
    if len(swept) <= FEW:  # less than a decade or two, where the axis's own numbers overlap
        axes.set_xticks(swept, labels=[f"{value:g}" for value in swept])
        axes.xaxis.set_minor_locator(NullLocator())
    name = NAMES.get(along, along.replace("_", " "))
    axes.set_xlabel(f"{name} {SYMBOLS.get(along, '')}")
    axes.set_ylabel("final test accuracy")


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


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
