import os
import zlib
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
import torch

from retarget.errors import InvalidInputError, MissingDataError
from retarget.lab.data import mnist
from retarget.lab.data.fetch import check_file
from retarget.lab.data.mnist import MNIST, load_mnist, read_idx
from support.made_mnist import (
    NAMES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    assert_holds,
    gzipped,
    idx,
    made_data_set,
    write_made_mnist,
)
from support.mirror import Answer
from support.peak_memory import at_most

IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("packed", [True, False])
def test_the_four_files_become_images_and_labels(tmp_path, packed):
    arrays = write_made_mnist(tmp_path, packed, train=11, test=5)
    loaded = load_mnist(str(tmp_path))
    assert_holds(loaded, arrays)
    assert [array.dtype for array in astuple(loaded)] == [np.uint8, np.int64] * 2


def test_download_gets_what_is_missing_and_only_then(tmp_path, monkeypatch, mirror):
    arrays = write_made_mnist(tmp_path / "official")
    for name in NAMES:
        mirror.answers[f"/{name}"] = Answer((tmp_path / "official" / name).read_bytes())
    monkeypatch.setattr(mnist, "MNIST", made_data_set(tmp_path / "official", [mirror.address]))
    with pytest.raises(MissingDataError, match=f"mnist: {TRAIN_IMAGES}"):
        load_mnist(tmp_path / "new")
    assert_holds(load_mnist(tmp_path / "new", download=True), arrays)
    own = write_made_mnist(tmp_path / "own", seed=2)
    assert_holds(load_mnist(tmp_path / "own", download=True), own)
    assert len(mirror.asked) == 4


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (TRAIN_LABELS, np.zeros(6), f"{TRAIN_IMAGES} holds 7 images, but .*{TRAIN_LABELS} holds 6"),
        (TRAIN_LABELS, np.full(7, 10), f"{TRAIN_LABELS} holds the label 10"),
        (TRAIN_IMAGES, np.zeros((7, 28, 27)), f"{TRAIN_IMAGES} promises .*\\(7, 28, 27\\)"),
        (TEST_LABELS, np.zeros((3, 28, 28)), f"{TEST_LABELS} starts with the bytes 00 00 08 03"),
        (TRAIN_IMAGES, np.zeros((0, 28, 28)), f"{TRAIN_IMAGES} promises .*\\(0, 28, 28\\)"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path, name, values, message):
    write_made_mnist(tmp_path)
    (tmp_path / name).write_bytes(gzipped(idx(values)))
    with pytest.raises(InvalidInputError, match=message):
        load_mnist(tmp_path)


# The idx format


def test_values_come_back_in_their_shape(tmp_path):
    for shape in ((24,), (2, 12), (2, 3, 4), (1, 1, 1, 24)):
        content = idx(IMAGES.reshape(shape))
        for packed in (content, gzipped(content), gzipped(content[:9]) + gzipped(content[9:])):
            (tmp_path / "file").write_bytes(packed)
            found = read_idx(tmp_path / "file", shape[1:])
            np.testing.assert_array_equal(found, IMAGES.reshape(shape))
            torch.from_numpy(found)  # which warns about arrays that cannot be written to


PACKED = gzipped(idx(IMAGES))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\3\4" + bytes(20), "starts with the bytes 50 4b 03 04; expected 00 00 08 03"),
        (idx(IMAGES) + b"\0", "promises 24 values, it holds more"),
        (gzipped(idx(IMAGES)[:-1]), "is cut short or damaged: .*24 values, it holds 23"),
        (b"\0\0\x08\3" + b"\xff" * 12 + bytes(50), "promises values of shape \\(4294967295, 4294"),
        (b"\0\0\x08\3\0\x1e\0\0\0\0\0\3\0\0\0\4", "\\(1966080, 3, 4\\); .* each of 1 to 1000000"),
        (PACKED[:-8] + bytes([PACKED[-8] ^ 1]) + PACKED[-7:], "is damaged: CRC check failed"),
        (PACKED + b"more", "is damaged: Not a gzipped file"),
        (PACKED[:10] + b"\xff" * 30, "is damaged: Error -3 while"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, content, message):
    path = tmp_path / "file-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=f"^{path} .*{message}"):
        read_idx(path, (3, 4))


def test_cut_at_any_byte(tmp_path):
    for whole in (idx(IMAGES), PACKED):
        for length in range(len(whole)):
            (tmp_path / "file").write_bytes(whole[:length])
            with pytest.raises(InvalidInputError, match="cut short"):
                read_idx(tmp_path / "file", (3, 4))


def test_no_memory_for_a_bomb(tmp_path):
    pack = zlib.compressobj(9, wbits=31)
    bomb = pack.compress(idx(IMAGES) + bytes(1 << 24)) + pack.flush()
    promise = gzipped(idx(IMAGES).replace(b"\0\0\0\2", b"\0\x0f\0\0", 1))
    with at_most(1 << 21):
        for content in (bomb, promise):
            (tmp_path / "file.gz").write_bytes(content)
            with pytest.raises(InvalidInputError, match="it holds more|can hold"):
                read_idx(tmp_path / "file.gz", (3, 4))


@pytest.mark.slow
def test_the_official_files():
    folder = Path(os.environ.get("RETARGET_DATA", ""))
    if not (folder / TRAIN_IMAGES).is_file():
        pytest.skip("RETARGET_DATA names no folder with MNIST")
    assert [check_file(file, folder) for file in MNIST.files] == [("ok", "")] * 4
    data = load_mnist()
    assert data.train_images.shape == (60_000, 28, 28)
    assert data.test_images.shape == (10_000, 28, 28)
    counts = np.bincount(data.train_labels)
    assert (len(counts), counts.sum(), *counts[:2]) == (10, 60_000, 5923, 6742)
    assert len(data.test_labels) == 10_000
    assert np.bincount(data.test_labels)[:2].tolist() == [980, 1135]
    assert data.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    # the mean that every MNIST tutorial normalizes with
    assert abs(data.train_images.mean() / 255 - 0.1307) < 1e-4
