"""What a streaming ridge regression is given: its ridge, weights, numbers to be summed."""

import math
from typing import Any, Literal

import numpy as np
from torch import Tensor

from retarget.arrays import as_non_negative, as_tensor
from retarget.errors import InvalidInputError
from retarget.theory.moments import LARGEST_NUMBER


def as_ridge(gamma: Any) -> float | Literal["auto"]:
    """A ridge, or the word that leaves the choice to cross-validation."""
    if isinstance(gamma, str) and gamma == "auto":
        return "auto"
    return as_non_negative("gamma", gamma)


def as_weights(weights: Any, count: int) -> Tensor | None:
    """(count,) weights in float64, or None where all are 1."""
    if weights is None:
        return None
    given = as_tensor("weights", weights).double()
    if given.ndim == 0:
        given = given.expand(count)
    if given.shape != (count,):
        raise InvalidInputError(
            f"weights has shape {tuple(given.shape)}; expected one number, or ({count},)"
        )
    if not bool(((given >= 1 / LARGEST_NUMBER) & (given <= LARGEST_NUMBER)).all()):
        raise InvalidInputError(
            "weights holds a number that is not above 0, or is too large; leave out samples that "
            "are not to count"
        )
    return given


def require_moderate(name: str, values: Tensor) -> None:
    """Refuses numbers whose products would overflow: the sums could not be repaired."""
    least, most = values.aminmax() if values.numel() else (values.new_zeros(()),) * 2
    if not (float(least) >= -LARGEST_NUMBER and float(most) <= LARGEST_NUMBER):
        raise InvalidInputError(
            f"{name} go from {float(least):.3g} to {float(most):.3g}; expected at most "
            f"{LARGEST_NUMBER:g}, as products of them are added up: scale them"
        )


def sample_size(X: Any) -> int:
    """Numbers in one of these samples."""
    return math.prod(np.shape(X)[1:])
