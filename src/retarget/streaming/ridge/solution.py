"""A ridge regression from its sums: the ridge, the weights, and the digits that are left of them.

The weights solve (C + gamma I) W = B, with the C and B of `moments`. `engine.sums.FeatureSums`
solves the same equations from sums that it may write to. Here it would hold a third matrix as large
as C; and that a factorization succeeds is not enough, as what was forgotten leaves rounding in C
that can be larger than the ridge.
"""

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from retarget.engine.condition import expected_digits, inverse_norm
from retarget.errors import NotPositiveDefiniteError, PrecisionWarning, warn_caller
from retarget.streaming.ridge.search import (
    BETTER_SCORE,
    LEAST_ERROR,
    BestRidge,
    Eigen,
    RidgeProblem,
    are_few,
    best_ridge,
    low_rank_eigen,
)

if TYPE_CHECKING:
    from retarget.streaming.ridge.moments import Moments

LARGE_FEATURES = 1e6  # larger ones are worth a remark if there is no solution
LEAST_RIDGE = 1e-13  # relative to the largest entry of C; below it, rounding dominates
# A pivot of C + gamma I below this share of its diagonal entry may be rounding alone.
LEAST_PIVOT = {torch.float64: 1e-13, torch.float32: 3e-6}
# Forgetting is reported if it cost a digit, and fewer than this many are left.
ENOUGH_DIGITS = {torch.float64: 4.0, torch.float32: 2.0}
# How much larger the rounding errors of C are than in float64.
COARSER = {torch.float64: 1.0, torch.float32: 1e5}


class RidgeSolution(NamedTuple):
    """A ridge regression: the prediction is features @ weights + intercept."""

    weights: Tensor
    intercept: Tensor
    gamma: float


def solve(moments: "Moments", gamma: float | Literal["auto"]) -> RidgeSolution:
    """Solves the regression; raises `NotPositiveDefiniteError` if the ridge is too small.

    Args:
        moments: The sums.
        gamma: The ridge; "auto" is the one with the smallest cross-validation score downhill from
            the mean diagonal entry of C, to within a factor of 3. (A smaller score may lie behind a
            hill: with hardly more samples than features it is mostly chance.) The search is on a
            fixed grid and depends on the sums alone. With many features and samples the scores are
            estimates, whose errors are alike for all ridges: they hardly change the choice.
    """
    few = _few(moments)
    weights = None
    if gamma == "auto":
        gamma, weights = _chosen(moments, few)
    if few is not None and _is_enough(moments, gamma):
        weights = few.solve(moments.cross, gamma)
    if weights is not None:
        return RidgeSolution(weights, moments.target_mean - moments.mean @ weights, gamma)
    factor = _known_factor(moments, gamma)
    weights = torch.cholesky_solve(moments.cross, factor)
    _warn_of_rounding(moments, factor, weights)
    return RidgeSolution(weights, moments.target_mean - moments.mean @ weights, gamma)


def inverse_of(moments: "Moments", gamma: float) -> Tensor | Eigen:
    """Returns what solves with C + gamma I: its Cholesky factor, or eigenvectors of C."""
    few = _few(moments)
    return few if few is not None and _is_enough(moments, gamma) else _known_factor(moments, gamma)


def ridge_problem(moments: "Moments") -> RidgeProblem:
    """Returns what the choice of a ridge depends on."""
    power = float(moments.power.sum())
    return RidgeProblem(
        moments.scatter,
        moments.cross,
        power,
        known=LEAST_ERROR * max(power, moments.peak_power),
        weight=moments.weight,
        samples=moments.weight**2 / moments.squared_weight,
        intercept=moments.intercept,
        probed=moments.shared if moments.views > 1 else None,
    )


def _chosen(moments: "Moments", few: Eigen | None) -> tuple[float, Tensor | None]:
    """Returns the best ridge by cross-validation, and its solution if that is known."""
    diagonal = moments.triangle.diagonal()
    mean = float(diagonal.mean())
    most = float(diagonal.max())
    if not mean > 0:
        return 1.0, None  # all features are zero, or there is one sample: any ridge will do
    most = max(most, moments.peak_scatter)  # below its rounding, no ridge can be told from another
    lowest = math.ceil(2 * math.log10(1e3 * _least_ridge(moments, most)))
    start = max(2 * round(math.log10(mean)), lowest)
    search = ridge_problem(moments), few, start, lowest
    best = best_ridge(*search)
    _warn_of_choice(moments, best, *search)
    # what was forgotten asks for the factor, which tells how many digits are left
    return best.gamma, None if moments.peak_scatter else best.weights


def _few(moments: "Moments") -> Eigen | None:
    """The eigenvectors of C if it is a sum over few rows."""
    rows = moments.count * moments.views
    if moments.peak_scatter or not are_few(rows, moments.features):
        return None
    return low_rank_eigen(moments.scatter, rows)


def _is_enough(moments: "Moments", gamma: float) -> bool:
    """Whether this ridge is above the rounding of C."""
    return gamma > LEAST_PIVOT[moments.precision] * (largest_entry(moments) + gamma)


def _known_factor(moments: "Moments", gamma: float) -> Tensor:
    """The Cholesky factor of C + gamma I, or an error that says which ridge would do."""
    factor = factor_of(moments, gamma)
    if factor is not None:
        return factor
    most = largest_entry(moments)
    least = _least_ridge(moments, max(most, moments.peak_scatter, 1e-300))
    size = math.sqrt(most / moments.weight)
    large = f", or scale them down: they are as large as {size:.2g}, as those of a network "
    large = f"{large}whose training diverged" if size > LARGE_FEATURES else ""
    raise NotPositiveDefiniteError(
        f"the features are linearly dependent, and gamma = {gamma:g} is too small to "
        f"decide between their weights; use gamma = {max(10 * gamma, 1e3 * least):.2g} or "
        f"more{large}",
        deficit=0.0,
        jitter=1e3 * least,
    )


def factor_of(moments: "Moments", gamma: float) -> Tensor | None:
    """The Cholesky factor of C + gamma I; None if that is not positive definite."""
    moments.add_waiting()
    matrix = moments.scatter
    matrix.diagonal().add_(gamma)
    factor, info = torch.linalg.cholesky_ex(matrix)
    if info.item() or not bool(factor.diagonal().isfinite().all()):
        return None
    pivots = factor.diagonal().square()
    diagonal = matrix.diagonal()
    enough = float(pivots.min()) > _least_ridge(moments, float(diagonal.max()))
    enough = enough and float((pivots / diagonal).min()) > LEAST_PIVOT[moments.precision]
    result: Tensor = factor
    return result if enough else None


def _least_ridge(moments: "Moments", largest: float) -> float:
    """The ridge below which rounding decides, for this largest entry of C."""
    return LEAST_RIDGE * COARSER[moments.precision] * largest


def largest_entry(moments: "Moments") -> float:
    """The largest entry of C, which is on its diagonal; 0 if rounding left none above it."""
    return max(float(moments.triangle.diagonal().max()), 0.0)


def _warn_of_rounding(moments: "Moments", factor: Tensor, weights: Tensor) -> None:
    """Warns if rounding of the sums before a subtraction shows in the solution.

    An error D of C and d of B changes W by (C + gamma I)^-1 (d - D W), and no entry of B is
    larger than the root of those of C and s.
    """
    if not moments.peak_scatter:
        return
    size = float(weights.abs().max()) or 1.0
    coarse = torch.finfo(moments.precision).eps
    fine = torch.finfo(torch.float64).eps

    def rounding(scatter: float, power: float) -> float:
        return coarse * scatter + fine * math.sqrt(scatter * max(power, 0.0)) / size

    now = rounding(largest_entry(moments), float(moments.power.max()))
    then = rounding(moments.peak_scatter, moments.peak_power)
    if then <= 10 * now:
        return
    inverse = float(inverse_norm(lambda rhs: torch.cholesky_solve(rhs, factor), factor))
    digits = -math.log10(then * inverse)
    if digits < ENOUGH_DIGITS[moments.precision]:
        left = f"{max(digits, 0.0):.1f}"
        _warn_of_forgetting(f"expect {left} correct digits of the solution; use a larger gamma")


def _warn_of_choice(
    moments: "Moments",
    best: BestRidge,
    problem: RidgeProblem,
    few: Eigen | None,
    start: int,
    lowest: int,
) -> None:
    """Warns if rounding of the sums before a subtraction decided which ridge is the best."""
    lost = moments.peak_scatter / largest_entry(moments)
    spoiled = moments.peak_power / max(problem.power, 1e-300)
    doubtful = lost > 10 and lowest in (best.power, start)
    if spoiled > 10 and not doubtful:
        # is its residual lost in rounding, or a better one that is not quite lost?
        least = 64 * torch.finfo(torch.float64).eps * moments.peak_power
        known = max(LEAST_ERROR * problem.power, least)
        other = best_ridge(problem._replace(known=known), few, start, lowest)
        better = other.scores.score(other.gamma) / other.scores.score(best.gamma)
        residual = best.scores.residual(best.gamma) * moments.weight
        doubtful = residual < 2 * problem.known or better < 1 - BETTER_SCORE
    if doubtful:
        digits = min(
            expected_digits(lost, moments.precision), expected_digits(spoiled, torch.float64)
        )
        left = f"{max(digits, 0.0):.1f}"
        _warn_of_forgetting(
            f"the sums have {left} correct digits, too few to choose gamma; give it"
        )


def _warn_of_forgetting(what: str) -> None:
    warn_caller(
        "samples were forgotten that were much larger, or many more, than those that are left, and "
        f"the rounding errors of the former sums stay: {what}, or learn what is left in a new "
        "learner",
        PrecisionWarning,
    )
