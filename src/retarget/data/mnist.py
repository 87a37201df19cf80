"""MNIST: 70,000 handwritten digits of 28 x 28 pixels, from the four official files.

Y. LeCun, C. Cortes and C. J. C. Burges, "The MNIST database of handwritten digits".
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retarget.data.download import get
from retarget.data.files import DataFile, DataSet, StoredFile, data_folder, is_complete, locate
from retarget.data.idx import open_idx
from retarget.errors import InvalidInputError

CLASSES = 10
PIXELS = (28, 28)
# Of images in one file: no official set of this format is larger, and a damaged header may be.
LARGEST_COUNT = 1_000_000
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


def _gzipped(name: str, size: int, sha256: str, unpacked_size: int, unpacked: str) -> DataFile:
    return DataFile(
        download=StoredFile(f"{name}.gz", size, sha256),
        mirrors=tuple(f"{mirror}{name}.gz" for mirror in MIRRORS),
        unpacked=(StoredFile(name, unpacked_size, unpacked),),
    )


MNIST = DataSet(
    name="mnist",
    description="70,000 handwritten digits, 28 x 28 pixels, 10 classes",
    files=(
        _gzipped(
            "train-images-idx3-ubyte",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            47_040_016,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        _gzipped(
            "train-labels-idx1-ubyte",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            60_008,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        _gzipped(
            "t10k-images-idx3-ubyte",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            7_840_016,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        _gzipped(
            "t10k-labels-idx1-ubyte",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            10_008,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
)


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
