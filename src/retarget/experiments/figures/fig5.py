"""Fig. 5: ridge, rate and block size on MNIST."""

from collections.abc import Sequence
from typing import Annotated

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from pydantic import Field
from rich.console import RenderableType

from retarget.experiments.experiment import Count, Counts, Positive, Positives
from retarget.experiments.figures.mnist import (
    MnistConfig,
    evaluation_stops,
    mnist_checksums,
    mnist_stream,
)
from retarget.experiments.figures.over_seeds import (
    draw_band,
    family_in_rows,
    legend_below,
    letter,
    mean_and_sem,
)
from retarget.learners import COLOURS, SGD
from retarget.theory.correction import corrected_targets
from retarget.theory.iterative import iterative_targets
from retarget.theory.online import offline_learning_curve

# The first and the last power of ten; beyond 100 nothing can be computed with it.
Power = Annotated[float, Field(ge=-100, le=100)]
Powers = Annotated[list[Power], Field(min_length=2, max_length=2)]


class MnistSweeps(MnistConfig):
    """What is swept: between two powers of ten for A and B, single values for C and D."""

    gamma: Positive
    lr: Positive
    sweep_points: Count
    offline_gamma_powers: Powers
    online_lr_powers: Powers
    corrected_gammas: Positives
    block_sizes: Counts


def run(config: MnistSweeps) -> pl.DataFrame:
    """Scores at the end (A, B) and along the stream (C, D): columns panel, setting, samples, ..."""
    stream, stops = mnist_stream(config), evaluation_stops(config)
    K, Y, end = stream.K, stream.Y, stops[-1:]
    parts = []
    for gamma in _powers(config.offline_gamma_powers, config.sweep_points):
        predictions = offline_learning_curve(K, Y, stream.K_test, gamma, end)
        parts.append(stream.scores(predictions, end, panel="A", setting=gamma))
    for lr in _powers(config.online_lr_powers, config.sweep_points):
        predictions = stream.online_predictions(Y, SGD(lr=lr), end)
        parts.append(stream.scores(predictions, end, panel="B", setting=lr))
    learner = SGD(lr=config.lr)
    for gamma in config.corrected_gammas:
        Z = corrected_targets(K, Y, learner, gamma)
        predictions = stream.online_predictions(Z, learner, stops)
        parts.append(stream.scores(predictions, stops, panel="C", setting=gamma))
    for block in config.block_sizes:
        Z = iterative_targets(K, Y, learner, config.gamma, block, first_block="plain")
        predictions = stream.online_predictions(Z, learner, stops)
        parts.append(stream.scores(predictions, stops, panel="D", setting=float(block)))
    return pl.concat(parts)


def draw(figure: Figure | SubFigure, table: pl.DataFrame) -> None:
    """Panels A to D."""
    axes = figure.subplots(2, 2)
    _draw_sweep(axes[0, 0], table.filter(panel="A"), "offline")
    letter(axes[0, 0], "A", "offline")
    axes[0, 0].set_xlabel(r"ridge $\gamma$")
    _draw_sweep(axes[0, 1], table.filter(panel="B"), "online")
    letter(axes[0, 1], "B", "online")
    axes[0, 1].set_xlabel(r"rate $\eta$")
    _draw_curves(axes[1, 0], table.filter(panel="C"), r"$\gamma$ = {:g}", "Greens")
    letter(axes[1, 0], "C", "online, exactly corrected")
    _draw_curves(axes[1, 1], table.filter(panel="D"), "b = {:g}", "Oranges")
    letter(axes[1, 1], "D", "online, iteratively corrected")


def summarise(table: pl.DataFrame) -> Sequence[RenderableType]:
    """The best ridge and rate, and the end of each curve."""
    lines = []
    for panel, name, symbol in (("A", "Offline", "gamma"), ("B", "Online", "eta")):
        means = mean_and_sem(table.filter(panel=panel), ["setting"], "accuracy")
        known = means.filter(pl.col("mean").is_not_nan()).sort("mean", descending=True)
        if known.is_empty():
            lines.append(f"{name}: diverged at every {symbol}.")
            continue
        best = known.row(0, named=True)
        lines.append(
            f"{name}: best at {symbol} = {best['setting']:.3g}, "
            f"accuracy {best['mean']:.3f} ± {best['sem']:.3f}."
        )
    last = table.filter(pl.col("samples") == pl.col("samples").max())
    for panel, name, symbol in (("C", "Exactly corrected", "gamma"), ("D", "Iteratively", "b")):
        means = mean_and_sem(last.filter(panel=panel), ["setting"], "accuracy")
        ends = (
            f"{symbol} = {r['setting']:g}: {r['mean']:.3f} ± {r['sem']:.3f}"
            for r in means.iter_rows(named=True)
        )
        lines.append(f"{name}, at the end: " + ", ".join(ends) + ".")
    return lines


def _powers(ends: list[float], count: int) -> list[float]:
    """Values from one power of ten to another, equally spaced in their logarithm."""
    return [float(value) for value in np.logspace(ends[0], ends[1], count)]


def _draw_sweep(axes: Axes, table: pl.DataFrame, learner: str) -> None:
    """Accuracy (left) and mean squared error (right) against a parameter."""
    error_axes = axes.twinx()
    error_axes.spines["right"].set_visible(True)
    for value, where, style, label in (
        ("accuracy", axes, "-", "test accuracy"),
        ("error", error_axes, "--", "mean squared error"),
    ):
        # a seed whose learner diverged leaves a gap: no mean is taken over the others
        curve = mean_and_sem(table, ["setting"], value)
        colour = COLOURS[learner] if value == "accuracy" else "gray"
        where.errorbar(
            curve["setting"],
            curve["mean"],
            curve["sem"],
            fmt="o" + style,
            ms=3,
            color=colour,
            label=label,
        )
        where.set_ylabel(label)
    axes.set_ylim(0, 1)
    error_axes.set_ylim(0, 0.12)
    axes.set_xscale("log")
    handles = [part.get_legend_handles_labels() for part in (axes, error_axes)]
    axes.legend([h[0][0] for h in handles], [h[1][0] for h in handles], loc="lower left")


def _draw_curves(axes: Axes, table: pl.DataFrame, label: str, colours: str) -> None:
    values = table["setting"].unique(maintain_order=True).to_list()
    shades = plt.get_cmap(colours)(np.linspace(0.35, 1.0, len(values)))
    for value, colour in zip(values, shades, strict=True):
        part = table.filter(setting=value)
        draw_band(axes, part, "samples", "accuracy", colour, label=label.format(value), lw=1.4)
    axes.set_xlabel("samples seen")
    axes.set_ylabel("test accuracy")
    axes.set_ylim(0, 1)
    legend_below(axes)


FAMILY = family_in_rows(MnistSweeps, run, (9.5, 7.6), draw, summarise, data=mnist_checksums)
