"""CORe50: fifty objects of ten categories, filmed in eleven sessions, from the official files.

V. Lomonaco and D. Maltoni, "CORe50: a new dataset and benchmark for continuous object recognition",
2017.

The frames are PNG or JPEG files, in a folder or in a zip archive of one.
"""

import io
import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from retarget.archives import open_zip, read_file
from retarget.errors import InvalidInputError, MissingDataError, missing_extra
from retarget.lab.data.cache import file_checksum, files_checksum
from retarget.lab.data.fetch import FOLDER_VARIABLE, data_folder
from retarget.progress import PatientBar
from retarget.scalars import as_count
from retarget.text import listed

try:
    from PIL import Image
except ImportError as error:
    raise missing_extra("the pictures of CORe50 need Pillow", error, "figures") from error

SESSIONS = range(1, 12)
OBJECTS = 50
OBJECTS_A_CATEGORY = 5

SUFFIXES = (".png", ".jpg", ".jpeg")
# sS/oO/C_SS_OO_FFF.png, possibly within one folder.
FRAME_NAME = re.compile(
    r"(?:[\w.-]+/)?s([0-9]{1,2})/o([0-9]{1,2})/C_([0-9]{2})_([0-9]{2})_([0-9]{3,4})\.(?:png|jpe?g)",
    re.ASCII,
)
# A frame of 128 x 128 pixels has about 30,000 bytes; the original ones have 350 x 350 pixels.
LARGEST_FILE = 1_000_000
LARGEST_SIDE = 1024
PNG_MARK = b"\x89PNG"

# Names to look for in a data folder, in this order.
OFFICIAL_NAMES = FOLDER, ZIP = ("core50_128x128", "core50_128x128.zip")
ADDRESS = "http://bias.csr.unibo.it/maltoni/download/core50/core50_128x128.zip"
OBJECTS_A_TASK = 5


@dataclass(frozen=True)
class Core50:
    """Frames ordered by session, object and time, with the object and session of each.

    Images are (n, 3, height, width) of uint8: red, green, blue. Objects (n,) are 0 to 49, sessions
    (n,) 1 to 11, both int64. The object's category is `objects // 5`, 0 to 9.
    """

    train_images: np.ndarray
    train_objects: np.ndarray
    train_sessions: np.ndarray
    test_images: np.ndarray
    test_objects: np.ndarray
    test_sessions: np.ndarray


def load_core50(
    source: str | Path | None = None,
    frames_per_session: int = 15,
    test_sessions: Sequence[int] = (3, 7, 10),
    *,
    partial: bool = False,
    progress: bool | None = None,
) -> Core50:
    """Loads frames of CORe50, evenly spread over each session of each object.

    Of the n frames of an object in a session, in the order of their numbers and counted from 0,
    those at i (n - 1) / (frames_per_session - 1), rounded down, are used, from the first to the
    last. Only these are read into memory. Files are checked for being complete and consistent, but
    not compared with the official ones; grey pictures are converted to red, green and blue.

    Args:
        source: The folder `core50_128x128` or one like it, or its zip archive, read without
            unpacking; or a folder that holds one of these. By default `RETARGET_DATA`, else the
            user's cache.
        frames_per_session: Frames of each object in each session.
        test_sessions: The sessions of the test set; the others are for training.
        partial: Whether to accept data in which sessions or objects are missing.
        progress: Whether to show a progress bar; None shows it on a terminal only.

    Raises:
        MissingDataError: The files are missing; the message says where to get them.
        InvalidInputError: A file is damaged or unexpected, or frames are missing.
    """
    as_count("frames_per_session", frames_per_session)
    tested = set(test_sessions)
    if len(tested) != len(test_sessions) or not set() < tested < set(SESSIONS):
        raise InvalidInputError(
            f"test_sessions is {tuple(test_sessions)}; expected some of the sessions 1 to 11, "
            "each once, and not all"
        )
    path = find_core50(source)
    with _open(path) as (names, read):
        chosen = choose(names, frames_per_session, str(path), partial=partial)
        # Training first, so that both are slices of one array, without a copy.
        chosen.sort(key=lambda frame: (frame.session in test_sessions, frame))
        images = _images(path, [names[frame] for frame in chosen], read, progress)
    sessions, objects, _ = np.array(chosen, np.int64).T.copy()
    train = slice(sum(frame.session not in test_sessions for frame in chosen))
    test = slice(train.stop, None)
    return Core50(
        *(column[train] for column in (images, objects, sessions)),
        *(column[test] for column in (images, objects, sessions)),
    )


def core50_checksums(source: Path | None, frames_per_session: int) -> dict[str, str]:
    """Returns the SHA-256 of what `load_core50` reads, under its official name.

    For a folder, this covers the frames that would be used; for an archive, the whole archive.
    """
    path = find_core50(source)
    if path.is_dir():
        return {f"core50/{FOLDER}": _frames_checksum(path.absolute(), frames_per_session)}
    return {f"core50/{ZIP}": file_checksum(path)}


# Cached per process: a folder has 165,000 files, and a figure a hundred runs.
@lru_cache(maxsize=8)
def _frames_checksum(folder: Path, frames_per_session: int) -> str:
    with _open(folder) as (names, _):
        chosen = choose(names, frames_per_session, str(folder), partial=False)
    # By number, not by name: a frame is the same in any folder.
    return files_checksum({" ".join(map(str, frame)): folder / names[frame] for frame in chosen})


def find_core50(source: str | Path | None) -> Path:
    """Returns the archive that `load_core50` reads, or the folder that holds the sessions."""
    place = data_folder(source)
    if place.is_file() or any((place / f"s{session}").is_dir() for session in SESSIONS):
        return place
    for name in OFFICIAL_NAMES:
        if (place / name).is_file() or (place / name).is_dir():  # but not a pipe
            return place / name
    raise MissingDataError(
        f"core50: {place} is not a file, and does not contain any of {', '.join(OFFICIAL_NAMES)}; "
        f"download {ADDRESS} to it by hand (several GB), or name the folder that has it "
        f"({FOLDER_VARIABLE}, or the argument source)"
    )


def new_classes_tasks(seed: int) -> list[list[int]]:
    """Draws nine tasks without common objects: ten objects in the first, five in each other one.

    The first has one object of each category, in the order of the categories; the others have the
    rest, shuffled. The seed decides both.

    Returns:
        The labels (0 to 49) of the objects of each task.

    Examples:
        >>> [len(task) for task in new_classes_tasks(0)]
        [10, 5, 5, 5, 5, 5, 5, 5, 5]
        >>> [label // 5 for label in new_classes_tasks(0)[0]]
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    random = np.random.default_rng(seed)
    by_category = np.arange(OBJECTS).reshape(-1, OBJECTS_A_CATEGORY)
    first = by_category[:, 0] + random.integers(OBJECTS_A_CATEGORY, size=len(by_category))
    rest = random.permutation(np.setdiff1d(by_category, first))
    return [first.tolist(), *rest.reshape(-1, OBJECTS_A_TASK).tolist()]


class Frame(NamedTuple):
    """A frame: its session (1 to 11), its object (0 to 49 for folders o1 to o50) and its number."""

    session: int
    label: int
    number: int


def parse_name(name: str, source: str) -> Frame | None:
    """Parses a frame's name; returns None for a hidden file, or one that is not a picture.

    Examples:
        >>> parse_name("core50_128x128/s3/o21/C_03_21_007.png", "a file")
        Frame(session=3, label=20, number=7)
        >>> parse_name("core50_128x128/readme.txt", "a file")
    """
    last = name.rpartition("/")[2]
    if last.startswith(".") or not last.lower().endswith(SUFFIXES):
        return None
    numbers = FRAME_NAME.fullmatch(name)
    if numbers:
        session, thing, also_session, also_thing, number = map(int, numbers.groups())
        agree = (session, thing) == (also_session, also_thing)
        if agree and session in SESSIONS and 1 <= thing <= OBJECTS:
            return Frame(session, thing - 1, number)
    raise InvalidInputError(
        f"{source} holds {name!r}, which is not a frame of CORe50; expected names such as "
        "s3/o21/C_03_21_007.png, with sessions 1 to 11 and objects 1 to 50"
    )


def choose(frames: Iterable[Frame], wanted: int, source: str, *, partial: bool) -> list[Frame]:
    """Chooses `wanted` frames of each session and object, spread evenly, in order.

    `partial` allows sessions and objects without any frame.
    """
    groups = {
        key: list(group) for key, group in itertools.groupby(sorted(frames), lambda each: each[:2])
    }
    if not groups:
        raise InvalidInputError(
            f"{source} holds no frames of CORe50; expected names such as s3/o21/C_03_21_007.png"
        )
    every = itertools.product(SESSIONS, range(OBJECTS))
    missing = [
        f"s{session}/o{label + 1}" for session, label in every if (session, label) not in groups
    ]
    if missing and not partial:
        raise InvalidInputError(
            f"{source} is incomplete: it lacks {len(missing)} of {len(SESSIONS) * OBJECTS} pairs "
            f"of session and object, {listed(missing)}; get the rest, or load what there is with "
            "partial=True"
        )
    for (session, label), group in groups.items():
        if len(group) < wanted:
            raise InvalidInputError(
                f"{source} holds {len(group)} frames of session {session}, object {label + 1}; "
                f"expected at least {wanted}, as frames_per_session says"
            )
    return [group[place] for group in groups.values() for place in spread(len(group), wanted)]


def spread(count: int, wanted: int) -> list[int]:
    """Returns `wanted` of the positions 0 to count - 1, evenly from the first to the last.

    Examples:
        >>> spread(300, 4)
        [0, 99, 199, 299]
    """
    return [i * (count - 1) // max(1, wanted - 1) for i in range(wanted)]


@contextmanager
def _open(path: Path) -> Iterator[tuple[dict[Frame, str], Callable[[str], bytes]]]:
    """Yields the file of each frame, and a function to read it, from a folder or a zip.

    Links to other folders are not followed.
    """
    if path.is_dir():
        yield (
            index(_names_below(path), str(path)),
            lambda name: read_file(path / name, LARGEST_FILE),
        )
        return
    with open_zip(path) as archive:
        yield index(archive.names, str(path)), lambda name: archive.read(name, LARGEST_FILE)


def index(names: Iterable[str], source: str) -> dict[Frame, str]:
    """Returns the file of each frame; skips other files."""
    files: dict[Frame, str] = {}
    for name in names:
        frame = parse_name(name, source)
        if frame is None:
            continue
        if frame in files:
            raise InvalidInputError(
                f"{source} holds a frame twice: {name} also exists in another folder or format; "
                "remove one of them"
            )
        files[frame] = name
    return files


def _names_below(folder: Path) -> Iterator[str]:
    def give_up(error: OSError) -> None:
        raise error

    for place, _, names in os.walk(folder, onerror=give_up):
        inner = Path(place).relative_to(folder)
        yield from ((inner / name).as_posix() for name in names)


def _images(
    path: Path, names: Sequence[str], read: Callable[[str], bytes], progress: bool | None
) -> np.ndarray:
    """Returns the images (n, 3, height, width) in the named files."""
    images: np.ndarray = np.empty(0, np.uint8)
    with PatientBar("CORe50, frames", len(names), progress) as bar:
        for place, name in enumerate(names):
            pixels = decode(read(name), f"{name} in {path}").transpose(2, 0, 1)
            if place == 0:
                images = np.empty((len(names), *pixels.shape), np.uint8)
            if pixels.shape != images.shape[1:]:
                raise InvalidInputError(
                    f"{name} in {path} has {pixels.shape[2]} x {pixels.shape[1]} pixels, "
                    f"others {images.shape[3]} x {images.shape[2]}; expected the same size for all"
                )
            images[place] = pixels
            bar.advance(1)
    return images


def decode(content: bytes, source: str) -> np.ndarray:
    """Returns the pixels (height, width, 3) of a PNG or JPEG; grey is repeated for each color."""
    try:
        with warnings.catch_warnings(action="ignore"):
            if content.startswith(PNG_MARK):
                with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
                    image.verify()  # verifies checksums, which Pillow does not do when decoding
            with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
                # So far only the header has been read.
                if max(image.size) > LARGEST_SIDE or image.mode not in ("RGB", "L"):
                    raise InvalidInputError(
                        f"{source} has {image.width} x {image.height} pixels of the kind "
                        f"{image.mode}; expected at most {LARGEST_SIDE} x {LARGEST_SIDE}, of the "
                        "kind RGB, or L for grey"
                    )
                return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    except InvalidInputError:
        raise
    # Pillow has no common exception for damaged files.
    except Exception as error:
        raise InvalidInputError(
            f"{source} is damaged, or neither PNG nor JPEG ({type(error).__name__}: {error})"
        ) from error
