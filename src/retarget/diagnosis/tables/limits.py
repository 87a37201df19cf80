"""How large a table may be, found out before it is loaded."""

from pathlib import Path

import polars as pl
from rich.filesize import decimal

from retarget.errors import InvalidInputError

LARGEST_TEXT = 2_000_000_000  # bytes of a CSV, unpacked
LARGEST_TABLE = 2_000_000_000  # bytes of the loaded columns
MOST_COLUMNS = 20_000
BYTES_A_TEXT = 32  # of a cell of text, more or less


def require_text_size(path: Path, size: int) -> None:
    """Refuses a text file that would take too long and too much to parse."""
    if size > LARGEST_TEXT:
        raise InvalidInputError(
            f"{path} holds {_more(size, LARGEST_TEXT)} of text, more than the {LARGEST_TEXT:,} "
            "bytes that are read; convert it to Parquet and choose columns (--column, --drop), or "
            "take a part of its rows"
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


def _more(size: int, limit: int) -> str:
    return decimal(size) if size > limit + 1 else f"more than {decimal(limit)}"
