"""CIFAR-10: 60,000 colour photographs of 32 x 32 pixels in ten classes, from the official files.

A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.

There are two versions of the same images, each an archive of six batches. The batches of the python
version are pickles. They are read without Python's `pickle`, so that nothing in a file can make
anything run.
"""

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from retarget.data.archives import read_members
from retarget.data.catalogue import (
    CIFAR10,
    CIFAR10_BINARY_ARCHIVE,
    CIFAR10_BINARY_FILES,
    CIFAR10_PYTHON_FILES,
)
from retarget.data.fetch import data_folder, get, is_complete, locate
from retarget.errors import InvalidInputError

TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCHES = ("test_batch",)
# Of the training images, red, green and blue, for pixels in [0, 1].
MEANS = (0.4914, 0.4822, 0.4465)
DEVIATIONS = (0.2470, 0.2435, 0.2616)

CLASSES = 10
CHANNELS, HEIGHT, WIDTH = 3, 32, 32
PIXELS = CHANNELS * HEIGHT * WIDTH
# Bytes in one file: the official ones have 30.7 and 31.0 million, for 10,000 images.
LARGEST_FILE = 32_000_000
BINARY_SUFFIX = ".bin"

Batch = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Cifar10:
    """Images (n, 3, 32, 32) of uint8: red, green, blue; and labels (n,) of int64, 0 to 9.

    Attributes:
        class_names: What the labels mean.
    """

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
    """CIFAR-10 from its python or binary version; the official ones hold 50,000 and 10,000 images.

    An archive is read as it is, nothing is unpacked; so are the files of an archive that you
    unpacked. The python version is a pickle, and is read without unpickling. The files are checked
    for being whole and consistent, not for being the official ones: that is
    `retarget data check cifar10`.

    Args:
        folder: Where the files are; by default `RETARGET_DATA`, else the user's cache.
        download: If they are not there, download the official archive of the python version first.

    Raises:
        MissingDataError: Files are not there; the message says how to get them.
        InvalidInputError: A file is damaged, or holds something else.
        DownloadError: No mirror gave the archive.
    """
    folder = data_folder(folder)
    if download and not is_complete(CIFAR10, folder):
        get(CIFAR10, folder)
    (paths,) = locate(CIFAR10, folder)
    batches = dict(_read(paths))
    train, test = (_joined(batches, names) for names in (TRAIN_BATCHES, TEST_BATCHES))
    return Cifar10(*train, *test)


def normalised(images: np.ndarray) -> np.ndarray:
    """Images of uint8 as float32, minus the mean of their channel, divided by its deviation.

    Example:
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
    # As one scale and one shift in float32, so that no larger array is made on the way.
    scaled = images * (1 / (255 * deviations)).astype(np.float32)
    scaled -= (means / deviations).astype(np.float32)
    return scaled


def _read(paths: tuple[Path, ...]) -> Iterator[tuple[str, Batch]]:
    if len(paths) > 1:
        return read_files(paths)
    files = (
        CIFAR10_BINARY_FILES
        if paths[0].name == CIFAR10_BINARY_ARCHIVE.name
        else CIFAR10_PYTHON_FILES
    )
    return read_archive(paths[0], tuple(file.name for file in files))


def _joined(batches: dict[str, Batch], names: tuple[str, ...]) -> Batch:
    images, labels = zip(*(batches.pop(name) for name in names), strict=True)
    return np.concatenate(images), np.concatenate(labels)


def read_files(paths: tuple[Path, ...]) -> Iterator[tuple[str, Batch]]:
    """Each file's name without folder and suffix, with its images and labels."""
    for path in paths:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise InvalidInputError(
                f"{path} has more than {LARGEST_FILE} bytes; no file of CIFAR-10 is that large"
            )
        yield path.stem, _parse(content, path.name, str(path))


def read_archive(path: Path, names: tuple[str, ...]) -> Iterator[tuple[str, Batch]]:
    """The same of files in an archive, which is not unpacked."""
    for name, content in read_members(path, names, LARGEST_FILE):
        yield Path(name).stem, _parse(content, name, f"{name} in {path}")


def _parse(content: bytes, name: str, source: str) -> Batch:
    """Images (n, 3, 32, 32) of uint8 and labels (n,) of int64; the images may be a view."""
    is_binary = name.endswith(BINARY_SUFFIX)
    pixels, labels = (_binary if is_binary else _python)(content, source)
    if not len(labels):
        raise InvalidInputError(f"{source} holds no images")
    wrong = labels[(labels < 0) | (labels >= CLASSES)]
    if len(wrong):
        raise InvalidInputError(f"{source} holds the label {wrong[0]}; expected 0 to 9")
    return pixels.reshape(-1, CHANNELS, HEIGHT, WIDTH), labels.astype(np.int64)


def _binary(content: bytes, source: str) -> Batch:
    """One image after the other: a byte for its label, then its pixels."""
    if len(content) % (1 + PIXELS):
        raise InvalidInputError(
            f"{source} has {len(content)} bytes, which is no multiple of the {1 + PIXELS} "
            "of a label and its image; it is cut short or damaged"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)
    return rows[:, 1:], rows[:, 0]


def _python(content: bytes, source: str) -> Batch:
    """A pickled dictionary with the pixels, a row for each image, and the list of labels."""
    batch = read_pickle(content, source)
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
        raise InvalidInputError(f"{source} holds no dictionary with 'data' and 'labels'")
    pixels, labels = batch[b"data"], batch[b"labels"]
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise InvalidInputError(f"{source} holds 'labels' that are no list of whole numbers")
    found = pixels.shape if isinstance(pixels, np.ndarray) else type(pixels).__name__
    if found != (len(labels), PIXELS):
        raise InvalidInputError(
            f"{source} holds {len(labels)} labels, but 'data' of {found}; "
            f"expected an array of {(len(labels), PIXELS)}"
        )
    return pixels, np.array(labels, np.int64)


# A pickle is a program for a stack machine whose instructions may import and call anything. Here
# `pickletools` lists them, which runs nothing, and only those are followed that make plain values:
# numbers, strings, lists, dictionaries, and an array of bytes as CIFAR-10 has it. Nothing can grow
# beyond the file: the instructions that use a remembered value are not followed, so the work and
# the memory are linear in the file's length.
MOST_INSTRUCTIONS = 1_000_000  # a file of CIFAR-10 has some 50,000
IGNORED = {"PROTO", "FRAME", "BINPUT", "LONG_BINPUT", "MEMOIZE", "STOP"}
VALUES = {"BININT", "BININT1", "BININT2", "BINBYTES", "SHORT_BINBYTES", "BINUNICODE"}
VALUES |= {"SHORT_BINUNICODE"}
STRINGS = {"BINSTRING", "SHORT_BINSTRING"}  # of Python 2: bytes here
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY: dict[str, type] = {"EMPTY_LIST": list, "EMPTY_DICT": dict}
# How many values an instruction takes from the stack; None: all since the last mark.
TAKES = {"APPEND": 1, "APPENDS": None, "SETITEM": 2, "SETITEMS": None, "REDUCE": 1, "BUILD": 1}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None}
# An array takes two calls, whose results then get their state. Neither is made here: the names
# stand for what they would give.
MAKE, ARRAY, DTYPE = "numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"
CALLS = {MAKE: (ARRAY, (0,), b"b"), DTYPE: (b"u1", 0, 1)}
STATE_OF_UINT8 = (3, b"|", None, None, None, -1, -1, 0)


def read_pickle(content: bytes, source: str) -> object:
    r"""The plain value that a pickle holds.

    Args:
        content: The whole file; the caller limits its length.
        source: What to call it in errors.

    Returns:
        None, a bool, int, bytes or str; a (rows, columns) array of uint8; or a list, or a
        dictionary with keys of bytes or str, of such values.

    Raises:
        InvalidInputError: The file is damaged, or asks for anything else.

    Example:
        >>> read_pickle(b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x06K\x09eu.", "a file")
        {b'labels': [6, 9]}
    """
    stack: list[Any] = []
    marks: list[int] = []
    at: int | None = 0
    try:
        for number, (instruction, argument, place) in enumerate(pickletools.genops(content)):
            at = place
            if number == MOST_INSTRUCTIONS:
                raise ValueError(f"it has more than {MOST_INSTRUCTIONS} instructions")
            _follow(instruction.name, argument, stack, marks)
        if len(stack) != 1 or marks or at != len(content) - 1:
            raise ValueError("it does not end with one value, at its end")
    except Exception as error:  # pickletools raises several kinds for damage
        raise InvalidInputError(
            f"{source} is refused: {error} (near byte {at}); it is cut short or damaged, or no "
            "official file, and was not unpickled"
        ) from error
    return stack[0]


def _follow(name: str, argument: Any, stack: list[Any], marks: list[int]) -> None:
    """Does what one instruction says, if it makes plain values."""
    if name in VALUES:
        stack.append(argument)
    elif name in STRINGS:
        stack.append(argument.encode("latin-1"))
    elif name in CONSTANTS:
        stack.append(CONSTANTS[name])
    elif name in EMPTY:
        stack.append(EMPTY[name]())
    elif name == "MARK":
        marks.append(len(stack))
    elif name in TUPLES:
        stack.append(tuple(_popped(TUPLES[name], stack, marks)))
    elif name in TAKES:
        values = _popped(TAKES[name], stack, marks)
        stack.append(_filled(name, _popped(1, stack, marks)[0], values))
    elif name == "GLOBAL" and argument in (MAKE, ARRAY, DTYPE):
        stack.append(argument)
    elif name == "GLOBAL":
        raise ValueError(f"it asks for {argument!a}")
    elif name not in IGNORED:
        raise ValueError(f"it holds the instruction {name}, and only plain data may")


def _popped(count: int | None, stack: list[Any], marks: list[int]) -> list[Any]:
    if count is None and not marks:
        raise ValueError("it goes back to a mark that was not set")
    start = marks.pop() if count is None else len(stack) - count
    if start < (marks[-1] if marks else 0):
        raise ValueError("it takes more values than there are")
    values = stack[start:]
    del stack[start:]
    return values


def _filled(name: str, target: Any, values: list[Any]) -> Any:
    """The list, dictionary or part of an array when values have been put into it."""
    keys = values[::2]
    match name, target, values:
        case "APPEND" | "APPENDS", list(), _:
            target.extend(values)
            return target
        case "SETITEM" | "SETITEMS", dict(), _ if all(isinstance(key, bytes | str) for key in keys):
            target.update(zip(keys, values[1::2], strict=True))
            return target
        case "REDUCE", str(), _ if target in CALLS and values == [CALLS[target]]:
            return ARRAY if target == MAKE else DTYPE
        case "BUILD", str(), _ if target == DTYPE and values == [STATE_OF_UINT8]:
            return DTYPE
        case "BUILD", str(), [(1, (int(rows), int(columns)), str(kind), False, bytes(pixels))]:
            if rows >= 0 and (target, kind, rows * columns) == (ARRAY, DTYPE, len(pixels)):
                return np.frombuffer(pixels, np.uint8).reshape(rows, columns)
    raise ValueError(f"its instruction {name} makes something else than plain data")
