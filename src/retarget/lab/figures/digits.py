"""The main demonstration: handwritten digits that arrive class by class."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.figure import Figure, SubFigure
from rich.console import RenderableType

from retarget.kernels import RBF
from retarget.lab.data.digits import digits_stream
from retarget.lab.experiment import Config, Count, Positive
from retarget.lab.figures.over_seeds import (
    draw_band,
    family_in_rows,
    letter,
    mean_and_sem,
    table_of_numbers,
)
from retarget.labels import one_hot
from retarget.learners import COLORS, LABELS, SGD
from retarget.theory.correction import corrected_targets, effective_targets
from retarget.theory.iterative import iterative_targets
from retarget.theory.online import offline_learning_curve, online_learning_curve

LEARNERS = LABELS | {"offline": "offline, all data at once", "online": "online, true targets"}


class Digits(Config):
    """Parameters of the demonstration."""

    width: Positive
    gamma: Positive
    lr: Positive
    block_size: Count
    curve_every: Count


def run(config: Digits) -> pl.DataFrame:
    """Computes accuracy along the stream, and the effective targets of each class.

    Columns: lr, quantity, learner, samples, value ("accuracy"); and lr, quantity, label, output,
    value ("effective target": the mean over a class of one output of its effective targets).
    """
    data = digits_stream(config.seed)
    kernel = RBF(config.width)
    classes = 10
    Y = one_hot(data.labels_train, classes)
    learner = SGD(lr=config.lr)
    K = kernel(data.x_train)
    K_test = kernel(data.x_test, data.x_train)
    n = len(Y)
    stops = [*range(config.curve_every, n, config.curve_every), n]
    targets = {
        "online": Y,
        "corrected": corrected_targets(K, Y, learner, config.gamma),
        "iterative": iterative_targets(K, Y, learner, config.gamma, config.block_size),
    }
    curves = {"offline": offline_learning_curve(K, Y, K_test, config.gamma, stops)}
    for name, Z in targets.items():
        curves[name] = online_learning_curve(K, Z, K_test, learner, stops)

    tables = []
    for name, predictions in curves.items():
        accuracy = np.mean(predictions.argmax(axis=2) == data.labels_test, axis=1)
        curve = pl.DataFrame({"samples": stops, "value": accuracy})
        tables.append(curve.with_columns(quantity=pl.lit("accuracy"), learner=pl.lit(name)))
    effective = effective_targets(K, Y, learner, config.gamma)
    means = [effective[data.labels_train == label].mean(axis=0) for label in range(classes)]
    label, output = (index.ravel() for index in np.indices((classes, classes)))
    columns = {"label": label, "output": output, "value": np.ravel(means)}
    tables.append(pl.DataFrame(columns).with_columns(quantity=pl.lit("effective target")))
    return pl.concat(tables, how="diagonal").with_columns(lr=pl.lit(config.lr))


def final_accuracies(table: pl.DataFrame) -> pl.DataFrame:
    """Returns mean and standard error over seeds of the final accuracy, by learner and rate."""
    final = table.filter(
        (pl.col("quantity") == "accuracy") & (pl.col("samples") == pl.col("samples").max())
    )
    return mean_and_sem(final, ["learner", "lr"], "value")


def draw(figure: Figure | SubFigure, table: pl.DataFrame) -> None:
    """Draws A: accuracy along the stream; B: what the online learner was taught, by class."""
    online = final_accuracies(table).filter(learner="online").sort("mean", descending=True)
    best = float(online["lr"][0])
    largest = max(table["lr"])
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    letter(left, "A", "digits, class by class: accuracy on all ten classes")
    rates = {"offline": best, "online": best, "corrected": largest, "iterative": largest}
    for learner, rate in rates.items():
        curve = table.filter(quantity="accuracy", learner=learner, lr=rate)
        label = LEARNERS[learner] + ("" if learner == "offline" else f" (rate {rate:g})")
        draw_band(left, curve, "samples", "value", COLORS[learner], label=label, lw=1.8)
    left.set_xlabel("samples seen")
    left.set_ylabel("test accuracy")
    left.set_ylim(0, 1)
    left.legend(loc="upper left")
    letter(right, "B", f"mean effective targets, online at rate {largest:g}")
    targets = table.filter(quantity="effective target", lr=largest).group_by("label", "output")
    means = targets.agg(pl.col("value").mean()).sort("label", "output")["value"]
    matrix = means.to_numpy().reshape(10, 10)
    bound = float(np.abs(matrix).max())
    image = right.imshow(matrix, cmap="RdBu", vmin=-bound, vmax=bound)
    right.set_xticks(range(10))
    right.set_yticks(range(10))
    right.set_xlabel("output")
    right.set_ylabel("true class, in order of arrival")
    figure.colorbar(image, ax=right, label="effective target")


def summarize(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Shows accuracy by learner, at its best rate and at the largest, and what it means."""
    final = final_accuracies(table)
    rates = table["lr"].n_unique()
    largest = max(table["lr"])
    seeds = table["seed"].n_unique()
    names = [f"best of {rates} rates"] * (rates > 1) + [f"rate {largest:g}"]
    title = f"Test accuracy after the stream, mean ± SEM over {seeds} seeds"
    shown = table_of_numbers(title, ["learner"], names)
    best = {}
    for learner, name in LEARNERS.items():
        row = final.filter(learner=learner)
        top = best[learner] = row.sort("mean", descending=True).row(0, named=True)
        at_largest = row.filter(lr=largest).row(0, named=True)
        cells = [f"{row['mean']:.3f} ± {row['sem']:.3f}" for row in (top, at_largest)]
        if rates > 1 and learner == "offline":
            cells[1] = ""  # the offline learner has no rate
        shown.add_row(name, *cells[-min(rates, 2) :])
    means = {learner: f"{row['mean']:.1%}" for learner, row in best.items()}
    rate = f"at {'its best' if rates > 1 else 'the'} rate, {best['online']['lr']:g}"
    return [
        shown,
        f"Taught one class after the other, the online learner ends at {means['online']} {rate}, "
        f"where the offline learner has {means['offline']}. On exactly corrected targets the same "
        f"learner ends at {means['corrected']}, and on targets corrected causally, without the "
        f"future, at {means['iterative']}.",
    ]


FAMILIES = {
    "digits": family_in_rows(Digits, run, (9.5, 3.9), draw, summarize, but=["lr"], light=True)
}
