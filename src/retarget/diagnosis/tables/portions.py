"""Rows that are read in portions, so that a table may be longer than the memory allows.

A source is opened again for every scan. Its rows come in one order: files in the order of their
names, the rows of a file as they stand in it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import has_magic
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.selectors import by_name

from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.tables.frames import as_table
from retarget.diagnosis.tables.parquet_sizes import ParquetSizes, damage_explained
from retarget.diagnosis.tables.read import (
    DECIMAL_COMMA_SEPARATOR,
    MISSING,
    START,
    decoded,
    numbers_recognized,
    polars_source,
    require_even_rows,
    require_utf8,
    separator_and_names,
)
from retarget.diagnosis.tables.roles import (
    bytes_a_cell,
    require_distinct,
    require_width,
)
from retarget.errors import InvalidInputError
from retarget.text import listed

# A table of more rows is never held in memory.
MOST_ROWS_HELD = 1_000_000
MOST_BYTES_HELD = 2_000_000_000
PORTION_ROWS = 100_000
LARGEST_PORTION = 200_000_000  # bytes: a wide table is read in shorter portions
FORMATS = (".parquet", ".csv", ".tsv")


@dataclass(frozen=True)
class RowPortion:
    """Some rows.

    Attributes:
        table: The rows.
        numbers: (m,) their numbers in the whole table, from 1.
        place: The file that they are from, or the whole table, for messages.
        before: How many rows of the table come before that file.
    """

    table: pl.DataFrame
    numbers: NDArray[np.int64]
    place: str
    before: int = 0

    def __len__(self) -> int:
        return len(self.table)

    def row(self, number: int) -> str:
        """Names a row, counted from 0 in this portion."""
        return f"row {self.numbers[number] - self.before:,} of {self.place}"

    def some(self, kept: NDArray[np.bool_]) -> "RowPortion":
        """Returns some of the rows."""
        return replace(self, table=self.table.filter(kept), numbers=self.numbers[kept])


def numbered(tables: Iterable[pl.DataFrame], place: str, before: int = 0) -> Iterator[RowPortion]:
    """Yields tables that follow each other in a place as portions."""
    last = before
    for table in tables:
        if len(table):
            yield RowPortion(table, np.arange(last + 1, last + len(table) + 1), place, before)
            last += len(table)


@contextmanager
def told(portion: RowPortion) -> Iterator[None]:
    """Adds to an error where the rows are, if it does not say so itself."""
    try:
        yield
    except InvalidInputError as error:
        if portion.place in str(error):
            raise
        raise InvalidInputError(
            f"from {portion.row(0)} to {portion.row(len(portion) - 1)}: {error}"
        ) from error


class RowSource(ABC):
    """Rows that can be read from their start, as often as needed.

    Attributes:
        columns: The names of the columns.
        text: Whether all cells are text, also those that hold numbers.
        notes: What is to be said about the order of the rows.
    """

    columns: list[str]
    text: bool = False
    notes: tuple[str, ...] = ()

    @abstractmethod
    def portions(self, names: Sequence[str]) -> Iterator[RowPortion]:
        """Yields the rows in portions, with these columns."""

    @abstractmethod
    def stamp(self) -> Any:
        """Returns what is different if the rows have changed; None where nobody can tell."""

    def count(self) -> int | None:
        """Returns how many rows there are, if that is known without reading them."""
        return None

    def held(self, names: Sequence[str]) -> pl.DataFrame | None:
        """Returns the whole table, or None if it is too long to be held in memory."""
        if (self.count() or 0) > MOST_ROWS_HELD:
            return None
        tables: list[pl.DataFrame] = []
        rows = 0
        size = 0.0
        for portion in self.portions(names):
            tables.append(portion.table)
            rows += len(portion)
            size += portion.table.estimated_size()
            if rows > MOST_ROWS_HELD or size > MOST_BYTES_HELD:
                return None
        whole = pl.concat(tables, how="vertical_relaxed") if tables else pl.DataFrame()
        return numbers_recognized(whole) if self.text else whole


class Files(RowSource):
    """Parquet files, or text files, with the same columns."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [_opened(path) for path in paths]
        first = self._files[0]
        self.columns = first.columns
        self.text = isinstance(first, _TextFile)
        for file in self._files[1:]:
            _require_same_columns(first, file)
        if len(paths) > 1:
            names = [path.name for path in paths]
            order = ", ".join(names) if len(names) <= 3 else f"{names[0]}, ..., {names[-1]}"
            self.notes = (f"Read {len(names):,} files in the order of their names: {order}.",)

    def portions(self, names: Sequence[str]) -> Iterator[RowPortion]:
        """Yields the rows of one file after the other."""
        last = 0
        for file in self._files:
            for portion in numbered(file.tables(names), str(file.path), before=last):
                yield portion
                last = int(portion.numbers[-1])

    def count(self) -> int | None:
        """Returns how many rows the files have, if they say so."""
        counts = [file.count() for file in self._files]
        return None if None in counts else sum(count or 0 for count in counts)

    def stamp(self) -> list[tuple[str, int, int]]:
        """Returns each file's name, size and time of change."""
        about = ((file.path, file.path.stat()) for file in self._files)
        return [(str(path.resolve()), stat.st_size, stat.st_mtime_ns) for path, stat in about]


class _File(ABC):
    """A file with columns of these names."""

    path: Path
    columns: list[str]

    @abstractmethod
    def tables(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yields its rows in pieces, with these columns."""

    def count(self) -> int | None:
        """Returns how many rows it has, if it says so."""
        return None


class _ParquetFile(_File):
    def __init__(self, path: Path) -> None:
        self.path = path
        self._sizes = ParquetSizes(path)  # a damaged file is refused before Polars opens it
        with damage_explained(path):
            self._rows = pl.scan_parquet(polars_source(path), glob=False, hive_partitioning=False)
            self._schema = self._rows.collect_schema()
        self.columns = list(self._schema)

    def count(self) -> int:
        with damage_explained(self.path):
            return int(self._rows.select(pl.len()).collect().item())

    def tables(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        size = self._sizes.largest_group(names)
        if size > MOST_BYTES_HELD:
            raise InvalidInputError(
                f"{self.path} has a row group that takes {size / 1e9:.1f} GB in memory, more than "
                f"the {MOST_BYTES_HELD / 1e9:.0f} GB allowed; write it with smaller row groups, or "
                f"choose fewer columns ({spelled('column')}, {spelled('drop')})"
            )
        cells = sum(bytes_a_cell(self._schema[name]) for name in names)
        rows = max(1, min(PORTION_ROWS, LARGEST_PORTION // cells))
        with damage_explained(self.path):
            yield from self._rows.select(by_name(*names)).collect_batches(chunk_size=rows)


class _TextFile(_File):
    """A text file, of which all cells are read as text: only whole columns tell what they hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            start = file.read(START)
        self._separator, self.columns = separator_and_names(path, decoded(path, start))
        if self._separator == DECIMAL_COMMA_SEPARATOR:
            raise InvalidInputError(
                f"{path} is separated by semicolons and is read in portions: whether its commas "
                "and points belong to numbers shows only in whole columns; write it as Parquet, "
                "or with commas between cells and points in numbers"
            )

    def tables(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        rows = pl.scan_csv(
            polars_source(self.path),
            separator=self._separator,
            infer_schema=False,
            null_values=MISSING,
            new_columns=self.columns,
            glob=False,
        )
        try:
            yield from rows.select(by_name(*names)).collect_batches(chunk_size=PORTION_ROWS)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            require_utf8(self.path, self.path)
            require_even_rows(self.path, self.path, self._separator, len(self.columns))
            raise InvalidInputError(
                f"{self.path} cannot be read as a table ({str(error).splitlines()[0]}); look for "
                "a quote that is not closed"
            ) from error


def _opened(path: Path) -> _File:
    if path.stat().st_size == 0:
        raise InvalidInputError(f"{path} is empty: it holds 0 bytes; expected a table")
    opened = _ParquetFile(path) if path.suffix.lower() == ".parquet" else _TextFile(path)
    require_width(str(path), len(opened.columns))
    require_distinct(opened.columns, str(path))
    return opened


def _require_same_columns(first: _File, other: _File) -> None:
    if set(first.columns) == set(other.columns):
        return
    missing = [name for name in first.columns if name not in other.columns]
    added = [name for name in other.columns if name not in first.columns]
    what = f"has no column {listed(missing)}" if missing else f"has the column {listed(added)}"
    raise InvalidInputError(
        f"{other.path} {what}, unlike {first.path.name}; expected files with the same columns"
    )


class Query(RowSource):
    """A Polars query, which is carried out for every scan."""

    def __init__(self, rows: pl.LazyFrame) -> None:
        self._rows = rows
        self.columns = list(rows.collect_schema())
        require_width("the table", len(self.columns))

    def portions(self, names: Sequence[str]) -> Iterator[RowPortion]:
        """Yields the rows of the query."""
        rows = self._rows.select(by_name(*names))
        yield from numbered(rows.collect_batches(chunk_size=PORTION_ROWS), "the table")

    def stamp(self) -> None:
        """Returns None: a query may read anything."""


class TableFunction(RowSource):
    """What a function returns: an iterable of tables with the same columns."""

    def __init__(self, opened: Callable[[], Iterable[Any]]) -> None:
        self._open = opened
        first = next(iter(opened()), None)
        if first is None:
            raise InvalidInputError("the table has no batches; expected rows to learn from")
        self.columns = as_table(first).columns

    def portions(self, names: Sequence[str]) -> Iterator[RowPortion]:
        """Yields the batches, in pieces if they are long."""
        yield from numbered(self._tables(names), "the table")

    def _tables(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        for number, batch in enumerate(self._open(), start=1):
            table = as_table(batch)
            if set(table.columns) != set(self.columns):
                raise InvalidInputError(
                    f"batch {number:,} of the table has the columns {listed(table.columns)}; "
                    f"expected those of the first batch, {listed(self.columns)}"
                )
            yield from table.select(by_name(*names)).iter_slices(PORTION_ROWS)

    def stamp(self) -> None:
        """Returns None: a function may return anything."""


def source_of(data: Any) -> RowSource | None:
    """Returns the source of rows that need not be in memory; None for tables that are.

    That is: a Polars query, a Dask collection of frames, a pyarrow data set, or a function without
    arguments that returns an iterable of tables each time.
    """
    if isinstance(data, pl.LazyFrame):
        return Query(data)
    library = type(data).__module__.partition(".")[0]
    if hasattr(data, "npartitions") and hasattr(data, "get_partition"):  # Dask
        count = data.npartitions
        return TableFunction(
            lambda: (data.get_partition(place).compute() for place in range(count))
        )
    if library == "pyarrow" and hasattr(data, "to_batches") and hasattr(data, "scanner"):
        return TableFunction(data.to_batches)
    if callable(data) and not hasattr(data, "columns") and not hasattr(data, "__array__"):
        return TableFunction(data)
    return None


def files_named(written: Path) -> list[Path] | None:
    """Returns the files that a folder or a pattern such as logs/*.parquet stands for, by name.

    None if it is neither: an existing file may have such a character in its name.
    """
    if written.is_dir():
        inside = sorted(path for path in written.iterdir() if path.suffix.lower() in FORMATS)
        where = f"the folder {written}"
    elif has_magic(str(written)) and not written.exists():
        start = Path(written.anchor) if written.is_absolute() else Path()
        pattern = str(written.relative_to(written.anchor) if written.is_absolute() else written)
        inside = sorted(path for path in start.glob(pattern) if path.is_file())
        where = str(written)
    else:
        return None
    expected = f"expected files that end in {', '.join(FORMATS)}"
    if not inside:
        raise InvalidInputError(f"{where} names no file of a table; {expected}")
    suffixes = sorted({path.suffix.lower() for path in inside})
    if len(suffixes) > 1 or suffixes[0] not in FORMATS:
        raise InvalidInputError(
            f"{where} holds files of {listed(suffixes)}; {expected}, all of one kind"
        )
    return inside


def may_be_long(path: Path) -> bool:
    """Whether a file has too many rows, or too large a table, to be held in memory."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS or not path.is_file():
        return False
    if suffix != ".parquet":
        return path.stat().st_size > MOST_BYTES_HELD
    return _ParquetFile(path).count() > MOST_ROWS_HELD
