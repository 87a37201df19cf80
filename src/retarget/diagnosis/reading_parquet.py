"""Tables in Parquet: only the columns that are asked for are loaded."""

from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from retarget.diagnosis.size_limits import (
    SAMPLE_ROWS,
    bytes_a_cell,
    require_table_size,
    require_width,
)
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
    try:
        # a name with * or ? in it is still one file
        lazy = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        schema = lazy.collect_schema()
        rows = int(lazy.select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _damaged(path, error) from error
    require_width(str(path), len(schema))
    names = choose(list(schema))
    chosen = lazy.select(names)
    require_table_size(str(path), rows, sum(bytes_a_cell(schema[name]) for name in names))
    try:
        sample = chosen.head(SAMPLE_ROWS).collect()
        require_table_size(str(path), rows, sample.estimated_size() / max(len(sample), 1))
        return chosen.collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: BaseException) -> InvalidInputError:
    reason = (str(error).splitlines() or [""])[0]
    return InvalidInputError(
        f"{path} is a Parquet file that is cut short or damaged ({reason}); write or copy it again"
    )
