from datetime import datetime

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

from retarget.diagnosis.tables.frames import as_table
from retarget.errors import InvalidInputError, InvalidTypeError

TABLE = pl.DataFrame({"a": [1, 2], "b": ["x", None]})


def test_frames_columns_and_arrays():
    assert as_table(TABLE) is TABLE
    assert_frame_equal(as_table(TABLE.lazy()), TABLE)
    assert as_table(TABLE["b"]).columns == ["b"]
    table = as_table({"a": [1, 2], 3: np.array([1.0, np.nan], np.float16), "t": ("x", None)})
    assert table.columns == ["a", "3", "t"]
    assert table["t"].to_list() == ["x", None]
    assert as_table(np.arange(3)).rows() == [(0,), (1,), (2,)]
    assert as_table(np.ones((2, 3)), prefix="x").columns == ["x0", "x1", "x2"]
    assert as_table(torch.ones(2, 2, requires_grad=True)).rows() == [(1.0, 1.0), (1.0, 1.0)]
    assert as_table([[1, 2], [3, 4]]).rows() == [(1, 2), (3, 4)]
    assert as_table(["a", "b"])["c0"].to_list() == ["a", "b"]
    assert as_table(np.array(["a", None], dtype=object))["c0"].to_list() == ["a", None]


def test_what_is_not_a_table():
    uneven = {"a": [1, 2], "b": [1, 2, 3]}
    for data, kind, message in (
        (uneven, InvalidInputError, "the columns do not form a table .*same len"),
        (np.ones((2, 2, 2)), InvalidInputError, r"shape \(2, 2, 2\); expected \(rows,\) or"),
        (np.ones((2, 2), complex), InvalidTypeError, "dtype complex128; expected numbers, dates"),
        (3, InvalidTypeError, "the table is a int; expected a Polars, pandas"),
    ):
        with pytest.raises(kind, match=message):
            as_table(data)


def test_frames_of_pandas():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "number": [1.5, np.nan, 3.0],
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "text": ["=1+1", None, "ü"],
            "class": pd.Categorical([7, 8, None]),
            "when": pd.to_datetime(["2026-01-01", None, "2026-01-03"]),
            "zone": pd.to_datetime(["2026-01-01", None, "2026-01-03"]).tz_localize("Europe/Berlin"),
            "yes": [True, False, True],
            5: [1, 2, 3],
        },
        index=[10, 11, 12],
    )
    table = as_table(frame)
    assert table.columns == ["number", "whole", "text", "class", "when", "zone", "yes", "5"]
    assert table["whole"].to_list() == [1, None, 3]
    assert table["text"].to_list() == ["=1+1", None, "ü"]
    assert table["class"].to_list() == ["7", "8", None]
    assert table["when"].to_list() == [datetime(2026, 1, 1), None, datetime(2026, 1, 3)]
    assert table["zone"].null_count() == 1
    assert table["yes"].dtype == pl.Boolean
    assert table["5"].to_list() == [1, 2, 3]
    assert as_table(frame["number"]).columns == ["number"]
    with pytest.raises(InvalidInputError, match="the frame has more than one column named 'a'"):
        as_table(pd.DataFrame([[1, 2]], columns=["a", "a"]))
