"""The frames of CORe50 packed: `core50_imgs.npz`, one array of all, and their names `paths.pkl`."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from retarget.data.core50_frames import Frame, index
from retarget.data.core50_images import LARGEST_SIDE, read_whole
from retarget.data.safe_pickle import read_pickle
from retarget.data.zip_files import ZipFiles, open_zip
from retarget.errors import InvalidInputError, MissingDataError

PATHS_NAME = "paths.pkl"
ARRAY_NAME = "x.npy"
# The official list has 164,866 names in some 5 MB.
LARGEST_PATHS = 32_000_000
CHUNK = 1 << 20


class PackedFrames:
    """Frames that are the rows of one array, of which only the chosen ones are ever held.

    Attributes:
        name: Of the file, for messages.
        frames: Every frame that is there.
    """

    def __init__(self, archive: ZipFiles, paths_path: Path) -> None:
        self.name = str(archive.path)
        self._archive = archive
        names = _read_names(paths_path)
        self._count = len(names)
        self._rows = index(zip(names, range(self._count), strict=True), str(paths_path))
        self.frames = list(self._rows)
        if ARRAY_NAME not in archive.names:
            raise InvalidInputError(f"{self.name} holds no array 'x'; expected the images in it")

    def read(self, chosen: Sequence[Frame]) -> Iterator[tuple[Frame, np.ndarray]]:
        """The chosen frames, each (height, width, 3), in the order in which the file has them.

        The file is read once, from its start to its end, where its checksum is compared.
        """
        with self._archive.open(ARRAY_NAME) as stream:
            height, width = self._pixels(stream)
            size = height * width * 3
            row = 0
            for frame in sorted(chosen, key=self._rows.__getitem__):
                self._skip(stream, (self._rows[frame] - row) * size)
                content = self._take(stream, size)
                yield frame, np.frombuffer(content, np.uint8).reshape(height, width, 3)
                row = self._rows[frame] + 1
            self._skip(stream, (self._count - row) * size)
            if stream.read(1):
                raise InvalidInputError(f"{self.name} goes on after the images; it is damaged")

    def _pixels(self, stream: IO[bytes]) -> tuple[int, int]:
        """The height and width of the images, from a header that must be as expected."""
        shape, by_columns, kind = _header(stream, self.name)
        if len(shape) != 4 or shape[3] != 3 or kind != np.uint8 or by_columns:
            raise InvalidInputError(
                f"{self.name} holds 'x' of shape {shape} and type {kind}; "
                "expected (n, height, width, 3) of uint8, row by row"
            )
        count, height, width, _ = shape
        if count != self._count:
            raise InvalidInputError(
                f"{self.name} holds {count} images, but {PATHS_NAME} beside it {self._count} "
                "names; they do not belong together"
            )
        if not 1 <= min(height, width) <= max(height, width) <= LARGEST_SIDE:
            raise InvalidInputError(
                f"{self.name} holds images of {width} x {height} pixels; "
                f"expected 1 to {LARGEST_SIDE} each way"
            )
        return height, width

    def _skip(self, stream: IO[bytes], size: int) -> None:
        while size:
            size -= len(self._take(stream, min(size, CHUNK)))

    def _take(self, stream: IO[bytes], size: int) -> bytes:
        content = stream.read(size)
        if len(content) < size:
            raise InvalidInputError(f"{self.name} is cut short: it ends within its images")
        return content


@contextmanager
def open_packed(path: Path) -> Iterator[PackedFrames]:
    """The frames in an .npz file; `paths.pkl` lies beside it."""
    paths_path = require_paths(path)
    with open_zip(path) as archive:
        yield PackedFrames(archive, paths_path)


def require_paths(path: Path) -> Path:
    """The file of names that lies beside the .npz file.

    Raises:
        MissingDataError: It does not.
    """
    paths_path = path.with_name(PATHS_NAME)
    if not paths_path.is_file():
        raise MissingDataError(
            f"{paths_path} not found; {path.name} has no names of its frames without it"
        )
    return paths_path


def _header(stream: IO[bytes], source: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = npy.read_magic(stream)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise InvalidInputError(
            f"{source} holds 'x' in version {version} of its format; expected 1.0 or 2.0"
        )
    # NumPy remarks on headers that Python 2 wrote; they are read all the same.
    with warnings.catch_warnings(action="ignore"):
        return readers[version](stream)


def _read_names(path: Path) -> list[str]:
    """The names, of which only folder, folder and file count."""
    names = read_pickle(read_whole(path, LARGEST_PATHS), str(path))
    if not isinstance(names, list) or not all(isinstance(name, str | bytes) for name in names):
        raise InvalidInputError(f"{path} holds no list of names; expected one for each image")
    texts = [name if isinstance(name, str) else name.decode("latin-1") for name in names]
    return ["/".join(text.split("/")[-3:]) for text in texts]
