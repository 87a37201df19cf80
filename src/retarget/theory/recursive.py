r"""The offline learner of a stream, followed in feature space: recursive least squares.

With $G = \gamma I + \Phi_p^\top \Phi_p = R R^\top$ and $b = \Phi_p^\top Y_p$ the past is $m \times
m$ numbers, however long it is. For the new samples let $V = R^{-1} \Phi_n^\top$; then

    K_nn - K_np (gamma I + K_pp)^-1 K_pn = gamma V^T V        what the past leaves of their kernel
    f_off(X_n; X_p, Y_p) = V^T R^-1 b                          what it predicts for them

so the rows of the stream's Cholesky factor that `sweep` works on are those of the small matrix
$\gamma (I + V^\top V)$, and $\beta_n$ comes from it: the same numbers, nothing of the past kept.
"""

import copy
import math
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from retarget.errors import NotPositiveDefiniteError
from retarget.state_files import require_shape
from retarget.theory.cholesky import needed_jitter, solve_lower


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
        like: A tensor of the type, and on the device, to compute in.

    Attributes:
        condition: A lower bound on the condition number of the normal equations so far.
    """

    def __init__(self, gamma: float, features: int, outputs: int, like: Tensor) -> None:
        self.gamma, self.condition = gamma, 1.0
        self._normal = gamma * torch.eye(features, dtype=like.dtype, device=like.device)
        self._moment = like.new_zeros(features, outputs)

    def learn(self, features: Tensor, Y: Tensor) -> Innovation:
        """Takes in new samples, after predicting them."""
        R = normal_factor(self._normal, self.gamma)
        largest, smallest = (float(end) for end in R.diagonal().aminmax()[::-1])
        self.condition = max(self.condition, (largest / smallest) ** 2)
        V = solve_lower(R, features.mT)
        predicted = V.mT @ solve_lower(R, self._moment)
        left = (V.mT @ V).mul_(self.gamma)
        left.diagonal().add_(self.gamma)
        corner = normal_factor(left, self.gamma)
        beta = solve_lower(corner, Y - predicted)
        # new sums, so that a fork keeps the old ones
        self._normal = torch.addmm(self._normal, features.mT, features)
        self._moment = torch.addmm(self._moment, features.mT, Y)
        return Innovation(corner, beta)

    def fork(self) -> Self:
        """A learner that goes on from here by itself."""
        return copy.copy(self)

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and numbers."""
        return {"condition": self.condition, "normal": self._normal, "moment": self._moment}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of the same sizes."""
        self.condition = float(state["condition"])
        self._normal = require_shape("normal", state["normal"], *self._normal.shape)
        self._moment = require_shape("moment", state["moment"], *self._moment.shape)


def normal_factor(M: Tensor, gamma: float) -> Tensor:
    """The Cholesky factor of a matrix to which gamma I was added."""
    factor, info = torch.linalg.cholesky_ex(M)
    if info.item():
        finite = bool(M.isfinite().all())
        deficit, jitter = needed_jitter(M) if finite else (math.inf, math.inf)
        raise NotPositiveDefiniteError(
            f"the normal equations with gamma = {gamma:g} are not positive definite in "
            f"{str(M.dtype).removeprefix('torch.')}; "
            + (f"gamma = {gamma + jitter:.4g} would do" if finite else "use a larger gamma"),
            deficit=deficit,
            jitter=jitter,
        )
    result: Tensor = factor
    return result
