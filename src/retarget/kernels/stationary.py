"""Kernels that depend on the difference of two samples, and random features of them."""

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from retarget.kernels.base import Kernel
from retarget.kernels.linear import Linear
from retarget.scalars import as_positive
from retarget.settings import in_plain_torch

# Samples whose distances are computed: half a million pairs are enough for the median.
MEDIAN_SAMPLES = 1000


class Stationary(Kernel):
    r"""A kernel $k(x, x') = \kappa((x - x') / \text{width})$ with $\kappa(0) = 1$.

    By Bochner's theorem $\kappa$ is the mean of $\cos(\omega \cdot (x - x') / \text{width})$ over
    some distribution of frequencies $\omega$; a subclass makes them from normal numbers.

    Args:
        width: The scale of distances; `"auto"` for `usual_width` of the samples' number of values.
    """

    # How many of a feature's normal numbers all columns have in common.
    SHARED_NORMALS: ClassVar[int] = 0

    def __init__(self, width: float | Literal["auto"]) -> None:
        automatic = isinstance(width, str) and width == "auto"
        self.width: float | Literal["auto"] = "auto" if automatic else as_positive("width", width)

    def __repr__(self) -> str:
        width = "'auto'" if isinstance(self.width, str) else f"{self.width:g}"
        return f"{type(self).__name__}(width={width})"

    @classmethod
    @in_plain_torch
    def from_width(cls, width: float | Literal["auto"], X: Tensor | None = None) -> Self:
        """Makes the kernel; `"auto"` is the median distance between those samples that differ.

        If there are none, it is `usual_width`.
        """
        if width == "auto" and X is not None:
            width = cls.median_distance(X) or cls.usual_width(X[0].numel())
        return cls(width)

    @staticmethod
    @abstractmethod
    def frequencies(normals: Tensor, shared: Tensor) -> Tensor:
        r"""Returns frequencies (d, m) of the kernel of width 1 from standard normal numbers.

        Args:
            normals: (d, m), independent for every column of the samples.
            shared: (`SHARED_NORMALS`, m), which all columns have in common.
        """

    @classmethod
    def usual_width(cls, columns: int) -> float:
        """Returns a width for standardized samples with so many values."""
        return math.sqrt(columns)

    @classmethod
    @in_plain_torch
    def median_distance(cls, X: Tensor) -> float | None:
        """Returns the median distance between samples that differ; None if all are equal.

        It uses at most 1,000 samples, evenly spaced.

        Examples:
            >>> from retarget import RBF
            >>> RBF.median_distance(torch.tensor([[0.0], [1.0], [1.0], [3.0]]))
            2.0
        """
        stride = -(-len(X) // MEDIAN_SAMPLES)
        distances = cls._pairwise_distances(X[::stride].flatten(1).double())
        distances = distances[distances > 0]
        # numpy's median of an even number is the mean of the two in the middle, torch's is not
        return float(np.median(distances.cpu().numpy())) if len(distances) else None

    @classmethod
    def _pairwise_distances(cls, X: Tensor) -> Tensor:
        """Returns the distances of all pairs of rows, in one long vector."""
        return torch.pdist(X)

    def features(self, count: int, seed: int) -> "RandomFourier":
        """Random features of this kernel."""
        return RandomFourier(self, count, seed)

    def width_for(self, columns: int) -> float:
        """Returns the width for samples with so many values."""
        return self.usual_width(columns) if isinstance(self.width, str) else self.width

    def _diag(self, A: Tensor) -> Tensor:
        return A.new_ones(len(A))


def squared_distances(A: Tensor, B: Tensor) -> Tensor:
    """Returns the squared distances (len(A), len(B)); images are long vectors."""
    # |a - b|^2 = |a|^2 + |b|^2 - 2ab is one matrix product. Centered first, so that the
    # cancellation costs no digits when the data lie far from the origin.
    same = A is B
    A = A.flatten(1)
    B = B.flatten(1)
    center = B.mean(dim=0)
    A = A - center
    B = B - center
    squares = A.square().sum(1)[:, None] + B.square().sum(1)[None, :]
    squares.addmm_(A, B.mT, alpha=-2).clamp_(min=0)
    if same:
        squares.fill_diagonal_(0)
    return squares


class RandomFourier:
    r"""Random features of a stationary kernel (Rahimi and Recht, 2007).

    $\phi(x) = \sqrt{2/m} \, [\cos(\Omega x), \sin(\Omega x)]$ with frequencies $\Omega$ of the
    kernel. The mean of $\phi(x) \cdot \phi(x')$ is the kernel, its standard deviation at most
    $1/\sqrt{m}$. An odd m is rounded up. The draw is made on the CPU, so that it is the same on
    every device.

    Args:
        kernel: The kernel.
        count: Number of features.
        seed: Seed of the draw.
    """

    def __init__(self, kernel: Stationary, count: int, seed: int) -> None:
        self.kernel = kernel
        self.count = count
        self.seed = seed
        # drawn for the latest length of a sample, which is often the next one's
        self._drawn = torch.empty(0, 0, device="cpu")

    @in_plain_torch
    def __call__(self, X: Any) -> Tensor:
        """(n, m) features."""
        samples = Linear()._samples("X", X).flatten(1)
        half = -(-self.count // 2)
        drawn = self._drawn
        if len(drawn) != samples.shape[1]:
            drawn = self._drawn = self._draw(samples.shape[1], half)
        angles = samples @ drawn.to(samples)
        return torch.cat([angles.cos(), angles.sin()], 1).mul_(math.sqrt(1 / half))

    def _draw(self, columns: int, half: int) -> Tensor:
        random = torch.Generator().manual_seed(self.seed)
        normals, shared = (
            torch.randn((rows, half), generator=random, dtype=torch.float64, device="cpu")
            for rows in (columns, self.kernel.SHARED_NORMALS)
        )
        return self.kernel.frequencies(normals, shared) / self.kernel.width_for(columns)
