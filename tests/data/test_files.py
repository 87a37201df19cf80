import gzip
import itertools
from dataclasses import replace
from pathlib import Path

import pooch
import pytest

from retarget.data import fetch
from retarget.data.catalogue import DATA_SETS, find_data_set
from retarget.data.fetch import (
    DataSet,
    FileState,
    check,
    check_file,
    data_folder,
    get_command,
    is_complete,
    locate,
)
from retarget.data.mnist import MNIST
from retarget.errors import InvalidInputError, MissingDataError
from support.made_mnist import (
    NAMES,
    TRAIN_IMAGES,
    made_data_set,
    made_file,
    stored,
    write_made_mnist,
)


def test_the_folder_is_the_given_one_then_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("RETARGET_DATA", raising=False)
    assert data_folder() == Path(pooch.os_cache("retarget"))
    monkeypatch.setenv("RETARGET_DATA", "")
    assert data_folder() == Path(pooch.os_cache("retarget"))
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert data_folder("other") == Path("other")
    assert data_folder("~/data") == Path.home() / "data"


def test_the_command_names_the_folder_unless_it_is_the_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(fetch, "cache_folder", lambda: tmp_path)
    assert get_command(MNIST, tmp_path) == "retarget data get mnist"
    spaced = Path("my data")
    assert get_command(MNIST, spaced) == "retarget data get mnist --data-dir 'my data'"


def test_the_download_goes_before_what_was_in_it(tmp_path):
    write_made_mnist(tmp_path)
    data_set = made_data_set(tmp_path)
    packed, unpacked = tmp_path / TRAIN_IMAGES, tmp_path / TRAIN_IMAGES.removesuffix(".gz")
    unpacked.write_bytes(gzip.decompress(packed.read_bytes()))
    assert locate(data_set, tmp_path)[0] == (packed,)
    packed.unlink()
    assert locate(data_set, tmp_path)[0] == (unpacked,)
    assert check_file(data_set.files[0], tmp_path).state is FileState.OK
    assert check_file(data_set.files[0], tmp_path).detail == "unpacked"
    unpacked.unlink()
    assert not is_complete(data_set, tmp_path)
    with pytest.raises(MissingDataError, match=f"mnist: {TRAIN_IMAGES} not found in"):
        locate(data_set, tmp_path)


def test_an_archive_is_there_when_all_that_was_in_it_is(tmp_path):
    parts = (stored("inside/one", b"1"), stored("inside/two", b"2"))
    archive = made_file("all.tar", b"12", unpacked=parts)
    data_set = DataSet("archive", "two files in one", (archive,))
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "one").write_bytes(b"1")
    assert not is_complete(data_set, tmp_path)
    (tmp_path / "inside" / "two").write_bytes(b"3")
    assert locate(data_set, tmp_path) == [(tmp_path / "inside/one", tmp_path / "inside/two")]
    (found,) = check(data_set, tmp_path)
    assert found.state is FileState.WRONG_CHECKSUM
    assert found.detail.startswith("inside/two has sha256 ")


def test_what_is_lacking_of_an_unpacked_archive_is_named(tmp_path):
    parts = tuple(stored(f"inside/{name}", b"1") for name in ("one", "two", "three"))
    data_set = DataSet("archive", "", (made_file("all.tar", b"12", unpacked=parts),))
    (found,) = check(data_set, tmp_path)
    assert (found.state, found.detail) == (FileState.MISSING, "")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "two").write_bytes(b"1")
    (found,) = check(data_set, tmp_path)
    assert found.state is FileState.MISSING
    assert found.detail == "of its parts, inside/one, inside/three not found"
    with pytest.raises(MissingDataError, match="archive: inside/one, inside/three not found in"):
        locate(data_set, tmp_path)


def test_another_form_of_the_data_is_as_good(tmp_path):
    other = ((stored("other.tar", b"o"),), (stored("other/one", b"1"), stored("other/two", b"2")))
    file = replace(made_file("all.tar", b"12"), alternatives=other)
    data_set = DataSet("two forms", "", (file,))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "one").write_bytes(b"1")
    (tmp_path / "other" / "two").write_bytes(b"2")
    assert locate(data_set, tmp_path) == [(tmp_path / "other/one", tmp_path / "other/two")]
    assert check_file(file, tmp_path).detail == "as other"
    (tmp_path / "other.tar").write_bytes(b"o")
    assert locate(data_set, tmp_path) == [(tmp_path / "other.tar",)]
    assert check_file(file, tmp_path).detail == "as other.tar"
    (tmp_path / "all.tar").write_bytes(b"12")
    assert locate(data_set, tmp_path) == [(tmp_path / "all.tar",)]
    assert check_file(file, tmp_path).detail == ""


def test_every_state_of_a_file(tmp_path, monkeypatch):
    write_made_mnist(tmp_path)
    data_set = made_data_set(tmp_path)
    images, labels, test_images, test_labels = (tmp_path / name for name in NAMES)
    same_size = bytearray(images.read_bytes())
    same_size[-1] ^= 1
    images.write_bytes(same_size)
    labels.write_bytes(b"short")
    test_images.unlink()
    test_labels.unlink()
    test_labels.mkdir()
    found = list(check(data_set, tmp_path))
    assert [f.file for f in found] == list(data_set.files)
    assert [str(f.state) for f in found] == [
        "wrong checksum",
        "wrong checksum",
        "missing",
        "unreadable",
    ]
    details = [f.detail for f in found]
    assert details[0].startswith(f"{images.name} has sha256 ")
    assert details[1].startswith(f"{labels.name} has 5 bytes, expected ")
    assert details[2:] == ["", f"{test_labels} is not a file"]


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    write_made_mnist(tmp_path)
    data_set = made_data_set(tmp_path)

    def refuse(*_):
        raise PermissionError(13, "Permission denied", TRAIN_IMAGES)

    monkeypatch.setattr(Path, "open", refuse)
    found = check_file(data_set.files[0], tmp_path)
    assert found.state is FileState.UNREADABLE
    assert "Permission denied" in found.detail


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mnits", "there is no data set 'mnits'; did you mean 'mnist'\\? known: mnist, cif"),
        ("MNIST", "there is no data set 'MNIST'; did you mean 'mnist'\\?"),
        ("cifar", "there is no data set 'cifar'; did you mean 'cifar10'\\?"),
        ("iris", "there is no data set 'iris'; known: mnist, cifar10"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one(name, message):
    with pytest.raises(InvalidInputError, match=message):
        find_data_set(name)


def test_the_catalogue_is_sound():
    for name, data_set in DATA_SETS.items():
        assert find_data_set(name) is data_set
        assert data_set.name == name
        for file in data_set.files:
            # Of the weights, no second public address is known.
            assert len(file.mirrors) >= (1 if name == "resnet18" else 2)
            for address in file.mirrors:
                assert address.startswith("https://")
                assert address.endswith(f"/{file.download.name}")
            for part in itertools.chain(*file.forms):
                assert part.size > 0
                assert len(bytes.fromhex(part.sha256)) == 32
                assert not Path(part.name).is_absolute()
