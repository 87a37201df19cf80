r"""Ridge regression with explicit features, from sums over samples.

The weights solve $(\gamma I + \Phi^\top \Phi)\, \theta = \Phi^\top Y$. (`StreamingRidge` has
sums of its own, with an intercept, that lose fewer digits when samples are forgotten.)
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from retarget.engine.definite import normal_factor
from retarget.engine.triangular import add_square


@dataclass(eq=False)
class FeatureSums:
    r"""The two sums.

    Attributes:
        normal: (features, features) $\Phi^\top \Phi$, of which only the lower half counts.
        moment: (features, c) $\Phi^\top Y$.
    """

    normal: Tensor
    moment: Tensor

    @classmethod
    def nothing(cls, features: int, outputs: int, like: Tensor) -> Self:
        """The sums over no samples."""
        return cls(like.new_zeros(features, features), like.new_zeros(features, outputs))

    @classmethod
    def of(cls, features: Tensor, Y: Tensor, weights: Tensor | None = None) -> Self:
        """The sums over samples, perhaps with weights (m, 1)."""
        weighted = features if weights is None else weights * features
        return cls(weighted.mT @ features, weighted.mT @ Y)

    def copy(self) -> Self:
        """Returns sums of their own."""
        return type(self)(self.normal.clone(), self.moment.clone())

    def add(self, features: Tensor, Y: Tensor, sign: int = 1) -> None:
        """Adds samples, in place; subtracts them with the sign -1."""
        add_square(self.normal, features, sign)
        self.moment.addmm_(features.mT, Y, alpha=sign)

    def plus(self, features: Tensor, Y: Tensor) -> Self:
        """Returns new sums, with these samples added."""
        sums = self.copy()
        sums.add(features, Y)
        return sums

    def weights(self, gamma: float) -> Tensor:
        """(features, c) the ridge solution."""
        regularized = self.normal.clone()
        regularized.diagonal().add_(gamma)
        solution: Tensor = torch.cholesky_solve(self.moment, normal_factor(regularized, gamma))
        return solution
