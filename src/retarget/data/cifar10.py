"""CIFAR-10: 60,000 colour photographs of 32 x 32 pixels in ten classes, from the official files.

A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.

There are two versions of the same images, each an archive of six batches. The batches of the python
version are pickles, which are read without Python's `pickle`, so that no code in them is run.
"""

import math
import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from retarget.data.archives import read_file, read_members
from retarget.data.fetch import (
    CIFAR10,
    CIFAR10_BINARY_ARCHIVE,
    CIFAR10_BINARY_FILES,
    CIFAR10_PYTHON_FILES,
    locate,
)
from retarget.errors import InvalidInputError

# Means and deviations of red, green and blue in the training images, for pixels in [0, 1].
MEANS = (0.4914, 0.4822, 0.4465)
DEVIATIONS = (0.2470, 0.2435, 0.2616)

CLASSES = 10
SHAPE = (3, 32, 32)
PIXELS = math.prod(SHAPE)
# Bytes in one file; the official ones have 30.7 and 31.0 million, for 10,000 images.
LARGEST_FILE = 32_000_000

Batch = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Cifar10:
    """Images (n, 3, 32, 32) of uint8: red, green, blue; and labels (n,) of int64, 0 to 9."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: ClassVar[tuple[str, ...]] = (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    )


def load_cifar10(folder: str | Path | None = None, *, download: bool = False) -> Cifar10:
    """Loads CIFAR-10 (50,000 training and 10,000 test images) from its python or binary version.

    It reads the archive without unpacking it, or the files of an unpacked archive. The python
    version is a pickle, which is read without unpickling. Files are checked for being complete and
    consistent; `retarget data check cifar10` compares them with the official ones.

    Args:
        folder: Where the files are; by default `RETARGET_DATA`, else the user's cache.
        download: Whether to download the official archive (python version) first if it is missing.

    Raises:
        MissingDataError: Files are missing; the message says how to get them.
        InvalidInputError: A file is damaged, or holds something else.
        DownloadError: The archive could not be downloaded from any mirror.
    """
    (paths,) = locate(CIFAR10, folder, download=download)
    batches = {
        Path(name).stem: parse_batch(content, name, source)
        for name, content, source in _contents(paths)
    }
    train = [batches[f"data_batch_{number}"] for number in range(1, 6)]
    parts = (train, [batches["test_batch"]])
    return Cifar10(*(np.concatenate(each) for part in parts for each in zip(*part, strict=True)))


def normalised(images: np.ndarray) -> np.ndarray:
    """Converts images of uint8 to float32, standardised by the mean and deviation of each channel.

    Examples:
        >>> red = np.zeros((1, 3, 32, 32), np.uint8)
        >>> red[:, 0] = 255
        >>> print(normalised(red)[0, :, 0, 0].round(2))
        [ 2.06 -1.98 -1.71]
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] != len(MEANS):
        raise InvalidInputError(
            f"got images of shape {images.shape} and type {images.dtype}; "
            "expected (n, 3, height, width) of uint8"
        )
    means, deviations = (np.reshape(values, (3, 1, 1)) for values in (MEANS, DEVIATIONS))
    # One scale and one shift in float32, which avoids a larger temporary array.
    scaled = images * (1 / (255 * deviations)).astype(np.float32)
    scaled -= (means / deviations).astype(np.float32)
    return scaled


def _contents(paths: tuple[Path, ...]) -> Iterator[tuple[str, bytes, str]]:
    """Yields name and content of each batch, from the archive or its file, and its source."""
    if len(paths) == 1:
        binary = paths[0].name == CIFAR10_BINARY_ARCHIVE.name
        files = CIFAR10_BINARY_FILES if binary else CIFAR10_PYTHON_FILES
        for name, content in read_members(paths[0], [file.name for file in files], LARGEST_FILE):
            yield name, content, f"{name} in {paths[0]}"
        return
    for path in paths:
        yield path.name, read_file(path, LARGEST_FILE), str(path)


def parse_batch(content: bytes, name: str, source: str) -> Batch:
    """Returns images (n, 3, 32, 32) uint8 and labels (n,) int64 from a file of either version."""
    pixels, labels = (_binary if name.endswith(".bin") else _python)(content, source)
    if not len(labels):
        raise InvalidInputError(f"{source} holds no images")
    wrong = labels[(labels < 0) | (labels >= CLASSES)]
    if len(wrong):
        raise InvalidInputError(f"{source} holds the label {wrong[0]}; expected 0 to 9")
    return pixels.reshape(-1, *SHAPE), labels.astype(np.int64)


def _binary(content: bytes, source: str) -> Batch:
    """Parses one image after the other: a byte for its label, then its pixels."""
    if len(content) % (1 + PIXELS):
        raise InvalidInputError(
            f"{source} has {len(content)} bytes; expected a multiple of {1 + PIXELS}, the bytes "
            "of a label and its image: it is cut short or damaged"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)
    return rows[:, 1:], rows[:, 0]


def _python(content: bytes, source: str) -> Batch:
    """Parses a pickled dictionary with the pixels, one row per image, and the list of labels."""
    batch = read_pickle(content, source)
    if not {b"data", b"labels"} <= batch.keys():
        raise InvalidInputError(f"{source} holds no dictionary with 'data' and 'labels'")
    pixels, labels = batch[b"data"], batch[b"labels"]
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise InvalidInputError(f"{source} holds 'labels' that are not a list of whole numbers")
    found = pixels.shape if isinstance(pixels, np.ndarray) else type(pixels).__name__
    if found != (len(labels), PIXELS):
        raise InvalidInputError(
            f"{source} holds {len(labels)} labels, but 'data' of {found}; "
            f"expected an array of {(len(labels), PIXELS)}"
        )
    return pixels, np.array(labels, np.int64)


# A pickle is a program, whose instructions may import and call anything. Here `pickletools` lists
# them without running them, and they are compared with what Python 2 wrote for CIFAR-10: numbers,
# strings, lists of these, and one array of bytes, in a dictionary. All else is refused. None of
# them reuses a stored value, so the result cannot be larger than the file.
MOST_INSTRUCTIONS = 1_000_000  # a file of CIFAR-10 has about 50,000
SKIPPED = {"PROTO", "BINPUT", "LONG_BINPUT"}
NUMBER, STRING = "number", "string"
PLAIN = {"BININT": NUMBER, "BININT1": NUMBER, "BININT2": NUMBER}
PLAIN |= {"BINSTRING": STRING, "SHORT_BINSTRING": STRING}
# An array of bytes, as NumPy wrote it; ... stands for its rows, its columns and its pixels.
ARRAY: list[tuple[str, Any]] = [
    *(("GLOBAL", "numpy.core.multiarray _reconstruct"), ("GLOBAL", "numpy ndarray")),
    *((NUMBER, 0), ("TUPLE1", None), (STRING, b"b"), ("TUPLE3", None), ("REDUCE", None)),
    *(("MARK", None), (NUMBER, 1), (NUMBER, ...), (NUMBER, ...), ("TUPLE2", None)),
    *(("GLOBAL", "numpy dtype"), (STRING, b"u1"), (NUMBER, 0), (NUMBER, 1), ("TUPLE3", None)),
    *(("REDUCE", None), ("MARK", None), (NUMBER, 3), (STRING, b"|")),
    *(("NONE", None), ("NONE", None), ("NONE", None), (NUMBER, -1), (NUMBER, -1), (NUMBER, 0)),
    *(("TUPLE", None), ("BUILD", None), ("NEWFALSE", None), (STRING, ...)),
    *(("TUPLE", None), ("BUILD", None)),
]


def read_pickle(content: bytes, source: str) -> dict[bytes, Any]:
    r"""Reads the dictionary in a file of CIFAR-10's python version without unpickling it.

    Its values are numbers, bytes, lists of these, and a (rows, columns) array of uint8. A file that
    is damaged or contains anything else raises an error that names `source`.

    Examples:
        >>> read_pickle(b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x06K\x09eu.", "a file")
        {b'labels': [6, 9]}
    """
    try:
        left = _instructions(content)[::-1]  # the next one is the last
        found: dict[bytes, Any] = {}
        _take(left, [("EMPTY_DICT", None), ("MARK", None)])
        while left[-1][0] == STRING:
            name = left.pop()[1]
            found[name] = _value(left)
        _take(left, [("SETITEMS", None), ("STOP", None)])
    except Exception as error:  # pickletools raises several kinds for damage
        raise InvalidInputError(
            f"{source} is refused: {error}; it is cut short, damaged, or not an official "
            "file, and was not unpickled"
        ) from error
    return found


def _instructions(content: bytes) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    at: int | None = None
    for number, (instruction, argument, place) in enumerate(pickletools.genops(content)):
        if number == MOST_INSTRUCTIONS:
            raise ValueError(f"it has more than {MOST_INSTRUCTIONS} instructions")
        name = PLAIN.get(instruction.name, instruction.name)
        if name not in SKIPPED:
            value: Any = argument
            found.append((name, value.encode("latin-1") if name == STRING else value))
        at = place
    if at != len(content) - 1:
        raise ValueError("it continues after its end")
    return found


def _value(left: list[tuple[str, Any]]) -> Any:
    """Returns the value that the next instructions build, if it is plain."""
    if left[-1][0] in (NUMBER, STRING):
        return left.pop()[1]
    if left[-1][0] != "EMPTY_LIST":
        rows, columns, pixels = _take(left, ARRAY)
        return np.frombuffer(pixels, np.uint8).reshape(max(0, rows), max(0, columns))
    values = []
    left.pop()
    while left[-1][0] == "MARK":  # lists are extended by a thousand values at a time
        left.pop()
        while left[-1][0] in (NUMBER, STRING):
            values.append(left.pop()[1])
        _take(left, [("APPENDS", None)])
    return values


def _take(left: list[tuple[str, Any]], expected: list[tuple[str, Any]]) -> list[Any]:
    """Removes the expected instructions; returns the arguments that may be anything (...)."""
    arguments = []
    for wanted, argument in expected:
        name, found = left.pop()
        if name != wanted or argument not in (..., found):
            asked = f"{name} {found!a}"[:80]
            raise ValueError(f"it has {asked} where CIFAR-10 has {wanted}")
        if argument is ...:
            arguments.append(found)
    return arguments
