"""CIFAR-10: 60,000 color photographs of 32 x 32 pixels in ten classes, from the official files.

A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.

There are two versions of the same images, each an archive of six batches. The batches of the python
version are pickles, which can run code: only the official ones, known by their SHA-256, are
unpickled. The binary version is data, and may hold other images.
"""

import hashlib
import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retarget.archives import read_file, read_members
from retarget.errors import InvalidInputError
from retarget.lab.data.fetch import (
    CIFAR10,
    CIFAR10_BINARY_ARCHIVE,
    CIFAR10_BINARY_FILES,
    CIFAR10_PYTHON_FILES,
    locate,
)

# Means and deviations of red, green and blue in the training images, for pixels in [0, 1].
MEANS = (0.4914, 0.4822, 0.4465)
DEVIATIONS = (0.2470, 0.2435, 0.2616)

CLASSES = 10
SHAPE = (3, 32, 32)
PIXELS = math.prod(SHAPE)
# Bytes in one file; the official ones have 30.7 and 31.0 million, for 10,000 images.
LARGEST_FILE = 32_000_000
OFFICIAL_PICKLES = {Path(file.name).name: file.sha256 for file in CIFAR10_PYTHON_FILES}


@dataclass(frozen=True)
class Cifar10:
    """Images (n, 3, 32, 32) of uint8: red, green, blue; and labels (n,) of int64, 0 to 9."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load_cifar10(folder: str | Path | None = None, *, download: bool = False) -> Cifar10:
    """Loads CIFAR-10 (50,000 training and 10,000 test images) from its python or binary version.

    It reads the archive without unpacking it, or the files of an unpacked archive. Files of the
    python version are pickles, and must be the official ones. Those of the binary version are
    checked for being complete; `retarget data check cifar10` compares them with the official ones.

    Args:
        folder: Where the files are; by default `RETARGET_DATA`, else the user's cache.
        download: Whether to download the official archive (python version) first if it is missing.

    Raises:
        MissingDataError: Files are missing; the message says how to get them.
        InvalidInputError: A file is damaged, holds something else, or is a pickle of somebody else.
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


def normalized(images: np.ndarray) -> np.ndarray:
    """Converts images of uint8 to float32, standardized by the mean and deviation of each channel.

    Examples:
        >>> red = np.zeros((1, 3, 32, 32), np.uint8)
        >>> red[:, 0] = 255
        >>> print(normalized(red)[0, :, 0, 0].round(2))
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


def parse_batch(content: bytes, name: str, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (n, 3, 32, 32) uint8 and labels (n,) int64 from a file of either version."""
    read = _binary if name.endswith(".bin") else _python
    pixels, labels = read(content, Path(name).name, source)
    if not len(labels):
        raise InvalidInputError(f"{source} holds no images")
    wrong = labels[(labels < 0) | (labels >= CLASSES)]
    if len(wrong):
        raise InvalidInputError(f"{source} holds the label {wrong[0]}; expected 0 to 9")
    return pixels.reshape(-1, *SHAPE), labels.astype(np.int64)


def _binary(content: bytes, name: str, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Parses one image after the other: a byte for its label, then its pixels."""
    if len(content) % (1 + PIXELS):
        raise InvalidInputError(
            f"{source} has {len(content)} bytes; expected a multiple of {1 + PIXELS}, the bytes "
            "of a label and its image: it is cut short or damaged"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + PIXELS)
    return rows[:, 1:], rows[:, 0]


def _python(content: bytes, name: str, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Unpickles a dictionary with pixels and labels, if this is the official file of that name."""
    checksum = hashlib.sha256(content).hexdigest()
    expected = OFFICIAL_PICKLES[name]
    if checksum != expected:
        raise InvalidInputError(
            f"{source} has sha256 {checksum[:12]}..., expected {expected[:12]}...: it is damaged, "
            "or not the official file, and was not unpickled, since a pickle can run code; get the "
            "official one with: retarget data get cifar10, or use the binary version"
        )
    batch = pickle.loads(content, encoding="bytes")
    return batch[b"data"], np.array(batch[b"labels"])
