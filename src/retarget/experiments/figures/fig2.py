"""Fig. 2: the shift, its correction and learning curves on MNIST, shuffled and class by class."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from rich.console import RenderableType
from rich.table import Table

from retarget.experiments.experiment import Count, Positive
from retarget.experiments.figures.mnist import (
    MnistConfig,
    MnistStream,
    evaluation_stops,
    mnist_checksums,
    mnist_stream,
)
from retarget.experiments.figures.over_seeds import draw_band, family_in_rows, letter, mean_and_sem
from retarget.learners import COLOURS, LABELS, SGD
from retarget.theory.correction import corrected_targets
from retarget.theory.curves import offline_learning_curve
from retarget.theory.iterative import iterative_targets
from retarget.theory.shift import effective_targets

SHOWN_LABELS = (0, 1, 2)
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
    stream, stops = mnist_stream(config), evaluation_stops(config)
    shuffled = (config.gamma, config.lr)
    parts = [
        _curves(stream, config, stops, "shuffled", config.gamma, config.lr, shuffled, shuffled),
        _curves(
            stream.class_by_class(),
            config,
            stops,
            "class by class",
            config.class_offline_gamma,
            config.class_online_lr,
            (config.class_corrected_gamma, config.class_corrected_lr),
            (config.class_iterative_gamma, config.class_iterative_lr),
        ),
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
    for axes, name, order in zip(curves, "CD", ("shuffled", "class by class"), strict=True):
        letter(axes, name, f"test accuracy, {order}")
        _draw_curves(axes, table.filter(order=order))
    handles, labels = curves[0].get_legend_handles_labels()
    sides[0, 1].legend(handles, labels, loc="outside lower center", ncols=2)
    curves[1].set_xlabel("samples seen")


def summarise(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Accuracy at the end of the stream."""
    last = table.filter(pl.col("samples") == pl.col("samples").max())
    final = mean_and_sem(last, ["order", "learner"], "accuracy")
    seeds = table["seed"].n_unique()
    shown = Table(title=f"MNIST, conv NTK: final test accuracy, mean ± SEM over {seeds} seeds")
    for column in ("learner", "shuffled", "class by class"):
        shown.add_column(column, justify="left" if column == "learner" else "right")
    for learner, name in LABELS.items():
        rows = (
            final.filter(learner=learner, order=order).row(0, named=True)
            for order in ("shuffled", "class by class")
        )
        shown.add_row(name, *(f"{row['mean']:.3f} ± {row['sem']:.3f}" for row in rows))
    return [shown]


def _curves(
    stream: MnistStream,
    config: MnistCurves,
    stops: list[int],
    order: str,
    offline_gamma: float,
    online_lr: float,
    corrected: tuple[float, float],
    iterative: tuple[float, float],
) -> pl.DataFrame:
    K, Y = stream.K, stream.Y
    offline = offline_learning_curve(K, Y, stream.K_test, offline_gamma, stops)
    parts = [stream.scores(offline, stops, order=order, learner="offline")]
    targets = {
        "online": (Y, online_lr),
        "corrected": (corrected_targets(K, Y, SGD(lr=corrected[1]), corrected[0]), corrected[1]),
        "iterative": (
            iterative_targets(
                K, Y, SGD(lr=iterative[1]), iterative[0], config.block_size, first_block="plain"
            ),
            iterative[1],
        ),
    }
    for learner, (Z, lr) in targets.items():
        predictions = stream.online_predictions(Z, SGD(lr=lr), stops)
        parts.append(stream.scores(predictions, stops, order=order, learner=learner))
    return pl.concat(parts)


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
