"""Small files of the CIFAR-10 formats, made here."""

import io
import pickle
import tarfile

import numpy as np

from retarget.lab.data.fetch import (
    CIFAR10_BINARY_ARCHIVE,
    CIFAR10_BINARY_FILES,
    CIFAR10_PYTHON_ARCHIVE,
    CIFAR10_PYTHON_FILES,
)
from support.made_mnist import gzipped

PYTHON_NAMES = [file.name for file in CIFAR10_PYTHON_FILES]
BINARY_NAMES = [file.name for file in CIFAR10_BINARY_FILES]
FORMS = ["python", "binary", "python archive", "binary archive"]


def made_batches(images=20, seed=0):
    """Six batches: pixels (n, 3072) and labels."""
    rng = np.random.default_rng(seed)
    return [
        (rng.integers(0, 256, (images, 3072), np.uint8), rng.integers(0, 10, images, np.uint8))
        for _ in PYTHON_NAMES
    ]


def python_batch(pixels, labels):
    """A pickle that names NumPy's parts as the official files do."""
    batch = {b"labels": [int(label) for label in labels], b"data": pixels}
    return pickle.dumps(batch, protocol=2).replace(b"numpy._core.", b"numpy.core.")


def binary_batch(pixels, labels):
    return np.column_stack([labels, pixels]).astype(np.uint8).tobytes()


def tar_gz(contents):
    """The bytes of an archive of these files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return gzipped(packed.getvalue())


def made_files(form, **sizes):
    """The files of a form with their contents, and the batches that they hold."""
    batches = made_batches(**sizes)
    is_python = form.startswith("python")
    names, write = (PYTHON_NAMES, python_batch) if is_python else (BINARY_NAMES, binary_batch)
    contents = {name: write(*batch) for name, batch in zip(names, batches, strict=True)}
    if form.endswith("archive"):
        archive = CIFAR10_PYTHON_ARCHIVE if is_python else CIFAR10_BINARY_ARCHIVE
        contents = {archive.name: tar_gz(dict(reversed(contents.items())))}
    return contents, batches


def write_made_cifar10(folder, form="binary", **sizes):
    """Writes the files of a form; returns what a loader must make of them."""
    contents, batches = made_files(form, **sizes)
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    pixels, labels = zip(*batches, strict=True)
    images = [part.reshape(-1, 3, 32, 32) for part in pixels]
    return [
        np.concatenate(images[:5]),
        np.concatenate(labels[:5]),
        images[5],
        labels[5],
    ]


def write_images(folder, per_class=2, seed=0):
    """Ten patterns with noise, the same number of each in every file."""
    rng = np.random.default_rng(seed)
    patterns = np.kron(rng.uniform(0, 200, size=(10, 3, 8, 8)), np.ones((4, 4)))
    for name in BINARY_NAMES:
        labels = rng.permutation(np.repeat(np.arange(10), per_class))
        noise = rng.normal(0, 40, size=(len(labels), 3, 32, 32))
        pixels = np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(binary_batch(pixels.reshape(len(labels), -1), labels.astype(np.uint8)))
