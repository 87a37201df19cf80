import hashlib
import os
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
import torch

from retarget.data import cifar10
from retarget.data.cifar10 import Cifar10, load_cifar10, normalised, read_pickle
from retarget.data.fetch import CIFAR10, CIFAR10_BINARY_FILES, CIFAR10_PYTHON_FILES, check_file
from retarget.errors import InvalidInputError, MissingDataError
from support.made_cifar10 import (
    BINARY_NAMES,
    FORMS,
    PYTHON_NAMES,
    binary_batch,
    made_batches,
    made_files,
    python2_pickle,
    python_batch,
    tar_gz,
    write_made_cifar10,
)

PIXELS, LABELS = made_batches(images=4)[0]
FIRST = PYTHON_NAMES[0]
# As torchvision has them, for the files of the python version.
PUBLISHED_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}


def assert_holds(loaded, arrays):
    for found, expected in zip(astuple(loaded), arrays, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_images_and_labels(tmp_path, form):
    arrays = write_made_cifar10(tmp_path, form, images=7)
    before = sorted(tmp_path.rglob("*"))
    loaded = load_cifar10(tmp_path)
    assert_holds(loaded, arrays)
    assert loaded.train_images.shape == (35, 3, 32, 32)
    assert loaded.test_images.shape == (7, 3, 32, 32)
    assert loaded.train_images.dtype == loaded.test_images.dtype == np.uint8
    assert loaded.train_labels.dtype == loaded.test_labels.dtype == np.int64
    for array in astuple(loaded):
        torch.from_numpy(array)  # which warns about arrays that cannot be written to
        assert array.flags.c_contiguous
    assert sorted(tmp_path.rglob("*")) == before


def test_the_planes_of_an_image_are_red_green_and_blue(tmp_path):
    write_made_cifar10(tmp_path)
    pixels = np.repeat(np.array([[1, 2, 3]], np.uint8), 1024, axis=1)
    pixels[0, 32] = 9  # the first of the second row of red
    (tmp_path / FIRST).write_bytes(python_batch(pixels, [0]))
    image = load_cifar10(tmp_path).train_images[0]
    assert image[0, 1, 0] == 9
    assert image.sum(axis=(1, 2)).tolist() == [1024 + 8, 2048, 3072]


def test_the_forms_are_looked_for_in_order(tmp_path):
    made = {form: write_made_cifar10(tmp_path, form, seed=n) for n, form in enumerate(FORMS)}
    for form in ("python archive", "python", "binary archive", "binary"):
        assert_holds(load_cifar10(tmp_path), made[form])
        for name in made_files(form)[0]:
            (tmp_path / name).unlink()
    with pytest.raises(MissingDataError, match="cifar10: cifar-10-python.tar.gz not found in"):
        load_cifar10(tmp_path)


BAD = {
    "label": ("python", python_batch(PIXELS, [1, 2, 10, 3]), "holds the label 10; expected 0 to 9"),
    "negative label": ("python", python_batch(PIXELS, [1, -2, 0, 3]), "holds the label -2;"),
    "too few labels": (
        "python",
        python_batch(PIXELS, [1, 2, 3]),
        r"holds 3 labels, but 'data' of \(4, 3072\); expected an array of \(3, 3072\)",
    ),
    "no images": ("python", python_batch(PIXELS[:0], []), "holds no images"),
    "no array": ("python", python2_pickle({b"data": b"x", b"labels": []}), "'data' of bytes;"),
    "labels of text": (
        "python",
        python2_pickle({b"data": PIXELS, b"labels": [b"x"] * 4}),
        "holds 'labels' that are not a list of whole numbers",
    ),
    "no labels": ("python", python2_pickle({b"data": PIXELS}), "no dictionary with 'data' and 'la"),
    "a call": ("python", b"cos\nsystem\n(S'true'\ntR.", "is refused: it asks for GLOBAL 'os.sys"),
    "binary label": ("binary", binary_batch(PIXELS, [1, 2, 10, 3]), "holds the label 10;"),
    "binary cut short": ("binary", binary_batch(PIXELS, LABELS)[:-1], "has 12291 bytes; .* 3073"),
    "binary empty": ("binary", b"", "holds no images"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_batch_is_named(tmp_path, case):
    version, content, message = BAD[case]
    name = (PYTHON_NAMES if version == "python" else BINARY_NAMES)[2]
    write_made_cifar10(tmp_path / "files", version)
    (tmp_path / "files" / name).write_bytes(content)
    with pytest.raises(InvalidInputError, match=f"{tmp_path}/files/{name} .*{message}"):
        load_cifar10(tmp_path / "files")
    contents = made_files(version)[0] | {name: content}
    (archive,) = made_files(f"{version} archive")[0]
    (tmp_path / archive).write_bytes(tar_gz(contents))
    with pytest.raises(InvalidInputError, match=f"{name} in {tmp_path}/{archive} .*{message}"):
        load_cifar10(tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_larger_than_any_of_cifar10(tmp_path, monkeypatch, form):
    files = CIFAR10_PYTHON_FILES + CIFAR10_BINARY_FILES
    assert all(file.size <= cifar10.LARGEST_FILE for file in files)
    write_made_cifar10(tmp_path, form)
    monkeypatch.setattr(cifar10, "LARGEST_FILE", 20 * 3073 - 1)
    with pytest.raises(InvalidInputError, match="batch.* (more than|expected at most) 61459"):
        load_cifar10(tmp_path)


def test_normalised_is_what_the_words_say():
    images = PIXELS.reshape(-1, 3, 32, 32)
    means = np.array([0.4914, 0.4822, 0.4465])
    deviations = np.array([0.2470, 0.2435, 0.2616])
    channels_last = (images.transpose(0, 2, 3, 1) / 255 - means) / deviations
    found = normalised(images)
    assert found.dtype == np.float32
    assert found.shape == images.shape
    np.testing.assert_allclose(found, channels_last.transpose(0, 3, 1, 2), atol=1e-6)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 3, 32, 32)), r"shape \(2, 3, 32, 32\) and type float64; expected \(n, 3, "),
        (np.zeros((2, 32, 32, 3), np.uint8), r"shape \(2, 32, 32, 3\) and type uint8; expected"),
        (np.zeros((3, 32, 32), np.uint8), r"shape \(3, 32, 32\) and type uint8; expected"),
    ],
)
def test_only_images_are_normalised(images, message):
    with pytest.raises(InvalidInputError, match=f"got images of {message}"):
        normalised(images)


@pytest.fixture
def official():
    folder = Path(os.environ.get("RETARGET_DATA", ""))
    if not (folder / FIRST).is_file():
        pytest.skip("RETARGET_DATA names no folder with CIFAR-10, unpacked")
    return folder


@pytest.mark.slow
def test_the_official_files(official):
    assert check_file(CIFAR10.files[0], official)[0] == "ok"
    for file in CIFAR10_PYTHON_FILES:
        content = (official / file.name).read_bytes()
        assert hashlib.md5(content).hexdigest() == PUBLISHED_MD5[Path(file.name).name]
    data = load_cifar10()
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert data.test_images.shape == (10_000, 3, 32, 32)
    assert np.bincount(data.train_labels).tolist() == [5000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
    assert data.train_labels[:5].tolist() == [6, 9, 9, 4, 1]
    for channel in normalised(data.train_images).swapaxes(0, 1):
        assert abs(channel.mean(dtype=np.float64)) < 2e-4
        assert abs(channel.std(dtype=np.float64) - 1) < 2e-4
    meta = read_pickle((official / "cifar-10-batches-py/batches.meta").read_bytes(), "meta")
    assert tuple(name.decode() for name in meta[b"label_names"]) == Cifar10.class_names


@pytest.mark.slow
def test_the_binary_version_has_the_same_images(official):
    for python, binary in zip(CIFAR10_PYTHON_FILES, CIFAR10_BINARY_FILES, strict=True):
        batch = read_pickle((official / python.name).read_bytes(), python.name)
        content = binary_batch(batch[b"data"], np.array(batch[b"labels"], np.uint8))
        assert len(content) == binary.size
        assert hashlib.sha256(content).hexdigest() == binary.sha256
