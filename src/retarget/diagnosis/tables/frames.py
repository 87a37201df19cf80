"""Builds a table from data in memory (frames, columns, arrays) and from NPY and NPZ files."""

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.lib import format as npy_format
from torch import Tensor

from retarget.archives import open_zip
from retarget.arrays import as_tensor
from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.tables.roles import (
    Choose,
    require_distinct,
    require_table_size,
    require_width,
)
from retarget.errors import InvalidInputError, InvalidTypeError, a_type
from retarget.text import shown

NUMBERS = "fiub"
FINER_THAN_MICROSECONDS = ("ns", "ps", "fs", "as")
LARGEST_SIZE = 1 << 62  # an array without values may claim any shape
LAST_CHARACTER = 0x10FFFF  # the last code point of Unicode
COLUMNS = NUMBERS + "MU"  # an array of an .npz may also hold dates or text
# The header's parser for each format version; a header is a literal, never code.
HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


class _Header(NamedTuple):
    shape: tuple[int, ...]
    loaded: int  # bytes in memory, with numbers as float64


def read_npy(path: Path, choose: Choose) -> pl.DataFrame:
    """Reads a matrix as a table with the columns c0, c1, ..."""
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
    """Reads the arrays of an .npz as columns: see `retarget.diagnosis.tables.read.read_table`."""
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
    """Returns a column of numbers, dates or text as a type that Polars supports."""
    if values.dtype.kind == "f" and values.dtype.itemsize not in (4, 8):
        values = values.astype(np.float64)
    elif values.dtype.kind == "M":
        fine = np.datetime_data(values.dtype)[0] in FINER_THAN_MICROSECONDS
        values = values.astype("datetime64[ns]" if fine else "datetime64[us]")
    elif values.dtype.kind == "U":
        return pl.Series(name, values.tolist(), dtype=pl.String)
    return pl.Series(name, np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("=")))


def _read_header(file: IO[bytes], what: str, size: int, kinds: str) -> _Header:
    """Reads and checks the header of an array; header and values together have `size` bytes."""
    try:
        shape, _, dtype = HEADERS[npy_format.read_magic(file)](file)
    # NumPy's parser does not catch what its tokenizer and literal_eval raise.
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
    rows = shape[0] if shape else 1
    values = math.prod(shape)
    header = _Header(shape, values * max(dtype.itemsize, 8))
    require_width(what, math.prod(shape[1:]))
    require_table_size(what, rows, header.loaded)
    # A zip's checksum is compared only if the file is read completely.
    announced = values * dtype.itemsize
    left = size - file.tell()
    if announced != left:
        raise InvalidInputError(
            f"{what} is cut short or damaged: its header announces {announced:,} bytes, it has "
            f"{left:,}"
        )
    return header


def _require_characters(what: str, values: np.ndarray) -> None:
    """Refuses text with invalid code points, which Python cannot turn into strings."""
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
                f"{path}: {name[:-4]!r} has shape {header.shape}; expected (rows,) or (rows, k)"
            )
    lengths = {name[:-4]: header.shape[0] for name, header in headers.items()}
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{name!r} {length:,}" for name, length in lengths.items())
        raise InvalidInputError(
            f"{path} holds arrays of different lengths ({described} rows); expected one row per "
            f"sample in all of them; save a test set in a separate file: {spelled('test')}"
        )
    rows = next(iter(lengths.values()))
    require_table_size(str(path), rows, sum(header.loaded for header in headers.values()))
    return rows


def _columns_of(name: str, header: _Header) -> Iterator[tuple[str, int]]:
    stem = name[: -len(".npy")]
    stem = stem.lower() if stem in ("X", "Y") else stem
    if len(header.shape) == 1:
        yield stem, 0
    else:
        yield from ((f"{stem}{number}", number) for number in range(header.shape[1]))


def as_table(data: Any, prefix: str = "c") -> pl.DataFrame:
    """Converts a frame, a dict of columns, or an array (n,) or (n, k) to a Polars frame.

    The columns of an array are named by the prefix and a number: c0, c1, ... Frames of other
    libraries are recognized without importing them: pandas by its name, and pyarrow's tables (like
    other frames) by Arrow's protocol.
    """
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    if isinstance(data, pl.DataFrame):
        return data
    if isinstance(data, pl.Series):
        return data.to_frame()
    if isinstance(data, Mapping):
        return _from_columns({str(name): values for name, values in data.items()})
    if _is_pandas(data):
        if not _has_index(data):  # an Index, or the array of a Series
            data = sys.modules["pandas"].Series(data)
        if not hasattr(data, "columns"):
            data = data.to_frame(f"{prefix}0" if data.name is None else data.name)
        return _from_pandas(data)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return _from_arrow(data, prefix)
    if isinstance(data, Tensor):
        tensor = as_tensor("the table", data).cpu()
        data = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    if isinstance(data, np.ndarray | list | tuple):
        try:
            array = np.asarray(data)
        except ValueError as error:
            raise InvalidTypeError(
                f"the table is {a_type(data)} that is not an array ({error}); expected "
                "rows of equal length"
            ) from error
        return _from_array(array, prefix)
    raise InvalidTypeError(
        f"the table is {a_type(data)}; expected a Polars, pandas or pyarrow table, a dict "
        "of columns, or an array"
    )


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "pandas"


def _has_index(data: Any) -> bool:
    return _is_pandas(data) and hasattr(data, "iloc")


def _from_columns(columns: Mapping[str, Any]) -> pl.DataFrame:
    try:
        return pl.DataFrame(
            {name: _as_column(name, values) for name, values in columns.items()}, strict=False
        )
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"the columns do not form a table ({reason}); expected columns of the same length, "
            "each of one type"
        ) from error


def _as_column(name: str, values: Any) -> Any:
    if isinstance(values, np.ndarray) and values.dtype.kind in COLUMNS:
        return as_series(name, values)
    return as_table(values).to_series().alias(name) if _is_pandas(values) else values


def _from_arrow(data: Any, prefix: str) -> pl.DataFrame:
    """Reads a table, which is a stream of structs, or a single column."""
    try:
        series = pl.Series(f"{prefix}0", data)
        return series.struct.unnest() if series.dtype == pl.Struct else series.to_frame()
    except pl.exceptions.PolarsError as error:
        raise InvalidInputError(
            f"the {type(data).__name__} does not form a table ({str(error).splitlines()[0]}); "
            "expected each column to have its own name"
        ) from error


def _from_pandas(frame: Any) -> pl.DataFrame:
    names = [str(name) for name in frame.columns]
    require_distinct(names, "the frame")
    return pl.DataFrame(
        [_pandas_column(name, frame.iloc[:, number]) for number, name in enumerate(names)]
    )


def _pandas_column(name: str, column: Any) -> pl.Series:
    # Not polars.from_pandas: that needs pyarrow for most types.
    kind = getattr(column.dtype, "kind", "O")
    if isinstance(column.dtype, np.dtype) and kind in COLUMNS:
        return as_series(name, column.to_numpy())
    if kind == "M" and column.dt.tz is not None:
        moments = as_series(name, column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy())
        # pytz calls a zone's name `zone`, zoneinfo `key`; a fixed offset has none
        zone = getattr(column.dt.tz, "key", None) or getattr(column.dt.tz, "zone", None) or "UTC"
        return moments.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    if kind == "m":
        return pl.Series(name, column.to_numpy())
    missing = column.isna().to_numpy()
    values = [None if gone else value for value, gone in zip(column.tolist(), missing, strict=True)]
    if str(column.dtype) == "category":
        values = [None if value is None else str(value) for value in values]
    return pl.Series(name, values, strict=False)


def _from_array(array: np.ndarray, prefix: str) -> pl.DataFrame:
    if array.dtype.kind in "OT" and array.ndim == 1:  # usually labels
        return _from_columns({f"{prefix}0": array.tolist()})
    if array.dtype.kind not in COLUMNS:
        raise InvalidTypeError(
            f"the array has dtype {array.dtype}; expected numbers, dates or text"
        )
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise InvalidInputError(
            f"the array has shape {array.shape}; expected (rows,) or (rows, columns)"
        )
    require_width("the array", array.shape[1])
    return pl.DataFrame(
        [as_series(f"{prefix}{number}", array[:, number]) for number in range(array.shape[1])]
    )


def assembled(
    X: Any, Y: Any, beside: Mapping[str, Any] | None = None
) -> tuple[pl.DataFrame, tuple[str, ...], dict[str, Any]]:
    """Joins features, targets and other columns to one table; returns their names in it as well.

    `Y` and the values of `beside` (by "group", "time", ...) are either one value for each row, or
    names of columns of X. Pandas objects among them must have the same index.
    """
    table = as_table(X, prefix="x")
    if _names_columns(Y, X, table):
        target = (Y,) if isinstance(Y, str) else tuple(Y)
    else:
        targets = as_table(Y, prefix="y")
        if targets.columns == ["y0"]:
            targets = targets.rename({"y0": "y"})
        table = _beside(table, targets, "Y")
        target = tuple(targets.columns)
    named = dict(beside or {})
    for what, given in named.items():
        if given is not None and not isinstance(given, str) and not _names_columns(given, X, table):
            named[what] = what
            while named[what] in table.columns:
                named[what] += "_"
            column = as_table(given, prefix="")
            table = _beside(table, column.rename({column.columns[0]: named[what]}), what)
    features = {f"X[{n!r}]": x for n, x in X.items()} if isinstance(X, Mapping) else {"X": X}
    _require_same_index({**features, "Y": Y, **(beside or {})})
    return table, target, named


def _require_same_index(given: Mapping[str, Any]) -> None:
    """Raises an error if pandas objects of the same length are not in the same order."""
    indices = {what: data.index for what, data in given.items() if _has_index(data)}
    for what, index in indices.items():
        first, expected = next(iter(indices.items()))
        labels = enumerate(zip(expected, index, strict=True), start=1)
        different = ((row, one, other) for row, (one, other) in labels if one != other)
        if index.equals(expected) or not (mismatch := next(different, None)):
            continue
        row, one, other = mismatch
        where = f"(row {row:,} is {shown(one)} in {first} and {shown(other)} in {what})"
        if index.is_unique and set(index) == set(expected):
            raise InvalidInputError(
                f"{first} and {what} have the same index labels in another order {where}; put them "
                f"in the same order with {what} = {what}.loc[{first}.index]"
            )
        raise InvalidInputError(
            f"{first} and {what} have different index labels {where}; choose the same rows of "
            "both, in the same order. If they are already the same rows, drop the labels of both "
            "with reset_index(drop=True)"
        )


def assembled_test(test: Any, X: Any, Y: Any, target: tuple[str, ...]) -> pl.DataFrame:
    """Returns a test set's table, from (X, Y), or from a frame if Y names columns of X."""
    if isinstance(test, tuple) and len(test) == 2:
        table, test_target, _ = assembled(*test)
        # a target with another name belongs to another problem
        if test_target != target:
            raise InvalidInputError(
                f"the test set's targets are called {', '.join(test_target)}; expected "
                f"{', '.join(target)}, as in the stream"
            )
        return table
    if _names_columns(Y, X, as_table(X, prefix="x")):
        return as_table(test)
    raise InvalidInputError(
        f"test is {a_type(test)}; expected (X, Y), or a frame if Y names columns of X"
    )


def _names_columns(Y: Any, X: Any, table: pl.DataFrame) -> bool:
    """Whether Y names columns of X; a list of labels, one for each row, does not."""
    if isinstance(Y, str):
        return True
    texts = isinstance(Y, list | tuple) and bool(Y) and all(isinstance(name, str) for name in Y)
    framed = isinstance(X, pl.DataFrame | pl.LazyFrame | Mapping) or hasattr(X, "columns")
    return texts and framed and (len(Y) != len(table) or set(Y) <= set(table.columns))


def _beside(table: pl.DataFrame, columns: pl.DataFrame, what: str) -> pl.DataFrame:
    if len(table) != len(columns):
        raise InvalidInputError(
            f"X has {len(table):,} rows and {what} has {len(columns):,}; expected the same number"
        )
    require_distinct([*table.columns, *columns.columns], f"X together with {what}")
    return pl.concat([table, columns], how="horizontal")
