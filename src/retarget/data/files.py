"""The files of data sets: what they are, in which folder they lie, whether they are as they should.

Nothing here downloads: see `retarget.data.download`.
"""

import hashlib
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pooch

from retarget.errors import MissingDataError

FOLDER_VARIABLE = "RETARGET_DATA"


@dataclass(frozen=True)
class StoredFile:
    """A file as it must lie in the folder.

    Attributes:
        name: Its path in the folder of the data.
        size: Its length in bytes.
        sha256: Its checksum, in hexadecimal digits.
    """

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class DataFile:
    """A file of a data set, as it is downloaded, and what is as good.

    Attributes:
        download: The file that the mirrors have.
        mirrors: Addresses of that file, in the order in which they are tried.
        unpacked: The files that are in it; where all of them lie, the download is not needed.
    """

    download: StoredFile
    mirrors: tuple[str, ...]
    unpacked: tuple[StoredFile, ...] = ()

    def present(self, folder: Path) -> tuple[StoredFile, ...]:
        """What of it lies in the folder: the download, else everything unpacked, else nothing."""
        forms = ((self.download,), self.unpacked)
        return next((form for form in forms if _all_there(form, folder)), ())


@dataclass(frozen=True)
class DataSet:
    """A data set that can be downloaded.

    Attributes:
        name: As the command knows it.
        description: One line for people.
        files: Everything that its loader reads.
    """

    name: str
    description: str
    files: tuple[DataFile, ...]

    @property
    def download_size(self) -> int:
        """Bytes to download."""
        return sum(file.download.size for file in self.files)


def cache_folder() -> Path:
    """The folder for data that belongs to the user, where no other is named."""
    return Path(pooch.os_cache("retarget"))


def data_folder(given: str | Path | None = None) -> Path:
    """The folder of the data: the given one, else `RETARGET_DATA`, else the user's cache.

    Example:
        >>> data_folder("my/data").as_posix()
        'my/data'
    """
    named = given or os.environ.get(FOLDER_VARIABLE)
    return Path(named).expanduser() if named else cache_folder()


def is_complete(data_set: DataSet, folder: Path) -> bool:
    """Whether all files are there, the official ones or others of the same names."""
    return all(file.present(folder) for file in data_set.files)


def locate(data_set: DataSet, folder: Path) -> list[tuple[Path, ...]]:
    """The paths of the files, for each `DataFile` those of the download or of what was in it.

    Raises:
        MissingDataError: Not all are there; the message says how to get them.
    """
    present = [file.present(folder) for file in data_set.files]
    missing = [f.download.name for f, p in zip(data_set.files, present, strict=True) if not p]
    if missing:
        raise MissingDataError(
            f"{data_set.name}: {', '.join(missing)} not found in {folder}; "
            f"get it with: {get_command(data_set, folder)} "
            f"(or name the folder that has it: {FOLDER_VARIABLE}, --data-dir)"
        )
    return [tuple(folder / stored.name for stored in form) for form in present]


def get_command(data_set: DataSet, folder: Path) -> str:
    """The command that downloads the data set to the folder."""
    place = "" if folder == cache_folder() else f" --data-dir {shlex.quote(str(folder))}"
    return f"retarget data get {data_set.name}{place}"


class FileState(StrEnum):
    """How a file of a data set was found."""

    OK = "ok"
    MISSING = "missing"
    WRONG_CHECKSUM = "wrong checksum"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Finding:
    """The state of one file of a data set, and what there is to say about it."""

    file: DataFile
    state: FileState
    detail: str = ""


def check(data_set: DataSet, folder: Path) -> Iterator[Finding]:
    """Compares every file with its official checksum."""
    return (check_file(file, folder) for file in data_set.files)


def check_file(file: DataFile, folder: Path) -> Finding:
    """Compares a file (or, where it was unpacked, its parts) with the official checksum."""
    try:
        form = file.present(folder)
        if not form:
            return Finding(file, *_state_of_absent(folder / file.download.name))
        problems = [problem for stored in form if (problem := _difference(stored, folder))]
    except OSError as error:
        return Finding(file, FileState.UNREADABLE, str(error))
    if problems:
        return Finding(file, FileState.WRONG_CHECKSUM, "; ".join(problems))
    return Finding(file, FileState.OK, "" if file.download in form else "unpacked")


def _state_of_absent(path: Path) -> tuple[FileState, str]:
    if path.exists():
        return FileState.UNREADABLE, f"{path} is not a file"
    return FileState.MISSING, ""


def _difference(stored: StoredFile, folder: Path) -> str:
    """What distinguishes the file in the folder from the official one; empty if nothing does."""
    path = folder / stored.name
    size = path.stat().st_size
    if size != stored.size:
        return f"{stored.name} has {size} bytes, expected {stored.size}"
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != stored.sha256:
        return f"{stored.name} has sha256 {found[:12]}..., expected {stored.sha256[:12]}..."
    return ""


def _all_there(form: tuple[StoredFile, ...], folder: Path) -> bool:
    return all((folder / stored.name).is_file() for stored in form)
