"""Triangular solves and products with one: the other half of the matrix is never read."""

import torch
from torch import Tensor

FEW_ROWS = 64  # up to this many, skipping half of a square takes longer than computing it
ROWS_AT_RATES = 64
FEW_COLUMNS = 128  # the same for sums of squares, which are computed by halves of halves


def solve_lower(L: Tensor, rhs: Tensor, unit_diagonal: bool = False) -> Tensor:
    r"""$L^{-1} B$."""
    x: Tensor = torch.linalg.solve_triangular(L, rhs, upper=False, unitriangular=unit_diagonal)
    return x


def solve_lower_at_rates(C: Tensor, rates: Tensor, rhs: Tensor) -> Tensor:
    r"""(m, rates, c) $(I + \eta C)^{-1} B_\eta$ for each rate, C strictly lower (m, m).

    A few rows at a time, so that hardly anything is computed for each rate by itself.
    """
    m, count, outputs = rhs.shape
    solved = torch.empty_like(rhs)
    scaled = rhs.new_empty(m, count * outputs)  # eta times the solution
    for first in range(0, m, ROWS_AT_RATES):
        rows = slice(first, min(first + ROWS_AT_RATES, m))
        rest = rhs[rows].flatten(1) - C[rows, :first] @ scaled[:first]
        by_rate = rest.reshape(-1, count, outputs).transpose(0, 1)
        x = solve_lower(rates[:, None, None] * C[rows, rows], by_rate, unit_diagonal=True)
        solved[rows] = x.transpose(0, 1)
        scaled[rows] = (rates[:, None] * solved[rows]).flatten(1)
    return solved


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


def less_square(M: Tensor, part: Tensor) -> Tensor:
    r"""$M - A A^\top$ as a new matrix; above the diagonal, a part of it may be M."""
    if M.shape[0] <= FEW_ROWS:
        return torch.addmm(M, part, part.mT, alpha=-1)
    half = M.shape[0] // 2
    result = M.clone()
    result[:half, :half].addmm_(part[:half], part[:half].mT, alpha=-1)
    result[half:].addmm_(part[half:], part.mT, alpha=-1)
    return result


def less_product(M: Tensor, left: Tensor, right: Tensor) -> Tensor:
    r"""$M - A B^\top$."""
    return torch.addmm(M, left, right.mT, alpha=-1) if left.shape[1] else M


def add_square(M: Tensor, A: Tensor, sign: int = 1) -> None:
    r"""Adds $A^\top A$ to M in place, or subtracts it: the lower half and some of the upper one."""
    if M.shape[0] <= FEW_COLUMNS:
        M.addmm_(A.mT, A, alpha=sign)
        return
    half = M.shape[0] // 2
    left = A[:, :half]
    right = A[:, half:]
    add_square(M[:half, :half], left, sign)
    M[half:, :half].addmm_(right.mT, left, alpha=sign)
    add_square(M[half:, half:], right, sign)


def symmetric(lower: Tensor) -> Tensor:
    """The symmetric matrix with this lower half, whatever is above the diagonal."""
    return lower.tril() + lower.tril(-1).mT
