"""CORe50: fifty objects of ten categories, filmed in eleven sessions, from the official files.

V. Lomonaco and D. Maltoni, "CORe50: a new dataset and benchmark for continuous object recognition",
2017.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from retarget.data.cache import file_checksum, files_checksum
from retarget.data.core50_frames import (
    OBJECTS,
    OBJECTS_A_CATEGORY,
    SESSIONS,
    Frame,
    Pictures,
    choose,
    open_folder,
    open_zip_of_pictures,
)
from retarget.data.fetch import FOLDER_VARIABLE, data_folder
from retarget.errors import InvalidInputError, MissingDataError
from retarget.progress import PatientBar

# As they are looked for in a folder of data, in this order.
OFFICIAL_NAMES = FOLDER, ZIP = ("core50_128x128", "core50_128x128.zip")
ADDRESS = "http://bias.csr.unibo.it/maltoni/download/core50/core50_128x128.zip"
OBJECTS_A_TASK = 5


@dataclass(frozen=True)
class Core50:
    """Frames ordered by session, object and time, with the object and session of each.

    Images are (n, 3, height, width) of uint8: red, green, blue. Objects (n,) are 0 to 49, sessions
    (n,) 1 to 11, both int64. The object's category is `objects // 5`, 0 to 9.

    Attributes:
        category_names: What the categories mean.
    """

    train_images: np.ndarray
    train_objects: np.ndarray
    train_sessions: np.ndarray
    test_images: np.ndarray
    test_objects: np.ndarray
    test_sessions: np.ndarray
    category_names: ClassVar[tuple[str, ...]] = (
        "plug adapter",
        "mobile phone",
        "scissors",
        "light bulb",
        "can",
        "glass",
        "ball",
        "marker",
        "cup",
        "remote control",
    )

    @property
    def train_categories(self) -> np.ndarray:
        """(n,) 0 to 9."""
        return self.train_objects // OBJECTS_A_CATEGORY

    @property
    def test_categories(self) -> np.ndarray:
        """(n,) 0 to 9."""
        return self.test_objects // OBJECTS_A_CATEGORY


def load_core50(
    source: str | Path | None = None,
    frames_per_session: int = 15,
    test_sessions: Sequence[int] = (3, 7, 10),
    *,
    partial: bool = False,
    progress: bool | None = None,
) -> Core50:
    """Frames of CORe50, evenly spread over each session of each object.

    Of n frames of an object in a session, in the order of their numbers and counted from 0, those
    at i (n - 1) / (frames_per_session - 1) are taken, rounded down: the first, the last, and as
    many as fit between them. Only these are read into memory. Files are checked for being whole and
    consistent, not for being the official ones; grey pictures are taken as red, green and blue.

    Args:
        source: The folder `core50_128x128` or one like it, or the zip archive of it, which is read
            as it is; or a folder that has one of these. By default `RETARGET_DATA`, else the user's
            cache.
        frames_per_session: Frames of each object in each session.
        test_sessions: The sessions that are the test; the others are for training.
        partial: Load what there is where sessions or objects are missing.
        progress: Whether to show a progress bar; None shows it on a terminal only.

    Raises:
        MissingDataError: There are no such files; the message says where to get them.
        InvalidInputError: A file is damaged, or not what it should be; or frames are missing.
    """
    _require_valid(frames_per_session, test_sessions)
    with _open(find_core50(source)) as frames:
        chosen = choose(frames.frames, frames_per_session, frames.name, partial=partial)
        # Training first, so that both are slices of one array, which is never copied.
        chosen.sort(key=lambda frame: (frame.session in test_sessions, frame))
        images = _read(frames, chosen, progress)
    sessions, objects, _ = np.array(chosen, np.int64).T.copy()
    train = slice(sum(frame.session not in test_sessions for frame in chosen))
    test = slice(train.stop, None)
    return Core50(
        *(part[train] for part in (images, objects, sessions)),
        *(part[test] for part in (images, objects, sessions)),
    )


def core50_checksums(source: Path | None, frames_per_session: int) -> dict[str, str]:
    """SHA-256 of what `load_core50` reads, by its official name, whatever it is called here.

    Of a folder they are the frames that would be used, of an archive it is the archive.

    Raises:
        MissingDataError: There are no such files; the message says where to get them.
        InvalidInputError: The folder does not have the frames.
    """
    path = find_core50(source)
    if path.is_dir():
        return {f"core50/{FOLDER}": _frames_checksum(path.absolute(), frames_per_session)}
    return {f"core50/{ZIP}": file_checksum(path)}


# A folder has 165,000 files, and a figure a hundred runs: it is looked through once a process.
@lru_cache(maxsize=8)
def _frames_checksum(folder: Path, frames_per_session: int) -> str:
    with open_folder(folder) as pictures:
        chosen = choose(pictures.frames, frames_per_session, pictures.name, partial=False)
        # By its number, not its name: in another folder, or in none, it is the same frame.
        paths = {
            f"{frame.session} {frame.label} {frame.number}": folder / pictures.file_name(frame)
            for frame in chosen
        }
    return files_checksum(paths)


def _require_valid(frames_per_session: int, test_sessions: Sequence[int]) -> None:
    if frames_per_session < 1:
        raise InvalidInputError(f"frames_per_session is {frames_per_session}; expected 1 or more")
    tested = set(test_sessions)
    if len(tested) != len(test_sessions) or not set() < tested < set(SESSIONS):
        raise InvalidInputError(
            f"test_sessions is {tuple(test_sessions)}; expected some of the sessions 1 to 11, "
            "each once, and not all"
        )


def find_core50(source: str | Path | None) -> Path:
    """The file that `load_core50` reads, or the folder with the folders of the sessions.

    Raises:
        MissingDataError: There is none; the message says where to get it.
    """
    place = data_folder(source)
    if place.is_file() or any((place / f"s{session}").is_dir() for session in SESSIONS):
        return place
    for name in OFFICIAL_NAMES:
        if (place / name).is_file() or (place / name).is_dir():  # and no pipe
            return place / name
    raise MissingDataError(
        f"core50: {place} is no file, and none of {', '.join(OFFICIAL_NAMES)} found in it; "
        f"download {ADDRESS} to it by hand (several GB), or name the folder that has it: "
        f"{FOLDER_VARIABLE}, or the source"
    )


def _open(path: Path) -> AbstractContextManager[Pictures]:
    return open_folder(path) if path.is_dir() else open_zip_of_pictures(path)


def _read(source: Pictures, chosen: list[Frame], progress: bool | None) -> np.ndarray:
    """The images (n, 3, height, width) in the order of the chosen frames."""
    places = {frame: place for place, frame in enumerate(chosen)}
    images: np.ndarray | None = None
    with PatientBar("CORe50, frames", len(chosen), progress) as bar:
        for frame, image in source.read(chosen):
            planes = image.transpose(2, 0, 1)
            if images is None:
                images = np.empty((len(chosen), *planes.shape), np.uint8)
            images[places[frame]] = planes
            bar.advance(1)
    assert images is not None  # at least one frame is chosen
    return images


def new_classes_tasks(seed: int) -> list[list[int]]:
    """Nine tasks that share no object: ten objects in the first, five in each of the others.

    The first has one object of each category, in the order of the categories; the others have the
    rest, shuffled. The seed decides both.

    Returns:
        The labels of the objects, 0 to 49, of each task.

    Example:
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
