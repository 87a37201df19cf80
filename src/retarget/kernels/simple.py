"""What a kernel is, and those with a formula: Gaussian, linear, of the caller's own features."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import (
    ArrayT,
    as_positive,
    as_tensor,
    give_back,
    panels,
    require_finite,
    require_float,
)
from retarget.errors import InvalidInputError
from retarget.samples import Samples, library_of, shapes_of


class Kernel(ABC):
    """A positive semi-definite function of two samples. Samples are rows."""

    @torch.no_grad()
    def __call__(self, A: ArrayT, B: ArrayT | None = None) -> ArrayT:
        """The kernel between the rows of A and of B, (len(A), len(B)); of A with itself without B.

        `kernel(A)` is symmetric to the last bit.
        """
        left = self._samples("A", A)
        result: ArrayT
        if B is None:
            result = give_back(self._symmetric_gram(left), library_of(A))
            return result
        right = self._samples("B", B)
        if shapes_of(left) != shapes_of(right):
            raise InvalidInputError(
                f"A has samples of shape {shapes_of(left)}, B of {shapes_of(right)}; "
                "expected the same features in both"
            )
        result = give_back(self._gram(left, right), library_of(A))
        return result

    @torch.no_grad()
    def diag(self, A: ArrayT) -> ArrayT:
        """(len(A),) k(x, x) for each row."""
        result: ArrayT = give_back(self._diag(self._samples("A", A)), library_of(A))
        return result

    def to_dict(self) -> dict[str, Any] | None:
        """What `kernel_from_dict` makes it again from; None where that cannot be written down."""
        return None

    def _symmetric_gram(self, A: Samples) -> Tensor:
        """The Gram matrix, symmetric to the last bit; for kernels that need compute only half."""
        return mirror_lower(self._gram(A, A))

    @abstractmethod
    def _gram(self, A: Samples, B: Samples) -> Tensor: ...

    @abstractmethod
    def _diag(self, A: Samples) -> Tensor: ...

    def _samples(self, name: str, value: Any) -> Tensor:
        """What the methods above are given: a tensor, but for kernels that take other samples."""
        samples = as_tensor(name, value)
        require_float(name, samples, "convert the features first")
        if samples.ndim == 0:
            raise InvalidInputError(f"{name} is a single number; expected samples as rows")
        require_finite(name, samples)
        return samples[:, None] if samples.ndim == 1 else samples


def mirror_lower(K: Tensor) -> Tensor:
    """Copies the lower triangle over the upper one, in place."""
    for rows in panels(len(K), 1, K.device):
        K[rows, rows.stop :] = K[rows.stop :, rows].mT
        block = K[rows, rows]
        block.copy_(block.tril() + block.tril(-1).mT)
    return K


# Samples whose distances are looked at: half a million pairs tell the median well enough.
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
        # |a - b|^2 = |a|^2 + |b|^2 - 2ab is one matrix product; features of images and the like
        # count as one long vector. Centred first, so that the cancellation costs no digits when
        # the data lie far from the origin.
        A, B = A.flatten(1), B.flatten(1)
        same, centre = A is B, B.mean(dim=0)
        A, B = A - centre, B - centre
        squares = A.square().sum(1)[:, None] + B.square().sum(1)[None, :]
        squares.addmm_(A, B.mT, alpha=-2).clamp_(min=0)
        if same:
            squares.fill_diagonal_(0)
        return squares.div_(self.width).div_(-self.width).exp_()  # width**2 may overflow

    def _diag(self, A: Tensor) -> Tensor:
        return A.new_ones(len(A))


def median_distance(X: Tensor) -> float | None:
    """A usual width: the median distance between samples that differ; None if none do.

    Of many samples, at most 1,000 are looked at, evenly spaced.

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

    The same as scikit-learn's `linear_kernel`; a matrix product.

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
    r"""$k(x, x') = \phi(x)^\top \phi(x')$ for a feature map of the caller's.

    Use it for a frozen backbone, random features, or any transformer of scikit-learn
    (`Features(scaler.transform)`). Each call computes the features of its samples anew.

    Args:
        fn: Maps samples (n, ...) to features (n, m). It is handed, and may return, arrays of the
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

    def _samples(self, name: str, value: Any) -> Tensor:
        samples = super()._samples(name, value)
        features = as_tensor("features", self.fn(give_back(samples, value)))
        require_float("features", features, "have the feature map return real numbers")
        if features.ndim != 2 or len(features) != len(samples):
            raise InvalidInputError(
                f"the feature map returned shape {tuple(features.shape)} for {len(samples)} "
                f"samples; expected ({len(samples)}, number of features)"
            )
        require_finite("the feature map's result", features)
        return features

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        return A @ B.mT

    def _diag(self, A: Tensor) -> Tensor:
        return A.square().sum(1)
