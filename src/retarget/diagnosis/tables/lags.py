"""Adds the previous values of a series as columns, so that a model can learn from its past."""

from collections.abc import Sequence

import numpy as np
import polars as pl


def lag_name(target: str, step: int) -> str:
    """Names the column of a target's values some rows before.

    Examples:
        >>> lag_name("sales", 1), lag_name("sales", 2)
        ('sales, 1 row before', 'sales, 2 rows before')
    """
    return f"{target}, {step} row{'s' if step > 1 else ''} before"


def with_lags(
    table: pl.DataFrame, targets: Sequence[str], lags: int, groups: np.ndarray | None = None
) -> tuple[pl.DataFrame, np.ndarray]:
    """Returns the rows that have `lags` earlier ones (of their group), with the earlier targets.

    Also returns (n,) which rows these are. The rows of a group need not lie next to each other.

    Examples:
        >>> series = pl.DataFrame({"y": [1, 2, 4, 8]})
        >>> found, kept = with_lags(series, ["y"], 2)
        >>> found.rows(), kept.tolist()
        ([(4, 2, 1), (8, 4, 2)], [False, False, True, True])
    """
    rows = pl.DataFrame({"row": np.arange(len(table)), "group": 0 if groups is None else groups})
    earlier = rows.select(
        pl.col("row").shift(step).over("group").alias(str(step)) for step in range(1, lags + 1)
    )
    kept = earlier[str(lags)].is_not_null()
    earlier = earlier.filter(kept)
    columns = [
        table[target][earlier[str(step)]].alias(lag_name(target, step))
        for target in targets
        for step in range(1, lags + 1)
    ]
    return table.filter(kept).hstack(columns), kept.to_numpy()
