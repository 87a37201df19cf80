"""Files with saved states: tensors (safetensors) and, in the header, plain values (JSON).

Reading one runs no code. A checksum over the whole state detects damage.
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

FORMAT = 5


def write_state(path: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes JSON values and tensors to one file, which replaces an older one only when complete.

    If that fails, the older file stays, and the `OSError` has the path as its `filename`.
    """
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "sha256": checksum(json.dumps(values), stored), "values": values}
    try:
        with atomic_file(path) as temporary:
            save_file(stored, temporary, {"retarget": json.dumps(header)})
    except OSError as error:  # it may name the temporary file, or no file
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def read_state(
    path: Path, device: str | torch.device = "cpu", kind: str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads the values and the tensors that `write_state` wrote; the tensors go to the device.

    If `kind` is given, the values must name it as their `class`. Raises a `DamagedFileError` if the
    file has changed since it was written.
    """
    _require_device(device)
    if not path.is_file():
        raise InvalidInputError(f"there is no file {path}; expected a file that retarget wrote")
    with path.open("rb"):
        pass  # without permission to read it, an OSError: the file is not damaged
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("retarget", "null"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged or not a safetensors file: {error}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InvalidInputError(
            f"{path} is not a retarget state of format {FORMAT}; expected a file that this version "
            "of retarget wrote"
        )
    values = header.get("values")
    actual = checksum(json.dumps(values), tensors)  # JSON survives the round trip unchanged
    if header.get("sha256") != actual or not isinstance(values, dict):
        raise DamagedFileError(f"{path} is damaged: its checksum does not match its contents")
    if kind is not None and values.get("class") != kind:
        raise InvalidInputError(
            f"{path} holds a {values.get('class')}, not a {kind}; load it with the "
            "class that saved it"
        )
    return values, {name: tensor.to(device) for name, tensor in tensors.items()}


def _require_device(device: str | torch.device) -> None:
    try:
        torch.empty(0, device=device)
    # torch raises an AssertionError if compiled without CUDA, a RuntimeError without a driver
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        raise InvalidInputError(
            f"device is {str(device)!r}, which cannot be used here ({error}); expected 'cpu', or "
            "a device that torch can use"
        ) from error


@contextmanager
def explained(path: str | Path, what: str) -> Iterator[None]:
    """Turns errors from missing or malformed entries of a state into an `InvalidInputError`.

    Such a file was written by another version, or by hand.
    """
    try:
        yield
    except (
        *(ArithmeticError, AttributeError, LookupError, MemoryError),
        *(RuntimeError, TypeError, ValueError),
    ) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InvalidInputError(f"{path} is not a state of a {what} ({reason})") from error


def checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a text and of tensors: their names, types, shapes and every bit."""
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
    """Returns an entry of a state, or raises unless it is a tensor of this shape (None: any)."""
    expected = tuple("any" if length is None else length for length in shape)
    if not isinstance(value, Tensor):
        raise InvalidInputError(f"{name} is {value!r:.80}; expected a tensor of shape {expected}")
    actual = tuple(value.shape)
    if len(actual) != len(shape) or any(
        wanted not in (None, length) for wanted, length in zip(shape, actual, strict=True)
    ):
        raise InvalidInputError(f"{name} has shape {actual}; expected {expected}")
    return value
