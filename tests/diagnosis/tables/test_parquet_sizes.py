import struct

import numpy as np
import polars as pl
import pytest

from retarget.diagnosis.tables import roles
from retarget.diagnosis.tables.parquet_sizes import ParquetSizes, ThriftReader
from retarget.diagnosis.tables.read import read_table
from retarget.errors import InvalidInputError

ROWS = 5000


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.parquet"


@pytest.mark.parametrize("compression", ["uncompressed", "zstd", "snappy", "gzip", "lz4"])
@pytest.mark.parametrize("options", [{}, {"row_group_size": 700, "data_page_size": 999}])
def test_numbers_and_text_are_counted(path, compression, options):
    rng = np.random.default_rng(0)
    texts = [f"{k:08}" for k in rng.permutation(ROWS)]  # and 4 bytes for the length of each
    columns = {"number": rng.normal(size=ROWS), "text": texts, "other": rng.normal(size=ROWS)}
    pl.DataFrame(columns).write_parquet(path, compression=compression, **options)
    sizes = ParquetSizes(path)
    number, text = sizes.loaded(["number"]), sizes.loaded(["text"])
    assert 8 * ROWS <= number < 1.2 * 8 * ROWS
    assert 8 * ROWS <= text < 1.5 * 12 * ROWS
    assert sizes.loaded(["text", "number"]) == number + text
    assert sizes.loaded([]) == 0


def test_repeats_are_counted(path):
    """Stored once, with how often: the page itself is small, too."""
    table = pl.DataFrame({"a": ["x"] * 100_000, "b": [{"c": 1.0}] * 100_000})
    table.write_parquet(path, compression="uncompressed")
    assert ParquetSizes(path).loaded(["a"]) >= 8 * 100_000
    assert 8 * 100_000 <= ParquetSizes(path).loaded(["b"]) < 1.2 * 8 * 100_000
    table.drop("b").write_parquet(path, compression="uncompressed")
    assert path.stat().st_size < 5000
    assert ParquetSizes(path).loaded(["a"]) >= 8 * 100_000


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        # the first rows look harmless; the others are long, or one long text again and again
        (["x"] * 2000 + ["y" * 100_000 + str(k) for k in range(50)], "2,050"),
        (["x"] * 2000 + ["y" * 100_000] * 50, "2,050"),
        ([[0] * 1_000_000], "1"),
    ],
    ids=["long texts", "one long text", "a list"],
)
def test_a_bomb_is_refused(path, monkeypatch, column, rows):
    monkeypatch.setattr(roles, "LARGEST_TABLE", 3_000_000)
    table = pl.DataFrame({"a": column, "b": [1.0] * len(column)})
    table.write_parquet(path, compression="zstd")
    assert path.stat().st_size < 20_000
    with pytest.raises(InvalidInputError, match=rf"take \d\.\d MB in memory .{rows} r.*fewer col"):
        read_table(path)
    assert read_table(path, drop=["a"]).columns == ["b"]


def test_a_file_whose_description_is_damaged(path):
    pl.DataFrame({"a": [1.0, 2.0]}).write_parquet(path)
    content = path.read_bytes()
    lengths = [content[:-8] + struct.pack("<I4s", length, b"PAR1") for length in (1, 99999)]
    for damaged in (*lengths, b"PAR1", b""):
        path.write_bytes(damaged)
        with pytest.raises(InvalidInputError, match="t.parquet .* cut short"):
            ParquetSizes(path).loaded(["a"])


def test_structures_hold_values_of_every_kind():
    content = (
        b"\x11\x12\x13\x05\x14\x03\x16\x80\x01\x17" + struct.pack("<d", 0.5) + b"\x18\x01z"
        b"\x19\x25\x02\x04\x1a\x11\x01\x1c\x15\x0e\x00\x06\xc8\x01\x0d\x00"
    )  # fmt: skip
    reader = ThriftReader(content)
    assert reader.structure() == {
        1: True, 2: False, 3: 5, 4: -2, 5: 64, 6: 0.5, 7: b"z", 8: [1, 2], 9: [1], 10: {1: 7},
        100: -7,
    }  # fmt: skip
    assert reader.place == len(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x19\xfc\xff\xff\xff\x0f", "a list announces 33554431 values, more than there are"),
        (b"\x15", "ends within a structure"),
        (b"\x18\x05ab", "ends within a structure"),
        (b"\x15" + b"\xff" * 11, "a number is longer than ten bytes"),
        (b"\x1b\x00", "the type 11, which Parquet does not use"),
        (b"\x1c" * 30, "structures are nested more than 16 deep"),
        (b"\x19" * 30, "lists are nested more than 16 deep"),
    ],
)
def test_structures_that_are_none(content, message):
    with pytest.raises(InvalidInputError, match=message):
        ThriftReader(content).structure()


def test_files_with_which_polars_would_end_the_process(path, monkeypatch):
    pl.DataFrame({"a": np.arange(60.0)}).write_parquet(path, compression="uncompressed")
    content = path.read_bytes()
    sixty, less = b"\x2c\x15\x78", b"\x2c\x15\x79"  # of values in a page; it loses one bit
    assert content.count(sixty) == 1
    path.write_bytes(content.replace(sixty, less))
    with pytest.raises(InvalidInputError, match="at byte 4 .* negative"):
        read_table(path)
    # it would take memory for as many row groups as are announced, and must never see them
    monkeypatch.setattr(pl, "scan_parquet", lambda *_, **__: pytest.fail("Polars saw the file"))
    description = b"\x49\xfc\xff\xff\xff\xff\x0f"
    path.write_bytes(b"PAR1" + description + struct.pack("<I4s", len(description), b"PAR1"))
    with pytest.raises(InvalidInputError, match="4294967295 values"):
        read_table(path)
