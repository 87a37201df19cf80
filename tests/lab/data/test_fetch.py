"""Where the files of data sets are looked for, whether they are right, and downloads."""

import gzip
import socket
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import platformdirs
import pytest

from retarget.errors import DownloadError, InvalidInputError, MissingDataError
from retarget.lab.data import fetch
from retarget.lab.data.backbones import load_backbone
from retarget.lab.data.cifar10 import load_cifar10
from retarget.lab.data.fetch import DATA_SETS, DataSet, check_file, data_folder, get, locate
from retarget.lab.data.mnist import MNIST
from support.made_mnist import made_file, stored
from support.mirror import Answer


def test_where_the_folder_is_looked_for(monkeypatch, tmp_path):
    cache = Path(platformdirs.user_cache_dir("retarget"))
    monkeypatch.delenv("RETARGET_DATA", raising=False)
    assert data_folder() == cache
    assert fetch.get_command(MNIST, cache) == "retarget data get mnist"
    monkeypatch.setenv("RETARGET_DATA", "")
    assert data_folder() == cache
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert data_folder("~/data") == Path.home() / "data"
    command = "retarget data get mnist --data-dir 'my data'"
    assert fetch.get_command(MNIST, data_folder("my data")) == command


def test_forms_of_a_file_in_order(tmp_path):
    """The download, what was in it, another archive; each whole, or what it lacks is named."""
    inside = tuple(stored(f"inside/{name}", name.encode()) for name in ("one", "two"))
    file = made_file("all.tar", b"12", (), inside, (stored("other.tar", b"o"),))
    data_set = DataSet("archive", "", (file,))
    with pytest.raises(MissingDataError, match="all.tar not found in .* get archive"):
        locate(data_set, tmp_path)
    assert check_file(file, tmp_path) == ("missing", "")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/one").write_bytes(b"one")
    with pytest.raises(MissingDataError, match="archive: inside/two not found in"):
        locate(data_set, tmp_path)
    assert check_file(file, tmp_path) == ("missing", "of its parts, inside/two not found")
    (tmp_path / "other.tar").write_bytes(b"o")
    assert locate(data_set, tmp_path) == [(tmp_path / "other.tar",)]
    assert check_file(file, tmp_path) == ("ok", "as other.tar")
    (tmp_path / "inside/two").write_bytes(b"2wo")
    assert locate(data_set, tmp_path) == [(tmp_path / "inside/one", tmp_path / "inside/two")]
    state, detail = check_file(file, tmp_path)
    assert (state, detail.startswith("inside/two has sha256 ")) == ("wrong checksum", True)
    (tmp_path / "inside/two").write_bytes(b"two")
    assert check_file(file, tmp_path) == ("ok", "as inside")
    (tmp_path / "all.tar").write_bytes(b"12")
    assert locate(data_set, tmp_path) == [(tmp_path / "all.tar",)]
    assert check_file(file, tmp_path) == ("ok", "")


def test_unreadable_files_and_other_sizes(tmp_path, monkeypatch):
    file, path = made_file("one", b"official"), tmp_path / "one"
    path.mkdir()
    assert check_file(file, tmp_path) == ("unreadable", f"{path} is not a file")
    path.rmdir()
    path.write_bytes(b"short")
    assert check_file(file, tmp_path) == ("wrong checksum", "one has 5 bytes, expected 8")
    path.write_bytes(b"official")
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert check_file(file, tmp_path) == ("unreadable", "[Errno 13] Permission denied")


def test_an_unknown_name_gets_the_nearest_one():
    for name, data_set in DATA_SETS.items():
        assert fetch.find_data_set(name) is data_set
        addresses = [address for file in data_set.files for address in file.mirrors]
        assert all(address.startswith("https://") for address in addresses)
    for name, message in {
        "mnits": "there is no data set 'mnits'; did you mean 'mnist'\\? known: mnist, cif",
        "MNIST": "did you mean 'mnist'\\?",
        "iris": "there is no data set 'iris'; known: mnist, cifar10",
    }.items():
        with pytest.raises(InvalidInputError, match=message):
            fetch.find_data_set(name)


# Downloads


@pytest.mark.parametrize(
    ("load", "name"),
    [(load_cifar10, "cifar10"), (partial(load_backbone, "resnet18"), "resnet18")],
    ids=["cifar10", "resnet18"],
)
def test_what_is_missing_is_downloaded_on_request_only(tmp_path, monkeypatch, load, name):
    """MNIST, with a real download: see test_mnist.py."""
    get_none = Mock(side_effect=DownloadError("no"))
    monkeypatch.setattr(fetch, "get", get_none)
    with pytest.raises(MissingDataError, match=f"retarget data get {name} --data-dir {tmp_path} "):
        load(tmp_path)
    get_none.assert_not_called()
    with pytest.raises(DownloadError):
        load(tmp_path, download=True)
    get_none.assert_called_once_with(DATA_SETS[name], tmp_path)


CONTENT = bytes(range(256)) * 1000  # several chunks


def wanted_from(*mirrors):
    addresses = [f"{mirror}/file.bin" for mirror in mirrors]
    return DataSet("made", "for tests", (made_file("file.bin", CONTENT, addresses),))


def test_a_download_is_made_once(tmp_path, mirror):
    mirror.answers["/file.bin"] = Answer(CONTENT)
    folder, arrived = tmp_path / "new" / "folder", []
    wanted = wanted_from(mirror.address)
    got = get(wanted, folder, lambda file, count: arrived.append((file.download.name, count)))
    assert got == list(wanted.files)
    assert [path.name for path in folder.iterdir()] == ["file.bin"]
    assert (folder / "file.bin").read_bytes() == CONTENT
    assert (folder / "file.bin").stat().st_mode & 0o777 == 0o644
    assert arrived == sorted(arrived)
    assert len(arrived) > 2
    assert arrived[-1] == ("file.bin", len(CONTENT))
    assert get(wanted, folder) == []
    assert mirror.encodings == ["identity"]
    (folder / "file.bin").write_bytes(CONTENT[:-1])  # a wrong file is replaced
    assert get(wanted, folder)
    assert (folder / "file.bin").read_bytes() == CONTENT


def test_packed_downloads_without_a_length(tmp_path, mirror):
    elsewhere = {"Location": f"{mirror.address}/elsewhere"}
    packed = gzip.compress(CONTENT)
    mirror.answers["/file.bin"] = Answer(b"look there", status=302, headers=elsewhere)
    mirror.answers["/elsewhere"] = Answer(packed, None, headers={"Content-Encoding": "gzip"})
    get(wanted_from(mirror.address), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


BAD = {
    "wrong checksum": (Answer(CONTENT[::-1]), "sent a file of sha256 [0-9a-f]{64}, expected"),
    "too large": (Answer(CONTENT + b"x"), "announces 256001 bytes, expected 256000"),
    "too large, not announced": (Answer(CONTENT * 3, announced=None), "sends more than the exp"),
    "interrupted": (Answer(CONTENT[:100_000], announced=len(CONTENT)), "IncompleteRead"),
    "interrupted, not announced": (Answer(CONTENT[:9999], announced=None), "sent 9999 bytes, exp"),
    "not packed": (Answer(CONTENT, headers={"Content-Encoding": "gzip"}), "failed to decode"),
    "an endless redirection": (
        Answer(bytes(1 << 20), None, 302, {"Location": "/"}),
        "redirects with",
    ),
    "not found": (Answer(b"sorry " * 99, status=404), "404 Client Error"),
}


@pytest.mark.parametrize("case", BAD)
def test_after_a_bad_mirror_the_next(tmp_path, mirror, other_mirror, case):
    mirror.answers["/file.bin"], message = BAD[case]
    with pytest.raises(DownloadError, match=f"\n  {mirror.address}/file.bin: .*{message}") as error:
        get(wanted_from(mirror.address), tmp_path)
    error.match(f"file.bin could not be downloaded, .* put it in {tmp_path}")
    assert list(tmp_path.iterdir()) == []
    assert set(mirror.asked) == {"/file.bin"}
    other_mirror.answers["/file.bin"] = Answer(CONTENT)
    get(wanted_from(mirror.address, other_mirror.address), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_nobody_there_keeps_the_old_file(tmp_path):
    (tmp_path / "file.bin").write_bytes(b"old")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(DownloadError, match="(?s)file.bin: .*refused.*file.bin: .*refused"):
        get(wanted_from(nobody, nobody), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == b"old"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_is_not_the_mirrors_fault(tmp_path, mirror, other_mirror, error):
    """A full disk, or Ctrl-C."""
    for running in (mirror, other_mirror):
        running.answers["/file.bin"] = Answer(CONTENT)
    with pytest.raises(type(error)):
        get(wanted_from(mirror.address, other_mirror.address), tmp_path, Mock(side_effect=error))
    assert other_mirror.asked == []
    assert list(tmp_path.iterdir()) == []
