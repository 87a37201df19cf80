"""How many digits of a result are right."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from retarget.errors import PrecisionWarning, warn_caller

MEANINGFUL_DIGITS = 2.0
SLACK = 1e4  # how much too small a first estimate may be
ITERATIONS = 5  # of the norm's estimate; two or three are the rule


def expected_digits(condition: float, dtype: torch.dtype) -> float:
    """Correct decimal digits of the solution of a system with this condition number."""
    return -math.log10(torch.finfo(dtype).eps * max(condition, 1.0))


def inverse_norm(
    solve: Callable[[Tensor], Tensor], like: Tensor, worth: Tensor | float = 0.0
) -> Tensor:
    r"""Estimates $\|M^{-1}\|_1$ of symmetric matrices from a few solves with them.

    Hager's method with Higham's safeguard ("FORTRAN codes for estimating the one-norm", 1988; also
    LAPACK's `dlacn2`): climbs from column to column of the inverse, each the steepest one seen from
    the last. A lower bound, hardly ever more than three times too small.

    Args:
        solve: Multiplies (..., n, k) by the inverse.
        like: (..., n, n) the matrices, or anything of their shape, dtype and device.
        worth: Where every first estimate is below this, one solve is enough.

    Returns:
        One estimate for each matrix.
    """
    n = like.shape[-1]
    alternating = 1 + torch.arange(n, dtype=like.dtype, device=like.device) / max(1, n - 1)
    alternating[1::2] *= -1
    columns = torch.stack([torch.full_like(alternating, 1 / n), alternating], dim=1)
    start = solve(columns.expand(*like.shape[:-2], n, 2).clone())
    v, safeguard = start[..., :1], 2 * start[..., 1].abs().sum(-1) / (3 * n)
    norm = v.abs().sum((-2, -1))
    if bool((torch.maximum(norm, safeguard) < worth).all()):
        return torch.maximum(norm, safeguard)
    for _ in range(ITERATIONS):
        slope = solve(torch.where(v < 0, -1.0, 1.0).to(v))
        steepest = slope.abs().argmax(dim=-2, keepdim=True)
        v = solve(torch.zeros_like(v).scatter_(-2, steepest, 1.0))
        grown = torch.maximum(norm, v.abs().sum((-2, -1)))
        if bool((grown <= norm).all()):
            break
        norm = grown
    return torch.maximum(norm, safeguard)


def worth_estimating(norm: Tensor | float, dtype: torch.dtype) -> Tensor | float:
    """The norm of an inverse below which digits cannot be scarce, even if it is far too low."""
    return 10**-MEANINGFUL_DIGITS / (torch.finfo(dtype).eps * norm) / SLACK


def warn_if_meaningless(name: str, condition: float, dtype: torch.dtype) -> bool:
    """Warns when fewer than two digits of a solution can be right, and says whether it did."""
    digits = expected_digits(condition, dtype)
    if digits >= MEANINGFUL_DIGITS:
        return False
    precision = str(dtype).removeprefix("torch.")
    advice = "" if dtype == torch.float64 else "compute in float64, or "
    warn_caller(
        f"{name} has a condition number of about {condition:.1g}: in {precision} expect "
        f"{max(digits, 0.0):.1f} correct digits at best; {advice}raise gamma or ridge",
        PrecisionWarning,
    )
    return True
