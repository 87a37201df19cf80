"""Fig. 1: the effective target shift on a curve, one step of it, and its correction."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from rich.console import RenderableType

from retarget.data.toy import GRID, WIDTH, toy_curve
from retarget.experiments.experiment import Config, Count, NotNegative, Positive
from retarget.experiments.figures.over_seeds import family_in_rows, legend_below, letter
from retarget.experiments.runs.store import labelled
from retarget.kernels import RBF
from retarget.learners import COLOURS, SGD
from retarget.streaming.trackers import ShiftTracker
from retarget.theory.correction import corrected_targets
from retarget.theory.online import offline_coefficients, online_coefficients


class ToyShift(Config):
    """Parameters of Fig. 1."""

    gamma: Positive
    lr: Positive
    shown_points: Count
    apart: NotNegative


def run(config: ToyShift) -> pl.DataFrame:
    """Curves on the grid and points of the stream: columns kind, series, x, y, shown."""
    data, kernel = toy_curve(config.seed), RBF(WIDTH)
    x, y = data.x_train, data.y_train
    learner = SGD(lr=config.lr)
    K, K_grid = kernel(x), kernel(GRID, x)
    corrected = corrected_targets(K, y, learner, config.gamma)

    tracker = ShiftTracker(kernel, learner, config.gamma)
    tracker.update(x, y)
    effective = tracker.effective_targets
    tracker.update(data.x_test[:1], data.y_test[:1])  # panel B: one more sample
    effective_after = tracker.effective_targets

    all_x, all_y = np.append(x, data.x_test), np.append(y, data.y_test)
    truth = kernel(GRID, all_x) @ offline_coefficients(kernel(all_x), all_y, config.gamma)
    curves = {
        "truth": truth,
        "offline": K_grid @ offline_coefficients(K, y, config.gamma),
        "online": K_grid @ online_coefficients(K, y, learner),
        "corrected": K_grid @ online_coefficients(K, corrected, learner),
        "one step": kernel(GRID, all_x[: len(x) + 1])
        @ online_coefficients(kernel(all_x[: len(x) + 1]), all_y[: len(x) + 1], learner),
    }
    points = {
        "target": np.append(y, data.y_test[0]),
        "effective": effective,
        "effective after one step": effective_after,
        "corrected": corrected,
    }
    shown = np.append(_spread(x, config.shown_points, config.apart), True)
    parts = [_rows("curve", name, GRID, values) for name, values in curves.items()]
    for name, values in points.items():
        n = len(values)
        parts.append(_rows("point", name, all_x[:n], values, shown[:n]))
    return pl.concat(parts)


def draw(figure: Figure | SubFigure, table: pl.DataFrame) -> None:
    """Panels A to C, for the first seed in the table."""
    table = table.filter(pl.col("seed") == table["seed"][0])
    axes = figure.subplots(1, 3, sharey=True)
    for panel in axes:
        panel.set_xlabel("input $x$")
    axes[0].set_ylabel("target $y$")
    _draw_shift(axes[0], table)
    _draw_one_step(axes[1], table)
    _draw_correction(axes[2], table)


def summarise(table: pl.DataFrame) -> Sequence[RenderableType]:
    """The mean size of the shift and of the correction, and that the correction is exact."""
    first = table.filter(pl.col("seed") == table["seed"][0])
    target = _series(first, "point", "target")["y"].to_numpy()[:-1]
    shift = np.abs(_series(first, "point", "effective")["y"].to_numpy() - target).mean()
    correction = np.abs(_series(first, "point", "corrected")["y"].to_numpy() - target).mean()
    offline, online = (_series(first, "curve", name)["y"] for name in ("offline", "corrected"))
    gap = np.abs(online.to_numpy() - offline.to_numpy()).max()
    return [
        f"Online learning shifted the targets by {shift:.3f} on average, as an offline learner "
        f"sees it; the corrected targets differ by {correction:.3f} from the true ones.",
        f"Trained on those, the online learner is the offline learner: largest difference "
        f"{gap:.1e}.",
    ]


def _rows(
    kind: str, series: str, x: np.ndarray, y: np.ndarray, shown: np.ndarray | bool = True
) -> pl.DataFrame:
    columns = {"x": x, "y": y, "shown": np.broadcast_to(shown, len(x)).copy()}
    return labelled(pl.DataFrame(columns), {"kind": kind, "series": series})


def _spread(x: np.ndarray, count: int, apart: float) -> np.ndarray:
    """Marks the first `count` samples of the stream that keep a distance from each other."""
    chosen: list[int] = []
    for i, value in enumerate(x):
        if len(chosen) < count and all(abs(value - x[j]) >= apart - 1e-9 for j in chosen):
            chosen.append(i)
    return np.isin(np.arange(len(x)), chosen)


def _series(table: pl.DataFrame, kind: str, series: str) -> pl.DataFrame:
    return table.filter((pl.col("kind") == kind) & (pl.col("series") == series))


def _line(
    axes: Axes, table: pl.DataFrame, series: str, label: str, style: str = "-", under: bool = False
) -> None:
    curve = _series(table, "curve", series)
    (line,) = axes.plot(curve["x"], curve["y"], style, color=COLOURS[series], label=label, lw=1.8)
    if under:  # another line will lie on this one
        line.set(linewidth=5.0, alpha=0.35)


def _points(
    axes: Axes, table: pl.DataFrame, series: str, label: str, colour: str, mark: str
) -> None:
    points = _shown(table, series)
    open_circle = mark == "open"
    axes.plot(
        points["x"],
        points["y"],
        "o" if open_circle else mark,
        color=COLOURS[colour],
        markerfacecolor="none" if open_circle else COLOURS[colour],
        markersize=6,
        markeredgewidth=1.6,
        label=label,
        zorder=3,
    )


def _moves(axes: Axes, table: pl.DataFrame, start: str, end: str, colour: str) -> None:
    """Thin lines from where the points were to where they are."""
    before, after = _shown(table, start), _shown(table, end)
    n = min(len(before), len(after))
    axes.vlines(before["x"][:n], before["y"][:n], after["y"][:n], COLOURS[colour], lw=1, zorder=2)


def _shown(table: pl.DataFrame, series: str) -> pl.DataFrame:
    points = _series(table, "point", series).filter("shown")
    # the added sample belongs to panel B alone, which marks it in its own way
    return points.head(-1) if series == "target" else points


def _draw_shift(axes: Axes, table: pl.DataFrame) -> None:
    letter(axes, "A", "the shift")
    _line(axes, table, "truth", "all 200 points")
    _line(axes, table, "offline", "offline $f_{off}$")
    _line(axes, table, "online", "online $f_{on}$")
    _moves(axes, table, "target", "effective", "online")
    _points(axes, table, "target", "true targets $y$", "offline", "o")
    _points(axes, table, "effective", "effective targets $y^e$", "online", "x")
    legend_below(axes)


def _draw_one_step(axes: Axes, table: pl.DataFrame) -> None:
    letter(axes, "B", "one more sample")
    _line(axes, table, "online", "online, before")
    _line(axes, table, "one step", "online, after")
    _moves(axes, table, "effective", "effective after one step", "one step")
    _points(axes, table, "effective", "effective, before", "online", "x")
    _points(axes, table, "effective after one step", "effective, after", "one step", "x")
    new = _series(table, "point", "target").tail(1)
    axes.plot(
        new["x"],
        new["y"],
        "o",
        color="black",
        markerfacecolor="none",
        markersize=13,
        ls="none",
        markeredgewidth=1.2,
        label="the new sample",
    )
    legend_below(axes)


def _draw_correction(axes: Axes, table: pl.DataFrame) -> None:
    letter(axes, "C", "the correction")
    _line(axes, table, "offline", "offline $f_{off}$", under=True)
    _line(axes, table, "corrected", "online on $y^c$", "--")
    _moves(axes, table, "target", "corrected", "corrected")
    _points(axes, table, "target", "true targets $y$", "offline", "o")
    _points(axes, table, "effective", "effective targets $y^e$", "online", "x")
    _points(axes, table, "corrected", "corrected targets $y^c$", "corrected", "open")
    legend_below(axes)


FAMILY = family_in_rows(ToyShift, run, (10.5, 4.2), draw, summarise, light=True)
