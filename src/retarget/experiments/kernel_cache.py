"""Gram matrices on disk, found again by their content: samples, kernel and the code of kernels."""

import functools
import hashlib
import json
from pathlib import Path

import numpy as np

import retarget.kernels
from retarget.data import cache
from retarget.kernels import Kernel


def cache_folder() -> Path:
    """Where kernels are kept: in `RETARGET_CACHE`, or the user's cache folder."""
    return cache.cache_folder("kernels")


def cached_gram(kernel: Kernel, samples: np.ndarray) -> np.ndarray:
    """`kernel(samples)`, computed once for the same samples, kernel and code.

    Args:
        kernel: A kernel that `to_dict` describes.
        samples: (n, ...) samples.
    """
    description = json.dumps(kernel.to_dict(), sort_keys=True)
    content = (description, _code_of_kernels(), samples)
    return cache.cached_array(cache_folder(), "gram", content, lambda: kernel(samples))


@functools.cache
def _code_of_kernels() -> str:
    folder = Path(retarget.kernels.__file__).parent
    sources = b"\0".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(sources).hexdigest()
