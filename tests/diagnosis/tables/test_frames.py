from datetime import datetime

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

import retarget as rt
from retarget.diagnosis.tables.frames import as_table, assembled, assembled_test
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
    texts = np.array(["a", "b"], dtype=np.dtypes.StringDType())
    assert as_table(texts)["c0"].to_list() == ["a", "b"]
    assert as_table(torch.eye(2).bfloat16())["c0"].to_list() == [1, 0]
    assert as_table(np.array(["a", None], dtype=object))["c0"].to_list() == ["a", None]


def test_what_is_not_a_table():
    uneven = {"a": [1, 2], "b": [1, 2, 3]}
    for data, kind, message in (
        (uneven, InvalidInputError, "the columns do not form a table .*same len"),
        (np.ones((2, 2, 2)), InvalidInputError, r"shape \(2, 2, 2\); expected \(rows,\) or"),
        (np.ones((2, 2), complex), InvalidTypeError, "dtype complex128; expected numbers, dates"),
        ([[1.0, 2.0], [3.0]], InvalidTypeError, "is a list that is not an array .*equal length"),
        (torch.eye(2).to_sparse(), InvalidTypeError, "the table is a tensor of layout sparse_coo"),
        (torch.empty(2, 2, device="meta"), InvalidTypeError, "the table is on the meta device"),
        (3, InvalidTypeError, "the table is an int; expected a Polars, pandas"),
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
    with pytest.raises(InvalidInputError, match="more than one column named 'a'"):
        as_table(pd.DataFrame([[1, 2]], columns=["a", "a"]))


@pytest.mark.parametrize("dtype", ["str", "string", "object", "category"])
def test_text_columns_of_pandas(dtype):
    pd = pytest.importorskip("pandas")
    texts = ["no", "yes", None, "no"]
    labels = pd.Series(texts, dtype=dtype)
    for given in (labels, labels.array, labels.values, labels.rename("y")):
        table, target, _ = assembled(np.arange(4.0), given)
        assert (target, table["y"].dtype, table["y"].to_list()) == (("y",), pl.String, texts)
    frame = pd.DataFrame({"x": np.arange(4.0), "answer": labels})
    table, target, _ = assembled(frame[["x"]], frame["answer"], {"group": frame["answer"]})
    assert target == ("answer",)
    assert table["group"].to_list() == table["answer"].to_list() == texts
    for columns in ({"a": labels}, {"a": labels.array}, frame[["answer"]].rename(columns=str)):
        assert as_table(columns).to_series().to_list() == texts


def test_an_index_of_pandas_is_a_column():
    pd = pytest.importorskip("pandas")
    days = pd.date_range("2026-01-01", periods=3)
    table, _, named = assembled(np.arange(3), np.arange(3), {"time": days})
    assert table[named["time"]].to_list() == [datetime(2026, 1, day) for day in (1, 2, 3)]


class Arrow:
    """Stands in for pyarrow's tables and columns: the protocol, and nothing else."""

    def __init__(self, data):
        self.__arrow_c_stream__ = data.__arrow_c_stream__


class Broken:
    def __arrow_c_stream__(self, requested_schema=None):
        raise pl.exceptions.ComputeError("no such type\nand more")


def test_tables_of_arrow():
    for data in (TABLE, pl.concat([TABLE, TABLE], rechunk=False)):
        assert_frame_equal(as_table(Arrow(data)), data)
    table, target, _ = assembled(Arrow(TABLE[["a"]]), Arrow(TABLE["b"]))
    assert target == ("b",)
    assert_frame_equal(table, TABLE)
    with pytest.raises(InvalidInputError, match="Broken .*no such type"):
        as_table(Broken())


def test_tables_of_pyarrow():
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    assert_frame_equal(as_table(table), TABLE)
    assert as_table(table["b"])["c0"].to_list() == ["x", None]
    assert as_table(table["b"].chunk(0))["c0"].to_list() == ["x", None]
    assert assembled(table, "b")[1] == ("b",)
    with pytest.raises(InvalidInputError, match="Table .*more than one"):
        as_table(pa.Table.from_arrays([table["a"], table["a"]], names=["a", "a"]))


def shuffled():
    """Features and targets of the same rows, the features in another order."""
    pd = pytest.importorskip("pandas")
    x = np.arange(8.0)
    X, y = pd.DataFrame({"x": x}), pd.Series(x**2, name="y")
    return X.sample(frac=1, random_state=0), y


def test_an_index_in_another_order():
    X, y = shuffled()
    rows = X.reset_index(drop=True)
    for what, given in (
        ("X and Y", (X, y)),
        ("X and Y", (X, y.to_frame())),
        ("X and group", (X, y.to_numpy(), {"group": y})),
        ("X and time", (X, "x", {"group": None, "time": y})),
        ("X and predictions", (X, y.loc[X.index], {"predictions": y})),
        ("Y and group", (rows.to_numpy(), y.loc[X.index], {"group": y})),
        ("X.'a'. and Y", ({"a": X["x"]}, y)),
        ("X.'a'. and X.'b'.", ({"a": X["x"], "b": y}, np.zeros(8))),
    ):
        with pytest.raises(InvalidInputError, match=f"^{what} have the same index labels in anot"):
            assembled(*given)
    with pytest.raises(InvalidInputError, match="X and Y have the same index labels"):
        assembled_test((X, y), rows, y, ("y",))
    message = r"order \(row 1 is 6 in X and 0 in Y\); .* with Y = Y.loc\[X.index\]"
    with pytest.raises(InvalidInputError, match=message):
        rt.diagnose(X, y)
    table, *_ = assembled(X, y.loc[X.index])  # as the message says
    np.testing.assert_array_equal(table["y"], table["x"] ** 2)


def test_an_index_with_other_labels():
    X, y = shuffled()
    for given in (
        (X, y.set_axis(list("abcdefgh"))),
        (X, y.set_axis(range(10, 18))),
        (X.set_axis([0, 0, 1, 1, 2, 2, 3, 3]), y.set_axis([0, 1, 1, 0, 2, 2, 3, 3])),
    ):
        with pytest.raises(InvalidInputError, match="different index labels .row"):
            assembled(*given)
    with pytest.raises(InvalidInputError, match=r"both with reset_index\(drop=True\)"):
        assembled(X, y.loc[X.index].set_axis(list("abcdefgh")))
    alike = y.loc[X.index].set_axis(list("abcdefgh")).reset_index(drop=True)
    table, *_ = assembled(X.reset_index(drop=True), alike)  # as the message says
    np.testing.assert_array_equal(table["y"], table["x"] ** 2)


def test_the_same_index_or_none():
    X, y = shuffled()
    copies = [0, 0, 1, 1, 2, 2, 3, 3]
    hours = X.set_axis(np.arange("2026-01-01T00", "2026-01-01T08", dtype="datetime64[h]"))
    hours = hours.tz_localize("UTC")
    for given in (
        (X, y.loc[X.index]),
        (X.sort_index(), y),  # 0, 1, 2... as numbers and as a range
        (X, y.to_numpy()),
        (X.to_numpy(), y),
        (X.set_axis(copies), y.set_axis(copies)),
        (hours, hours["x"].tz_convert("Europe/Berlin").rename("y")),  # the same moments
        (X, "x", {"group": "x", "time": None}),
        ({"a": X["x"], "b": [0] * 8}, y.loc[X.index]),
    ):
        assert len(assembled(*given)[0]) == 8
    with pytest.raises(InvalidInputError, match="X has 8 rows and Y has 7"):
        assembled(X, y[:7])
