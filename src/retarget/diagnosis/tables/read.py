"""Tables from files: CSV, Parquet, and NumPy's NPZ and NPY. Bounded, and nothing in them is run."""

from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from retarget.diagnosis.tables.arrays import read_npy, read_npz
from retarget.diagnosis.tables.names import chosen_columns
from retarget.diagnosis.tables.read_parquet import read_parquet
from retarget.diagnosis.tables.read_text import read_text
from retarget.errors import InvalidInputError
from retarget.storage import user_path

# Gives the columns to load, of those that there are.
Choose = Callable[[Sequence[str]], list[str]]
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
) -> pl.DataFrame:
    """The table in a file, in the file's order.

    * `.csv`, `.tsv` (and `.csv.gz`, `.tsv.gz`): UTF-8 text with a header, separated by commas,
      semicolons, bars or tabs, at most 2 GB unpacked. Empty cells, NA, N/A, NaN, null and the like
      are missing; blank lines are no rows.
    * `.parquet`: any size, as long as the chosen columns fit.
    * `.npz`: every array of shape (n,) is a column of its name; one of shape (n, k) is k columns,
      its name with a number: X (n, 3) is x0, x1, x2. The names X and Y are written x and y.
    * `.npy`: an array of numbers (n, k) is k columns c0, c1, ...

    The loaded columns may take 2 GB. Nothing is unpickled.

    Args:
        path: The file.
        columns: Those to load; None for all.
        drop: Those not to load.
        require_all: Whether a column that is named and not there is an error.

    Raises:
        InvalidInputError: The file is not what its name says, is damaged, or too large; or there
            is no such column. The message says what to do.
    """
    path = user_path(path)
    if not path.exists():
        raise InvalidInputError(f"there is no file {path}; expected the path of a table")
    if not path.is_file():
        raise InvalidInputError(f"{path} is not a file; expected {_expected()}")
    suffix = "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:])
    reader = READERS.get(suffix.lower())
    if reader is None:
        raise InvalidInputError(
            f"{path} has the suffix {suffix!r}; expected {_expected()}: save or convert it as one "
            "of these"
        )
    if path.stat().st_size == 0:
        raise InvalidInputError(f"{path} is empty: it holds 0 bytes; expected a table")
    return reader(path, lambda available: chosen_columns(available, columns, drop, require_all))


def _expected() -> str:
    return "a table as " + ", ".join(READERS)
