"""Reads tables from CSV, Parquet, NPZ and NPY files, up to a size, and runs nothing in them."""

import codecs
import csv
import gzip
import io
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import polars as pl
from polars.selectors import by_name

from retarget.diagnosis.tables.frames import read_npy, read_npz
from retarget.diagnosis.tables.parquet_sizes import ParquetSizes, damage_explained
from retarget.diagnosis.tables.roles import (
    Choose,
    bytes_a_cell,
    chosen_columns,
    parsed_numbers,
    require_distinct,
    require_table_size,
    require_text_size,
    require_width,
)
from retarget.diagnosis.tables.thousands import (
    Thousands,
    may_be_grouped,
    require_thousands,
    with_decimal_commas,
)
from retarget.errors import InvalidInputError
from retarget.storage import user_path
from retarget.text import listed

START = 1 << 22  # bytes inspected before the whole file is read
CHUNK = 1 << 20
SEPARATORS = ",;\t|"
DECIMAL_COMMA_SEPARATOR = ";"  # of files in which commas may stand before decimals
MISSING = ["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "<NA>"]
# A file with more control characters than these (number and share) is not text.
MOST_CONTROL = 10
MOST_CONTROL_SHARE = 0.02
CONTROL = bytes(set(range(32)) - set(b"\t\n\r\f"))
# Other formats that people save under the name .csv.
MARKS = {
    b"PAR1": "a Parquet file",
    b"PK\x03\x04": "a zip archive (an Excel file or an .npz, perhaps)",
    b"\x1f\x8b": "packed with gzip (its name should end in .gz)",
    # Polars would unpack these without a limit
    b"x\x01": "packed with zlib",
    b"x\x9c": "packed with zlib",
    b"x\xda": "packed with zlib",
    b"\x28\xb5\x2f\xfd": "packed with zstd",
    b"\x93NUMPY": "a NumPy array",
    b"\xd0\xcf\x11\xe0": "an old Excel file",
    b"\x89PNG": "an image",
    b"%PDF": "a PDF",
    b"\x7fELF": "a program",
    b"SQLite format 3": "an SQLite database",
    codecs.BOM_UTF16_LE: "text in UTF-16 (Excel's 'Unicode text')",
    codecs.BOM_UTF16_BE: "text in UTF-16",
}
PARQUET_MARK = b"PAR1"  # at both ends of every Parquet file


def read_text(path: Path, choose: Choose, thousands: Thousands = "auto") -> pl.DataFrame:
    """Reads the chosen columns of a text file; `thousands` as in `read_table`."""
    require_text_size(str(path), path.stat().st_size)
    content = _unpacked(path) if path.suffix.lower() == ".gz" else polars_source(path)
    size = len(content) if isinstance(content, bytes) else path.stat().st_size
    with _opened(content) as file:
        start = file.read(START)
    text = decoded(path, start)
    separator, names = separator_and_names(path, text)
    require_width(str(path), len(names))
    require_distinct(names, str(path))
    chosen = choose(names)
    rows = int((text.count("\n") + 1) * size / len(start))
    require_table_size(str(path), rows, 8 * rows * len(names))
    table = _parsed(path, content, separator, names)
    if separator == DECIMAL_COMMA_SEPARATOR:
        return with_decimal_commas(table, thousands, chosen)[chosen]
    return numbers_recognized(table[chosen])


def _unpacked(path: Path) -> bytes:
    """Unpacks a gzip file; refuses it as soon as it exceeds the limit."""
    content = bytearray()
    try:
        with gzip.open(path) as file:
            while chunk := file.read(CHUNK):
                content += chunk
                require_text_size(str(path), len(content))
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInputError(
            f"{path} is not a gzip file, or is cut short or damaged ({error}); write it again"
        ) from error
    return bytes(content)


def _opened(content: Path | bytes) -> IO[bytes]:
    return io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")


def separator_and_names(path: Path, text: str) -> tuple[str, list[str]]:
    """Returns the separator of the first line (the suffix's usual one first), and the columns."""
    usual = "\t" if ".tsv" in path.suffixes[-2:] else ","
    best = usual
    header = _first_line(path, text, usual)
    for separator in SEPARATORS:
        fields = _first_line(path, text, separator) if len(header) == 1 else []
        if len(fields) > 1:
            best = separator
            header = fields
    # pandas names columns 0, 1, 2, ... if they have no names
    counted = len(header) > 1 and header == [str(number) for number in range(len(header))]
    if not counted and parsed_numbers(pl.Series(header)).null_count() == 0:
        raise InvalidInputError(
            f"{path} has no header: its first line holds numbers ({listed(header)}); expected the "
            "columns' names"
        )
    return best, [name.strip() or f"column_{number}" for number, name in enumerate(header, 1)]


def _first_line(path: Path, text: str, separator: str) -> list[str]:
    try:
        fields = next(csv.reader(io.StringIO(text, newline=""), delimiter=separator), [])
    except csv.Error as error:
        raise InvalidInputError(
            f"{path} has a first line that cannot be read ({error}); expected the columns' names, "
            "with every quote closed"
        ) from error
    if not any(field.strip() for field in fields):
        raise InvalidInputError(f"{path} starts with a blank line; expected the columns' names")
    return fields


def _parsed(path: Path, content: Path | bytes, separator: str, names: list[str]) -> pl.DataFrame:
    try:
        table = pl.read_csv(
            content,
            separator=separator,
            infer_schema_length=None,  # all rows: a type that fits only the first ones fails late
            null_values=MISSING,
            glob=False,
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        require_utf8(path, content)
        require_even_rows(path, content, separator, len(names))
        raise InvalidInputError(
            f"{path} cannot be read as a table ({str(error).splitlines()[0]}); look for a quote "
            "that is not closed"
        ) from error
    if table.width != len(names):
        raise InvalidInputError(
            f"{path} has a first line of {len(names)} or {table.width} names: it is not clear "
            "where it ends; look for a stray quote or carriage return in it"
        )
    if separator == DECIMAL_COMMA_SEPARATOR:
        table = _with_texts(table, content, separator)
    table.columns = names
    if table[names[-1]].null_count():  # Polars pads short rows
        require_even_rows(path, content, separator, len(names))
        table = table.filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines
    if table.is_empty():
        raise InvalidInputError(f"{path} holds a header and no rows; expected rows below it")
    return table


def _with_texts(table: pl.DataFrame, content: Path | bytes, separator: str) -> pl.DataFrame:
    """Reads numbers whose points may stand between thousands again, as they are written."""
    places = [place for place, column in enumerate(table) if may_be_grouped(column)]
    if not places:
        return table
    texts = pl.read_csv(
        content,
        separator=separator,
        columns=places,
        infer_schema_length=0,  # all are text
        null_values=MISSING,
        glob=False,
    )
    return table.with_columns(texts.get_columns())


def numbers_recognized(table: pl.DataFrame) -> pl.DataFrame:
    """Converts text columns that hold numbers, such as those with blanks or inf."""
    for name, dtype in table.schema.items():
        if dtype != pl.String:
            continue
        numbers = parsed_numbers(table[name])
        if numbers.null_count() == table[name].null_count():
            table = table.with_columns(numbers.alias(name))
    return table


def polars_source(path: Path) -> Path | bytes:
    """Returns the path, or the content if the path is not UTF-8, which Polars cannot open."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        return path.read_bytes()
    return path


def decoded(path: Path, start: bytes) -> str:
    """Decodes the start of a file; refuses binary files and other encodings."""
    for mark, what in MARKS.items():
        if start.startswith(mark):
            raise InvalidInputError(
                f"{path} is {what}, not a table in text; expected UTF-8 text: save it as CSV, or "
                "give it the right suffix"
            )
    require_utf8(path, start, whole=False)
    control = len(start) - len(start.translate(None, CONTROL))
    if control > max(MOST_CONTROL, MOST_CONTROL_SHARE * len(start)):
        raise InvalidInputError(
            f"{path} is binary: {control:,} of its first {len(start):,} bytes are control "
            "characters; expected a table in UTF-8 text"
        )
    text = codecs.getincrementaldecoder("utf-8-sig")().decode(start)
    if not text.strip():
        raise InvalidInputError(f"{path} is empty: it holds only blanks; expected a table")
    if "\r" in text and "\n" not in text:
        raise InvalidInputError(
            f"{path} ends its lines with carriage returns only; save it with line feeds"
        )
    return text


def require_utf8(path: Path, content: Path | bytes, whole: bool = True) -> None:
    """Refuses text that is not UTF-8, naming the line; an excerpt may end within a character."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    with _opened(content) as file:
        while True:
            chunk = file.read(CHUNK)
            try:
                decoder.decode(chunk, final=whole and not chunk)
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                raise InvalidInputError(
                    f"{path} is not text in UTF-8: line {line} holds the byte "
                    f"0x{error.object[error.start]:02x}; save it as CSV in UTF-8 (if it is a table)"
                ) from error
            if not chunk:
                return
            line += chunk.count(b"\n")


def require_even_rows(path: Path, content: Path | bytes, separator: str, width: int) -> None:
    """Refuses rows with more or fewer cells than the header, naming the first one's line."""
    with io.TextIOWrapper(_opened(content), encoding="utf-8-sig", newline="") as text:
        rows = csv.reader(text, delimiter=separator)
        try:
            for row in rows:
                if row and len(row) != width:
                    raise InvalidInputError(
                        f"{path} has {len(row)} cells in line {rows.line_num} and {width} columns "
                        "in the header; expected the same number: put quotes around cells with a "
                        "separator"
                    )
        except csv.Error:
            return  # a cell is longer than Python's reader accepts: nothing can be compared


def read_parquet(path: Path, choose: Choose) -> pl.DataFrame:
    """Reads the chosen columns of a Parquet file, if they fit in memory."""
    with path.open("rb") as file:
        start = file.read(len(PARQUET_MARK))
    if start != PARQUET_MARK:
        raise InvalidInputError(
            f"{path} is not a Parquet file: it starts with {start!r}; give it the right suffix"
        )
    sizes = ParquetSizes(path)
    with damage_explained(path):
        # without globbing: a name may contain * or ?
        lazy = pl.scan_parquet(polars_source(path), glob=False, hive_partitioning=False)
        schema = lazy.collect_schema()
        rows = int(lazy.select(pl.len()).collect().item())
    require_width(str(path), len(schema))
    names = choose(list(schema))
    require_table_size(str(path), rows, rows * sum(bytes_a_cell(schema[name]) for name in names))
    require_table_size(str(path), rows, sizes.loaded(names))
    with damage_explained(path):
        table = lazy.select(by_name(names)).collect()  # a column called * is not a pattern
    # A text stored once in the file may be repeated in every row.
    texts = table.select(pl.col(pl.String).str.len_bytes().cast(pl.Int64).sum())
    require_table_size(str(path), rows, sum(texts.row(0)) if texts.width else 0)
    return table


READERS: dict[str, Callable[[Path, Choose], pl.DataFrame]] = {
    ".csv": read_text,
    ".csv.gz": read_text,
    ".tsv": read_text,
    ".tsv.gz": read_text,
    ".parquet": read_parquet,
    ".npz": read_npz,
    ".npy": read_npy,
}


def read_table(
    path: str | Path,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    require_all: bool = True,
    thousands: Thousands = "auto",
) -> pl.DataFrame:
    """Reads the table in a file, in the file's order.

    * `.csv`, `.tsv` (and `.csv.gz`, `.tsv.gz`): UTF-8 text with a header, separated by commas,
      semicolons, bars or tabs, at most 2 GB unpacked. Empty cells, NA, N/A, NaN, null and the like
      are missing; blank lines are skipped. With semicolons, a comma in a number stands before
      decimals, and a point before decimals or between thousands: see `thousands`.
    * `.parquet`: any size, as long as the chosen columns fit.
    * `.npz`: every array of shape (n,) is one column; an array of shape (n, k) is k columns, its
      name with a number: X (n, 3) is x0, x1, x2. The names X and Y are written x and y.
    * `.npy`: an array of numbers (n, k) is k columns c0, c1, ...

    The loaded columns may take 2 GB. Nothing is unpickled.

    `columns` are the names to load (None for all), `drop` those to skip; with `require_all`, an
    unknown name is an error. `thousands` says what the point of 1.234 means in text that is
    separated by semicolons, if it may mean both: `"point"` is 1234, `"none"` a number with
    decimals. `"auto"` finds out by the other numbers, and is an error if they do not tell.
    """
    require_thousands(thousands)
    path = user_path(path)
    expected = "a table as " + ", ".join(READERS)
    if not path.exists():
        raise InvalidInputError(f"there is no file {path}; expected the path of a table")
    if not path.is_file():
        raise InvalidInputError(f"{path} is not a file; expected {expected}")
    suffix = "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:])
    reader = READERS.get(suffix.lower())
    if reader is None:
        raise InvalidInputError(
            f"{path} has the suffix {suffix!r}; expected {expected}; convert it to one of these"
        )
    if path.stat().st_size == 0:
        raise InvalidInputError(f"{path} is empty: it holds 0 bytes; expected a table")

    def choose(available: Sequence[str]) -> list[str]:
        return chosen_columns(available, columns, drop, require_all)

    return read_text(path, choose, thousands) if reader is read_text else reader(path, choose)
