"""Kernels that are given as functions, as names of scikit-learn's, or as a matrix."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from retarget.arrays import (
    as_gram,
    as_tensor,
    give_back,
    panels,
    require_finite,
    require_float,
    require_symmetric,
)
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.kernels.base import Kernel
from retarget.samples import take
from retarget.settings import in_plain_torch


class CallableKernel(Kernel):
    """A kernel of your own, given as a function `k(A, B) -> (len(A), len(B))`.

    The function receives the arrays as you pass them to the kernel, NumPy or torch.

    Examples:
        >>> import numpy as np
        >>> CallableKernel(lambda A, B: (1 + A @ B.T) ** 2).diag(np.array([[1.0], [2.0]]))
        array([ 4., 25.])
    """

    def __init__(self, fn: Callable[[Any, Any], Any]) -> None:
        self.fn = fn

    def __repr__(self) -> str:
        return f"CallableKernel({getattr(self.fn, '__name__', self.fn)!s})"

    @in_plain_torch
    def __call__(self, A: Any, B: Any = None) -> Any:
        """Calls the function and checks its result."""
        other = A if B is None else B
        K = as_tensor("the kernel's result", self.fn(A, other))
        require_float("the kernel's result", K, "have it return real numbers")
        if K.shape != (len(A), len(other)):
            raise InvalidInputError(
                f"the kernel returned shape {tuple(K.shape)} for {len(A)} and {len(other)} "
                f"samples; expected ({len(A)}, {len(other)})"
            )
        require_finite("the kernel's result", K)
        if B is None:
            require_symmetric("the kernel's result", K)
        return give_back(K, A)

    @in_plain_torch
    def diag(self, A: Any) -> Any:
        """The diagonal, a panel of samples at a time."""
        portions = (take(A, rows) for rows in panels(len(A), 1, torch.device("cpu")))
        parts = [
            as_tensor("the kernel's result", self(portion, portion)).diagonal()
            for portion in portions
        ]
        return give_back(torch.cat(parts), A)

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        return as_tensor("the kernel's result", self(A, B))

    def _diag(self, A: Tensor) -> Tensor:
        return as_tensor("the kernel's result", self.diag(A))


class SklearnKernel(CallableKernel, kind="SklearnKernel"):
    """One of scikit-learn's pairwise kernels, by name, with its parameters.

    Equivalent to `sklearn.metrics.pairwise.pairwise_kernels(A, B, metric=name, **parameters)`.

    Examples:
        >>> import numpy as np
        >>> SklearnKernel("polynomial", degree=2, gamma=1.0)(np.array([[1.0]]), np.array([[2.0]]))
        array([[9.]])
    """

    def __init__(self, name: str, **parameters: Any) -> None:
        from sklearn.metrics.pairwise import PAIRWISE_KERNEL_FUNCTIONS

        if name not in PAIRWISE_KERNEL_FUNCTIONS:
            names = ", ".join(sorted(PAIRWISE_KERNEL_FUNCTIONS))
            raise InvalidInputError(f"kernel is {name!r}; expected a scikit-learn kernel: {names}")
        self.metric = name
        self.parameters = parameters
        super().__init__(partial(_pairwise, metric=name, **parameters))  # unlike a closure, pickles

    def __repr__(self) -> str:
        arguments = [repr(self.metric), *(f"{k}={v!r}" for k, v in self.parameters.items())]
        return f"SklearnKernel({', '.join(arguments)})"

    def to_dict(self) -> dict[str, Any]:
        """The kernel as plain values."""
        return {"kind": "SklearnKernel", "name": self.metric, **self.parameters}


def _pairwise(A: Any, B: Any, **parameters: Any) -> Any:
    from sklearn.metrics.pairwise import pairwise_kernels

    left, right = (as_tensor("samples", samples).cpu().numpy() for samples in (A, B))
    return pairwise_kernels(left, right, **parameters)


class PrecomputedKernel(Kernel):
    """A Gram matrix computed in advance; samples are then its row numbers.

    Use it if the matrix is given or expensive, as with scikit-learn's `kernel="precomputed"`. It
    keeps a copy of the matrix.

    Examples:
        >>> import numpy as np
        >>> PrecomputedKernel(np.array([[2.0, 1.0], [1.0, 3.0]]))(np.array([1]), np.array([0, 1]))
        array([[1., 3.]])
    """

    takes_new_samples = False

    def __init__(self, K: Any) -> None:
        gram = as_gram(K)
        require_symmetric("K", gram)
        self.K = gram.clone()

    def __repr__(self) -> str:
        return f"PrecomputedKernel({len(self.K)} x {len(self.K)})"

    def _samples(self, name: str, value: Any) -> Tensor:
        rows = as_tensor(name, value)
        if rows.ndim != 1 or rows.is_floating_point() or rows.dtype == torch.bool:
            raise InvalidTypeError(
                f"{name} has dtype {rows.dtype} and shape {tuple(rows.shape)}; with a precomputed "
                "K, samples are its row numbers: expected a flat array of integers"
            )
        least, most = map(int, rows.aminmax()) if rows.numel() else (0, 0)
        if not 0 <= least <= most < self.K.shape[0]:
            raise InvalidInputError(
                f"{name} has row numbers from {least} to {most}; expected "
                f"0 to {len(self.K) - 1}, the rows of the precomputed K"
            )
        return rows.to(device=self.K.device, dtype=torch.int64)

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        rows = _as_slice(A)
        columns = _as_slice(B)
        if rows is not None and columns is not None:  # a stream in order: nothing to look up
            return self.K[rows, columns].clone()
        if 6 * B.shape[0] < self.K.shape[0]:
            return self.K[A[:, None], B[None, :]]
        return self.K[A].gather(1, B.expand(A.shape[0], -1))  # whole rows: a third of the time

    def _diag(self, A: Tensor) -> Tensor:
        return self.K.diagonal()[A]


def _as_slice(rows: Tensor) -> slice | None:
    """Consecutive row numbers as a slice; None for others."""
    if not rows.numel():
        return None
    span = slice(int(rows[0]), int(rows[0]) + rows.shape[0])
    consecutive = torch.arange(span.start, span.stop, device=rows.device)
    return span if torch.equal(rows, consecutive) else None
