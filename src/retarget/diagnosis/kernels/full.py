"""The kernel of a stream, all of it in memory: the exact method."""

from collections.abc import Iterator

import torch
from torch import Tensor

from retarget.diagnosis.kernels.base import (
    Advance,
    Follower,
    Offline,
    StreamKernel,
    by_part,
    in_later_steps,
    square_blocks,
)
from retarget.kernels import Kernel
from retarget.learners import SGD
from retarget.theory.cholesky import GrowingCholesky, factorise
from retarget.theory.dual import DualLearner
from retarget.theory.recursive import Innovation

# Rows up to which the leave-one-out error is computed on all of them: an eigendecomposition is
# about thirty times the work of a Cholesky factorisation.
LEAVE_ONE_OUT_ROWS = 2000


def exact_memory(n: int, dimensions: int, outputs: int) -> int:
    r"""Bytes that the exact method takes for `n` rows.

    $8 n^2$ for the kernel, $4 n^2$ for its Cholesky factor, $8 n (d + 48 c + 1024)$ for rows,
    results, the shift by 31 groups and the panels that are worked on, and $32 \min(n, 2000)^2$ for
    the leave-one-out error.
    """
    beside = 8 * n * (dimensions + 48 * outputs + 1024)
    return 12 * n**2 + beside + 32 * min(n, LEAVE_ONE_OUT_ROWS) ** 2


class FullKernel(StreamKernel):
    """All pairs of rows."""

    mode = "exact"

    def __init__(self, kernel: Kernel, X: Tensor, Y: Tensor, advance: Advance) -> None:
        super().__init__(X, Y, advance)
        self._kernel = kernel
        self.K = kernel(X).to(torch.float64)
        self._factor: GrowingCholesky | None = None
        self._gamma = 0.0

    def learner(self, learner: SGD) -> DualLearner:
        """A learner in dual form."""
        return DualLearner(learner, capacity=len(self))

    def rows(self, rows: slice, order: Tensor | None = None) -> Tensor:
        """(m, stop) the kernel of these samples against all before and themselves."""
        if order is None:
            return self.K[rows, : rows.stop]
        return self.K[order[rows]][:, order[: rows.stop]]

    def in_stream_order(self, coefficients: Tensor, order: Tensor) -> Tensor:
        """Dual coefficients belong to rows: they go back to their places."""
        placed = torch.empty_like(coefficients)
        placed[order] = coefficients
        return placed

    def query(self, X: Tensor) -> Tensor:
        """(m, n) the kernel against the stream."""
        return self._kernel(X, self.X).to(torch.float64)

    def values(self, coefficients: Tensor) -> Tensor:
        """K A."""
        return self.K @ coefficients

    def blocks(self, size: int) -> Iterator[Tensor]:
        """Read off the kernel."""
        for rows in self.windows(size):
            yield from square_blocks(self.K[rows, rows], size)

    def density(self) -> Tensor:
        """Means of the kernel's rows, less the diagonal."""
        return (self.K.sum(1) - self.K.diagonal()) / max(1, len(self) - 1)

    def leave_one_out(self, gammas: Tensor, seed: int) -> tuple[Tensor, int]:
        r"""From one eigendecomposition $K = U S U^\top$, of a random sample if there are many rows.

        With $B = (\gamma I + K)^{-1}$ and $A = B Y$ the error on row $i$ of the learner that has
        not seen it is $A_i / B_{ii}$.
        """
        n = min(len(self), LEAVE_ONE_OUT_ROWS)
        K, Y = self.K, self.Y
        if n < len(self):
            generator = torch.Generator().manual_seed(seed)
            chosen = torch.randperm(len(self), generator=generator)[:n].sort().values
            K, Y = K[chosen][:, chosen], Y[chosen]
        S, U = torch.linalg.eigh(K)
        shrink = 1 / (S.clamp(min=0)[:, None] + gammas)
        inverse_diagonal = U.square() @ shrink  # (n, gammas)
        A = torch.tensordot(U, shrink[:, :, None] * (U.mT @ Y)[:, None, :], dims=1)
        return (A / inverse_diagonal[:, :, None]).square().mean(0), n

    def follow_offline(self, gamma: float) -> Follower:
        """By the growing Cholesky factor, which is kept for the offline learner."""
        factor = GrowingCholesky(gamma, lambda rows: self.K[rows, rows])
        beta = torch.empty_like(self.Y)
        self._factor, self._gamma = factor, gamma

        def take(rows: slice) -> Innovation:
            new = factor.extend(self.K[rows, : rows.stop])
            beta[rows] = new.solve(self.Y[rows], beta[: rows.start])
            factor.commit(new)
            return Innovation(new.corner, beta[rows])

        return take

    def offline(self, gamma: float) -> Offline:
        """From the Cholesky factor, as far as the stream has been followed."""
        factor = self._factor
        if factor is None or self._gamma != gamma or len(factor) < len(self):
            factor = factorise(self.K, gamma)
        factor.warn_once()
        dual = factor.solve(self.Y)
        return Offline(dual, dual)

    def later(
        self, C: Tensor, parts: Tensor, count: int, batch: int
    ) -> Iterator[tuple[slice, Tensor]]:
        """Products with the part of K above the diagonal blocks."""
        D = by_part(C, parts, count)
        for rows in self.windows(batch):
            total = self.K[rows, rows.stop :] @ D[rows.stop :]
            total += in_later_steps(self.K[rows, rows], rows.start, batch) @ D[rows]
            yield rows, total.reshape(len(total), count, -1)
