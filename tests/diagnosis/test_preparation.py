from datetime import date, datetime, time, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing.parametric import dataframes

from retarget.diagnosis.tables import roles
from retarget.diagnosis.tables.prepare import prepare
from retarget.diagnosis.tables.roles import Roles, order_rows, order_test_rows
from retarget.errors import InvalidInputError
from support.prepared_streams import make_stream

ROWS = 60


def a_table(rows=ROWS, **more):
    rng = np.random.default_rng(3)
    columns = {
        "x": rng.normal(5.0, 3.0, rows),
        "k": rng.integers(0, 4, rows),
        "colour": rng.choice(["red", "green", "blue"], rows).tolist(),
        "y": rng.normal(-2.0, 0.5, rows),
    }
    return pl.DataFrame(columns | more, strict=False)


def refused(table, target="y", *, match, **options):
    with pytest.raises(InvalidInputError, match=match) as raised:
        make_stream(table, target, **options)
    assert "\n" not in str(raised.value)


# -- features ----------------------------------------------------------------------------------


def test_numbers_and_categories():
    table = a_table()
    stream = make_stream(table, "y")
    assert stream.feature_names == ("x", "k", "colour=blue", "colour=green", "colour=red")
    x, y = table["x"].to_numpy(), table["y"].to_numpy()
    np.testing.assert_allclose(stream.X[:, 0], (x - x.mean()) / x.std(), atol=1e-12)
    green = (table["colour"] == "green").to_numpy()
    np.testing.assert_array_equal(stream.X[:, 3], green.astype(float))
    np.testing.assert_allclose(stream.in_units(stream.Y)[:, 0], y, atol=1e-12)
    assert (stream.target_means[0], stream.target_scales[0]) == pytest.approx((y.mean(), y.std()))
    assert stream.kind == "regression"
    assert stream.notes == ("One feature for each category of 'colour'.",)
    np.testing.assert_array_equal(stream.rows, np.arange(ROWS))
    as_it_is = make_stream(table, "y", standardise=False)
    np.testing.assert_array_equal(as_it_is.X[:, 0], x)
    np.testing.assert_array_equal(as_it_is.Y[:, 0], y)


def test_only_the_first_rows_are_learned_from():
    table = a_table()
    later = table.with_columns(
        x=pl.when(pl.int_range(pl.len()) >= 40).then(1e6).otherwise("x"),
        colour=pl.when(pl.int_range(pl.len()) >= 40).then(pl.lit("black")).otherwise("colour"),
        y=pl.when(pl.int_range(pl.len()) >= 40).then(99.0).otherwise("y"),
    )
    stream = make_stream(later, "y", train_rows=40)
    first = make_stream(table[:40], "y")
    np.testing.assert_allclose(stream.X[:40], first.X, atol=1e-12)
    np.testing.assert_allclose(stream.Y[:40], first.Y, atol=1e-12)
    np.testing.assert_array_equal(stream.X[40:, 2:], 0)
    assert stream.notes[-2].startswith("20 rows hold categories of 'colour'")
    assert "('black'): zeros" in stream.notes[-2]


ONE_VALUE, NOTHING, NESTED = "one value only", "nothing in the rows that", "lists, bytes or objects"
NUMBERS = list(np.random.default_rng(0).permutation(ROWS) + 1000)


@pytest.mark.parametrize(
    ("name", "column", "reason"),
    [
        ("c", [7] * ROWS, ONE_VALUE),
        ("c", [0.1 + 0.2] * 30 + [0.3] * 30, ONE_VALUE),
        ("c", ["same"] * ROWS, ONE_VALUE),
        ("c", [None] * ROWS, NOTHING),
        ("c", [float("nan")] * ROWS, NOTHING),
        ("c", [f"a text {k}" for k in range(ROWS)], "text, or too many different categories"),
        ("c", [[1, 2]] * ROWS, NESTED),
        ("c", [b"bytes"] * ROWS, NESTED),
        ("c", [{"a": 1}] * ROWS, NESTED),
        *(
            (name, NUMBERS, "number the rows")
            for name in ("id", "user_id", "PassengerId", "index", "ROW-id", "column_1")
        ),
    ],
)
def test_columns_that_are_left_out(name, column, reason):
    stream = make_stream(a_table(**{name: column}), "y")
    assert not any(feature.startswith(f"{name}=") for feature in stream.feature_names)
    assert name not in stream.feature_names
    assert reason in stream.notes[0]
    assert stream.notes[0].endswith(f": '{name}'.")


@pytest.mark.parametrize(
    ("name", "values"),
    [("id", [1, 2] * 30), ("humid", list(range(ROWS))), ("x2", list(range(ROWS)))],
)
def test_what_only_looks_like_an_identifier_is_kept(name, values):
    assert name in make_stream(a_table(**{name: values}), "y").feature_names


def test_many_dropped_columns_are_one_note():
    constants = {f"pixel{k}": [0] * ROWS for k in range(100)}
    (dropped, _) = make_stream(a_table(**constants), "y").notes
    assert dropped.endswith("'pixel7' and 92 more.")


def test_dates_become_seconds():
    days = [date(2026, 1, 1) + timedelta(days=k % 7) for k in range(ROWS)]
    table = a_table(
        day=days,
        text=[day.isoformat() for day in days],
        moment=[datetime(2026, 1, 1) + timedelta(days=k % 7) for k in range(ROWS)],
        clock=[time(k % 7) for k in range(ROWS)],
        took=[timedelta(seconds=k % 7) for k in range(ROWS)],
    ).with_columns(fine=pl.col("moment").cast(pl.Datetime("ns")))
    stream = make_stream(table, "y", standardise=False)
    of = {name: stream.X[:, k] for k, name in enumerate(stream.feature_names)}
    np.testing.assert_array_equal(of["day"] - of["day"][0], [86400 * (k % 7) for k in range(ROWS)])
    for same in ("text", "moment", "fine"):
        np.testing.assert_array_equal(of[same], of["day"])
    np.testing.assert_array_equal(of["clock"], [3600 * (k % 7) for k in range(ROWS)])
    np.testing.assert_array_equal(of["took"], [k % 7 for k in range(ROWS)])
    assert stream.notes[-1].startswith("Dates and times became seconds: 'day', 'text', 'moment'")


def test_booleans_and_categoricals_are_categories_and_whole_numbers_are_not():
    table = a_table(b=[True, False, False] * 20).with_columns(
        c=pl.col("colour").cast(pl.Categorical)
    )
    names = make_stream(table, "y").feature_names
    assert {"b=false", "b=true", "c=blue", "k"} <= set(names)


def test_text_that_is_numbers():
    stream = make_stream(a_table(t=[str(k / 2) for k in range(ROWS)]), "y", standardise=False)
    np.testing.assert_array_equal(stream.X[:, -1], np.arange(ROWS) / 2)
    some = [str(k) for k in range(ROWS - 3)] + ["?", "?", "-"]
    refused(a_table(t=some), match=r"'t' holds numbers, and in 3 rows text \('\?', '-'\); leave")
    days = ["2026-01-01", "2026-01-02"] * 20 + ["soon"] * 20
    refused(a_table(t=days), train_rows=40, match="'t' holds the text 'soon' in 20 rows, and dates")
    late = [str(k) for k in range(40)] + ["?"] * 20
    refused(a_table(t=late), train_rows=40, match=r"'t' holds the text '\?' in 20 rows, and numb")


def test_numbers_beyond_computing():
    refused(a_table(t=[1e308, -1e308] * 30), match=r"'t' holds numbers too large .* .up to 1e\+308")


# -- missing values ----------------------------------------------------------------------------

GAPS = {
    "x": [None, float("nan"), float("inf"), -float("inf")] + [1.0, 2.0, 3.0, 10.0] * 14,
    "colour": [None] * 2 + ["red", "blue"] * 29,
}


def test_missing_values_are_counted_by_column():
    refused(a_table(**GAPS), match="missing or infinite: 'x' 4, 'colour' 2 .of 60 rows.; .*--imp")
    many = {f"m{k}": [None, *range(ROWS - 1)] for k in range(20)}
    refused(a_table(**many), match="'m7' 1 and 12 more .of 60 rows.; fill them in with --impute")


@pytest.mark.parametrize(("impute", "fill"), [("mean", 4.0), ("median", 2.5), ("zero", 0.0)])
def test_missing_values_are_filled_in(impute, fill):
    stream = make_stream(a_table(**GAPS), "y", impute=impute, standardise=False)
    np.testing.assert_array_equal(stream.X[:4, 0], fill)
    blue = stream.feature_names.index("colour=blue")  # as frequent as red, and first
    np.testing.assert_array_equal(stream.X[:2, blue], 1)
    assert stream.notes[-2].startswith(f"Missing values were filled in by the {impute} ")
    assert stream.notes[-2].endswith("'x' 4, 'colour' 2.")


def test_rows_without_a_target():
    y = [None, float("nan"), *range(58)]
    refused(a_table(y=y), match="missing in 2 of 60 rows .'y' in 2; the first is row 0, .*--imp")
    stream = make_stream(a_table(y=y), "y", impute="mean")
    np.testing.assert_array_equal(stream.rows, np.arange(2, 60))
    assert stream.notes[0] == "2 rows without a target were left out."
    refused(a_table(y=[None] * ROWS), impute="mean", match="missing in every row .'y' in 60.; noth")


# -- order -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "order"),
    [
        ([3, 1, 2, 1], [1, 3, 2, 0]),
        ([0.5, -1.0, 1e9, -1.0], [1, 3, 0, 2]),
        (["2026-03-01", "2026-01-05", "2026-02-01", "2026-01-05"], [1, 3, 2, 0]),
        (["2026-01-01T12:00:00", "2026-01-01", "2026-01-02", "2026-01-01 11:00"], [1, 3, 0, 2]),
        (["2026-01-01T12:00:00+02:00", "2026-01-01T11:00:00Z"] * 2, [0, 2, 1, 3]),
        (["10", "9", " 8", "10"], [2, 1, 0, 3]),
        ([date(2026, 2, 1), date(2025, 1, 1)] * 2, [1, 3, 0, 2]),
        ([time(2), time(1)] * 2, [1, 3, 0, 2]),
    ],
)
def test_rows_are_sorted_by_time(times, order):
    table = pl.DataFrame({"t": times, "x": [1.0, 2.0, 4.0, 8.0], "y": [1.0, 0.5, 0.25, 3.0]})
    stream = make_stream(table, "y", time="t", standardise=False)
    np.testing.assert_array_equal(stream.rows, order)
    np.testing.assert_array_equal(stream.X[:, 0], np.array([1.0, 2.0, 4.0, 8.0])[order])
    assert stream.feature_names == ("x",)
    assert list(stream.times) == table["t"].cast(pl.String)[order].to_list()
    assert stream.notes[0].endswith(f"sorted by 't': {sum(np.arange(4) != order)} were moved.")
    sorted_already = make_stream(table[order], "y", time="t")
    assert not any("sorted" in note for note in sorted_already.notes)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (["01/02/2026"] * ROWS, "the time 't' holds '01/02/2026' in row 0 .*expected dates like"),
        (["2026-01-01"] * 59 + ["soon"], "the time 't' holds 'soon' in row 59"),
        ([None] + [1] * 59, "the time 't' is missing in 1 of 60 rows .the first is row 0"),
        ([1.0, float("nan")] + [float("inf")] * 58, "the time 't' is missing in 59 of 60 rows"),
        ([[1]] * ROWS, r"the time 't' holds List\(Int64\); expected dates or numbers"),
        ([True] * ROWS, "the time 't' holds Boolean; expected dates or numbers"),
    ],
)
def test_times_that_do_not_order(times, message):
    refused(a_table(t=times), time="t", match=message)


def test_groups_are_text_and_no_feature():
    groups = ["=1+1", "<script>", None] * 20
    stream = make_stream(a_table(g=groups), "y", group="g")
    assert list(stream.groups[:3]) == ["=1+1", "<script>", "(missing)"]
    assert stream.group_column == "g"
    assert not any(name.startswith("g") for name in stream.feature_names)
    both = make_stream(a_table(g=["a", "b", "c"] * 20), "y", group="g", group_as_feature=True)
    assert both.feature_names[-3:] == ("g=a", "g=b", "g=c")
    assert list(make_stream(a_table(), "k", group="k").groups) == a_table()["k"].cast(str).to_list()
    refused(a_table(g=[[1]] * ROWS), group="g", match=r"'g' holds List\(Int64\); expected text")


def test_any_plain_column_may_be_the_group():
    for dtype in (pl.Duration, pl.Date, pl.Float64, pl.Boolean, pl.Time):
        stream = make_stream(a_table(g=pl.Series(range(ROWS)).cast(dtype)), "y", group="g")
        assert all(isinstance(group, str) for group in stream.groups)
    # one long group does not make all of them long
    stream = make_stream(a_table(g=["x" * 100_000] + ["b"] * 59), "y", group="g")
    assert stream.groups.dtype == object
    assert len(stream.groups[0]) == 100_000


# -- targets -----------------------------------------------------------------------------------


def test_several_targets():
    table = a_table(z=np.arange(ROWS) ** 2)
    stream = make_stream(table, ["z", "y"])
    assert stream.target_names == ("z", "y")
    np.testing.assert_allclose(stream.Y.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(stream.Y.std(axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(stream.in_units(stream.Y)[:, 0], np.arange(ROWS) ** 2, atol=1e-9)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["b", "a", "<i>"] * 20, ("<i>", "a", "b")),
        ([True, False, False] * 20, ("false", "true")),
        ([10, 9, 2] * 20, ("2", "9", "10")),
        (pl.Series(["b", "a", "c"] * 20, dtype=pl.Categorical), ("a", "b", "c")),
        (pl.Series(["b", "a", "c"] * 20, dtype=pl.Enum(["c", "b", "a"])), ("a", "b", "c")),
    ],
)
def test_classes(labels, classes):
    stream = make_stream(a_table(y=labels), "y")
    assert (stream.kind, stream.target_names) == ("classification", classes)
    text = pl.Series(labels).cast(pl.String).to_list()
    assert [classes[k] for k in stream.Y.argmax(axis=1)] == text
    np.testing.assert_array_equal(stream.Y.sum(axis=1), 1)
    np.testing.assert_array_equal(stream.in_units(stream.Y), stream.Y)


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        ([10, 9, 2] * 20, "regression", "regression"),
        ([True, False] * 30, "regression", "regression"),
        ([1.0, 2.0] * 30, "auto", "regression"),
        ([1.0, 2.0] * 30, "classification", "classification"),
        (list(range(7)) * 8 + [0] * 4, "auto", "regression"),
        (list(range(6)) * 10, "auto", "classification"),
        ([str(k / 7) for k in range(ROWS)], "regression", "regression"),
        ([str(k % 7) for k in range(ROWS)], "auto", "classification"),
    ],
)
def test_the_kind_of_target(labels, kind, expected):
    stream = make_stream(a_table(y=labels), "y", kind=kind)
    assert stream.kind == expected
    guessed = any("--kind regression takes it as a number" in note for note in stream.notes)
    assert guessed == (labels == list(range(6)) * 10)


def test_names_of_classes():
    whole = make_stream(a_table(y=[1.0, 2.0] * 30), "y", kind="classification")
    assert whole.target_names == ("1", "2")
    held_out = make_stream(a_table(y=["a", "b"] * 20 + ["c"] * 20), "y", train_rows=40)
    assert held_out.target_names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ([4.0] * ROWS, {}, "all values of the target 'y' are equal .4. in the 60 rows"),
        (["a"] * ROWS, {}, "all values of the target 'y' are equal .'a'. in the 60 rows"),
        (["a"] * 40 + ["b"] * 20, {"train_rows": 40}, "equal .'a'. in the 40 rows .*hold out f"),
        ([1.0] * 40 + [2.0] * 20, {"train_rows": 40}, "equal .1. in the 40 rows"),
        ([float("inf")] + [1.0] * 59, {}, "the target 'y' is infinite in 1 rows; expected finite"),
        ([1e308, -1e308] * 30, {}, "the target 'y' is too large to compute with"),
        ([f"t{k}" for k in range(ROWS)], {}, "holds 60 different classes in 60 rows .'t0', 't1'"),
        ([f"t{k}" for k in range(ROWS)], {"kind": "regression"}, "holds text such as 't0'; expect"),
        ([date(2026, 1, 1)] * ROWS, {}, "the target 'y' holds Date; expected numbers, or text"),
        ([date(2026, 1, 1)] * ROWS, {"kind": "classification"}, "'y' holds Date; expected classes"),
        ([[1]] * ROWS, {}, r"the target 'y' holds List\(Int64\); expected numbers or classes"),
    ],
)
def test_targets_that_cannot_be_learned(target, options, message):
    refused(a_table(y=target), match=message, **options)


def test_several_columns_of_classes():
    refused(a_table(), ["k", "y"], kind="classification", match="2 targets are named; expected one")
    refused(a_table(), ["colour", "y"], match="the target 'colour' holds text such as")
    refused(a_table(c=[1] * ROWS), ["c", "y"], match="all values of the target 'c' are equal .1.")


# -- leaks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("leak", [pl.col("y"), 1e6 - 3 * pl.col("y"), pl.col("y").cast(pl.Float32)])
def test_a_feature_that_is_the_target(leak):
    table = a_table().with_columns(pl.col("y").round(2)).with_columns(leak.alias("it is $y"))
    refused(table, match="'y' is given away by 'it is .y' .an exact lin.* --drop 'it is .y', or")
    assert "it is $y" in make_stream(table, "y", allow_leak=True).feature_names
    assert make_stream(table, "y", drop=["it is $y"]).feature_names[0] == "x"


def test_a_feature_that_is_one_of_several_targets():
    table = a_table().with_columns(z=pl.col("x") ** 2, w=pl.col("x") ** 2 * -2 + 1)
    refused(table, ["y", "z"], match="is given away by 'w'")


@pytest.mark.parametrize(
    "leak", [pl.col("k") * 3 + 1, pl.col("k").cast(pl.String) + "!", pl.col("k") == 1]
)
def test_a_feature_that_names_the_class(leak):
    table = a_table().with_columns(leak.alias("code"))
    if table["code"].dtype == pl.Boolean:
        table = table.with_columns(k=pl.col("code").cast(int))
    refused(table, "k", match="'k' is given away by 'code' .each class .* --drop code, or accept")
    make_stream(table, "k", allow_leak=True)


def test_what_is_not_a_leak():
    noise = 1e-3 * np.random.default_rng(0).normal(size=ROWS)
    near = a_table().with_columns(near=pl.col("y") + noise)
    assert "near" in make_stream(near, "y").feature_names
    some = a_table().with_columns(code=pl.col("k") >= 2)  # tells some classes apart, not all
    assert "code=true" in make_stream(some, "k").feature_names
    few = pl.DataFrame({"x": [1.0, 2.0, 3.0], "y": [2.0, 4.0, 6.0]})  # it may be chance
    make_stream(few, "y")


# -- the whole ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "Y2"}, "target: there is no column 'Y2'; did you mean 'y'. the columns are"),
        ({"target": ["y", "y"]}, "the list of targets .--target. has more than one column named"),
        ({"target": []}, "no target is named; name the column to be learned"),
        ({"time": "when"}, "time: there is no column 'when'"),
        ({"group": "grp"}, "group: there is no column 'grp'"),
        ({"drop": ["coluor"]}, "drop: there is no column 'coluor'; did you mean 'colour'"),
        ({"time": "y"}, "'y' is both target and time; expected another column"),
        ({"drop": "y"}, "'y' is dropped and also used as target, time, group"),
        ({"group": "k", "drop": ["k"]}, "'k' is dropped and also used"),
        ({"kind": "numbers"}, "kind is 'numbers'; expected one of auto, regression, classif"),
        ({"impute": "guess"}, "impute is 'guess'; expected one of error, mean, median, zero"),
        ({"train_rows": 1}, "1 of 60 rows are to be learned from; expected at least 2"),
        ({"train_rows": 61}, "61 of 60 rows"),
        ({"drop": ["x", "k", "colour"]}, "no feature is left to learn from. There is no column"),
    ],
)
def test_wrong_roles(options, message):
    refused(a_table(), **{"target": "y", **options}, match=message)


def test_tables_of_the_wrong_size(monkeypatch):
    refused(a_table()[:0], match="the table is empty: it has no rows")
    refused(a_table()[:1], match="1 of 1 rows .* expected at least 2")
    constant = a_table().select("y", c=pl.lit("same"))
    refused(constant, match="no feature is left to learn from. Left out, since .* only: 'c'")
    monkeypatch.setattr(roles, "LARGEST_TABLE", 1000)
    refused(a_table(), match=r"the matrix of features would take 2\.4 kB in memory")


def test_equal_rows_are_counted():
    table = pl.concat([a_table(), a_table(), a_table()[:5]])
    (note,) = [note for note in make_stream(table, "y").notes if "earlier" in note]
    assert note.startswith("65 of 125 rows have the features of an earlier one: ")
    assert "--ridge" in note


def test_the_same_preparation_for_a_test_table():
    table, test = a_table(g=["a", "b"] * 30), a_table()[30:].with_columns(pl.col("x") + 1)
    rows = order_rows(table, Roles(("y",), group="g"))
    stream, preparation = prepare(rows)
    prepared = preparation.apply(order_test_rows(test, preparation.roles))
    np.testing.assert_allclose(prepared.Y, stream.Y[30:], atol=1e-12)
    np.testing.assert_allclose(
        prepared.X[:, 0], stream.X[30:, 0] + 1 / table["x"].to_numpy().std(), atol=1e-12
    )
    np.testing.assert_array_equal(prepared.X[:, 1:], stream.X[30:, 1:])
    assert prepared.groups is None
    again = make_stream(test, "ignored", fitted=preparation)
    np.testing.assert_array_equal(again.X, prepared.X)
    assert len(make_stream(test[:1], (), fitted=preparation)) == 1


def test_test_tables_that_do_not_fit():
    y = {"c": ["a", "b"] * 30}
    _, preparation = prepare(order_rows(a_table(**y), Roles(("c",))))
    for table, message in (
        (a_table(**y).drop("x"), "feature: there is no column 'x'"),
        (a_table(c=["a", "z"] * 30), "classes that the stream does not have .'z', in 30"),
        (a_table(**y, x=[[1]] * ROWS), r"'x' holds List\(Int64\); expected numbers, as in"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            make_stream(table, (), fitted=preparation)
    unseen = a_table(**y, colour=["red"] * 50 + ["pink"] * 9 + ["white"])
    stream = make_stream(unseen, (), fitted=preparation)
    assert stream.notes[-1].startswith("10 rows hold categories of 'colour'")
    assert "('pink', 'white'): zeros" in stream.notes[-1]
    np.testing.assert_array_equal(stream.X[50:, 2:5], 0)


numbers = st.floats(-1e6, 1e6).map(lambda number: round(number, 3))


@given(
    st.lists(
        st.tuples(numbers, st.sampled_from("abc"), numbers, st.integers(0, 3)),
        min_size=12,
        max_size=40,
    ),
    st.integers(0, 10),
)
def test_what_preparation_promises(cells, held_out):
    x, c, y, t = (list(column) for column in zip(*cells, strict=True))
    x[:3], y[:3], c[:6] = [0.0, 1.0, 5.0], [2.0, 0.0, 1.0], "aabbcc"
    t[:6] = [-1] * 6  # these come first, so that there is something to learn from
    table = pl.DataFrame({"x": x, "c": c, "y": y, "t": t})
    train = len(x) - held_out if len(x) - held_out >= 12 else len(x)
    stream = make_stream(table, "y", time="t", train_rows=train, allow_leak=True)
    np.testing.assert_allclose(stream.X[:train, 0].mean(), 0, atol=1e-9)
    np.testing.assert_allclose(stream.X[:train, 0].std(), 1, atol=1e-9)
    np.testing.assert_allclose(stream.Y[:train].mean(), 0, atol=1e-9)
    np.testing.assert_allclose(stream.Y[:train].std(), 1, atol=1e-9)
    np.testing.assert_array_equal(stream.X[:, 1:].sum(axis=1), 1)
    assert list(stream.rows) == sorted(range(len(t)), key=lambda row: t[row])
    np.testing.assert_allclose(
        stream.in_units(stream.Y)[:, 0], np.array(y)[stream.rows], rtol=1e-9, atol=1e-6
    )


@given(
    dataframes(min_cols=2, max_cols=4, min_size=0, max_size=12),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["error", "mean"]),
    st.sampled_from(["auto", "regression", "classification"]),
)
def test_any_table_gives_a_stream_or_a_sentence(table, timed, grouped, impute, kind):
    """Columns of every type that Polars has, nested ones too."""
    time = table.columns[1] if timed else None
    group = table.columns[-1] if grouped else None
    options = {"time": time, "group": group, "impute": impute, "kind": kind, "allow_leak": True}
    try:
        stream = make_stream(table, table.columns[0], **options)
    except InvalidInputError:
        return
    assert np.isfinite(stream.X).all()
    assert np.isfinite(stream.Y).all()
    assert len(stream.X) == len(stream.Y) == len(stream.rows)
