"""In which form the caller gave arrays, and gets results."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import FLOATS, give_back
from retarget.errors import InvalidInputError


@dataclass(frozen=True)
class Form:
    """The library, axes and dtype of the caller's targets; results stay on their device.

    Attributes:
        numpy: Whether they are arrays of NumPy, and not tensors.
        flat: Whether they have one axis, as targets of one output may.
        dtype: What results are converted to; None to give them as they were computed.
    """

    numpy: bool = False
    flat: bool = False
    dtype: torch.dtype | None = None

    @classmethod
    def of(cls, Y: Any, dtype: torch.dtype | None = None) -> Self:
        """The form of targets."""
        return cls(numpy=not isinstance(Y, Tensor), flat=np.ndim(Y) == 1, dtype=dtype)

    def wider(self, dtype: torch.dtype | None) -> Self:
        """The same form, with results in a type that also holds this one."""
        if self.dtype is not None and dtype is not None:
            dtype = torch.promote_types(self.dtype, dtype)
        return replace(self, dtype=dtype or self.dtype)

    def give(self, result: Tensor) -> Any:
        """Returns a result (n, c) in this form."""
        return self.in_library(result[:, 0] if self.flat else result, self.dtype)

    def in_library(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Any:
        """Returns any tensor in the caller's library."""
        return give_back(tensor, None if self.numpy else tensor, dtype)

    def state_dict(self) -> dict[str, Any]:
        """Returns plain values."""
        dtype = None if self.dtype is None else str(self.dtype).removeprefix("torch.")
        return {"numpy": self.numpy, "flat": self.flat, "dtype": dtype}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Returns the form of a saved state."""
        dtype = None if state["dtype"] is None else getattr(torch, state["dtype"])
        if dtype is not None and dtype not in FLOATS:
            raise InvalidInputError(f"dtype is {dtype}; expected one of {FLOATS}")
        return cls(bool(state["numpy"]), bool(state["flat"]), dtype)
