"""How target columns become numbers: standardised, or one output for each class."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from retarget.diagnosis.stream import TargetKind
from retarget.diagnosis.tables.roles import Rows, is_plain, parsed_numbers
from retarget.errors import InvalidInputError
from retarget.text import listed, shown

ROUNDING = 1e-14  # spread, relative to the largest value, that is only rounding
MOST_GUESSED_CLASSES = 20  # of whole numbers
ROWS_A_GUESSED_CLASS = 10
MOST_CLASSES = 1000


@dataclass(frozen=True)
class TargetColumns:
    """The targets, as they were learned from some rows.

    Attributes:
        kind: Numbers or classes.
        columns: The target columns.
        names: The same, or the classes.
        means: Subtracted from each; zeros for classes.
        scales: Each is divided by; ones for classes.
    """

    kind: TargetKind
    columns: tuple[str, ...]
    names: tuple[str, ...]
    means: np.ndarray
    scales: np.ndarray

    def encode(self, table: pl.DataFrame) -> np.ndarray:
        """(n, c) targets.

        Raises:
            InvalidInputError: A class was not learned, or a cell is not a number.
        """
        if self.kind == "regression":
            return np.asarray((_numbers(table, self.columns) - self.means) / self.scales)
        labels = class_text(table[self.columns[0]])
        unknown = labels.filter(~labels.is_in(list(self.names)))
        if len(unknown):
            raise InvalidInputError(
                f"the target {shown(self.columns[0])} holds classes that the stream does not have "
                f"({listed(unknown.unique(maintain_order=True).to_list())}, in {len(unknown):,} "
                "rows); remove these rows from the test set"
            )
        codes = labels.cast(pl.Enum(self.names)).to_physical()
        return np.asarray(np.eye(len(self.names))[codes.to_numpy()])


def learn_targets(rows: Rows, train_rows: int, notes: list[str]) -> TargetColumns:
    """What the targets are: kind and classes by all rows, means and scales by the first ones.

    Raises:
        InvalidInputError: They are neither numbers nor classes, not finite, or all equal.
    """
    columns = rows.roles.target
    if target_kind(rows, notes) == "classification":
        names = _classes(rows.table[columns[0]], train_rows)
        count = len(names)
        return TargetColumns("classification", columns, names, np.zeros(count), np.ones(count))
    values = _numbers(rows.table, columns)[:train_rows]
    with np.errstate(over="ignore", invalid="ignore"):
        means, scales = values.mean(axis=0), values.std(axis=0)
    for name, column, mean, scale in zip(columns, values.T, means, scales, strict=True):
        if not (np.isfinite(mean) and np.isfinite(scale)):
            raise InvalidInputError(f"the target {shown(name)} is too large to compute with")
        if scale <= ROUNDING * np.abs(column).max():
            raise InvalidInputError(
                f"all values of the target {shown(name)} are equal ({column[0]:g}) in the "
                f"{train_rows:,} rows that are learned from; there is nothing to learn"
            )
    if not rows.roles.standardise:
        means, scales = np.zeros(len(columns)), np.ones(len(columns))
    return TargetColumns("regression", columns, columns, means, scales)


def _numbers(table: pl.DataFrame, columns: tuple[str, ...]) -> np.ndarray:
    return np.column_stack([_finite(table[name]) for name in columns])


def _finite(column: pl.Series) -> np.ndarray:
    name = shown(column.name)
    if column.dtype == pl.String:
        numbers = parsed_numbers(column)
        bad = numbers.is_null()
        if bad.any():
            raise InvalidInputError(
                f"the target {name} holds text such as {shown(column.filter(bad)[0])}; expected "
                "numbers, or classes (--kind classification)"
            )
        column = numbers
    if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        raise InvalidInputError(
            f"the target {name} holds {column.dtype}; expected numbers, or text for classes"
        )
    values: np.ndarray = column.cast(pl.Float64).to_numpy()
    count = int((~np.isfinite(values)).sum())
    if count:
        raise InvalidInputError(
            f"the target {name} is infinite in {count:,} rows; expected finite numbers: remove "
            "these rows"
        )
    return values


def class_text(column: pl.Series) -> pl.Series:
    """The classes as text; whole numbers without a point, however they were stored."""
    if column.dtype.is_float() and (column == column.round()).all() and column.is_finite().all():
        column = column.cast(pl.Int128)
    return column.cast(pl.String)


def target_kind(rows: Rows, notes: list[str]) -> TargetKind:
    """Numbers or classes, as asked for or by what the target holds; a note says if it guessed."""
    columns, kind = rows.roles.target, rows.roles.kind
    if len(columns) > 1:
        if kind == "classification":
            raise InvalidInputError(
                f"{len(columns)} targets are named; expected one column of classes, or "
                "--kind regression"
            )
        return "regression"
    column = rows.table[columns[0]]
    if not is_plain(column.dtype):
        raise InvalidInputError(
            f"the target {shown(column.name)} holds {column.dtype}; expected numbers or classes"
        )
    if kind != "auto":
        return kind
    if column.dtype.is_integer():
        distinct = column.n_unique()
        if distinct <= min(MOST_GUESSED_CLASSES, len(column) / ROWS_A_GUESSED_CLASS):
            notes.append(
                f"The target {shown(column.name)} holds {distinct} different whole numbers and was "
                "taken as classes; --kind regression takes it as a number."
            )
            return "classification"
    classes = column.dtype in (pl.Boolean, pl.String, pl.Categorical, pl.Enum)
    return "classification" if classes else "regression"


def _classes(column: pl.Series, train_rows: int) -> tuple[str, ...]:
    name = shown(column.name)
    if column.dtype.is_temporal():
        raise InvalidInputError(f"the target {name} holds {column.dtype}; expected classes")
    # numbers in their own order, text in the alphabet's
    ordered = class_text(column.cast(pl.String) if column.dtype == pl.Categorical else column)
    by_value = column.unique().sort() if column.dtype.is_numeric() else ordered.unique().sort()
    classes = class_text(by_value).to_list()
    if len(classes) > min(MOST_CLASSES, len(column) / 2):
        raise InvalidInputError(
            f"the target {name} holds {len(classes):,} different classes in {len(column):,} rows "
            f"({listed(classes)}); expected numbers, or at most {MOST_CLASSES:,} classes with two "
            "rows each or more"
        )
    learned = ordered[:train_rows].unique()
    if len(learned) == 1:
        raise InvalidInputError(
            f"all values of the target {name} are equal ({shown(learned[0])}) in the "
            f"{train_rows:,} rows that are learned from; there is nothing to learn: hold out fewer "
            "rows, give a --test file, or another order"
        )
    return tuple(classes)
