"""The kernel of a feature map."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from retarget.arrays import as_tensor, give_back, require_finite, require_float
from retarget.errors import InvalidInputError
from retarget.kernels.base import Kernel
from retarget.settings import in_plain_torch


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

    exact_features = True

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        if not callable(fn):
            raise InvalidInputError(f"fn is {fn!r}; expected a function from samples to features")
        self.fn = fn

    def __repr__(self) -> str:
        return f"Features({getattr(self.fn, '__name__', self.fn)!s})"

    def features(self, count: int, seed: int) -> "FunctionValues":
        """The function's features, whatever the count."""
        return FunctionValues(self)

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


class FunctionValues:
    """What the function of a kernel makes of samples, unchecked."""

    def __init__(self, kernel: Features) -> None:
        self.kernel = kernel

    def __call__(self, X: Any) -> Tensor:
        """(n, m) features."""
        return self.kernel.values("X", X)


def require_features(features: Tensor, n: int, first_row: int = 0) -> None:
    """Rejects anything but one row of finite features for each of n samples."""
    require_float("features", features, "have the feature map return real numbers")
    if features.ndim != 2 or len(features) != n:
        raise InvalidInputError(
            f"the feature map returned shape {tuple(features.shape)} for {n} samples; expected "
            f"({n}, number of features)"
        )
    require_finite("the feature map's result", features, first_row)
