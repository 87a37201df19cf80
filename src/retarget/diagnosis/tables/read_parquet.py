"""Tables in Parquet: only the columns that are asked for are loaded."""

from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
from polars.selectors import by_name

from retarget.diagnosis.tables.limits import (
    bytes_a_cell,
    require_table_size,
    require_width,
)
from retarget.diagnosis.tables.parquet_sizes import ParquetSizes
from retarget.diagnosis.tables.polars_source import polars_source
from retarget.errors import InvalidInputError

MARK = b"PAR1"  # at both ends of every Parquet file


def read_parquet(path: Path, choose: Callable[[Sequence[str]], list[str]]) -> pl.DataFrame:
    """The chosen columns of a Parquet file, if they fit."""
    with path.open("rb") as file:
        start = file.read(len(MARK))
    if start != MARK:
        raise InvalidInputError(
            f"{path} is no Parquet file: it starts with {start!r}; expected a name that says what "
            "it is (.csv, .npz, ...)"
        )
    sizes = ParquetSizes(path)
    try:
        # a name with * or ? in it is still one file
        lazy = pl.scan_parquet(polars_source(path), glob=False, hive_partitioning=False)
        schema = lazy.collect_schema()
        rows = int(lazy.select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _damaged(path, error) from error
    require_width(str(path), len(schema))
    names = choose(list(schema))
    chosen = lazy.select(by_name(names))  # by_name: a column called * or ^a$ is no pattern
    require_table_size(str(path), rows, sum(bytes_a_cell(schema[name]) for name in names))
    require_table_size(str(path), rows, sizes.loaded(names) / max(rows, 1))
    try:
        table = chosen.collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _damaged(path, error) from error
    # A text that is there once in the file may be there in every row.
    texts = table.select(pl.col(pl.String).str.len_bytes().cast(pl.Int64).sum())
    require_table_size(str(path), rows, sum(texts.row(0)) / max(rows, 1) if texts.width else 0)
    return table


def _damaged(path: Path, error: BaseException) -> InvalidInputError:
    reason = (str(error).splitlines() or [""])[0]
    return InvalidInputError(
        f"{path} is a Parquet file that is cut short or damaged ({reason}); write or copy it again"
    )
