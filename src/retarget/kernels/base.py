"""What every kernel is: k(A, B), a symmetric k(A), and its diagonal."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from retarget.arrays import (
    ArrayT,
    as_tensor,
    give_back,
    panels,
    require_finite,
    require_float,
)
from retarget.errors import InvalidInputError


class Kernel(ABC):
    """A positive semi-definite function of two samples. Samples are rows."""

    @torch.no_grad()
    def __call__(self, A: ArrayT, B: ArrayT | None = None) -> ArrayT:
        """The kernel between the rows of A and of B, (len(A), len(B)); of A with itself without B.

        `kernel(A)` is symmetric to the last bit.
        """
        left = self._samples("A", A)
        result: ArrayT
        if B is None:
            result = give_back(self._symmetric_gram(left), A)
            return result
        right = self._samples("B", B)
        if left.shape[1:] != right.shape[1:]:
            raise InvalidInputError(
                f"A has samples of shape {tuple(left.shape[1:])}, B of {tuple(right.shape[1:])}; "
                "expected the same features in both"
            )
        result = give_back(self._gram(left, right), A)
        return result

    @torch.no_grad()
    def diag(self, A: ArrayT) -> ArrayT:
        """(len(A),) k(x, x) for each row."""
        result: ArrayT = give_back(self._diag(self._samples("A", A)), A)
        return result

    def to_dict(self) -> dict[str, Any] | None:
        """What `kernel_from_dict` makes it again from; None where that cannot be written down."""
        return None

    def _symmetric_gram(self, A: Tensor) -> Tensor:
        """The Gram matrix, symmetric to the last bit; for kernels that need compute only half."""
        return mirror_lower(self._gram(A, A))

    @abstractmethod
    def _gram(self, A: Tensor, B: Tensor) -> Tensor: ...

    @abstractmethod
    def _diag(self, A: Tensor) -> Tensor: ...

    def _samples(self, name: str, value: Any) -> Tensor:
        samples = as_tensor(name, value)
        require_float(name, samples, "convert the features first")
        if samples.ndim == 0:
            raise InvalidInputError(f"{name} is a single number; expected samples as rows")
        require_finite(name, samples)
        return samples[:, None] if samples.ndim == 1 else samples


def mirror_lower(K: Tensor) -> Tensor:
    """Copies the lower triangle over the upper one, in place."""
    for rows in panels(len(K), 1, K.device):
        K[rows, rows.stop :] = K[rows.stop :, rows].mT
        block = K[rows, rows]
        block.copy_(block.tril() + block.tril(-1).mT)
    return K
