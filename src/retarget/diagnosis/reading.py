"""Tables of the user's, from files."""

from pathlib import Path

import polars as pl

from retarget.errors import InvalidInputError


def read_table(path: Path) -> pl.DataFrame:
    """The table in a CSV or Parquet file."""
    if not path.is_file():
        raise InvalidInputError(f"there is no file {path}; check the path")
    return pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)
