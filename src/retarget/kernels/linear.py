"""The inner product."""

from typing import Any

from torch import Tensor

from retarget.kernels.base import Kernel


class Linear(Kernel):
    r"""$k(x, x') = x^\top x'$: the kernel of a linear model without a bias.

    Example:
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
