"""The batches of CIFAR-10: labelled images in a file of the python or of the binary version."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from retarget.data.archive import read_members
from retarget.data.safe_pickle import read_pickle
from retarget.errors import InvalidInputError

CLASSES = 10
CHANNELS, HEIGHT, WIDTH = 3, 32, 32
PIXELS = CHANNELS * HEIGHT * WIDTH
# Bytes in one file: the official ones have 30.7 and 31.0 million, for 10,000 images.
LARGEST_FILE = 32_000_000
BINARY_SUFFIX = ".bin"

Batch = tuple[np.ndarray, np.ndarray]


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
