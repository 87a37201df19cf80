r"""Ridge regression with explicit features, from sums over samples.

The weights solve $(\gamma I + \Phi^\top \Phi)\, \theta = \Phi^\top Y$. (`StreamingRidge` has
sums of its own: about the means, in triangles that are never written to, and with bounds on what
forgetting cost; see `Moments`.)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from retarget.engine.condition import matrix_condition, warn_if_meaningless
from retarget.engine.definite import normal_factor
from retarget.engine.triangular import add_square, symmetric
from retarget.state_files import require_shape

NORMAL_EQUATIONS = "the normal equations of the features"


class NormalFactor(NamedTuple):
    r"""The Cholesky factor of $\gamma I + \Phi^\top \Phi$.

    Attributes:
        lower: (features, features) the triangle.
        condition: An estimate of the condition number; 1 if digits are plenty.
    """

    lower: Tensor
    condition: float


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

    @classmethod
    def from_state(cls, state: Mapping[str, Any], shape: tuple[int, ...]) -> Self:
        """Checks and restores what `to_state` returned; `shape` is that of the weights."""
        normal = require_shape("scatter", state["scatter"], shape[0], shape[0])
        return cls(normal, require_shape("cross", state["cross"], *shape))

    def to_state(self) -> dict[str, Tensor]:
        """Returns the sums by name."""
        return {"scatter": symmetric(self.normal), "cross": self.moment}

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

    def factor(self, gamma: float) -> NormalFactor:
        """The factor of the normal equations with this ridge."""
        regularized = self.normal.clone()
        regularized.diagonal().add_(gamma)
        lower = normal_factor(regularized, gamma)
        return NormalFactor(lower, matrix_condition(regularized, lower))

    def weights(self, gamma: float) -> Tensor:
        """(features, c) the ridge solution; warns if few of its digits are correct."""
        factor = self.factor(gamma)
        warn_if_meaningless(NORMAL_EQUATIONS, factor.condition, self.normal.dtype)
        solution: Tensor = torch.cholesky_solve(self.moment, factor.lower)
        return solution
