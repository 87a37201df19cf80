"""Matrices that ought to be positive definite: what to say if one is not, and what would do."""

import math

import torch
from torch import Tensor

from retarget.errors import NotPositiveDefiniteError


def not_positive_definite(M: Tensor, gamma: float, row: int) -> NotPositiveDefiniteError:
    """Makes the error for a factorization that failed at a row of M, which includes gamma I."""
    deficit, jitter = needed_jitter(M)
    dtype = str(M.dtype).removeprefix("torch.")
    limits = torch.finfo(M.dtype)
    rounding = jitter - deficit
    why = "; expected the Gram matrix of a kernel"
    if deficit <= 10 * rounding:
        largest = rounding / limits.eps / M.shape[-1]
        why = (
            f", which is rounding beside the largest, {largest:.3g}: samples repeat, or gamma is "
            "too small for such a kernel"
        )
    return NotPositiveDefiniteError(
        f"gamma I + K is not positive definite in {dtype}, from row {row} on: its smallest "
        f"eigenvalue is {-deficit:.3g} with gamma = {gamma:g}{why}. "
        f"gamma = {rounded_up(gamma + jitter):g} would do (jitter {jitter:.3g})"
        + ("" if M.dtype == torch.float64 else ", or compute in float64"),
        deficit=deficit,
        jitter=jitter,
    )


def normal_factor(M: Tensor, gamma: float) -> Tensor:
    """The Cholesky factor of a matrix to which gamma I was added."""
    factor, info = torch.linalg.cholesky_ex(M)
    if info.item():
        finite = bool(M.isfinite().all())
        deficit, jitter = needed_jitter(M) if finite else (math.inf, math.inf)
        raise NotPositiveDefiniteError(
            f"the normal equations with gamma = {gamma:g} are not positive definite in "
            f"{str(M.dtype).removeprefix('torch.')}; "
            + (
                f"gamma = {rounded_up(gamma + jitter):g} would do" if finite else "use a larger one"
            ),
            deficit=deficit,
            jitter=jitter,
        )
    result: Tensor = factor
    return result


def rounded_up(value: float) -> float:
    """The next larger number with four digits: a ridge that is rounded down would not do.

    Examples:
        >>> rounded_up(0.0123412), rounded_up(1.0 + 1e-15)
        (0.01235, 1.001)
    """
    step = 10.0 ** (math.floor(math.log10(value)) - 3) if value > 0 else 1.0
    return float(f"{math.ceil(value / step) * step:.4g}")


def needed_jitter(M: Tensor) -> tuple[float, float]:
    """How far M's smallest eigenvalue is below zero, and the shift that makes it factorizable."""
    eigenvalues = torch.linalg.eigvalsh(M.double())
    deficit = max(0.0, -eigenvalues[..., 0].min().item())
    rounding = M.shape[-1] * torch.finfo(M.dtype).eps * eigenvalues[..., -1].max().item()
    return deficit, deficit + rounding
