"""MNIST: 70,000 handwritten digits of 28 x 28 pixels, from the four official files.

Y. LeCun, C. Cortes and C. J. C. Burges, "The MNIST database of handwritten digits".

The files are in the idx format, gzipped or not: big-endian sizes, then the values.
"""

import gzip
import math
import os
import struct
import zlib
from contextlib import nullcontext
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from retarget.errors import InvalidInputError
from retarget.lab.data.fetch import MNIST, locate

CLASSES = 10
PIXELS = (28, 28)
# Images in one file: no official set in this format has more, but a damaged header may claim it.
LARGEST_COUNT = 1_000_000
UNSIGNED_BYTE = 0x08
GZIP_MAGIC = b"\x1f\x8b"
LARGEST_GZIP_RATIO = 1032


@dataclass(frozen=True)
class Mnist:
    """Images (n, 28, 28) of uint8, with 0 as background, and labels (n,) of int64, 0 to 9."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load_mnist(folder: str | Path | None = None, *, download: bool = False) -> Mnist:
    """Loads MNIST (60,000 training and 10,000 test images) from its four files, gzipped or not.

    Files are checked for being complete and consistent; `retarget data check mnist` compares them
    with the official ones.

    Args:
        folder: Where the files are; by default `RETARGET_DATA`, else the user's cache.
        download: Whether to download the official files first if any are missing.

    Raises:
        MissingDataError: Files are missing; the message says how to get them.
        InvalidInputError: A file is damaged, or does not fit the others.
        DownloadError: A file could not be downloaded from any mirror.
    """
    images, labels, test_images, test_labels = (
        path for (path,) in locate(MNIST, folder, download=download)
    )
    return Mnist(*_read_pair(images, labels), *_read_pair(test_images, test_labels))


def _read_pair(images_path: Path, labels_path: Path) -> tuple[np.ndarray, np.ndarray]:
    images = read_idx(images_path, PIXELS)
    labels = read_idx(labels_path)
    if len(images) != len(labels):
        raise InvalidInputError(
            f"{images_path} holds {len(images)} images, but {labels_path} holds {len(labels)} "
            "labels; they do not belong together"
        )
    if labels.max() >= CLASSES:
        raise InvalidInputError(f"{labels_path} holds the label {labels.max()}; expected 0 to 9")
    return images, labels.astype(np.int64)


def read_idx(path: Path, sizes: tuple[int, ...] = ()) -> np.ndarray:
    r"""Reads an idx file of unsigned bytes, gzipped or not (detected from its content).

    `sizes` are the dimensions after the first, which is the number of values. Raises
    `InvalidInputError` if a file is damaged, has another shape, or claims more than it can hold.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "labels-idx1-ubyte"
        >>> _ = path.write_bytes(b"\0\0\x08\x01" + b"\0\0\0\x03" + bytes([5, 0, 4]))
        >>> read_idx(path)
        array([5, 0, 4], dtype=uint8)
    """
    with path.open("rb") as file:
        gzipped = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        file.seek(0)
        # Deflate cannot expand by more: one symbol of 258 bytes takes at least two bits.
        most = os.fstat(file.fileno()).st_size * (LARGEST_GZIP_RATIO if gzipped else 1)
        try:
            with gzip.GzipFile(fileobj=file) if gzipped else nullcontext(file) as stream:
                return _values(stream, path, sizes, most)
        except EOFError as error:
            raise InvalidInputError(f"{path} is cut short: its gzip data end too early") from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise InvalidInputError(f"{path} is damaged: {error}") from error


def _values(stream: BufferedIOBase, path: Path, sizes: tuple[int, ...], most: int) -> np.ndarray:
    """Reads the values after a header: two zeros, type, number of dimensions, size of each."""
    dimensions = 1 + len(sizes)
    expected = struct.pack(">HBB", 0, UNSIGNED_BYTE, dimensions)
    magic = stream.read(4)
    if len(magic) == 4 and magic != expected:
        raise InvalidInputError(
            f"{path} starts with the bytes {magic.hex(' ')}; expected {expected.hex(' ')}, for "
            f"unsigned bytes in {dimensions} dimensions: it is not an idx file, or images and "
            "labels were swapped"
        )
    header = stream.read(4 * dimensions)
    if len(header) < 4 * dimensions:
        raise InvalidInputError(f"{path} is cut short: it ends within its header")
    shape = struct.unpack(f">{dimensions}I", header)
    count = math.prod(shape)
    # Checked before allocating that much.
    if shape[1:] != sizes or not 1 <= shape[0] <= LARGEST_COUNT or count > most:
        raise InvalidInputError(
            f"{path} promises values of shape {shape}; expected {sizes} for each of 1 to "
            f"{LARGEST_COUNT}, and no more than the file can hold: it is damaged or cut short"
        )
    # One byte more than promised shows whether the file continues, without risk of a gzip bomb. It
    # also reaches the end of the gzip stream, where its CRC is checked.
    values = stream.read(count + 1)
    if len(values) != count:
        raise InvalidInputError(
            f"{path} is cut short or damaged: its header promises {count} values, it holds "
            f"{'more' if len(values) > count else len(values)}"
        )
    # A copy, because an array over bytes is read-only, which torch.from_numpy warns about.
    return np.frombuffer(values, np.uint8).reshape(shape).copy()
