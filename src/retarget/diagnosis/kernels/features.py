"""The kernel of a stream through explicit features: windows of rows, nothing n x n.

The inner products of the features are the kernel, or come near it. Where a kernel has none of its
own they are Nystroem's, from random rows of the stream. (For the RBF kernel, orthogonal random
Fourier features were tried: with 512 of them on 20 dimensions the shifts were wrong by 26%, with
512 of these by 4%.)
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from retarget.arrays import as_tensor, panels
from retarget.diagnosis.kernels.base import (
    Advance,
    Follower,
    Offline,
    StreamKernel,
    by_part,
    in_later_steps,
)
from retarget.diagnosis.result import FeatureKind
from retarget.kernels import Features, Kernel, Linear
from retarget.learners import SGD
from retarget.theory.primal import FeatureRows, PrimalLearner
from retarget.theory.recursive import RecursiveRidge, normal_factor
from retarget.theory.settling import in_blocks

SMALLEST_SHARE = 1e-12  # of a landmark kernel's largest eigenvalue: below it there is only rounding
LEAVE_ONE_OUT_ROWS = 50_000


class FeatureMap(ABC):
    """Maps samples (n, d) to features (n, size).

    Attributes:
        size: Number of features.
        kind: Which they are.
        exact: Whether their inner products are the kernel itself.
    """

    size: int
    kind: FeatureKind = "nystroem"
    exact: bool = False

    @abstractmethod
    def __call__(self, X: Tensor) -> Tensor:
        """The features (n, size) of samples (n, d)."""


class OwnFeatures(FeatureMap):
    """The features that a linear kernel, or one of the caller's features, is made of."""

    exact = True

    def __init__(self, kernel: Linear | Features, example: Tensor) -> None:
        self._kernel = kernel
        self.kind = "linear" if isinstance(kernel, Linear) else "own"
        self.size = self(example[:1]).shape[1]

    def __call__(self, X: Tensor) -> Tensor:
        """The features themselves."""
        if isinstance(self._kernel, Linear):
            return X
        return as_tensor("features", self._kernel.fn(X)).to(X)


class Nystroem(FeatureMap):
    r"""$\phi(x) = k(x, Z)\, k(Z, Z)^{-1/2}$ for a few rows $Z$ of the stream."""

    def __init__(self, kernel: Kernel, landmarks: Tensor) -> None:
        self._kernel, self._landmarks = kernel, landmarks
        values, vectors = torch.linalg.eigh(kernel(landmarks).to(landmarks))
        kept = values > SMALLEST_SHARE * values[-1].clamp(min=0)
        self._root = vectors[:, kept] / values[kept].sqrt()
        self.size = self._root.shape[1]

    def __call__(self, X: Tensor) -> Tensor:
        """The kernel against the landmarks, whitened."""
        features: Tensor = self._kernel(X, self._landmarks).to(X) @ self._root
        return features


def feature_map(kernel: Kernel, X: Tensor, size: int, seed: int) -> FeatureMap:
    """The features for a kernel: its own where it has few enough, Nystroem's otherwise."""
    if isinstance(kernel, Linear | Features):
        own = OwnFeatures(kernel, X)
        if own.size <= max(size, X.shape[1]):
            return own
    chosen = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))[:size]
    return Nystroem(kernel, X[chosen.sort().values])


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
