"""The kernel matrix of a finite network, put together from its parts in bounded memory."""

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from retarget.arrays import free_memory, panels, require_memory
from retarget.kernels.empirical.plan import EmpiricalPlan
from retarget.kernels.empirical.terms import Factors
from retarget.progress import PatientBar
from retarget.samples import Samples, count, take

# Bytes that a chunk may take on its way through the network: enough that the calls cost little, but
# no more, to stay in the caches. On two cores 2^26 to 2^28 are equally fast, 2^24 is slower.
WORKING_BYTES = {"cpu": 1 << 27}
WORKING_BYTES_ELSEWHERE = 1 << 32
# Rows that a matrix product needs to be fast on a CPU: with the 120 tokens of one sequence
# alone, a forward pass takes nearly twice as long.
PRODUCT_ROWS = 512
MEMORY_SHARE = 0.5  # of the memory that is free besides the kernel matrix
MEMORY_UNKNOWN = 1 << 30  # working memory in bytes, if the free memory is unknown


class Assembly:
    """Assembles the kernel matrix from the factors of samples.

    Samples pass through the network in chunks. The factors of a panel of samples stay in memory;
    those of all others are computed chunk by chunk, and used immediately. The matrix is between
    this many samples as rows and as columns.
    """

    def __init__(
        self,
        plan: EmpiricalPlan,
        rows: int,
        columns: int,
        max_memory: int | Literal["auto"],
        progress: bool | None,
    ) -> None:
        self.plan = plan
        self._progress = progress
        like = plan.network.like
        dtype = plan.dtype
        r = plan.selection.rows
        require_memory(
            "the kernel matrix",
            rows * r * columns * r * dtype.itemsize / like.element_size(),
            like,
            "compute it in several calls, by rows",
        )
        self.K = like.detach().new_zeros((rows * r, columns * r), dtype=dtype)
        if max_memory == "auto":  # what is left besides the matrix
            free = free_memory(like.device)
            max_memory = MEMORY_UNKNOWN if free is None else int(MEMORY_SHARE * free)
        room = WORKING_BYTES.get(like.device.type, WORKING_BYTES_ELSEWHERE)
        enough = max(room // plan.working, -(-PRODUCT_ROWS // plan.positions))
        self.chunk = max(1, min(enough, max_memory // 4 // plan.working))
        factors = plan.factor_bytes
        self.panel = max(1, (max_memory - self.chunk * (plan.working + factors)) // factors)

    def symmetric_gram(self, A: Samples) -> Tensor:
        """K (n * r, n * r), of which the lower triangle is filled."""
        n = count(A)
        passes = sum(n - start for start in range(0, n, self.panel))
        with self._bar(passes + n * (n + 1) // 2) as bar:
            for panel in _ranges(0, n, self.panel):
                of_panel = self._factors(take(A, panel), bar)
                for rows in panels(panel.stop - panel.start, 1, self.K.device):
                    self._add_triangle(panel.start, rows, of_panel)
                    bar.advance((rows.stop - rows.start) * rows.stop)
                self._add_columns(A, panel.stop, panel, of_panel, bar)
        return self.K

    def gram(self, A: Samples, B: Samples) -> Tensor:
        """K (n * r, m * r) for n samples A and m samples B."""
        n = count(A)
        m = count(B)
        with self._bar(m + n * -(-m // self.panel) + n * m) as bar:
            for panel in _ranges(0, m, self.panel):
                self._add_columns(A, 0, panel, self._factors(take(B, panel), bar), bar)
        return self.K

    def diagonal(self, A: Samples) -> Tensor:
        """(n * r,) each row's product with itself."""
        parts = []
        with self._bar(count(A)) as bar:
            for rows in _ranges(0, count(A), self.chunk):
                terms = zip(self.plan.terms, self._factors(take(A, rows), bar), strict=True)
                parts.append(torch.stack([term.diagonal(each) for term, each in terms]).sum(0))
        return torch.cat(parts).flatten() * self.plan.selection.scale

    def features_and_outputs(self, A: Samples) -> tuple[Tensor, Tensor]:
        """(n, d) whose inner products are the kernel, and (n, c) the network's outputs."""
        features = []
        outputs = []
        with self._bar(count(A)) as bar:
            for rows in _ranges(0, count(A), self.chunk):
                factors, passed = self.plan.factors_and_outputs(take(A, rows))
                features.append(self.plan.features(factors))
                outputs.append(passed)
                bar.advance(rows.stop - rows.start)
        return torch.cat(features) * math.sqrt(self.plan.selection.scale), torch.cat(outputs)

    def _factors(self, samples: Samples, bar: PatientBar) -> list[Factors]:
        """All terms' factors of these samples, computed chunk by chunk."""
        n = count(samples)
        factors: list[Factors] = [
            tuple(factor.new_empty((n, *factor.shape[1:])) for factor in parts)
            for parts in self.plan.example
        ]
        for rows in _ranges(0, n, self.chunk):
            places = [tuple(each[rows] for each in parts) for parts in factors]
            self.plan.factors(take(samples, rows), places)
            bar.advance(rows.stop - rows.start)
        return factors

    def _add_columns(
        self, A: Samples, start: int, panel: slice, of_panel: list[Factors], bar: PatientBar
    ) -> None:
        """Fills the panel's columns of K for the samples of A from `start` on."""
        for rows in _ranges(start, count(A), self.chunk):
            block = self._block(rows.start, rows.stop, panel.start, panel.stop)
            left = self._factors(take(A, rows), bar)
            for term, mine, theirs in zip(self.plan.terms, left, of_panel, strict=True):
                term.add(block, mine, theirs, self.plan.selection.scale)
            bar.advance((rows.stop - rows.start) * (panel.stop - panel.start))

    def _add_triangle(self, start: int, rows: slice, of_panel: list[Factors]) -> None:
        """Fills these rows of a panel that starts there, up to the diagonal at least."""
        for term, factors in zip(self.plan.terms, of_panel, strict=True):
            for part in _ranges(rows.start, rows.stop, term.triangle_rows(rows.stop - rows.start)):
                block = self._block(start + part.start, start + part.stop, start, start + part.stop)
                left, right = (tuple(f[some] for f in factors) for some in (part, slice(part.stop)))
                term.add(block, left, right, self.plan.selection.scale)

    def _block(self, top: int, bottom: int, first: int, last: int) -> Tensor:
        r = self.plan.selection.rows
        return self.K[top * r : bottom * r, first * r : last * r]

    def _bar(self, steps: int) -> PatientBar:
        return PatientBar("empirical kernel, samples and pairs", steps, self._progress)


def _ranges(start: int, stop: int, size: int) -> Iterator[slice]:
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))
