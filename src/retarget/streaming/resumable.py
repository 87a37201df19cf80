"""Streaming objects that can be put down and taken up again."""

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from retarget.arrays import give_back
from retarget.errors import InvalidInputError
from retarget.kernels import kernel_from_dict
from retarget.learners import SGD
from retarget.storage import atomic_file
from retarget.streaming.intake import Intake

FORMAT = 1


class Resumable(ABC):
    """Saves to, and loads from, one safetensors file whose header holds the rest as JSON."""

    _intake: Intake

    @abstractmethod
    def __init__(self, kernel: Any, learner: SGD, **options: Any) -> None: ...

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """The arguments of the constructor, but for kernel and learner."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """Named tensors and plain values."""

    @abstractmethod
    def _restore(self, state: dict[str, Any]) -> None:
        """Takes `_state` back, on an object that is new."""

    @property
    def samples(self) -> Any:
        """All samples so far, in stream order: a view, not to be written to."""
        rows = self._intake.samples.rows
        return give_back(rows, None if self._intake.numpy else rows)

    def save(self, path: str | Path) -> None:
        """Writes the whole state to one file, which replaces an older one only when complete.

        The file holds tensors (safetensors) and, in its header, plain values (JSON): loading it
        runs no code. A kernel that is a function of the caller's is not in it.
        """
        state = self._state()
        tensors = {k: v.contiguous() for k, v in state.items() if isinstance(v, Tensor)}
        header = {
            "format": FORMAT,
            "class": type(self).__name__,
            "options": self._options(),
            "learner": self._intake.learner.to_dict(),
            "kernel": self._intake.kernel.to_dict(),
            "state": {k: v for k, v in state.items() if not isinstance(v, Tensor)},
        }
        with atomic_file(Path(path)) as temporary:
            save_file(tensors, temporary, metadata={"retarget": json.dumps(header)})

    @classmethod
    def load(cls, path: str | Path, kernel: Any = None, device: str | torch.device = "cpu") -> Self:
        """Takes up a saved state where it was put down.

        Args:
            path: What `save` wrote.
            kernel: The kernel, where it is one that a file cannot hold (a function, features, a
                precomputed matrix); otherwise the saved one is used.
            device: Where the tensors go.
        """
        header, tensors = _read(Path(path), device)
        if header["class"] != cls.__name__:
            raise InvalidInputError(
                f"{path} holds a {header['class']}; load it with {header['class']}.load"
            )
        if kernel is None:
            if header["kernel"] is None:
                raise InvalidInputError(
                    f"{path} was saved with a kernel that a file cannot hold; give it again: "
                    f"{cls.__name__}.load(path, kernel=...)"
                )
            kernel = kernel_from_dict(header["kernel"])
        loaded = cls(kernel, SGD(**header["learner"]), **header["options"])
        saved, given = header["kernel"], loaded._intake.kernel.to_dict()
        if saved != given:
            raise InvalidInputError(f"{path} was saved with the kernel {saved}, not {given}")
        loaded._restore(header["state"] | tensors)
        return loaded


def _read(path: Path, device: str | torch.device) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise InvalidInputError(f"there is no file {path}; expected one that save() wrote")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            header = json.loads((file.metadata() or {}).get("retarget", "null"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError) as error:
        raise InvalidInputError(f"{path} is damaged or no safetensors file: {error}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InvalidInputError(
            f"{path} is not a retarget state of format {FORMAT}; expected one that save() wrote"
        )
    return header, tensors
