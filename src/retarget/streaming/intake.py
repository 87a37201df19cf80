"""What every streaming object does with the samples it is fed: check, keep, compare."""

import copy
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import (
    FLOATS,
    GrowingRows,
    as_targets,
    as_tensor,
    give_back,
    require_finite,
    require_symmetric,
)
from retarget.errors import InvalidInputError
from retarget.kernels import Kernel, as_kernel
from retarget.learners import SGD
from retarget.theory.response import require_lasting_start


class Intake:
    """The samples so far, and their kernel.

    Args:
        kernel: Anything that `as_kernel` takes.
        learner: The online learner.
    """

    def __init__(self, kernel: Any, learner: SGD) -> None:
        self.kernel: Kernel = as_kernel(kernel)
        self.learner = learner
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
        """Checks new samples and keeps them; their targets (m, c) less the start, and the start.

        After a portion that is refused the intake is of no more use: take it in with a `fork`.
        """
        samples, targets = as_tensor("X", X), as_targets("Y", Y, first_row=len(self))
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
        return self._wide(targets - start), self._wide(start)

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
