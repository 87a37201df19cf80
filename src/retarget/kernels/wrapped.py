"""Anything that can serve as a kernel: a function, a scikit-learn name, a matrix."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import (
    as_tensor,
    give_back,
    panels,
    require_finite,
    require_float,
    require_symmetric,
)
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.kernels.infinite.ntk import InfiniteNTK
from retarget.kernels.simple import RBF, Kernel, Linear


class CallableKernel(Kernel):
    """A kernel given as a function `k(A, B) -> (len(A), len(B))`.

    The function is handed the arrays as the caller gave them, NumPy or torch.

    Examples:
        >>> import numpy as np
        >>> CallableKernel(lambda A, B: (1 + A @ B.T) ** 2).diag(np.array([[1.0], [2.0]]))
        array([ 4., 25.])
    """

    def __init__(self, fn: Callable[[Any, Any], Any]) -> None:
        self.fn = fn

    def __repr__(self) -> str:
        return f"CallableKernel({getattr(self.fn, '__name__', self.fn)!s})"

    def __call__(self, A: Any, B: Any = None) -> Any:
        """The function's own value, checked."""
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

    def diag(self, A: Any) -> Any:
        """The diagonal, a panel of samples at a time."""
        parts = [
            as_tensor("the kernel's result", self(A[rows], A[rows])).diagonal()
            for rows in panels(len(A), 1, torch.device("cpu"))
        ]
        return give_back(torch.cat(parts), A)

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        return as_tensor("the kernel's result", self(A, B))

    def _diag(self, A: Tensor) -> Tensor:
        return as_tensor("the kernel's result", self.diag(A))


class SklearnKernel(CallableKernel):
    """One of scikit-learn's pairwise kernels, by name, with its parameters.

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
        self.name, self.parameters = name, parameters
        super().__init__(partial(_pairwise, metric=name, **parameters))  # and not a closure: pickle

    def __repr__(self) -> str:
        arguments = [repr(self.name), *(f"{k}={v!r}" for k, v in self.parameters.items())]
        return f"SklearnKernel({', '.join(arguments)})"

    def to_dict(self) -> dict[str, Any]:
        """The kernel as plain values."""
        return {"kind": "SklearnKernel", "name": self.name, **self.parameters}


def _pairwise(A: Any, B: Any, **parameters: Any) -> Any:
    from sklearn.metrics.pairwise import pairwise_kernels

    left, right = (as_tensor("samples", part).cpu().numpy() for part in (A, B))
    return pairwise_kernels(left, right, **parameters)


class PrecomputedKernel(Kernel):
    """A Gram matrix computed beforehand: samples are then its row numbers.

    Examples:
        >>> import numpy as np
        >>> PrecomputedKernel(np.array([[2.0, 1.0], [1.0, 3.0]]))(np.array([1]), np.array([0, 1]))
        array([[1., 3.]])
    """

    def __init__(self, K: Any) -> None:
        gram = as_tensor("K", K)
        require_float("K", gram, "convert it first")
        if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
            raise InvalidInputError(f"K has shape {tuple(gram.shape)}; expected (n, n)")
        require_finite("K", gram)
        require_symmetric("K", gram)
        self.K = gram

    def __repr__(self) -> str:
        return f"PrecomputedKernel({len(self.K)} x {len(self.K)})"

    def _samples(self, name: str, value: Any) -> Tensor:
        rows = as_tensor(name, value)
        if rows.ndim != 1 or rows.is_floating_point() or rows.dtype == torch.bool:
            raise InvalidTypeError(
                f"{name} has dtype {rows.dtype} and shape {tuple(rows.shape)}; with a precomputed "
                "K, samples are its row numbers: expected a flat array of integers"
            )
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self.K):
            raise InvalidInputError(
                f"{name} has row numbers from {int(rows.min())} to {int(rows.max())}; expected "
                f"0 to {len(self.K) - 1}, the rows of the precomputed K"
            )
        return rows.to(device=self.K.device, dtype=torch.int64)

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        return self.K[A[:, None], B[None, :]]

    def _diag(self, A: Tensor) -> Tensor:
        return self.K.diagonal()[A]


def as_kernel(kernel: Any) -> Kernel:
    """A kernel from whatever serves as one.

    Args:
        kernel: A `Kernel`; a function `k(A, B)`; the name of a scikit-learn pairwise kernel; or a
            precomputed Gram matrix, for which samples are row numbers.

    Examples:
        >>> as_kernel("laplacian")
        SklearnKernel('laplacian')
    """
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str):
        return SklearnKernel(kernel)
    if isinstance(kernel, np.ndarray | Tensor):
        return PrecomputedKernel(kernel)
    if callable(kernel):
        return CallableKernel(kernel)
    raise InvalidTypeError(
        f"kernel is {kernel!r}; expected a retarget kernel, a function k(A, B), the name of a "
        "scikit-learn kernel or a precomputed matrix"
    )


def kernel_from_dict(description: dict[str, Any]) -> Kernel:
    """The kernel that `Kernel.to_dict` described."""
    parameters = dict(description)
    kind = parameters.pop("kind", None)
    kinds: dict[Any, Callable[..., Kernel]] = {
        "InfiniteNTK": InfiniteNTK.from_dict,
        "RBF": RBF,
        "Linear": Linear,
        "SklearnKernel": SklearnKernel,
    }
    if kind not in kinds:
        raise InvalidInputError(f"kernel kind is {kind!r}; expected one of {sorted(kinds)}")
    return kinds[kind](**parameters)
