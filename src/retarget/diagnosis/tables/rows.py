"""The rows of a table that can be learned from, in the order in which they were."""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from retarget.diagnosis.tables.names import shown
from retarget.diagnosis.tables.roles import Roles
from retarget.errors import InvalidInputError

UNKNOWN_GROUP = "(missing)"


@dataclass(frozen=True)
class Rows:
    """A table's rows in stream order.

    Attributes:
        table: The columns, rows in order.
        roles: What they are for.
        numbers: (n,) each row's number in the table as it was, from 0.
        notes: What was done, a sentence each.
    """

    table: pl.DataFrame
    roles: Roles
    numbers: np.ndarray
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.table)

    @property
    def groups(self) -> np.ndarray | None:
        """(n,) each row's group as text, if there are groups."""
        return None if self.roles.group is None else as_text(self.table[self.roles.group])

    @property
    def times(self) -> np.ndarray | None:
        """(n,) each row's time as text, if there are times."""
        return None if self.roles.time is None else as_text(self.table[self.roles.time])


def order_rows(table: pl.DataFrame, roles: Roles) -> Rows:
    """Sorts the rows by time, if there is one; those of the same time stay as they were.

    Rows without a target are left out, where missing values are to be filled in.

    Raises:
        InvalidInputError: A column is not there, times are missing or cannot be ordered, or
            targets are missing.
    """
    roles.require_in(table.columns)
    if table.is_empty():
        raise InvalidInputError("the table is empty: it has no rows; expected rows to learn from")
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
    """The same for rows that are not learned from: these need neither time nor group."""
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
        ),
    )


def as_text(column: pl.Series) -> np.ndarray:
    """A column as text; as objects, since one long cell would make all of them long."""
    if not is_plain(column.dtype):
        raise InvalidInputError(
            f"the column {shown(column.name)} holds {column.dtype}; expected text, numbers or dates"
        )
    # Polars does not cast a duration
    text = column.dt.to_string("iso") if column.dtype == pl.Duration else column.cast(pl.String)
    return np.array(text.fill_null(UNKNOWN_GROUP).to_list(), dtype=object)


def is_plain(dtype: pl.DataType) -> bool:
    """Whether cells are numbers, moments, text, categories or nothing, not bytes or lists."""
    others = (pl.String, pl.Boolean, pl.Categorical, pl.Enum, pl.Null)
    return dtype.is_numeric() or dtype.is_temporal() or dtype in others


def missing_in(column: pl.Series) -> pl.Series:
    """Where a column holds nothing: null, or not a number."""
    return (column.fill_nan(None) if column.dtype.is_float() else column).is_null()


def moments(column: pl.Series) -> pl.Series:
    """Text as moments, in UTC where it names no zone; null where it is no ISO date."""
    text = column.str.strip_chars()
    # else Polars would guess: 01/02/2026 is not a January everywhere
    iso = text.set(~text.str.contains(r"^\d{4}-\d{2}-\d{2}").fill_null(True), None)
    return iso.str.to_datetime(strict=False, time_zone="UTC")


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
        raise InvalidInputError(f"the target is missing in every row ({counts}); nothing is left")
    notes.append(f"{without.sum():,} rows without a target were left out.")
    return table.filter(~without), numbers[~without]


def _sortable(column: pl.Series) -> pl.Series:
    """Times as numbers or dates."""
    name, dtype = shown(column.name), column.dtype
    if dtype == pl.String:
        numbers = column.str.strip_chars().cast(pl.Float64, strict=False)
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
            f"is row {row}, counted from 0): these have no place in the order; remove them"
        )
    return column
