"""The kernel of a stream through explicit features: windows of rows, nothing n x n."""

from collections.abc import Iterator

import torch
from torch import Tensor

from retarget.arrays import panels
from retarget.diagnosis.kernels.base import (
    Advance,
    Follower,
    Offline,
    StreamKernel,
    by_part,
    in_later_steps,
)
from retarget.diagnosis.kernels.feature_maps import FeatureMap
from retarget.learners import SGD
from retarget.theory.primal import FeatureRows, PrimalLearner
from retarget.theory.recursive import RecursiveRidge, normal_factor
from retarget.theory.settling import in_blocks

LEAVE_ONE_OUT_ROWS = 50_000


class FeatureKernel(StreamKernel):
    r"""$K = \Phi \Phi^\top$, never formed.

    Holds the normal matrix $\Phi^\top \Phi$, the moments $\Phi^\top Y$ and the sum of the features;
    and the features themselves, rounded to single precision, if there is room: they are an
    approximation already, and all else is computed in double precision. Without room, and where
    they are exact, they are computed anew in every pass.

    Args:
        features: Makes features of samples.
        X: (n, d) the samples.
        Y: (n, c) their targets.
        advance: Told how many rows were worked on.
        room: Bytes that features may take.
    """

    mode = "features"

    def __init__(
        self, features: FeatureMap, X: Tensor, Y: Tensor, advance: Advance, room: int = 0
    ) -> None:
        super().__init__(X, Y, advance)
        self.map = features
        kept = None
        if not features.exact and 4 * len(X) * features.size <= room:
            kept = torch.empty(len(X), features.size, dtype=torch.float32)
        self._kept: Tensor | None = None
        self._normal = X.new_zeros(features.size, features.size)
        self._moment = X.new_zeros(features.size, Y.shape[1])
        self._sum = X.new_zeros(features.size)
        self._diagonal = X.new_empty(len(X))
        for rows in self.windows(1):
            Phi = self.map(X[rows])
            if kept is not None:
                kept[rows] = Phi
                Phi = kept[rows].double()
            self._normal.addmm_(Phi.mT, Phi)
            self._moment.addmm_(Phi.mT, Y[rows])
            self._sum += Phi.sum(0)
            self._diagonal[rows] = Phi.square().sum(1)
        self._kept = kept

    def _features(self, rows: slice | Tensor) -> Tensor:
        """(m, features) of rows of the stream."""
        return self.map(self.X[rows]) if self._kept is None else self._kept[rows].double()

    def learner(self, learner: SGD) -> PrimalLearner:
        """A learner in feature space."""
        return PrimalLearner(learner)

    def rows(self, rows: slice, order: Tensor | None = None) -> FeatureRows:
        """The samples' features."""
        return FeatureRows(self._features(rows if order is None else order[rows]))

    def in_stream_order(self, coefficients: Tensor, order: Tensor) -> Tensor:
        """Weights belong to features: their order does not depend on that of the samples."""
        return coefficients

    def query(self, X: Tensor) -> Tensor:
        """(m, features) the features."""
        return self.map(X)

    def values(self, coefficients: Tensor) -> Tensor:
        """Features times weights."""
        values = self.Y.new_empty(len(self), coefficients.shape[1])
        for rows in self.windows(1):
            torch.mm(self._features(rows), coefficients, out=values[rows])
        return values

    def blocks(self, size: int) -> Iterator[Tensor]:
        """Inner products within each block."""
        for rows in self.windows(size):
            if size == 1:
                yield self._diagonal[rows][:, None, None]
                continue
            Phi = self._features(rows)
            whole = len(Phi) - len(Phi) % size
            for part in (in_blocks(Phi[:whole], size), Phi[None, whole:]):
                if part.numel():
                    yield part @ part.mT

    def density(self) -> Tensor:
        """Features times their sum, less each row's own part."""
        return (self.values(self._sum[:, None])[:, 0] - self._diagonal) / max(1, len(self) - 1)

    def leave_one_out(self, gammas: Tensor, seed: int) -> tuple[Tensor, int]:
        r"""From one eigendecomposition of the normal matrix, at evenly spaced rows if many.

        The error on row $i$ of the learner that has not seen it is its residual over $1 - H_{ii}$,
        with $H = \Phi (\gamma I + \Phi^\top \Phi)^{-1} \Phi^\top$.
        """
        chosen = self.spread_rows(LEAVE_ONE_OUT_ROWS)
        n = len(chosen)
        S, U = torch.linalg.eigh(self._normal)
        shrink = 1 / (S.clamp(min=0)[:, None] + gammas)  # (features, gammas)
        weights = shrink[:, :, None] * (U.mT @ self._moment)[:, None, :]
        total = self.Y.new_zeros(len(gammas), self.Y.shape[1])
        for some in panels(n, 1, self.X.device):
            Z = self._features(chosen[some]) @ U
            residual = self.Y[chosen[some], None] - torch.tensordot(Z, weights, dims=1)
            kept = 1 - Z.square() @ shrink
            total += (residual / kept[:, :, None]).square().sum(0)
        return total / n, n

    def follow_offline(self, gamma: float) -> Follower:
        """By recursive least squares."""
        ridge = RecursiveRidge(gamma, self.map.size, self.Y.shape[1], self.Y)
        return lambda rows: ridge.learn(self._features(rows), self.Y[rows])

    def offline(self, gamma: float) -> Offline:
        r"""From the normal equations; the dual coefficients are $(Y - \Phi \theta) / \gamma$."""
        ridge = torch.eye(self.map.size, dtype=self.X.dtype) * gamma
        theta = torch.cholesky_solve(self._moment, normal_factor(self._normal + ridge, gamma))
        return Offline((self.Y - self.values(theta)) / gamma, theta)

    def later(
        self, C: Tensor, parts: Tensor, count: int, batch: int
    ) -> Iterator[tuple[slice, Tensor]]:
        """From the last window to the first, with the sum over all later rows of each part."""
        later = C.new_zeros(self.map.size, count * C.shape[1])
        for rows in reversed(list(panels(len(self), batch, self.X.device))):
            seen, D = self.rows(rows), by_part(C[rows], parts[rows], count)
            total = seen.features @ later
            total += in_later_steps(seen.gram, rows.start, batch) @ D
            later.addmm_(seen.features.mT, D)
            yield rows, total.reshape(len(total), count, -1)
            self.advance(rows.stop - rows.start)
