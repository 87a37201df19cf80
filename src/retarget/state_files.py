"""Files that hold a state: tensors (safetensors) and, in the header, plain values (JSON).

Reading one runs no code. A checksum over all of it finds what was damaged since.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from retarget.errors import DamagedFileError, InvalidInputError
from retarget.storage import atomic_file

FORMAT = 2


def write_state(path: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes JSON values and tensors to one file, which replaces an older one only when complete.

    An `OSError` has the path as its `filename`; the older file then stays.
    """
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "sha256": checksum(json.dumps(values), stored), "values": values}
    try:
        with atomic_file(path) as temporary:
            save_file(stored, temporary, {"retarget": json.dumps(header)})
    except OSError as error:  # may know of the temporary file only, or of none
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def read_state(
    path: Path, device: str | torch.device = "cpu", kind: str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The values and the tensors that `write_state` wrote, with these on the device.

    If `kind` is given, the values must name it as their `class`. A file that has changed since it
    was written is a `DamagedFileError`.
    """
    _require_device(device)
    if not path.is_file():
        raise InvalidInputError(f"there is no file {path}; expected one that retarget wrote")
    with path.open("rb"):
        pass  # a file that may not be read is an OSError, not a damaged one
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("retarget", "null"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged or not a safetensors file: {error}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InvalidInputError(
            f"{path} is not a retarget state of format {FORMAT}; expected one of this version"
        )
    values = header.get("values")
    found = checksum(json.dumps(values), tensors)  # JSON writes what it has read as it was
    if header.get("sha256") != found or not isinstance(values, dict):
        raise DamagedFileError(f"{path} is damaged: its checksum is not that of what it holds")
    if kind is not None and values.get("class") != kind:
        raise InvalidInputError(
            f"{path} holds a {values.get('class')}, not a {kind}; load it as such"
        )
    return values, {name: tensor.to(device) for name, tensor in tensors.items()}


def _require_device(device: str | torch.device) -> None:
    try:
        torch.empty(0, device=device)
    # torch says "not compiled with CUDA" by an AssertionError, and "no driver" by a RuntimeError
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        raise InvalidInputError(
            f"device is {str(device)!r}, which cannot be used here ({error}); expected 'cpu', or "
            "a device that torch finds"
        ) from error


@contextmanager
def explained(path: str | Path, what: str) -> Iterator[None]:
    """Explains errors from a state whose entries are missing, or of another kind or size.

    Such a file was written by another version, or by hand.
    """
    try:
        yield
    except (
        *(ArithmeticError, AttributeError, LookupError, MemoryError),
        *(RuntimeError, TypeError, ValueError),
    ) as error:
        told = f"{type(error).__name__}: {error}"
        raise InvalidInputError(f"{path} is not a state of a {what} ({told})") from error


def checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a text and of tensors: their names, types, shapes and every bit of them."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def part_of(state: dict[str, Any], name: str) -> dict[str, Any]:
    """The entries of a state that belong to one of its parts."""
    return {
        key.removeprefix(f"{name}."): value
        for key, value in state.items()
        if key.startswith(f"{name}.")
    }


def require_shape(name: str, value: Any, *shape: int | None) -> Tensor:
    """A tensor of a state, refused if it is not one of this shape (None: any length)."""
    expected = tuple("any" if length is None else length for length in shape)
    if not isinstance(value, Tensor):
        raise InvalidInputError(f"{name} is {value!r:.80}; expected a tensor of shape {expected}")
    found = tuple(value.shape)
    if len(found) != len(shape) or any(
        wanted not in (None, length) for wanted, length in zip(shape, found, strict=True)
    ):
        raise InvalidInputError(f"{name} has shape {found}; expected {expected}")
    return value
