"""Tables that are in memory already: frames of Polars or pandas, columns, arrays, put together."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from torch import Tensor

from retarget.diagnosis.tables.arrays import COLUMNS, as_series
from retarget.diagnosis.tables.checks import require_distinct, require_width
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


def assembled(
    X: Any, Y: Any, groups: Any = None, times: Any = None
) -> tuple[pl.DataFrame, tuple[str, ...], str | None, str | None]:
    """One table of features, targets, groups and times, and what the last three are called there.

    Args:
        X: Features, as `as_table` takes them.
        Y: Targets, or names of columns of X.
        groups: Each row's group, or the name of a column of X.
        times: Each row's time, or the name of a column of X.

    Raises:
        InvalidInputError: They have different numbers of rows, or a name twice.
    """
    table = as_table(X, prefix="x")
    if _names_columns(Y, X, table):
        target = (Y,) if isinstance(Y, str) else tuple(Y)
    else:
        targets = as_table(Y, prefix="y")
        if targets.columns == ["y0"]:
            targets = targets.rename({"y0": "y"})
        table, target = _beside(table, targets, "Y"), tuple(targets.columns)
    named = {"group": groups, "time": times}
    for what, given in named.items():
        if given is not None and not isinstance(given, str):
            named[what] = what
            while named[what] in table.columns:
                named[what] += "_"
            column = as_table(given, prefix="")
            table = _beside(table, column.rename({column.columns[0]: named[what]}), f"{what}s")
    return table, target, named["group"], named["time"]


def assembled_test(test: Any, X: Any, Y: Any, target: tuple[str, ...]) -> pl.DataFrame:
    """The table of a test set: (X, Y), or a frame where the stream's Y names columns of its X.

    Args:
        test: The test set.
        X: The stream's features.
        Y: The stream's targets, or names of columns of X.
        target: What the stream's targets are called.

    Raises:
        InvalidInputError: It is something else, or its targets have other names.
    """
    if isinstance(test, tuple) and len(test) == 2:
        table, test_target, _, _ = assembled(*test)
        # a frame and one of its columns under other names is another problem's test set
        if test_target != target:
            raise InvalidInputError(
                f"the test set's targets are called {', '.join(test_target)}; expected "
                f"{', '.join(target)}, as in the stream"
            )
        return table
    if _names_columns(Y, X, as_table(X, prefix="x")):
        return as_table(test)
    raise InvalidInputError(
        f"test is a {type(test).__name__}; expected (X, Y), or a frame where Y names columns of X"
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
            f"X has {len(table):,} rows and {what} has {len(columns):,}; expected as many"
        )
    require_distinct([*table.columns, *columns.columns], f"X together with {what}")
    return pl.concat([table, columns], how="horizontal")
