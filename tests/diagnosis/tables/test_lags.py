"""Previous values of the targets as features, against a plain loop."""

import re
from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

import retarget as rt
from retarget.diagnosis.tables import roles as roles_module
from retarget.diagnosis.tables.prepare import prepare
from retarget.diagnosis.tables.roles import Roles, order_rows, order_test_rows
from retarget.errors import InvalidInputError
from support.prepared_streams import make_stream

ROWS = 40


def by_hand(table, targets, lags, time=None, group=None):
    """Rows (their numbers from 1) and lags: every earlier row is looked up."""
    order = list(range(len(table)))
    if time is not None:
        order.sort(key=lambda row: table[time][row])
    numbers, features, seen = [], [], []
    for row in order:
        values = [table[target][row] for target in targets]
        if any(value is None or value != value for value in values):
            continue
        mine = [past for label, past in seen if group is None or label == table[group][row]]
        seen.append((None if group is None else table[group][row], values))
        if len(mine) < lags:
            continue
        numbers.append(row + 1)
        steps = range(1, lags + 1)
        features.append([mine[-step][k] for k in range(len(targets)) for step in steps])
    return numbers, features


def panel(gaps=()):
    """Several series in one table, in no order, of different lengths."""
    rng = np.random.default_rng(5)
    y = [None if k in gaps else float(value) for k, value in enumerate(rng.normal(size=ROWS))]
    return pl.DataFrame(
        {
            "store": rng.choice(["north", "south", None], ROWS, p=[0.5, 0.3, 0.2]).tolist(),
            "day": [date(2026, 1, 1) + timedelta(days=int(k)) for k in rng.permutation(ROWS)],
            "price": rng.normal(size=ROWS),
            "y": y,
            "*": rng.normal(size=ROWS),  # a name, not a pattern
        }
    )


@pytest.mark.parametrize("gaps", [(), (0, 7, 8, 21)])
@pytest.mark.parametrize("group", [None, "store"])
@pytest.mark.parametrize("time", [None, "day"])
@pytest.mark.parametrize(("targets", "lags"), [(["y"], 1), (["y"], 4), (["*", "y"], 3)])
def test_lags_are_the_targets_of_earlier_rows(targets, lags, time, group, gaps):
    table = panel(gaps)
    options = {"time": time, "group": group, "lags": lags, "impute": "mean"}
    others = set(table.columns) - {"price", time, group, *targets}
    stream = make_stream(table, targets, drop=others, **options, standardize=False)
    numbers, features = by_hand(table, targets, lags, time, group)
    assert stream.rows.tolist() == numbers
    np.testing.assert_array_equal(stream.X[:, 1:], features)
    np.testing.assert_array_equal(stream.X[:, 0], table["price"].to_numpy()[stream.rows - 1])
    np.testing.assert_array_equal(stream.Y, table[targets].to_numpy()[stream.rows - 1])
    steps = ["1 row before", "2 rows before", "3 rows before", "4 rows before"][:lags]
    names = [f"{target}, {step}" for target in targets for step in steps]
    assert stream.feature_names == ("price", *names)
    (note,) = [note for note in stream.notes if "lags" in note]
    assert note == (
        f"Added lags of {', '.join(map(repr, targets))} as features, lags={lags} (--lags {lags}). "
        f"Left out rows without enough earlier rows{' in their group' if group else ''}: "
        f"{ROWS - len(gaps) * ('y' in targets) - len(numbers)}."
    )


def test_lags_are_numbers_and_scaled_like_any_other():
    values = np.random.default_rng(0).normal(3, 7, ROWS)
    stream = make_stream(pl.DataFrame({"y": values}), "y", lags=2, train_rows=20)
    for column, lagged in zip(stream.X.T, (values[1:-1], values[:-2]), strict=True):
        learned = lagged[:20]
        np.testing.assert_allclose(column, (lagged - learned.mean()) / learned.std(), atol=1e-12)
    yes = [True, False, False, True, True, False, True, True, False, True, True, True]
    for target in (yes, [str(int(one)) for one in yes]):  # as numbers, not one-hot
        stream = make_stream(
            pl.DataFrame({"y": target}), "y", kind="regression", lags=1, standardize=False
        )
        np.testing.assert_array_equal(stream.X[:, 0], yes[:-1])
        np.testing.assert_array_equal(stream.Y[:, 0], yes[1:])


def test_a_lag_is_not_a_leak():
    line = pl.DataFrame({"y": np.arange(40.0) * 2 + 1})  # each value is the previous one plus 2
    assert make_stream(line, "y", lags=2).X.shape == (38, 2)
    leak = line.with_columns(x=-pl.col("y"))
    with pytest.raises(InvalidInputError, match="the target 'y' is given away by 'x' "):
        make_stream(leak, "y", lags=2)


def test_a_test_set_has_own_lags():
    table = panel().select("day", "store", "price", "y")
    given = Roles(("y",), time="day", group="store", lags=2, standardize=False)
    _, preparation = prepare(order_rows(table, given))
    later = panel((3, 4)).drop_nulls("y").reverse()
    stream = preparation.apply(order_test_rows(later, given))
    numbers, features = by_hand(later, ["y"], 2, "day", "store")
    assert stream.rows.tolist() == numbers
    np.testing.assert_array_equal(stream.X[:, 1:], features)
    left = len(later) - len(numbers)
    assert any(note.endswith(f"earlier rows in their group: {left}.") for note in stream.notes)
    with pytest.raises(InvalidInputError, match="--lags. is 2 .* more than 1"):
        preparation.apply(order_test_rows(later[:1], given))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({}, {"lags": -1}, "lags .--lags. is -1; expected a whole number of previous values, or 0"),
        ({}, {"lags": 1.5}, "lags .--lags. is 1.5; expected a whole number"),
        ({}, {"lags": True}, "lags .--lags. is True; expected a whole number"),
        ({}, {"lags": 40}, "lags .--lags. is 40 and the table has 40 rows; expected fewer lags"),
        ({"g": [1, 2] * 20}, {"group": "g", "lags": 20}, "no group has more than 20 rows"),
        ({"g": [[1]] * ROWS}, {"group": "g", "lags": 1}, r"'g' holds List\(Int64\); expected text"),
        ({"y": ["a", "b"] * 20}, {"lags": 1}, "lags .--lags. needs a target of numbers, and 'y' h"),
        ({"y": [1, 2] * 20}, {"lags": 1}, "'y' holds classes; .* with Y.astype.float. .--kind"),
        ({"y, 1 row before": 1.0}, {"lags": 1}, "lags has more than one column named 'y, 1 row b"),
    ],
)
def test_what_has_no_lags(columns, options, message):
    table = pl.DataFrame({"y": np.random.default_rng(0).normal(size=ROWS).tolist()} | columns)
    with pytest.raises(InvalidInputError, match=message):
        make_stream(table, "y", **options)


def test_lags_of_numbers_that_look_like_classes():
    table = pl.DataFrame({"y": [1, 2, 2, 1] * 10})
    with pytest.raises(InvalidInputError, match=r"Y\.astype\(float\)"):
        make_stream(table, "y", lags=1)
    assert make_stream(table, "y", lags=1, kind="regression").X.shape == (39, 1)
    assert make_stream(table, "y", lags=np.int64(2), kind="regression").X.shape == (38, 2)


def test_lags_that_would_not_fit(monkeypatch):
    monkeypatch.setattr(roles_module, "LARGEST_TABLE", 2000)
    with pytest.raises(InvalidInputError, match=r"lags would take 3\.2 kB"):
        make_stream(pl.DataFrame({"y": np.arange(40.0)}), "y", lags=10)


def a_series(rows=80):
    rng = np.random.default_rng(2)
    y = np.sin(np.arange(rows) / 3) + 0.05 * rng.normal(size=rows)
    months = [f"{1949 + k // 12}-{k % 12 + 1:02}" for k in range(rows)]
    return pl.DataFrame({"month": months, "y": y})


def test_a_series_alone_needs_lags(command, tmp_path):
    series, later = tmp_path / "series.csv", tmp_path / "later.csv"
    a_series().write_csv(series)
    a_series(30).write_csv(later)
    asked = ("diagnose", series, "--target", "y", "--test", later, "--out", tmp_path)
    for more in (["--time", "month"], ["--drop", "month"]):
        code, shown = command(*asked, *more)
        assert code == 2
        assert "no feature is left to learn from. There are no columns besides target" in shown
        advice = re.search(r"(--lags) (3). takes", shown).groups()
    code, shown = command(*asked, "--time", "month", *advice, "--verbose")
    assert code == 0
    assert "Note: Added lags of 'y' as features, lags=3 (--lags 3)." in shown
    assert pl.read_parquet(tmp_path / "shift.parquet")["row"].to_list() == list(range(4, 81))


def test_lags_in_python():
    values = a_series()["y"].to_numpy()
    found = rt.diagnose(np.ones(80), values, lags=2, features=None)
    assert found.stream.feature_names == ("y, 1 row before", "y, 2 rows before")
    rows = found.stream.rows - 1
    lagged = np.column_stack([values[rows - 1], values[rows - 2]])
    np.testing.assert_allclose(found.stream.X * lagged.std(0) + lagged.mean(0), lagged, atol=1e-12)


def test_classes_are_not_told_of_lags():
    with pytest.raises(InvalidInputError, match="no feature is left") as raised:
        make_stream(pl.DataFrame({"y": ["a", "b"] * 20}), "y")
    assert "lags=" not in str(raised.value)
