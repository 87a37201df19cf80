"""The sketch of a network's tangent kernel, as features that do not follow its training."""

import copy
from typing import TYPE_CHECKING, Any

from torch import Tensor

from retarget.kernels.empirical.projection import Projection
from retarget.samples import copied

if TYPE_CHECKING:
    from retarget.kernels.empirical.ntk import EmpiricalNTK


class FrozenSketch:
    """Features (n, m) of samples, whose inner products estimate a tangent kernel.

    Args:
        kernel: The kernel of a network, which is copied as it is now.
        count: Number of features, if the kernel has no sketch of its own.
        seed: Seed of the projection, if the kernel's is 0.

    Attributes:
        kernel: The kernel of the copy, which the features estimate.
    """

    def __init__(self, kernel: "EmpiricalNTK", count: int, seed: int) -> None:
        frozen = copy.copy(kernel)
        frozen.preconditioner = kernel.factors()
        frozen.module = copied(kernel.module)
        self.kernel = frozen
        self._sketched = copy.copy(frozen)
        self._sketched.sketch = kernel.sketch or count
        self._sketched.seed = kernel.seed or seed
        self._sketched.projection = Projection(self._sketched.sketch, self._sketched.seed)

    def __call__(self, X: Any) -> Tensor:
        """Returns the features of samples."""
        return self._sketched.features_and_outputs(X)[0]
