"""CIFAR-10 in all its forms; its pickles are read without running them."""

import hashlib
import os
import pickle
import pickletools
import re
import struct
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retarget.data import cifar10
from retarget.data.cifar10 import Cifar10, load_cifar10, normalised, parse_batch, read_pickle
from retarget.data.fetch import CIFAR10, CIFAR10_BINARY_FILES, CIFAR10_PYTHON_FILES, check_file
from retarget.errors import InvalidInputError
from support.made_cifar10 import (
    FORMS,
    PYTHON_NAMES,
    array_pickle,
    binary_batch,
    made_batches,
    made_files,
    python2_pickle,
    python_batch,
    tar_gz,
    write_made_cifar10,
)
from support.made_mnist import assert_holds
from support.peak_memory import at_most

PIXELS, LABELS = made_batches(images=4)[0]
ROWS = np.arange(12, dtype=np.uint8).reshape(3, 4)
FIRST = PYTHON_NAMES[0]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_images_and_labels(tmp_path, form):
    arrays = write_made_cifar10(tmp_path, form, images=7)
    before = sorted(tmp_path.rglob("*"))
    loaded = load_cifar10(tmp_path)
    assert_holds(loaded, arrays)
    assert [array.dtype for array in astuple(loaded)] == [np.uint8, np.int64] * 2
    for array in astuple(loaded):
        torch.from_numpy(array)  # which warns about arrays that cannot be written to
        assert array.flags.c_contiguous
    assert sorted(tmp_path.rglob("*")) == before


def test_the_planes_of_an_image_are_red_green_and_blue():
    pixels = np.repeat(np.array([[1, 2, 3]], np.uint8), 1024, axis=1)
    pixels[0, 32] = 9  # the first of the second row of red
    (image,), _ = parse_batch(python_batch(pixels, [0]), "a", "made")
    assert image[0, 1, 0] == 9
    assert image.sum(axis=(1, 2)).tolist() == [1024 + 8, 2048, 3072]


BAD = {
    "label": (python_batch(PIXELS, [1, 2, 10, 3]), "holds the label 10; expected 0 to 9"),
    "negative label": (python_batch(PIXELS, [1, -2, 0, 3]), "holds the label -2;"),
    "too few labels": (python_batch(PIXELS, [1, 2, 3]), r"3 labels, but 'data' of \(4, 3072\);"),
    "no images": (python_batch(PIXELS[:0], []), "holds no images"),
    "no array": (python2_pickle({b"data": b"x", b"labels": []}), "'data' of bytes;"),
    "text": (python2_pickle({b"data": PIXELS, b"labels": [b"x"] * 4}), "not a list of whole numb"),
    "no labels": (python2_pickle({b"data": PIXELS}), "no dictionary with 'data' and 'labels'"),
    "binary cut short": (binary_batch(PIXELS, LABELS)[:-1], "has 12291 bytes; .* 3073"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_batch_is_explained(case):
    content, message = BAD[case]
    with pytest.raises(InvalidInputError, match=f"^made .*{message}"):
        parse_batch(content, "a.bin" if case.startswith("binary") else "a", "made")


@pytest.mark.parametrize("form", FORMS)
def test_a_bad_batch_is_named_and_none_is_larger_than_those_of_cifar10(tmp_path, monkeypatch, form):
    assert all(f.size <= cifar10.LARGEST_FILE for f in CIFAR10_PYTHON_FILES + CIFAR10_BINARY_FILES)
    write_made_cifar10(tmp_path, form)
    with monkeypatch.context() as patch:
        patch.setattr(cifar10, "LARGEST_FILE", 20 * 3073 - 1)
        with pytest.raises(InvalidInputError, match="batch.* (more than|expected at most) 61459"):
            load_cifar10(tmp_path)
    batches, _ = made_files(form.removesuffix(" archive"), images=1)
    bad = list(batches)[2]
    batches[bad] = b"\xff" * 3073
    files, place = batches, f"{tmp_path}/{bad}"
    if form.endswith("archive"):
        archive = next(iter(made_files(form)[0]))
        files, place = {archive: tar_gz(batches)}, f"{bad} in {tmp_path}/{archive}"
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInputError, match=f"^{place} (holds the label 255|is refused)"):
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
    for other in (images.astype(float), images.transpose(0, 2, 3, 1), images[0]):
        told = re.escape(f"got images of shape {other.shape} and type {other.dtype}; expected (n, ")
        with pytest.raises(InvalidInputError, match=told):
            normalised(other)


# Pickles


def test_files_of_python_2_are_as_pickle_reads_them():
    numbers, text = [0, 255, 256, 65536, -(2**31)], [b"", b"x" * 300]
    value = {b"data": ROWS, b"labels": numbers, b"names": text, b"empty": [], b"": ROWS[:0]}
    value |= {b"long": text[1], b"number": -5}
    for each in (value, {b"data": np.zeros((70_000, 1), np.uint8)}, {}):
        content = python2_pickle(each)
        for found in (pickle.loads(content, encoding="bytes"), read_pickle(content, "made")):
            np.testing.assert_equal(found, each)
            assert [type(part) for part in found.values()] == [type(p) for p in each.values()]


def hostile(canary):
    """Pickles that would create the file `canary`, if anything in them ran."""
    text = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    call = type("Call", (), {"__reduce__": lambda self: (eval, (text,))})()
    evaluate = b"cbuiltins\neval\n"
    argument = b"X" + struct.pack("<I", len(text)) + text.encode()
    short = b"\x8c" + bytes([len(text)]) + text.encode()
    array = python2_pickle(ROWS)
    yield b"\x80\x02}" + evaluate + argument + b"\x85RK\x01s."  # as a key
    yield b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93" + short + b"\x85R."
    yield b"(" + argument + b"ibuiltins\neval\n."  # an instance
    yield b"(" + evaluate + argument + b"o."
    yield b"\x80\x02" + evaluate + argument + b"\x85\x81."
    for part in re.findall(b"cnumpy.*\n.*\n", array):  # instead of each of its functions
        yield array.replace(part, evaluate)
    yield array[:-1] + b"(" + argument + b"ibuiltins\neval\n."  # after an array
    for protocol in range(6):
        yield pickle.dumps({"data": [call]}, protocol)


def test_nothing_in_a_hostile_file_runs(tmp_path):
    canary = tmp_path / "canary"
    for content in hostile(canary):
        with pytest.raises(InvalidInputError, match="made.bin is refused: .* not unpickled"):
            read_pickle(content, "made.bin")
        assert not canary.exists()
    pickle.loads(content)
    assert canary.exists()  # it was a real one


def entry(value):
    """A dictionary with one entry, made by these instructions."""
    return b"\x80\x02}(U\x01a" + value + b"u."


def test_what_is_not_plain_data_is_refused():
    for content, message in (
        (entry(b"](]e"), "EMPTY_LIST"),
        (b"\xff.", "at position 0, opcode"),
        (b"}(U\x01au.", "SETITEMS"),
        (entry(b"K\x01") + b"N", "continues after its end"),
        (entry(array_pickle((3, 4), bytes(11))), "reshape"),
        (entry(array_pickle((-3, -4), bytes(12))), "reshape"),
        (entry(array_pickle((1, 3, 4), bytes(12))), "number 4"),
        (entry(array_pickle((1, 1), b"x", b"O8")), "O8"),
    ):
        with pytest.raises(InvalidInputError, match=f"made is refused: .*{message}"):
            read_pickle(content, "made")


def test_every_instruction_of_pickle_is_known_or_refused():
    known = {*cifar10.SKIPPED, *cifar10.PLAIN, "EMPTY_LIST"}
    every = {opcode.name: opcode.code.encode("latin-1") for opcode in pickletools.opcodes}
    for name in every.keys() - known:
        with pytest.raises(InvalidInputError, match="made is refused"):
            read_pickle(entry(every[name] + 9 * b"N" + b"\n"), "made")


def test_a_promised_length_is_not_allocated_and_instructions_are_limited(monkeypatch):
    with at_most(1e5):
        for value in (b"T\xff\xff\xff\x7f", b"\x96" + 8 * b"\x11", array_pickle((65535, 1), b"")):
            with pytest.raises(InvalidInputError, match="made is refused"):
                read_pickle(entry(value), "made")
    monkeypatch.setattr(cifar10, "MOST_INSTRUCTIONS", 10)
    read_pickle(entry(b"](K\x01e"), "made")
    with pytest.raises(InvalidInputError, match="it has more than 10 instructions"):
        read_pickle(entry(b"](K\x01K\x01e"), "made")


def plain(value):
    if isinstance(value, list):
        return all(type(part) in (int, bytes) for part in value)
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and value.ndim == 2
    return type(value) in (int, bytes)


@given(
    start=st.integers(0, 400),
    stop=st.integers(0, 400),
    more=st.binary(max_size=40) | st.sampled_from([b"c", b"R", b"b", b"o", b"\x93", b"(", b"}u."]),
)
def test_changed_files_give_an_error_of_ours_or_plain_data(start, stop, more):
    content = python_batch(ROWS, [1, 2, 3])
    try:
        value = read_pickle(content[:start] + more + content[stop:], "made")
    except InvalidInputError:
        return
    assert all(type(key) is bytes and plain(part) for key, part in value.items())


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
    for channel in normalised(data.train_images).swapaxes(0, 1):
        assert abs(channel.mean(dtype=np.float64)) < 2e-4
        assert abs(channel.std(dtype=np.float64) - 1) < 2e-4
    meta = read_pickle((folder / "cifar-10-batches-py/batches.meta").read_bytes(), "meta")
    assert tuple(name.decode() for name in meta[b"label_names"]) == Cifar10.class_names
    # the binary version has the same images
    for python, binary in zip(CIFAR10_PYTHON_FILES, CIFAR10_BINARY_FILES, strict=True):
        batch = read_pickle((folder / python.name).read_bytes(), python.name)
        content = binary_batch(batch[b"data"], np.array(batch[b"labels"], np.uint8))
        assert len(content) == binary.size
        assert hashlib.sha256(content).hexdigest() == binary.sha256
