"""Streaming objects that can be saved to a file and loaded again."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from retarget.arrays import give_back, require_finite
from retarget.errors import InvalidInputError
from retarget.kernels import kernel_from_dict
from retarget.learners import SGD
from retarget.state_files import explained, read_state, write_state
from retarget.streaming.intake import Intake


class Resumable(ABC):
    """Saves to, and loads from, one file of tensors whose header holds the rest as JSON."""

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
        """Restores what `_state` returned, on a new object."""

    @abstractmethod
    def fork(self) -> Self:
        """A copy that goes on from here by itself, at little cost.

        The long arrays are shared as far as they are filled: once this object takes in more
        samples, the fork must not be used any more.
        """

    def _become(self, after: Self) -> None:
        """Replaces the state of this object by that of a fork whose update succeeded."""
        vars(self).update(vars(after))

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
        header = {
            "class": type(self).__name__,
            "options": self._options(),
            "learner": self._intake.learner.to_dict(),
            "kernel": self._intake.kernel.to_dict(),
            "state": {k: v for k, v in state.items() if not isinstance(v, Tensor)},
        }
        tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)}
        write_state(Path(path), header, tensors)

    @classmethod
    def load(cls, path: str | Path, kernel: Any = None, device: str | torch.device = "cpu") -> Self:
        """Loads what `save` wrote; the stream then goes on as if nothing had happened.

        Args:
            path: What `save` wrote.
            kernel: The kernel, if it is one that a file cannot hold (a function, features, a
                precomputed matrix); otherwise the saved one is used.
            device: Where the tensors go.
        """
        header, tensors = read_state(Path(path), device, cls.__name__)
        if kernel is None and header.get("kernel") is None:
            raise InvalidInputError(
                f"{path} was saved with a kernel that a file cannot hold; give it again: "
                f"{cls.__name__}.load(path, kernel=...)"
            )
        with explained(path, cls.__name__):
            for name, tensor in tensors.items():
                require_finite(name, tensor)
            given = kernel_from_dict(header["kernel"]) if kernel is None else kernel
            loaded = cls(given, SGD(**header["learner"]), **header["options"])
            loaded._restore(header["state"] | tensors)
            loaded._intake.require_dtype(tensors)
        saved, used = header["kernel"], loaded._intake.kernel.to_dict()
        if saved != used:
            raise InvalidInputError(f"{path} was saved with the kernel {saved}, not {used}")
        return loaded
