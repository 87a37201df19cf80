import gzip
import io
import zipfile
import zlib
from datetime import datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from retarget.diagnosis.tables import read, roles
from retarget.diagnosis.tables.read import read_table
from retarget.errors import InvalidInputError


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def saved(save, *arrays, **named):
    buffer = io.BytesIO()
    save(buffer, *arrays, **named)
    return buffer.getvalue()


def parquet(table):
    return saved(lambda buffer: table.write_parquet(buffer))


TABLE = pl.DataFrame(
    {"a": [1, 2, 3] * 50, "b": [0.5, None, -1e300] * 50, "c": ["x", "y", None] * 50}
)


def test_csv_and_parquet_give_the_table(tmp_path, monkeypatch):
    for name, content in (
        ("t.csv", TABLE.write_csv()),
        ("T.CSV", TABLE.write_csv()),
        ("t.tsv", TABLE.write_csv(separator="\t")),
        ("t.csv.gz", gzip.compress(TABLE.write_csv().encode())),
        ("t.tsv.gz", gzip.compress(TABLE.write_csv(separator="\t").encode())),
        ("semicolons.csv", TABLE.write_csv(separator=";")),
        ("bars.csv", TABLE.write_csv(separator="|")),
        ("windows.csv", TABLE.write_csv().replace("\n", "\r\n")),
        ("excel.csv", b"\xef\xbb\xbf" + TABLE.write_csv().encode()),
        ("t.parquet", parquet(TABLE)),
        ("a*b[c]?.parquet", parquet(TABLE)),
        ("a*b[c]?.csv", TABLE.write_csv()),
    ):
        assert_frame_equal(read_table(written(tmp_path, name, content)), TABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert_frame_equal(read_table("~/t.csv"), TABLE)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a,b\n1,NA\nN/A,2\n,nan\n", [(1, None), (None, 2)]),
        ("a,b\n1,inf\n2,-inf\n3,4\n", [(1, np.inf), (2, -np.inf), (3, 4.0)]),
        ("a;b\n1,5;x\n-2,25;y\n", [(1.5, "x"), (-2.25, "y")]),
        ("a,b\n1,2\n\n3,4\n\n", [(1, 2), (3, 4)]),
        ("a\n1\n2", [(1,), (2,)]),
        ("a,\n1,2\n", [(1, 2)]),
        ("0,1\n5,6\n", [(5, 6)]),
        ("a,b\n1,99999999999999999999\n", [(1, 99999999999999999999)]),
        ("a,b\n2026-01-31,01/02/2026\n", [("2026-01-31", "01/02/2026")]),
        ('"two\nlines",b\n1,2\n', [(1, 2)]),
    ],
)
def test_cells(tmp_path, text, rows):
    assert read_table(written(tmp_path, "t.csv", text)).rows() == rows


HOSTILE = [
    *("=1+1", "=cmd|'/c calc'!A1", "<script>alert(1)</script>", "{{ 7*7 }}", "nul\x00inside"),
    *("x" * 300_000, 'quo"te, and comma', "two\nlines", "../../etc/passwd"),
    *("[bold]markup[/bold]", "\x1b[31mred", "ユニコード 🚀"),
]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        # a decimal comma in the column, in the cell, or in another column
        ("a;b\n1.234;x\n999;y\n0,5;z\n", [[1234.0, 999.0, 0.5], ["x", "y", "z"]]),
        ("a;b\n1.234,5;x\n-999;y\n", [[1234.5, -999.0], ["x", "y"]]),
        ("a;b\n1.234;0,5\n999;-12,25\n", [[1234, 999], [0.5, -12.25]]),
        ("a;b\n1.234;0,5\n-12.500;\n", [[1234, -12500], [0.5, None]]),
        # several points
        ("a;b\n1.234.567;x\n999;y\n", [[1234567, 999], ["x", "y"]]),
        # points that cannot stand between thousands, in the column or in another one
        ("a;b\n1.234;x\n0.5;y\n", [[1.234, 0.5], ["x", "y"]]),
        ("a;b\n1.234;x\n0.125;y\n", [[1.234, 0.125], ["x", "y"]]),
        ("a;b\n1.234;x\n1500.000;y\n", [[1.234, 1500.0], ["x", "y"]]),
        ("a;b\n1.234;0.25\n999;1\n", [[1.234, 999.0], [0.25, 1.0]]),
        ("a;b\n1.234;0.12345\n999;1\n", [[1.234, 999.0], [0.12345, 1.0]]),
        ("a;b\n1,5;x\n1.5;y\n", [[1.5, 1.5], ["x", "y"]]),
        # text is text, whatever its points
        ("a;b\n1.234;0,5\nv1.234;1\n", [["1.234", "v1.234"], [0.5, 1.0]]),
        # other separators, which no decimal commas need
        ("a,b\n1.234,x\n999,y\n", [[1.234, 999.0], ["x", "y"]]),
        ("a\tb\n1.234\tx\n999\ty\n", [[1.234, 999.0], ["x", "y"]]),
    ],
)
def test_points_before_decimals_and_between_thousands(tmp_path, text, columns):
    path = tmp_path / "numbers.csv"
    path.write_text(text)
    table = read_table(path)
    assert [table[name].to_list() for name in table.columns] == columns


UNCLEAR = "when;sold;price\n1;1.234;2\n2;999;3\n\n3;12.500;4\n"


def test_points_that_may_mean_both_are_an_error(tmp_path):
    path = tmp_path / "unclear.csv"
    path.write_text(UNCLEAR)
    message = (
        "the column 'sold' holds '1.234' and '999': 1.234 may be a number with decimals, or 1234; "
        "say which with --thousands none or --thousands point"
    )
    with pytest.raises(InvalidInputError, match=message):
        read_table(path)
    assert read_table(path, thousands="none")["sold"].to_list() == [1.234, 999.0, 12.5]
    assert read_table(path, thousands="point")["sold"].to_list() == [1234, 999, 12500]
    assert read_table(path, ["when", "price"]).columns == ["when", "price"]  # nobody asks
    later = tmp_path / "later.csv"
    later.write_text("sold;price\n1.234;1\n12.500;2\n999;3\n")
    with pytest.raises(InvalidInputError, match=message):  # a number without a point says most
        read_table(later)
    with pytest.raises(InvalidInputError, match="--thousands is ','"):
        read_table(path, thousands=",")
    for others in ("0,5;0.5", "v1.5;1.2.2020", "1;1e5"):  # one says this and one that; none; none
        path.write_text(f"a;b;c\n1.234;{others}\n2.345;;\n")
        with pytest.raises(InvalidInputError, match="'a' holds '1.234' and '2.345'"):
            read_table(path)
    path.write_text("a;b\n1.234;x\n1.234;y\n")
    with pytest.raises(InvalidInputError, match="'a' holds '1.234'"):
        read_table(path)


def test_the_option_decides_only_open_cases(tmp_path):
    path = tmp_path / "both.csv"
    path.write_text("a;b;c\n1.234;0.5;1.234\n999;2.250;5,5\n")
    point, none = (read_table(path, thousands=each) for each in ("point", "none"))
    assert point["a"].to_list() == [1234, 999]
    assert none["a"].to_list() == [1.234, 999.0]
    assert point["b"].to_list() == none["b"].to_list() == [0.5, 2.25]
    assert point["c"].to_list() == [1234.0, 5.5]
    assert none["c"].to_list() == [1.234, 5.5]


def test_hostile_cells_and_names_are_data(tmp_path):
    numbers = list(range(len(HOSTILE)))
    table = pl.DataFrame({"ä;=1+1": HOSTILE, "*": numbers, "^a.*$": numbers, "abc": numbers})
    for name, content in (("t.csv", table.write_csv()), ("t.parquet", parquet(table))):
        path = written(tmp_path, name, content)
        assert_frame_equal(read_table(path), table)
        assert_frame_equal(read_table(path, ["^a.*$", "*"]), table[["*", "^a.*$"]])
        assert_frame_equal(read_table(path, drop=["^a.*$", "*"]), table[["ä;=1+1", "abc"]])
    array = written(tmp_path, "t.npz", saved(np.savez, text=np.array(HOSTILE[:4])))
    assert read_table(array)["text"].to_list() == HOSTILE[:4]


def test_arrays_become_columns(tmp_path):
    made = {
        "X": np.arange(6.0).reshape(3, 2),
        "Y": np.arange(6).reshape(3, 2),
        "when": np.array(["2026-01-01", "2026-01-02", "2026-01-03"], "datetime64[D]"),
        "user": np.array(["a", "b", "c"]),
        "half": np.ones(3, np.float16),
        "long": np.ones(3, np.longdouble),
        "other_end": np.arange(3, dtype=">i4"),
        "yes": np.array([True, False, True]),
    }
    target = read_table(written(tmp_path, "y.npz", saved(np.savez, Y=np.arange(3))))
    assert target.columns == ["y"]
    table = read_table(written(tmp_path, "t.npz", saved(np.savez, **made)))
    assert table.columns == ["x0", "x1", "y0", "y1", *list(made)[2:]]
    assert table["x1"].to_list() == [1.0, 3.0, 5.0]
    assert table["y0"].to_list() == [0, 2, 4]
    assert table["when"][1] == datetime(2026, 1, 2)
    assert table["user"].to_list() == ["a", "b", "c"]
    assert table["other_end"].to_list() == [0, 1, 2]
    assert table["half"].dtype == table["long"].dtype == pl.Float64
    by_columns = np.asfortranarray(np.arange(6.0).reshape(3, 2))
    table = read_table(written(tmp_path, "t.npy", saved(np.save, by_columns)))
    assert table.rows() == [(0.0, 1.0), (2.0, 3.0), (4.0, 5.0)]


def test_columns_are_chosen(tmp_path):
    matrix = np.arange(6.0).reshape(2, 3)
    paths = [
        written(tmp_path, "t.csv", "c0,c1,c2\n0,1,2\n3,4,5\n"),
        written(tmp_path, "t.parquet", parquet(pl.DataFrame(matrix, schema=["c0", "c1", "c2"]))),
        written(tmp_path, "t.npz", saved(np.savez, c=matrix)),
        written(tmp_path, "packed.npz", saved(np.savez_compressed, c=matrix)),
        written(tmp_path, "t.npy", saved(np.save, matrix)),
    ]
    for path in paths:
        assert read_table(path, columns=["c2", "c0"]).rows() == [(0, 2), (3, 5)]
        assert read_table(path, drop=["c0"]).columns == ["c1", "c2"]
        assert read_table(path, ["c1", "other"], require_all=False).columns == ["c1"]
        with pytest.raises(InvalidInputError, match="there is no column 'C0'"):
            read_table(path, columns=["C0"])
        with pytest.raises(InvalidInputError, match="drop: there is no column 'z'"):
            read_table(path, drop=["z"])


LYING = saved(np.save, np.zeros((30, 2))).replace(b"(30, 2)", b"(99999999999, 2)")


def npy_of_shape(shape):
    """A matrix of six numbers whose header says something else."""
    content = saved(np.save, np.ones((2, 3)))
    return content.replace(b"(2, 3), }".ljust(60), f"{shape}, }}".encode().ljust(60))


def npz_of_text(code):
    """Text with a character of that number."""
    return saved(np.savez, who=np.array([65, code], np.uint32).view("U1"))


def zipped(name, content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


NO_CSV = [
    (b"", "is empty: it holds 0 bytes"),
    (b" \n \n", "is empty: it holds only blanks"),
    ("\n1,2\n", "starts with a blank line; expected the columns"),
    ("a,b\n", "holds a header and no rows"),
    ("a,b\n,\n\n", "holds a header and no rows"),
    ("a,b\n1,2\n3\n4,5\n", "has 1 cells in line 3 and 2 columns in the header"),
    ("a,b\n1,2\n3,4,5\n", "has 3 cells in line 3 and 2 columns"),
    ("a,b,a\n1,2,3\n", "has more than one column named 'a'; give each its own"),
    ("1.5,2\n3,4\n", "has no header: its first line holds numbers .'1.5', '2'"),
    (b"a,b\n1,2\n3,caf\xe9\n", "not text in UTF-8: line 3 holds the byte 0xe9; save it as"),
    ("a,b\r1,2\r", "carriage returns only"),
    ('a,"b\n1,2\na,"b\n1,2\na,"b\n1,2\n', "cannot be read as a table .*quote"),
    ('"' + "x" * 200_000, "first line that cannot be read .field larger"),
    (b"\x00" * 1000, "is binary: 1,000 of its first 1,000 bytes are control"),
    ("\ufeffa,b\n1,2\n".encode("utf-16"), "is text in UTF-16"),
    (b"PK\x03\x04 and more", "is a zip archive .an Excel file"),
    (parquet(TABLE), "is a Parquet file, not a table in text"),
    (gzip.compress(b"a,b\n1,2\n", mtime=0), "is packed with gzip .its name should end in"),
    (b"a\rb,c,d\n1,2,3\n4,5,6\n", "a first line of 1 or 3 names: it is not clear"),
    (zlib.compress(b"a,b\n1,2\n", 6), "is packed with zlib, not a table in text"),
    (b"\x28\xb5\x2f\xfd", "is packed with zstd, not a table in text"),
]
OTHERS = [
    ("t.csv.gz", b"a,b\n1,2\n", "is not a gzip file, or is cut short or damaged"),
    ("t.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 99, mtime=0)[:-9], "cut short or damaged"),
    ("t.parquet", b"a,b\n1,2\n", "is not a Parquet file: it starts with b'a,b"),
    ("t.parquet", parquet(TABLE)[:-80], "Parquet file that is cut short or damaged"),
    ("t.npy", b"\x93NUMPY\x01", "is not a NumPy array, or is d"),
    ("t.npy", saved(np.save, np.ones((9, 2)))[:-8], "announces 144 bytes, it has 136"),
    ("t.npy", saved(np.save, np.ones(9)), r"an array of shape \(9,\); expected \(rows, col"),
    ("t.npy", saved(np.save, np.array([["a"]])), "dtype <U1; expected numbers: save text as"),
    ("t.npy", saved(np.save, np.array([[None]])), "pickled Python objects, which are never"),
    ("t.npz", saved(np.savez, a=np.array([None])), "the array 'a' holds pickled Python obj"),
    ("t.npz", saved(np.savez, X=np.ones((3, 2)), y=np.ones(4)), "lengths .'X' 3, 'y' 4"),
    ("t.npz", saved(np.savez, a=np.ones((2, 2, 2))), r"'a' has shape \(2, 2, 2\); expected"),
    ("t.npz", saved(np.savez, a=np.float64(3)), r"'a' has shape \(\); expected \(rows,\)"),
    ("t.npz", saved(np.savez), "holds no array"),
    ("t.npz", saved(np.savez, X=np.ones((3, 1)), x0=np.ones(3)), "more than one column named"),
    ("t.npz", saved(np.savez, X=np.ones((3, 1)))[:-9], "cut short, damaged, or not a zip arch"),
    ("t.npz", zipped("readme.txt", "hello"), "holds 'readme.txt', which is not an array"),
    ("t.npz", zipped("X.npy", LYING), r"the array 'X' would take 1\.6 TB in memory"),
    ("t.npy", npy_of_shape("(-2, -3)"), r"damaged: its header says .*shape is \(-2, -3\)"),
    ("t.npy", npy_of_shape(f"({10**30}, 0)"), "damaged: its header says that its shape is"),
    ("t.npz", npz_of_text(0x110000), "the array 'who' is damaged: it holds text that is not U"),
    ("t.npz", npz_of_text(0xD800), "the array 'who' is damaged: it holds text that is not Uni"),
    ("t.xlsx", b"PK", "has the suffix '.xlsx'; expected a table as .csv"),
]


@pytest.mark.parametrize(
    ("name", "content", "message"), [*(("t.csv", *row) for row in NO_CSV), *OTHERS]
)
def test_what_is_no_table_is_a_sentence(tmp_path, name, content, message):
    path = written(tmp_path, name, content)
    with pytest.raises(InvalidInputError, match=message) as raised:
        read_table(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_long_files_folders_and_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "START", 5)  # in the middle of ä
    assert read_table(written(tmp_path, "t.csv", "a,b\nä,1\n")).rows() == [("ä", 1)]
    content = b"a,b\n" + b"1,2\n" * 100 + b"3,\xff\n"
    with pytest.raises(InvalidInputError, match="UTF-8: line 102 holds the byte 0xff"):
        read_table(written(tmp_path, "t.csv", content))
    path = written(tmp_path, "t.csv", f"a,b\n{'x' * 200_000},1\ny,\n")
    assert read_table(path)["b"].to_list() == [1, None]
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InvalidInputError, match="folder.csv is not a file"):
        read_table(tmp_path / "folder.csv")
    with pytest.raises(InvalidInputError, match="there is no file .*missing.csv"):
        read_table(tmp_path / "missing.csv")
    with path.open("r+b") as file:
        file.truncate(10_000_000_000)  # of holes: it takes no space
    with pytest.raises(InvalidInputError, match=r"10\.0 GB of text, .*Parquet"):
        read_table(path)


LONG_TEXTS = pl.DataFrame({"a": ["x" * 3000 + str(k) for k in range(100)]})
MANY_LINES = gzip.compress(b"a,b\n" + b"1,2\n" * (1 << 20))
TWO_COLUMNS = saved(np.savez, a=np.zeros(99), b=np.zeros(99))


@pytest.mark.parametrize(
    ("name", "content", "limits", "message"),
    [
        ("t.csv.gz", MANY_LINES, {"LARGEST_TEXT": 3 << 20}, "text, more than the 3,145,728 bytes"),
        ("t.csv", "a,b\n" + "1,2\n" * 5000, {"LARGEST_TABLE": 50_000}, r"80\.\d kB in memory"),
        ("t.npy", LYING, {}, r"would take 1\.6 TB in memory"),
        ("t.npy", saved(np.save, np.zeros((500, 2), np.int8)), {"LARGEST_TABLE": 7999}, r"8\.0 kB"),
        ("t.npz", TWO_COLUMNS, {"LARGEST_TABLE": 999}, "1.6 kB"),
        ("t.parquet", parquet(LONG_TEXTS), {"LARGEST_TABLE": 100_000}, "in memory .100 rows."),
        ("t.csv", "a,b,c,d\n1,2,3,4\n", {"MOST_COLUMNS": 3}, "has 4 columns, more than the 3"),
        ("t.npy", saved(np.save, np.ones((1, 4))), {"MOST_COLUMNS": 3}, "has 4 columns"),
        ("t.npz", saved(np.savez, X=np.ones((1, 4))), {"MOST_COLUMNS": 3}, "has 4 columns"),
        ("t.parquet", parquet(pl.DataFrame(np.ones((1, 4)))), {"MOST_COLUMNS": 3}, "has 4 columns"),
    ],
)
def test_tables_that_are_too_large(tmp_path, monkeypatch, name, content, limits, message):
    for limit, value in limits.items():
        monkeypatch.setattr(roles, limit, value)
    with pytest.raises(InvalidInputError, match=message):
        read_table(written(tmp_path, name, content))


@given(st.binary(max_size=200), st.sampled_from(["csv", "csv.gz", "parquet", "npz", "npy"]))
def test_any_bytes_give_a_table_or_a_sentence(tmp_path_factory, content, suffix):
    path = written(tmp_path_factory.getbasetemp(), f"any.{suffix}", content)
    try:
        assert isinstance(read_table(path), pl.DataFrame)
    except InvalidInputError as error:
        assert str(path) in str(error)  # noqa: PT017 (either will do)
