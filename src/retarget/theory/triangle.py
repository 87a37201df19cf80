"""The lower triangle of a sum of products phi phi^T, of which every version is kept as it is."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Columns that are multiplied together, so that the upper triangle can be skipped.
COLUMNS = {"cpu": 256}
COLUMNS_ELSEWHERE = 2048
# Rows wait to be added until there are this many, or a quarter as many as features: for one row
# alone, most of the time would go to writing the triangle.
WAITING_ROWS = 64


class Triangle(NamedTuple):
    """The lower triangle of C, in blocks of rows, and rows that are not added to it yet."""

    blocks: tuple[Tensor, ...]  # each as long as its last row
    waiting: tuple[Tensor, ...] = ()

    @classmethod
    def of_zeros(cls, like: Tensor) -> "Triangle":
        """Returns the triangle of zeros for a vector (m,) of features."""
        spans = _spans(like)
        return cls(tuple(like.new_zeros(rows.stop - rows.start, rows.stop) for rows in spans))

    @classmethod
    def of_matrix(cls, matrix: Tensor) -> "Triangle":
        """Returns the lower triangle of a matrix (m, m), as a copy."""
        spans = _spans(matrix[0])
        return cls(tuple(matrix[rows, : rows.stop].clone() for rows in spans))

    def matrix(self) -> Tensor:
        """Returns C (m, m) as a new matrix; its upper triangle is not filled."""
        whole = self.added()
        m = whole.blocks[-1].shape[1]
        matrix = whole.blocks[-1].new_zeros(m, m)
        for block in whole.blocks:
            stop = block.shape[1]
            matrix[stop - len(block) : stop, :stop] = block
        return matrix

    def product(self, columns: Tensor) -> Tensor:
        """Returns C times columns (m, k)."""
        result = torch.zeros_like(columns)
        for block in self.added().blocks:
            stop = block.shape[1]
            first = stop - len(block)
            result[first:stop] += block @ columns[:stop]
            result[:first] += block[:, :first].mT @ columns[first:stop]
        return result

    def diagonal(self) -> Tensor:
        """Returns the diagonal of C (m,)."""
        parts = [block.diagonal(block.shape[1] - len(block)) for block in self.blocks]
        return sum((rows.square().sum(0) for rows in self.waiting), torch.cat(parts))

    def plus_rows(self, rows: Tensor) -> "Triangle":
        """Adds the products of rows (k, m) with themselves; few rows are copied, and wait."""
        enough = max(WAITING_ROWS, self.blocks[-1].shape[1] // 4)
        if sum(map(len, self.waiting)) + len(rows) < enough:
            return Triangle(self.blocks, (*self.waiting, rows.clone()))
        return self.added(rows)

    def added(self, *more: Tensor) -> "Triangle":
        """Returns the same C with no row waiting, or with more rows."""
        parts = (torch.cat(self.waiting), *more) if self.waiting else more
        return Triangle(tuple(_with_products(block, parts) for block in self.blocks), ())

    def plus(self, other: "Triangle", factor: float) -> "Triangle":
        """Adds another triangle times a factor."""
        pairs = zip(self.added().blocks, other.added().blocks, strict=True)
        return Triangle(tuple(torch.add(one, two.to(one), alpha=factor) for one, two in pairs))

    def plus_product(self, row: Tensor, factor: float) -> "Triangle":
        """Adds the product of a row (m,) with itself, times a factor of either sign."""
        return Triangle(
            tuple(
                torch.addr(block, row[stop - len(block) : stop], row[:stop], alpha=factor)
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
    for rows in parts:
        block = torch.addmm(block, rows[:, stop - len(block) : stop].mT, rows[:, :stop])
    return block


def _spans(like: Tensor) -> Iterator[slice]:
    columns = COLUMNS.get(like.device.type, COLUMNS_ELSEWHERE)
    for start in range(0, len(like), columns):
        yield slice(start, min(start + columns, len(like)))
