"""What a table's columns are used for, how large it may be, and its rows in order."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import polars as pl
from rich.filesize import decimal

from retarget.diagnosis.stream import TargetKind
from retarget.errors import InvalidInputError
from retarget.text import did_you_mean, listed, shown

LARGEST_TEXT = 2_000_000_000  # bytes of a CSV, unpacked
LARGEST_TABLE = 2_000_000_000  # bytes of the loaded columns
MOST_COLUMNS = 20_000
BYTES_A_TEXT = 32  # a rough estimate for a cell of text
MOST_COLUMNS_SHOWN = 40
# Chooses the columns to load from those available.
Choose = Callable[[Sequence[str]], list[str]]


def require_text_size(what: str, size: int) -> None:
    """Refuses a text file that would take too much time and memory to parse."""
    if size > LARGEST_TEXT:
        raise InvalidInputError(
            f"{what} holds {decimal(size)} of text, more than the {LARGEST_TEXT:,} bytes that are "
            "read; convert it to Parquet and choose columns (--column, --drop), or use fewer rows"
        )


def require_table_size(what: str, rows: int, row_bytes: float) -> None:
    """Refuses a table that would not fit beside the computation."""
    size = int(rows * row_bytes)
    if size > LARGEST_TABLE:
        raise InvalidInputError(
            f"{what} would take {decimal(size)} in memory ({rows:,} rows), more than the "
            f"{decimal(LARGEST_TABLE)} allowed; use fewer rows, or fewer columns (--column, --drop)"
        )


def require_width(what: str, columns: int) -> None:
    """Refuses a table with too many columns."""
    if columns > MOST_COLUMNS:
        raise InvalidInputError(
            f"{what} has {columns:,} columns, more than the {MOST_COLUMNS:,} allowed; rows are "
            "samples: transpose it if they are not, or use fewer features"
        )


def bytes_a_cell(dtype: pl.DataType) -> int:
    """Estimates a cell's memory: at least eight bytes, since it becomes a float64."""
    if dtype.is_nested() or dtype in (pl.String, pl.Binary, pl.Object):
        return BYTES_A_TEXT
    return 16 if dtype.is_decimal() else 8


def require_column(available: Sequence[str], name: str, option: str) -> None:
    """Raises an error if an option names an unknown column; suggests the nearest name."""
    if name in available:
        return
    # difflib compares with every name, which is slow beyond a few thousand
    by_small_letters = {column.lower(): column for column in reversed(available)}
    near = did_you_mean(name.lower(), list(by_small_letters)[:5000])
    hint = f"did you mean {shown(by_small_letters[near])}? " if near else ""
    raise InvalidInputError(
        f"{option}: there is no column {shown(name)}; {hint}the columns are: "
        f"{listed(available, MOST_COLUMNS_SHOWN)}"
    )


def require_distinct(names: Iterable[str], what: str) -> None:
    """Refuses a table in which two columns have the same name."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InvalidInputError(
            f"{what} has more than one column named {listed(repeated)}; give each its own name"
        )


def chosen_columns(
    available: Sequence[str], columns: Sequence[str] | None, drop: Sequence[str], require_all: bool
) -> list[str]:
    """Returns the columns to load, in the table's order: the named ones, or all, less `drop`."""
    if require_all:
        for name in columns or ():
            require_column(available, name, "column")
        for name in drop:
            require_column(available, name, "drop")
    wanted = set(available if columns is None else columns) - set(drop)
    return [name for name in available if name in wanted]


Impute = Literal["error", "mean", "median", "zero"]
Kind = Literal["auto"] | TargetKind
KINDS = ("auto", *get_args(TargetKind))
UNKNOWN_GROUP = "(missing)"
LOGS = ("predictions", "predictions_after")


@dataclass(frozen=True)
class Roles:
    """What each column is used for, as `retarget.diagnose` describes it; the rest are features.

    A missing category becomes the most frequent one. With any `impute` but "error", rows without a
    target are left out.
    """

    target: tuple[str, ...]
    time: str | None = None
    group: str | None = None
    column: Sequence[str] = ()
    drop: Sequence[str] = ()
    kind: Kind = "auto"
    impute: Impute = "error"
    standardise: bool = True
    group_as_feature: bool = False
    allow_leak: bool = False
    predictions: Sequence[str] = ()
    predictions_after: Sequence[str] = ()

    def __post_init__(self) -> None:
        # a single name would otherwise be taken as a sequence of letters
        for field in ("target", "column", "drop", *LOGS):
            object.__setattr__(self, field, _as_tuple(getattr(self, field)))
        for field, known in (("kind", KINDS), ("impute", get_args(Impute))):
            if (value := getattr(self, field)) not in known:
                raise InvalidInputError(f"{field} is {value!r}; expected one of {', '.join(known)}")
        if not self.target:
            raise InvalidInputError("no target is named; name the column to be learned (--target)")
        require_distinct(self.target, "the list of targets (--target)")
        for field in LOGS:
            columns = getattr(self, field)
            if columns and len(columns) != len(self.target):
                raise InvalidInputError(
                    f"{field} names {len(columns)} columns for {len(self.target)} targets; "
                    "expected one for each target"
                )
        if self.time in self.target:
            raise InvalidInputError(
                f"{self.time!r} is both target and time; expected another column for the time"
            )
        if self.group_as_feature and self.group is None:
            raise InvalidInputError(
                "group_as_feature (--group-as-feature) is set without a group; name it (--group)"
            )
        if both := {*self.target, self.time, self.group, *self.column}.intersection(self.drop):
            raise InvalidInputError(
                f"{both.pop()!r} is dropped and also used as target, time, group or feature; drop "
                "it or use it"
            )
        if both := {*self.target, self.time}.intersection(self.column):
            raise InvalidInputError(
                f"{both.pop()!r} is chosen as a feature (column) and used as target or time; "
                "choose one"
            )
        if self.group in self.column and not self.group_as_feature:
            raise InvalidInputError(
                f"{self.group!r} is chosen as a feature (column) and is the group, which is not "
                "used as a feature unless group_as_feature (--group-as-feature) is set"
            )

    @property
    def loaded(self) -> list[str] | None:
        """The columns to load from a file; None for all of them."""
        if not self.column:
            return None
        beside = (*_as_tuple(self.time), *_as_tuple(self.group), *self.logged)
        return [*self.column, *self.target, *beside]

    @property
    def logged(self) -> tuple[str, ...]:
        """Columns that hold a model's predictions."""
        return (*self.predictions, *self.predictions_after)

    def require_in(self, columns: Sequence[str]) -> None:
        """Raises an error if the table lacks one of the named columns."""
        for option in ("target", "column", "drop", "time", "group", *LOGS):
            for name in _as_tuple(getattr(self, option)):
                require_column(columns, name, option)

    def features(self, columns: Sequence[str]) -> list[str]:
        """Returns the columns of a table that may be features."""
        group = None if self.group_as_feature else self.group
        taken = {*self.target, *self.drop, *self.logged, self.time, group}
        wanted = {*self.column, self.group} if self.column else set(columns)
        return [name for name in columns if name in wanted - taken]


def _as_tuple(names: str | Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


@dataclass(frozen=True)
class Rows:
    """A table's rows in stream order, and notes about them, one sentence each."""

    table: pl.DataFrame
    roles: Roles
    numbers: np.ndarray  # (n,) row numbers in the table as given, from 0
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.table)

    def as_text(self, name: str | None) -> np.ndarray | None:
        """Returns the (n,) cells of a column as text; None if no column is named."""
        if name is None:
            return None
        column = self.table[name]
        if not is_plain(column.dtype):
            raise InvalidInputError(
                f"the column {shown(name)} holds {column.dtype}; expected text, numbers or dates"
            )
        # Polars does not cast a duration
        text = column.dt.to_string("iso") if column.dtype == pl.Duration else column.cast(pl.String)
        # as objects: in a fixed-width array, one long cell would widen all
        return np.array(text.fill_null(UNKNOWN_GROUP).to_list(), dtype=object)


def order_rows(table: pl.DataFrame, roles: Roles) -> Rows:
    """Sorts the rows by the time column, if any, and leaves out those without a target."""
    roles.require_in(table.columns)
    if table.is_empty():
        raise InvalidInputError("the table has no rows; expected rows to learn from")
    notes: list[str] = []
    numbers = np.arange(len(table))
    if roles.time is not None:
        times = pl.DataFrame({"time": _sortable(table[roles.time])}).with_row_index("row")
        order = times.sort("time", maintain_order=True)["row"].to_numpy()
        moved = int((order != numbers).sum())
        if moved:
            notes.append(f"The rows were sorted by {shown(roles.time)}: {moved:,} were moved.")
        table, numbers = table[order], order
    table, numbers = _with_targets(table, roles, numbers, notes)
    return Rows(table, roles, np.asarray(numbers, dtype=np.int64), tuple(notes))


def order_test_rows(table: pl.DataFrame, roles: Roles) -> Rows:
    """Like `order_rows`, for a test set, which needs neither time nor group."""
    grouped = roles.group in table.columns
    return order_rows(
        table,
        replace(
            roles,
            time=roles.time if roles.time in table.columns else None,
            group=roles.group if grouped else None,
            group_as_feature=roles.group_as_feature and grouped,
            column=(),
            drop=(),
            predictions=(),
            predictions_after=(),
        ),
    )


def is_plain(dtype: pl.DataType) -> bool:
    """Whether cells are numbers, dates, text or categories, rather than bytes or lists."""
    others = (pl.String, pl.Boolean, pl.Categorical, pl.Enum, pl.Null)
    return dtype.is_numeric() or dtype.is_temporal() or dtype in others


def missing_in(column: pl.Series) -> pl.Series:
    """Whether each cell is missing: null, or not a number."""
    return (column.fill_nan(None) if column.dtype.is_float() else column).is_null()


def parsed_numbers(column: pl.Series) -> pl.Series:
    """Parses text as numbers; null for what is not a number."""
    return column.str.strip_chars().cast(pl.Float64, strict=False)


def moments(column: pl.Series) -> pl.Series:
    """Parses text as ISO dates, in UTC unless a zone is given; null for what is not a date."""
    text = column.str.strip_chars()
    # Polars would guess the order of 01/02/2026, which differs by country
    iso = text.set(~text.str.contains(r"^\d{4}-\d{2}-\d{2}").fill_null(True), None)
    return iso.str.to_datetime(strict=False, time_zone="UTC")


def as_numbers(column: pl.Series, as_moments: bool) -> np.ndarray:
    """Returns numbers, dates (as seconds) or text of either as (n,) float64; NaN if not finite."""
    dtype = column.dtype
    if dtype == pl.String:
        numbers = _seconds(moments(column)) if as_moments else parsed_numbers(column)
        bad = numbers.is_null() & column.is_not_null()
        if bad.any():
            raise InvalidInputError(
                f"the column {shown(column.name)} holds the text "
                f"{shown(column.filter(bad)[0])} in {bad.sum():,} rows, and "
                f"{'dates' if as_moments else 'numbers'} in others; fix these cells, or leave the "
                "column out (--drop)"
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
    unit = "ns" if column.dtype == pl.Time else getattr(column.dtype, "time_unit", None) or "us"
    return column.to_physical() / {"ms": 1e3, "us": 1e6, "ns": 1e9}[unit]


def _with_targets(
    table: pl.DataFrame, roles: Roles, numbers: np.ndarray, notes: list[str]
) -> tuple[pl.DataFrame, np.ndarray]:
    gone = {name: missing_in(table[name]).to_numpy() for name in roles.target}
    without = np.any(list(gone.values()), axis=0)
    if not without.any():
        return table, numbers
    counts = ", ".join(f"{shown(name)} in {where.sum():,}" for name, where in gone.items())
    if roles.impute == "error":
        raise InvalidInputError(
            f"the target is missing in {without.sum():,} of {len(table):,} rows ({counts}; the "
            f"first is row {numbers[without].min()}, counted from 0); remove these rows, or give "
            "--impute mean (median, zero), which leaves them out"
        )
    if without.all():
        raise InvalidInputError(f"the target is missing in every row ({counts}); no row is left")
    notes.append(f"{without.sum():,} rows without a target were left out.")
    return table.filter(~without), numbers[~without]


def _sortable(column: pl.Series) -> pl.Series:
    """Returns a time column as numbers or dates."""
    name, dtype = shown(column.name), column.dtype
    if dtype == pl.String:
        numbers = parsed_numbers(column)
        parsed = numbers if numbers.null_count() == column.null_count() else moments(column)
        bad = parsed.is_null() & column.is_not_null()
        if bad.any():
            row = int(bad.arg_max() or 0)
            raise InvalidInputError(
                f"the time {name} holds {shown(column[row])} in row {row} (counted from 0); "
                "expected dates like 2026-01-31 or 2026-01-31T12:00:00, or numbers"
            )
        column = parsed
    elif not (dtype.is_numeric() or dtype.is_temporal()):
        raise InvalidInputError(f"the time {name} holds {dtype}; expected dates or numbers")
    without = missing_in(column)
    if dtype.is_float():
        without |= column.is_infinite()
    if without.any():
        row = int(without.arg_max() or 0)
        raise InvalidInputError(
            f"the time {name} is missing in {without.sum():,} of {len(column):,} rows (the first "
            f"is row {row}, counted from 0); remove these rows, which cannot be put in order"
        )
    return column
