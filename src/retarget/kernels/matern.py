"""The Matern kernels of smoothness 3/2 and 5/2."""

import math
from typing import ClassVar

from torch import Tensor

from retarget.errors import own_constructor
from retarget.kernels.stationary import Stationary, squared_distances


class Matern(Stationary):
    r"""The part that both have: their frequencies have a multivariate Student distribution.

    With $\nu$ the smoothness and $z, u_1, ..., u_{2\nu}$ standard normal, $\omega = z \, \sqrt{2
    \nu / \sum_i u_i^2}$, where all columns of a sample have the $u_i$ in common.
    """

    @staticmethod
    def frequencies(normals: Tensor, shared: Tensor) -> Tensor:
        """Student's distribution with twice the smoothness as its degrees of freedom."""
        return normals * (len(shared) / shared.square().sum(0)).sqrt()

    def _scaled_distances(self, A: Tensor, B: Tensor) -> Tensor:
        r"""Returns $\sqrt{2\nu} \, \|x - x'\| / \text{width}$."""
        width = self.width_for(A[0].numel())
        scale = math.sqrt(self.SHARED_NORMALS) / width
        return squared_distances(A, B).sqrt_().mul_(scale)


@own_constructor
class Matern32(Matern, name="matern32"):
    r"""The Matern kernel $k(x, x') = (1 + r) e^{-r}$ with $r = \sqrt 3 \|x - x'\| / \text{width}$.

    Use it for functions that are less smooth than `RBF` expects, with a derivative but no second
    one. It is scikit-learn's `Matern(length_scale=width, nu=1.5)`, and costs one matrix product.

    Args:
        width: The length scale; `"auto"` for the root of the number of values in a sample.

    Examples:
        >>> import numpy as np, retarget as rt
        >>> rt.Matern32(width=2.0)(np.array([0.0, 2.0])).round(4)
        array([[1.    , 0.4834],
               [0.4834, 1.    ]])
    """

    SHARED_NORMALS: ClassVar[int] = 3

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        r = self._scaled_distances(A, B)
        return (1 + r).mul_(r.neg_().exp_())


@own_constructor
class Matern52(Matern, name="matern52"):
    r"""The Matern kernel $(1 + r + r^2/3) e^{-r}$ with $r = \sqrt 5 \|x - x'\| / \text{width}$.

    Between `Matern32` and `RBF`: for functions with two derivatives. It is scikit-learn's
    `Matern(length_scale=width, nu=2.5)`, and costs one matrix product.

    Args:
        width: The length scale; `"auto"` for the root of the number of values in a sample.

    Examples:
        >>> import numpy as np, retarget as rt
        >>> rt.Matern52(width=2.0)(np.array([0.0, 2.0])).round(4)
        array([[1.   , 0.524],
               [0.524, 1.   ]])
    """

    SHARED_NORMALS: ClassVar[int] = 5

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        r = self._scaled_distances(A, B)
        return (1 + r + r.square() / 3).mul_(r.neg_().exp_())
