"""Arrays on disk, found again by the content of all that they were computed from."""

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from retarget.data import files
from retarget.storage import atomic_file

FOLDER_VARIABLE = "RETARGET_CACHE"
CHECKSUM = "sha256"


def cache_folder(kind: str) -> Path:
    """Where arrays of a kind are kept: in `RETARGET_CACHE`, or the user's cache folder."""
    return Path(os.environ.get(FOLDER_VARIABLE) or files.cache_folder()) / kind


def cached_array(
    folder: Path, name: str, content: Iterable[str | np.ndarray], compute: Callable[[], np.ndarray]
) -> np.ndarray:
    """The array that `compute` gives, computed once for the same content.

    Of several processes that need it, one computes it and the others wait for it.

    Args:
        folder: Where it is kept.
        name: What the array is called in its file.
        content: All that the result depends on.
        compute: Called if there is no such file in the folder, or a damaged one.
    """
    path = folder / f"{content_digest(content)[:32]}.safetensors"
    found = _read(path, name)
    if found is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        found = _read(path, name)  # another process may have made it meanwhile
        if found is not None:
            return found
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


def _read(path: Path, name: str) -> np.ndarray | None:
    """The array in a file; None if there is none, or if it is not as it was written."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            array: np.ndarray = file.get_tensor(name)
            written = (file.metadata() or {}).get(CHECKSUM)
    except (SafetensorError, KeyError, OSError):
        return None
    return array if content_digest([array]) == written else None
