"""The setting that the page opens with: that of Fig. 1, or the user's own stream."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch

from retarget.data.toy import WIDTH, toy_curve
from retarget.diagnosis.tables.read import read_table
from retarget.errors import InvalidInputError
from retarget.explore.state import LARGEST, MOST_POINTS, State
from retarget.kernels.simple import median_distance

FIG_1_SEED = 69  # the one that experiments/configs/fig1.toml draws
MARGIN = 0.05  # of the points' range, at each side of the picture


@dataclass(frozen=True)
class Opening:
    """What the page opens with.

    Attributes:
        title: What the points are.
        x_name: What x is called.
        y_name: What the targets are called.
        state: The setting.
    """

    title: str
    x_name: str
    y_name: str
    state: State


def toy_opening() -> Opening:
    """The one-dimensional picture of Fig. 1: forty noisy samples of a smooth curve."""
    toy = toy_curve(FIG_1_SEED)
    x, y = toy.x_train.round(3), toy.y_train.round(3)  # as many digits as can be told apart
    state = State(
        x=x.tolist(), y=y.tolist(), low=-MARGIN, high=1 + MARGIN, width=float(WIDTH), seen=len(x)
    )
    return Opening("Fig. 1 of the paper", "x", "y", state)


def file_opening(path: Path, x: str | None, target: str | None) -> Opening:
    """The stream in a user's file: one column against another, rows in the order of the file.

    Args:
        path: CSV, Parquet, NPZ or NPY.
        x: The column that is drawn from left to right.
        target: The column to be learned.
    """
    table = read_table(path)
    columns = ", ".join(repr(name) for name in table.columns)
    if x is None or target is None:
        raise InvalidInputError(
            f"{path.name} has the columns {columns}; say which two are drawn: --x COL --target COL"
        )
    for name in (x, target):
        if name not in table.columns:
            raise InvalidInputError(
                f"{path.name} has no column {name!r}; expected one of {columns}"
            )
    if not 1 <= len(table) <= MOST_POINTS:
        raise InvalidInputError(
            f"{path.name} has {len(table):,} rows; the page shows 1 to {MOST_POINTS}. Give it a "
            "part of the file, or diagnose all of it with: retarget diagnose FILE --target COL"
        )
    inputs, targets = _numbers(table, x, path), _numbers(table, target, path)
    low, high = float(inputs.min()), float(inputs.max())
    margin = MARGIN * (high - low) or 1.0
    state = State(
        x=inputs.tolist(),
        y=targets.tolist(),
        low=low - margin,
        high=high + margin,
        width=_usual_width(inputs),
        start=float(f"{targets.mean():.4g}"),  # the learner need not climb there from zero
        seen=len(table),
    )
    return Opening(path.name, x, target, state)


def _numbers(table: pl.DataFrame, name: str, path: Path) -> np.ndarray:
    column = table[name]
    if not column.dtype.is_numeric():
        raise InvalidInputError(
            f"the column {name!r} of {path.name} holds {column.dtype}; expected numbers"
        )
    values = column.cast(pl.Float64).to_numpy()
    wrong = ~(np.abs(values) <= LARGEST)
    if wrong.any():
        raise InvalidInputError(
            f"{wrong.sum()} of the {len(values)} values of {name!r} are missing, not finite or "
            f"beyond {LARGEST:g}, the first in row {int(wrong.argmax())}; leave these rows out, or "
            "give the column in other units"
        )
    return np.asarray(values)


def _usual_width(x: np.ndarray) -> float:
    """The median distance of two different points, to three digits."""
    distance = median_distance(torch.tensor(x)[:, None]) or 1.0
    return max(float(f"{distance:.3g}"), 1 / LARGEST)
