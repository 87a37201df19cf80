"""Mean and standard error over seeds, and how they are drawn."""

from typing import Any

import polars as pl
from matplotlib.axes import Axes


def mean_and_sem(table: pl.DataFrame, by: list[str], value: str) -> pl.DataFrame:
    """Mean and standard error over seeds, in the order of the table."""
    sem = (pl.col(value).std() / pl.len().sqrt()).fill_null(0.0)
    return table.group_by(by, maintain_order=True).agg(mean=pl.col(value).mean(), sem=sem)


def draw_band(axes: Axes, table: pl.DataFrame, x: str, y: str, colour: str, **line: Any) -> None:
    """The mean of `y` along `x` as a line, and a band of one standard error around it."""
    curve = mean_and_sem(table, [x], y)
    axes.plot(curve[x], curve["mean"], color=colour, **line)
    low, high = curve["mean"] - curve["sem"], curve["mean"] + curve["sem"]
    axes.fill_between(curve[x], low, high, color=colour, alpha=0.2, lw=0)
