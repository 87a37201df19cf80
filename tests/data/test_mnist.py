import os
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.data import mnist
from retarget.data.fetch import FileState, check
from retarget.data.mnist import MNIST, load_mnist
from retarget.errors import InvalidInputError, MissingDataError, RetargetError
from support.made_mnist import (
    NAMES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    gzipped,
    idx,
    made_arrays,
    made_data_set,
    write_made_mnist,
)
from support.mirror import Answer


def assert_holds(loaded, arrays):
    for found, expected in zip(astuple(loaded), arrays, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("packed", [True, False])
def test_the_four_files_become_images_and_labels(tmp_path, packed):
    arrays = write_made_mnist(tmp_path, packed, train=11, test=5)
    loaded = load_mnist(tmp_path)
    assert_holds(loaded, arrays)
    assert loaded.train_images.shape == (11, 28, 28)
    assert loaded.test_images.dtype == np.uint8
    assert loaded.train_labels.dtype == loaded.test_labels.dtype == np.int64


def test_the_folder_can_be_text_and_the_environment_variable(tmp_path, monkeypatch):
    arrays = write_made_mnist(tmp_path / "one")
    others = write_made_mnist(tmp_path / "two", seed=1)
    assert_holds(load_mnist(str(tmp_path / "one")), arrays)
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path / "two"))
    assert_holds(load_mnist(), others)
    assert_holds(load_mnist(tmp_path / "one"), arrays)


def test_missing_files_are_named_with_the_command_that_gets_them(tmp_path):
    write_made_mnist(tmp_path)
    (tmp_path / TRAIN_LABELS).unlink()
    (tmp_path / TEST_LABELS).unlink()
    expected = (
        f"mnist: {TRAIN_LABELS}, {TEST_LABELS} not found in {tmp_path}; "
        f"get it with: retarget data get mnist --data-dir {tmp_path} "
    )
    with pytest.raises(MissingDataError, match=expected):
        load_mnist(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_download_gets_what_is_missing_and_only_then(tmp_path, monkeypatch, mirror):
    arrays = write_made_mnist(tmp_path / "official")
    for name in NAMES:
        content = (tmp_path / "official" / name).read_bytes()
        mirror.answers[f"/{name}"] = Answer(content)
    monkeypatch.setattr(mnist, "MNIST", made_data_set(tmp_path / "official", [mirror.address]))
    assert_holds(load_mnist(tmp_path / "new", download=True), arrays)
    assert len(mirror.asked) == 4
    own = write_made_mnist(tmp_path / "own", seed=2)
    assert_holds(load_mnist(tmp_path / "own", download=True), own)
    assert len(mirror.asked) == 4


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (TRAIN_LABELS, np.zeros(6), f"{TRAIN_IMAGES} holds 7 images, but .*{TRAIN_LABELS} holds 6"),
        (TRAIN_LABELS, np.full(7, 10), f"{TRAIN_LABELS} holds the label 10; expected 0 to 9"),
        (TRAIN_IMAGES, np.zeros((7, 28, 27)), f"{TRAIN_IMAGES} holds images of 28 x 27 pixels; ex"),
        (TRAIN_IMAGES, np.zeros((7, 784)), f"{TRAIN_IMAGES} holds values of 2 dimensions"),
        (TEST_LABELS, np.zeros((3, 28, 28)), f"{TEST_LABELS} holds values of 3 dimensions"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path, name, values, message):
    write_made_mnist(tmp_path)
    (tmp_path / name).write_bytes(gzipped(idx(values)))
    with pytest.raises(InvalidInputError, match=message):
        load_mnist(tmp_path)


def test_no_images(tmp_path):
    write_made_mnist(tmp_path, train=0)
    with pytest.raises(InvalidInputError, match=f"{TRAIN_IMAGES} holds 0 images; expected 1 to"):
        load_mnist(tmp_path)


def test_more_images_than_any_such_set_has(tmp_path, monkeypatch):
    write_made_mnist(tmp_path)
    monkeypatch.setattr(mnist, "LARGEST_COUNT", 6)
    with pytest.raises(InvalidInputError, match=f"{TRAIN_IMAGES} holds 7 images; expected 1 to 6"):
        load_mnist(tmp_path)


@given(
    packed=st.booleans(),
    changes=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 100_000), st.integers(0, 255)),
        min_size=1,
        max_size=5,
    ),
)
def test_changed_bytes_give_an_error_of_ours_or_digits(tmp_path_factory, packed, changes):
    folder = tmp_path_factory.getbasetemp() / f"changed-{packed}"
    write_made_mnist(folder, packed, train=2, test=1)
    for which, place, value in changes:
        path = folder / (NAMES[which] if packed else NAMES[which].removesuffix(".gz"))
        content = bytearray(path.read_bytes())
        content[place % min(len(content), 200)] = value  # headers matter more than pixels
        path.write_bytes(content)
    try:
        loaded = load_mnist(folder)
    except RetargetError:
        return
    for found, made in zip(astuple(loaded), made_arrays(2, 1), strict=True):
        assert found.shape == made.shape
    assert loaded.train_labels.max() < 10


@pytest.mark.slow
def test_the_official_files():
    folder = Path(os.environ.get("RETARGET_DATA", ""))
    if not (folder / TRAIN_IMAGES).is_file():
        pytest.skip("RETARGET_DATA names no folder with MNIST")
    assert [found.state for found in check(MNIST, folder)] == [FileState.OK] * 4
    data = load_mnist()
    assert data.train_images.shape == (60_000, 28, 28)
    assert data.test_images.shape == (10_000, 28, 28)
    counts = np.bincount(data.train_labels)
    assert (len(counts), counts.sum(), *counts[:2]) == (10, 60_000, 5923, 6742)
    assert len(data.test_labels) == 10_000
    assert np.bincount(data.test_labels)[:2].tolist() == [980, 1135]
    assert data.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    # the mean that every MNIST tutorial normalises with
    assert abs(data.train_images.mean() / 255 - 0.1307) < 1e-4
