"""The files of data sets: where they are looked for, whether they are right, how to download them.

A file is taken from any of its mirrors. A download that is larger than it should be is stopped, and
a file is put in place whole or not at all.
"""

import hashlib
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from retarget.data.catalogue import DataFile, DataSet, StoredFile
from retarget.errors import DownloadError, MissingDataError, missing_extra
from retarget.storage import atomic_file, user_path

FOLDER_VARIABLE = "RETARGET_DATA"
CHUNK = 1 << 16  # bytes of a download at a time
PATIENCE = 30  # seconds without a byte

State = Literal["ok", "missing", "wrong checksum", "unreadable"]
Progress = Callable[[DataFile, int], None]


def cache_folder() -> Path:
    """The user's own folder for data, where no other is named."""
    try:
        import platformdirs
    except ImportError as error:
        raise missing_extra("data sets need platformdirs", error, "figures") from error
    return Path(platformdirs.user_cache_dir("retarget"))


def data_folder(given: str | Path | None = None) -> Path:
    """The folder of the data: the given one, else `RETARGET_DATA`, else the user's cache.

    Examples:
        >>> data_folder("my/data").as_posix()
        'my/data'
    """
    named = given or os.environ.get(FOLDER_VARIABLE)
    return user_path(named) if named else cache_folder()


def locate(
    data_set: DataSet, folder: str | Path | None = None, *, download: bool = False
) -> list[tuple[Path, ...]]:
    """The paths of the files, for each `DataFile` those of the download or of what was in it.

    Args:
        data_set: What to look for.
        folder: Where; by default `RETARGET_DATA`, else the user's cache.
        download: If files are not there, download the official ones first.

    Raises:
        MissingDataError: Not all are there; the message says how to get them.
        DownloadError: No mirror gave a file.
    """
    folder = data_folder(folder)
    absent = [file for file in data_set.files if not file.present(folder)]
    if absent and download:
        get(data_set, folder)
    elif absent:
        missing = ", ".join(name for file in absent for name in file.lacking(folder))
        raise MissingDataError(
            f"{data_set.name}: {missing} not found in {folder}; "
            f"get it with: {get_command(data_set, folder)} "
            f"(or name the folder that has it: {FOLDER_VARIABLE}, --data-dir)"
        )
    return [tuple(folder / part.name for part in file.present(folder)) for file in data_set.files]


def get_command(data_set: DataSet, folder: Path) -> str:
    """The command that downloads the data set to the folder."""
    place = "" if folder == cache_folder() else f" --data-dir {shlex.quote(str(folder))}"
    return f"retarget data get {data_set.name}{place}"


def check_file(file: DataFile, folder: Path) -> tuple[State, str]:
    """Compares a file, or what of its other forms is there, with the official checksums.

    Returns:
        How it was found, and what there is to say about it.
    """
    try:
        form = file.present(folder)
        problems = [problem for stored in form if (problem := _difference(stored, folder))]
    except OSError as error:
        return "unreadable", str(error)
    if problems:
        return "wrong checksum", "; ".join(problems)
    if form:
        return "ok", "" if file.download in form else f"as {Path(form[0].name).parts[0]}"
    path, lacking = folder / file.download.name, file.lacking(folder)
    if path.exists():
        return "unreadable", f"{path} is not a file"
    whole = lacking == (file.download.name,)
    return "missing", "" if whole else f"of its parts, {', '.join(lacking)} not found"


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
    needed = [file for file in data_set.files if check_file(file, folder)[0] != "ok"]
    for file in needed:
        _download(file, folder, progress)
    return needed


def _download(file: DataFile, folder: Path, progress: Progress) -> None:
    try:
        import requests
    except ImportError as error:
        raise missing_extra("downloads need requests", error, "figures") from error
    failures = ""
    for address in file.mirrors:
        try:
            with requests.Session() as session, atomic_file(folder / file.download.name) as target:
                _receive(session, address, file, target, progress)
            return
        # Errors of the network or the mirror only: with a full disk the next would fail as well.
        except (requests.RequestException, _RefusedError) as error:
            failures += f"\n  {address}: {error}"
    raise DownloadError(
        f"{file.download.name} could not be downloaded, and nothing of it was kept; "
        f"if you have it from elsewhere, put it in {folder}. Tried:{failures}"
    )


class _RefusedError(Exception):
    """What a mirror sends is not the file."""


def _receive(session: Any, address: str, file: DataFile, target: Path, progress: Progress) -> None:
    wanted, digest, received = file.download, hashlib.sha256(), 0
    # The checksum is of the file as it lies there, so nothing may pack it for the way.
    options = {"headers": {"Accept-Encoding": "identity"}, "hooks": {"response": _limit_redirect}}
    with (
        session.get(address, stream=True, timeout=PATIENCE, **options) as response,
        target.open("wb") as opened,
    ):
        response.raise_for_status()
        announced = response.headers.get("Content-Length", str(wanted.size))
        if announced != str(wanted.size):
            raise _RefusedError(f"announces {announced} bytes, expected {wanted.size}")
        for chunk in response.iter_content(CHUNK):
            received += len(chunk)
            if received > wanted.size:
                raise _RefusedError(f"sends more than the expected {wanted.size} bytes")
            digest.update(chunk)
            opened.write(chunk)
            progress(file, received)
    if received != wanted.size:
        raise _RefusedError(f"sent {received} bytes, expected {wanted.size}; interrupted?")
    if digest.hexdigest() != wanted.sha256:
        raise _RefusedError(f"sent a file of sha256 {digest.hexdigest()}, expected {wanted.sha256}")


def _limit_redirect(response: Any, *_: Any, **__: Any) -> None:
    """Called by requests, which would read all of a redirection's own text, however long."""
    if response.is_redirect and len(response.raw.read(CHUNK + 1)) > CHUNK:
        response.close()
        raise _RefusedError(f"redirects with more than {CHUNK} bytes of text")
