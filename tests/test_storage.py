import errno
import os
import stat
from contextlib import contextmanager
from pathlib import Path

import pytest

from retarget.storage import atomic_file, user_path


def test_a_file_appears_whole(tmp_path):
    path = tmp_path / "new" / "table.txt"
    with atomic_file(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
        assert temporary.suffix == ".txt"
        assert mode_of(temporary) == 0o600
    assert path.read_text() == "whole"
    assert [p.name for p in path.parent.iterdir()] == ["table.txt"]


@pytest.mark.parametrize("name", ["file", "link"])
@pytest.mark.parametrize("error", [ConnectionError("gone"), ValueError("(os error 2)")])
def test_a_failure_leaves_the_old_file(tmp_path, name, error):
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")

    def fail_half_way(temporary):
        temporary.write_text("half")
        raise error

    with pytest.raises(type(error)) as raised, atomic_file(tmp_path / name) as temporary:
        fail_half_way(temporary)
    assert raised.value is error
    assert (tmp_path / "file").read_text() == "old"
    assert {found.name for found in tmp_path.iterdir()} == {"file", "link"}


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("No space left on device (os error 28)"),  # Polars'
        RuntimeError("I/O error: No space left on device (os error 28)"),  # safetensors', and like
    ],
)
def test_a_full_disk_is_one_error(tmp_path, error):
    with (
        pytest.raises(OSError, match=r"No space left on device: .*table\.txt") as raised,
        atomic_file(tmp_path / "table.txt"),
    ):
        raise error
    assert raised.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def write(path, text="new"):
    with atomic_file(path) as temporary:
        temporary.write_text(text)


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o027, 0o277, 0o777])
def test_the_mode_of_a_new_file(tmp_path, monkeypatch, mask):
    with umask(mask), monkeypatch.context() as patch:
        patch.setattr(os, "umask", lambda mask: pytest.fail("other threads would see it"))
        (tmp_path / "by open").touch(0o666)
        write(tmp_path / "by us")
    assert mode_of(tmp_path / "by us") == mode_of(tmp_path / "by open") == 0o666 & ~mask


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o777])
@pytest.mark.parametrize("may_give", [True, False])
def test_a_replaced_file_keeps_its_mode(tmp_path, monkeypatch, mode, may_give):
    def refused(*arguments):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(mode)
    if os.geteuid() == 0:  # only root gives files away
        os.chown(path, 1234, 4321)
    before = path.stat()
    if not may_give:
        monkeypatch.setattr(os, "chown", refused)
    with umask(0o022), atomic_file(path) as temporary:
        assert mode_of(temporary) == 0o600  # nobody else reads what is being written
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert mode_of(path) == mode
    if may_give:
        assert (path.stat().st_uid, path.stat().st_gid) == (before.st_uid, before.st_gid)


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    file = tmp_path / "real" / "file.txt"
    file.write_text("old")
    file.chmod(0o600)
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "second").symlink_to("folder/../real/file.txt")
    (tmp_path / "first").symlink_to(tmp_path / "second")
    (tmp_path / "dangling").symlink_to("new/file")
    before = file.stat().st_ino
    with umask(0o027):
        write(tmp_path / "first")
        write(tmp_path / "dangling")
    assert file.read_text() == (tmp_path / "new" / "file").read_text() == "new"
    assert (mode_of(file), mode_of(tmp_path / "new" / "file")) == (0o600, 0o640)
    assert file.stat().st_ino != before  # it was replaced, not written to
    assert all((tmp_path / name).is_symlink() for name in ("first", "second", "dangling"))
    assert [found.name for found in file.parent.iterdir()] == ["file.txt"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/null")
    (tmp_path / "circle").symlink_to("circle")
    other = "pipe or a device; expected a regular file.*"
    for name, error, message in (
        ("folder", errno.EISDIR, "folder"),
        ("circle", errno.ELOOP, "circle"),
        ("pipe", errno.EEXIST, f"{other}pipe"),
        ("device", errno.EEXIST, f"{other}device"),
    ):
        with pytest.raises(OSError, match=message) as raised:
            write(tmp_path / name)
        assert raised.value.errno == error
    assert {found.name for found in tmp_path.iterdir()} == {"pipe", "folder", "device", "circle"}
    assert Path("/dev/null").is_char_device()


def test_a_path_with_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert user_path("~/a") == Path("/home/somebody/a")
    assert user_path("~nobody-of-this-name.csv") == Path("~nobody-of-this-name.csv")
