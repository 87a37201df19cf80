"""Fig. 2: the shift, its correction and learning curves on MNIST, shuffled and class by class."""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from rich.console import RenderableType
from rich.table import Column, Table

from retarget.experiments.experiment import Count, Positive
from retarget.experiments.figures.mnist import (
    MnistConfig,
    MnistStream,
    evaluation_stops,
    mnist_checksums,
    mnist_stream,
)
from retarget.experiments.figures.over_seeds import (
    draw_band,
    family_in_rows,
    letter,
    mean_and_error,
)
from retarget.learners import COLOURS, LABELS, SGD
from retarget.theory.correction import corrected_targets, effective_targets
from retarget.theory.iterative import iterative_targets
from retarget.theory.online import offline_learning_curve

SHOWN_LABELS = (0, 1, 2)
ORDERS = ("shuffled", "class by class")
PLANES = ((0, 1), (1, 2), (0, 2))


class MnistCurves(MnistConfig):
    """Ridge and rate for each learner: shuffled (panels A to C) and class by class (panel D)."""

    gamma: Positive
    lr: Positive
    class_offline_gamma: Positive
    class_online_lr: Positive
    class_corrected_gamma: Positive
    class_corrected_lr: Positive
    class_iterative_gamma: Positive
    class_iterative_lr: Positive
    block_size: Count
    shown_samples: Count


def run(config: MnistCurves) -> pl.DataFrame:
    """Scores along the stream (C, D) and the targets of a few samples (A, B), in one table."""
    stream = mnist_stream(config)
    parts = [
        *_curves(stream, config, "shuffled"),
        *_curves(stream.class_by_class(), config, "class by class"),
        _shown_targets(stream, config),
    ]
    return pl.concat(parts, how="diagonal")


def draw(figure: Figure | SubFigure, table: pl.DataFrame) -> None:
    """Panels A to D; A and B for the first seed in the table."""
    first = table.filter(pl.col("seed") == table["seed"][0])
    sides = figure.subfigures(1, 2, squeeze=False, width_ratios=[1.45, 1])
    planes = sides[0, 0].subplots(2, 3)
    for row, (name, title, series) in zip(
        planes,
        (("A", "the shift", "effective"), ("B", "the correction", "corrected")),
        strict=True,
    ):
        letter(row[0], name, title)
        for axes, plane in zip(row, PLANES, strict=True):
            _draw_plane(axes, first, series, plane)
    handles, labels = planes[0, 0].get_legend_handles_labels()
    sides[0, 0].legend(handles, labels, loc="outside lower center", ncols=3)
    curves = sides[0, 1].subplots(2, 1, sharex=True)
    for axes, name, order in zip(curves, "CD", ORDERS, strict=True):
        letter(axes, name, f"test accuracy, {order}")
        _draw_curves(axes, table.filter(order=order))
    handles, labels = curves[0].get_legend_handles_labels()
    sides[0, 1].legend(handles, labels, loc="outside lower center", ncols=2)
    curves[1].set_xlabel("samples seen")


def summarise(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Accuracy at the end of the stream."""
    final = table.filter(pl.col("samples") == pl.col("samples").max())
    seeds = table["seed"].n_unique()
    columns = (Column(order, justify="right") for order in ORDERS)
    title = f"MNIST, conv NTK: final test accuracy, mean ± SEM over {seeds} seeds"
    shown = Table("learner", *columns, title=title)
    for learner, name in LABELS.items():
        scores = (final.filter(learner=learner, order=order)["accuracy"] for order in ORDERS)
        shown.add_row(name, *map(mean_and_error, scores))
    return [shown]


def _curves(stream: MnistStream, config: MnistCurves, order: str) -> Iterator[pl.DataFrame]:
    """Scores of every learner, class by class with a ridge and a rate of its own."""

    def chosen(learner: str, parameter: str) -> float:
        prefix = "" if order == "shuffled" else f"class_{learner}_"
        value: float = getattr(config, f"{prefix}{parameter}")
        return value

    K, Y, stops = stream.K, stream.Y, evaluation_stops(config)
    offline = offline_learning_curve(K, Y, stream.K_test, chosen("offline", "gamma"), stops)
    yield stream.scores(offline, stops, order=order, learner="offline")
    for name in ("online", "corrected", "iterative"):
        learner, Z = SGD(lr=chosen(name, "lr")), Y
        if name == "corrected":
            Z = corrected_targets(K, Y, learner, chosen(name, "gamma"))
        elif name == "iterative":
            gamma, block = chosen(name, "gamma"), config.block_size
            Z = iterative_targets(K, Y, learner, gamma, block, first_block="plain")
        predictions = stream.online_predictions(Z, learner, stops)
        yield stream.scores(predictions, stops, order=order, learner=name)


def _shown_targets(stream: MnistStream, config: MnistCurves) -> pl.DataFrame:
    """The first three outputs of the targets of a few samples of the first three labels."""
    learner = SGD(lr=config.lr)
    series = {
        "true": stream.Y,
        "effective": effective_targets(stream.K, stream.Y, learner, config.gamma),
        "corrected": corrected_targets(stream.K, stream.Y, learner, config.gamma),
    }
    rows = [np.flatnonzero(stream.labels == k)[: config.shown_samples] for k in SHOWN_LABELS]
    chosen = np.concatenate(rows)
    return pl.concat(
        pl.DataFrame(
            {"sample": chosen, "label": stream.labels[chosen]}
            | {f"y{output}": Z[chosen, output] for output in SHOWN_LABELS}
        ).with_columns(series=pl.lit(name))
        for name, Z in series.items()
    )


def _draw_plane(axes: Axes, table: pl.DataFrame, series: str, plane: tuple[int, int]) -> None:
    """Lines from the true targets to where they were shifted, or corrected to."""
    colours = dict(zip(SHOWN_LABELS, ("#009E73", "#E69F00", "#0072B2"), strict=True))
    marks = dict(zip(SHOWN_LABELS, ("o", "s", "^"), strict=True))
    across, up = (f"y{output}" for output in plane)
    for label in SHOWN_LABELS:
        true = table.filter(series="true", label=label)
        moved = table.filter(series=series, label=label)
        axes.plot(
            [true[across], moved[across]], [true[up], moved[up]], color=colours[label], lw=0.7
        )
        axes.plot(moved[across], moved[up], "x", color=colours[label], ms=5)
        axes.plot(
            true[across][:1],
            true[up][:1],
            marks[label],
            color=colours[label],
            label=f"label {label}",
        )
    axes.axhline(0, color="lightgray", lw=0.7, zorder=0)
    axes.axvline(0, color="lightgray", lw=0.7, zorder=0)
    axes.set_xlabel(f"output {plane[0]}")
    axes.set_ylabel(f"output {plane[1]}")
    axes.set_box_aspect(1)


def _draw_curves(axes: Axes, table: pl.DataFrame) -> None:
    for learner, name in LABELS.items():
        part = table.filter(learner=learner)
        draw_band(axes, part, "samples", "accuracy", COLOURS[learner], label=name, lw=1.6)
    axes.set_ylabel("test accuracy")
    axes.set_ylim(0, 1)


FAMILY = family_in_rows(MnistCurves, run, (12, 6.8), draw, summarise, data=mnist_checksums)
