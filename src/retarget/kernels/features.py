"""The kernel of explicit features."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from retarget.arrays import as_tensor, give_back, require_finite, require_float
from retarget.errors import InvalidInputError
from retarget.kernels.base import Kernel


class Features(Kernel):
    r"""$k(x, x') = \phi(x)^\top \phi(x')$ for a feature map of the caller's.

    Args:
        fn: Maps samples (n, ...) to features (n, m). It is handed, and may return, arrays of the
            library that the kernel is called with.

    Example:
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
