"""What is computed once and kept: arrays, and the checksums of what runs read."""

import hashlib
import itertools
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
from filelock import FileLock
from safetensors.numpy import save_file

from retarget.errors import InvalidInputError, MissingDataError
from retarget.lab.data import backbones, cache, core50
from retarget.lab.data.backbones import RESNET18, backbone_checksum, load_backbone
from retarget.lab.data.cache import LARGE, cached_array, data_set_checksums, file_checksum
from retarget.lab.data.cifar10 import CIFAR10, load_cifar10
from retarget.lab.data.core50 import core50_checksums, load_core50
from retarget.lab.data.mnist import MNIST, load_mnist
from support.made_cifar10 import write_made_cifar10
from support.made_core50 import frame_name
from support.made_mnist import write_made_mnist

# Arrays

ARRAY = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


@pytest.fixture
def compute():
    return Mock(return_value=ARRAY)


def stored(folder):
    (path,) = folder.glob("*.safetensors")
    return path


def test_computed_once_for_the_same_content(tmp_path, compute):
    for content in (["a", ARRAY], ["a", ARRAY], ["a", ARRAY.copy(order="F")]):
        np.testing.assert_array_equal(cached_array(tmp_path, "x", content, compute), ARRAY)
    assert compute.call_count == 1
    with FileLock(stored(tmp_path).with_suffix(".lock")):  # what is there needs no lock
        cached_array(tmp_path, "x", ["a", ARRAY], compute)
    for content in (["b", ARRAY], ["a", ARRAY + 1], ["a", ARRAY.astype(float)], ["a", ARRAY.T]):
        cached_array(tmp_path, "x", content, compute)
    assert compute.call_count == 5


def test_a_damaged_file_is_made_again(tmp_path, compute):
    """Any other damage: see tests/faults/test_corruption.py."""
    cached_array(tmp_path, "x", ["a"], compute)
    path = stored(tmp_path)
    whole = path.read_bytes()
    for damage in (
        lambda: path.write_bytes(whole[:-7]),
        lambda: save_file({"x": ARRAY}, path),
        lambda: save_file({"y": ARRAY}, path, {"sha256": cache.content_digest([ARRAY])}),
    ):
        damage()
        calls = compute.call_count
        for _ in range(2):
            np.testing.assert_array_equal(cached_array(tmp_path, "x", ["a"], compute), ARRAY)
        assert compute.call_count == calls + 1
        assert path.read_bytes() == whole


def test_of_several_that_need_it_one_computes(tmp_path):
    """They wait for a lock on a file, as other processes do; one that fails gives it back."""
    with pytest.raises(RuntimeError, match="no"):
        cached_array(tmp_path, "x", ["a"], Mock(side_effect=RuntimeError("no")))
    compute = Mock(side_effect=lambda: time.sleep(0.1) or ARRAY)
    with ThreadPoolExecutor(3) as threads:
        with FileLock(tmp_path / f"{cache.content_digest(['a'])[:32]}.lock"):
            found = threads.map(lambda _: cached_array(tmp_path, "x", ["a"], compute), range(3))
            time.sleep(0.1)
            assert compute.call_count == 0
        for array in found:
            np.testing.assert_array_equal(array, ARRAY)
    assert compute.call_count == 1


# Checksums of files

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
    """Counts how often contents were really read."""
    counting = Mock(wraps=cache._computed)
    monkeypatch.setattr(cache, "_computed", counting)
    return counting


@pytest.fixture
def large(tmp_path):
    path = tmp_path / "large ü"
    path.write_bytes(CONTENT)
    return path


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def notes(tmp_path):
    return list((tmp_path / "cache" / "checksums").glob("*"))


def test_large_files_are_read_once(large, tmp_path, reads):
    assert [file_checksum(large) for _ in range(3)] == [sha256(CONTENT)] * 3
    assert reads.call_count == 1
    assert len(notes(tmp_path)) == 1
    (tmp_path / "small").write_bytes(b"abc")
    assert file_checksum(tmp_path / "small") == sha256(b"abc")
    assert len(notes(tmp_path)) == 1
    for nothing in (tmp_path / "nothing", tmp_path):
        with pytest.raises(MissingDataError, match="there is no file"):
            file_checksum(nothing)


def test_a_changed_file_is_read_again(large, reads):
    first = file_checksum(large)
    # the same size, and the time of its last change put back
    times = large.stat()
    large.write_bytes(CONTENT[::-1])
    os.utime(large, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file_checksum(large) == sha256(CONTENT[::-1]) != first
    large.write_bytes(CONTENT + b"more")
    assert file_checksum(large) == sha256(CONTENT + b"more")
    os.utime(large, ns=(LONG_AGO, LONG_AGO))
    file_checksum(large)
    replacement = large.with_name("new")
    replacement.write_bytes(CONTENT)
    os.utime(replacement, ns=(LONG_AGO, LONG_AGO))
    replacement.replace(large)
    assert file_checksum(large) == first
    assert reads.call_count == 5


def test_a_damaged_note_is_none(large, tmp_path, reads):
    expected = file_checksum(large)
    (note,) = notes(tmp_path)
    right, damages = json.loads(note.read_text()), [b"", b"\xff\xfe", b"[]", b'{"files": 3}']
    for_sha256 = (expected[:-2], "zz" + expected[2:])
    damages += [json.dumps(right | {"sha256": wrong}).encode() for wrong in for_sha256]
    for damage in damages:
        note.write_bytes(damage)
        reads.reset_mock()
        assert [file_checksum(large), file_checksum(large)] == [expected] * 2
        assert reads.call_count == 1


def test_files_that_are_not_noted(large, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(cache, "SETTLED", 10**15)  # it was written just now
        assert file_checksum(large) == sha256(CONTENT)
    with monkeypatch.context() as patch:
        changes = Mock(side_effect=lambda paths: (large.write_bytes(b"more"), sha256(CONTENT))[1])
        patch.setattr(cache, "_computed", changes)  # while it is read
        assert file_checksum(large) == sha256(CONTENT)
    assert notes(tmp_path) == []
    (tmp_path / "cache").write_text("a file, where a folder should be")
    large.write_bytes(CONTENT)
    assert file_checksum(large) == sha256(CONTENT)


def test_several_files_with_a_bar(tmp_path, monkeypatch):
    bar = MagicMock()
    monkeypatch.setattr(cache, "PatientBar", bar)
    # smaller than a step of the bar
    contents = {name: name.encode() * (LARGE * 2 // 3) for name in "abcde"}
    paths = {name: tmp_path / f"file {name}" for name in contents}
    for name, content in contents.items():
        paths[name].write_bytes(content)
    first = cache.files_checksum(paths)
    lines = "".join(f"{name}\0{sha256(content)}\n" for name, content in contents.items())
    assert first == sha256(lines.encode())
    advanced = bar.return_value.__enter__.return_value.advance.call_args_list
    assert sum(call.args[0] for call in advanced) == bar.call_args.args[1] == 3
    assert cache.files_checksum(paths | {"a": paths["b"], "b": paths["a"]}) != first


# Checksums of what data sets and backbones are read from


def same_error(load, checksum):
    """Both refuse with the same words."""
    with pytest.raises(MissingDataError) as loading:
        load()
    with pytest.raises(MissingDataError) as summing:
        checksum()
    assert str(loading.value) == str(summing.value)


@pytest.mark.parametrize(
    ("data_set", "load", "write"),
    [
        (MNIST, load_mnist, write_made_mnist),
        (CIFAR10, load_cifar10, write_made_cifar10),
        (CIFAR10, load_cifar10, partial(write_made_cifar10, form="binary archive")),
    ],
)
def test_data_sets_are_the_files_that_are_read(tmp_path, monkeypatch, data_set, load, write):
    data = tmp_path / "data"
    monkeypatch.setenv("RETARGET_DATA", str(data))
    same_error(load, lambda: data_set_checksums(data_set))
    write(data)
    assert data_set_checksums(data_set) == {
        f"{data_set.name}/{path.relative_to(data).as_posix()}": sha256(path.read_bytes())
        for path in data.rglob("*")
        if path.is_file()
    }


def test_core50_is_the_archive_or_frames(tmp_path):
    def summed(count=2):
        core50._frames_checksum.cache_clear()
        return core50_checksums(source, count)

    same_error(lambda: load_core50(tmp_path), lambda: core50_checksums(tmp_path, 2))
    archive = tmp_path / "core50_128x128.zip"
    archive.write_bytes(b"any")
    assert core50_checksums(tmp_path, 2) == {f"core50/{archive.name}": sha256(b"any")}
    source = archive.rename(tmp_path / "other.zip")  # under another name
    assert summed() == {f"core50/{archive.name}": sha256(b"any")}
    folder = tmp_path / "core50_128x128"
    for session, thing in itertools.product(range(1, 12), range(1, 51)):
        for number in (1, 2, 3) if (session, thing) == (5, 9) else (1, 3):
            path = folder / frame_name(session, thing, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(path.name)  # no picture: they are not decoded
    first = core50_checksums(tmp_path, 2)
    assert set(first) == {f"core50/{folder.name}"}
    source = folder.rename(tmp_path / "other")
    assert summed() == first
    assert summed(1) != first
    unused, used = (source / frame_name(5, 9, number) for number in (2, 3))
    unused.write_bytes(b"other")
    assert summed() == first
    used.write_bytes(b"other")
    assert summed() != first
    used.unlink()
    unused.unlink()
    with pytest.raises(InvalidInputError, match="1 frames of session 5, object 9"):
        summed()


def test_a_backbone_is_its_content(tmp_path, monkeypatch):
    path, copy = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    same_error(lambda: load_backbone(path), lambda: backbone_checksum(path))
    official = ("resnet18", tmp_path)
    same_error(lambda: load_backbone(*official), lambda: backbone_checksum(*official))
    for file in (path, copy):
        save_file({"x": ARRAY}, file)
    assert backbone_checksum(path) == backbone_checksum(str(copy)) == sha256(path.read_bytes())
    (tmp_path / RESNET18.files[0].download.name).write_bytes(b"weights")
    assert backbone_checksum(*official) == sha256(b"weights")
    text = "from support.core50_backbone import made\n\ndef zero():\n    net = made()\n"
    text += "    net[1].weight.data.zero_()\n    return net\n"
    (tmp_path / "checksum_backbone.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    first = backbone_checksum("support.core50_backbone:made")
    assert backbone_checksum("checksum_backbone:made") == first
    assert backbone_checksum("checksum_backbone:zero") != first
    with pytest.raises(InvalidInputError, match="there is no backbone 'nothing'"):
        backbone_checksum("nothing")
