"""Gram matrices on disk, found again by their content: samples, kernel and the code of kernels."""

import hashlib
import json
import os
from functools import cache
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

import retarget.kernels
from retarget.data import files
from retarget.kernels import Kernel
from retarget.storage import atomic_file


def cache_folder() -> Path:
    """Where kernels are kept: `RETARGET_CACHE`, or the user's cache folder."""
    return Path(os.environ.get("RETARGET_CACHE") or files.cache_folder()) / "kernels"


def cached_gram(kernel: Kernel, samples: np.ndarray) -> np.ndarray:
    """`kernel(samples)`, computed once for the same samples, kernel and code.

    Args:
        kernel: A kernel that `to_dict` describes.
        samples: (n, ...) samples.
    """
    digest, description = hashlib.sha256(), json.dumps(kernel.to_dict(), sort_keys=True)
    for part in (description, _code_of_kernels(), str(samples.dtype), str(samples.shape)):
        digest.update(part.encode() + b"\0")
    digest.update(np.ascontiguousarray(samples).data)
    path = cache_folder() / f"{digest.hexdigest()[:32]}.safetensors"
    if path.is_file():
        try:
            return load_file(path)["gram"]
        except (SafetensorError, KeyError, OSError):
            path.unlink(missing_ok=True)  # damaged: made again below
    gram = kernel(samples)
    with atomic_file(path) as temporary:
        save_file({"gram": gram}, temporary)
    return gram


@cache
def _code_of_kernels() -> str:
    folder = Path(retarget.kernels.__file__).parent
    sources = b"\0".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(sources).hexdigest()
