r"""Ridge regression on all the past.

For a kernel, one growing Cholesky factor serves every block. With explicit
features it is recursive least squares: with $G = \gamma I + \Phi_p^\top \Phi_p = R R^\top$ and
$b = \Phi_p^\top Y_p$ the past is $m \times m$ numbers, however long it is. For new samples let
$V = R^{-1} \Phi_n^\top$; then

    K_nn - K_np (gamma I + K_pp)^-1 K_pn = gamma V^T V        what the past leaves of their kernel
    f_off(X_n; X_p, Y_p) = V^T R^-1 b                          what it predicts for them

so the new rows of the stream's Cholesky factor are those of the small matrix
$\gamma (I + V^\top V)$, and $\beta_n$ comes from it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from retarget.arrays import shallow
from retarget.engine.cholesky import GrowingCholesky
from retarget.engine.definite import normal_factor
from retarget.engine.lesson import diagonal_blocks
from retarget.engine.offline.learner import OfflineLearner, RidgeFromSums
from retarget.engine.primal import FeatureRows
from retarget.engine.settling import in_blocks
from retarget.engine.sums import FeatureSums
from retarget.engine.triangular import solve_lower, solve_lower_transposed
from retarget.errors import InvalidInputError
from retarget.state_files import part_of

# The prediction Y - gamma A loses its digits if it is small beside Y, as it is for a sample whose
# kernel is this many times smaller than gamma.
MUCH_LARGER = 1e3


class Innovation(NamedTuple):
    """What new samples add to the offline learner on all the past.

    Attributes:
        corner: (m, m) their triangle of the stream's Cholesky factor.
        beta: (m, c) their rows of L^-1 Y; corner @ beta is the error of the prediction from the
            past.
    """

    corner: Tensor
    beta: Tensor

    def errors(self, block_size: int) -> Tensor:
        """(m, c) the error on each block of the learner that has seen all before the block."""
        triangles = diagonal_blocks(self.corner, block_size).tril()
        return (triangles @ in_blocks(self.beta, block_size)).flatten(0, 1)


def newest_coefficients(corner: Tensor, beta: Tensor, block_size: int) -> Tensor:
    """L_nn^-T beta_n: the offline coefficients of each block at the time when it is the newest."""
    if corner.shape[0] == block_size:
        return solve_lower_transposed(corner, beta)
    triangles = diagonal_blocks(corner, block_size)
    return solve_lower_transposed(triangles, in_blocks(beta, block_size)).flatten(0, 1)


def predictions_of_small(
    left: Tensor, before: Tensor, new: Innovation, newest: Tensor, block_size: int
) -> Tensor:
    """(m, c) what is predicted for each block once it is learned, without Y - gamma A.

    It is what was predicted before, and what the block's own coefficients add.

    Args:
        left: (m, m) what the past leaves of the new samples' kernel.
        before: (m, c) what the past predicts for them.
        new: What they add.
        newest: (m, c) the coefficients of each block when it is the newest.
        block_size: Size of their blocks.
    """
    earlier = new.corner.tril()  # of the same samples, but of the blocks before
    diagonal_blocks(earlier, block_size).zero_()
    rows = in_blocks(earlier, block_size)
    own = diagonal_blocks(left, block_size) - rows @ rows.mT
    added = (own @ in_blocks(newest, block_size)).flatten(0, 1)
    return before + earlier @ new.beta + added


class KernelRidge(OfflineLearner):
    """Ridge regression on all the past, from its kernel: stores n^2/2 numbers."""

    def __init__(self, gamma: float, gram: Callable[[slice], Tensor], roomy: bool = False) -> None:
        self.gamma = gamma
        self.factor = GrowingCholesky(gamma, gram, roomy)

    def innovation(self, rows: Tensor, Y: Tensor) -> Innovation:
        """Learns new samples from their kernel (m, n + m) to the past and themselves."""
        new = self.factor.extend(rows)
        return Innovation(new.corner, self.factor.commit(new, Y))

    def predictions(
        self, rows: Tensor, Y: Tensor, block_size: int, start: Tensor | None = None
    ) -> Tensor:
        """(m, c) the prediction for each new block, once it is learned."""
        own = rows[:, -len(Y) :]
        n = len(self.factor)
        rows_of_factor = self.factor.extend(rows)
        new = Innovation(rows_of_factor.corner, self.factor.commit(rows_of_factor, Y))
        newest = newest_coefficients(*new, block_size)
        usual = torch.sub(Y, newest, alpha=self.gamma)
        small = MUCH_LARGER * own.diagonal() < self.gamma
        if not small.any():
            return usual
        past = rows_of_factor.past
        left = own - past @ past.mT
        before = past @ self.factor.solved[:n]
        precise = predictions_of_small(left, before, new, newest, block_size)
        return torch.where(small[:, None], precise, usual)

    def warn_once(self) -> bool:
        """Warns once if few digits are correct; returns whether it has ever warned."""
        return self.gamma > 0 and self.factor.warn_once()  # without a ridge, the aim is Y itself

    def fork(self, gram: Callable[[slice], Tensor]) -> Self:
        """Returns an independent learner that continues from here."""
        fork = shallow(self)
        fork.factor = self.factor.fork(gram)
        return fork

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        return {f"factor.{key}": value for key, value in self.factor.state_dict().items()}

    def load_state_dict(self, state: dict[str, Any], learned: int, shape: tuple[int, ...]) -> None:
        """Restores a saved state after `learned` samples."""
        self.factor.load_state_dict(part_of(state, "factor"), columns=shape[1])
        if len(self.factor) != learned:
            raise InvalidInputError(
                f"the factor has {len(self.factor)} rows; expected {learned}, one per sample"
            )


class RecursiveRidge(RidgeFromSums):
    """Ridge regression on all the past, from its features."""

    _sums: FeatureSums | None = None  # the first samples set the sizes

    def innovation(self, rows: FeatureRows, Y: Tensor) -> Innovation:
        """Learns new samples, after predicting them."""
        return self._learn(rows.features, Y)[2]

    def _learn(self, features: Tensor, Y: Tensor) -> tuple[Tensor, Tensor, Innovation]:
        """The same; also what the past leaves of their kernel, and what it predicts for them."""
        sums = self._sums
        if sums is None:
            sums = FeatureSums.nothing(features.shape[1], Y.shape[1], Y)
        R = self._factor(sums)
        V = solve_lower(R, features.mT)
        predicted = V.mT @ solve_lower(R, sums.moment)
        left = (V.mT @ V).mul_(self.gamma)
        ridge = torch.eye(len(left), dtype=left.dtype, device=left.device).mul_(self.gamma)
        corner = normal_factor(left + ridge, self.gamma)
        beta = solve_lower(corner, Y - predicted)
        self._sums = sums.plus(features, Y)  # new ones, so that a fork keeps the old sums
        return left, predicted, Innovation(corner, beta)

    def predictions(
        self, rows: FeatureRows, Y: Tensor, block_size: int, start: Tensor | None = None
    ) -> Tensor:
        """(m, c) the prediction for each new block, once it is learned."""
        small = MUCH_LARGER * rows.features.square().sum(1) < self.gamma
        left, before, new = self._learn(rows.features, Y)
        newest = newest_coefficients(*new, block_size)
        usual = Y - self.gamma * newest
        if not small.any():
            return usual
        precise = predictions_of_small(left, before, new, newest, block_size)
        return torch.where(small[:, None], precise, usual)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        state: dict[str, Any] = {"condition": self.condition}
        return state if self._sums is None else state | self._sums.to_state()

    def load_state_dict(self, state: dict[str, Any], learned: int, shape: tuple[int, ...]) -> None:
        """Restores a saved state after `learned` samples."""
        self.condition = float(state["condition"])
        self._sums = FeatureSums.from_state(state, shape)
