"""A curve learned point by point: shift and correction (Fig. 1), learning curves (Fig. 4)."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from rich.console import RenderableType

from retarget.kernels import RBF, Features
from retarget.lab.data.toy import GRID, WIDTH, toy_curve
from retarget.lab.experiment import (
    Config,
    Count,
    Counts,
    Positive,
    Positives,
)
from retarget.lab.figures.over_seeds import (
    family_in_rows,
    legend_below,
    letter,
    sweep_styles,
)
from retarget.lab.runs.store import labeled
from retarget.learners import COLORS, SGD
from retarget.streaming.trackers import ShiftTracker
from retarget.theory.correction import corrected_targets
from retarget.theory.online import (
    offline_coefficients,
    offline_learning_curve,
    online_coefficients,
    online_learning_curve,
)


def _first_seed(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("seed") == table["seed"][0])


# Fig. 1: the effective target shift, one step of it, and its correction


class ToyShift(Config):
    """Parameters of Fig. 1."""

    gamma: Positive
    lr: Positive


def run_shift(config: ToyShift) -> pl.DataFrame:
    """Computes curves on the grid and points of the stream: columns kind, series, x, y."""
    data = toy_curve(config.seed)
    kernel = RBF(WIDTH)
    x = data.x_train
    y = data.y_train
    learner = SGD(lr=config.lr)
    K = kernel(x)
    K_grid = kernel(GRID, x)
    corrected = corrected_targets(K, y, learner, config.gamma)

    tracker = ShiftTracker(kernel, learner, config.gamma)
    tracker.update(x, y)
    effective = tracker.effective_targets
    tracker.update(data.x_test[:1], data.y_test[:1])  # panel B: one more sample

    x_more = np.append(x, data.x_test[0])
    y_more = np.append(y, data.y_test[0])
    curves = {
        "truth": data.truth,
        "offline": K_grid @ offline_coefficients(K, y, config.gamma),
        "online": K_grid @ online_coefficients(K, y, learner),
        "corrected": K_grid @ online_coefficients(K, corrected, learner),
        "one step": kernel(GRID, x_more) @ online_coefficients(kernel(x_more), y_more, learner),
    }
    points = {
        "target": y_more,
        "effective": effective,
        "effective after one step": tracker.effective_targets,
        "corrected": corrected,
    }
    return pl.concat(
        labeled(pl.DataFrame({"x": xs[: len(ys)], "y": ys}), {"kind": kind, "series": name})
        for kind, xs, series in (("curve", GRID, curves), ("point", x_more, points))
        for name, ys in series.items()
    )


def summarize_shift(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Shows the mean size of the shift and of the correction, and that it is exact."""
    first = _first_seed(table)

    def values(kind: str, series: str) -> np.ndarray:
        return first.filter(kind=kind, series=series)["y"].to_numpy()

    target = values("point", "target")[:-1]
    shift, correction = (
        np.abs(values("point", name) - target).mean() for name in ("effective", "corrected")
    )
    gap = np.abs(values("curve", "corrected") - values("curve", "offline")).max()
    return [
        f"Online learning shifted the targets by {shift:.3f} on average, as an offline learner "
        f"sees it; the corrected targets differ by {correction:.3f} from the true ones.",
        f"Trained on these, the online learner equals the offline learner: largest difference "
        f"{gap:.1e}.",
    ]


# For each panel: its title; lines with their labels; points that move, and the color of the move;
# points with labels, colors and markers.
TRUE = ("target", "true targets $y$", "offline", "o")
EFFECTIVE = ("effective", "effective targets $y^e$", "online", "x")
SHIFT_PANELS = {
    "A": (
        "the shift",
        [
            ("truth", "true function $f_*$"),
            ("offline", "offline $f_{off}$"),
            ("online", "online $f_{on}$"),
        ],
        ("target", "effective", "online"),
        [TRUE, EFFECTIVE],
    ),
    "B": (
        "one more sample",
        [("online", "online, before"), ("one step", "online, after")],
        ("effective", "effective after one step", "one step"),
        [
            ("effective", "effective, before", "online", "x"),
            ("effective after one step", "effective, after", "one step", "x"),
        ],
    ),
    "C": (
        "the correction",
        [("offline", "offline $f_{off}$"), ("corrected", "online on $y^c$")],
        ("target", "corrected", "corrected"),
        [TRUE, EFFECTIVE, ("corrected", "corrected targets $y^c$", "corrected", "open")],
    ),
}
# In panel C the two lines coincide.
ON_EACH_OTHER: dict[str, dict[str, Any]] = {
    "offline": {"lw": 5.0, "alpha": 0.35},
    "corrected": {"ls": "--"},
}


def draw_shift(figure: Figure | SubFigure, table: pl.DataFrame) -> None:
    """Draws panels A to C, for the first seed in the table."""
    panels = figure.subplots(1, 3, sharey=True)
    for axes, name in zip(panels, SHIFT_PANELS, strict=True):
        axes.set_xlabel("input $x$")
        _draw_shift_panel(axes, _first_seed(table), name)
    panels[0].set_ylabel("target $y$")


def _draw_shift_panel(axes: Axes, table: pl.DataFrame, name: str) -> None:
    title, lines, (start, end, moved), points = SHIFT_PANELS[name]
    letter(axes, name, title)
    for series, label in lines:
        curve = table.filter(kind="curve", series=series)
        style = {"lw": 1.8, **(ON_EACH_OTHER[series] if name == "C" else {})}
        axes.plot(curve["x"], curve["y"], color=COLORS[series], label=label, **style)
    marked = table.filter(kind="point").partition_by("series", as_dict=True)
    # the added sample belongs only to panel B, which has its own marker for it
    there = {key[0]: rows.head(-1) if key == ("target",) else rows for key, rows in marked.items()}
    before = there[start]
    after = there[end]
    n = min(len(before), len(after))
    axes.vlines(before["x"][:n], before["y"][:n], after["y"][:n], COLORS[moved], lw=0.8, zorder=2)
    for series, label, color, mark in points:
        axes.plot(
            there[series]["x"],
            there[series]["y"],
            "o" if mark == "open" else mark,
            color=COLORS[color],
            markerfacecolor="none" if mark == "open" else COLORS[color],
            markersize=4.5,
            markeredgewidth=1.3,
            label=label,
            zorder=3,
        )
    if name == "B":
        new = table.filter(kind="point", series="target").tail(1)
        circle: dict[str, Any] = {
            "markerfacecolor": "none",
            "markersize": 13,
            "markeredgewidth": 1.2,
        }
        axes.plot(new["x"], new["y"], "o", color="black", label="the new sample", **circle)
    legend_below(axes)


# Fig. 4: three kernels, and learning curves whose closed forms run through simulated points


class ToyCurves(Config):
    """Parameters of Fig. 4."""

    features: Count
    gammas: Positives
    batch_sizes: Counts
    batch_lr: Positive
    shown_batch: Count


def run_curves(config: ToyCurves) -> pl.DataFrame:
    """Computes kernel entries (panel A) and errors along the stream (B, C, D), in one long table.

    Columns: panel, setting, source ("closed form" or "simulation"), split ("train" or "test"),
    samples, value. For panel A the setting is the matrix, and row and column its entry.
    """
    data = toy_curve(config.seed)
    J = np.random.default_rng([config.seed, 1]).normal(size=config.features)
    kernel = Features(lambda x: np.tanh(x * J) / np.sqrt(config.features))
    x_all = np.append(data.x_train, data.x_test)
    y_all = np.append(data.y_train, data.y_test)
    y = data.y_train
    n = len(data.y_train)
    K_all = kernel(x_all, data.x_train)
    K = kernel(data.x_train)
    phi_all = kernel.fn(x_all[:, None])
    parts = [_kernel_entries(K, config.shown_batch)]

    def add(panel: str, setting: float, source: str, stops: list[int], f: np.ndarray) -> None:
        """Adds mean squared errors of the predictions f (stops, all points)."""
        for split, rows in (("train", slice(0, n)), ("test", slice(n, None))):
            error = np.mean((f[:, rows] - y_all[rows]) ** 2, axis=1)
            labels = {"panel": panel, "setting": f"{setting:g}", "source": source, "split": split}
            parts.append(labeled(pl.DataFrame({"samples": stops, "value": error}), labels))

    def add_online(panel: str, setting: float, learner: SGD) -> None:
        # the last mini-batch may be smaller
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
        add_online("D", batch, SGD(lr=config.batch_lr, batch_size=batch, reduction="sum"))
    return pl.concat(parts, how="diagonal")


def simulate(
    features: np.ndarray, targets: np.ndarray, queries: np.ndarray, learner: SGD
) -> np.ndarray:
    """Returns predictions at the queries after each step of torch.optim.SGD, in weight space."""
    phi, y, q = (torch.as_tensor(values) for values in (features, targets, queries))
    w = torch.zeros(phi.shape[1], dtype=phi.dtype, requires_grad=True)
    optimizer = learner.to_torch([w])
    predictions = []
    for start in range(0, len(y), learner.batch_size):
        rows = slice(start, start + learner.batch_size)
        loss = 0.5 * (phi[rows] @ w - y[rows]).square().sum()
        (w.grad,) = torch.autograd.grad(loss, w)
        optimizer.step()
        predictions.append((q @ w).detach().numpy())
    return np.stack(predictions)


def _kernel_entries(K: np.ndarray, batch: int) -> pl.DataFrame:
    """Returns K, K^U and K^bU as the paper draws them; NaN if samples do not interact."""
    time = np.arange(len(K))
    matrices = {"K": K}
    for name, step in {"K^U": time, "K^{bU}": time // batch}.items():
        matrices[name] = np.where(np.less.outer(step, step), K, np.nan)
    row, column = (index.ravel() for index in np.indices(K.shape))
    tables = {
        name: pl.DataFrame({"row": row, "column": column, "value": M.ravel()})
        for name, M in matrices.items()
    }
    return pl.concat(labeled(t, {"panel": "A", "setting": name}) for name, t in tables.items())


def summarize_curves(table: pl.DataFrame) -> Sequence[RenderableType]:
    """Shows how closely the simulated points match the closed form."""
    wide = table.filter(pl.col("panel").is_in(["C", "D"])).pivot(
        on="source", index=["seed", "panel", "setting", "split", "samples"], values="value"
    )
    gap = np.abs(wide["closed form"].to_numpy() - wide["simulation"].to_numpy()).max()
    return [
        f"Eq. 6 and Eq. 7 agree with step-by-step SGD at all {len(wide)} points: the largest "
        f"difference of the errors is {gap:.1e}."
    ]


def draw_curves(figure: Figure | SubFigure, table: pl.DataFrame) -> None:
    """Draws panels A to D, for the first seed in the table."""
    table = _first_seed(table)
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
    below[0].set_ylabel("mean squared error")


def _draw_kernels(figure: SubFigure, entries: pl.DataFrame) -> None:
    names = entries["setting"].unique(maintain_order=True).to_list()
    images = []
    largest = float(np.nanmax(entries["value"].to_numpy()))
    for place, (axes, name) in enumerate(zip(figure.subplots(1, 3), names, strict=True)):
        values = entries.filter(setting=name)["value"].to_numpy()
        n = math.isqrt(len(values))
        images.append(axes.imshow(values.reshape(n, n), cmap="viridis", vmin=0, vmax=largest))
        axes.set_xlabel("sample $j$")
        axes.set_ylabel("sample $i$")
        if place == 0:
            letter(axes, "A", f"${name}$")
        else:
            axes.set_title(f"${name}$", loc="left")
    figure.colorbar(images[0], ax=figure.axes, label="kernel", shrink=0.9)


def _draw_errors(axes: Axes, table: pl.DataFrame, label: str) -> None:
    values = table["setting"].unique(maintain_order=True).to_list()
    simulated = "simulation" in table["source"]
    dots: dict[str, Any] = {"ms": 3.2, "mew": 0}
    for setting, (color, marker) in zip(values, sweep_styles(len(values)), strict=True):
        # the legend has the line and its markers as one
        shown = {"marker": marker, **dots} if simulated else {}
        axes.plot([], [], "-", color=color, lw=1.5, label=label.format(setting), **shown)
        for split, style in (("test", "-"), ("train", "--")):
            errors = table.filter(setting=setting, split=split)
            line = errors.filter(source="closed form")
            axes.plot(line["samples"], line["value"], style, color=color, lw=1.5)
            points = errors.filter(source="simulation")
            axes.plot(points["samples"], points["value"], marker, color=color, **dots)
    axes.plot([], [], "-", color="gray", label="test")
    axes.plot([], [], "--", color="gray", label="train")
    if simulated:
        axes.plot([], [], "o", color="gray", label="step-by-step SGD", **dots)
    axes.set_xlabel("samples seen")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    legend_below(axes)


FAMILIES = {
    "toy curves": family_in_rows(
        ToyCurves, run_curves, (9.5, 7.0), draw_curves, summarize_curves, light=True
    ),
    "toy shift": family_in_rows(
        ToyShift, run_shift, (10.5, 4.2), draw_shift, summarize_shift, light=True
    ),
}
