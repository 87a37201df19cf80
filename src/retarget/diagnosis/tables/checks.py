"""What every table must fulfil: how large it may be, and which columns it must have."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import polars as pl
from rich.filesize import decimal

from retarget.errors import InvalidInputError
from retarget.text import did_you_mean, listed, shown

LARGEST_TEXT = 2_000_000_000  # bytes of a CSV, unpacked
LARGEST_TABLE = 2_000_000_000  # bytes of the loaded columns
MOST_COLUMNS = 20_000
BYTES_A_TEXT = 32  # of a cell of text, more or less
MOST_COLUMNS_SHOWN = 40
# Gives the columns to load, of those that there are.
Choose = Callable[[Sequence[str]], list[str]]


def require_text_size(what: str, size: int) -> None:
    """Refuses a text file that would take too long and too much to parse."""
    if size > LARGEST_TEXT:
        raise InvalidInputError(
            f"{what} holds {decimal(size)} of text, more than the {LARGEST_TEXT:,} bytes that are "
            "read; convert it to Parquet and choose columns (--column, --drop), or take a part of "
            "its rows"
        )


def require_table_size(what: str, rows: int, row_bytes: float) -> None:
    """Refuses a table that would not fit beside the computation."""
    size = int(rows * row_bytes)
    if size > LARGEST_TABLE:
        raise InvalidInputError(
            f"{what} would take {decimal(size)} in memory ({rows:,} rows), more than the "
            f"{decimal(LARGEST_TABLE)} that are loaded; choose fewer columns (--column, --drop), "
            "or take a part of the rows"
        )


def require_width(what: str, columns: int) -> None:
    """Refuses a table with more columns than anybody can mean."""
    if columns > MOST_COLUMNS:
        raise InvalidInputError(
            f"{what} has {columns:,} columns, more than the {MOST_COLUMNS:,} that are read; rows "
            "are samples: transpose it, or reduce the features first"
        )


def bytes_a_cell(dtype: pl.DataType) -> int:
    """What a cell takes in memory, at least eight bytes: it becomes a float64."""
    if dtype.is_nested() or dtype in (pl.String, pl.Binary, pl.Object):
        return BYTES_A_TEXT
    return 16 if dtype.is_decimal() else 8


def require_column(available: Sequence[str], name: str, option: str) -> None:
    """Refuses a name that no column has, and suggests the nearest one.

    Args:
        available: The columns.
        name: The one asked for.
        option: Which option asked for it, for the message.
    """
    if name in available:
        return
    # difflib compares with every name: beyond some thousands the list itself is of no help
    by_small_letters = {column.lower(): column for column in reversed(available)}
    near = did_you_mean(name.lower(), list(by_small_letters)[:5000])
    hint = f"did you mean {shown(by_small_letters[near])}? " if near else ""
    raise InvalidInputError(
        f"{option}: there is no column {shown(name)}; {hint}the columns are: "
        f"{listed(available, MOST_COLUMNS_SHOWN)}"
    )


def require_distinct(names: Iterable[str], what: str) -> None:
    """Refuses a table in which a name means two columns."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InvalidInputError(
            f"{what} has more than one column named {listed(repeated)}; give each its own name"
        )


def chosen_columns(
    available: Sequence[str],
    columns: Sequence[str] | None,
    drop: Sequence[str],
    require_all: bool,
) -> list[str]:
    """The columns to load, in the table's order: those asked for (or all), but for the dropped."""
    if require_all:
        for name in columns or ():
            require_column(available, name, "column")
        for name in drop:
            require_column(available, name, "drop")
    wanted = set(available if columns is None else columns) - set(drop)
    return [name for name in available if name in wanted]
