"""What is computed once and kept on disk: arrays, and the checksums of large files.

An array is found again by the content of all that it was computed from, a checksum by the state of
its files: their place, size and times.
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

from retarget.data import fetch
from retarget.data.fetch import DataSet
from retarget.errors import MissingDataError
from retarget.progress import PatientBar
from retarget.storage import atomic_file

FOLDER_VARIABLE = "RETARGET_CACHE"
CHECKSUM = "sha256"
CHUNK = 1 << 20  # bytes of a file at a time
# A smaller file is read as fast as its note, and a set of small ones is noted as one.
LARGE = CHUNK
# A file that was just written may be written again within the same tick of the disk's clock.
SETTLED = 2_000_000_000  # nanoseconds


def cache_folder(kind: str) -> Path:
    """Where results of a kind are kept: in `RETARGET_CACHE`, or else in the user's cache folder."""
    return Path(os.environ.get(FOLDER_VARIABLE) or fetch.cache_folder()) / kind


def cached_array(
    folder: Path, name: str, content: Iterable[str | np.ndarray], compute: Callable[[], np.ndarray]
) -> np.ndarray:
    """The array that `compute` returns, computed once for the same content and kept in `folder`.

    `content` is all that the result depends on. If several processes need the array, one computes
    it and the others wait. A damaged file is computed again.
    """
    path = folder / f"{content_digest(content)[:32]}.safetensors"
    array = _read_array(path, name)
    if array is None:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            array = _read_array(path, name)  # another process may have made it meanwhile
            if array is None:
                array = compute()
                with atomic_file(path) as temporary:
                    save_file({name: array}, temporary, {CHECKSUM: content_digest([array])})
    return array


def content_digest(content: Iterable[str | np.ndarray]) -> str:
    """SHA-256 of texts and arrays, in hexadecimal digits."""
    digest = hashlib.sha256()
    for part in content:
        if isinstance(part, str):
            digest.update(part.encode() + b"\0")
        else:
            digest.update(f"{part.dtype}\0{part.shape}\0".encode())
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def _read_array(path: Path, name: str) -> np.ndarray | None:
    """The array in a file; None if there is no such file, or if it is damaged."""
    try:
        with safe_open(path, framework="numpy") as file:
            array: np.ndarray = file.get_tensor(name)
            written = (file.metadata() or {}).get(CHECKSUM)
    except (SafetensorError, KeyError, OSError):
        return None
    return array if content_digest([array]) == written else None


def data_set_checksums(data_set: DataSet, folder: Path) -> dict[str, str]:
    """SHA-256 of each file that the loader of a data set reads from a folder, by name."""
    paths = [path for form in fetch.locate(data_set, folder) for path in form]
    return {
        f"{data_set.name}/{path.relative_to(folder).as_posix()}": file_checksum(path)
        for path in paths
    }


def file_checksum(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits.

    If the file is large, the checksum is noted in the cache, and found there as long as the file
    has the same size, times and place on the disk.
    """
    return files_checksum({"": path})


def files_checksum(paths: Mapping[str, Path]) -> str:
    """SHA-256 of each name with the checksum of its file; of one file with no name, the latter."""
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
        # a cache that cannot be written costs time, and nothing else
        with suppress(OSError), atomic_file(note) as temporary:
            temporary.write_text(json.dumps({"files": before, "sha256": checksum}), "utf-8")
    return checksum


def _states(paths: Mapping[str, Path]) -> list[list[int]]:
    """What changes when a file does: its size, its times and its place on the disk."""
    states = []
    for path in paths.values():
        if not path.is_file():
            raise MissingDataError(f"there is no file {path}")
        found = path.stat()
        # Windows has the time of creation in st_ctime.
        changed = max(found.st_ctime_ns, found.st_mtime_ns)
        states.append([changed, found.st_mtime_ns, found.st_size, found.st_ino])
    return states


def _computed(paths: Mapping[str, Path]) -> str:
    sizes = [path.stat().st_size for path in paths.values()]
    whole, done = hashlib.sha256(), 0
    with PatientBar("checksums, MB", max(1, sum(sizes) // CHUNK)) as bar:
        for name, path in paths.items():
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
                    # in whole steps, also of many files that are smaller than one
                    bar.advance((done + len(chunk)) // CHUNK - done // CHUNK)
                    done += len(chunk)
            if not name and len(paths) == 1:
                return digest.hexdigest()
            whole.update(f"{name}\0{digest.hexdigest()}\n".encode())
    return whole.hexdigest()


def _noted(note: Path, states: list[list[int]]) -> str | None:
    """The checksum that was noted for files in this state; None without a valid note."""
    try:
        found = json.loads(note.read_text("utf-8"))
        known, checksum = found["files"] == states, found["sha256"]
        return checksum if known and len(bytes.fromhex(checksum)) == 32 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
