"""Tables in NumPy's files. The header is checked before anything is loaded; no pickle is read."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import polars as pl
from numpy.lib import format as npy_format

from retarget.data.archives import open_zip
from retarget.diagnosis.tables.checks import (
    Choose,
    require_distinct,
    require_table_size,
    require_width,
)
from retarget.errors import InvalidInputError

NUMBERS = "fiub"
LARGEST_SIZE = 1 << 62  # of an array that has no values, and so any shape
LAST_CHARACTER = 0x10FFFF  # of Unicode
COLUMNS = NUMBERS + "MU"  # an array of an .npz may also hold dates or text
# A version's way to read its header; what they read is a literal, never code.
HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


class _Header(NamedTuple):
    shape: tuple[int, ...]
    loaded: int  # bytes in memory, where numbers become float64


def read_npy(path: Path, choose: Choose) -> pl.DataFrame:
    """A matrix as a table with the columns c0, c1, ..."""
    with path.open("rb") as file:
        shape = _read_header(file, str(path), path.stat().st_size, NUMBERS).shape
        if len(shape) != 2:
            raise InvalidInputError(
                f"{path} holds an array of shape {shape}; expected (rows, columns)"
            )
        file.seek(0)
        matrix = npy_format.read_array(file, allow_pickle=False)
    names = choose([f"c{number}" for number in range(matrix.shape[1])])
    return pl.DataFrame({name: as_series(name, matrix[:, int(name[1:])]) for name in names})


def read_npz(path: Path, choose: Choose) -> pl.DataFrame:
    """The arrays of an .npz as columns: see `retarget.diagnosis.tables.read.read_table`."""
    with open_zip(path) as files:
        headers: dict[str, _Header] = {}
        for name in files.names:
            if not name.endswith(".npy"):
                raise InvalidInputError(
                    f"{path} holds {name!r}, which is not an array; expected what numpy.savez "
                    "writes"
                )
            what = f"{path}: the array {name[:-4]!r}"
            with files.open(name) as file:
                headers[name] = _read_header(file, what, files.size(name), COLUMNS)
        rows = _common_rows(path, headers)
        places = [(c, (name, k)) for name in headers for c, k in _columns_of(name, headers[name])]
        require_distinct((column for column, _ in places), str(path))
        columns = dict(places)
        chosen = choose(list(columns))
        arrays: dict[str, np.ndarray] = {}
        for name in dict.fromkeys(columns[column][0] for column in chosen):
            with files.open(name) as file:
                values = npy_format.read_array(file, allow_pickle=False)
                _require_characters(f"{path}: the array {name[:-4]!r}", values)
                arrays[name] = values.reshape(rows, -1)
    return pl.DataFrame({c: as_series(c, arrays[columns[c][0]][:, columns[c][1]]) for c in chosen})


def as_series(name: str, values: np.ndarray) -> pl.Series:
    """A column of numbers, dates or text, in types that Polars has."""
    if values.dtype.kind == "f" and values.dtype.itemsize not in (4, 8):
        values = values.astype(np.float64)
    elif values.dtype.kind == "M":
        values = values.astype("datetime64[us]")
    elif values.dtype.kind == "U":
        return pl.Series(name, values.tolist(), dtype=pl.String)
    return pl.Series(name, np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("=")))


def _read_header(file: IO[bytes], what: str, size: int, kinds: str) -> _Header:
    """The header of an array that takes `size` bytes with it, found in order."""
    try:
        shape, _, dtype = HEADERS[npy_format.read_magic(file)](file)
    # NumPy's parser lets through whatever its tokeniser and literal_eval raise.
    except Exception as error:
        raise InvalidInputError(
            f"{what} is not a NumPy array, or is damaged ({error}); expected what numpy.save writes"
        ) from error
    if not all(0 <= size <= LARGEST_SIZE for size in shape):
        raise InvalidInputError(f"{what} is damaged: its header says that its shape is {shape}")
    if dtype.hasobject:
        raise InvalidInputError(
            f"{what} holds pickled Python objects, which are never read, since they can run code; "
            "save it again as an array of numbers"
        )
    if dtype.kind not in kinds:
        raise InvalidInputError(
            f"{what} has dtype {dtype}; expected numbers"
            + (", dates or text" if kinds == COLUMNS else ": save text as CSV or Parquet")
        )
    rows, values = shape[0] if shape else 1, math.prod(shape)
    header = _Header(shape, values * max(dtype.itemsize, 8))
    require_width(what, math.prod(shape[1:]))
    require_table_size(what, rows, header.loaded / max(rows, 1))
    # Only what is read to its end is compared with a zip's checksum.
    announced, left = values * dtype.itemsize, size - file.tell()
    if announced != left:
        raise InvalidInputError(
            f"{what} is cut short or damaged: its header announces {announced:,} bytes of "
            f"numbers, and there are {left:,}"
        )
    return header


def _require_characters(what: str, values: np.ndarray) -> None:
    """Refuses text whose numbers stand for no characters: Python cannot make strings of it."""
    if values.dtype.kind != "U" or not values.dtype.itemsize:
        return
    codes = np.ascontiguousarray(values, values.dtype.newbyteorder("=")).view(np.uint32)
    if ((codes > LAST_CHARACTER) | ((codes >= 0xD800) & (codes <= 0xDFFF))).any():
        raise InvalidInputError(f"{what} is damaged: it holds text that is not Unicode")


def _common_rows(path: Path, headers: dict[str, _Header]) -> int:
    if not headers:
        raise InvalidInputError(f"{path} holds no array; expected what numpy.savez writes")
    for name, header in headers.items():
        if len(header.shape) not in (1, 2):
            raise InvalidInputError(
                f"{path}: the array {name[:-4]!r} has shape {header.shape}; expected (rows,) or "
                "(rows, columns)"
            )
    lengths = {name[:-4]: header.shape[0] for name, header in headers.items()}
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{name!r} {length:,}" for name, length in lengths.items())
        raise InvalidInputError(
            f"{path} holds arrays of different lengths ({described} rows); expected one row a "
            "sample in all of them: save a test set in a file of its own (--test)"
        )
    require_table_size(str(path), 1, sum(header.loaded for header in headers.values()))
    return next(iter(lengths.values()))


def _columns_of(name: str, header: _Header) -> Iterator[tuple[str, int]]:
    stem = name[: -len(".npy")]
    stem = stem.lower() if stem in ("X", "Y") else stem
    if len(header.shape) == 1:
        yield stem, 0
    else:
        yield from ((f"{stem}{number}", number) for number in range(header.shape[1]))
