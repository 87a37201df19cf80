"""The lower triangle of a sum of products phi phi^T, of which every version is kept as it is.

It is kept in float64 or float32; products, and all that is computed from it, are float64.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from retarget.errors import InvalidInputError

# Columns that are multiplied together, so that the upper triangle can be skipped.
COLUMNS = {"cpu": 256}
COLUMNS_ELSEWHERE = 512
# Rows wait to be added until there are this many, or a quarter as many as features: for one row
# alone, most of the time would go to writing the triangle.
WAITING_ROWS = 64


class Triangle(NamedTuple):
    """The lower triangle of C, in blocks of rows, and rows that are not added to it yet."""

    blocks: tuple[Tensor, ...]  # each as long as its last row
    waiting: tuple[Tensor, ...] = ()

    @classmethod
    def of_zeros(cls, like: Tensor, dtype: torch.dtype) -> "Triangle":
        """Returns the triangle of zeros for a vector (m,) of features."""
        return cls(
            tuple(
                torch.zeros(len(rows), rows.stop, dtype=dtype, device=like.device)
                for rows in _spans(like)
            )
        )

    @classmethod
    def of_packed(cls, packed: Tensor, like: Tensor) -> "Triangle":
        """Returns the triangle of rows one after the other, for a vector (m,) of features."""
        blocks = cls.of_zeros(like, packed.dtype).blocks
        rows = torch.split(packed, list(range(1, len(like) + 1)))
        for block, span in zip(blocks, _spans(like), strict=True):
            for row, values in zip(block, rows[span.start : span.stop], strict=True):
                row[: len(values)] = values
            square = block[:, span.start :]  # products of rows fill it above the diagonal, too
            square += square.tril(-1).mT
        return cls(blocks)

    def packed(self) -> Tensor:
        """Returns the rows of the triangle one after the other, m (m + 1) / 2 numbers."""
        blocks = self.added().blocks
        return torch.cat([row for block in blocks for row in _rows_of(block)])

    def matrix(self) -> Tensor:
        """Returns C (m, m) as a new matrix of float64."""
        blocks = self.added().blocks
        m = blocks[-1].shape[1]
        matrix = torch.empty(m, m, dtype=torch.float64, device=blocks[-1].device)
        for block in blocks:
            stop = block.shape[1]
            start = stop - len(block)
            matrix[start:stop, :stop] = block
            matrix[:start, start:stop] = block[:, :start].mT
        return matrix

    def diagonal(self) -> Tensor:
        """Returns the diagonal of C (m,)."""
        parts = [block.diagonal(block.shape[1] - len(block)).double() for block in self.blocks]
        return sum((rows.square().sum(0) for rows in self.waiting), torch.cat(parts))

    def plus_rows(self, rows: Tensor) -> "Triangle":
        """Adds the products of rows (k, m) with themselves; few rows are copied, and wait."""
        enough = max(WAITING_ROWS, self.blocks[-1].shape[1] // 4)
        if sum(map(len, self.waiting)) + len(rows) < enough:
            return Triangle(self.blocks, (*self.waiting, rows.clone()))
        return self.added(rows)

    def added(self, *more: Tensor) -> "Triangle":
        """Returns the same C with no row waiting, or with more rows."""
        if not (self.waiting or more):
            return self
        parts = (torch.cat(self.waiting), *more) if self.waiting else more
        return Triangle(tuple(_with_products(block, parts) for block in self.blocks), ())

    def plus(self, other: "Triangle", factor: float) -> "Triangle":
        """Adds another triangle times a factor."""
        pairs = zip(self.added().blocks, other.added().blocks, strict=True)
        return Triangle(
            tuple(
                _rounded(one, one.double() + factor * two.to(one.device).double())
                for one, two in pairs
            )
        )

    def plus_product(self, row: Tensor, factor: float) -> "Triangle":
        """Adds the product of a row (m,) with itself, times a factor of either sign."""
        return Triangle(
            tuple(
                _rounded(
                    block,
                    torch.addr(
                        block.double(), row[stop - len(block) : stop], row[:stop], alpha=factor
                    ),
                )
                for block in self.added().blocks
                for stop in [block.shape[1]]
            )
        )

    def times(self, factor: float) -> "Triangle":
        """Multiplies C by a factor."""
        return Triangle(tuple(block * factor for block in self.added().blocks))


def _with_products(block: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Adds the products of rows to a block of the triangle, which stays as it is."""
    stop = block.shape[1]
    total = block.double()
    for rows in parts:
        total = torch.addmm(total, rows[:, stop - len(block) : stop].mT, rows[:, :stop])
    return _rounded(block, total)


def _rounded(block: Tensor, values: Tensor) -> Tensor:
    """Returns new values of a block as they are kept."""
    kept = values.to(block.dtype)
    if block.dtype != values.dtype and not bool(kept.isfinite().all()):
        raise InvalidInputError(
            f"the sums are as large as {float(values.abs().max()):.2g}, too large for float32; "
            "scale the features down, or use precision='float64'"
        )
    return kept


def _rows_of(block: Tensor) -> Iterator[Tensor]:
    first = block.shape[1] - len(block)
    return (row[: first + number + 1] for number, row in enumerate(block))


def _spans(like: Tensor) -> Iterator[range]:
    columns = COLUMNS.get(like.device.type, COLUMNS_ELSEWHERE)
    for start in range(0, len(like), columns):
        yield range(start, min(start + columns, len(like)))
