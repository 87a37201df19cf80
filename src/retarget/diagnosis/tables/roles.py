"""What a table's columns are used for, how large it may be, and its rows in order."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import polars as pl
from rich.filesize import decimal

from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.stream import TargetKind
from retarget.diagnosis.tables.dates import (
    date_pattern,
    exact_moments,
    is_date,
    parsed_dates,
)
from retarget.diagnosis.tables.lags import lag_name, with_lags
from retarget.errors import InvalidInputError
from retarget.scalars import is_whole
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
            f"read; convert it to Parquet and choose columns"
            f" ({spelled('column')}, {spelled('drop')}), or use fewer rows"
        )


def require_table_size(what: str, rows: int, size: int) -> None:
    """Refuses a table of this size in bytes if it would not fit beside the computation."""
    if size > LARGEST_TABLE:
        raise InvalidInputError(
            f"{what} would take {decimal(size)} in memory ({rows:,} rows), more than the "
            f"{decimal(LARGEST_TABLE)} allowed; use fewer rows, or fewer columns"
            f" ({spelled('column')}, {spelled('drop')})"
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


def require_column(available: Sequence[str], name: str, role: str) -> None:
    """Raises an error if an option names an unknown column; suggests the nearest name."""
    if name in available:
        return
    # difflib compares with every name, which is slow beyond a few thousand
    by_small_letters = {column.lower(): column for column in reversed(available)}
    near = did_you_mean(name.lower(), list(by_small_letters)[:5000])
    hint = f"did you mean {shown(by_small_letters[near])}? " if near else ""
    raise InvalidInputError(
        f"{spelled(role)}: there is no column {shown(name)}; {hint}the columns are: "
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
    kind: Literal["auto"] | TargetKind = "auto"
    impute: Impute = "error"
    standardize: bool = True
    group_as_feature: bool = False
    allow_leak: bool = False
    predictions: Sequence[str] = ()
    predictions_after: Sequence[str] = ()
    lags: int = 0

    def __post_init__(self) -> None:
        # a single name would otherwise be taken as a sequence of letters
        for field in ("target", *LOGS):
            object.__setattr__(self, field, _as_tuple(getattr(self, field)))
        for field, known in (("kind", KINDS), ("impute", get_args(Impute))):
            if (value := getattr(self, field)) not in known:
                raise InvalidInputError(
                    f"{spelled(field)} is {value!r}; expected one of {', '.join(known)}"
                )
        if not is_whole(self.lags) or self.lags < 0:
            raise InvalidInputError(
                f"{spelled('lags')} is {self.lags!r}; expected a whole number of previous values, "
                "or 0"
            )
        if not self.target:
            raise InvalidInputError(
                f"no target is named; name the column to be learned by {spelled('target')}"
            )
        require_distinct(self.target, f"the list of targets, {spelled('target')},")
        for field in LOGS:
            columns = getattr(self, field)
            if columns and len(columns) != len(self.target):
                raise InvalidInputError(
                    f"{spelled(field)} names {len(columns)} columns for {len(self.target)} "
                    "targets; expected one for each target"
                )
        if self.time in self.target:
            raise InvalidInputError(
                f"{self.time!r} is both target and time; expected another column for the time"
            )
        if self.group_as_feature and self.group is None:
            raise InvalidInputError(
                f"{spelled('group_as_feature')} is set without a group; name it by "
                f"{spelled('group')}"
            )

    @property
    def logged(self) -> tuple[str, ...]:
        """Columns that hold a model's predictions."""
        return (*self.predictions, *self.predictions_after)

    @property
    def lag_names(self) -> tuple[str, ...]:
        """Names of the features that hold previous values of the targets."""
        steps = range(1, self.lags + 1)
        return tuple(lag_name(target, step) for target in self.target for step in steps)

    def require_in(self, columns: Sequence[str]) -> None:
        """Raises an error if the table lacks one of the named columns."""
        for role in ("target", "time", "group", *LOGS):
            for name in _as_tuple(getattr(self, role)):
                require_column(columns, name, role)

    def features(self, columns: Sequence[str]) -> list[str]:
        """Returns the columns of a table that may be features."""
        group = None if self.group_as_feature else self.group
        taken = {*self.target, *self.logged, self.time, group}
        return [name for name in columns if name not in taken]


def _as_tuple(names: str | Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


@dataclass(frozen=True)
class Rows:
    """A table's rows in stream order, and notes about them, one sentence each."""

    table: pl.DataFrame
    roles: Roles
    numbers: np.ndarray  # (n,) row numbers in the table as given, from 1
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.table)

    def as_text(self, name: str | None) -> np.ndarray | None:
        """Returns the (n,) cells of a column as text; None if no column is named."""
        return None if name is None else _cells_as_text(self.table[name])


def _cells_as_text(column: pl.Series) -> np.ndarray:
    if not is_plain(column.dtype):
        raise InvalidInputError(
            f"the column {shown(column.name)} holds {column.dtype}; expected text, numbers or dates"
        )
    # Polars does not cast a duration
    text = column.dt.to_string("iso") if column.dtype == pl.Duration else column.cast(pl.String)
    # as objects: in a fixed-width array, one long cell would widen all
    return np.array(text.fill_null(UNKNOWN_GROUP).to_list(), dtype=object)


def order_rows(table: pl.DataFrame, roles: Roles) -> Rows:
    """Sorts the rows by the time column, if any, and leaves out those without target or lags."""
    roles.require_in(table.columns)
    if table.is_empty():
        raise InvalidInputError("the table has no rows; expected rows to learn from")
    if patterns := [name for name in table.columns if name.startswith("^") and name.endswith("$")]:
        raise InvalidInputError(
            f"Polars takes the column names {listed(patterns)} as patterns; rename these columns, "
            f"or leave them out ({spelled('drop')})"
        )
    notes: list[str] = []
    numbers = np.arange(1, len(table) + 1)
    if roles.time is not None:
        time = sortable(table[roles.time])
        times = pl.DataFrame({"time": time}).with_row_index("row")
        order = times.sort("time", maintain_order=True)["row"].to_numpy()
        moved = int((numbers[order] != numbers).sum())
        if moved:
            notes.append(f"Sorted the rows by {shown(roles.time)}; {moved:,} moved.")
        rounded = _rounded_alike(time)
        if rounded:
            notes.append(
                f"{rounded:,} rows keep their order in the file: as decimal numbers, their times "
                f"in {shown(roles.time)} are the same as those of others, and perhaps only "
                "rounded. Write such times as dates or as whole numbers, which keep every digit."
            )
        table = table[order]
        numbers = numbers[order]
    table, numbers = _with_targets(table, roles, numbers, notes)
    if roles.lags:
        table, numbers = _with_lags(table, roles, numbers, notes)
    return Rows(table, roles, numbers, tuple(notes))


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
    """Parses text as numbers, whole ones exactly; null for what is not a number."""
    text = column.str.strip_chars()
    for kind in (pl.Int64, pl.Int128):  # as Polars reads numbers that have no blanks around them
        whole = text.cast(kind, strict=False)
        if whole.null_count() == column.null_count():
            return whole
    return text.cast(pl.Float64, strict=False)


def as_numbers(column: pl.Series, dates: str | None) -> np.ndarray:
    """Returns numbers, dates (as seconds) or text of either as (n,) float64; NaN if not finite.

    `dates` is the format of dates in text (`date_pattern`), None if text holds numbers.
    """
    dtype = column.dtype
    if dtype == pl.String:
        numbers = _seconds(parsed_dates(column, dates)) if dates else parsed_numbers(column)
        bad = numbers.is_null() & column.is_not_null()
        if bad.any():
            raise InvalidInputError(
                f"the column {shown(column.name)} holds the text "
                f"{shown(column.filter(bad)[0])} in {bad.sum():,} rows, and "
                f"{'dates' if dates else 'numbers'} in others; fix these cells, or leave the "
                f"column out ({spelled('drop')})"
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
            f"first is row {numbers[without].min():,}); remove these rows, or give "
            f"{spelled('impute', 'mean')}, median or zero, which leaves them out"
        )
    if without.all():
        raise InvalidInputError(f"the target is missing in every row ({counts}); no row is left")
    notes.append(f"Left out rows without a target: {without.sum():,}.")
    return table.filter(~without), numbers[~without]


def _with_lags(
    table: pl.DataFrame, roles: Roles, numbers: np.ndarray, notes: list[str]
) -> tuple[pl.DataFrame, np.ndarray]:
    """Adds previous values of the targets as columns; the first rows have none and are left out."""
    groups = None if roles.group is None else _cells_as_text(table[roles.group])
    most = len(table) if groups is None else max(Counter(groups).values())
    if roles.lags >= most:
        what = "the table has" if groups is None else "no group has more than"
        raise InvalidInputError(
            f"{spelled('lags')} is {roles.lags:,} and {what} {most:,} rows; expected fewer lags"
        )
    added = 8 * len(table) * roles.lags * len(roles.target)
    require_table_size("the table with its lags", len(table), added)
    require_distinct([*table.columns, *roles.lag_names], "the table with its lags")
    table, kept = with_lags(table, roles.target, roles.lags, groups)
    notes.append(
        f"Added lags of {listed(roles.target)} as features, {spelled('lags', roles.lags)}. Left "
        f"out rows without enough earlier rows{'' if groups is None else ' in their group'}: "
        f"{(~kept).sum():,}."
    )
    return table, numbers[kept]


def sortable(column: pl.Series) -> pl.Series:
    """Returns a time column as numbers or dates, which have an order."""
    name = shown(column.name)
    dtype = column.dtype
    if dtype == pl.String:
        column = _parsed_times(column)
    elif not (dtype.is_numeric() or dtype.is_temporal()):
        raise InvalidInputError(f"the time {name} holds {dtype}; expected dates or numbers")
    without = missing_in(column)
    if column.dtype.is_float():
        without |= column.is_infinite()
    if without.any():
        raise InvalidInputError(
            f"the time {name} is missing in {without.sum():,} of {len(column):,} rows (the first "
            f"is row {_first(without):,}); remove these rows, which cannot be put in order"
        )
    return column


def _rounded_alike(times: pl.Series) -> int:
    """How many times equal others, with more digits than decimal numbers keep for certain."""
    if not times.dtype.is_float():
        return 0
    shared = times.filter(times.is_duplicated())
    values = shared.unique().to_numpy()
    number = values.dtype.type
    kept = np.finfo(number)
    exact = 2.0 ** (kept.nmant + 1)  # up to here, whole numbers are
    doubtful = [
        value
        for value in values
        if abs(value) > exact
        or (not value.is_integer() and number(f"{value:.{kept.precision}g}") != value)
    ]
    return int(shared.is_in(doubtful).sum())


def _parsed_times(column: pl.Series) -> pl.Series:
    parsed = parsed_numbers(column)
    if parsed.null_count() == column.null_count():
        return parsed
    pattern = date_pattern(column, np.arange(1, len(column) + 1))
    if pattern is not None:
        parsed = exact_moments(column, pattern)
    bad = (~is_date(column) if pattern is None else parsed.is_null()) & column.is_not_null()
    if bad.any():
        raise InvalidInputError(
            f"the time {shown(column.name)} holds {shown(column.filter(bad)[0])} in row "
            f"{_first(bad):,}; expected dates such as 2000-01-31, 2000-01-31T12:00:00, 31 Jan 2000 "
            "or 2000-01, or numbers"
        )
    return parsed


def _first(where: pl.Series) -> int:
    return int(where.arg_max() or 0) + 1
