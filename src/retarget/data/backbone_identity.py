"""What makes a network the same as another, so that results of the one are those of the other."""

import hashlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from retarget.errors import InvalidInputError


def identity(backbone: nn.Module) -> Iterator[str | np.ndarray]:
    """What a backbone is made of: its printed form, its code, and every weight by name.

    Raises:
        InvalidInputError: The code of one of its classes is in no file.
    """
    yield repr(backbone)
    yield code_of(backbone)
    for name, tensor in backbone.state_dict().items():
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}"
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def code_of(backbone: nn.Module) -> str:
    """A checksum of the files that its classes are in, but for those of torch."""
    classes = {type(part) for part in backbone.modules()}
    paths = {_file_of(kind) for kind in classes if not kind.__module__.startswith("torch.")}
    return hashlib.sha256(b"\0".join(Path(path).read_bytes() for path in sorted(paths))).hexdigest()


def _file_of(kind: type) -> str:
    try:
        return inspect.getfile(kind)
    except (OSError, TypeError) as error:
        raise InvalidInputError(
            f"the code of the backbone's {kind.__qualname__} is in no file, so that its features "
            "could not be found again; define it in a module, or pass cache=False"
        ) from error
