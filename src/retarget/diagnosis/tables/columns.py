"""How columns become numbers: learned from some rows, applied to any.

Features are numbers, moments or one feature a category; targets are standardised numbers, or one
output a class.
"""

import re
from dataclasses import dataclass

import numpy as np
import polars as pl

from retarget.diagnosis.stream import TargetKind
from retarget.diagnosis.tables.roles import Impute, Rows, is_plain, moments
from retarget.errors import InvalidInputError
from retarget.text import listed, shown

MOST_CATEGORIES = 50
MOSTLY = 0.9  # share of numbers from which on a column of text is meant to be numbers
ROUNDING = 1e-14  # spread, relative to the largest value, that is no spread
# customer_id, userId, index, row: names of columns that number or name the rows
IDENTIFIER = re.compile(r"(?:^|.*[_\W])(?:id|ids|uuid|guid|key|index|idx|row)$|.*[a-z](?:Id|ID)$")
MOST_GUESSED_CLASSES = 20  # of whole numbers
ROWS_A_GUESSED_CLASS = 10
MOST_CLASSES = 1000


@dataclass(frozen=True)
class Number:
    """A column of numbers, or of moments as seconds: (value - mean) / scale.

    Attributes:
        name: The column.
        mean: Subtracted.
        scale: Divided by.
        fill: Takes the place of what is missing.
        moments: Whether it holds dates or times.
    """

    name: str
    mean: float
    scale: float
    fill: float
    moments: bool

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The one feature."""
        return (self.name,)

    def missing(self, column: pl.Series) -> int:
        """How many cells hold no number."""
        return int(np.isnan(as_numbers(column, self.moments)).sum())

    def encode(self, column: pl.Series) -> np.ndarray:
        """(n, 1) features."""
        values = as_numbers(column, self.moments)
        values[np.isnan(values)] = self.fill
        values -= self.mean
        values /= self.scale
        return values[:, None]

    def unseen(self, column: pl.Series) -> pl.Series:
        """No number is unseen."""
        return column.clear()


@dataclass(frozen=True)
class Categories:
    """A column of few different values: a feature for each, 1 where the row has it, else 0.

    Attributes:
        name: The column.
        values: The categories.
        fill: The most frequent one, instead of what is missing.
    """

    name: str
    values: tuple[str, ...]
    fill: str

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One feature a category."""
        return tuple(f"{self.name}={value}" for value in self.values)

    def missing(self, column: pl.Series) -> int:
        """How many cells are empty."""
        return column.null_count()

    def encode(self, column: pl.Series) -> np.ndarray:
        """(n, categories) features; zeros for a category that was not learned."""
        text = column.cast(pl.String).fill_null(self.fill)
        return np.column_stack([(text == value).to_numpy() for value in self.values]).astype(float)

    def unseen(self, column: pl.Series) -> pl.Series:
        """The cells whose category was not learned."""
        text = column.cast(pl.String).drop_nulls()
        return text.filter(~text.is_in(list(self.values)))


@dataclass(frozen=True)
class Dropped:
    """A column that is not used as a feature.

    Attributes:
        name: The column.
        reason: What it holds, as the end of a sentence.
    """

    name: str
    reason: str


def learn_column(
    column: pl.Series, impute: Impute, standardise: bool
) -> Number | Categories | Dropped:
    """What a column is, judged by the rows that are learned from."""
    name, dtype = column.name, column.dtype
    if not is_plain(dtype):
        return Dropped(name, "hold lists, bytes or objects")
    present = column.drop_nulls()
    if len(present) == 0:
        return Dropped(name, "hold nothing in the rows that are learned from")
    if dtype == pl.Boolean or dtype in (pl.Categorical, pl.Enum):
        return _learn_categories(column)
    if dtype == pl.String:
        if _holds_numbers(present):
            return _learn_numbers(column, impute, standardise, as_moments=False)
        if moments(present).null_count() == 0:
            return _learn_numbers(column, impute, standardise, as_moments=True)
        return _learn_categories(column)
    return _learn_numbers(column, impute, standardise, as_moments=dtype.is_temporal())


def as_numbers(column: pl.Series, as_moments: bool) -> np.ndarray:
    """(n,) a copy as float64; NaN where missing or infinite.

    Args:
        column: Numbers, moments (which become seconds), or text.
        as_moments: Whether text is moments; else it is numbers.
    """
    dtype = column.dtype
    if dtype == pl.String:
        if as_moments:
            numbers = _seconds(moments(column))
        else:
            numbers = column.str.strip_chars().cast(pl.Float64, strict=False)
        bad = numbers.is_null() & column.is_not_null()
        if bad.any():
            raise InvalidInputError(
                f"the column {shown(column.name)} holds the text "
                f"{shown(column.filter(bad)[0])} in {bad.sum():,} rows, and "
                f"{'dates' if as_moments else 'numbers'} in others; mend these cells, or leave it "
                "out (--drop)"
            )
        column = numbers
    elif dtype.is_temporal():
        column = _seconds(column)
    elif not (dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)):
        raise InvalidInputError(
            f"the column {shown(column.name)} holds {dtype}; expected numbers, as in the rows that "
            "were learned from"
        )
    values: np.ndarray = column.cast(pl.Float64).fill_null(np.nan).to_numpy().copy()
    values[np.isinf(values)] = np.nan
    return values


def _seconds(column: pl.Series) -> pl.Series:
    if column.dtype == pl.Date:
        column = column.cast(pl.Datetime("us"))
    if column.dtype == pl.Time:
        return column.to_physical() / 1e9
    per_second = {"ms": 1e3, "us": 1e6, "ns": 1e9}[getattr(column.dtype, "time_unit", None) or "us"]
    return column.to_physical() / per_second


def _holds_numbers(present: pl.Series) -> bool:
    """Whether text is numbers; text among many numbers is refused, since it is a mistake."""
    numbers = present.str.strip_chars().cast(pl.Float64, strict=False)
    share = 1 - numbers.null_count() / len(present)
    if MOSTLY <= share < 1:
        others = present.filter(numbers.is_null())
        raise InvalidInputError(
            f"the column {shown(present.name)} holds numbers, and in {len(others):,} rows text "
            f"({listed(others.unique(maintain_order=True).to_list())}); leave these cells empty if "
            "they are missing, or leave the column out (--drop)"
        )
    return share == 1


def _learn_categories(column: pl.Series) -> Categories | Dropped:
    # under a name of our own: the user's may be "count"
    text = column.cast(pl.String).drop_nulls().alias("value")
    counts = text.value_counts(sort=True)
    if len(counts) == 1:
        return Dropped(column.name, "hold one value only")
    if len(counts) > min(MOST_CATEGORIES, len(column) / 2):
        return Dropped(column.name, "hold text, or too many different categories")
    values = tuple(sorted(counts["value"].to_list()))
    # of equally frequent ones the first in the alphabet, whatever the order of the counts
    most = counts["count"].max()
    fill = min(counts.filter(pl.col("count") == most)["value"].to_list())
    return Categories(column.name, values, fill)


def _learn_numbers(
    column: pl.Series, impute: Impute, standardise: bool, as_moments: bool
) -> Number | Dropped:
    values = as_numbers(column, as_moments)
    values = values[~np.isnan(values)]
    if len(values) == 0:
        return Dropped(column.name, "hold nothing in the rows that are learned from")
    if column.dtype.is_integer() and _is_identifier(column):
        return Dropped(column.name, "number the rows (rename them if they are features)")
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = float(values.mean()), float(values.std())
    if not np.isfinite(mean) or not np.isfinite(scale):
        raise InvalidInputError(
            f"the column {shown(column.name)} holds numbers too large to compute with (up to "
            f"{np.abs(values).max():.3g}); rescale it, or leave it out (--drop)"
        )
    if scale <= ROUNDING * np.abs(values).max():
        return Dropped(column.name, "hold one value only")
    fill = {"median": float(np.median(values)), "zero": 0.0}.get(impute, mean)
    if not standardise:
        mean, scale = 0.0, 1.0
    return Number(column.name, mean, scale, fill, as_moments)


def _is_identifier(column: pl.Series) -> bool:
    unnamed = re.fullmatch(r"column_\d+", column.name)
    return bool(unnamed or IDENTIFIER.fullmatch(column.name)) and column.is_unique().all()


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
            InvalidInputError: There is a class that was not learned, or what is no number.
        """
        if self.kind == "regression":
            numbers = [target_numbers(table[name]) for name in self.columns]
            return np.asarray((np.column_stack(numbers) - self.means) / self.scales)
        labels = class_text(table[self.columns[0]])
        unknown = labels.filter(~labels.is_in(list(self.names)))
        if len(unknown):
            raise InvalidInputError(
                f"the target {shown(self.columns[0])} holds classes that the stream does not have "
                f"({listed(unknown.unique(maintain_order=True).to_list())}, in {len(unknown):,} "
                "rows); remove these rows from the test set"
            )
        codes = labels.replace_strict(
            list(self.names), list(range(len(self.names))), return_dtype=pl.Int64
        )
        return np.asarray(np.eye(len(self.names))[codes.to_numpy()])


def learn_targets(rows: Rows, train_rows: int, notes: list[str]) -> TargetColumns:
    """What the targets are: kind and classes by all rows, means and scales by the first ones.

    Raises:
        InvalidInputError: They are neither numbers nor classes, not finite, or all equal.
    """
    columns = rows.roles.target
    if _kind(rows, notes) == "classification":
        names = _classes(rows.table[columns[0]], train_rows)
        count = len(names)
        return TargetColumns("classification", columns, names, np.zeros(count), np.ones(count))
    values = np.column_stack([target_numbers(rows.table[name]) for name in columns])[:train_rows]
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


def target_numbers(column: pl.Series) -> np.ndarray:
    """(n,) a target as finite float64."""
    name = shown(column.name)
    if column.dtype == pl.String:
        numbers = column.str.strip_chars().cast(pl.Float64, strict=False)
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
    values = column.cast(pl.Float64).to_numpy()
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        raise InvalidInputError(
            f"the target {name} is infinite in {count:,} rows; expected finite numbers: remove "
            "these rows"
        )
    return np.asarray(values)


def class_text(column: pl.Series) -> pl.Series:
    """The classes as text; whole numbers without a point, however they were stored."""
    if column.dtype.is_float() and (column == column.round()).all() and column.is_finite().all():
        column = column.cast(pl.Int128)
    return column.cast(pl.String)


def _kind(rows: Rows, notes: list[str]) -> TargetKind:
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
