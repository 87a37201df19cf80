"""The frames of CORe50: how they are named, which are chosen, how their pictures are read.

The pictures are PNG or JPEG files, in a folder or in a zip archive of one.
"""

import io
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from retarget.data.archives import open_zip
from retarget.errors import InvalidInputError, missing_extra

try:
    from PIL import Image
except ImportError as error:
    raise missing_extra("the pictures of CORe50 need Pillow", error, "figures") from error

SESSIONS = range(1, 12)
OBJECTS = 50
OBJECTS_A_CATEGORY = 5

SUFFIXES = (".png", ".jpg", ".jpeg")
# sS/oO/C_SS_OO_FFF.png, in no folder or in one.
FRAME_NAME = re.compile(
    r"(?:[\w.-]+/)?s([0-9]{1,2})/o([0-9]{1,2})/C_([0-9]{2})_([0-9]{2})_([0-9]{3,4})\.(?:png|jpe?g)",
    re.ASCII,
)
# Of objects that are missing in single sessions, how many a message names.
SHOWN = 8
# A frame of 128 x 128 pixels has some 30,000 bytes; the original ones have 350 x 350 pixels.
LARGEST_FILE = 1_000_000
LARGEST_SIDE = 1024
PNG_MARK = b"\x89PNG"

Place = TypeVar("Place")


class Frame(NamedTuple):
    """One frame, ordered by session, object and number.

    Attributes:
        session: 1 to 11.
        label: The object, 0 to 49; its folder is o1 to o50.
        number: As in its name.
    """

    session: int
    label: int
    number: int


def parse_name(name: str, source: str) -> Frame | None:
    """The frame with that name; None for a hidden file, or one that is not a picture.

    Raises:
        InvalidInputError: It is a picture, but no frame of CORe50.

    Example:
        >>> parse_name("core50_128x128/s3/o21/C_03_21_007.png", "a file")
        Frame(session=3, label=20, number=7)
        >>> parse_name("core50_128x128/readme.txt", "a file")
    """
    last = name.rpartition("/")[2]
    if last.startswith(".") or not last.lower().endswith(SUFFIXES):
        return None
    found = FRAME_NAME.fullmatch(name)
    if found:
        session, thing, also_session, also_thing, number = map(int, found.groups())
        agree = (session, thing) == (also_session, also_thing)
        if agree and session in SESSIONS and 1 <= thing <= OBJECTS:
            return Frame(session, thing - 1, number)
    raise InvalidInputError(
        f"{source} holds {name!r}, which is no frame of CORe50; expected names such as "
        "s3/o21/C_03_21_007.png, with sessions 1 to 11 and objects 1 to 50"
    )


def index(entries: Iterable[tuple[str, Place]], source: str) -> dict[Frame, Place]:
    """Where each frame is, from the names of files and where they are."""
    found: dict[Frame, Place] = {}
    for name, place in entries:
        frame = parse_name(name, source)
        if frame is None:
            continue
        if frame in found:
            raise InvalidInputError(
                f"{source} holds a frame twice: {name} is also there in another folder or format; "
                "remove one of them"
            )
        found[frame] = place
    return found


def choose(frames: Iterable[Frame], wanted: int, source: str, *, partial: bool) -> list[Frame]:
    """`wanted` frames of each session and object, spread evenly, in order.

    Raises:
        InvalidInputError: There are none, or too few of a session and object; or a session or
            object is missing, unless `partial` allows it.
    """
    groups: dict[tuple[int, int], list[Frame]] = {}
    for frame in sorted(frames):
        groups.setdefault((frame.session, frame.label), []).append(frame)
    if not groups:
        raise InvalidInputError(
            f"{source} holds no frames of CORe50; expected names such as s3/o21/C_03_21_007.png"
        )
    if not partial:
        _require_complete(groups.keys(), source)
    for (session, label), group in groups.items():
        if len(group) < wanted:
            raise InvalidInputError(
                f"{source} holds {len(group)} frames of session {session}, object {label + 1}; "
                f"frames_per_session is {wanted}: expected at least as many frames"
            )
    return [group[place] for group in groups.values() for place in spread(len(group), wanted)]


def _require_complete(present: Collection[tuple[int, int]], source: str) -> None:
    sessions, labels = ({group[i] for group in present} for i in (0, 1))
    no_session = [str(session) for session in SESSIONS if session not in sessions]
    no_object = [str(label + 1) for label in range(OBJECTS) if label not in labels]
    single = [
        f"object {label + 1} in session {session}"
        for session in sorted(sessions)
        for label in sorted(labels)
        if (session, label) not in present
    ]
    if len(single) > SHOWN:
        single[SHOWN:] = [f"{len(single) - SHOWN} more such"]
    missing = [
        *([f"sessions {', '.join(no_session)}"] if no_session else []),
        *([f"objects {', '.join(no_object)}"] if no_object else []),
        *([", ".join(single)] if single else []),
    ]
    if missing:
        raise InvalidInputError(
            f"{source} is not all of CORe50, it lacks {'; '.join(missing)}; "
            "get the rest, or load what there is with partial=True"
        )


def spread(count: int, wanted: int) -> list[int]:
    """`wanted` of the places 0 to count - 1, evenly from the first to the last.

    The i-th is i (count - 1) / (wanted - 1), rounded down; a single one is the first.

    Example:
        >>> spread(300, 4)
        [0, 99, 199, 299]
    """
    if wanted == 1:
        return [0]
    return [i * (count - 1) // (wanted - 1) for i in range(wanted)]


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
