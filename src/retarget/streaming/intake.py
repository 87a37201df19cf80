"""Shared by all streaming objects: checking and keeping samples, saving and loading the state."""

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import (
    GrowingRows,
    as_targets,
    as_tensor,
    require_finite,
    require_memory,
    require_symmetric,
    shallow,
)
from retarget.engine.losses import Loss, check_loss, check_targets
from retarget.engine.primal import FeatureRows
from retarget.engine.response import require_lasting_start
from retarget.errors import InvalidInputError
from retarget.form import Form
from retarget.kernels import Kernel, as_kernel, kernel_from_dict
from retarget.kernels.feature_maps import feature_map
from retarget.learners import SGD
from retarget.locks import Lock
from retarget.settings import in_plain_torch
from retarget.state_files import (
    checksum,
    explained,
    part_of,
    read_state,
    require_shape,
    write_state,
)
from retarget.streaming.turns import in_turn

COMPARED = 32  # samples of a portion on which the features are compared with the kernel


def require_unchanged(what: str, now: Any, before: Any) -> None:
    """Raises if a size differs from that of the stream so far."""
    if now != before:
        raise InvalidInputError(f"{what} is {now}; expected {before}, as in the stream so far")


class Intake:
    """The samples so far, and their kernel."""

    def __init__(self, kernel: Any, learner: SGD, loss: Loss = "squared") -> None:
        check_loss(loss)
        self.kernel: Kernel = as_kernel(kernel)
        self.learner = learner
        self.loss = loss
        self.samples = GrowingRows()
        self.form = Form()  # of the caller's arrays; `_wide` is used to compute
        self.outputs = 0
        self.device = torch.device("cpu")
        self.has_start: bool | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and plain values."""
        state = self.form.state_dict()
        state |= {"outputs": self.outputs, "has_start": self.has_start}
        return state | ({"samples": self.samples.rows} if len(self) else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; call it on a new intake."""
        self.form = Form.from_state(state)
        self.outputs = int(state["outputs"])
        self.has_start = state["has_start"]
        if self.has_start not in (None, True, False) or self.outputs < 0:
            raise InvalidInputError(
                f"has_start is {self.has_start!r} and outputs is {self.outputs}"
            )
        if self.form.dtype is not None:  # None if there are no samples yet
            if self.outputs == 0:
                raise InvalidInputError(f"dtype is {self.form.dtype} and outputs is {self.outputs}")
            self._restore_samples(state["samples"])

    def _restore_samples(self, samples: Any) -> None:
        if not isinstance(samples, Tensor) or not len(samples):
            raise InvalidInputError("it contains no samples")
        self.samples.append(samples)
        self.device = samples.device

    def fork(self) -> Self:
        """Returns an independent copy that continues from here."""
        fork = shallow(self)
        fork.samples = self.samples.fork()
        return fork

    def take(self, X: Any, Y: Any, initial: Any = None) -> tuple[Tensor, Tensor]:
        """Checks and keeps new samples; returns their targets (m, c) and starting values (m, c).

        An error leaves the intake unusable, so call it on a `fork`.
        """
        first = len(self)
        samples = as_tensor("X", X)
        targets = as_targets("Y", Y, first_row=first)
        check_targets("Y", targets, self.loss, first_row=first)
        if samples.ndim == 0 or len(samples) != len(targets):
            rows = len(samples) if samples.ndim else "no"
            raise InvalidInputError(
                f"X has {rows} rows and Y has {len(targets)}; expected the same number of rows"
            )
        if samples.is_floating_point():
            require_finite("X", samples, first_row=first)
        start = self._start(initial, targets)
        if first == 0:
            self.form = Form(numpy=not isinstance(X, Tensor), flat=np.ndim(Y) == 1)
            self.outputs = targets.shape[1]
        else:
            require_unchanged("the number of outputs of Y", targets.shape[1], self.outputs)
            shapes = tuple(samples.shape[1:]), tuple(self.samples.rows.shape[1:])
            require_unchanged("the shape of the samples in X", *shapes)
        if len(targets):
            self._keep(samples, torch.promote_types(targets.dtype, start.dtype), targets.device)
            self.has_start = initial is not None
        return self._wide(targets), self._wide(start)

    def _start(self, initial: Any, targets: Tensor) -> Tensor:
        start = torch.zeros_like(targets)
        if initial is not None:
            start = as_targets("initial", initial, first_row=len(self))
            if start.shape != targets.shape:
                raise InvalidInputError(
                    f"initial has shape {np.shape(initial)}; expected one value for each target"
                )
            require_lasting_start(initial, self.learner)
        if self.has_start not in (None, initial is not None):
            raise InvalidInputError(
                "initial was given for only a part of the stream; give it always or never"
            )
        return start

    def _keep(self, samples: Tensor, dtype: torch.dtype, device: torch.device) -> None:
        """Appends samples whose targets have this dtype; raises if they had to be rounded."""
        before = self.samples.dtype
        self.samples.append(samples)
        if self.samples.dtype != before:  # then the kernel's dtype may have changed too
            newest = self.samples.rows[-1:]
            dtype = torch.promote_types(dtype, self._kernel(newest, newest).dtype)
        if self.form.dtype is None:
            self.form = replace(self.form, dtype=dtype)
            self.device = device
        elif torch.promote_types(dtype, self.form.dtype) != self.form.dtype:
            began, goes_on = (str(one).removeprefix("torch.") for one in (self.form.dtype, dtype))
            raise InvalidInputError(
                f"the stream began in {began} and continues in {goes_on}, which is never rounded "
                "silently; convert one of them"
            )

    def seen(self, rows: slice) -> Any:
        """Returns what a sweep needs to know about these samples: here, their kernel."""
        return self.kernel_rows(rows)

    def release(self, stop: int) -> None:
        """Called when the samples before this position are no longer needed; here it keeps them."""

    def kernel_rows(self, rows: slice) -> Tensor:
        """Returns the kernel (m, rows.stop) of these samples with all samples up to them."""
        X = self.samples.rows
        K = self._kernel(X[rows], X[: rows.stop])
        require_finite("the kernel's result", K, first_row=rows.start)
        # checked before widening: a float32 kernel is symmetric only to float32 precision
        own = K[:, rows.start :]
        if not torch.equal(own, own.mT):  # a tenth of the time, where it holds exactly
            require_symmetric("the kernel's result", own)
        return self._wide(K)

    @torch.inference_mode(False)  # a kernel may need gradients of its own: see `Sweep.learn`
    @torch.no_grad()
    def gram(self, rows: slice) -> Tensor:
        """Returns the kernel of a range of samples with itself."""
        X = self.samples.rows[rows]
        return self._wide(self._kernel(X, X))

    def in_library(self, tensor: Tensor) -> Any:
        """Converts a tensor to the caller's library."""
        return self.form.in_library(tensor)

    def give(self, result: Tensor) -> Any:
        """Converts a result (m, c) to the library, dtype and number of axes of the targets."""
        return self.form.give(result)

    def _kernel(self, A: Tensor, B: Tensor) -> Tensor:
        K = self.kernel(self.in_library(A), self.in_library(B))
        return as_tensor("the kernel's result", K)

    def _wide(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self.device, dtype=self.wide_dtype(tensor))

    def wide_dtype(self, tensor: Tensor) -> torch.dtype:
        """Returns the dtype to compute in: at least float32, as LAPACK has no half precision."""
        return torch.promote_types(self.form.dtype or tensor.dtype, torch.float32)


class BoundedIntake(Intake):
    """Keeps only the samples of the open block, and uses so many features instead of the kernel.

    Everything is computed in float64, whatever the dtype of the stream: sums over an endless
    stream lose digits, and their memory does not grow.
    """

    def __init__(self, kernel: Any, learner: SGD, features: int, seed: int) -> None:
        super().__init__(kernel, learner)
        self.map = feature_map(self.kernel, features, seed)
        self.kernel = self.map.kernel or self.kernel  # that of the network as it is now
        self.most = features
        self.seed = seed
        self.released = 0
        self.features = 0
        self._gap = self._size = 0.0  # sums of squares: the features' error, and the kernel
        if not self.map.exact:
            like = torch.empty(0, dtype=torch.float64, device="cpu")
            numbers = 4.0 * features**2
            require_memory(f"features={features:,}", numbers, like, "use fewer features")

    def __len__(self) -> int:
        return self.released + len(self.samples)

    @property
    def feature_error(self) -> float:
        """Relative Frobenius error of the features' inner products, on the pairs compared so far.

        NaN if none has been compared yet.
        """
        if self.map.exact:
            return 0.0
        return math.sqrt(self._gap / self._size) if self._size > 0 else math.nan

    def seen(self, rows: slice) -> FeatureRows:
        """Returns the features of these samples, which must not have been released."""
        X = self.samples.rows[rows.start - self.released : rows.stop - self.released]
        result = self._features(X)
        if not self.map.exact and len(X) > 1:
            few = X[:COMPARED]
            K = self._wide(self._kernel(few, few))
            approximate = result.gram[: len(few), : len(few)]
            self._gap += (approximate - K).square().sum().item()
            self._size += K.square().sum().item()
        return result

    def _features(self, X: Tensor) -> FeatureRows:
        Phi = self._wide(self.map(self.in_library(X)))
        count = Phi.shape[1]
        if self.map.exact and count > self.most:
            raise InvalidInputError(
                f"{self.kernel!r} has {count} features, more than features={self.most}; use "
                f"features={count} or more"
            )
        require_unchanged("the number of features of X", count, self.features or count)
        self.features = count
        result = FeatureRows(Phi)
        require_finite("the kernel of the features", result.gram)
        return result

    def release(self, stop: int) -> None:
        """Drops the samples before this position."""
        left = self.samples.rows[stop - self.released :].clone()
        self.samples = GrowingRows()
        self.samples.append(left)
        self.released = stop

    def fork(self) -> Self:
        """Returns an independent copy that continues from here."""
        fork = super().fork()
        fork.samples = self.samples.clone()
        return fork

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and plain values."""
        return super().state_dict() | {
            "released": self.released,
            "features": self.features,
            "described": self._described(),
            "error": [self._gap, self._size],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; call it on a new intake."""
        super().load_state_dict(state)
        self.released = int(state["released"])
        self.features = int(state["features"])
        self._gap, self._size = map(float, state["error"])
        if state["described"] != self._described():
            raise InvalidInputError(
                f"it was saved with the features {state['described']}, not {self._described()}"
            )
        possible = self.released >= 0 and 0 <= self._gap < math.inf and 0 <= self._size < math.inf
        if not possible or (self.features > 0) != (self.released > 0):
            raise InvalidInputError(
                f"released is {self.released}, features is {self.features} and error is "
                f"{state['error']}; expected features if samples were released, and sums of squares"
            )

    def _described(self) -> dict[str, Any] | None:
        """Identifies the features, as well as a file can."""
        kernel = self.map.kernel
        weights = {} if kernel is None else kernel.weights()
        if not weights:
            return self.map.description
        return {"weights": checksum(f"{kernel!r} {self.most} {self.seed}", weights)}

    def _restore_samples(self, samples: Any) -> None:
        shape = getattr(samples, "shape", (0,))[1:]
        self.samples.append(require_shape("samples", samples, None, *shape))
        self.device = samples.device

    def wide_dtype(self, tensor: Tensor) -> torch.dtype:
        """Returns the dtype to compute in."""
        return torch.float64


class Resumable(ABC):
    """A streaming object that can be forked, and saved to one safetensors file.

    Several threads may use it: what changes or reads its state is done one after the other.
    """

    OPTIONS: ClassVar[tuple[str, ...]]  # names of the constructor's other arguments
    _intake: Intake
    _turn: Lock  # shared with forks, which share arrays

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Makes an object with its own lock."""
        new = super().__new__(cls)
        new._turn = Lock()
        return new

    @abstractmethod
    def __init__(self, kernel: Any, learner: SGD, **options: Any) -> None: ...

    @abstractmethod
    def _parts(self) -> dict[str, Any]:
        """Returns the parts that have their own `state_dict`, by name; the intake comes first."""

    @abstractmethod
    def _rest(self) -> dict[str, Any]:
        """Returns the rest of the state."""

    @abstractmethod
    def _restore(self, state: dict[str, Any]) -> None:
        """Restores `_rest` after the parts have been restored, and checks all of them."""

    @abstractmethod
    def fork(self) -> Self:
        """Returns an independent copy that continues from here.

        It shares the long arrays until one of the two receives more samples.
        """

    def __len__(self) -> int:
        return len(self._intake)

    def _become(self, after: Self) -> None:
        """Replaces this object's state by that of a fork whose update succeeded."""
        self.__dict__ = after.__dict__  # one assignment: another thread finds all of it, or nothing

    @property
    @in_turn
    def samples(self) -> Any:
        """All samples so far, in stream order: a view, so do not write to it."""
        return self._intake.in_library(self._intake.samples.rows)

    @in_turn
    def save(self, path: str | Path) -> None:
        """Saves the whole state to one file; an older file is replaced only when it is complete.

        The file contains tensors (safetensors) and, in its header, plain values (JSON): loading it
        runs no code. It does not contain a kernel that is a function of your own.
        """
        state: dict[str, Any] = dict(self._rest())
        for name, part in self._parts().items():
            state |= {f"{name}.{key}": value for key, value in part.state_dict().items()}
        header = {
            "class": type(self).__name__,
            "options": {name: getattr(self, name) for name in self.OPTIONS},
            "learner": self._intake.learner.to_dict(),
            "kernel": self._intake.kernel.to_dict(),
            "state": {k: v for k, v in state.items() if not isinstance(v, Tensor)},
        }
        tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)}
        write_state(Path(path), header, tensors)

    @classmethod
    @in_plain_torch
    def load(cls, path: str | Path, kernel: Any = None, device: str | torch.device = "cpu") -> Self:
        """Loads a file written by `save`; the stream then continues as if never interrupted.

        Args:
            path: The file.
            kernel: The kernel, if a file cannot contain it (a function, features, a precomputed
                matrix); otherwise the saved one is used.
            device: The device to load the tensors to.
        """
        header, tensors = read_state(Path(path), device, cls.__name__)
        if kernel is None and header.get("kernel") is None:
            raise InvalidInputError(
                f"{path} was saved with a kernel that a file cannot contain; pass it again: "
                f"{cls.__name__}.load(path, kernel=...)"
            )
        with explained(path, cls.__name__):
            given = kernel_from_dict(header["kernel"]) if kernel is None else kernel
            loaded = cls(given, SGD(**header["learner"]), **header["options"])
            state = header["state"] | tensors
            loaded._intake.load_state_dict(part_of(state, "intake"))
            for name, tensor in tensors.items():
                require_finite(name, tensor)
                if name != "intake.samples" and tensor.dtype != loaded._intake.wide_dtype(tensor):
                    raise InvalidInputError(f"{name} has dtype {tensor.dtype}")
            for name, part in list(loaded._parts().items())[1:]:
                part.load_state_dict(part_of(state, name))
            loaded._restore(state)
        saved = header["kernel"]
        used = loaded._intake.kernel.to_dict()
        if saved != used:
            raise InvalidInputError(f"{path} was saved with the kernel {saved}, not {used}")
        return loaded
