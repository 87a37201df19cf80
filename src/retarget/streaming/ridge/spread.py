r"""How certain a ridge solution is: the variance of what it predicts, and errors of leaving out.

Ridge regression is the posterior mean of a Gaussian process with weights of variance
$\sigma^2/\gamma$ and noise of variance $\sigma^2$. The variance of the function at features phi
(less their mean, with an intercept, which is then known to $\sigma^2/N$) is

    sigma^2 phi^T (C + gamma I)^-1 phi ,   sigma^2 = (s - sum B * W) / N ,

where the second is the noise for which the targets are most likely.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from retarget.errors import InvalidInputError
from retarget.streaming.ridge.kept import KeptRows
from retarget.streaming.ridge.moments import Moments
from retarget.streaming.ridge.search import Eigen
from retarget.streaming.ridge.solution import RidgeSolution, inverse_of

FEWEST = 2  # samples, to tell the size of an error
# A leverage can be above 1 by rounding, or so close that nothing is known without the sample.
LARGEST_LEVERAGE = 1 - 1e-9


class Spread(NamedTuple):
    """Solves for (C + gamma I)^-1, by a Cholesky factor or by the few eigenvectors of C."""

    mean: Tensor  # (m,)
    gamma: float
    constant: float  # 1 / N for an intercept, else 0
    inverse: Tensor | Eigen

    def of(self, features: Tensor) -> Tensor:
        """Returns phi^T (C + gamma I)^-1 phi (n,) for features (n, m)."""
        phi = features.to(self.mean) - self.mean
        if isinstance(self.inverse, Tensor):
            halves: Tensor = torch.linalg.solve_triangular(self.inverse, phi.mT, upper=False)
            return halves.square().sum(0) + self.constant
        along = (phi @ self.inverse.vectors).square()
        across = (phi.square().sum(1) - along.sum(1)).clamp(min=0)
        inside: Tensor = (along / (self.inverse.values + self.gamma)).sum(1)
        return inside + across / self.gamma + self.constant


class LeftOut(NamedTuple):
    """Samples that were kept, as they look to a learner that has learned all others.

    Attributes:
        targets: (k, c) less what learning started from.
        predictions: (k, c) the same, of the learner without the sample.
        spreads: (k,) phi^T (C + gamma I)^-1 phi without the sample.
        times: (k,) how many samples each stands for.
    """

    targets: Tensor
    predictions: Tensor
    spreads: Tensor
    times: Tensor


def spread_of(moments: Moments, solution: RidgeSolution) -> Spread:
    """Factors C + gamma I once, for any number of samples."""
    constant = 1 / moments.weight if moments.intercept else 0.0
    inverse = inverse_of(moments, solution.gamma)
    return Spread(moments.mean, solution.gamma, constant, inverse)


def noise_of(moments: Moments, solution: RidgeSolution) -> Tensor:
    """Returns sigma^2 (c,) for a sample of mean weight."""
    if moments.count < FEWEST:
        raise InvalidInputError(
            f"{moments.count} sample was learned, which does not tell how large errors are; "
            f"expected at least {FEWEST}"
        )
    explained = (moments.cross * solution.weights).sum(0)
    freedom = moments.weight * (1 - moments.intercept / moments.count)
    return (moments.power - explained).clamp(min=0) / freedom


def left_out(kept: KeptRows, moments: Moments, solution: RidgeSolution, spread: Spread) -> LeftOut:
    """Leaves out each row that was kept, in turn."""
    if moments.count < FEWEST or not kept.rows:
        raise InvalidInputError(
            f"{len(kept.rows)} rows are kept of {moments.count} samples, too few to tell how the "
            f"learner does on other samples; expected at least {FEWEST} samples, and "
            "`calibration` above 0"
        )
    features, targets, weights, times = kept.table(moments.outputs)
    answers = targets.to(moments.mean)
    phi = features.to(moments.mean)
    errors = answers - (phi @ solution.weights + solution.intercept)
    spreads = spread.of(phi)
    rest = 1 - (weights * spreads).clamp(max=LARGEST_LEVERAGE)
    return LeftOut(answers, answers - errors / rest[:, None], spreads / rest, times)
