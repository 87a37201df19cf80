"""Triangular solves and products with one: the other half of the matrix is never read."""

import torch
from torch import Tensor

FEW_ROWS = 64  # up to this many, skipping half of a square takes longer than computing it


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
    rows, columns = rhs.shape[-2:]
    if rhs.device.type == "cpu" or 4 * rows < columns:
        # as rows of B are in one piece, this form copies less, and a second core helps
        whole = L.is_contiguous() or L.mT.is_contiguous()
        return solve_lower(L if whole else L.contiguous(), rhs.mT).mT
    x: Tensor = torch.linalg.solve_triangular(L.mT, rhs, upper=True, left=False)
    return x


def less_square(M: Tensor, A: Tensor) -> Tensor:
    r"""$M - A A^\top$ as a new matrix; above the diagonal, a part of it may be M."""
    if M.shape[0] <= FEW_ROWS:
        return torch.addmm(M, A, A.mT, alpha=-1)
    half = M.shape[0] // 2
    result = M.clone()
    result[:half, :half].addmm_(A[:half], A[:half].mT, alpha=-1)
    result[half:].addmm_(A[half:], A.mT, alpha=-1)
    return result


def less_product(M: Tensor, left: Tensor, right: Tensor) -> Tensor:
    r"""$M - A B^\top$."""
    return torch.addmm(M, left, right.mT, alpha=-1) if left.shape[1] else M
