"""Arrays and frames that a caller has apart, put together as one table."""

from typing import Any

import polars as pl

from retarget.diagnosis.tables.frames import as_table, is_frame
from retarget.diagnosis.tables.names import require_distinct
from retarget.errors import InvalidInputError


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
    named: list[str | None] = []
    for what, given in (("group", groups), ("time", times)):
        name = given if given is None or isinstance(given, str) else what
        if name is not None and not isinstance(given, str):
            while name in table.columns:
                name += "_"
            column = as_table(given, prefix="")
            table = _beside(table, column.rename({column.columns[0]: name}), f"{what}s")
        named.append(name)
    return table, target, named[0], named[1]


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
    """Whether Y names columns of X; a list of labels, one a row, does not."""
    if isinstance(Y, str):
        return True
    texts = isinstance(Y, list | tuple) and bool(Y) and all(isinstance(name, str) for name in Y)
    return texts and is_frame(X) and (len(Y) != len(table) or set(Y) <= set(table.columns))


def _beside(table: pl.DataFrame, columns: pl.DataFrame, what: str) -> pl.DataFrame:
    if len(table) != len(columns):
        raise InvalidInputError(
            f"X has {len(table):,} rows and {what} has {len(columns):,}; expected as many"
        )
    require_distinct([*table.columns, *columns.columns], f"X together with {what}")
    return pl.concat([table, columns], how="horizontal")
