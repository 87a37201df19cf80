"""CIFAR-10: 60,000 colour photographs of 32 x 32 pixels in ten classes, from the official files.

A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from retarget.data.cifar10_batches import Batch, read_archive, read_files
from retarget.data.cifar10_files import BINARY_ARCHIVE, BINARY_FILES, CIFAR10, PYTHON_FILES
from retarget.data.download import get
from retarget.data.files import data_folder, is_complete, locate
from retarget.errors import InvalidInputError

TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCHES = ("test_batch",)
# Of the training images, red, green and blue, for pixels in [0, 1].
MEANS = (0.4914, 0.4822, 0.4465)
DEVIATIONS = (0.2470, 0.2435, 0.2616)


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
    files = BINARY_FILES if paths[0].name == BINARY_ARCHIVE.name else PYTHON_FILES
    return read_archive(paths[0], tuple(file.name for file in files))


def _joined(batches: dict[str, Batch], names: tuple[str, ...]) -> Batch:
    images, labels = zip(*(batches.pop(name) for name in names), strict=True)
    return np.concatenate(images), np.concatenate(labels)
