"""Small files of the MNIST format, made here."""

import gzip
import hashlib
import struct
from dataclasses import astuple, replace

import numpy as np

from retarget.lab.data.fetch import MNIST, DataFile, StoredFile

NAMES = [file.download.name for file in MNIST.files]
TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = NAMES


def idx(values, kind=0x08):
    """The bytes of an idx file."""
    values = np.asarray(values, np.uint8)
    return (
        struct.pack(f">HBB{values.ndim}I", 0, kind, values.ndim, *values.shape) + values.tobytes()
    )


def gzipped(content):
    return gzip.compress(content, mtime=0)


def made_arrays(train=7, test=3, seed=0):
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, high, shape, dtype=np.uint8)
        for n in (train, test)
        for high, shape in ((256, (n, 28, 28)), (10, (n,)))
    ]


def write_made_mnist(folder, packed=True, **sizes):
    """Writes the four files; returns what they hold."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = made_arrays(**sizes)
    for name, values in zip(NAMES, arrays, strict=True):
        if packed:
            (folder / name).write_bytes(gzipped(idx(values)))
        else:
            (folder / name.removesuffix(".gz")).write_bytes(idx(values))
    return arrays


def assert_holds(loaded, arrays):
    """What a loader gave is what was written."""
    for found, expected in zip(astuple(loaded), arrays, strict=True):
        np.testing.assert_array_equal(found, expected)


def made_file(name, content, mirrors=(), *alternatives):
    """The description of a file with this content."""
    return DataFile(stored(name, content), tuple(mirrors), alternatives)


def stored(name, content):
    return StoredFile(name, len(content), hashlib.sha256(content).hexdigest())


def made_data_set(folder, mirrors=()):
    """A description of the made files in the folder, as MNIST is one of the official ones."""
    files = tuple(
        made_file(
            name,
            (folder / name).read_bytes(),
            [f"{mirror}/{name}" for mirror in mirrors],
            (stored(name.removesuffix(".gz"), gzip.decompress((folder / name).read_bytes())),),
        )
        for name in NAMES
    )
    return replace(MNIST, files=files)
