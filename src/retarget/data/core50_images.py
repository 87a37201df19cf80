"""The frames of CORe50 as single pictures, PNG or JPEG, in a folder or in a zip archive of one."""

import io
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from retarget.data.core50_frames import Frame, index
from retarget.data.zip_files import open_zip
from retarget.errors import InvalidInputError, missing_extra

try:
    from PIL import Image
except ImportError as error:
    raise missing_extra("the pictures of CORe50 need Pillow", error, "figures") from error

# A frame of 128 x 128 pixels has some 30,000 bytes; the original ones have 350 x 350 pixels.
LARGEST_FILE = 1_000_000
LARGEST_SIDE = 1024
PNG_MARK = b"\x89PNG"


class Pictures:
    """Frames that are a file each.

    Attributes:
        name: Of the folder or archive, for messages.
        frames: Every frame that is there.
    """

    def __init__(self, name: str, names: Iterable[str], read: Callable[[str], bytes]) -> None:
        self.name = name
        self._names = index(((each, each) for each in names), name)
        self._read = read
        self.frames = list(self._names)

    def file_name(self, frame: Frame) -> str:
        """Where a frame lies in the folder or archive."""
        return self._names[frame]

    def read(self, chosen: Sequence[Frame]) -> Iterator[tuple[Frame, np.ndarray]]:
        """The chosen frames, each (height, width, 3), in the order of `chosen`."""
        first: tuple[int, ...] = ()
        for frame in chosen:
            source = f"{self._names[frame]} in {self.name}"
            image = decode(self._read(self._names[frame]), source)
            first = first or image.shape
            if image.shape != first:
                raise InvalidInputError(
                    f"{source} has {image.shape[1]} x {image.shape[0]} pixels, "
                    f"others {first[1]} x {first[0]}; expected one size"
                )
            yield frame, image


@contextmanager
def open_zip_of_pictures(path: Path) -> Iterator[Pictures]:
    """The pictures in a zip archive."""
    with open_zip(path) as archive:
        yield Pictures(str(path), archive.names, lambda name: archive.read(name, LARGEST_FILE))


@contextmanager
def open_folder(folder: Path) -> Iterator[Pictures]:
    """The pictures below a folder; links to other folders are not followed."""
    yield Pictures(
        str(folder), _names_below(folder), lambda name: read_whole(folder / name, LARGEST_FILE)
    )


def read_whole(path: Path, largest: int) -> bytes:
    """The content of a file, of which no more than `largest` bytes are accepted."""
    if not path.is_file():  # a pipe, of which nobody knows when it will say something
        raise InvalidInputError(f"{path} is not a plain file; expected one of CORe50's")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise InvalidInputError(
                f"{path} has {size} bytes; expected at most {largest}, as no such file of CORe50 "
                "is larger"
            )
        return file.read(size)


def decode(content: bytes, source: str) -> np.ndarray:
    """The pixels (height, width, 3) of a PNG or JPEG; grey is repeated as red, green and blue."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return _pixels(content, source)
    except InvalidInputError:
        raise
    # Pillow has no common class for what damaged files raise.
    except Exception as error:
        raise InvalidInputError(
            f"{source} is damaged, or neither PNG nor JPEG ({type(error).__name__}: {error})"
        ) from error


def _pixels(content: bytes, source: str) -> np.ndarray:
    if content.startswith(PNG_MARK):
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            image.verify()  # the checksums, which Pillow does not compare when it decodes
    with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
        # So far only the header has been read.
        if max(image.size) > LARGEST_SIDE:
            raise InvalidInputError(
                f"{source} has {image.width} x {image.height} pixels; "
                f"expected at most {LARGEST_SIDE} x {LARGEST_SIDE}"
            )
        if image.mode not in ("RGB", "L"):
            raise InvalidInputError(
                f"{source} has colours of the kind {image.mode}; expected RGB, or L for grey: "
                "convert it first"
            )
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _names_below(folder: Path) -> Iterator[str]:
    for place, _, names in os.walk(folder, onerror=_give_up):
        inner = Path(place).relative_to(folder)
        yield from ((inner / name).as_posix() for name in names)


def _give_up(error: OSError) -> None:
    raise error
