"""The base class of kernels, kernels with a formula, and wrappers for functions and matrices."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from retarget.arrays import (
    ArrayT,
    as_gram,
    as_positive,
    as_tensor,
    give_back,
    panels,
    require_finite,
    require_float,
    require_symmetric,
)
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.samples import Samples, library_of, shapes_of, take
from retarget.settings import in_plain_torch


class Kernel(ABC):
    """Base class of kernels: positive semi-definite functions of two samples.

    Call a kernel with samples as rows to get a matrix, as from scikit-learn's `rbf_kernel`.
    """

    @in_plain_torch
    def __call__(self, A: ArrayT, B: ArrayT | None = None) -> ArrayT:
        """Returns the kernel (len(A), len(B)) between the rows of A and B; B defaults to A.

        `kernel(A)` is symmetric to the last bit.
        """
        left = self._samples("A", A)
        if B is None:
            K = self._symmetric_gram(left)
        else:
            right = self._samples("B", B)
            if shapes_of(left) != shapes_of(right):
                raise InvalidInputError(
                    f"A has samples of shape {shapes_of(left)}, but B of {shapes_of(right)}; "
                    "expected the same features in both"
                )
            if isinstance(left, Tensor) and left.is_floating_point() and right.is_floating_point():
                wider = torch.promote_types(left.dtype, right.dtype)  # nothing loses digits
                left, right = left.to(wider), right.to(wider)
            K = self._gram(left, right)
        result: ArrayT = give_back(K, library_of(A))
        return result

    @in_plain_torch
    def diag(self, A: ArrayT) -> ArrayT:
        """(len(A),) k(x, x) for each row."""
        result: ArrayT = give_back(self._diag(self._samples("A", A)), library_of(A))
        return result

    def to_dict(self) -> dict[str, Any] | None:
        """Returns plain values for `kernel_from_dict`; None if the kernel has no such form."""
        return None

    def _symmetric_gram(self, A: Samples) -> Tensor:
        """The Gram matrix, symmetric to the last bit; a kernel may compute half of it."""
        return mirror_lower(self._gram(A, A))

    @abstractmethod
    def _gram(self, A: Samples, B: Samples) -> Tensor: ...

    @abstractmethod
    def _diag(self, A: Samples) -> Tensor: ...

    def _samples(self, name: str, value: Any) -> Tensor:
        """Converts samples for the methods above: to a tensor, unless a kernel takes others."""
        samples = as_tensor(name, value)
        require_float(name, samples, "convert the features first")
        if samples.ndim == 0:
            raise InvalidInputError(f"{name} is a single number; expected one row per sample")
        require_finite(name, samples)
        return samples[:, None] if samples.ndim == 1 else samples


def mirror_lower(K: Tensor) -> Tensor:
    """Copies the lower triangle over the upper one, in place."""
    for rows in panels(len(K), 1, K.device):
        K[rows, rows.stop :] = K[rows.stop :, rows].mT
        block = K[rows, rows]
        block.copy_(block.tril() + block.tril(-1).mT)
    return K


# Samples whose distances are computed: half a million pairs are enough for the median.
MEDIAN_SAMPLES = 1000


class RBF(Kernel):
    r"""The radial basis function $k(x, x') = \exp(-\|x - x'\|^2 / \text{width}^2)$.

    The usual choice for features of comparable scale. A Gram matrix of n samples with d features
    is one matrix product, n^2 d multiplications. This is the paper's form (appendix B.1); in
    scikit-learn's `rbf_kernel` it is `gamma = 1 / width**2`.

    Args:
        width: The distance at which the kernel has fallen to 1/e.

    Examples:
        >>> import numpy as np
        >>> RBF(width=2.0)(np.array([0.0, 2.0])).round(4)
        array([[1.    , 0.3679],
               [0.3679, 1.    ]])
    """

    def __init__(self, width: float) -> None:
        self.width = as_positive("width", width)

    def __repr__(self) -> str:
        return f"RBF(width={self.width:g})"

    def to_dict(self) -> dict[str, Any]:
        """The kernel as plain values."""
        return {"kind": "RBF", "width": self.width}

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        # |a - b|^2 = |a|^2 + |b|^2 - 2ab is one matrix product; images and other nested features
        # count as one long vector. Centered first, so that the cancellation costs no digits when
        # the data lie far from the origin.
        A, B = A.flatten(1), B.flatten(1)
        same, center = A is B, B.mean(dim=0)
        A, B = A - center, B - center
        squares = A.square().sum(1)[:, None] + B.square().sum(1)[None, :]
        squares.addmm_(A, B.mT, alpha=-2).clamp_(min=0)
        if same:
            squares.fill_diagonal_(0)
        return squares.div_(self.width).div_(-self.width).exp_()  # width**2 may overflow

    def _diag(self, A: Tensor) -> Tensor:
        return A.new_ones(len(A))


def median_distance(X: Tensor) -> float | None:
    """The median distance between samples that differ, a common width; None if all are equal.

    It uses at most 1,000 samples, evenly spaced.

    Examples:
        >>> median_distance(torch.tensor([[0.0], [1.0], [1.0], [3.0]]))
        2.0
    """
    stride = -(-len(X) // MEDIAN_SAMPLES)
    distances = torch.pdist(X[::stride].flatten(1).double())
    distances = distances[distances > 0]
    # numpy's median of an even number is the mean of the two in the middle, torch's is not
    return float(np.median(distances.cpu().numpy())) if len(distances) else None


class Linear(Kernel):
    r"""$k(x, x') = x^\top x'$: the kernel of a linear model without a bias.

    Use it for linear models. The same as scikit-learn's `linear_kernel`; costs one matrix product.

    Examples:
        >>> import numpy as np
        >>> Linear()(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]))
        array([[11.]])
    """

    def __repr__(self) -> str:
        return "Linear()"

    def to_dict(self) -> dict[str, Any]:
        """The kernel as plain values."""
        return {"kind": "Linear"}

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        return A.flatten(1) @ B.flatten(1).mT

    def _diag(self, A: Tensor) -> Tensor:
        return A.flatten(1).square().sum(1)


class Features(Kernel):
    r"""$k(x, x') = \phi(x)^\top \phi(x')$ for a feature map of your own.

    Use it for a frozen backbone, random features, or any scikit-learn transformer
    (`Features(scaler.transform)`). Every call computes the features of its samples again.

    Args:
        fn: Maps samples (n, ...) to features (n, m). It receives, and may return, arrays of the
            library that the kernel is called with.

    Examples:
        >>> import numpy as np
        >>> Features(lambda x: np.hstack([x, x**2]))(np.array([[2.0]]), np.array([[3.0]]))
        array([[42.]])
    """

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        if not callable(fn):
            raise InvalidInputError(f"fn is {fn!r}; expected a function from samples to features")
        self.fn = fn

    def __repr__(self) -> str:
        return f"Features({getattr(self.fn, '__name__', self.fn)!s})"

    @in_plain_torch
    def values(self, name: str, value: Any) -> Tensor:
        """Returns what the function makes of samples, unchecked."""
        return as_tensor("features", self.fn(give_back(super()._samples(name, value), value)))

    def _samples(self, name: str, value: Any) -> Tensor:
        features = self.values(name, value)
        require_features(features, len(value))
        return features

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        return A @ B.mT

    def _diag(self, A: Tensor) -> Tensor:
        return A.square().sum(1)


def require_features(features: Tensor, n: int, first_row: int = 0) -> None:
    """Rejects anything but one row of finite features for each of n samples."""
    require_float("features", features, "have the feature map return real numbers")
    if features.ndim != 2 or len(features) != n:
        raise InvalidInputError(
            f"the feature map returned shape {tuple(features.shape)} for {n} samples; expected "
            f"({n}, number of features)"
        )
    require_finite("the feature map's result", features, first_row)


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


class SklearnKernel(CallableKernel):
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
        self.name, self.parameters = name, parameters
        super().__init__(partial(_pairwise, metric=name, **parameters))  # unlike a closure, pickles

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
    """A Gram matrix computed in advance; samples are then its row numbers.

    Use it if the matrix is given or expensive, as with scikit-learn's `kernel="precomputed"`. It
    keeps a copy of the matrix.

    Examples:
        >>> import numpy as np
        >>> PrecomputedKernel(np.array([[2.0, 1.0], [1.0, 3.0]]))(np.array([1]), np.array([0, 1]))
        array([[1., 3.]])
    """

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
        rows, columns = _as_slice(A), _as_slice(B)
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


def as_kernel(kernel: Any) -> Kernel:
    """Makes a kernel from a function, the name of a scikit-learn kernel or a Gram matrix.

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
    if isinstance(kernel, nn.Module):
        raise InvalidTypeError(
            f"kernel is a {type(kernel).__name__}, a network; expected a kernel: "
            "rt.EmpiricalNTK(network), its tangent kernel, or rt.Features(network), the products "
            "of its outputs"
        )
    if callable(kernel):
        return CallableKernel(kernel)
    raise InvalidTypeError(
        f"kernel is {kernel!r}; expected a retarget kernel, a function k(A, B), the name of a "
        "scikit-learn kernel or a precomputed matrix"
    )


def kernel_from_dict(description: dict[str, Any]) -> Kernel:
    """Rebuilds the kernel that `Kernel.to_dict` described."""
    from retarget.kernels.infinite.ntk import InfiniteNTK  # which is a `Kernel` itself

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
