"""Files and folders of any name and kind: read, or refused in one line; never waited for."""

import os
from contextlib import suppress

import numpy as np
import polars as pl
import pytest

from retarget.diagnosis.tables.read import read_table
from retarget.errors import InvalidInputError, MissingDataError
from retarget.lab.data.backbones import read_weights
from retarget.lab.data.fetch import check_file
from retarget.lab.data.mnist import MNIST, load_mnist
from retarget.streaming.corrector import TargetCorrector
from support.made_mnist import write_made_mnist

pytestmark = pytest.mark.faults

rng = np.random.default_rng(0)
a = rng.normal(size=40)
TABLE = pl.DataFrame({"a": a, "y": np.sin(a) + 0.1 * rng.normal(size=40)})
NAMES = {
    "a blank": "a b",
    "quotes": 'it\'s "so"',
    "a line end": "two\nlines",
    "a dash": "-rf",
    "no text": os.fsdecode(b"not \xff\xfe text"),
    "markup": "[red]x",
    "a command of the terminal": "\x1b[31mred\x07",
    "a tilde": "~somebody",
    "a format": "%s{0}$HOME",
    "a tag": "<script>",
    "the other direction": "\u202eabc",
    "a pattern": "a*b?[c]",
    "many letters": "x" * 230,
}


@pytest.fixture(params=NAMES.values(), ids=NAMES.keys())
def odd(request, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return request.param


def write(name, table=TABLE):
    with open(name, "wb") as file:  # noqa: PTH123 (Path would take a dash at face value, too)
        match name.rpartition(".")[2]:
            case "parquet":
                table.write_parquet(file)
            case "npz":
                np.savez(file, **{column: table[column].to_numpy() for column in table.columns})
            case "npy":
                np.save(file, table.to_numpy())
            case end:
                table.write_csv(file, compression="gzip" if end == "gz" else "uncompressed")


def test_tables_and_folders_of_any_name_are_read(odd, tmp_path):
    for suffix in (".csv", ".csv.gz", ".parquet", ".npz", ".npy"):
        write(odd + suffix)
        np.testing.assert_array_equal(read_table(odd + suffix).to_numpy(), TABLE.to_numpy())
    folder = tmp_path / odd
    arrays = write_made_mnist(folder)
    np.testing.assert_array_equal(load_mnist(folder).train_images, arrays[0])
    assert {check_file(file, folder)[0] for file in MNIST.files} == {"wrong checksum"}


def test_the_command_takes_files_of_any_name(command, odd):
    write(odd + ".csv")
    code, shown = command(
        "correct", "--target", "y", "--lr", "0.1", "--gamma", "1",
        "--out", odd + ".parquet", "--", odd + ".csv",
    )  # fmt: skip
    assert code == 0, shown
    with open(odd + ".parquet", "rb") as file:  # noqa: PTH123
        assert pl.read_parquet(file).height == 40


def test_no_name_is_a_command_of_the_terminal(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    name = NAMES["a command of the terminal"]
    write("t.csv")
    for arguments in (
        ["diagnose", f"{name}.csv", "--target", "y"],
        ["data", "check", "mnist", "--data-dir", name],
        ["correct", "t.csv", "--target", "y", "--out", name],
    ):
        _, shown = command(*arguments)
        assert not {"\x1b", "\x07"} & set(shown)
        assert "[31mred" in shown


@pytest.fixture
def kinds(tmp_path):
    """What is not a file, under names of files."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("nothing")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "input").symlink_to("/dev/stdin")
    return tmp_path


KINDS = ["pipe", "folder", "empty", "loop", "nowhere", "zeros", "input", "none", "x" * 300]
READERS = dict.fromkeys((".csv", ".csv.gz", ".parquet", ".npz", ".npy"), read_table)
READERS |= {".pth": read_weights, ".safetensors": read_weights, "": TargetCorrector.load}


@pytest.mark.parametrize("suffix", READERS)
def test_what_is_no_file_is_refused(kinds, suffix):
    for kind in KINDS:
        path = kinds / f"{kind}{suffix}"
        with suppress(OSError):  # two are not there
            (kinds / kind).rename(path)
        refused = "not a file|no file|is empty|too long|cut short|damaged"
        with pytest.raises((InvalidInputError, OSError), match=refused):
            READERS[suffix](path)


def test_data_that_are_no_files(kinds):
    for kind in KINDS:
        with pytest.raises((MissingDataError, OSError), match="not found|too long"):
            load_mnist(kinds / kind)
    for source, file in zip(("pipe", "zeros", "folder", "loop"), MNIST.files, strict=True):
        (kinds / source).rename(kinds / file.download.name)
    with pytest.raises(MissingDataError, match="not found"):
        load_mnist(kinds)
    assert {check_file(file, kinds)[0] for file in MNIST.files} <= {"missing", "unreadable"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    TABLE.write_csv(tmp_path / "t.csv")
    (tmp_path / "t.csv").chmod(0)
    with pytest.raises(PermissionError, match=r"t\.csv"):
        read_table(tmp_path / "t.csv")
