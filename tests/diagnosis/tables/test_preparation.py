"""From tables to streams: features, missing values, order, targets, leaks, and what is refused."""

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
INF, NAN, DAY = float("inf"), float("nan"), date(2026, 1, 1)


def a_table(rows=ROWS, **more):
    rng = np.random.default_rng(3)
    columns = {
        "x": rng.normal(5.0, 3.0, rows),
        "k": rng.integers(0, 4, rows),
        "color": rng.choice(["red", "green", "blue"], rows).tolist(),
        "y": rng.normal(-2.0, 0.5, rows),
    }
    return pl.DataFrame(columns | more, strict=False)


def test_preparation_learns_from_the_first_rows():
    table = a_table()
    stream = make_stream(table, "y")
    assert stream.feature_names == ("x", "k", "color=blue", "color=green", "color=red")
    x, y = table["x"].to_numpy(), table["y"].to_numpy()
    np.testing.assert_allclose(stream.X[:, 0], (x - x.mean()) / x.std(), atol=1e-12)
    np.testing.assert_array_equal(stream.X[:, 3], (table["color"] == "green").to_numpy())
    np.testing.assert_allclose(stream.in_units(stream.Y)[:, 0], y, atol=1e-12)
    assert (stream.target_means[0], stream.target_scales[0]) == pytest.approx((y.mean(), y.std()))
    assert (stream.kind, stream.rows.tolist()) == ("regression", list(range(1, ROWS + 1)))
    assert stream.notes == ("Made one feature for each category: 'color'.",)
    both = make_stream(table.with_columns(z=pl.col("k") ** 2), ["z", "y"])
    assert both.target_names == ("z", "y")
    np.testing.assert_allclose(both.Y.std(axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(both.in_units(both.Y)[:, 0], table["k"] ** 2, atol=1e-9)
    as_it_is = make_stream(table, "y", standardize=False)
    np.testing.assert_array_equal(as_it_is.X[:, 0], x)
    np.testing.assert_array_equal(as_it_is.Y[:, 0], y)
    late = pl.int_range(pl.len()) >= 40
    later = table.with_columns(
        x=pl.when(late).then(1e6).otherwise("x"),
        color=pl.when(late).then(pl.lit("black")).otherwise("color"),
        y=pl.when(late).then(99.0).otherwise("y"),
    )
    stream, first = make_stream(later, "y", train_rows=40), make_stream(table[:40], "y")
    np.testing.assert_allclose(stream.X[:40], first.X, atol=1e-12)
    np.testing.assert_allclose(stream.Y[:40], first.Y, atol=1e-12)
    np.testing.assert_array_equal(stream.X[40:, 2:], 0)
    assert stream.notes[-2] == (
        "In 20 rows, 'color' holds a category that was never learned ('black'); its features are "
        "0 there."
    )


def test_columns_that_are_left_out():
    numbers = np.random.default_rng(0).permutation(ROWS) + 1000
    identifiers = ("id", "user_id", "PassengerId", "index", "ROW-id", "column_1")
    reasons = {
        "constant columns": {"c1": [7] * ROWS, "c2": [0.1 + 0.2, 0.3] * 30, "c3": ["same"] * ROWS},
        "columns that are empty in the rows learned from": {
            "n1": [None] * ROWS,
            "n2": [NAN] * ROWS,
        },
        "text columns with too many different values": {"t": [f"a text {k}" for k in range(ROWS)]},
        "columns of lists, bytes or objects": {
            "o1": [[1]] * ROWS,
            "o2": [b"1"] * ROWS,
            "o3": [{"a": 1}] * ROWS,
        },
        "columns that seem to number the rows (rename them to keep them)": dict.fromkeys(
            identifiers, numbers
        ),
    }
    columns = {name: column for group in reasons.values() for name, column in group.items()}
    stream = make_stream(a_table(**columns), "y")
    assert stream.feature_names == make_stream(a_table(), "y").feature_names
    for reason, names in reasons.items():
        assert f"Dropped {reason}: {', '.join(map(repr, names))}." in stream.notes
    many = a_table(**{f"pixel{k}": [0] * ROWS for k in range(100)})
    assert make_stream(many, "y").notes[0].endswith("'pixel7' and 92 more.")


def test_columns_that_are_kept():
    alike = {"id": [1, 2] * 30, "humid": list(range(ROWS)), "x2": list(range(ROWS))}
    table = a_table(**alike, b=[True, False, False] * 20, t=[str(k / 2) for k in range(ROWS)])
    table = table.with_columns(c=pl.col("color").cast(pl.Categorical))
    stream = make_stream(table, "y", standardize=False)
    assert {*alike, "b=false", "b=true", "c=blue", "k", "t"} <= set(stream.feature_names)
    halves = stream.X[:, stream.feature_names.index("t")]  # text that is numbers
    np.testing.assert_array_equal(halves, np.arange(ROWS) / 2)


def test_dates_become_seconds():
    days = [DAY + timedelta(days=k % 7) for k in range(ROWS)]
    table = a_table(
        day=days,
        text=[day.isoformat() for day in days],
        moment=[datetime(2026, 1, 1) + timedelta(days=k % 7) for k in range(ROWS)],
        clock=[time(k % 7) for k in range(ROWS)],
        took=[timedelta(seconds=k % 7) for k in range(ROWS)],
    ).with_columns(fine=pl.col("moment").cast(pl.Datetime("ns")))
    stream = make_stream(table, "y", standardize=False)
    of, week = dict(zip(stream.feature_names, stream.X.T, strict=True)), np.arange(ROWS) % 7
    np.testing.assert_array_equal(of["day"] - of["day"][0], 86400 * week)
    for same in ("text", "moment", "fine"):
        np.testing.assert_array_equal(of[same], of["day"])
    np.testing.assert_array_equal(of["clock"], 3600 * week)
    np.testing.assert_array_equal(of["took"], week)
    assert stream.notes[-1].startswith("Converted dates and times to seconds: 'day', 'text', 'm")


GAPS = {"x": [None, NAN, INF, -INF] + [1.0, 2.0, 3.0, 10.0] * 14}
GAPS["color"] = [None] * 2 + ["red", "blue"] * 29


@pytest.mark.parametrize(("impute", "fill"), [("mean", 4.0), ("median", 2.5), ("zero", 0.0)])
def test_missing_values_and_missing_targets(impute, fill):
    stream = make_stream(a_table(**GAPS), "y", impute=impute, standardize=False)
    np.testing.assert_array_equal(stream.X[:4, 0], fill)
    blue = stream.feature_names.index("color=blue")  # as frequent as red, and first
    np.testing.assert_array_equal(stream.X[:2, blue], 1)
    assert stream.notes[-2] == (
        f"Filled in missing numbers with {'0' if impute == 'zero' else f'the {impute}'} and "
        "missing categories with the most frequent one: 'x' 4, 'color' 2."
    )
    stream = make_stream(a_table(y=[None, NAN, *range(58)]), "y", impute=impute)
    np.testing.assert_array_equal(stream.rows, np.arange(3, 61))
    assert stream.notes[0] == "Left out rows without a target: 2."


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
    stream = make_stream(table, "y", time="t", standardize=False)
    np.testing.assert_array_equal(stream.rows, np.array(order) + 1)
    np.testing.assert_array_equal(stream.X, table["x"].to_numpy()[order][:, None])
    assert list(stream.times) == table["t"].cast(pl.String)[order].to_list()
    moved = sum(np.arange(4) != order)
    assert stream.notes[0] == f"Sorted the rows by 't'; {moved} moved."
    sorted_already = make_stream(table[order], "y", time="t")
    assert not any("Sorted" in note for note in sorted_already.notes)


def test_groups_are_text_and_no_feature():
    stream = make_stream(a_table(g=["=1+1", "<script>", None] * 20), "y", group="g")
    assert list(stream.groups[:3]) == ["=1+1", "<script>", "(missing)"]
    assert stream.group_column == "g"
    assert not any(name.startswith("g") for name in stream.feature_names)
    both = make_stream(a_table(g=["a", "b", "c"] * 20), "y", group="g", group_as_feature=True)
    assert both.feature_names[-3:] == ("g=a", "g=b", "g=c")
    assert list(make_stream(a_table(), "k", group="k").groups) == a_table()["k"].cast(str).to_list()
    for dtype in (pl.Duration, pl.Date, pl.Float64, pl.Boolean, pl.Time):
        stream = make_stream(a_table(g=pl.Series(range(ROWS)).cast(dtype)), "y", group="g")
        assert all(isinstance(group, str) for group in stream.groups)
    assert stream.groups.dtype == object  # one long group does not make all of them long


NUMBER = ("y",)


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        (["b", "a", "<i>"] * 20, "auto", ("<i>", "a", "b")),
        ([True, False, False] * 20, "auto", ("false", "true")),
        ([10, 9, 2] * 20, "auto", ("2", "9", "10")),
        (pl.Series(["b", "a", "c"] * 20, dtype=pl.Categorical), "auto", ("a", "b", "c")),
        (pl.Series(["b", "a", "c"] * 20, dtype=pl.Enum(["c", "b", "a"])), "auto", ("a", "b", "c")),
        ([10, 9, 2] * 20, "regression", NUMBER),
        ([True, False] * 30, "regression", NUMBER),
        ([1.0, 2.0] * 30, "auto", NUMBER),
        ([1.0, 2.0] * 30, "classification", ("1", "2")),
        (list(range(7)) * 8 + [0] * 4, "auto", NUMBER),
        (list(range(6)) * 10, "auto", tuple("012345")),
        ([str(k / 7) for k in range(ROWS)], "regression", NUMBER),
        ([str(k % 7) for k in range(ROWS)], "auto", tuple("0123456")),
        (["a", "b"] * 20 + ["c"] * 20, "auto", ("a", "b", "c")),  # c in rows held out only
    ],
)
def test_the_kind_of_target_and_its_classes(labels, kind, expected):
    stream = make_stream(a_table(y=labels), "y", kind=kind, train_rows=40)
    assert stream.target_names == expected
    assert stream.kind == ("regression" if expected == NUMBER else "classification")
    if stream.kind == "classification":
        text = [label.removesuffix(".0") for label in pl.Series(labels).cast(pl.String)]
        assert [expected[k] for k in stream.Y.argmax(axis=1)] == text
        np.testing.assert_array_equal(stream.Y.sum(axis=1), 1)
        np.testing.assert_array_equal(stream.in_units(stream.Y), stream.Y)
    guessed = any(
        "Y.astype(float) (--kind regression) takes it as a number" in note for note in stream.notes
    )
    assert guessed == (type(labels[0]) is int and len(expected) > 1)


X2 = pl.col("x") ** 2


@pytest.mark.parametrize(
    ("target", "made", "how"),
    [
        ("y", pl.col("y"), "an exact lin"),
        ("y", 1e6 - 3 * pl.col("y"), "an exact lin"),
        ("y", pl.col("y").cast(pl.Float32), "an exact lin"),
        (["y", "z"], X2 * -2 + 1, "an exact lin"),
        ("k", pl.col("k") * 3 + 1, "each class"),
        ("k", pl.col("k").cast(pl.String) + "!", "each class"),
        ("flag", pl.col("k") == 1, "each class"),
    ],
)
def test_a_feature_that_gives_the_target_away(target, made, how):
    table = a_table().with_columns(pl.col("y").round(2), z=X2, flag=pl.col("k") == 1)
    table = table.with_columns(made.alias("it is $y"))
    with pytest.raises(InvalidInputError, match=f"by 'it is .y' .{how}.*leave it out .*, or"):
        make_stream(table, target)
    kept = make_stream(table, target, allow_leak=True).feature_names
    assert any(name.startswith("it is $y") for name in kept)
    make_stream(table, target, drop=["it is $y"])


def test_what_is_not_a_leak():
    noise = 1e-3 * np.random.default_rng(0).normal(size=ROWS)
    # the code tells some classes apart, not all
    table = a_table().with_columns(near=pl.col("y") + noise, code=pl.col("k") >= 2)
    assert "near" in make_stream(table, "y").feature_names
    assert "code=true" in make_stream(table, "k").feature_names
    few = pl.DataFrame({"x": [1.0, 2.0, 3.0], "y": [2.0, 4.0, 6.0]})  # it may be chance
    make_stream(few, "y")


def bikes(rows=200, seed=0):
    """Rented bicycles: whole numbers of two kinds of people, whose sum is the target."""
    rng = np.random.default_rng(seed)
    casual, registered = rng.poisson(40, rows), rng.poisson(160, rows)
    return pl.DataFrame(
        {
            "temp": rng.normal(15, 8, rows),
            "hour": rng.integers(0, 24, rows),
            "casual": casual.astype(float),
            "registered": registered.astype(float),
            "weather": rng.choice(["clear", "rain", "snow"], rows).tolist(),
            "bikers": (casual + registered).astype(float),
        }
    )


def test_columns_that_add_up_to_the_target():
    parts = ("casual", "registered")
    table = bikes()
    assert make_stream(table, "bikers").adding_up == parts
    assert make_stream(table, "bikers", train_rows=150).adding_up == parts
    assert make_stream(table, "bikers", drop=["casual"]).adding_up == ()
    # one of several targets; in other units; in single precision
    table = table.with_columns(other=pl.col("temp") ** 2)
    assert make_stream(table, ["other", "bikers"]).adding_up == parts
    scaled = table.with_columns(bikers=3e6 * pl.col("bikers") - 7, casual=pl.col("casual") / 9)
    assert make_stream(scaled, "bikers", drop=["other"]).adding_up == parts
    single = bikes().cast({"bikers": pl.Float32, "casual": pl.Float32})
    assert make_stream(single, "bikers").adding_up == parts
    # by kind of weather, too: the name of the column is told once
    fee = pl.col("weather").replace_strict({"clear": 0.0, "rain": 5.0, "snow": 9.0})
    paid = bikes().with_columns(bikers=pl.col("bikers") + fee)
    assert make_stream(paid, "bikers").adding_up == (*parts, "weather")


@pytest.mark.parametrize(
    "table",
    [
        bikes().drop("casual"),
        bikes().with_columns(
            pl.col("bikers") + pl.Series(np.random.default_rng(1).normal(size=200))
        ),
        # the sum of what the columns were before they were rounded to tens
        bikes().with_columns((pl.col("casual", "registered") / 10).round()),
        bikes(rows=21),  # 7 features: too few rows to tell
        pl.concat([bikes(rows=6).drop("casual")] * 40),  # copies of 6 rows tell no more than these
        pl.concat([bikes(rows=12).drop("casual")] * 40),
        bikes().with_columns(bikers=(pl.col("casual") * pl.col("registered")).sqrt()),
        pl.DataFrame(np.random.default_rng(2).normal(size=(60, 90))).with_columns(
            bikers=pl.Series(np.random.default_rng(3).normal(size=60))
        ),
        bikes().with_columns(bikers=pl.when(pl.col("temp") > 15).then(1.5).otherwise(2.5)),
    ],
)
def test_columns_that_do_not_add_up(table):
    assert make_stream(table, "bikers").adding_up == ()


def test_earlier_values_of_a_straight_line():
    rows = np.arange(100.0)
    table = pl.DataFrame({"x": np.random.default_rng(0).normal(size=100), "y": rows**2})
    assert make_stream(table, "y", lags=3, allow_leak=True).adding_up == ()


TEXTS, LATE = [f"t{k}" for k in range(ROWS)], {"train_rows": 40}


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        # features
        ({"t": TEXTS[:3] + ["7"] * 57}, {}, r"'t' holds numbers, but text in 3 rows \('t0', 't1'"),
        ({"t": ["2026-01-01", "2026-01-02"] * 20 + ["soon"] * 20}, LATE, "'soon' in 20 .* dates"),
        ({"t": [str(k) for k in range(40)] + ["?"] * 20}, LATE, r"the text '\?' in 20 .* numbers"),
        ({"t": [1e308, -1e308] * 30}, {}, r"'t' holds numbers too large .* .up to 1e\+308"),
        (GAPS, {}, "missing or infinite: 'x' 4, 'color' 2 .of 60 rows.; .*impute="),
        ({f"m{k}": [None, *range(59)] for k in range(20)}, {}, "'m7' 1 and 12 more .of 60 rows"),
        # times and groups
        ({"t": ["01/02/2026"] * ROWS}, {"time": "t"}, "such as '01/02/2026' .row 1., and no"),
        ({"t": ["2026-01-01"] * 59 + ["soon"]}, {"time": "t"}, "time 't' holds 'soon' in row 60"),
        ({"t": [None] + [1] * 59}, {"time": "t"}, "'t' is missing in 1 of 60 rows .* is row 1[)]"),
        ({"t": [1.0, NAN] + [INF] * 58}, {"time": "t"}, "the time 't' is missing in 59 of 60 rows"),
        ({"t": [[1]] * ROWS}, {"time": "t"}, r"'t' holds List\(Int64\); expected dates or numbers"),
        ({"g": [[1]] * ROWS}, {"group": "g"}, r"'g' holds List\(Int64\); expected text"),
        # targets
        ({"y": [None, NAN, *range(58)]}, {}, "missing in 2 of 60 .*'y' in 2; .*row 1.; .*impute="),
        ({"y": [None] * ROWS}, {"impute": "mean"}, "missing in every row .'y' in 60.; no row"),
        ({"y": [4.0] * ROWS}, {}, "all values of the target 'y' are equal .4. in the 60 rows"),
        ({"y": [4.0] * ROWS}, LATE, "to learn: name a column whose values differ by Y .--target."),
        ({"y": ["a"] * ROWS}, LATE, "to learn: name a column whose values differ by Y .--target."),
        ({"y": ["a"] * 40 + ["b"] * 20}, LATE, "equal .'a'. in the 40 rows .*hold out fewer"),
        ({"y": [INF] + [1.0] * 59}, {}, "the target 'y' is infinite in 1 rows; remove"),
        ({"y": [1e308, -1e308] * 30}, {}, "the target 'y' is too large to compute with; rescale"),
        (
            {"y": [k * 1e300 for k in range(60)]},
            {"kind": "classification"},
            "holds 60 different classes in 60 rows",
        ),
        ({"y": TEXTS}, {}, "holds 60 different classes in 60 rows .'t0', 't1'"),
        ({"y": TEXTS}, {"kind": "regression"}, "holds text such as 't0'; expected"),
        ({"y": [DAY] * ROWS}, {}, "the target 'y' holds Date; expected numbers, or text"),
        ({"y": [DAY] * ROWS}, {"kind": "classification"}, "'y' holds Date; expected classes"),
        ({"y": [[1]] * ROWS}, {}, r"'y' holds List\(Int64\); expected numbers or classes"),
        ({}, {"target": ["k", "y"], "kind": "classification"}, "2 targets are named; expected one"),
        ({}, {"target": ["color", "y"]}, "the target 'color' holds text such as"),
        # roles
        (
            {},
            {"target": "Y2"},
            "Y .--target.: there is no column 'Y2'; did you mean 'y'. the c",
        ),
        ({}, {"target": ["y", "y"]}, "the list of targets, Y .--target., has more than one column"),
        ({}, {"target": []}, "no target is named; name the column to be learned"),
        ({"^a.*$": 1}, {}, "Polars takes the column names '.a...' as patterns; rename these"),
        ({}, {"time": "y"}, "'y' is both target and time; expected another column"),
        ({}, {"kind": "numbers"}, "kind .--kind. is 'numbers'; expected one of auto, regression"),
        (
            {},
            {"impute": "guess"},
            "impute .--impute. is 'guess'; expected one of error, mean",
        ),
        ({}, {"train_rows": 1}, "1 of 60 rows are left to learn from; expected at least 2"),
        ({}, {"drop": ["x", "k", "color"]}, "no feature is left to learn from. There are no col"),
        ({"x": 1, "k": 1}, {"drop": "color"}, "is left .* Dropped constant columns: 'x', 'k'"),
    ],
)
def test_what_cannot_be_learned_from_is_a_sentence(columns, options, message):
    with pytest.raises(InvalidInputError, match=message) as raised:
        make_stream(a_table(**columns), **{"target": "y", **options})
    assert "\n" not in str(raised.value)


def test_how_many_rows_there_are(monkeypatch):
    with pytest.raises(InvalidInputError, match="the table has no rows"):
        make_stream(a_table()[:0], "y")
    repeated = pl.concat([a_table(), a_table(), a_table()[:5]])
    (note,) = [note for note in make_stream(repeated, "y").notes if "earlier" in note]
    assert note.startswith("65 of 125 rows have the same features as an earlier row; ")
    monkeypatch.setattr(roles, "LARGEST_TABLE", 1000)
    with pytest.raises(InvalidInputError, match=r"features would take 2\.4 kB"):
        make_stream(a_table(), "y")


def test_the_same_preparation_for_a_test_table():
    table = a_table(g=["a", "b"] * 30, c=["a", "b"] * 30)
    stream, preparation = prepare(order_rows(table, Roles(("y",), group="g")))

    def applied(test):
        return preparation.apply(order_test_rows(test, preparation.roles))

    moved = table[30:].drop("g").with_columns(pl.col("x") + 1)
    prepared = applied(moved)
    np.testing.assert_allclose(prepared.Y, stream.Y[30:], atol=1e-12)
    right = stream.X[30:, 0] + 1 / table["x"].to_numpy().std()
    np.testing.assert_allclose(prepared.X[:, 0], right, atol=1e-12)
    np.testing.assert_array_equal(prepared.X[:, 1:], stream.X[30:, 1:])
    assert prepared.groups is None
    assert len(applied(moved[:1])) == 1
    unseen = applied(a_table(c="a", color=["red"] * 50 + ["pink"] * 9 + ["white"]))
    assert unseen.notes[-1].startswith("In 10 rows, 'color' holds a category that was never")
    assert "('pink', 'white'); its features are 0 there" in unseen.notes[-1]
    np.testing.assert_array_equal(unseen.X[50:, 2:5], 0)
    with pytest.raises(InvalidInputError, match="test .--test.: there is no column 'x'"):
        applied(table.drop("x"))
    with pytest.raises(InvalidInputError, match=r"'x' holds List\(Int64\)"):
        applied(table.with_columns(x=[1]))
    _, preparation = prepare(order_rows(table, Roles(("c",), group="g")))
    with pytest.raises(InvalidInputError, match="does not have .'z', in 30"):
        applied(table.with_columns(c=pl.Series(["a", "z"] * 30)))


@given(
    dataframes(min_cols=2, max_cols=4, min_size=0, max_size=12),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["error", "mean"]),
    st.sampled_from(["auto", "regression", "classification"]),
    st.sampled_from([0, 0, 2]),
)
def test_any_table_gives_a_stream_or_a_sentence(table, timed, grouped, impute, kind, lags):
    """Columns of every type that Polars has, nested ones too."""
    time = table.columns[1] if timed else None
    group = table.columns[-1] if grouped else None
    options = {"time": time, "group": group, "impute": impute, "kind": kind, "allow_leak": True}
    try:
        stream = make_stream(table, table.columns[0], lags=lags, **options)
    except InvalidInputError:
        return
    assert np.isfinite(stream.X).all()
    assert np.isfinite(stream.Y).all()
    assert len(stream.X) == len(stream.Y) == len(stream.rows)
