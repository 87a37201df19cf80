"""MNIST: 70,000 handwritten digits of 28 x 28 pixels, from the four official files.

Y. LeCun, C. Cortes and C. J. C. Burges, "The MNIST database of handwritten digits".

The files are in the idx format, gzipped or not: big-endian sizes, then the values.
"""

import gzip
import math
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from retarget.data.catalogue import MNIST
from retarget.data.fetch import data_folder, get, is_complete, locate
from retarget.errors import InvalidInputError

CLASSES = 10
PIXELS = (28, 28)
# Of images in one file: no official set of this format is larger, and a damaged header may be.
LARGEST_COUNT = 1_000_000
UNSIGNED_BYTE = 0x08
GZIP_MAGIC = b"\x1f\x8b"
# A deflate stream never grows by more: one symbol of 258 bytes takes at least two bits.
LARGEST_GZIP_RATIO = 1032


@dataclass(frozen=True)
class Mnist:
    """Images (n, 28, 28) of uint8, 0 is the background, and labels (n,) of int64, 0 to 9."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load_mnist(folder: str | Path | None = None, *, download: bool = False) -> Mnist:
    """MNIST from its four files, gzipped or not; the official ones hold 60,000 and 10,000 images.

    The files are checked for being whole and consistent, not for being the official ones: that is
    `retarget data check mnist`.

    Args:
        folder: Where the files are; by default `RETARGET_DATA`, else the user's cache.
        download: If files are not there, download the official ones first.

    Raises:
        MissingDataError: Files are not there; the message says how to get them.
        InvalidInputError: A file is damaged, or does not fit the others.
        DownloadError: No mirror gave a file.
    """
    folder = data_folder(folder)
    if download and not is_complete(MNIST, folder):
        get(MNIST, folder)
    (train_images,), (train_labels,), (test_images,), (test_labels,) = locate(MNIST, folder)
    return Mnist(*_read_pair(train_images, train_labels), *_read_pair(test_images, test_labels))


def _read_pair(images_path: Path, labels_path: Path) -> tuple[np.ndarray, np.ndarray]:
    with open_idx(images_path, 3) as images, open_idx(labels_path, 1) as labels:
        count, *pixels = images.shape
        if tuple(pixels) != PIXELS:
            raise InvalidInputError(
                f"{images_path} holds images of {pixels[0]} x {pixels[1]} pixels; "
                f"expected {PIXELS[0]} x {PIXELS[1]}"
            )
        if (count,) != labels.shape:
            raise InvalidInputError(
                f"{images_path} holds {count} images, but {labels_path} holds {labels.shape[0]} "
                "labels; they do not belong together"
            )
        if not 1 <= count <= LARGEST_COUNT:
            raise InvalidInputError(
                f"{images_path} holds {count} images; expected 1 to {LARGEST_COUNT}"
            )
        return images.read(), _valid(labels.read(), labels_path)


def _valid(labels: np.ndarray, path: Path) -> np.ndarray:
    if labels.max() >= CLASSES:
        raise InvalidInputError(f"{path} holds the label {labels.max()}; expected 0 to 9")
    return labels.astype(np.int64)


@dataclass(frozen=True)
class IdxFile:
    """An idx file whose header has been read and whose values have not.

    Attributes:
        path: The file, for messages.
        shape: Shape of the values, as the header says.
    """

    path: Path
    shape: tuple[int, ...]
    _stream: BufferedIOBase

    def read(self) -> np.ndarray:
        """All values, in an array of uint8; the file must end where its header says."""
        size = math.prod(self.shape)
        # One byte more than promised: enough to see that a file goes on, and never a gzip bomb.
        # It also reaches the end of the gzip stream, where its CRC is checked.
        values = _read(self._stream, size + 1, self.path)
        if len(values) < size:
            raise InvalidInputError(
                f"{self.path} is cut short: its header promises {size} values, "
                f"it holds {len(values)}"
            )
        if len(values) > size:
            raise InvalidInputError(
                f"{self.path} goes on after the {size} values that its header promises; "
                "it is damaged, or no idx file"
            )
        # A copy, because an array on bytes is read-only, which torch.from_numpy warns about.
        return np.frombuffer(values, np.uint8).reshape(self.shape).copy()


@contextmanager
def open_idx(path: Path, dimensions: int) -> Iterator[IdxFile]:
    r"""Reads and checks the header, so that the shape can be judged before the values are read.

    Args:
        path: An idx file of unsigned bytes, gzipped or not; its content tells, not its name.
        dimensions: How many dimensions the values must have.

    Raises:
        InvalidInputError: The file is not idx, is damaged, or promises more than it can hold.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "labels-idx1-ubyte"
        >>> _ = path.write_bytes(b"\0\0\x08\x01" + b"\0\0\0\x03" + bytes([5, 0, 4]))
        >>> with open_idx(path, dimensions=1) as labels:
        ...     print(labels.shape, labels.read())
        (3,) [5 0 4]
    """
    with path.open("rb") as file:
        gzipped = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        file.seek(0)
        with gzip.GzipFile(fileobj=file) if gzipped else nullcontext(file) as stream:
            shape = _read_shape(stream, path, dimensions)
            # Checked before anything of that size is allocated.
            stored = os.fstat(file.fileno()).st_size
            if math.prod(shape) > stored * (LARGEST_GZIP_RATIO if gzipped else 1):
                raise InvalidInputError(
                    f"{path} is damaged or cut short: its header promises values of shape {shape}, "
                    f"more than a file of {stored} bytes can hold"
                )
            yield IdxFile(path, shape, stream)


def _read_shape(stream: BufferedIOBase, path: Path, dimensions: int) -> tuple[int, ...]:
    """The header: two zeros, the type of the values, how many dimensions, the size of each."""
    magic = _read_exactly(stream, 4, path)
    zeros, kind, found_dimensions = struct.unpack(">HBB", magic)
    if zeros != 0:
        raise InvalidInputError(
            f"{path} is not an idx file: it starts with the bytes {magic.hex(' ')}, "
            "where an idx file has two zeros"
        )
    if kind != UNSIGNED_BYTE:
        raise InvalidInputError(
            f"{path} holds values of the idx type 0x{kind:02x}; "
            f"expected 0x{UNSIGNED_BYTE:02x}, unsigned bytes"
        )
    if found_dimensions != dimensions:
        raise InvalidInputError(
            f"{path} holds values of {found_dimensions} dimensions; expected {dimensions}; "
            "perhaps images and labels were exchanged"
        )
    sizes = _read_exactly(stream, 4 * dimensions, path)
    return struct.unpack(f">{dimensions}I", sizes)


def _read_exactly(stream: BufferedIOBase, count: int, path: Path) -> bytes:
    found = _read(stream, count, path)
    if len(found) < count:
        raise InvalidInputError(f"{path} is cut short: it ends within its header")
    return found


def _read(stream: BufferedIOBase, count: int, path: Path) -> bytes:
    """At most `count` bytes; what gzip says of damage becomes an error that names the file."""
    try:
        return stream.read(count)
    except EOFError as error:
        raise InvalidInputError(f"{path} is cut short: its gzip data end too early") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInputError(f"{path} is damaged: {error}") from error
