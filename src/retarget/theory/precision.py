"""How many digits of a result are right."""

import math
import warnings

import torch
from torch import Tensor

from retarget.errors import PrecisionWarning

MEANINGFUL_DIGITS = 2.0


def expected_digits(condition: float, dtype: torch.dtype) -> float:
    """Correct decimal digits of the solution of a system with this condition number."""
    return -math.log10(torch.finfo(dtype).eps * max(condition, 1.0))


def eigenvalue_bound(M: Tensor) -> Tensor:
    r"""$\|M\|_F^2 / \operatorname{tr} M$, at most the largest eigenvalue, of each of a batch."""
    norm: Tensor = torch.linalg.matrix_norm(M)
    return norm**2 / M.diagonal(dim1=-2, dim2=-1).sum(-1)


def warn_if_meaningless(name: str, condition: float, dtype: torch.dtype) -> bool:
    """Warns when fewer than two digits of a solution can be right, and says whether it did."""
    digits = expected_digits(condition, dtype)
    if digits >= MEANINGFUL_DIGITS:
        return False
    precision = str(dtype).removeprefix("torch.")
    advice = "" if dtype == torch.float64 else "compute in float64, or "
    warnings.warn(
        f"{name} has a condition number of at least {condition:.1g}: in {precision} expect "
        f"{max(digits, 0.0):.1f} correct digits at best; {advice}raise gamma or ridge",
        PrecisionWarning,
        stacklevel=5,
    )
    return True
