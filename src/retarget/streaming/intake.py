"""What streaming objects share: how samples are checked and kept, and the file of a state."""

import copy
import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import (
    FLOATS,
    GrowingRows,
    as_non_negative,
    as_targets,
    as_tensor,
    give_back,
    require_finite,
    require_symmetric,
)
from retarget.errors import InvalidInputError
from retarget.kernels import Kernel, as_kernel, kernel_from_dict
from retarget.learners import SGD
from retarget.samples import leaves
from retarget.state_files import explained, read_state, write_state
from retarget.theory.losses import Loss, check_loss, check_targets
from retarget.theory.moments import LARGEST_NUMBER
from retarget.theory.response import require_lasting_start


class Intake:
    """The samples so far, and their kernel.

    Args:
        kernel: Anything that `as_kernel` takes.
        learner: The online learner.
        loss: Its loss.
    """

    def __init__(self, kernel: Any, learner: SGD, loss: Loss = "squared") -> None:
        check_loss(loss)
        self.kernel: Kernel = as_kernel(kernel)
        self.learner, self.loss = learner, loss
        self.samples = GrowingRows()
        self.numpy = False
        self.flat = False
        self.outputs = 0
        self.dtype: torch.dtype | None = None  # of the caller's arrays; computing is in `_wide`
        self.device = torch.device("cpu")
        self.has_start: bool | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and plain values."""
        state: dict[str, Any] = {
            "numpy": self.numpy,
            "flat": self.flat,
            "outputs": self.outputs,
            "dtype": None if self.dtype is None else str(self.dtype).removeprefix("torch."),
            "has_start": self.has_start,
        }
        return state | ({"samples": self.samples.rows} if len(self) else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state; this intake must be new."""
        self.numpy, self.flat = bool(state["numpy"]), bool(state["flat"])
        self.outputs, self.has_start = int(state["outputs"]), state["has_start"]
        if self.has_start not in (None, True, False) or self.outputs < 0:
            raise InvalidInputError(f"has_start is {self.has_start!r}, outputs {self.outputs}")
        if state["dtype"] is not None:  # that of the samples so far
            self.dtype = getattr(torch, state["dtype"])
            if self.dtype not in FLOATS or self.outputs == 0:
                raise InvalidInputError(f"dtype is {self.dtype}, outputs {self.outputs}")
            self._restore_samples(state["samples"])

    def _restore_samples(self, samples: Any) -> None:
        if not isinstance(samples, Tensor) or not len(samples):
            raise InvalidInputError("there are no samples in it")
        self.samples.append(samples)
        self.device = samples.device

    def require_dtype(self, tensors: dict[str, Tensor]) -> None:
        """Refuses a saved state whose numbers are not in the type that is computed in."""
        for name, tensor in tensors.items():
            if name != "intake.samples" and tensor.dtype != self._wide_dtype(tensor):
                raise InvalidInputError(f"{name} has dtype {tensor.dtype}")

    def fork(self) -> Self:
        """An intake that goes on from here by itself; void once this one goes on."""
        fork = copy.copy(self)
        fork.samples = self.samples.fork()
        return fork

    def take(self, X: Any, Y: Any, initial: Any = None) -> tuple[Tensor, Tensor]:
        """Checks new samples and keeps them; their targets (m, c), and the start at them.

        After a portion that is refused the intake is of no more use: take it in with a `fork`.
        """
        samples, targets = as_tensor("X", X), as_targets("Y", Y, first_row=len(self))
        check_targets("Y", targets, self.loss, first_row=len(self))
        if samples.ndim == 0 or len(samples) != len(targets):
            raise InvalidInputError(
                f"X has {len(samples) if samples.ndim else 'no'} rows and Y {len(targets)}; "
                "expected one of each a sample"
            )
        if samples.is_floating_point():
            require_finite("X", samples, first_row=len(self))
        start = torch.zeros_like(targets)
        if initial is not None:
            start = as_targets("initial", initial, first_row=len(self))
            if start.shape != targets.shape:
                raise InvalidInputError(
                    f"initial has shape {np.shape(initial)}, but Y has {np.shape(Y)}; expected "
                    "the starting function's value for each target"
                )
            require_lasting_start(initial, self.learner)
        if self.has_start not in (None, initial is not None):
            raise InvalidInputError(
                "initial was given for a part of the stream only; give it always or never"
            )
        if len(self) == 0:
            self.numpy = not isinstance(X, Tensor)
            self.flat, self.outputs = np.ndim(Y) == 1, targets.shape[1]
        elif targets.shape[1] != self.outputs:
            raise InvalidInputError(
                f"Y has {targets.shape[1]} outputs; the stream so far has {self.outputs}"
            )
        elif samples.shape[1:] != self.samples.rows.shape[1:]:
            raise InvalidInputError(
                f"X has samples of shape {tuple(samples.shape[1:])}; the stream so far has "
                f"{tuple(self.samples.rows.shape[1:])}"
            )
        if len(targets):
            self._keep(samples, torch.promote_types(targets.dtype, start.dtype), targets.device)
            self.has_start = initial is not None
        return self._wide(targets), self._wide(start)

    def _keep(self, samples: Tensor, dtype: torch.dtype, device: torch.device) -> None:
        """Appends samples whose targets have this dtype, which is never a reason to round."""
        before = self.samples.rows.dtype if len(self) else None
        self.samples.append(samples)
        if self.samples.rows.dtype != before:  # and so, perhaps, the kernel's
            newest = self.samples.rows[-1:]
            dtype = torch.promote_types(dtype, self._kernel(newest, newest).dtype)
        if self.dtype is None:
            self.dtype, self.device = dtype, device
        elif torch.promote_types(dtype, self.dtype) != self.dtype:
            began, goes_on = (str(one).removeprefix("torch.") for one in (self.dtype, dtype))
            raise InvalidInputError(
                f"the stream began in {began} and goes on in {goes_on}; nothing is down-cast "
                "silently: convert one of them"
            )

    def seen(self, rows: slice) -> Any:
        """What a sweep takes of these samples."""
        return self.kernel_rows(rows)

    def release(self, stop: int) -> None:
        """Says that the samples before this position are done with; here they are kept."""

    def kernel_rows(self, rows: slice) -> Tensor:
        """(m, rows.stop) kernel of these samples against all before them and themselves."""
        X = self.samples.rows
        K = self._kernel(X[rows], X[: rows.stop])
        require_finite("the kernel's result", K, first_row=rows.start)
        # before it is widened: a kernel in float32 is symmetric to the digits of float32
        require_symmetric("the kernel's result", K[:, rows.start :])
        return self._wide(K)

    def gram(self, rows: slice) -> Tensor:
        """The kernel of a range of samples among themselves."""
        X = self.samples.rows[rows]
        return self._wide(self._kernel(X, X))

    def give(self, result: Tensor) -> Any:
        """A result (m, c) in the caller's library and dtype, with as many axes as its targets."""
        result = result[:, 0] if self.flat else result
        return give_back(result, None if self.numpy else result, self.dtype)

    def _kernel(self, A: Tensor, B: Tensor) -> Tensor:
        """The kernel's value on samples handed to it in the caller's own library."""
        K = self.kernel(*(give_back(part, None if self.numpy else part) for part in (A, B)))
        return as_tensor("the kernel's result", K)

    def _wide(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self.device, dtype=self._wide_dtype(tensor))

    def _wide_dtype(self, tensor: Tensor) -> torch.dtype:
        # as in the batch functions: LAPACK knows no half precision
        return torch.promote_types(self.dtype or tensor.dtype, torch.float32)


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


def as_ridge(gamma: Any) -> float | Literal["auto"]:
    """A ridge, or the word that leaves the choice to cross-validation."""
    if isinstance(gamma, str) and gamma == "auto":
        return "auto"
    return as_non_negative("gamma", gamma)


def as_weights(weights: Any, count: int) -> Tensor | None:
    """(count,) weights in float64, or None where all are 1."""
    if weights is None:
        return None
    given = as_tensor("weights", weights).double()
    if given.ndim == 0:
        given = given.expand(count)
    if given.shape != (count,):
        raise InvalidInputError(
            f"weights has shape {tuple(given.shape)}; expected one number, or ({count},)"
        )
    if not bool(((given >= 1 / LARGEST_NUMBER) & (given <= LARGEST_NUMBER)).all()):
        raise InvalidInputError(
            "weights holds a number that is not above 0, or is too large; leave out samples that "
            "are not to count"
        )
    return given


def require_moderate(name: str, values: Tensor) -> None:
    """Refuses numbers whose products would overflow: the sums could not be repaired."""
    least, most = values.aminmax() if values.numel() else (values.new_zeros(()),) * 2
    if not (float(least) >= -LARGEST_NUMBER and float(most) <= LARGEST_NUMBER):
        raise InvalidInputError(
            f"{name} go from {float(least):.3g} to {float(most):.3g}; expected at most "
            f"{LARGEST_NUMBER:g}, as products of them are added up: scale them"
        )


def sample_size(X: Any) -> int:
    """Numbers in one of these samples."""
    return sum(math.prod(np.shape(leaf)[1:]) for leaf in leaves(X))
