"""MNIST under the paper's infinite-width conv net: learning curves (Fig. 2) and sweeps (Fig. 5)."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import matplotlib as mpl
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from pydantic import Field
from rich.console import RenderableType
from torch import nn

import retarget.kernels
from retarget.errors import DivergedError, InvalidInputError, install_line
from retarget.kernels import InfiniteNTK, Kernel
from retarget.lab.data.cache import cache_folder, cached_array, data_set_checksums
from retarget.lab.data.fetch import MNIST
from retarget.lab.data.mnist import load_mnist
from retarget.lab.experiment import Config, Count, Counts, Positive, Positives
from retarget.lab.figures.over_seeds import (
    draw_band,
    draw_sweep,
    family_in_rows,
    legend_below,
    letter,
    mean_and_error,
    mean_and_sem,
    table_of_numbers,
)
from retarget.lab.runs.store import source_hash
from retarget.labels import one_hot
from retarget.learners import COLORS, LABELS, SGD
from retarget.text import duration
from retarget.theory.correction import corrected_targets, effective_targets
from retarget.theory.iterative import iterative_targets
from retarget.theory.online import offline_learning_curve, online_learning_curve

CLASSES = 10
SECONDS_A_PAIR = 1e-3  # for the kernel of two images in plain torch, on one core


class MnistConfig(Config):
    """Numbers of images in the stream, in the test set, and between two evaluations."""

    train: Count
    test: Count
    evaluate_every: Count

    @property
    def stops(self) -> list[int]:
        """Returns the samples after which to evaluate, including the end."""
        return [*range(self.evaluate_every, self.train, self.evaluate_every), self.train]


@dataclass(frozen=True)
class MnistStream:
    """A stream of images, represented by their kernel, and a test set."""

    K: np.ndarray
    Y: np.ndarray
    K_test: np.ndarray
    labels: np.ndarray
    labels_test: np.ndarray

    def class_by_class(self) -> "MnistStream":
        """Returns the stream with all zeros first, then all ones, and so on."""
        order = np.argsort(self.labels, kind="stable")
        K = self.K[np.ix_(order, order)]
        K_test = self.K_test[:, order]
        return replace(self, K=K, Y=self.Y[order], K_test=K_test, labels=self.labels[order])

    def scores(
        self, predictions: np.ndarray, stops: list[int], **labels: str | float
    ) -> pl.DataFrame:
        """Returns accuracy and mean squared error of predictions (stops, m, classes)."""
        accuracy = np.mean(predictions.argmax(axis=2) == self.labels_test, axis=1)
        with np.errstate(over="ignore"):  # the error of a diverging learner overflows
            error = np.mean((predictions - one_hot(self.labels_test, CLASSES)) ** 2, axis=(1, 2))
        accuracy[np.isnan(predictions).any(axis=(1, 2))] = np.nan
        columns = {"samples": stops, "accuracy": accuracy, "error": error}
        return pl.DataFrame(columns).with_columns(**{k: pl.lit(v) for k, v in labels.items()})

    def predictions(
        self, learner: str, stops: list[int], gamma: float = 0, lr: float = 0, block_size: int = 0
    ) -> np.ndarray:
        """Returns what a learner, by its name in `LABELS`, predicts for the test images.

        The result is (stops, m, classes), and NaN once the learner has diverged.
        """
        K = self.K
        Y = self.Y
        if learner == "offline":
            return offline_learning_curve(K, Y, self.K_test, gamma, stops)
        sgd = SGD(lr=lr)
        Z = Y
        if learner == "corrected":
            Z = corrected_targets(K, Y, sgd, gamma)
        elif learner == "iterative":
            Z = iterative_targets(K, Y, sgd, gamma, block_size, first_block="plain")
        try:
            return online_learning_curve(K, Z, self.K_test, sgd, stops)
        except DivergedError as error:
            predictions = np.full((len(stops), len(self.labels_test), CLASSES), np.nan)
            before = [stop for stop in stops if stop <= error.step]
            if before:
                n = before[-1]
                predictions[: len(before)] = online_learning_curve(
                    K[:n, :n], Z[:n], self.K_test[:, :n], sgd, before
                )
            return predictions


def paper_net() -> nn.Sequential:
    """Two 3 x 3 convolutions, each with ReLU and 2 x 2 average pooling, and a dense read-out."""
    return nn.Sequential(
        nn.Conv2d(1, 1, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(1, 1, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(49, 1, bias=False),
    )


def mnist_stream(config: MnistConfig) -> MnistStream:
    """Returns images drawn by the seed, with each pixel standardized, and their kernel."""
    mnist = load_mnist()
    rng = np.random.default_rng(config.seed)

    def drawn(split: str, count: int, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if count > len(images):
            raise InvalidInputError(
                f"{split} = {count}, but MNIST here has {len(images)} {split} images"
            )
        rows = rng.choice(len(images), count, replace=False)
        return rows, _whitened(images, rows)

    train, x_train = drawn("train", config.train, mnist.train_images)
    test, x_test = drawn("test", config.test, mnist.test_images)
    images = np.concatenate([x_train, x_test])
    gram = cached_gram(InfiniteNTK(paper_net()), images[:, None]).astype(float)
    n = config.train
    labels = mnist.train_labels[train].astype(int)
    return MnistStream(
        gram[:n, :n],
        one_hot(labels, CLASSES),
        gram[n:, :n],
        labels,
        mnist.test_labels[test].astype(int),
    )


def cached_gram(kernel: Kernel, samples: np.ndarray) -> np.ndarray:
    """Returns `kernel(samples)`, cached on disk by samples, kernel and code."""
    description = json.dumps(kernel.to_dict(), sort_keys=True)
    content = (description, _code_of_kernels(), samples)
    return cached_array(cache_folder("kernels"), "gram", content, lambda: kernel(samples))


def time_without_numba(configs: Sequence[MnistConfig]) -> str:
    """Says how long the kernels take, and what would make them quick, if Numba is missing."""
    if find_spec("numba") is not None:
        return ""
    images = [config.train + config.test for config in configs]
    seconds = sum(n * (n + 1) / 2 for n in images) * SECONDS_A_PAIR
    return (
        f"The kernels of {len(images)} runs take about {duration(seconds)} of one core, unless "
        "they are in the cache; with Numba it would be seconds: "
        f"{install_line('ntk')}"
    )


@cache
def _code_of_kernels() -> str:
    return source_hash(Path(retarget.kernels.__file__).parent)


def _whitened(images: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Returns the chosen images, each pixel standardized by its statistics over the whole set."""
    mean = images.mean(axis=0)
    # two passes over portions of the bytes: all of it in float64 would take 376 MB
    squares = sum(np.square(some - mean).sum(axis=0) for some in np.array_split(images, 20))
    deviation = np.sqrt(squares / len(images))
    whitened: np.ndarray = ((images[chosen] - mean) / (deviation + 1e-6)).astype(np.float32)
    return whitened


# Fig. 2: the shift, its correction and learning curves, shuffled and class by class

SHOWN_LABELS = {0: ("o", "#009E73"), 1: ("s", "#E69F00"), 2: ("^", "#0072B2")}
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


def run_curves(config: MnistCurves) -> pl.DataFrame:
    """Computes scores along the stream (C, D) and targets of a few samples (A, B)."""
    stream = mnist_stream(config)
    parts = [
        *_curves(stream, config, "shuffled"),
        *_curves(stream.class_by_class(), config, "class by class"),
        _shown_targets(stream, config),
    ]
    return pl.concat(parts, how="diagonal")


def draw_curves(figure: Figure | SubFigure, table: pl.DataFrame) -> None:
    """Draws panels A to D; A and B for the first seed in the table."""
    first = table.filter(pl.col("seed") == table["seed"][0])
    sides = figure.subfigures(1, 2, squeeze=False, width_ratios=[1.45, 1])
    planes = sides[0, 0].subplots(2, 3)
    letter(planes[0, 0], "A", "the shift")
    letter(planes[1, 0], "B", "the correction")
    for row, series in zip(planes, ("effective", "corrected"), strict=True):
        for axes, plane in zip(row, PLANES, strict=True):
            _draw_plane(axes, first, series, plane)
    marks = planes[0, 0].get_legend_handles_labels()
    sides[0, 0].legend(*marks, loc="outside lower center", ncols=3)
    curves = sides[0, 1].subplots(2, 1, sharex=True)
    for axes, name, order in zip(curves, "CD", ORDERS, strict=True):
        letter(axes, name, f"test accuracy, {order}")
        for learner, label in LABELS.items():
            curve = table.filter(order=order, learner=learner)
            draw_band(axes, curve, "samples", "accuracy", COLORS[learner], label=label, lw=1.6)
        axes.set_ylabel("test accuracy")
        axes.set_ylim(0, 1)
    lines = curves[0].get_legend_handles_labels()
    sides[0, 1].legend(*lines, loc="outside lower center", ncols=2)
    curves[1].set_xlabel("samples seen")


def summarize_curves(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Shows accuracy at the end of the stream."""
    final = table.filter(pl.col("samples") == pl.col("samples").max())
    seeds = table["seed"].n_unique()
    title = f"MNIST, conv NTK: final test accuracy, mean ± SEM over {seeds} seeds"
    shown = table_of_numbers(title, ["learner"], ORDERS)
    for learner, name in LABELS.items():
        scores = (final.filter(learner=learner, order=order)["accuracy"] for order in ORDERS)
        shown.add_row(name, *map(mean_and_error, scores))
    return [shown]


def _curves(stream: MnistStream, config: MnistCurves, order: str) -> Iterator[pl.DataFrame]:
    """Yields the scores of every learner, with its ridge and rate for this order."""
    known = config.model_dump()
    stops = config.stops
    for learner in LABELS:
        own = "" if order == "shuffled" else f"class_{learner}_"
        chosen = {name: known[own + name] for name in ("gamma", "lr") if own + name in known}
        predictions = stream.predictions(learner, stops, block_size=config.block_size, **chosen)
        yield stream.scores(predictions, stops, order=order, learner=learner)


def _shown_targets(stream: MnistStream, config: MnistCurves) -> pl.DataFrame:
    """Returns the first three outputs of the targets of a few samples of the first three labels."""
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
    """Draws lines from the true targets to the shifted or corrected ones."""
    across, up = (f"y{output}" for output in plane)
    for label, (mark, color) in SHOWN_LABELS.items():
        true = table.filter(series="true", label=label)
        moved = table.filter(series=series, label=label)
        axes.plot([true[across], moved[across]], [true[up], moved[up]], color=color, lw=0.7)
        axes.plot(moved[across], moved[up], "x", color=color, ms=5)
        start = (true[across][:1], true[up][:1])
        axes.plot(*start, mark, color=color, label=f"label {label}")
    axes.axhline(0, color="lightgray", lw=0.7, zorder=0)
    axes.axvline(0, color="lightgray", lw=0.7, zorder=0)
    axes.set_xlabel(f"output {plane[0]}")
    axes.set_ylabel(f"output {plane[1]}")
    axes.set_box_aspect(1)


# Fig. 5: ridge, rate and block size

# The first and last power of ten; beyond 100, computations overflow.
Power = Annotated[float, Field(ge=-100, le=100)]
Powers = Annotated[list[Power], Field(min_length=2, max_length=2)]


class MnistSweeps(MnistConfig):
    """Values to sweep: between two powers of ten for A and B, single values for C and D."""

    gamma: Positive
    lr: Positive
    sweep_points: Count
    offline_gamma_powers: Powers
    online_lr_powers: Powers
    corrected_gammas: Positives
    block_sizes: Counts


def run_sweeps(config: MnistSweeps) -> pl.DataFrame:
    """Computes scores at the end (A, B) and along the stream (C, D), by panel and setting."""
    stream = mnist_stream(config)
    stops = config.stops
    gammas, rates = (
        np.logspace(first, last, config.sweep_points)
        for first, last in (config.offline_gamma_powers, config.online_lr_powers)
    )
    panels: dict[str, tuple[str, str, Iterable[float], list[int]]] = {
        "A": ("offline", "gamma", gammas, stops[-1:]),
        "B": ("online", "lr", rates, stops[-1:]),
        "C": ("corrected", "gamma", config.corrected_gammas, stops),
        "D": ("iterative", "block_size", config.block_sizes, stops),
    }
    parts = []
    for panel, (learner, swept, values, at) in panels.items():
        for value in values:
            chosen: dict[str, Any] = {"gamma": config.gamma, "lr": config.lr, swept: value}
            predictions = stream.predictions(learner, at, **chosen)
            parts.append(stream.scores(predictions, at, panel=panel, setting=float(value)))
    return pl.concat(parts)


def draw_sweeps(figure: Figure | SubFigure, table: pl.DataFrame) -> None:
    """Draws panels A to D."""
    (offline, online), (corrected, iterative) = figure.subplots(2, 2)
    _draw_sweep(offline, table.filter(panel="A"), "offline")
    letter(offline, "A", "offline")
    offline.set_xlabel(r"ridge $\gamma$")
    _draw_sweep(online, table.filter(panel="B"), "online")
    letter(online, "B", "online")
    online.set_xlabel(r"rate $\eta$")
    _draw_corrected(corrected, table.filter(panel="C"), r"$\gamma$ = {:g}", "Greens")
    letter(corrected, "C", "online, exactly corrected")
    _draw_corrected(iterative, table.filter(panel="D"), "b = {:g}", "Oranges")
    letter(iterative, "D", "online, iteratively corrected")


def summarize_sweeps(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Shows the best ridge and rate, and the end of each curve."""
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


def _draw_sweep(axes: Axes, table: pl.DataFrame, learner: str) -> None:
    """Draws accuracy (left) and mean squared error (right) against a parameter."""
    error_axes = axes.twinx()
    error_axes.spines["right"].set_visible(True)
    for value, where, style, label in (
        ("accuracy", axes, "-", "test accuracy"),
        ("error", error_axes, "--", "mean squared error"),
    ):
        color = COLORS[learner] if value == "accuracy" else "gray"
        line = {"fmt": "o" + style, "ms": 3, "label": label}
        draw_sweep(where, table, "setting", value, color, **line)
        where.set_ylabel(label)
    axes.set_ylim(0, 1)
    error_axes.set_ylim(0, 0.12)
    axes.set_xscale("log")
    handles = [panel.get_legend_handles_labels() for panel in (axes, error_axes)]
    axes.legend([h[0][0] for h in handles], [h[1][0] for h in handles], loc="lower left")


def _draw_corrected(axes: Axes, table: pl.DataFrame, label: str, colors: str) -> None:
    values = table["setting"].unique(maintain_order=True).to_list()
    shades = mpl.colormaps[colors](np.linspace(0.35, 1.0, len(values)))
    for value, color in zip(values, shades, strict=True):
        curve = table.filter(setting=value)
        draw_band(axes, curve, "samples", "accuracy", color, label=label.format(value), lw=1.4)
    axes.set_xlabel("samples seen")
    axes.set_ylabel("test accuracy")
    axes.set_ylim(0, 1)
    legend_below(axes)


_checksums = partial(data_set_checksums, MNIST)
_family = partial(family_in_rows, data=_checksums, notice=time_without_numba)
FAMILIES = {
    "mnist curves": _family(MnistCurves, run_curves, (12, 6.8), draw_curves, summarize_curves),
    "mnist sweeps": _family(MnistSweeps, run_sweeps, (9.5, 7.6), draw_sweeps, summarize_sweeps),
}
