"""The Gaussian kernel."""

import math

from torch import Tensor

from retarget.errors import own_constructor
from retarget.kernels.stationary import Stationary, squared_distances


@own_constructor
class RBF(Stationary, name="rbf"):
    r"""The radial basis function $k(x, x') = \exp(-\|x - x'\|^2 / \text{width}^2)$.

    The usual choice for features of comparable scale. A Gram matrix of n samples with d features
    is one matrix product, n^2 d multiplications. This is the paper's form (appendix B.1); in
    scikit-learn's `rbf_kernel` it is `gamma = 1 / width**2`.

    Args:
        width: The distance at which the kernel has fallen to 1/e; `"auto"` for the root of the
            number of values in a sample, scikit-learn's default.

    Examples:
        >>> import numpy as np, retarget as rt
        >>> rt.RBF(width=2.0)(np.array([0.0, 2.0])).round(4)
        array([[1.    , 0.3679],
               [0.3679, 1.    ]])
    """

    @staticmethod
    def frequencies(normals: Tensor, shared: Tensor) -> Tensor:
        """A Gaussian of variance 2."""
        return math.sqrt(2) * normals

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        squares = squared_distances(A, B)
        width = self.width_for(A[0].numel())
        return squares.div_(width).div_(-width).exp_()  # width**2 may overflow
