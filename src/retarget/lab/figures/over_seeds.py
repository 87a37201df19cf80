"""The style of all figures, and means and standard errors over seeds."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.colors
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Column, Table

from retarget.lab.experiment import Config, Family, in_words, one_by_one, reads_nothing

# Colors for the values of a swept parameter (gamma, eta, batch), light to dark.
SWEEP_COLORS = ("#56B4E9", "#0072B2", "#1B2A49")
SWEEP_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def sweep_styles(count: int) -> list[tuple[str, str]]:
    """Returns a color and a marker for each of `count` values."""
    shades = mpl.colors.LinearSegmentedColormap.from_list("sweep", SWEEP_COLORS)
    colors = [mpl.colors.to_hex(shades(place / max(1, count - 1))) for place in range(count)]
    return list(zip(colors, itertools.cycle(SWEEP_MARKERS), strict=False))


@contextmanager
def figure_style() -> Iterator[None]:
    """Applies Matplotlib settings for all our figures, independent of the user's own."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.use("agg")
        mpl.rcParams.update(
            {
                "font.size": 9,
                "axes.titlesize": 10,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "legend.frameon": False,
                "legend.fontsize": 8,
                "figure.dpi": 100,
                "figure.constrained_layout.use": True,
            }
        )
        yield


def legend_below(axes: Axes) -> None:
    """Puts the legend below the panel, where it covers nothing."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def letter(axes: Axes, name: str, title: str) -> None:
    """Writes the panel's letter and title above it, on the left."""
    axes.set_title(f"$\\bf{{{name}}}$   {title}", loc="left")


MOST_ROWS = 6  # rows of panels in one figure


class Setting(NamedTuple):
    """Runs that differ only in their seed, and the values that distinguish them from others."""

    values: dict[str, Any]
    table: pl.DataFrame

    @property
    def name(self) -> str:
        """The values in words."""
        return in_words(self.values)


def settings(
    table: pl.DataFrame, parameters: Collection[str], but: Collection[str] = ()
) -> list[Setting]:
    """Splits the table into settings, ignoring the seed and the parameters in `but`."""
    labels = [name for name in table.columns if name in parameters and name not in ("seed", *but)]
    cases = table.partition_by("case", maintain_order=True) if "case" in table.columns else [table]
    all_settings: list[Setting] = []
    for case in cases:
        # the name of a case implies what all its runs share
        varied = [name for name in labels if case[name].n_unique() > 1]
        names = ["case"] * (len(cases) > 1) + varied
        all_settings += [
            Setting({name: runs[name].to_list()[0] for name in names}, runs)
            for runs in (case.partition_by(varied, maintain_order=True) if varied else [case])
        ]
    return all_settings


def family_in_rows(
    config: type[Config],
    run: Callable[[Any], pl.DataFrame],
    size: tuple[float, float],
    draw: Callable[[Figure | SubFigure, pl.DataFrame], None],
    summarize: Callable[[pl.DataFrame], Sequence[RenderableType]],
    *,
    but: Collection[str] = (),
    data: Callable[..., Mapping[str, str]] = reads_nothing,
    light: bool = False,
    notice: Callable[[Sequence[Any]], str] = lambda configs: "",
) -> Family:
    """Makes a family whose figure has a row of panels, and whose summary a part, for each setting.

    `draw` and `summarize` take one setting, in which the parameters in `but` may differ; a row is
    `size` inches wide and high; `data`, `light` and `notice` are as in `Family`.
    """

    def draw_rows(table: pl.DataFrame) -> Figure:
        all_settings = settings(table, config.model_fields, but)
        shown = all_settings[:MOST_ROWS]
        with figure_style():
            figure = Figure(figsize=(size[0], size[1] * len(shown)))
            if len(all_settings) == 1:
                draw(figure, all_settings[0].table)
                return figure
            if len(all_settings) > len(shown):
                figure.suptitle(f"the first {len(shown)} of {len(all_settings)} settings")
            rows = figure.subfigures(len(shown), 1, squeeze=False)[:, 0]
            for row, setting in zip(rows, shown, strict=True):
                row.suptitle(setting.name)
                draw(row, setting.table)
        return figure

    def summarize_rows(table: pl.DataFrame) -> list[RenderableType]:
        lines: list[RenderableType] = []
        for setting in settings(table, config.model_fields, but):
            lines += [f"[bold]{escape(setting.name)}[/bold]"] * bool(setting.values)
            lines += summarize(setting.table)
        return lines

    computed = one_by_one(run)
    return Family(config, computed, draw_rows, summarize_rows, data, light=light, notice=notice)


def table_of_numbers(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """Returns an empty table for the terminal: columns of text, then columns of numbers."""
    return Table(*texts, *(Column(name, justify="right") for name in numbers), title=title)


def mean_and_sem(table: pl.DataFrame, by: list[str], value: str) -> pl.DataFrame:
    """Returns mean and standard error over seeds, in the order of the table."""
    sem = (pl.col(value).std() / pl.len().sqrt()).fill_null(0.0)
    return table.group_by(by, maintain_order=True).agg(mean=pl.col(value).mean(), sem=sem)


def mean_and_error(values: np.ndarray | pl.Series) -> str:
    """Formats mean and standard error of one number for each seed, or how many diverged.

    A single number has no error.

    Examples:
        >>> mean_and_error(np.array([0.1, 0.3]))
        '0.200 ± 0.100'
        >>> mean_and_error(np.array([0.1]))
        '0.100'
    """
    values = np.asarray(values)
    if not len(values):
        return ""
    if np.isnan(values).any():
        return f"{np.isnan(values).sum()} of {len(values)} diverged"
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{values.mean():.3f} ± {standard_error(values):.3f}"


def standard_error(values: np.ndarray) -> float:
    """Returns the standard error over seeds, without those that diverged; 0 for one seed."""
    known = values[~np.isnan(values)]
    return float(np.std(known, ddof=1) / np.sqrt(len(known))) if len(known) > 1 else 0.0


def draw_band(axes: Axes, table: pl.DataFrame, x: str, y: str, color: str, **line: Any) -> None:
    """Draws the mean of `y` along `x`, and a band of one standard error around it."""
    curve = mean_and_sem(table, [x], y)
    alone = "o" if len(curve) == 1 else None  # a single point would be invisible as a line
    axes.plot(curve[x], curve["mean"], **{"marker": alone, "color": color, **line})
    low, high = curve["mean"] - curve["sem"], curve["mean"] + curve["sem"]
    axes.fill_between(curve[x], low, high, color=color, alpha=0.2, lw=0)


def draw_sweep(
    axes: Axes, table: pl.DataFrame, x: str, y: str, color: str, **line: Any
) -> pl.DataFrame:
    """Draws the mean of `y` at each value of `x` with its standard error, and returns them.

    If a seed has diverged there is a gap, rather than a mean over the others.
    """
    curve = mean_and_sem(table, [x], y).sort(x)
    axes.errorbar(curve[x], curve["mean"], curve["sem"], color=color, **line)
    return curve
