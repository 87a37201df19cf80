"""Tables in text: CSV and TSV, also packed with gzip. Bounded, in UTF-8, with a header."""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import polars as pl

from retarget.diagnosis.tables.limits import require_table_size, require_text_size, require_width
from retarget.diagnosis.tables.names import listed, require_distinct
from retarget.diagnosis.tables.polars_source import polars_source
from retarget.diagnosis.tables.text_checks import decoded, require_even_rows, require_utf8
from retarget.errors import InvalidInputError

START = 1 << 22  # bytes looked at before the whole is read
CHUNK = 1 << 20
SEPARATORS = ",;\t|"
MISSING = ["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "<NA>"]


def read_text(path: Path, choose: Callable[[Sequence[str]], list[str]]) -> pl.DataFrame:
    """The chosen columns of a text file."""
    require_text_size(path, path.stat().st_size)
    content = _unpacked(path) if path.suffix.lower() == ".gz" else polars_source(path)
    size = len(content) if isinstance(content, bytes) else path.stat().st_size
    with _opened(content) as file:
        start = file.read(START)
    text = decoded(path, start)
    separator, header = _header(path, text)
    names = [name.strip() or f"column_{number}" for number, name in enumerate(header, 1)]
    require_width(str(path), len(names))
    require_distinct(names, str(path))
    chosen = choose(names)
    rows = int((text.count("\n") + 1) * size / len(start))
    require_table_size(str(path), rows, 8 * len(names))
    table = _parsed(path, content, separator, names)[chosen]
    return _numbers_recognised(table, decimal_comma=separator == ";")


def _unpacked(path: Path) -> bytes:
    """The content of a gzip file; refused as soon as it turns out larger than is read."""
    content = bytearray()
    try:
        with gzip.open(path) as file:
            while chunk := file.read(CHUNK):
                content += chunk
                require_text_size(path, len(content))
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInputError(
            f"{path} is not packed with gzip, cut short or damaged ({error}); write it again"
        ) from error
    return bytes(content)


def _opened(content: Path | bytes) -> IO[bytes]:
    return io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")


def _header(path: Path, text: str) -> tuple[str, list[str]]:
    """The separator that makes most of the first line, the usual one first, and its fields."""
    usual = "\t" if ".tsv" in path.suffixes[-2:] else ","
    best, header = usual, _first_line(path, text, usual)
    for separator in SEPARATORS:
        fields = _first_line(path, text, separator) if len(header) == 1 else []
        if len(fields) > 1:
            best, header = separator, fields
    if all(_is_number(name) for name in header) and not _is_count(header):
        raise InvalidInputError(
            f"{path} has no header: its first line holds numbers ({listed(header)}); put the "
            "names of the columns there"
        )
    return best, header


def _first_line(path: Path, text: str, separator: str) -> list[str]:
    try:
        fields = next(csv.reader(io.StringIO(text, newline=""), delimiter=separator), [])
    except csv.Error as error:
        raise InvalidInputError(
            f"{path} has a first line that cannot be read ({error}); expected the names of the "
            "columns, quotes closed"
        ) from error
    if not any(field.strip() for field in fields):
        raise InvalidInputError(f"{path} starts with a blank line; expected the columns' names")
    return fields


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_count(header: list[str]) -> bool:
    """Whether the names are 0, 1, 2, ...: what pandas calls columns that have no names."""
    return len(header) > 1 and header == [str(number) for number in range(len(header))]


def _parsed(path: Path, content: Path | bytes, separator: str, names: list[str]) -> pl.DataFrame:
    try:
        table = pl.read_csv(
            content,
            separator=separator,
            infer_schema_length=None,  # all of it: a type that fits only the first rows fails late
            null_values=MISSING,
            glob=False,
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        with _opened(content) as file:
            require_utf8(path, file)
        with _opened(content) as file:
            require_even_rows(path, file, separator, len(names))
        raise InvalidInputError(
            f"{path} cannot be read as a table ({str(error).splitlines()[0]}); look for a quote "
            "that is not closed"
        ) from error
    if table.width != len(names):
        raise InvalidInputError(
            f"{path} has a first line with {len(names)} names, or {table.width}: it is not clear "
            "where it ends; look for a quote or a carriage return in it"
        )
    table.columns = names
    if table[names[-1]].null_count():  # Polars fills short rows up
        with _opened(content) as file:
            require_even_rows(path, file, separator, len(names))
        table = table.filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines
    if table.is_empty():
        raise InvalidInputError(f"{path} holds a header and no rows; expected rows below it")
    return table


def _numbers_recognised(table: pl.DataFrame, decimal_comma: bool) -> pl.DataFrame:
    """Columns of text that are numbers after all: with inf among them, or with decimal commas."""
    for name, dtype in table.schema.items():
        if dtype != pl.String:
            continue
        column = table[name]
        text = column.str.replace(",", ".", literal=True) if decimal_comma else column
        numbers = text.str.strip_chars().cast(pl.Float64, strict=False)
        if numbers.null_count() == column.null_count():
            table = table.with_columns(numbers.alias(name))
    return table
