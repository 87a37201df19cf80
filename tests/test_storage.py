import errno
from pathlib import Path

import pytest

from retarget.storage import atomic_file, user_path


def test_a_file_appears_whole(tmp_path):
    path = tmp_path / "new" / "table.txt"
    with atomic_file(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
        assert temporary.suffix == ".txt"
    assert path.read_text() == "whole"
    assert [p.name for p in path.parent.iterdir()] == ["table.txt"]


def fail_half_way(path):
    with atomic_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError("disk full")


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "table.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="disk full"):
        fail_half_way(path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("No space left on device (os error 28)"),  # Polars'
        RuntimeError("I/O error: No space left on device (os error 28)"),  # safetensors', and like
    ],
)
def test_a_full_disk_is_one_error_that_names_the_file(tmp_path, error):
    with (
        pytest.raises(OSError, match=r"No space left on device: .*table\.txt") as raised,
        atomic_file(tmp_path / "table.txt"),
    ):
        raise error
    assert raised.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_other_errors_are_the_writers_own(tmp_path):
    for error in (ConnectionError("gone"), ValueError("(os error 2)"), OSError(2, "no such file")):
        with pytest.raises(type(error)) as raised, atomic_file(tmp_path / "table.txt"):
            raise error
        assert raised.value is error


def test_a_path_with_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert user_path("~/a") == Path("/home/somebody/a")
    assert user_path("~nobody-of-this-name.csv") == Path("~nobody-of-this-name.csv")
