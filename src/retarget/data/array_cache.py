"""Arrays on disk, found again by the content of all that they were computed from."""

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from retarget.data import files
from retarget.storage import atomic_file

FOLDER_VARIABLE = "RETARGET_CACHE"


def cache_folder(kind: str) -> Path:
    """Where arrays of a kind are kept: in `RETARGET_CACHE`, or the user's cache folder."""
    return Path(os.environ.get(FOLDER_VARIABLE) or files.cache_folder()) / kind


def cached_array(
    folder: Path, name: str, content: Iterable[str | np.ndarray], compute: Callable[[], np.ndarray]
) -> np.ndarray:
    """The array that `compute` gives, computed once for the same content.

    Args:
        folder: Where it is kept.
        name: What the array is called in its file.
        content: All that the result depends on.
        compute: Called if there is no such file in the folder, or a damaged one.
    """
    path = folder / f"{_digest(content)[:32]}.safetensors"
    if path.is_file():
        try:
            return load_file(path)[name]
        except (SafetensorError, KeyError, OSError):
            path.unlink(missing_ok=True)  # damaged: made again below
    array = compute()
    with atomic_file(path) as temporary:
        save_file({name: array}, temporary)
    return array


def _digest(content: Iterable[str | np.ndarray]) -> str:
    digest = hashlib.sha256()
    for part in content:
        if isinstance(part, str):
            digest.update(part.encode() + b"\0")
        else:
            digest.update(f"{part.dtype}\0{part.shape}\0".encode())
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
