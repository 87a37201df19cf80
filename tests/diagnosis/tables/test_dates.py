"""Dates in text, for the order of rows and as features, against Python's datetime."""

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.diagnosis.tables.dates import date_pattern, parsed_dates
from retarget.diagnosis.tables.frames import as_table, assembled
from retarget.diagnosis.tables.prepare import prepare
from retarget.diagnosis.tables.read import read_table
from retarget.diagnosis.tables.roles import Roles, order_rows, order_test_rows
from retarget.errors import InvalidInputError
from support.prepared_streams import make_stream

RNG = np.random.default_rng(4)
DAYS = [datetime(1899, 12, 20) + timedelta(days=int(k)) for k in RNG.permutation(90) * 700]
MOMENTS = [day + timedelta(seconds=k * 1234 % 86400) for k, day in enumerate(DAYS)]
MINUTES = [moment.replace(second=0) for moment in MOMENTS]
MONTHS = [day.replace(day=1) for day in DAYS]
EAST = timezone(timedelta(hours=5, minutes=30))


def plain(moment):
    """Month and day without zeros before them, which strftime cannot write everywhere."""
    return f"{moment.month}/{moment.day}/{moment.year}"


FORMATS = [
    (DAYS, "%Y-%m-%d"),
    (DAYS, "%Y/%m/%d"),
    (DAYS, "%Y.%m.%d"),
    (DAYS, "%d/%m/%Y"),
    (DAYS, "%m/%d/%Y"),
    (DAYS, plain),
    (DAYS, "%d.%m.%Y"),
    (DAYS, "%m-%d-%Y"),
    (DAYS, "%b %d %Y"),
    (DAYS, "%B %d, %Y"),
    (DAYS, "%d %b %Y"),
    (DAYS, "%d-%b-%Y"),
    (DAYS, "%d. %B %Y"),
    (MONTHS, "%Y-%m"),
    (MONTHS, "%Y/%m"),
    (MONTHS, "%b %Y"),
    (MONTHS, "%B-%Y"),
    (MINUTES, "%d.%m.%Y %H:%M"),
    (MINUTES, "%b %d, %Y, %H:%M"),
    (MINUTES, "%Y/%m/%d %H:%M"),
    (MOMENTS, "%Y-%m-%dT%H:%M:%S"),
    (MOMENTS, "%Y-%m-%d %H:%M:%S.%f"),
    (MOMENTS, "%m/%d/%Y %H:%M:%S"),
    ([moment.replace(tzinfo=EAST) for moment in MOMENTS], "%Y-%m-%d %H:%M:%S%z"),
    ([moment.replace(tzinfo=UTC) for moment in MOMENTS], "%d %b %Y %H:%M:%SZ"),
]


def written(moments, how):
    return [how(one) if callable(how) else one.strftime(how) for one in moments]


@pytest.mark.parametrize(("moments", "how"), FORMATS)
def test_dates_are_read_as_they_are_written(moments, how):
    rows = len(moments)
    seconds = [one.replace(tzinfo=one.tzinfo or UTC).timestamp() for one in moments]
    columns = {"t": written(moments, how), "x": RNG.normal(size=rows), "y": RNG.normal(size=rows)}
    table = pl.DataFrame(columns)
    feature = make_stream(table, "y", standardize=False)
    np.testing.assert_allclose(feature.X[:, 0], seconds, rtol=0, atol=1e-4)
    assert "Converted dates and times to seconds: 't'." in feature.notes
    ordered = make_stream(table, "y", time="t")
    assert ordered.rows.tolist() == (np.argsort(seconds, kind="stable") + 1).tolist()
    assert ordered.times.tolist() == [columns["t"][row - 1] for row in ordered.rows]


def timed(texts):
    return pl.DataFrame({"t": texts, "x": range(len(texts)), "y": np.arange(len(texts)) ** 2.0})


NEITHER = ["03/04/2000", "05/04/2000", "12/12/2001"]
EXPECTED = "expected dates such as 2000-01-31, .* or numbers"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (NEITHER, "such as '03/04/2000' .row 1., and no number above 12 tells whether the day or"),
        ([None, "1.2.2000 13:45"], r"such as '1.2.2000 13:45' .row 2.,.* as 2000-01-31"),
        (
            ["13/04/2000", None, "04/13/2000"],
            "'13/04/2000' in row 1 has the day first, '04/13",
        ),
        (["04/13/2000", "13/04/2000"], "'13/04/2000' in row 2 has the day first, '04/13/2000' in"),
        (
            ["2000-01-01", "2000/01/02"],
            "'2000-01-01' in row 1 and '2000/01/02' in row 2; write",
        ),
        ([None, "1 Jan 2000", "Jan 2 2000"], "'1 Jan 2000' in row 2 and 'Jan 2 2000' in row 3"),
        (["2000-01", "2000-01-02"], "'2000-01' in row 1 and '2000-01-02' in row 2"),
        (
            ["2000-01-01", "2000-01-01 10:00+02:00"],
            "and '2000-01-01 10:00.02:00' in row 2",
        ),
    ],
)
def test_unclear_dates_are_an_error(texts, message):
    table = pl.concat([timed(texts)] * 4)
    with pytest.raises(InvalidInputError, match=f"the column 't' holds dates .*{message}"):
        make_stream(table, "y", time="t", impute="mean")
    with pytest.raises(InvalidInputError, match=f"the column 't' holds dates .*{message}"):
        make_stream(table, "y", impute="mean")
    assert make_stream(table, "y", drop="t").feature_names == ("x",)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["soon", "2000-01-01"], f"holds 'soon' in row 1; {EXPECTED}"),
        (["2000-01-01", "2000/01/01", "soon"], f"holds 'soon' in row 3; {EXPECTED}"),
        (["2000-01-01", "2000-02-30"], f"holds '2000-02-30' in row 2; {EXPECTED}"),
        (["31/12/2000", "30/02/2000"], f"holds '30/02/2000' in row 2; {EXPECTED}"),
        (["1 Jan 2000", "1 Jam 2000"], f"holds '1 Jam 2000' in row 2; {EXPECTED}"),
        (["2000-01-01 25:00"], f"holds '2000-01-01 25:00' in row 1; {EXPECTED}"),
        (["1/2/00", "13/2/00"], f"holds '1/2/00' in row 1; {EXPECTED}"),
        (["\u0663/\u0664/2000"], EXPECTED),
        (["1.5", "inf"], "the time 't' is missing in 1 of 2 rows .the first is row 2"),
    ],
)
def test_times_that_are_no_dates(texts, message):
    with pytest.raises(InvalidInputError, match=message):
        make_stream(timed(texts), "y", time="t")


def test_the_advice_for_dates_that_are_not_clear():
    with pytest.raises(InvalidInputError, match="as 2000-01-31"):
        make_stream(timed(NEITHER), "y", time="t")
    texts = [f"{text[6:]}-{text[:2]}-{text[3:5]}" for text in NEITHER]  # they are American
    assert make_stream(timed(texts), "y", time="t").rows.tolist() == [1, 2, 3]
    texts = [f"{text[6:]}-{text[3:5]}-{text[:2]}" for text in reversed(NEITHER)]
    assert make_stream(timed(texts), "y", time="t").rows.tolist() == [3, 2, 1]


def test_rows_are_named_as_in_the_file():
    table = timed(["2000-01-01", "2000-01-02", "2000/01/03", "2000-01-04"])
    table = table.with_columns(late=pl.Series([4, 3, 2, 1]), y=pl.Series([1.0, 4.0, 9.0, None]))
    with pytest.raises(InvalidInputError, match="'2000/01/03' in row 3 .* in row 2"):
        make_stream(table, "y", time="late", impute="mean")


def test_text_that_only_begins_like_dates_is_text():
    texts = ["2000-01-01", "soon", "2000-02-30", "03/04/2000"] * 10
    stream = make_stream(timed(texts), "y")
    assert stream.feature_names[:2] == ("t=03/04/2000", "t=2000-01-01")
    assert make_stream(timed(["2000-02-30", "2000-02-31"] * 10), "y").X.shape == (20, 3)


def test_the_format_of_a_test_set():
    table = timed([f"{k % 28 + 1:02}/{k % 12 + 1:02}/2000" for k in range(40)])
    _, preparation = prepare(order_rows(table, Roles(("y",), standardize=False)))

    def applied(texts):
        return preparation.apply(order_test_rows(timed(texts), preparation.roles)).X[:, 0]

    assert applied(["03/04/2000"]) == datetime(2000, 4, 3, tzinfo=UTC).timestamp()
    with pytest.raises(InvalidInputError, match="'04/13/2000' in 1 rows"):
        applied(["04/13/2000"])
    real = table.with_columns(t=pl.Series(DAYS[:40]))  # dates in one file, text in the other
    _, preparation = prepare(order_rows(real, Roles(("y",), standardize=False)))
    for text in ("2000-04-03", "2000-04-03T02:00+02:00"):
        assert applied([text]) == datetime(2000, 4, 3, tzinfo=UTC).timestamp()


NANOSECONDS = [1_700_000_000_000_000_003, 1_700_000_000_000_000_001, 1_700_000_000_000_000_002]
FINE_TIMES = {
    "ISO": [f"2023-11-14T22:13:20.{k:09}" for k in (3, 1, 2)],
    "ISO before 1970": [f"1899-11-14T22:13:20.{k:09}Z" for k in (3, 1, 2)],
    "far beyond nanoseconds": [f"9999-12-31T23:59:59.9999999999{k}" for k in (3, 1, 2)],
    "digits of several lengths": [
        f"2000-01-01 00:00:00.000000{digits}" for digits in ("9", "11", "2")
    ],
    "names": [f"14 Nov 2023 22:13:20.{k:09}" for k in (3, 1, 2)],
    "text of integers": [f" {number}" for number in NANOSECONDS],
    "integers": NANOSECONDS,
    "NumPy": np.array(NANOSECONDS, dtype="datetime64[ns]"),
    "picoseconds": np.array([3000, 1000, 2000], dtype="datetime64[ps]"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FINE_TIMES)
def test_rows_within_a_microsecond_are_sorted(kind):
    rows = {"x": np.arange(3.0), "y": np.arange(3.0) ** 2}
    table = as_table({"t": FINE_TIMES[kind], **rows})
    ordered = order_rows(table, Roles(("y",), time="t"))
    assert ordered.numbers.tolist() == [2, 3, 1]
    assert ordered.notes == ("Sorted the rows by 't'; 3 moved.",)


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+05:30"])
@pytest.mark.parametrize("kind", ["moments", "durations"])
def test_rows_within_a_microsecond_of_pandas(kind, zone):
    pd = pytest.importorskip("pandas")
    times = pd.Series(pd.to_datetime(NANOSECONDS)).dt.tz_localize(zone)
    if kind == "durations":
        times = times - times[1]
    table, target, named = assembled(np.arange(3.0), np.arange(3.0), {"time": times})
    assert order_rows(table, Roles(target, time=named["time"])).numbers.tolist() == [2, 3, 1]
    expected = [None if kind == "durations" else "UTC" if zone == "+05:30" else zone]
    assert [getattr(table[named["time"]].dtype, "time_zone", None)] == expected


@pytest.mark.parametrize("size", [1, 10**9])
@pytest.mark.parametrize("space", ["", " "])
def test_integers_after_a_space_stay_integers(tmp_path, space, size):
    path = tmp_path / "times.csv"
    times = [(size - 1) * 10**18 + nanoseconds for nanoseconds in NANOSECONDS]
    lines = [f"{space}{time},{k}.5,{k}" for k, time in enumerate(times)]
    path.write_text("\n".join(["t,x,y", *lines]))
    table = read_table(path)
    assert table["t"].to_list() == times
    assert order_rows(table, Roles(("y",), time="t")).numbers.tolist() == [2, 3, 1]


@pytest.mark.parametrize(
    ("times", "rows"),
    [
        (["1600000000.123456789", "1600000000.123456788", "5", "7.25"], 2),
        (["1600000000.123456", "1600000000.123455", "5", "5"], 0),
        (["1.6000000000000001e18", "1.6000000000000001e18", "1.6e18", "1.7e18"], 3),
        (["4503599627370497.0", "4503599627370497.0", "0.1", "0.1"], 0),  # whole, and short
        (pl.Series([0.1, 0.1, 16777215, 16777215], dtype=pl.Float32), 0),
        (pl.Series([0.12345678, 0.123456781, 2**25 + 4, 2**25 + 5], dtype=pl.Float32), 4),
    ],
)
def test_rounded_decimal_times_are_noted(tmp_path, times, rows):
    table = pl.DataFrame({"t": times, "x": range(4), "y": [0.5, 1, 2, 3]})
    if table["t"].dtype == pl.String:
        table.write_csv(tmp_path / "times.csv")
        table = read_table(tmp_path / "times.csv")
    notes = order_rows(table, Roles(("y",), time="t")).notes
    noted = [note for note in notes if "keep their order in the file" in note]
    assert [note.partition(" ")[0] for note in noted] == [str(rows)] * bool(rows)


@given(st.lists(st.one_of(st.none(), st.text("0123456789-/.: TZ+JanM,")), min_size=1))
def test_any_text_is_a_date_or_none(texts):
    column = pl.Series("t", texts, dtype=pl.String)
    try:
        pattern = date_pattern(column, np.arange(len(texts)))
    except InvalidInputError:
        return
    if pattern is not None:
        assert len(parsed_dates(column, pattern)) == len(texts)
