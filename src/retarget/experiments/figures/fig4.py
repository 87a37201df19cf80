"""Fig. 4: three kernels, and learning curves whose closed forms run through simulated points."""

import math
from collections.abc import Sequence

import numpy as np
import polars as pl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from rich.console import RenderableType

from retarget.data.toy import toy_curve
from retarget.experiments.experiment import Config, Count, Counts, Positive, Positives
from retarget.experiments.figures.over_seeds import (
    family_in_rows,
    legend_below,
    letter,
    sweep_styles,
)
from retarget.experiments.runs.store import labelled
from retarget.kernels import Features
from retarget.learners import SGD
from retarget.theory.online import offline_learning_curve, online_learning_curve


class ToyCurves(Config):
    """Parameters of Fig. 4."""

    features: Count
    gammas: Positives
    batch_sizes: Counts
    batch_lr: Positive
    shown_batch: Count


def run(config: ToyCurves) -> pl.DataFrame:
    """Kernel entries (panel A) and errors along the stream (B, C, D), in one long table.

    Columns: panel, setting, source ("closed form" or "simulation"), split ("train" or "test"),
    samples, value. For panel A the setting is the matrix, and row and column its entry.
    """
    data = toy_curve(config.seed)
    J = np.random.default_rng([config.seed, 1]).normal(size=config.features)
    kernel = Features(lambda x: np.tanh(x * J) / np.sqrt(config.features))
    x_all, y_all = np.append(data.x_train, data.x_test), np.append(data.y_train, data.y_test)
    y, n = data.y_train, len(data.y_train)
    K_all = kernel(x_all, data.x_train)
    K, phi_all = kernel(data.x_train), kernel.fn(x_all[:, None])
    parts = [_kernel_entries(K, config.shown_batch)]

    def add(panel: str, setting: float, source: str, stops: list[int], f: np.ndarray) -> None:
        """Mean squared errors of the predictions f (stops, all points)."""
        for split, rows in (("train", slice(0, n)), ("test", slice(n, None))):
            error = np.mean((f[:, rows] - y_all[rows]) ** 2, axis=1)
            labels = {"panel": panel, "setting": f"{setting:g}", "source": source, "split": split}
            parts.append(labelled(pl.DataFrame({"samples": stops, "value": error}), labels))

    def add_online(panel: str, setting: float, learner: SGD) -> None:
        # the last mini-batch may be a smaller one
        stops = [*range(learner.batch_size, n, learner.batch_size), n]
        closed_form = online_learning_curve(K, y, K_all, learner, stops)
        add(panel, setting, "closed form", stops, closed_form)
        add(panel, setting, "simulation", stops, simulate(phi_all[:n], y, phi_all, learner))

    every = list(range(1, n + 1))
    mean_norm = float(kernel.diag(x_all).mean())
    for gamma in config.gammas:
        add("B", gamma, "closed form", every, offline_learning_curve(K, y, K_all, gamma, every))
        add_online("C", gamma, SGD(lr=1 / (gamma + mean_norm)))
    for batch in config.batch_sizes:
        add_online("D", batch, SGD(lr=config.batch_lr, batch_size=batch))
    return pl.concat(parts, how="diagonal")


def simulate(
    features: np.ndarray, targets: np.ndarray, queries: np.ndarray, learner: SGD
) -> np.ndarray:
    """Predictions at the queries after each step of torch.optim.SGD, in weight space."""
    phi, y, q = (torch.as_tensor(part) for part in (features, targets, queries))
    w = torch.zeros(phi.shape[1], dtype=phi.dtype, requires_grad=True)
    optimiser = torch.optim.SGD([w], lr=learner.rate(0))
    predictions = []
    for start in range(0, len(y), learner.batch_size):
        rows = slice(start, start + learner.batch_size)
        loss = 0.5 * (phi[rows] @ w - y[rows]).square().sum()
        (w.grad,) = torch.autograd.grad(loss, w)
        optimiser.step()
        predictions.append((q @ w).detach().numpy())
    return np.stack(predictions)


def draw(figure: Figure | SubFigure, table: pl.DataFrame) -> None:
    """Panels A to D, for the first seed in the table."""
    table = table.filter(pl.col("seed") == table["seed"][0])
    panels = {
        "B": ("offline", r"$\gamma$ = {}"),
        "C": ("online", r"$\eta = 1/({} + k_o)$"),
        "D": ("online, mini-batches", r"$b$ = {}"),
    }
    halves = figure.subfigures(2, 1, squeeze=False, height_ratios=[1, 1.3])
    _draw_kernels(halves[0, 0], table.filter(panel="A"))
    below = halves[1, 0].subplots(1, 3, sharey=True)
    for axes, (name, (title, label)) in zip(below, panels.items(), strict=True):
        letter(axes, name, title)
        _draw_errors(axes, table.filter(panel=name), label)
        if name == "B":
            axes.set_ylabel("mean squared error")


def summarise(table: pl.DataFrame) -> Sequence[RenderableType]:
    """How closely the simulated points lie on the closed-form lines."""
    wide = table.filter(pl.col("panel").is_in(["C", "D"])).pivot(
        on="source", index=["seed", "panel", "setting", "split", "samples"], values="value"
    )
    gap = np.abs(wide["closed form"].to_numpy() - wide["simulation"].to_numpy()).max()
    return [
        f"Eq. 6 and Eq. 7 agree with step-by-step SGD at all {len(wide)} points: the largest "
        f"difference of the errors is {gap:.1e}."
    ]


def _kernel_entries(K: np.ndarray, batch: int) -> pl.DataFrame:
    """K, K^U and K^bU as the paper draws them, NaN where a later sample does not see an earlier."""
    time = np.arange(len(K))
    matrices = {"K": K}
    for name, step in {"K^U": time, "K^{bU}": time // batch}.items():
        matrices[name] = np.where(np.less.outer(step, step), K, np.nan)
    row, column = (index.ravel() for index in np.indices(K.shape))
    tables = {
        name: pl.DataFrame({"row": row, "column": column, "value": M.ravel()})
        for name, M in matrices.items()
    }
    return pl.concat(labelled(t, {"panel": "A", "setting": name}) for name, t in tables.items())


def _draw_kernels(figure: SubFigure, entries: pl.DataFrame) -> None:
    names = entries["setting"].unique(maintain_order=True).to_list()
    images, largest = [], float(np.nanmax(entries["value"].to_numpy()))
    for place, (axes, name) in enumerate(zip(figure.subplots(1, 3), names, strict=True)):
        values = entries.filter(setting=name)["value"].to_numpy()
        n = math.isqrt(len(values))
        matrix = values.reshape(n, n)
        images.append(axes.imshow(matrix, cmap="viridis", vmin=0, vmax=largest))
        axes.set_xlabel("sample $j$")
        axes.set_ylabel("sample $i$")
        if place == 0:
            letter(axes, "A", f"${name}$")
        else:
            axes.set_title(f"${name}$", loc="left")
    figure.colorbar(images[0], ax=figure.axes, label="kernel", shrink=0.9)


def _draw_errors(axes: Axes, table: pl.DataFrame, label: str) -> None:
    values = table["setting"].unique(maintain_order=True).to_list()
    for setting, (colour, marker) in zip(values, sweep_styles(len(values)), strict=True):
        for split, style in (("test", "-"), ("train", "--")):
            part = table.filter(setting=setting, split=split)
            line = part.filter(source="closed form")
            name = label.format(setting) if split == "test" else None
            axes.plot(line["samples"], line["value"], style, color=colour, label=name, lw=1.5)
            points = part.filter(source="simulation")
            axes.plot(points["samples"], points["value"], marker, color=colour, ms=3.2, mew=0)
    axes.plot([], [], "-", color="gray", label="test")
    axes.plot([], [], "--", color="gray", label="train")
    if "simulation" in table["source"]:
        axes.plot([], [], "o", color="gray", ms=3.2, label="step-by-step SGD")
    axes.set_xlabel("samples seen")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    legend_below(axes)


FAMILY = family_in_rows(ToyCurves, run, (9.5, 7.0), draw, summarise, light=True)
