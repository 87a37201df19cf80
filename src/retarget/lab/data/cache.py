"""Caches arrays and the checksums of large files on disk.

The key of an array is the content of everything it was computed from; the key of a checksum is the
state of its files: their location on the disk, size and times.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from retarget.errors import MissingDataError
from retarget.lab.data import fetch
from retarget.lab.data.fetch import DataSet
from retarget.progress import PatientBar
from retarget.storage import atomic_file

FOLDER_VARIABLE = "RETARGET_CACHE"
CHECKSUM = "sha256"
CHUNK = 1 << 20  # bytes of a file read at a time
# A smaller file is read as fast as its cached checksum; a set of small ones is cached as one.
LARGE = CHUNK
# A file that was just written may be changed again without a change of its time stamp.
SETTLED = 2_000_000_000  # nanoseconds


def cache_folder(kind: str) -> Path:
    """Returns the folder for results of a kind: in `RETARGET_CACHE`, else the user's cache."""
    return Path(os.environ.get(FOLDER_VARIABLE) or fetch.cache_folder()) / kind


def cached_array(
    folder: Path, name: str, content: Iterable[str | np.ndarray], compute: Callable[[], np.ndarray]
) -> np.ndarray:
    """Returns the array that `compute` returns, cached in `folder` by its content.

    `content` is everything that the result depends on. If several processes need the array, one
    computes it and the others wait. A damaged file is computed again.
    """
    path = folder / f"{content_digest(content)[:32]}.safetensors"
    array = _read_array(path, name)
    if array is None:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            array = _read_array(path, name)  # another process may have written it meanwhile
            if array is None:
                array = compute()
                with atomic_file(path) as temporary:
                    save_file({name: array}, temporary, {CHECKSUM: content_digest([array])})
    return array


def content_digest(content: Iterable[str | np.ndarray]) -> str:
    """Returns the SHA-256 of texts and arrays, in hexadecimal digits."""
    digest = hashlib.sha256()
    for piece in content:
        if isinstance(piece, str):
            digest.update(piece.encode() + b"\0")
        else:
            digest.update(f"{piece.dtype}\0{piece.shape}\0".encode())
            digest.update(np.ascontiguousarray(piece).data)
    return digest.hexdigest()


def _read_array(path: Path, name: str) -> np.ndarray | None:
    """Returns the array in a file; None if the file is missing or damaged."""
    try:
        with safe_open(path, framework="numpy") as file:
            array: np.ndarray = file.get_tensor(name)
            written = (file.metadata() or {}).get(CHECKSUM)
    except (SafetensorError, KeyError, OSError):
        return None
    return array if content_digest([array]) == written else None


def data_set_checksums(data_set: DataSet) -> dict[str, str]:
    """Returns the SHA-256 of each file that a data set's loader reads, by name."""
    folder = fetch.data_folder()
    paths = [path for form in fetch.locate(data_set, folder) for path in form]
    return {
        f"{data_set.name}/{path.relative_to(folder).as_posix()}": file_checksum(path)
        for path in paths
    }


def file_checksum(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal digits.

    For a large file the checksum is cached, and reused while the file keeps its size, times and
    location on the disk.
    """
    return files_checksum({"": path})


def files_checksum(paths: Mapping[str, Path]) -> str:
    """Returns the SHA-256 of names and file contents; for one file without a name, its own."""
    before = _states(paths)
    places = "\0".join(f"{name}\0{path.absolute()}" for name, path in paths.items())
    name = hashlib.sha256(places.encode("utf-8", "surrogateescape")).hexdigest()
    note = cache_folder("checksums") / f"{name[:32]}.json"
    noted = _noted(note, before)
    if noted is not None:
        return noted
    checksum = _computed(paths)
    settled = all(time.time_ns() - changed > SETTLED for changed, *_ in before)
    large = sum(size for *_, size, _ in before) >= LARGE
    if large and settled and _states(paths) == before:
        # if the cache cannot be written, that only costs time
        with suppress(OSError), atomic_file(note) as temporary:
            temporary.write_text(json.dumps({"files": before, "sha256": checksum}), "utf-8")
    return checksum


def _states(paths: Mapping[str, Path]) -> list[list[int]]:
    """Returns what changes when a file does: its size, its times and its location on the disk."""
    states = []
    for path in paths.values():
        if not path.is_file():
            raise MissingDataError(f"there is no file {path}")
        status = path.stat()
        # On Windows, st_ctime is the time of creation.
        changed = max(status.st_ctime_ns, status.st_mtime_ns)
        states.append([changed, status.st_mtime_ns, status.st_size, status.st_ino])
    return states


def _computed(paths: Mapping[str, Path]) -> str:
    sizes = [path.stat().st_size for path in paths.values()]
    whole = hashlib.sha256()
    done = 0
    with PatientBar("checksums, MB", max(1, sum(sizes) // CHUNK)) as bar:
        for name, path in paths.items():
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
                    # in whole steps, even if many files are smaller than one
                    bar.advance((done + len(chunk)) // CHUNK - done // CHUNK)
                    done += len(chunk)
            if not name and len(paths) == 1:
                return digest.hexdigest()
            whole.update(f"{name}\0{digest.hexdigest()}\n".encode())
    return whole.hexdigest()


def _noted(note: Path, states: list[list[int]]) -> str | None:
    """Returns the checksum cached for files in this state; None if there is no valid one."""
    try:
        cached = json.loads(note.read_text("utf-8"))
        known = cached["files"] == states
        checksum = cached["sha256"]
        return checksum if known and len(bytes.fromhex(checksum)) == 32 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
