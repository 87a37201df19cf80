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
from retarget.kernels.empirical.terms import Factors, Term
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
    def within(cls, plan: Plan, device: torch.device, memory: int) -> "Sizes":
        """The largest that stay within so many bytes."""
        room = WORKING_BYTES.get(device.type, WORKING_BYTES_ELSEWHERE)
        chunk = max(1, min(room, memory // 4) // plan.working)
        panel = (memory - chunk * (plan.working + plan.held)) // plan.held
        return cls(chunk, max(1, panel))

    def passes(self, n: int) -> int:
        """Samples through the network, for a symmetric matrix of n."""
        return sum(n - start for start in range(0, n, self.panel))


class Assembly:
    """Puts the kernel together from the factors of samples.

    Args:
        plan: What to compute for each of them.
        rows: Rows of the matrix for each sample.
        scale: What the sum over the outputs is multiplied by.
        device: Where it is computed.
        memory: Bytes to work in.
        progress: Whether to show a progress bar; None shows it on a terminal.
    """

    def __init__(
        self,
        plan: Plan,
        rows: int,
        scale: float,
        device: torch.device,
        memory: int,
        progress: bool | None,
    ) -> None:
        self._plan, self._r, self._scale = plan, rows, scale
        self._sizes, self._progress = Sizes.within(plan, device, memory), progress

    def symmetric_gram(self, A: Tensor, K: Tensor) -> None:
        """Fills the lower triangle of K (n * r, n * r)."""
        n = len(A)
        with self._bar(self._sizes.passes(n) + n * (n + 1) // 2) as bar:
            for panel in _ranges(0, n, self._sizes.panel):
                held = self._held(A[panel], bar)
                for rows in panels(panel.stop - panel.start, 1, A.device):
                    upto = slice(0, rows.stop)
                    block = self._block(K, _shift(rows, panel.start), _shift(upto, panel.start))
                    self._add(block, _rows(held, rows), _rows(held, upto))
                    bar.advance((rows.stop - rows.start) * rows.stop)
                self._stream_past(A, panel.stop, K, panel, held, bar)

    def gram(self, A: Tensor, B: Tensor, K: Tensor) -> None:
        """Fills K (len(A) * r, len(B) * r)."""
        passes = len(B) + len(A) * -(-len(B) // self._sizes.panel)
        with self._bar(passes + len(A) * len(B)) as bar:
            for panel in _ranges(0, len(B), self._sizes.panel):
                self._stream_past(A, 0, K, panel, self._held(B[panel], bar), bar)

    def diagonal(self, A: Tensor) -> Tensor:
        """(n * r,) each row's product with itself."""
        parts = [
            torch.stack([term.diagonal(factors) for term, factors in terms]).sum(0)
            for terms in self._chunks(A)
        ]
        return torch.cat(parts).flatten() * self._scale

    def features(self, A: Tensor) -> Tensor:
        """(n, d) whose inner products are the kernel."""
        parts = [
            torch.cat([term.features(factors) for term, factors in terms], 1)
            for terms in self._chunks(A)
        ]
        return torch.cat(parts) * math.sqrt(self._scale)

    def _stream_past(
        self, A: Tensor, start: int, K: Tensor, panel: slice, held: list[Factors], bar: PatientBar
    ) -> None:
        """Fills the panel's columns of K for the samples of A from `start` on."""
        for rows in _ranges(start, len(A), self._sizes.chunk):
            self._add(self._block(K, rows, panel), self._held(A[rows], bar), held)
            bar.advance((rows.stop - rows.start) * (panel.stop - panel.start))

    def _held(self, samples: Tensor, bar: PatientBar) -> list[Factors]:
        """All terms' factors of these samples."""
        held: list[Factors] = [
            tuple(part.new_empty((len(samples), *part.shape[1:])) for part in parts)
            for parts in self._plan.example
        ]
        for rows in _ranges(0, len(samples), self._sizes.chunk):
            for whole, parts in zip(held, self._plan.factors(samples[rows]), strict=True):
                for into, part in zip(whole, parts, strict=True):
                    into[rows] = part.detach()
            bar.advance(rows.stop - rows.start)
        return held

    def _chunks(self, A: Tensor) -> Iterator[list[tuple[Term, Factors]]]:
        with self._bar(len(A)) as bar:
            for rows in _ranges(0, len(A), self._sizes.chunk):
                yield list(zip(self._plan.terms, self._held(A[rows], bar), strict=True))

    def _add(self, block: Tensor, left: list[Factors], right: list[Factors]) -> None:
        for term, mine, theirs in zip(self._plan.terms, left, right, strict=True):
            term.add(block, mine, theirs, self._scale)

    def _block(self, K: Tensor, rows: slice, columns: slice) -> Tensor:
        r = self._r
        return K[rows.start * r : rows.stop * r, columns.start * r : columns.stop * r]

    def _bar(self, steps: int) -> PatientBar:
        return PatientBar("empirical kernel, samples and pairs", steps, self._progress)


def _rows(factors: list[Factors], rows: slice) -> list[Factors]:
    return [tuple(each[rows] for each in parts) for parts in factors]


def _shift(rows: slice, by: int) -> slice:
    return slice(rows.start + by, rows.stop + by)


def _ranges(start: int, stop: int, size: int) -> Iterator[slice]:
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))
