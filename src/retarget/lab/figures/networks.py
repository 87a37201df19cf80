"""Networks on streams of tasks: curves (Fig. 3), sweeps (Fig. 6) and accuracy by memory (Fig. 7).

Each of these works on the table of any network runs, whatever they compare or sweep.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from retarget.lab import backward_transfer, forgetting
from retarget.lab.data.cache import data_set_checksums
from retarget.lab.data.fetch import CIFAR10
from retarget.lab.experiment import Family
from retarget.lab.figures.cifar10 import CifarRun
from retarget.lab.figures.core50 import Core50Run, core50_checksums
from retarget.lab.figures.over_seeds import (
    draw_band,
    draw_sweep,
    figure_style,
    letter,
    mean_and_error,
    settings,
    standard_error,
    sweep_styles,
    table_of_numbers,
)
from retarget.lab.figures.pretrained import PretrainedRun, pretrained_checksums
from retarget.lab.figures.training import train_networks, trained_together
from retarget.learners import COLORS

PARAMETERS = PretrainedRun.model_fields.keys() | Core50Run.model_fields.keys()
ACCURACY = "accuracy on the test images of all classes"
# Color and line style of the cases; dashed ones are not in the paper.
LINES = {
    "cumulative replay": (COLORS["offline"], "-"),
    "vanilla SGD": (COLORS["online"], "-"),
    "EWC": (COLORS["corrected"], "-"),
    "corrected": (COLORS["iterative"], "-"),
    "corrected, fixed kernel": (COLORS["one step"], "-"),
    "corrected, summed loss": (COLORS["iterative"], "--"),
    "offline prediction, uncorrected": (COLORS["truth"], "--"),
    "ER": (COLORS["offline"], "--"),
    "DER": (COLORS["corrected"], "--"),
    "DER++": (COLORS["corrected"], ":"),
    "label smoothing": (COLORS["online"], "--"),
    "DER, corrected": (COLORS["iterative"], ":"),
    "corrected, online half": (COLORS["one step"], "--"),
    "corrected, offline half": (COLORS["truth"], "-"),
}
# Colors in Fig. 7, by the first word of a case; cases of one color have different marks.
METHOD_COLORS = {
    "cumulative": COLORS["offline"],
    "joint": COLORS["truth"],
    "last": COLORS["one step"],
    "tangent": COLORS["iterative"],
    "led": COLORS["iterative"],
    "vanilla": COLORS["online"],
    "fine-tuned": COLORS["online"],
    "label": COLORS["online"],
    "corrected": COLORS["offline"],
}
OTHER_METHOD = COLORS["corrected"]  # replay, EWC, networks that were tuned first
MARKS = "oDs^vPX*<>dpHh84"
# For cases that are not listed above.
OTHER_LINES = [(color, line) for line in ("-", "--", ":") for color in COLORS.values()]


def line_of(name: str, place: int) -> tuple[str, str]:
    """Returns color and line style of a case: its own, or by its position."""
    return LINES.get(name, OTHER_LINES[place % len(OTHER_LINES)])


def data_of(table: pl.DataFrame) -> str:
    """Returns a description of the data."""
    return " and ".join(table["data"].unique(maintain_order=True))


def by_seed(table: pl.DataFrame) -> pl.DataFrame:
    """Returns a table of final accuracies by seed; NaN for a run that diverged."""
    last = table.group_by("seed", maintain_order=True).agg(pl.col("accuracy").last())
    return last.sort("seed")


def final_accuracies(table: pl.DataFrame) -> np.ndarray:
    """Returns one number for each seed, in order; NaN for a run that diverged."""
    return by_seed(table)["accuracy"].to_numpy()


def gains(table: pl.DataFrame, reference: pl.DataFrame | None) -> np.ndarray:
    """Returns final accuracies minus those of the reference, for each seed that both have.

    Seeds have different tasks and so a wide spread: differences are taken seed by seed.
    """
    if reference is None:
        return np.empty(0)
    both = by_seed(table).join(by_seed(reference), on="seed", maintain_order="left")
    return (both["accuracy"] - both["accuracy_right"]).to_numpy()


def _table_of_the_end(table: pl.DataFrame, names: Sequence[str]) -> Table:
    seeds = table["seed"].n_unique()
    title = f"{escape(data_of(table))}: mean ± SEM over {seeds} seeds, at the end"
    return table_of_numbers(title, ["case"], names)


# Curves: Fig. 3

BASELINE = "vanilla SGD"
MOST_LINES = 20  # in one panel


def draw_curves(table: pl.DataFrame) -> Figure:
    """Draws one panel: a line for each case or value, with a band of one standard error.

    The x axis shows samples for several tasks, passes for a single task or, if networks were
    evaluated only after each task, tasks.
    """
    with figure_style():
        figure = Figure(figsize=(6.4, 5.4))
        axes = figure.subplots()
        along, name = curve_axis(table)
        all_settings = settings(table, PARAMETERS)
        for place, setting in enumerate(all_settings[:MOST_LINES]):
            color, line = line_of(setting.name, place)
            # by task: nothing before the first has been learned
            shown = setting.table.filter(pl.col(along) >= (along == "tasks_learned"))
            draw_band(axes, shown, along, "accuracy", color, ls=line, label=setting.name, lw=1.5)
        if along == "samples":
            for end in task_ends(table)[:-1]:
                axes.axvline(end, color="lightgray", lw=0.7, zorder=0)
        few = (
            f": the first {MOST_LINES} of {len(all_settings)}"
            if len(all_settings) > MOST_LINES
            else ""
        )
        axes.set_title(data_of(table) + few)
        axes.set_xlabel(name)
        if along == "tasks_learned":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))  # there are no half tasks
        axes.set_ylabel(ACCURACY)
        if any(setting.name for setting in all_settings):
            figure.legend(loc="outside lower center", ncols=2)
    return figure


def summarize_curves(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Shows the final accuracy of each case and, for several tasks, forgetting."""
    several = len(task_ends(table)) > 1
    all_settings = settings(table, PARAMETERS)
    plain = next((setting.table for setting in all_settings if setting.name == BASELINE), None)
    names = ["accuracy"] + [f"less {BASELINE}'s"] * (plain is not None)
    names += ["forgetting", "backward transfer"] if several else ["after one pass"]
    shown = _table_of_the_end(table, names)
    for setting in all_settings:
        values = [final_accuracies(setting.table)]
        values += [gains(setting.table, plain)] * (plain is not None)
        if several:
            matrices = accuracy_matrices(setting.table)
            one_task = matrices.shape[-1] == 1  # nothing can be forgotten
            measures = (forgetting, backward_transfer)
            values += [np.empty(0) if one_task else measure(matrices) for measure in measures]
        else:
            values.append(after_one_pass(setting.table))
        shown.add_row(escape(setting.name) or "all runs", *map(mean_and_error, values))
    return [shown]


def curve_axis(table: pl.DataFrame) -> tuple[str, str]:
    """Returns the column for the x axis, and its label."""
    tasks = len(task_ends(table))
    if tasks == 1:
        return "passes", "passes over the data"
    runs = [setting.table.group_by("seed").len() for setting in settings(table, PARAMETERS)]
    # one evaluation at the start, one after each task
    if pl.concat(runs)["len"].max() == tasks + 1:
        return "tasks_learned", "tasks learned"
    return "samples", "samples seen (a task between two lines)"


def task_ends(table: pl.DataFrame) -> list[int]:
    """Returns the number of samples seen at the end of each task."""
    learned = table.filter(pl.col("tasks_learned") > 0).group_by("tasks_learned")
    ends: list[int] = learned.agg(pl.col("samples").min())["samples"].sort().to_list()
    return ends


def accuracy_matrices(table: pl.DataFrame) -> np.ndarray:
    """Returns (seeds, T, T) accuracy on each task after each task; NaN if a run diverged."""
    tasks = table.select(pl.col("tasks_learned").max()).item()
    matrices = []
    for _, run_table in table.group_by("seed", maintain_order=True):
        ends = run_table.filter(
            pl.col("tasks_learned") > 0, pl.col("tasks_learned").diff().fill_null(1) > 0
        )
        rows = np.array(ends["task_accuracy"].to_list(), dtype=float)
        matrices.append(rows if len(rows) == tasks else np.full((tasks, tasks), np.nan))
    return np.array(matrices)


def after_one_pass(table: pl.DataFrame) -> np.ndarray:
    """Returns the accuracy after every image was seen once, one number for each seed."""
    once = table.filter(pl.col("passes") >= 1).group_by("seed", maintain_order=True).first()
    return once["accuracy"].to_numpy()


# Sweeps: Fig. 6

FEW = 4  # with at most so many values on an axis, all are labeled
MOST_PANELS = 12
LETTERS = "ABCDEFGHIJKL"
SYMBOLS = {"lr": r"$\eta$", "strength": r"$\lambda$", "gamma": r"$\gamma$"}
NAMES = {"lr": "rate", "gamma": "ridge"}
# Title and swept parameter of the paper's cases, which begin with the letter of their panel. (Panel
# A has curves.)
PANELS = {
    "B vanilla SGD": ("vanilla SGD, five tasks", "lr"),
    "C EWC": ("EWC, five tasks", "strength"),
    "D vanilla SGD": ("vanilla SGD, random order", "lr"),
    "E vanilla SGD": ("vanilla SGD", "lr"),
    "F EWC": ("EWC", "strength"),
    "G corrected": ("corrected", "lr"),
    "H cumulative replay": ("cumulative replay", "lr"),
}


def draw_sweeps(table: pl.DataFrame) -> Figure:
    """Draws a panel with the curves of all cases without a sweep, and one for each sweep.

    Fig. 6 has four: A to D, or E to H. If there are too many for one figure, the first are drawn
    and the title says so.
    """
    curves: list[tuple[str, pl.DataFrame]] = []
    sweeps = []
    for case, runs in cases_of(table):
        title, along = PANELS.get(case, ("", ""))
        if along not in runs.columns:
            numbers = [name for name in _varied(runs) if runs[name].dtype.is_numeric()]
            title = case or "all runs"
            along = next(iter(numbers), "")
        if along:
            sweeps.append((case, title, along, runs))
        else:  # text may be swept, which has no axis
            curves += [
                (", ".join(filter(None, (case, setting.name))), setting.table)
                for setting in settings(runs, PARAMETERS)
            ]
    first = int(bool(curves))  # position of the first sweep
    count = first + len(sweeps)
    shown = sweeps[: MOST_PANELS - first]
    rows = -(-(first + len(shown)) // 2)
    with figure_style():
        figure = Figure(figsize=(9.5, 3.6 * max(rows, 1)))
        few = f": the first {MOST_PANELS} of {count} panels" if count > MOST_PANELS else ""
        figure.suptitle(data_of(table) + few)
        columns = min(count, 2)
        axes = [figure.add_subplot(rows, columns, n + 1) for n in range(first + len(shown))]
        if curves:
            papers = all(name.startswith("A ") for name, _ in curves)
            letter(axes[0], "A", "the kernel: fixed, or refreshed" if papers else "nothing swept")
            _draw_unswept(axes[0], curves)
        for place, (case, title, along, runs) in enumerate(shown, start=first):
            letter(axes[place], case[0] if case in PANELS else LETTERS[place], title)
            _draw_sweep(axes[place], final_rows(runs), case, along)
    return figure


def summarize_sweeps(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Shows final accuracies of cases without a sweep, and along each sweep."""
    title = f"{escape(data_of(table))}: final accuracy, mean ± SEM over seeds"
    shown = table_of_numbers(title, ["panel", "setting"], ["seeds", "accuracy"])
    for case, runs in cases_of(table):
        # the panel's parameter first; for a case without a sweep, its rate
        swept = dict.fromkeys([*PANELS.get(case, ("",))[1:], *_varied(runs)] or ["lr"])
        names = [name for name in swept if name in runs.columns]
        for _, final in settings(final_rows(runs), PARAMETERS):
            shown.add_row(
                escape(case or "all runs"),
                escape(", ".join(f"{name} = {_text(final[name][0])}" for name in names)),
                str(len(final)),
                mean_and_error(final["accuracy"]),
            )
    return [shown]


def final_rows(table: pl.DataFrame) -> pl.DataFrame:
    """Returns the last evaluation of each run."""
    labels = [name for name in table.columns if name in ("case", *PARAMETERS)]
    return table.group_by(labels, maintain_order=True).last()


def cases_of(table: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """Returns the cases by name, or all runs under an empty name if there are none."""
    if "case" not in table.columns:
        return [("", table)]
    tables = table.partition_by("case", maintain_order=True)
    return [(runs["case"][0], runs) for runs in tables]


def _varied(table: pl.DataFrame) -> list[str]:
    """Returns the parameters that differ, those with a symbol first."""
    names = [name for name in (*SYMBOLS, *table.columns) if name in table.columns]
    known = dict.fromkeys(name for name in names if name in PARAMETERS and name != "seed")
    return [name for name in known if table[name].n_unique() > 1]


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _draw_unswept(axes: Axes, curves: Sequence[tuple[str, pl.DataFrame]]) -> None:
    for place, (case, runs) in enumerate(curves[:MOST_LINES]):
        name = case.removeprefix("A ")
        color, line = line_of(name, place)
        draw_band(axes, runs, "samples", "accuracy", color, ls=line, label=name, lw=1.5)
    axes.set_xlabel("samples seen")
    axes.set_ylabel("test accuracy")
    if axes.get_legend_handles_labels()[0]:
        left_out = len(curves) - MOST_LINES
        axes.legend(loc="lower right", title=f"and {left_out} more" if left_out > 0 else None)


def _draw_sweep(axes: Axes, final: pl.DataFrame, case: str, along: str) -> None:
    """Draws final accuracy against the swept parameter; crosses mark values that diverged."""
    all_settings = settings(final, PARAMETERS, but=[along])
    crossed = False
    for setting, (color, marker) in zip(all_settings, sweep_styles(len(all_settings)), strict=True):
        label = ", ".join(f"{SYMBOLS.get(k, k)} = {_text(v)}" for k, v in setting.values.items())
        if not label and case[2:] in LINES:
            color = LINES[case[2:]][0]
            marker = "o"
        line = {"fmt": f"{marker}-", "ms": 4, "capsize": 2, "label": label or None}
        curve = draw_sweep(axes, setting.table, along, "accuracy", color, **line)
        lost = curve.filter(pl.col("mean").is_nan())
        if len(lost):
            low = curve["mean"].fill_nan(None).min() or 0.0
            name = None if crossed else "diverged"
            crossed = True
            axes.plot(lost[along], np.full(len(lost), low), "kx", label=name)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    swept = final[along].unique().sort()
    if (swept > 0).all():  # a logarithmic axis has no 0
        axes.set_xscale("log")
    if len(swept) <= FEW:  # the default labels would overlap
        axes.set_xticks(swept, labels=[f"{value:g}" for value in swept])
        axes.xaxis.set_minor_locator(NullLocator())
    name = NAMES.get(along, along.replace("_", " "))
    axes.set_xlabel(f"{name} {SYMBOLS.get(along, '')}")
    axes.set_ylabel("final test accuracy")


# Accuracy by memory: Fig. 7, ours and not the paper's

REFERENCE = "cumulative replay"
WIDE = 50  # letters, above which three columns do not fit side by side
NOTHING = 1e3  # where 0 bytes are drawn, on an axis without zero


def draw_memory(table: pl.DataFrame) -> Figure:
    """Draws accuracy after every task (left), and at the end against memory (right)."""
    all_settings = settings(table, PARAMETERS)
    columns = 2 if max(len(setting.name) for setting in all_settings) > WIDE else 3  # of the legend
    with figure_style():
        height = 3.9 + 0.19 * -(-len(all_settings) // columns)
        figure = Figure(figsize=(9.6, height))
        curves, memory = figure.subplots(1, 2)
        used: Counter[str] = Counter()
        for setting in all_settings:
            color = METHOD_COLORS.get(re.split("[ ,]", setting.name)[0], OTHER_METHOD)
            first_of_color = not used[color]
            sign = MARKS[used[color] % len(MARKS)]
            used[color] += 1
            line = "-" if first_of_color else "--"
            mark = {"marker": sign, "mfc": color if first_of_color else "white", "ms": 5}
            # methods that learn only at the end have no curve
            first = setting.table["tasks_learned"].max() if setting.name.startswith("joint") else 1
            learned = setting.table.filter(pl.col("tasks_learned") >= first)
            band = {"ls": line, "label": setting.name, **mark}
            draw_band(curves, learned, "tasks_learned", "accuracy", color, **band)
            accuracies = final_accuracies(setting.table)
            memory.errorbar(
                [max(_kept(setting.table), NOTHING)],
                [np.nanmean(accuracies) if np.isfinite(accuracies).any() else np.nan],
                yerr=[standard_error(accuracies)],
                color=color,
                capsize=2,
                **mark,
            )
        letter(curves, "A", "after every task")
        curves.set_xlabel("tasks learned")
        curves.xaxis.set_major_locator(MaxNLocator(integer=True))
        curves.set_ylabel(ACCURACY)
        letter(memory, "B", "at the end, by memory")
        memory.set_xscale("log")
        memory.set_xlabel("kept of the stream, in bytes (at the left edge: nothing)")
        figure.suptitle(data_of(table))
        figure.legend(
            *curves.get_legend_handles_labels(), loc="outside lower center", ncols=columns
        )
    return figure


def summarize_memory(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Shows final accuracy, memory, and in how many seeds it is above cumulative replay."""
    all_settings = settings(table, PARAMETERS)
    names = ("accuracy", f"less {REFERENCE}'s", "seeds above it", "kept")
    shown = _table_of_the_end(table, names)
    reference = next((setting.table for setting in all_settings if setting.name == REFERENCE), None)
    for setting in all_settings:
        above = gains(setting.table, None if setting.name == REFERENCE else reference)
        shown.add_row(
            escape(setting.name) or "all runs",
            mean_and_error(final_accuracies(setting.table)),
            mean_and_error(above),
            f"{(above > 0).sum()} of {len(above)}" if len(above) else "",
            f"{_kept(setting.table) / 1e6:,.1f} MB",
        )
    return [shown]


def _kept(table: pl.DataFrame) -> int:
    kept: int = table.select(pl.col("kept_bytes").max()).item()
    return kept


FAMILIES = {
    f"{data} {view}": Family(config, train_networks, draw, summarize, checksums, trained_together)
    for data, config, checksums in (
        ("cifar", CifarRun, partial(data_set_checksums, CIFAR10)),
        ("core50", Core50Run, core50_checksums),
        ("pretrained", PretrainedRun, pretrained_checksums),
    )
    for view, draw, summarize in (
        ("curves", draw_curves, summarize_curves),
        ("memory", draw_memory, summarize_memory),
        ("sweeps", draw_sweeps, summarize_sweeps),
    )
}
