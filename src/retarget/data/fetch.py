"""The files of data sets: where they are looked for, whether they are right, how to download them.

A file is taken from any of its mirrors. A download that is larger than it should be is stopped, and
a file is put in place whole or not at all.
"""

import hashlib
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from retarget.data.catalogue import DataFile, DataSet, StoredFile
from retarget.errors import DownloadError, MissingDataError, missing_extra
from retarget.storage import atomic_file, user_path

FOLDER_VARIABLE = "RETARGET_DATA"
CHUNK = 1 << 16  # bytes of a download at a time
HTTP_OK = 200


def _pooch() -> Any:
    """What downloads, imported when it is needed: it takes a while."""
    try:
        import pooch
        import requests  # noqa: F401
    except ImportError as error:
        raise missing_extra("data sets need pooch and requests", error, "figures") from error
    return pooch


def cache_folder() -> Path:
    """The user's own folder for data, where no other is named."""
    return Path(_pooch().os_cache("retarget"))


def data_folder(given: str | Path | None = None) -> Path:
    """The folder of the data: the given one, else `RETARGET_DATA`, else the user's cache.

    Example:
        >>> data_folder("my/data").as_posix()
        'my/data'
    """
    named = given or os.environ.get(FOLDER_VARIABLE)
    return user_path(named) if named else cache_folder()


def is_complete(data_set: DataSet, folder: Path) -> bool:
    """Whether all files are there, the official ones or others of the same names."""
    return all(file.present(folder) for file in data_set.files)


def locate(data_set: DataSet, folder: Path) -> list[tuple[Path, ...]]:
    """The paths of the files, for each `DataFile` those of the download or of what was in it.

    Raises:
        MissingDataError: Not all are there; the message says how to get them.
    """
    present = [file.present(folder) for file in data_set.files]
    missing = [
        name
        for file, form in zip(data_set.files, present, strict=True)
        if not form
        for name in file.lacking(folder)
    ]
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
    """Compares a file, or what of its other forms is there, with the official checksums."""
    try:
        form = file.present(folder)
        if not form:
            return Finding(file, *_state_of_absent(file, folder))
        problems = [problem for stored in form if (problem := _difference(stored, folder))]
    except OSError as error:
        return Finding(file, FileState.UNREADABLE, str(error))
    if problems:
        return Finding(file, FileState.WRONG_CHECKSUM, "; ".join(problems))
    return Finding(file, FileState.OK, _which(form, file))


def _which(form: tuple[StoredFile, ...], file: DataFile) -> str:
    if file.download in form:
        return ""
    return "unpacked" if form == file.unpacked else f"as {Path(form[0].name).parts[0]}"


def _state_of_absent(file: DataFile, folder: Path) -> tuple[FileState, str]:
    path = folder / file.download.name
    if path.exists():
        return FileState.UNREADABLE, f"{path} is not a file"
    lacking = file.lacking(folder)
    if lacking == (file.download.name,):
        return FileState.MISSING, ""
    return FileState.MISSING, f"of its parts, {', '.join(lacking)} not found"


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


Progress = Callable[[DataFile, int], None]


def get(
    data_set: DataSet, folder: Path, progress: Progress = lambda file, received: None
) -> list[DataFile]:
    """Downloads what is not in the folder with the right checksum.

    Args:
        data_set: What to get.
        folder: Where to; it is created. A file there with a wrong checksum is replaced.
        progress: Called with a file and how many of its bytes have arrived.

    Returns:
        The files that were downloaded; none if everything was there.

    Raises:
        DownloadError: No mirror gave a file; no part of it is left behind.
    """
    needed = [f for f in data_set.files if check_file(f, folder).state is not FileState.OK]
    for file in needed:
        _download(file, folder, progress)
    return needed


def _download(file: DataFile, folder: Path, progress: Progress) -> None:
    pooch, failures = _pooch(), []
    import requests

    for address in file.mirrors:
        try:
            with atomic_file(folder / file.download.name) as temporary:
                _receive(pooch, address, file, temporary, progress)
            return
        # Errors of the network or the mirror only: with a full disk the next would fail as well.
        except (requests.RequestException, _RefusedError) as error:
            failures.append(f"{address}: {error}")
    tried = "".join(f"\n  {failure}" for failure in failures)
    raise DownloadError(
        f"{file.download.name} could not be downloaded, and nothing of it was kept; "
        f"if you have it from elsewhere, put it in {folder}. Tried:{tried}"
    )


def _receive(pooch: Any, address: str, file: DataFile, target: Path, progress: Progress) -> None:
    with target.open("wb") as opened:
        received = _CheckedFile(opened, file.download, lambda count: progress(file, count))
        fetch = pooch.HTTPDownloader(
            chunk_size=CHUNK,
            # The checksum is of the file as it lies there, so nothing may pack it for the way.
            headers={"Accept-Encoding": "identity"},
            hooks={"response": received.expect},
        )
        try:
            fetch(address, received, None)
        finally:
            received.close_connections()
        received.finish()


class _RefusedError(Exception):
    """What a mirror sends is not the file."""


class _CheckedFile:
    """A file to write to that takes no more than it should and checks what it took.

    Args:
        file: Where the bytes go.
        wanted: What they must be in the end.
        progress: Called with the number of bytes so far.
    """

    def __init__(
        self, file: IO[bytes], wanted: StoredFile, progress: Callable[[int], None]
    ) -> None:
        self._file = file
        self._wanted = wanted
        self._progress = progress
        self._received = 0
        self._digest = hashlib.sha256()
        self._responses: list[Any] = []

    def expect(self, response: Any, *_: Any, **__: Any) -> None:
        """Called by requests before anything is read: refuses an answer of the wrong length."""
        self._responses.append(response)
        # requests would read all of a redirection's own text, however long
        if response.is_redirect and len(response.raw.read(CHUNK + 1)) > CHUNK:
            raise _RefusedError(f"redirects with more than {CHUNK} bytes of text")
        announced = response.headers.get("Content-Length")
        # Only of the file itself: redirections and errors have texts of their own length.
        if response.status_code != HTTP_OK or announced is None:
            return
        if announced != str(self._wanted.size):
            raise _RefusedError(f"announces {announced} bytes, expected {self._wanted.size}")

    def write(self, chunk: bytes) -> None:
        """Takes the next bytes."""
        self._received += len(chunk)
        if self._received > self._wanted.size:
            raise _RefusedError(f"sends more than the expected {self._wanted.size} bytes")
        self._digest.update(chunk)
        self._file.write(chunk)
        self._progress(self._received)

    def flush(self) -> None:
        """Does nothing: pooch asks for it after every chunk, closing the file is enough."""

    def close_connections(self) -> None:
        """An answer that was refused half-way would keep its connection open."""
        for response in self._responses:
            response.close()

    def finish(self) -> None:
        """Refuses what is not the wanted file."""
        if self._received != self._wanted.size:
            raise _RefusedError(
                f"sent {self._received} bytes, expected {self._wanted.size}; interrupted?"
            )
        found = self._digest.hexdigest()
        if found != self._wanted.sha256:
            raise _RefusedError(f"sent a file of sha256 {found}, expected {self._wanted.sha256}")
