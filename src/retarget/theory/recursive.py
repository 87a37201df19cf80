r"""The iterative correction in feature space: the offline learner by recursive least squares.

With $G = \gamma I + \Phi_p^\top \Phi_p = R R^\top$ and $b = \Phi_p^\top Y_p$ the past is $m \times
m$ numbers, however long it is. For the new samples let $V = R^{-1} \Phi_n^\top$; then

    K_nn - K_np (gamma I + K_pp)^-1 K_pn = gamma V^T V        what the past leaves of their kernel
    f_off(X_n; X_p, Y_p) = V^T R^-1 b                          what it predicts for them

so the rows of the stream's Cholesky factor that `sweep` works on are those of the small matrix
$\gamma (I + V^\top V)$, and $\beta_n$ comes from it: the same targets, nothing of the past kept.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from retarget.errors import DivergedError, NotPositiveDefiniteError
from retarget.learners import SGD
from retarget.theory.cholesky import needed_jitter
from retarget.theory.primal import FeatureRows, PrimalLearner
from retarget.theory.settling import Settling
from retarget.theory.sweep import newest_coefficients
from retarget.theory.triangular import solve_lower


class Innovation(NamedTuple):
    """What new samples tell the offline learner.

    Attributes:
        corner: (m, m) their triangle of the stream's Cholesky factor.
        beta: (m, c) their rows of L^-1 Y; corner @ beta is the error of the prediction from the
            past.
    """

    corner: Tensor
    beta: Tensor


class RecursiveRidge:
    """The offline learner of the stream so far, as normal equations.

    Args:
        gamma: Ridge, above 0.
        features: Number of features.
        outputs: Number of targets.
    """

    def __init__(self, gamma: float, features: int, outputs: int, like: Tensor) -> None:
        self.gamma = gamma
        self._normal = gamma * torch.eye(features, dtype=like.dtype, device=like.device)
        self._moment = like.new_zeros(features, outputs)

    def learn(self, features: Tensor, Y: Tensor) -> Innovation:
        """Takes in new samples, after predicting them."""
        R = normal_factor(self._normal, self.gamma)
        V = solve_lower(R, features.mT)
        predicted = V.mT @ solve_lower(R, self._moment)
        left = (V.mT @ V).mul_(self.gamma)
        left.diagonal().add_(self.gamma)
        corner = normal_factor(left, self.gamma)
        beta = solve_lower(corner, Y - predicted)
        self._normal.addmm_(features.mT, features)
        self._moment.addmm_(features.mT, Y)
        return Innovation(corner, beta)


class FeatureSweep:
    """The iterative correction after the blocks so far, both halves of Eq. 16.

    Args:
        learner: The online learner that the targets are for.
        gamma: Ridge of the offline learner.
        ridge: The stabiliser gamma_o of Eq. 15.
        features: Number of features.
        outputs: Number of targets.
        like: A tensor of the dtype and on the device to compute on.
    """

    def __init__(
        self, learner: SGD, gamma: float, ridge: float, features: int, outputs: int, like: Tensor
    ) -> None:
        self.offline = RecursiveRidge(gamma, features, outputs, like)
        self.online = PrimalLearner(learner)
        self._settling = Settling(ridge)

    def correct(self, rows: FeatureRows, Y: Tensor, block_size: int) -> Tensor:
        """Targets for the next blocks, which the learner then learns.

        Args:
            rows: The features of the new samples.
            Y: (m, c) their true targets.
            block_size: Their block size; m is a multiple of it.
        """
        window = self.online.window(rows)
        new = self.offline.learn(rows.features, Y)
        aim = Y - self.offline.gamma * newest_coefficients(new.corner, new.beta, block_size)
        errors = self._settling.errors(window, aim, block_size)
        targets = window.targets(errors)
        if not bool(errors.isfinite().all()):
            raise DivergedError(
                f"the iterative correction diverged in the blocks from sample {window.start} on; "
                "use a larger ridge",
                step=self.online.steps,
                largest_stable_lr=math.nan,
            )
        self.online.learn(window, errors)
        return targets


def normal_factor(M: Tensor, gamma: float) -> Tensor:
    """The Cholesky factor of a matrix to which gamma I was added."""
    factor, info = torch.linalg.cholesky_ex(M)
    if info.item():
        deficit, jitter = needed_jitter(M)
        raise NotPositiveDefiniteError(
            f"the normal equations with gamma = {gamma:g} are not positive definite in "
            f"{str(M.dtype).removeprefix('torch.')}; gamma = {gamma + jitter:.4g} would do",
            deficit=deficit,
            jitter=jitter,
        )
    return factor
