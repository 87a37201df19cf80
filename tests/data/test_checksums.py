import hashlib
import json
import os
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from retarget.data import backbones, cache, core50
from retarget.data.backbones import RESNET18, backbone_checksum, load_backbone
from retarget.data.cache import LARGE, data_set_checksums, file_checksum, files_checksum
from retarget.data.cifar10 import CIFAR10, load_cifar10
from retarget.data.core50 import load_core50
from retarget.data.mnist import MNIST, load_mnist
from retarget.errors import InvalidInputError, MissingDataError
from support.made_cifar10 import FORMS as CIFAR_FORMS
from support.made_cifar10 import write_made_cifar10
from support.made_core50 import FORMS, SOURCES, made_frames, picture, write_made_core50
from support.made_mnist import NAMES, write_made_mnist

CONTENT = bytes(range(256)) * (LARGE // 256) + b"the rest"
LONG_AGO = 1_000_000_000_000_000_000  # nanoseconds


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RETARGET_CACHE", str(tmp_path / "cache"))
    core50._frames_checksum.cache_clear()
    backbones._network_checksum.cache_clear()
    # made a moment ago, which is too fresh to be noted
    monkeypatch.setattr(cache, "SETTLED", -1)


@pytest.fixture
def reads(monkeypatch):
    """How often contents were really read."""
    calls = []
    computed = cache._computed
    monkeypatch.setattr(cache, "_computed", lambda *given: calls.append(given) or computed(*given))
    return calls


@pytest.fixture
def large(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(CONTENT)
    return path


def notes(tmp_path):
    return list((tmp_path / "cache" / "checksums").glob("*"))


# One file


def test_a_large_file_is_read_once(large, tmp_path, reads):
    expected = hashlib.sha256(CONTENT).hexdigest()
    assert [file_checksum(large) for _ in range(3)] == [expected] * 3
    assert len(reads) == 1
    (note,) = notes(tmp_path)
    assert json.loads(note.read_text())["sha256"] == expected


def test_a_small_file_is_not_noted(tmp_path, reads):
    path = tmp_path / "small ü"
    path.write_bytes(b"abc")
    expected = hashlib.sha256(b"abc").hexdigest()
    assert [file_checksum(path), file_checksum(path)] == [expected] * 2
    assert len(reads) == 2
    assert notes(tmp_path) == []


def test_a_changed_file_is_read_again(large, reads):
    first = file_checksum(large)
    # the same size, and the time of its last change put back
    times = large.stat()
    large.write_bytes(CONTENT[::-1])
    os.utime(large, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file_checksum(large) == hashlib.sha256(CONTENT[::-1]).hexdigest() != first
    large.write_bytes(CONTENT + b"more")
    assert file_checksum(large) == hashlib.sha256(CONTENT + b"more").hexdigest()
    os.utime(large, ns=(LONG_AGO, LONG_AGO))
    file_checksum(large)
    replacement = large.with_name("new")
    replacement.write_bytes(CONTENT)
    os.utime(replacement, ns=(LONG_AGO, LONG_AGO))
    replacement.replace(large)
    assert file_checksum(large) == first
    assert len(reads) == 5


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"files": 3}', b'{"sha256": "00"}', "files", "short", "hex"],
)
def test_a_damaged_note_is_none(large, tmp_path, reads, damage):
    expected = file_checksum(large)
    (note,) = notes(tmp_path)
    found = json.loads(note.read_text())
    if damage == "files":
        damage = json.dumps({"sha256": found["sha256"]}).encode()
    elif damage in ("short", "hex"):
        wrong = expected[:-2] if damage == "short" else "zz" + expected[2:]
        damage = json.dumps(found | {"sha256": wrong}).encode()
    note.write_bytes(damage)
    assert file_checksum(large) == expected
    assert file_checksum(large) == expected
    assert len(reads) == 2


def test_a_file_that_was_just_written_is_not_noted(large, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "SETTLED", 10**15)
    file_checksum(large)
    assert notes(tmp_path) == []


def test_a_file_that_changes_while_it_is_read_is_not_noted(large, tmp_path, monkeypatch):
    computed = cache._computed

    def slowly(*given):
        found = computed(*given)
        large.write_bytes(CONTENT + b"more")
        return found

    monkeypatch.setattr(cache, "_computed", slowly)
    file_checksum(large)
    assert notes(tmp_path) == []


def test_a_cache_that_cannot_be_written_costs_time_only(large, tmp_path):
    (tmp_path / "cache").write_text("a file, where a folder should be")
    assert file_checksum(large) == hashlib.sha256(CONTENT).hexdigest()


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(MissingDataError, match="there is no file .*nothing"):
        file_checksum(tmp_path / "nothing")
    with pytest.raises(MissingDataError, match="there is no file"):
        file_checksum(tmp_path)


def test_several_files_by_name(tmp_path):
    paths = {}
    for name in "ab":
        paths[name] = tmp_path / f"file {name}"
        paths[name].write_text(name)
    first = files_checksum(paths)
    lines = "".join(f"{n}\0{hashlib.sha256(n.encode()).hexdigest()}\n" for n in "ab")
    assert first == hashlib.sha256(lines.encode()).hexdigest()
    assert files_checksum({"a": paths["b"], "b": paths["a"]}) != first
    paths["b"].write_text("c")
    assert files_checksum(paths) != first


def test_progress_reaches_its_end(tmp_path, monkeypatch):
    """Of files that are smaller than a step of the bar, too."""
    bars = []

    class Bar(cache.PatientBar):
        def __init__(self, what, total, shown):
            super().__init__(what, total, shown)
            self.total, self.done = total, 0
            bars.append(self)

        def advance(self, steps):
            self.done += steps

    monkeypatch.setattr(cache, "PatientBar", Bar)
    paths = {str(number): tmp_path / str(number) for number in range(5)}
    for path in paths.values():
        path.write_bytes(CONTENT[: LARGE * 2 // 3])
    files_checksum(paths)
    assert [(bar.done, bar.total) for bar in bars] == [(3, 3)]


# Data sets


def folders(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    return tmp_path / "here", tmp_path / "there"


def same_error(load, checksum):
    """Both refuse with the same words."""
    with pytest.raises(MissingDataError) as loading:
        load()
    with pytest.raises(MissingDataError) as summing:
        checksum()
    assert str(loading.value) == str(summing.value)


@pytest.mark.parametrize("packed", [True, False])
def test_mnist(tmp_path, packed):
    here, there = folders(tmp_path)
    same_error(lambda: load_mnist(here), lambda: data_set_checksums(MNIST, here))
    for folder in (here, there):
        write_made_mnist(folder, packed)
    first = data_set_checksums(MNIST, here)
    names = [name if packed else name.removesuffix(".gz") for name in NAMES]
    assert first == {
        f"mnist/{name}": hashlib.sha256((here / name).read_bytes()).hexdigest() for name in names
    }
    assert data_set_checksums(MNIST, there) == first
    for name in names:
        content = (there / name).read_bytes()
        (there / name).write_bytes(content + b"\0")
        changed = data_set_checksums(MNIST, there)
        assert {key for key in first if changed[key] != first[key]} == {f"mnist/{name}"}
        (there / name).write_bytes(content)


@pytest.mark.parametrize("form", CIFAR_FORMS)
def test_cifar10(tmp_path, form):
    here, there = folders(tmp_path)
    same_error(lambda: load_cifar10(here), lambda: data_set_checksums(CIFAR10, here))
    for folder in (here, there):
        write_made_cifar10(folder, form)
    first = data_set_checksums(CIFAR10, here)
    assert len(first) == (1 if form.endswith("archive") else 6)
    assert data_set_checksums(CIFAR10, there) == first
    for key in first:
        path = there / key.removeprefix("cifar10/")
        content = path.read_bytes()
        path.write_bytes(content[::-1])
        changed = data_set_checksums(CIFAR10, there)
        assert {name for name in first if changed[name] != first[name]} == {key}
        path.write_bytes(content)


FRAMES = made_frames(range(1, 12), range(1, 51), (1, 2, 3), size=(2, 2))


@pytest.mark.parametrize("form", FORMS)
def test_core50(tmp_path, form):
    here, there = folders(tmp_path)
    same_error(lambda: load_core50(here), lambda: core50.core50_checksums(here, 2))
    source = write_made_core50(here, form, FRAMES)
    first = core50.core50_checksums(here, 2)
    assert set(first) == {f"core50/{SOURCES[form]}"}
    assert core50.core50_checksums(source, 2) == first
    # under another name
    moved = there / f"other{source.suffix}"
    source.rename(moved)
    assert core50.core50_checksums(moved, 2) == first


def test_core50_in_a_folder_is_the_frames_that_are_used(tmp_path):
    source = write_made_core50(tmp_path, "folder", FRAMES)

    def summed(count=2):
        core50._frames_checksum.cache_clear()
        return core50.core50_checksums(source, count)

    first = summed()
    assert summed(3) != first
    unused, used = (source / f"s5/o9/C_05_09_00{number}.png" for number in (2, 3))
    unused.write_bytes(picture(np.zeros((2, 2, 3), np.uint8)))
    assert summed() == first
    used.write_bytes(picture(np.zeros((2, 2, 3), np.uint8)))
    assert summed() != first
    used.unlink()
    unused.unlink()
    with pytest.raises(InvalidInputError, match="1 frames of session 5, object 9"):
        summed()


# Backbones


def test_a_backbone_by_file_is_its_content(tmp_path):
    path, copy = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    same_error(lambda: load_backbone(path), lambda: backbone_checksum(path))
    save_file({"x": torch.ones(3)}, path)
    shutil.copy(path, copy)
    assert backbone_checksum(path) == backbone_checksum(str(copy))
    assert backbone_checksum(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    save_file({"x": torch.zeros(3)}, copy)
    assert backbone_checksum(path) != backbone_checksum(copy)


def test_the_official_backbone_is_its_file(tmp_path):
    same_error(
        lambda: load_backbone("resnet18", tmp_path), lambda: backbone_checksum("resnet18", tmp_path)
    )
    (tmp_path / RESNET18.files[0].download.name).write_bytes(b"weights")
    expected = hashlib.sha256(b"weights").hexdigest()
    assert backbone_checksum("resnet18", tmp_path) == expected


def test_a_backbone_by_import_path_is_the_network(tmp_path, monkeypatch):
    text = (
        "import torch\nfrom support.core50_backbone import made\n\ndef zero():\n    net = made()\n"
    )
    text += "    torch.nn.init.zeros_(net[1].weight)\n    return net\n"
    (tmp_path / "checksum_backbone.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    first = backbone_checksum("support.core50_backbone:made")
    assert backbone_checksum("checksum_backbone:made") == first
    assert backbone_checksum("checksum_backbone:zero") != first
    with pytest.raises(InvalidInputError, match="there is no backbone 'nothing'"):
        backbone_checksum("nothing")
