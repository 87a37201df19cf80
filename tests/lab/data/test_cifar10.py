"""CIFAR-10 in all its forms; only its official pickles are unpickled."""

import hashlib
import os
import pickle
import re
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
import torch

from retarget.errors import InvalidInputError
from retarget.lab.data import cifar10
from retarget.lab.data.cifar10 import load_cifar10, normalized, parse_batch
from retarget.lab.data.fetch import CIFAR10, CIFAR10_BINARY_FILES, CIFAR10_PYTHON_FILES, check_file
from support.made_cifar10 import (
    FORMS,
    PYTHON_NAMES,
    binary_batch,
    made_batches,
    made_files,
    tar_gz,
    write_made_cifar10,
)
from support.made_mnist import assert_holds

PIXELS, LABELS = made_batches(images=4)[0]
FIRST = PYTHON_NAMES[0]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_images_and_labels(tmp_path, monkeypatch, form):
    arrays = write_made_cifar10(tmp_path, form, images=7)
    pickles = {
        Path(name).name: content for name, content in made_files("python", images=7)[0].items()
    }
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in pickles.items()}
    monkeypatch.setattr(cifar10, "OFFICIAL_PICKLES", sums)
    before = sorted(tmp_path.rglob("*"))
    loaded = load_cifar10(tmp_path)
    assert_holds(loaded, arrays)
    assert [array.dtype for array in astuple(loaded)] == [np.uint8, np.int64] * 2
    for array in astuple(loaded):
        torch.from_numpy(array)  # which warns about arrays that cannot be written to
        assert array.flags.c_contiguous
    assert sorted(tmp_path.rglob("*")) == before


def test_planes_are_red_green_and_blue():
    pixels = np.repeat(np.array([[1, 2, 3]], np.uint8), 1024, axis=1)
    pixels[0, 32] = 9  # the first of the second row of red
    (image,), _ = parse_batch(binary_batch(pixels, [0]), "a.bin", "made")
    assert image[0, 1, 0] == 9
    assert image.sum(axis=(1, 2)).tolist() == [1024 + 8, 2048, 3072]


BAD = {
    "label": (binary_batch(PIXELS, [1, 2, 10, 3]), "holds the label 10; expected 0 to 9"),
    "no images": (b"", "holds no images"),
    "cut short": (binary_batch(PIXELS, LABELS)[:-1], "has 12291 bytes; .* 3073"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_batch_is_explained(case):
    content, message = BAD[case]
    with pytest.raises(InvalidInputError, match=f"^made .*{message}"):
        parse_batch(content, "a.bin", "made")


@pytest.mark.parametrize("form", ["binary", "binary archive"])
def test_bad_and_large_batches(tmp_path, monkeypatch, form):
    assert all(f.size <= cifar10.LARGEST_FILE for f in CIFAR10_PYTHON_FILES + CIFAR10_BINARY_FILES)
    write_made_cifar10(tmp_path, form)
    with monkeypatch.context() as patch:
        patch.setattr(cifar10, "LARGEST_FILE", 20 * 3073 - 1)
        with pytest.raises(InvalidInputError, match="batch.* (more than|expected at most) 61459"):
            load_cifar10(tmp_path)
    batches, _ = made_files("binary", images=1)
    bad = list(batches)[2]
    batches[bad] = b"\xff" * 3073
    files, place = batches, f"{tmp_path}/{bad}"
    if form.endswith("archive"):
        archive = next(iter(made_files(form)[0]))
        files, place = {archive: tar_gz(batches)}, f"{bad} in {tmp_path}/{archive}"
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInputError, match=f"^{place} holds the label 255"):
        load_cifar10(tmp_path)


def test_normalized_is_what_the_words_say():
    images = PIXELS.reshape(-1, 3, 32, 32)
    means = np.array([0.4914, 0.4822, 0.4465])
    deviations = np.array([0.2470, 0.2435, 0.2616])
    channels_last = (images.transpose(0, 2, 3, 1) / 255 - means) / deviations
    found = normalized(images)
    assert found.dtype == np.float32
    assert found.shape == images.shape
    np.testing.assert_allclose(found, channels_last.transpose(0, 3, 1, 2), atol=1e-6)
    for other in (images.astype(float), images.transpose(0, 2, 3, 1), images[0]):
        told = re.escape(f"got images of shape {other.shape} and type {other.dtype}; expected (n, ")
        with pytest.raises(InvalidInputError, match=told):
            normalized(other)


# Pickles


@pytest.mark.parametrize("form", ["python", "python archive"])
def test_only_official_pickles_are_unpickled(tmp_path, form):
    write_made_cifar10(tmp_path, form, images=2)  # which are valid, but made here
    told = r"_batch.* has sha256 .*, expected .*: .* retarget data get cifar10, or use the bin"
    with pytest.raises(InvalidInputError, match=told):
        load_cifar10(tmp_path)
    for path in list(tmp_path.rglob("*")):
        if path.is_file():
            path.unlink()
    arrays = write_made_cifar10(tmp_path, "binary", images=2)  # the advice
    assert_holds(load_cifar10(tmp_path), arrays)


def test_nothing_in_a_hostile_file_runs(tmp_path):
    canary = tmp_path / "canary"
    text = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    call = type("Call", (), {"__reduce__": lambda self: (eval, (text,))})()
    content = pickle.dumps(call)
    for name in PYTHON_NAMES:
        with pytest.raises(InvalidInputError, match="made has sha256 .* was not unpickled"):
            parse_batch(content, name, "made")
    assert not canary.exists()
    pickle.loads(content)
    assert canary.exists()  # it was a real one


@pytest.mark.slow
def test_the_official_files():
    folder = Path(os.environ.get("RETARGET_DATA", ""))
    if not (folder / FIRST).is_file():
        pytest.skip("RETARGET_DATA names no folder with CIFAR-10, unpacked")
    assert check_file(CIFAR10.files[0], folder)[0] == "ok"
    data = load_cifar10()
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert data.test_images.shape == (10_000, 3, 32, 32)
    assert np.bincount(data.train_labels).tolist() == [5000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
    assert data.train_labels[:5].tolist() == [6, 9, 9, 4, 1]
    for channel in normalized(data.train_images).swapaxes(0, 1):
        assert abs(channel.mean(dtype=np.float64)) < 2e-4
        assert abs(channel.std(dtype=np.float64) - 1) < 2e-4
    # the binary version has the same images
    for python, binary in zip(CIFAR10_PYTHON_FILES, CIFAR10_BINARY_FILES, strict=True):
        images, labels = parse_batch((folder / python.name).read_bytes(), python.name, "official")
        content = binary_batch(images.reshape(len(images), -1), labels)
        assert len(content) == binary.size
        assert hashlib.sha256(content).hexdigest() == binary.sha256
