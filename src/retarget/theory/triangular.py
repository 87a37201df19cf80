"""Triangular solves, by the triangle that is stored: the other half is never read."""

import torch
from torch import Tensor


def solve_lower(L: Tensor, rhs: Tensor, unit_diagonal: bool = False) -> Tensor:
    r"""$L^{-1} B$."""
    x: Tensor = torch.linalg.solve_triangular(L, rhs, upper=False, unitriangular=unit_diagonal)
    return x


def solve_lower_transposed(L: Tensor, rhs: Tensor) -> Tensor:
    r"""$L^{-\top} B$."""
    x: Tensor = torch.linalg.solve_triangular(L.mT, rhs, upper=True)
    return x


def solve_lower_right(L: Tensor, rhs: Tensor) -> Tensor:
    r"""$B L^{-\top}$."""
    x: Tensor = torch.linalg.solve_triangular(L.mT, rhs, upper=True, left=False)
    return x
