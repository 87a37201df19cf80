"""Features whose inner products are a kernel, or come near it."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from retarget.arrays import as_tensor
from retarget.kernels import RBF, Features, Kernel, Linear

SMALLEST_SHARE = 1e-12  # of a landmark kernel's largest eigenvalue: below it there is only rounding


class FeatureMap(ABC):
    """Maps samples (n, d) to features (n, size).

    Attributes:
        size: Number of features.
        exact: Whether their inner products are the kernel itself.
    """

    size: int
    exact: bool = False

    @abstractmethod
    def __call__(self, X: Tensor) -> Tensor:
        """The features (n, size) of samples (n, d)."""


class RandomFourier(FeatureMap):
    r"""Orthogonal random Fourier features of the RBF kernel.

    The kernel is the mean of $\cos \omega^\top (x - x')$ over $\omega \sim N(0, 2 / \text{width}^2
    I)$, and each frequency gives a cosine and a sine. Frequencies are drawn orthogonal, in groups
    as many as there are dimensions, which keeps their distribution and makes the mean more exact.
    """

    def __init__(self, width: float, dimensions: int, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        count = max(1, size // 2)
        groups = []
        for _ in range(math.ceil(count / dimensions)):
            normal = torch.randn(dimensions, dimensions, generator=generator, dtype=torch.float64)
            lengths = torch.randn(dimensions, dimensions, generator=generator, dtype=torch.float64)
            Q, R = torch.linalg.qr(normal)
            Q = Q * R.diagonal().sign()  # so that Q is uniform among rotations
            groups.append(Q * lengths.norm(dim=0))
        self._frequencies = torch.cat(groups, dim=1)[:, :count] * (math.sqrt(2) / width)
        self.size = 2 * count

    def __call__(self, X: Tensor) -> Tensor:
        """Cosines and sines, scaled so that $k(x, x) = 1$ exactly."""
        count = self.size // 2
        phases = X @ self._frequencies
        features = X.new_empty(len(X), self.size)
        torch.cos(phases, out=features[:, :count])
        torch.sin(phases, out=features[:, count:])
        return features.mul_(1 / math.sqrt(count))


class OwnFeatures(FeatureMap):
    """The features that a linear kernel, or one of the caller's features, is made of."""

    exact = True

    def __init__(self, kernel: Linear | Features, example: Tensor) -> None:
        self._kernel = kernel
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
    """The features for a kernel: its own where it has them, random ones otherwise."""
    if isinstance(kernel, Linear | Features):
        own = OwnFeatures(kernel, X)
        if own.size <= max(size, X.shape[1]):
            return own
    if isinstance(kernel, RBF):
        return RandomFourier(kernel.width, X.shape[1], size, seed)
    chosen = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))[:size]
    return Nystroem(kernel, X[chosen.sort().values])
