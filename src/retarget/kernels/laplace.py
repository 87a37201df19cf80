"""The Laplace kernel."""

import math

import torch
from torch import Tensor

from retarget.errors import own_constructor
from retarget.kernels.stationary import Stationary


@own_constructor
class Laplace(Stationary, name="laplace"):
    r"""The Laplace kernel $k(x, x') = \exp(-\sum_j |x_j - x'_j| / \text{width})$.

    Use it for functions with edges, and if outliers in single columns should count less than with
    `RBF`. It is scikit-learn's `laplacian_kernel` with `gamma = 1 / width`. A Gram matrix of n
    samples with d features takes n^2 d differences, which is slower than a matrix product.

    Args:
        width: The distance, summed over the columns, at which the kernel has fallen to 1/e;
            `"auto"` for the number of values in a sample, scikit-learn's default.

    Examples:
        >>> import numpy as np, retarget as rt
        >>> rt.Laplace(width=2.0)(np.array([0.0, 2.0])).round(4)
        array([[1.    , 0.3679],
               [0.3679, 1.    ]])
    """

    @staticmethod
    def frequencies(normals: Tensor, shared: Tensor) -> Tensor:
        """A Cauchy distribution for every column: tan of a uniform angle."""
        uniform = torch.special.ndtr(normals)
        return torch.tan(math.pi * (uniform - 0.5))

    @classmethod
    def usual_width(cls, columns: int) -> float:
        """Returns a width for standardized samples: distances grow with the number of columns."""
        return float(columns)

    @classmethod
    def _pairwise_distances(cls, X: Tensor) -> Tensor:
        return torch.pdist(X, p=1)

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        distances = torch.cdist(A.flatten(1), B.flatten(1), p=1)
        return distances.div_(-self.width_for(A[0].numel())).exp_()
