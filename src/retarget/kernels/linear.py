"""Kernels of linear models, with and without an intercept."""

from typing import Any

import torch
from torch import Tensor

from retarget.kernels.base import Kernel
from retarget.settings import in_plain_torch


class Linear(Kernel, name="linear"):
    r"""$k(x, x') = x^\top x'$: the kernel of a linear model without a bias.

    Use it for linear models. The same as scikit-learn's `linear_kernel`; costs one matrix product.

    Examples:
        >>> import numpy as np
        >>> Linear()(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]))
        array([[11.]])
    """

    exact_features = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def features(self, count: int, seed: int) -> "SampleValues":
        """The samples themselves, whatever the count."""
        return SampleValues(self)

    @in_plain_torch
    def values(self, X: Any) -> Tensor:
        """Returns the samples (n, d) whose products are the kernel."""
        return self._samples("X", X).flatten(1)

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        return A.flatten(1) @ B.flatten(1).mT

    def _diag(self, A: Tensor) -> Tensor:
        return A.flatten(1).square().sum(1)


class Affine(Linear, name="affine"):
    r"""$k(x, x') = 1 + x^\top x'$: the kernel of a linear model with an intercept.

    The intercept is a weight of a constant feature, so it is penalized and learned like the others.

    Examples:
        >>> import numpy as np
        >>> Affine()(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]))
        array([[12.]])
    """

    @in_plain_torch
    def values(self, X: Any) -> Tensor:
        """Returns the samples (n, d), and a 1 after each."""
        samples = super().values(X)
        return torch.cat([samples, samples.new_ones(len(samples), 1)], 1)

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        return super()._gram(A, B) + 1

    def _diag(self, A: Tensor) -> Tensor:
        return super()._diag(A) + 1


class SampleValues:
    """The samples as features. Not a bound method, because equal kernels have equal features."""

    def __init__(self, kernel: Linear) -> None:
        self.kernel = kernel

    def __call__(self, X: Any) -> Tensor:
        """(n, d) features."""
        return self.kernel.values(X)
