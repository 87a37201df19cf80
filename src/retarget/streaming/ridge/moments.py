r"""Least squares from sums over samples: everything a ridge solution needs, and nothing else.

With features $\phi$ and targets $y$ the ridge solution depends on the stream only through

    N = sum w,   C = sum w phi phi^T,   B = sum w phi y^T,   s = sum w y^2 .

Sums do not depend on the order of their terms; adding those of two streams joins them,
subtracting those of a sample forgets it, and a factor on all of them makes the past count less. The
ridge can be chosen from them as well, by generalized cross-validation.

A tensor of these sums is never written to: a change makes new ones. So a copy costs nothing, other
threads may read while one learns, and what is interrupted changes nothing.

With an intercept the sums are kept about the means (Chan, Golub and LeVeque, 1983), so that
features far from the origin cost no digits. Without one the means are held at zero. `solution`
turns them into weights.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from retarget.errors import InvalidInputError
from retarget.state_files import require_shape
from retarget.streaming.ridge.kept import rearranged
from retarget.streaming.ridge.search import probes
from retarget.streaming.ridge.solution import COARSER, factor_of, largest_entry
from retarget.streaming.ridge.triangle import Triangle

# How far rounding may take a sum that should be positive below zero, relative to the sum.
ROUNDING = 1e-9
# How far features of the same sample may be apart that were computed twice, in units of rounding of
# their type: beside other samples, or more padding, a network adds numbers in another order.
FEATURE_ROUNDING = 256
# The same for a mean, in units of rounding of the mean itself.
MEAN_ROUNDING = 64 * torch.finfo(torch.float64).eps
# Products of two numbers and a weight within these bounds can be added up without overflow.
LARGEST_NUMBER = 1e90
LARGEST_SUM = 2.0**53 * LARGEST_NUMBER**3  # of products of two numbers and a weight
# The numbers and the sums of a saved state, and the shapes of the sums: m features, c outputs, t
# numbers of a triangle, k probes.
NUMBERS = {
    "count": int,
    "weight": float,
    "squared_weight": float,
    "peak_scatter": float,
    "peak_power": float,
    "peak_weight": float,
}
SUMS = {
    "mean": "m",
    "target_mean": "c",
    "triangle": "t",
    "cross": "mc",
    "power": "c",
    "shared": "mk",
}


class Moments:
    """The sums over a stream of m features and c targets, in float64.

    Attributes:
        intercept: Whether the solution has an intercept; the sums are then about the means.
        views: Rows that each sample has.
        precision: The type in which C is kept.
        count: Samples learned, less those forgotten.
        weight: Sum of their weights.
        squared_weight: Sum of the squares of their weights.
        peak_scatter: The largest diagonal entry of a C from which something was subtracted,
            `peak_power` the largest s, and `peak_weight` the largest weight: their rounding stays.
            0 if nothing was.
        feature_rounding: How far the features that were added may be from those of the same
            samples, computed again, relative to their length.
        mean: (m,) mean of the features, and `target_mean` (c,) of the targets; 0 without intercept.
        cross: (m, c) B.
        power: (c,) s.
        shared: (m, k) P z for k vectors z, if samples have several rows; see `search`.
    """

    def __init__(
        self,
        features: int,
        outputs: int,
        intercept: bool,
        device: torch.device | str = "cpu",
        *,
        views: int = 1,
        precision: torch.dtype = torch.float64,
    ) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.intercept = intercept
        self.views = views
        self.precision = precision
        self.count = 0
        self.weight = 0.0
        self.squared_weight = 0.0
        self.peak_scatter = self.peak_power = self.peak_weight = 0.0
        self.feature_rounding = 0.0
        self.mean = zeros(features)
        self.target_mean = zeros(outputs)
        self.cross = zeros(features, outputs)
        self.power = zeros(outputs)
        self.triangle = Triangle.of_zeros(self.mean, precision)
        self.shared = probes(features, self.mean) * 0 if views > 1 else zeros(features, 0)

    @property
    def features(self) -> int:
        """Number of features."""
        return len(self.mean)

    @property
    def outputs(self) -> int:
        """Number of targets."""
        return len(self.target_mean)

    @property
    def nbytes(self) -> int:
        """Bytes of the sums, without rows that wait to be added."""
        few = self.mean, self.target_mean, self.cross, self.power, self.shared
        return sum(each.nbytes for each in (*few, *self.triangle.blocks))

    @property
    def scatter(self) -> Tensor:
        """(m, m) C."""
        return self.triangle.matrix()

    def add(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Adds rows (n, m) with targets (n, c), all finite, and weights (n,) above 0.

        All rows of a sample must be among them, with the same weight: first the first row of each
        sample, then the second of each, and so on.
        """
        if not len(features):
            return
        phi = features.to(self.mean)
        y = targets.to(self.mean)
        w = phi.new_ones(len(phi)) if weights is None else weights.to(phi)
        rounding = FEATURE_ROUNDING * torch.finfo(features.dtype).eps
        self.feature_rounding = max(self.feature_rounding, rounding)
        mean = self.mean
        target_mean = self.target_mean
        total = float(w.sum())
        if self.intercept:
            # from the first row on: the mean of equal numbers is this number, without rounding
            mean = phi[0] + w @ (phi - phi[0]) / total
            target_mean = y[0] + w @ (y - y[0]) / total
            phi = phi - mean
            y = y - target_mean
        if weights is not None:
            root = w.sqrt()[:, None]
            phi = phi * root
            y = y * root
        self._shift(mean, target_mean, total)
        self.triangle = self.triangle.plus_rows(phi)
        self.cross = torch.addmm(self.cross, phi.mT, y)
        self.power = self.power + y.square().sum(0)
        if self.views > 1:
            u = phi.reshape(self.views, -1, self.features).sum(0) / math.sqrt(self.views)
            self.shared = torch.addmm(self.shared, u.mT, u @ probes(self.features, self.mean))
        self.count += len(phi) // self.views
        self.weight += total
        # of samples, not rows: the rows of a sample are left out together in cross-validation
        self.squared_weight += self.views * float(w @ w)

    def join(self, other: "Moments") -> None:
        """Adds the samples of other sums."""
        if not other.count:
            return
        self._shift(other.mean, other.target_mean, other.weight)
        self._add_sums(other, 1.0)

    def without(self, other: "Moments", repeats: bool = False) -> "Moments":
        """Returns the sums of the samples that remain after forgetting those of `other`.

        With `repeats` all weights are numbers of samples, and their squares were not added up.
        """
        left = self.copy()
        left._add_sums(other, -1.0)
        if left.count <= 0 or left.weight <= ROUNDING * self.weight:
            raise InvalidInputError(
                f"{other.count:,} samples are to be forgotten of {self.count:,} learned; expected "
                "some to remain: start a new learner instead"
            )
        left.peak_scatter = max(left.peak_scatter, float(self.triangle.diagonal().max()))
        left.peak_power = max(left.peak_power, float(self.power.max()))
        left.peak_weight = max(left.peak_weight, self.weight)
        mean = other.mean.to(self.mean)
        target_mean = other.target_mean.to(self.mean)
        left.mean = self._mean_without(self.mean, mean, other.weight)
        left.target_mean = self._mean_without(self.target_mean, target_mean, other.weight)
        gap = mean - left.mean
        target_gap = target_mean - left.target_mean
        if self.intercept:
            left.add_gap(gap, target_gap, -left.weight * other.weight / self.weight)
        # of a sum of squared weights
        least = left.weight if repeats else left.weight**2 / left.count
        impossible = left.squared_weight <= (1 - ROUNDING) * least - ROUNDING * self.squared_weight
        left.squared_weight = max(left.squared_weight, least)
        if impossible or not left._are_possible(*other._drift(gap, target_gap)):
            raise InvalidInputError(
                "samples are to be forgotten that were not learned; pass X and Y (and the weights "
                "that they have by now) exactly as they were learned"
            )
        return left

    def scale(self, factor: float) -> None:
        """Multiplies the weight of every sample so far by this factor."""
        if self.weight * factor < 1 / LARGEST_NUMBER:
            raise InvalidInputError(
                f"all samples learned so far would together count as {self.weight * factor:.3g} "
                "samples, so none of them would count; start a new learner instead"
            )
        self.weight *= factor
        self.squared_weight *= factor * factor
        self.peak_scatter *= factor
        self.peak_power *= factor
        self.peak_weight *= factor
        self.triangle = self.triangle.times(factor)
        self.cross = self.cross * factor
        self.power = self.power * factor
        self.shared = self.shared * factor

    def rearrange(self, columns: Sequence[int | None]) -> None:
        """Makes output j that of columns[j]; of a new one, where it is None, the target was 0."""
        for name in ("target_mean", "power", "cross"):
            setattr(self, name, rearranged(getattr(self, name), columns))

    def copy(self) -> "Moments":
        """Returns an independent copy, at no cost."""
        return copy.copy(self)

    def to_state(self) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Returns the state as plain numbers and tensors."""
        self.add_waiting()
        numbers = {name: getattr(self, name) for name in NUMBERS}
        tensors = {name: getattr(self, name) for name in SUMS}
        return numbers, tensors | {"triangle": self.triangle.packed()}

    @classmethod
    def from_state(
        cls,
        numbers: dict[str, Any],
        tensors: dict[str, Tensor],
        intercept: bool,
        views: int = 1,
        precision: torch.dtype = torch.float64,
    ) -> "Moments":
        """Checks and restores a saved state."""
        m, c = require_shape("cross", tensors["cross"], None, None).shape
        device = tensors["cross"].device
        sums = cls(m, c, intercept, device, views=views, precision=precision)
        sizes = {"m": m, "c": c, "t": m * (m + 1) // 2, "k": sums.shared.shape[1]}
        for name, shape in SUMS.items():
            tensor = require_shape(name, tensors[name], *(sizes[each] for each in shape))
            expected = precision if name == "triangle" else torch.float64
            if tensor.dtype != expected or not bool((tensor.abs() <= LARGEST_SUM).all()):
                raise InvalidInputError(
                    f"{name} is not {expected}, or not finite, or larger than sums can be; "
                    f"expected numbers of at most {LARGEST_SUM:.0e} in size"
                )
            if name == "triangle":
                sums.triangle = Triangle.of_packed(tensor, sums.mean)
            else:  # a copy has the usual alignment, on which the last digits of products depend
                setattr(sums, name, tensor.clone())
        for name, kind in NUMBERS.items():
            setattr(sums, name, kind(numbers[name]))
        weights = (sums.weight, sums.squared_weight)
        most = LARGEST_NUMBER * max(sums.count, 0)
        if not 0 < sums.weight <= most or not 0 < sums.squared_weight <= most * LARGEST_NUMBER:
            raise InvalidInputError(
                f"count is {sums.count}, weight is {weights[0]}, squared_weight is {weights[1]}; "
                "expected at least 1 sample, and positive weights of at most "
                f"{LARGEST_NUMBER:g} each"
            )
        peaks = sums.peak_scatter, sums.peak_power, sums.peak_weight
        if not all(0 <= each < math.inf for each in peaks):
            raise InvalidInputError(
                f"peak_scatter is {peaks[0]}, peak_power is {peaks[1]} and peak_weight is "
                f"{peaks[2]}; expected finite numbers"
            )
        if not sums._are_possible():
            raise InvalidInputError(
                "scatter, cross and power are not sums over the same samples: no samples have them"
            )
        return sums

    def add_waiting(self) -> None:
        """Adds rows that wait; the sums stay the same, so that others may read them meanwhile."""
        self.triangle = self.triangle.added()

    def _drift(self, gap: Tensor, target_gap: Tensor) -> tuple[float, Tensor]:
        """How far what is left without these samples may be off, if they were computed again.

        With features phi + d, |d| <= e |phi|, in the place of phi, and the mean that is then found
        for the samples left, their C is off by the sum of d d^T - (phi + d - mean) d^T - its
        transpose, and B by that of -d (y - mean)^T: by little if phi lies near this mean, however
        far both are from the origin. The first term takes nothing from C.

        Args:
            gap: Mean of these samples' features less that of the samples left.
            target_gap: The same for the targets.

        Returns:
            A bound for what C may lack, and for the columns of B (c,).
        """
        spread = max(float(self.triangle.diagonal().sum()), 0.0)
        size = spread + self.weight * float(self.mean.square().sum())  # sum of |phi|^2
        spread += self.weight * float(gap.square().sum())  # sum of |phi - mean|^2
        power = self.power.clamp(min=0) + self.weight * target_gap.square()
        off = self.feature_rounding * math.sqrt(size)  # root of the sum of |d|^2
        return 2 * off * math.sqrt(spread), off * power.sqrt()

    def _are_possible(self, drift: float = 0.0, target_drift: Tensor | float = 0.0) -> bool:
        """Whether samples can have these sums: C completed by y is positive semi-definite.

        Args:
            drift: How far C may be from the sums of any samples.
            target_drift: The same for the columns of B (c,).
        """
        largest = max(largest_entry(self), self.peak_scatter)
        off = float(self._off(self.mean).max())
        target_off = self._off(self.target_mean)
        slack = ROUNDING * COARSER[self.precision] * largest + off * (off + 2 * math.sqrt(largest))
        power = self.power.clamp(min=self.peak_power)
        slack += drift
        off_power = target_off * (target_off + 2 * power.sqrt())
        if bool((self.power < -ROUNDING * power - off_power).any()):
            return False
        if slack == 0:  # all features are zero
            return not bool(self.cross.any())
        factor = factor_of(self, slack)
        if factor is None:
            return False
        weights = torch.cholesky_solve(self.cross, factor)
        explained = (self.cross * weights).sum(0)
        # what rounding of C may change it by
        noise = ROUNDING * power + off_power + (1e-3 * slack + drift) * weights.square().sum(0)
        # and of the means, which are in every product of B
        products = target_off * math.sqrt(largest) + off * power.sqrt()
        noise += 2 * (products + target_drift) * weights.norm(dim=0)
        return bool((explained <= self.power + noise).all())

    def _off(self, mean: Tensor) -> Tensor:
        """What rounding of a mean adds to the root of a sum of squares about it."""
        times = max(self.peak_weight / self.weight, 1.0)  # of a mean of more samples
        return MEAN_ROUNDING * times * math.sqrt(self.weight) * mean.abs()

    def _shift(self, mean: Tensor, target_mean: Tensor, weight: float) -> None:
        """Moves the means to include samples of this weight, which are summed about their own."""
        if not self.intercept:
            return
        gap = mean.to(self.mean) - self.mean
        target_gap = target_mean.to(self.mean) - self.target_mean
        share = weight / (self.weight + weight)
        self.add_gap(gap, target_gap, self.weight * share)
        self.mean = self.mean + share * gap
        self.target_mean = self.target_mean + share * target_gap

    def add_gap(self, gap: Tensor, target_gap: Tensor, factor: float) -> None:
        """Adds one sample more: the gap between means, which counts as much as this factor."""
        if factor >= 0:
            self.triangle = self.triangle.plus_rows(math.sqrt(factor) * gap[None])
        else:
            self.triangle = self.triangle.plus_product(gap, factor)
        self.cross = torch.addr(self.cross, gap, target_gap, alpha=factor)
        if self.views > 1:
            self.shared = torch.addr(
                self.shared, gap, gap @ probes(self.features, self.mean), alpha=factor
            )
        self.power = torch.add(self.power, target_gap.square(), alpha=factor)

    def _mean_without(self, mean: Tensor, other: Tensor, weight: float) -> Tensor:
        return mean + (mean - other) * (weight / (self.weight - weight))

    def _add_sums(self, other: "Moments", sign: float) -> None:
        self.count += int(sign) * other.count
        self.weight += sign * other.weight
        self.squared_weight += sign * other.squared_weight
        self.peak_scatter = max(self.peak_scatter, other.peak_scatter)
        self.peak_power = max(self.peak_power, other.peak_power)
        self.peak_weight = max(self.peak_weight, other.peak_weight)
        self.triangle = self.triangle.plus(other.triangle, sign)
        self.cross = torch.add(self.cross, other.cross.to(self.cross), alpha=sign)
        self.power = torch.add(self.power, other.power.to(self.power), alpha=sign)
        self.shared = torch.add(self.shared, other.shared.to(self.shared), alpha=sign)
