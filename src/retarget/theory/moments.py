r"""Least squares from sums over samples: everything a ridge solution needs, and nothing else.

With features $\phi$ and targets $y$ the ridge solution depends on the stream only through

    N = sum w,   C = sum w phi phi^T,   B = sum w phi y^T,   s = sum w y^2 .

Sums do not depend on the order of their terms; adding those of two streams joins them,
subtracting those of a sample forgets it, and a factor on all of them makes the past count less. The
ridge can be chosen from them as well, by generalised cross-validation.

With an intercept the sums are kept about the means (Chan, Golub and LeVeque, 1983), so that
features far from the origin cost no digits. Without one the means are held at zero.
"""

import copy
import math
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from retarget.arrays import FLOATS
from retarget.errors import InvalidInputError, NotPositiveDefiniteError
from retarget.state_files import require_shape

# The ridge is searched among the powers of ten, then between them in steps of sqrt(10).
STEP = math.sqrt(10)
LARGE_FEATURES = 1e6  # larger ones are worth a remark if there is no solution
LEAST_RIDGE = 1e-13  # relative to the largest entry of C; below it, rounding dominates
MOST_STEPS = 40
# How far rounding may take a sum that should be positive below zero, relative to the sum.
ROUNDING = 1e-9
# A residual below this share of the targets' sum of squares is lost to cancellation.
LEAST_ERROR = 1e-12
# A score counts as better only if it is better by this share: with as many features as samples
# it changes with the ridge mostly by rounding, which depends on the order of the samples.
SAME_SCORE = 1e-3
# Products of two numbers and a weight within these bounds can be added up without overflow.
LARGEST_NUMBER = 1e90
# The numbers and the sums of a saved state, and the shapes of the sums: m features, c outputs.
NUMBERS = {"count": int, "weight": float, "squared_weight": float}
SUMS = {"mean": "m", "target_mean": "c", "scatter": "mm", "cross": "mc", "power": "c"}
COLUMNS = 256  # multiplied together on a CPU, so that the upper triangle can be skipped
TRIANGLE = 512  # columns of a triangle that are solved together


class RidgeSolution(NamedTuple):
    """A ridge regression: the prediction is features @ weights + intercept."""

    weights: Tensor
    intercept: Tensor
    gamma: float


class Moments:
    """The sums over a stream of m features and c targets, in float64.

    Attributes:
        intercept: Whether the solution has an intercept; the sums are then about the means.
        count: Samples learned, less those forgotten.
        weight: Sum of their weights.
        squared_weight: Sum of the squares of their weights.
        mean: (m,) mean of the features, and `target_mean` (c,) of the targets; 0 without intercept.
        scatter: (m, m) C, of which only the lower triangle is read. In a fork: C without its new
            samples.
        cross: (m, c) B.
        power: (c,) s.
    """

    def __init__(
        self, features: int, outputs: int, intercept: bool, device: torch.device | str = "cpu"
    ) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.intercept = intercept
        self.count, self.weight, self.squared_weight = 0, 0.0, 0.0
        self.mean, self.target_mean = zeros(features), zeros(outputs)
        self.scatter, self.cross = zeros(features, features), zeros(features, outputs)
        self.power = zeros(outputs)
        self._pending: list[Tensor] | None = None  # in a fork: rows not added to C yet

    @property
    def features(self) -> int:
        """Number of features."""
        return len(self.mean)

    @property
    def outputs(self) -> int:
        """Number of targets."""
        return len(self.target_mean)

    def empty(self) -> "Moments":
        """Returns empty sums with the same sizes."""
        return Moments(self.features, self.outputs, self.intercept, self.mean.device)

    def add(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Adds samples (n, m) with targets (n, c), all finite, and weights (n,) above 0."""
        if not len(features):
            return
        phi, y = features.to(self.scatter), targets.to(self.scatter)
        w = phi.new_ones(len(phi)) if weights is None else weights.to(phi)
        mean, target_mean = self.mean, self.target_mean
        total = float(w.sum())
        if self.intercept:
            mean, target_mean = w @ phi / total, w @ y / total
            phi, y = phi - mean, y - target_mean
        if weights is not None:
            root = w.sqrt()[:, None]
            phi, y = phi * root, y * root
        self._shift(mean, target_mean, total)
        if self._pending is None:
            _add_products(self.scatter, phi)
        else:
            self._pending.append(phi)
        self.cross.addmm_(phi.mT, y)
        self.power.add_(y.square().sum(0))
        self.count += len(phi)
        self.weight += total
        self.squared_weight += float(w @ w)

    def join(self, other: "Moments") -> None:
        """Adds the samples of other sums."""
        if not other.count:
            return
        self._shift(other.mean, other.target_mean, other.weight)
        self._add_sums(other, 1.0)

    def without(self, other: "Moments") -> "Moments":
        """Returns the sums of the samples that remain after forgetting those of `other`."""
        left = self.empty()
        left._add_sums(self, 1.0)
        left._add_sums(other, -1.0)
        if left.count <= 0 or left.weight <= ROUNDING * self.weight:
            raise InvalidInputError(
                f"{other.count:,} samples are to be forgotten of {self.count:,} learned; expected "
                "some to remain: start a new learner instead"
            )
        mean, target_mean = other.mean.to(self.mean), other.target_mean.to(self.mean)
        left.mean = self._mean_without(self.mean, mean, other.weight)
        left.target_mean = self._mean_without(self.target_mean, target_mean, other.weight)
        if self.intercept:
            gap, target_gap = mean - left.mean, target_mean - left.target_mean
            left._add_gap(gap, target_gap, -left.weight * other.weight / self.weight)
        left._require_possible(self)
        return left

    def scale(self, factor: float) -> None:
        """Multiplies the weight of every sample so far by this factor."""
        if self.weight * factor < 1 / LARGEST_NUMBER:
            raise InvalidInputError(
                f"all samples learned so far would count as {self.weight * factor:.3g} samples, "
                "which is nothing; start a new learner instead"
            )
        self._own_scatter()
        self.weight *= factor
        self.squared_weight *= factor * factor
        for each in (self.scatter, self.cross, self.power):
            each.mul_(factor)

    def widen(self, outputs: int) -> None:
        """Appends outputs whose target was 0 for every sample so far."""
        more = (0, outputs - self.outputs)
        for name in ("target_mean", "power", "cross"):
            setattr(self, name, pad(getattr(self, name), more))

    def copy(self) -> "Moments":
        """Returns an independent copy."""
        twin = self.empty()
        twin.mean, twin.target_mean = self.mean.clone(), self.target_mean.clone()
        twin._add_sums(self, 1.0)
        return twin

    def fork(self) -> "Moments":
        """Returns a cheap copy to add a few samples to and solve: nothing of size m x m is copied.

        It shares C, and keeps the rows of its new samples beside it until `settle` adds them; the
        original must not be used after that. With an intercept, C changes with every mean, and is
        copied.
        """
        if self.intercept:
            return self.copy()
        self._own_scatter()
        fork = copy.copy(self)
        fork.cross, fork.power, fork._pending = self.cross.clone(), self.power.clone(), []
        return fork

    def settle(self) -> None:
        """Adds a fork's new samples to C, which then belongs to the fork."""
        for rows in self._pending or ():
            _add_products(self.scatter, rows)
        self._pending = None

    def _own_scatter(self) -> None:
        """Stops sharing C with the sums that this is a fork of."""
        if self._pending is not None:
            self.scatter = self.scatter.clone()
            self.settle()

    def to_state(self) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Returns the state as plain numbers and tensors."""
        self._own_scatter()
        numbers = {name: getattr(self, name) for name in NUMBERS}
        return numbers, {name: getattr(self, name) for name in SUMS}

    @classmethod
    def from_state(
        cls, numbers: dict[str, Any], tensors: dict[str, Tensor], intercept: bool
    ) -> "Moments":
        """Checks and restores a saved state."""
        m, c = require_shape("cross", tensors["cross"], None, None).shape
        held = cls(m, c, intercept, tensors["cross"].device)
        for name, shape in SUMS.items():
            tensor = require_shape(name, tensors[name], *({"m": m, "c": c}[each] for each in shape))
            if tensor.dtype != torch.float64 or not bool(tensor.isfinite().all()):
                raise InvalidInputError(
                    f"{name} is not float64 or not finite; expected finite float64 numbers"
                )
            # a copy has the usual alignment, on which the last digits of products depend
            setattr(held, name, tensor.clone())
        for name, kind in NUMBERS.items():
            setattr(held, name, kind(numbers[name]))
        weights, most = (held.weight, held.squared_weight), LARGEST_NUMBER * max(held.count, 0)
        if not 0 < held.weight <= most or not 0 < held.squared_weight <= most * LARGEST_NUMBER:
            raise InvalidInputError(
                f"count is {held.count}, weight is {weights[0]}, squared_weight is {weights[1]}; "
                "expected at least 1 sample, and positive weights of at most "
                f"{LARGEST_NUMBER:g} each"
            )
        return held

    def solve(self, gamma: float) -> RidgeSolution:
        """Solves the regression; raises `NotPositiveDefiniteError` if the ridge is too small."""
        factor = self._factor(gamma)
        if factor is None:
            most = float(self._diagonal().max())
            least, size = LEAST_RIDGE * max(most, 1e-300), math.sqrt(most / self.weight)
            large = f", or scale them down: they are as large as {size:.2g}, as those of a network "
            large = f"{large}whose training diverged" if size > LARGE_FEATURES else ""
            raise NotPositiveDefiniteError(
                f"the features are linearly dependent, and gamma = {gamma:g} is too small to "
                f"decide between their weights; use gamma = {max(10 * gamma, 1e3 * least):.2g} or "
                f"more{large}",
                deficit=0.0,
                jitter=1e3 * least,
            )
        weights = torch.cholesky_solve(self.cross, factor)
        return RidgeSolution(weights, self.target_mean - self.mean @ weights, gamma)

    def cross_validation(self, gamma: float) -> float:
        r"""The generalised cross-validation score of a ridge; the smaller the better.

        $V(\gamma) = \frac{\mathrm{RSS}/N}{(1 - \mathrm{tr} H / n)^2}$, where $H$ is the matrix
        that makes the predictions of the targets. For samples of unequal weight, n is the number
        of equally weighted samples that would be worth as much, $N^2 / \sum w^2$.
        """
        factor, error = self._residual(gamma)
        return math.inf if factor is None else self._score(gamma, factor, error)

    def best_gamma(self) -> float:
        """The ridge with the smallest cross-validation score, to within a factor of 3.

        The search goes downhill from the mean of the diagonal of C, on a fixed grid, so the result
        depends on the sums alone. It costs about eight factorisations.
        """
        diagonal = self._diagonal()
        mean, most = float(diagonal.mean()), float(diagonal.max())
        if not mean > 0:
            return 1.0  # all features are zero, or there is only one sample: any ridge will do
        lowest = math.ceil(2 * math.log10(LEAST_RIDGE * 1e3 * most))
        start = max(2 * round(math.log10(mean)), lowest)
        best, scores = start, {start: self.cross_validation(STEP**start)}
        # By powers of ten, looking past two worse ones, because a spectrum with gaps makes scores
        # with bumps; then by half powers of ten.
        for step, patience in ((2, 2), (1, 0)):
            for direction in (-step, step):
                if direction > 0 and best < start and patience:
                    break  # smaller ridges were better: larger ones need not be tried
                following, passed = best + direction, 0
                while passed <= patience and lowest <= following <= start + MOST_STEPS:
                    wanted = (1 - SAME_SCORE) * scores[best]
                    if following not in scores:
                        factor, error = self._residual(STEP**following)
                        if factor is not None and error < wanted:
                            error = self._score(STEP**following, factor, error)
                        elif factor is not None and direction > 0:
                            break  # a larger ridge has a larger residual, and a score above it
                        scores[following] = error
                    if scores[following] < wanted:
                        best, passed = following, -1
                    following, passed = following + direction, passed + 1
        return STEP**best

    def _residual(self, gamma: float) -> tuple[Tensor | None, float]:
        """The Cholesky factor of C + gamma I, if any, and RSS / N, a lower bound of the score."""
        factor = self._factor(gamma)
        if factor is None:
            return None, math.inf
        weights = torch.cholesky_solve(self.cross, factor)
        # RSS = s - 2 <B, W> + <W, C W>, and C W = B - gamma W
        products = (self.cross * weights).sum() + gamma * weights.square().sum()
        power = float(self.power.sum())
        return factor, max(power - float(products), LEAST_ERROR * power) / self.weight

    def _score(self, gamma: float, factor: Tensor, error: float) -> float:
        """The cross-validation score, from the results of `_residual`."""
        samples = self.weight**2 / self.squared_weight
        spent = self.features - gamma * _trace_of_inverse(factor) + self.intercept
        freedom = 1 - spent / samples
        return math.inf if freedom <= 0 else error / freedom**2

    def _factor(self, gamma: float) -> Tensor | None:
        """The Cholesky factor of C + gamma I; None if that is not positive definite."""
        matrix = self.scatter.clone()
        for rows in self._pending or ():
            _add_products(matrix, rows)
        matrix.diagonal().add_(gamma)
        factor, info = torch.linalg.cholesky_ex(matrix)
        if info.item() or not bool(factor.diagonal().isfinite().all()):
            return None
        smallest = float(factor.diagonal().min()) ** 2
        result: Tensor = factor
        return result if smallest > LEAST_RIDGE * float(matrix.diagonal().max()) else None

    def _diagonal(self) -> Tensor:
        """(m,) the diagonal of C."""
        diagonal = self.scatter.diagonal()
        for rows in self._pending or ():
            diagonal = diagonal + rows.square().sum(0)
        return diagonal

    def _require_possible(self, before: "Moments") -> None:
        """Rejects sums that no samples can have; `before` holds the sums before a subtraction.

        C completed by y must be positive semi-definite, and so must the sums of 1 and w.
        """
        slack = ROUNDING * float(before.scatter.diagonal().max())
        factor = self._factor(slack) if slack > 0 else None
        possible = slack == 0 or factor is not None
        if factor is not None:
            explained = (self.cross * torch.cholesky_solve(self.cross, factor)).sum(0)
            possible = bool((explained <= self.power + ROUNDING * before.power).all())
        least = self.weight**2 / self.count  # of a sum of squared weights
        possible = possible and self.squared_weight > (1 - ROUNDING) * least
        if not possible or bool((self.power < -ROUNDING * before.power).any()):
            raise InvalidInputError(
                "samples are to be forgotten that were not learned; pass X and Y (and the weights "
                "that they have by now) exactly as they were learned"
            )

    def _shift(self, mean: Tensor, target_mean: Tensor, weight: float) -> None:
        """Moves the means to include samples of this weight, which are summed about their own."""
        if not self.intercept:
            return
        gap = mean.to(self.mean) - self.mean
        target_gap = target_mean.to(self.mean) - self.target_mean
        share = weight / (self.weight + weight)
        self._add_gap(gap, target_gap, self.weight * share)
        self.mean = self.mean + share * gap
        self.target_mean = self.target_mean + share * target_gap

    def _add_gap(self, gap: Tensor, target_gap: Tensor, factor: float) -> None:
        self.scatter.addr_(gap, gap, alpha=factor)
        self.cross.addr_(gap, target_gap, alpha=factor)
        self.power.add_(target_gap.square(), alpha=factor)

    def _mean_without(self, mean: Tensor, other: Tensor, weight: float) -> Tensor:
        return (self.weight * mean - weight * other) / (self.weight - weight)

    def _add_sums(self, other: Self | "Moments", sign: float) -> None:
        self._own_scatter()
        other._own_scatter()
        self.count += int(sign) * other.count
        self.weight += sign * other.weight
        self.squared_weight += sign * other.squared_weight
        self.scatter.add_(other.scatter.to(self.scatter), alpha=sign)
        self.cross.add_(other.cross.to(self.cross), alpha=sign)
        self.power.add_(other.power.to(self.power), alpha=sign)


def _trace_of_inverse(factor: Tensor) -> float:
    """The trace of (L L^T)^-1, the sum of the squares of L^-1, ten times as fast as by potri."""
    total = 0.0
    for start in range(0, len(factor), TRIANGLE):
        rest = factor[start:, start:]
        columns = torch.zeros_like(rest[:, :TRIANGLE])
        columns.diagonal().fill_(1)
        solved = torch.linalg.solve_triangular(rest, columns, upper=False)
        total += float(solved.square().sum())
    return total


def _add_products(scatter: Tensor, phi: Tensor) -> None:
    """Adds phi^T phi to the lower triangle; on a CPU the upper one is left out, by blocks."""
    columns = COLUMNS if scatter.device.type == "cpu" else len(scatter)
    for start in range(0, len(scatter), columns):
        block = slice(start, start + columns)
        scatter[block, : start + columns].addmm_(phi[:, block].mT, phi[:, : start + columns])


# What every process shares first, besides its type: whether it has learned anything, has an
# intercept, has flat targets; then numbers that must be the same, and their squares.
HEADER = 9


def sums_of_all(
    held: Moments | None,
    flat: bool,
    dtype: torch.dtype | None,
    inputs: int | None,
    add: Callable[[Tensor], Any],
) -> tuple[Moments, bool, torch.dtype, int] | None:
    """Adds up what all processes have learned; None if no process has learned anything.

    The processes find their common means first, and move their sums there before these are added,
    so that features far from the origin cost no digits here either.

    Args:
        held: The sums of this process; None if it has learned nothing.
        flat: Whether its targets had one axis.
        dtype: The type of its predictions.
        inputs: How many numbers each of its samples has.
        add: Replaces a tensor, in place, by its sum over the processes.
    """
    device = torch.device("cpu") if held is None else held.mean.device
    own: list[float] = [0.0] * (HEADER + len(FLOATS))
    if held is not None and dtype is not None:
        sizes = [held.features, held.outputs, inputs or 0]
        types = [dtype == each for each in FLOATS]
        own = [1, held.intercept, flat, *sizes, *(size**2 for size in sizes), *types]
    header = torch.tensor(own, dtype=torch.float64, device=device)
    add(header)
    n, intercepts, flats, *told = (round(each) for each in header.tolist())
    sums, squares, types = told[:3], told[3:6], told[6:]
    if not n:
        return None
    # numbers are the same if and only if the square of their sum is n times the sum of squares
    alike = all(one**2 == n * other for one, other in zip(sums, squares, strict=True))
    m, c, size = (total / n for total in sums)
    if not alike or intercepts not in (0, n):
        raise InvalidInputError(
            f"the {n} learners have on average {m:g} features, {c:g} outputs and {size:g} numbers "
            f"in a sample, and {intercepts} have an intercept; expected the same in every process"
        )
    total = Moments(int(m), int(c), intercepts > 0, device)
    _fill(total, total if held is None else held, add)
    found = [each for each, count in zip(FLOATS, types, strict=True) if count]
    return total, flats == n, reduce(torch.promote_types, found), int(size)


def _fill(total: Moments, held: Moments, add: Callable[[Tensor], Any]) -> None:
    """Adds up the sums of all processes about their common means."""
    weight = held.weight
    own = [held.mean.new_tensor([held.count, weight, held.squared_weight])]
    first = torch.cat([*own, weight * held.mean, weight * held.target_mean])
    add(first)
    numbers, means = first[:3].tolist(), first[3:] / first[1]
    if held.intercept:
        total.mean, total.target_mean = means[: held.features], means[held.features :]
    sums = held.copy()
    sums._add_gap(held.mean - total.mean, held.target_mean - total.target_mean, weight)
    for tensor in (sums.scatter, sums.cross, sums.power):
        add(tensor)
    total.scatter, total.cross, total.power = sums.scatter, sums.cross, sums.power
    total.count, total.weight, total.squared_weight = round(numbers[0]), *numbers[1:]
