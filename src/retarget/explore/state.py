"""One setting of the page (points, order, learner, samples seen), and its initial one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import polars as pl
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from retarget.data.toy import WIDTH, toy_curve
from retarget.diagnosis.tables.read import read_table
from retarget.errors import InvalidInputError
from retarget.kernels.simple import median_distance
from retarget.learners import SGD

Order = Literal["as given", "reversed", "by x", "random"]
MOST_POINTS = 500

# Far larger than needed, but sums and products of a few cannot overflow; NaN is refused too.
LARGEST = 1e12
Number = Annotated[float, Field(ge=-2 * LARGEST, le=2 * LARGEST)]  # leaves room for a margin
Positive = Annotated[float, Field(ge=1 / LARGEST, le=2 * LARGEST)]


class State(BaseModel):
    """One setting of the page. Points are in the order in which they were given."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    x: Annotated[list[Number], Field(min_length=1, max_length=MOST_POINTS)]
    y: Annotated[list[Number], Field(min_length=1, max_length=MOST_POINTS)]
    low: Number  # left end of the picture
    high: Number
    order: Order = "as given"  # "by x" is from left to right
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    lr: Positive = 0.5
    batch_size: Annotated[int, Field(ge=1, le=MOST_POINTS)] = 1
    momentum: Annotated[float, Field(ge=0, le=0.999)] = 0.0
    gamma: Positive = 1.0
    width: Positive
    # for the iterative correction
    block_size: Annotated[int, Field(ge=1, le=MOST_POINTS)] = 8
    block_ridge: Annotated[float, Field(ge=0, le=LARGEST)] = 0.1
    start: Number = 0.0  # the constant function that learning starts from
    seen: Annotated[int, Field(ge=0, le=MOST_POINTS)]  # samples of the stream learned so far

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(self.x) != len(self.y):
            raise ValueError(f"{len(self.x)} x for {len(self.y)} y; expected the same number")
        if self.seen > len(self.x):
            raise ValueError(f"{self.seen} samples seen of {len(self.x)}; expected at most all")
        if not self.low < self.high:
            raise ValueError(f"low is {self.low} and high is {self.high}; expected low < high")
        return self

    @property
    def learner(self) -> SGD:
        """The online learner."""
        return SGD(lr=self.lr, batch_size=self.batch_size, momentum=self.momentum)

    def stream(self) -> np.ndarray:
        """Returns (n,) the numbers of the points in the order in which they are learned."""
        if self.order == "random":
            return np.random.default_rng(self.seed).permutation(len(self.x))
        if self.order == "by x":
            return np.argsort(self.x, kind="stable")
        numbers = np.arange(len(self.x))
        return numbers[::-1] if self.order == "reversed" else numbers


FIG_1_SEED = 69  # the seed of experiments/configs/fig1.toml
MARGIN = 0.05  # share of the points' range added on each side


@dataclass(frozen=True)
class Opening:
    """What the page shows at first."""

    title: str  # of the data
    x_name: str
    y_name: str
    state: State


def toy_opening() -> Opening:
    """Returns the one-dimensional data of Fig. 1: forty noisy samples of a smooth curve."""
    toy = toy_curve(FIG_1_SEED)
    x, y = toy.x_train.round(3), toy.y_train.round(3)  # as many digits as can be distinguished
    state = State(
        x=x.tolist(), y=y.tolist(), low=-MARGIN, high=1 + MARGIN, width=float(WIDTH), seen=len(x)
    )
    return Opening("Fig. 1 of the paper", "x", "y", state)


def file_opening(path: Path, x: str | None, target: str | None) -> Opening:
    """Reads the stream in a user's file: one column against another, in the file's order.

    Args:
        path: CSV, Parquet, NPZ or NPY.
        x: The column to draw from left to right.
        target: The column to be learned.
    """
    table = read_table(path)
    columns = ", ".join(repr(name) for name in table.columns)
    if x is None or target is None:
        raise InvalidInputError(
            f"{path.name} has the columns {columns}; choose two of them: --x COL --target COL"
        )
    for name in (x, target):
        if name not in table.columns:
            raise InvalidInputError(f"{path.name} has no column {name!r}; it has {columns}")
    if not 1 <= len(table) <= MOST_POINTS:
        raise InvalidInputError(
            f"{path.name} has {len(table):,} rows; the page shows 1 to {MOST_POINTS}. Use a "
            "part of the file, or diagnose all of it with: retarget diagnose FILE --target COL"
        )
    inputs, targets = _numbers(table, x, path), _numbers(table, target, path)
    low, high = float(inputs.min()), float(inputs.max())
    margin = MARGIN * (high - low) or 1.0
    distance = median_distance(torch.tensor(inputs)[:, None]) or 1.0
    state = State(
        x=inputs.tolist(),
        y=targets.tolist(),
        low=low - margin,
        high=high + margin,
        width=max(float(f"{distance:.3g}"), 1 / LARGEST),
        start=float(f"{targets.mean():.4g}"),  # so that the learner need not start from zero
        seen=len(table),
    )
    return Opening(path.name, x, target, state)


def _numbers(table: pl.DataFrame, name: str, path: Path) -> np.ndarray:
    column = table[name]
    if not column.dtype.is_numeric():
        raise InvalidInputError(f"{name!r} of {path.name} holds {column.dtype}; expected numbers")
    values = column.cast(pl.Float64).to_numpy()
    wrong = ~(np.abs(values) <= LARGEST)
    if wrong.any():
        raise InvalidInputError(
            f"{wrong.sum()} of the {len(values)} values of {name!r} are missing, not finite or "
            f"beyond {LARGEST:g}, the first in row {int(wrong.argmax())}; leave these rows out, or "
            "rescale the column"
        )
    return np.asarray(values)
