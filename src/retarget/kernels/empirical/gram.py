"""The empirical kernel's matrix from factors, in as few passes as memory permits.

A panel of samples' factors is held, as many as fit, and all other samples stream past it. So with
room for all, every sample's factors are computed once; with less, once a panel.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from retarget.arrays import panels
from retarget.kernels.empirical.plan import Plan
from retarget.kernels.empirical.terms import Factors
from retarget.progress import PatientBar

# Bytes that a chunk on its way through the network may take: enough to make light of the calls, and
# no more, as it leaves the caches. On two cores 2^26 to 2^28 are alike, 2^24 is slower.
WORKING_BYTES = {"cpu": 1 << 27}
WORKING_BYTES_ELSEWHERE = 1 << 32


@dataclass(frozen=True)
class Sizes:
    """How many samples pass the network at a time, and how many have their factors held."""

    chunk: int
    panel: int

    @classmethod
    def of(cls, plan: Plan, device: torch.device, memory: int) -> "Sizes":
        """The largest that stay within so many bytes."""
        room = WORKING_BYTES.get(device.type, WORKING_BYTES_ELSEWHERE)
        chunk = max(1, min(room, memory // 4) // plan.working)
        panel = (memory - chunk * (plan.working + plan.held)) // plan.held
        return cls(chunk, max(1, panel))

    def passes(self, n: int) -> int:
        """Samples through the network, for a symmetric matrix of n."""
        return sum(n - start for start in range(0, n, self.panel))


def compute_factors(plan: Plan, samples: Tensor, chunk: int, bar: PatientBar) -> list[Factors]:
    """All terms' factors of these samples."""
    held: list[Factors] = [
        tuple(part.new_empty((len(samples), *part.shape[1:])) for part in parts)
        for parts in plan.example
    ]
    for rows in _ranges(0, len(samples), chunk):
        for whole, parts in zip(held, plan.factors(samples[rows]), strict=True):
            for into, part in zip(whole, parts, strict=True):
                into[rows] = part.detach()
        bar.advance(rows.stop - rows.start)
    return held


def symmetric_gram(
    plan: Plan, A: Tensor, K: Tensor, r: int, scale: float, sizes: Sizes, bar: PatientBar
) -> None:
    """Fills the lower triangle of K (n * r, n * r)."""
    for panel in _ranges(0, len(A), sizes.panel):
        held = compute_factors(plan, A[panel], sizes.chunk, bar)
        for rows in panels(panel.stop - panel.start, 1, A.device):
            upto = slice(0, rows.stop)
            block = _block(K, _shift(rows, panel.start), _shift(upto, panel.start), r)
            _add(plan, block, _rows(held, rows), _rows(held, upto), scale)
            bar.advance((rows.stop - rows.start) * rows.stop)
        for rows in _ranges(panel.stop, len(A), sizes.chunk):
            passing = compute_factors(plan, A[rows], sizes.chunk, bar)
            _add(plan, _block(K, rows, panel, r), passing, held, scale)
            bar.advance((rows.stop - rows.start) * (panel.stop - panel.start))


def gram(
    plan: Plan,
    A: Tensor,
    B: Tensor,
    K: Tensor,
    r: int,
    scale: float,
    sizes: Sizes,
    bar: PatientBar,
) -> None:
    """Fills K (len(A) * r, len(B) * r)."""
    for panel in _ranges(0, len(B), sizes.panel):
        held = compute_factors(plan, B[panel], sizes.chunk, bar)
        for rows in _ranges(0, len(A), sizes.chunk):
            passing = compute_factors(plan, A[rows], sizes.chunk, bar)
            _add(plan, _block(K, rows, panel, r), passing, held, scale)
            bar.advance((rows.stop - rows.start) * (panel.stop - panel.start))


def diagonal(plan: Plan, A: Tensor, scale: float, sizes: Sizes, bar: PatientBar) -> Tensor:
    """(n * r,) each row's product with itself."""
    parts = []
    for rows in _ranges(0, len(A), sizes.chunk):
        factors = compute_factors(plan, A[rows], sizes.chunk, bar)
        terms = zip(plan.terms, factors, strict=True)
        parts.append(torch.stack([term.diagonal(each) for term, each in terms]).sum(0))
    return torch.cat(parts).flatten() * scale


def features(plan: Plan, A: Tensor, scale: float, sizes: Sizes, bar: PatientBar) -> Tensor:
    """(n, d) whose inner products are the kernel."""
    parts = []
    for rows in _ranges(0, len(A), sizes.chunk):
        factors = compute_factors(plan, A[rows], sizes.chunk, bar)
        terms = zip(plan.terms, factors, strict=True)
        parts.append(torch.cat([term.features(each) for term, each in terms], 1))
    return torch.cat(parts) * math.sqrt(scale)


def _add(
    plan: Plan, block: Tensor, left: list[Factors], right: list[Factors], scale: float
) -> None:
    for term, mine, theirs in zip(plan.terms, left, right, strict=True):
        term.add(block, mine, theirs, scale)


def _rows(factors: list[Factors], rows: slice) -> list[Factors]:
    return [tuple(each[rows] for each in parts) for parts in factors]


def _block(K: Tensor, rows: slice, columns: slice, r: int) -> Tensor:
    return K[rows.start * r : rows.stop * r, columns.start * r : columns.stop * r]


def _shift(rows: slice, by: int) -> slice:
    return slice(rows.start + by, rows.stop + by)


def _ranges(start: int, stop: int, size: int) -> Iterator[slice]:
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))
