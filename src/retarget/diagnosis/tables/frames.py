"""Tables that are in memory already: frames of Polars or pandas, columns, arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from torch import Tensor

from retarget.diagnosis.tables.arrays import COLUMNS, as_series
from retarget.diagnosis.tables.limits import require_width
from retarget.diagnosis.tables.names import require_distinct
from retarget.errors import InvalidInputError, InvalidTypeError


def as_table(data: Any, prefix: str = "c") -> pl.DataFrame:
    """A Polars frame of what the caller has.

    Args:
        data: A frame of Polars (also lazy) or pandas, a dict of columns, or an array of numbers
            (n,) or (n, k), of NumPy or torch.
        prefix: The columns of an array are called so, with a number: c0, c1, ...

    Example:
        >>> as_table({"a": [1, 2], "b": ["x", "y"]}).columns
        ['a', 'b']
        >>> import numpy as np
        >>> as_table(np.zeros((3, 2))).columns
        ['c0', 'c1']
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
        return _from_pandas(data if hasattr(data, "columns") else data.to_frame())
    if isinstance(data, Tensor):
        data = data.detach().cpu().numpy()
    if isinstance(data, np.ndarray | list | tuple):
        return _from_array(np.asarray(data), prefix)
    raise InvalidTypeError(
        f"the table is a {type(data).__name__}; expected a frame of Polars or pandas, a dict of "
        "columns, or an array"
    )


def is_frame(data: Any) -> bool:
    """Whether it has columns with names of their own."""
    return isinstance(data, pl.DataFrame | pl.LazyFrame | Mapping) or (
        _is_pandas(data) and hasattr(data, "columns")
    )


def _is_pandas(data: Any) -> bool:
    # known by its name: pandas itself is not needed here
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "iloc")


def _from_columns(columns: Mapping[str, Any]) -> pl.DataFrame:
    try:
        return pl.DataFrame(
            {
                name: as_series(name, values)
                if isinstance(values, np.ndarray) and values.dtype.kind in COLUMNS
                else values
                for name, values in columns.items()
            },
            strict=False,
        )
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(
            f"the columns make no table ({reason}); expected columns of one length, each of one "
            "type"
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
    missing = column.isna().to_numpy()
    values = [None if gone else value for value, gone in zip(column.tolist(), missing, strict=True)]
    if str(column.dtype) == "category":
        values = [None if value is None else str(value) for value in values]
    return pl.Series(name, values, strict=False)


def _from_array(array: np.ndarray, prefix: str) -> pl.DataFrame:
    if array.dtype == object and array.ndim == 1:  # labels, mostly
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
