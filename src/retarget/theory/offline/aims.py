r"""The aims of the iterative correction: ridge regression on all the past, or on recent samples.

For all the past and a kernel, one growing Cholesky factor serves every block. With explicit
features it is recursive least squares: with $G = \gamma I + \Phi_p^\top \Phi_p = R R^\top$ and
$b = \Phi_p^\top Y_p$ the past is $m \times m$ numbers, however long it is. For new samples let
$V = R^{-1} \Phi_n^\top$; then

    K_nn - K_np (gamma I + K_pp)^-1 K_pn = gamma V^T V        what the past leaves of their kernel
    f_off(X_n; X_p, Y_p) = V^T R^-1 b                          what it predicts for them

so the new rows of the stream's Cholesky factor are those of the small matrix
$\gamma (I + V^\top V)$, and $\beta_n$ comes from it.

Under drift, all the past is the wrong aim. An aim gives the sample of age $a$ (0 for the newest
of the block) a weight $w(a)$ in the offline learner's loss,

    all              w = 1
    window:N         w = 1 for the N newest samples, 0 for the others
    discount:rho     w = rho^a

so that it minimizes $\tfrac12 \sum_i w_i \lVert y_i - f(x_i) \rVert^2 + \tfrac\gamma2 \lVert f
\rVert^2$. Its dual coefficients solve $(\gamma W^{-1} + K) A = Y$ over the samples whose weight is
not 0, and its prediction is K A. All weights change with every block, and so does the whole factor:
it is computed again from the samples that count. With explicit features the sums are discounted, or
computed again from the window's features.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from retarget.arrays import require_memory, shallow
from retarget.engine.lesson import diagonal_blocks
from retarget.engine.primal import FeatureRows
from retarget.engine.settling import in_blocks
from retarget.engine.stream import Window
from retarget.engine.sums import FeatureSums
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.state_files import part_of, require_shape
from retarget.theory.cholesky import (
    GrowingCholesky,
    matrix_condition,
    normal_factor,
    not_positive_definite,
    solve_lower,
    solve_lower_transposed,
    warn_if_meaningless,
)

# A discounted sample with less weight than this is left out: rounding is larger.
LEAST_WEIGHT = 2.0**-52
# The prediction Y - gamma A loses its digits if it is small beside Y, as it is for a sample whose
# kernel is this many times smaller than gamma.
MUCH_LARGER = 1e3
FORMS = "'all', 'window:N' with a number of samples, or 'discount:F' with a factor such as 0.999"


@dataclass(frozen=True)
class Aim:
    """Which samples the offline learner uses: the newest `window`, or all with a discount."""

    window: int | None = None
    discount: float = 1.0

    @property
    def is_all(self) -> bool:
        """Whether all samples have the same weight."""
        return self.window is None and self.discount == 1

    @property
    def horizon(self) -> int:
        """The largest number of samples that count."""
        if self.window is not None:
            return self.window
        return 1 + math.floor(math.log(LEAST_WEIGHT) / math.log(self.discount))

    def weights(self, like: Tensor) -> Tensor:
        """(len(like), 1) the weights of the newest len(like) samples, the oldest first."""
        ages = torch.arange(len(like) - 1, -1, -1, dtype=torch.float64, device=like.device)
        return (self.discount**ages).to(like.dtype)[:, None]


ALL = Aim()


def as_aim(text: Any, name: str = "aim") -> Aim:
    """Parses an aim such as `"window:500"`; `name` is the option's name, for error messages."""
    if not isinstance(text, str):
        raise InvalidTypeError(f"{name} is {text!r}; expected a string: {FORMS}")
    kind, _, amount = text.partition(":")
    try:
        if text == "all":
            return ALL
        if kind == "window" and int(amount) >= 1:
            return Aim(window=int(amount))
        if kind == "discount" and 0 < float(amount) < 1:
            return Aim(discount=float(amount))
    except ValueError:
        pass
    raise InvalidInputError(f"{name} is {text!r}; expected {FORMS}")


class OfflineLearner(ABC):
    """An offline learner that follows a stream, as the iterative correction needs it."""

    _warned = False

    def learn(self, window: Window) -> Tensor:
        """(m, c) its prediction for each new block, once it has learned that block."""
        return self.predictions(window.panel, window.targets, window.block_size, window.start)

    @abstractmethod
    def predictions(
        self, rows: Any, Y: Tensor, block_size: int, start: Tensor | None = None
    ) -> Tensor:
        """(m, c) the same, from what a window holds.

        Args:
            rows: The new samples: kernel rows (m, n + m), or `FeatureRows`.
            Y: (m, c) their targets.
            block_size: Size of their blocks; m is a multiple of it.
            start: (m, c) logits of the starting function; least squares has it subtracted from Y.
        """

    def warn_once(self) -> bool:
        """Warns once if few digits are correct; returns whether it has ever warned."""
        return self._warned

    def fork(self, gram: Callable[[slice], Tensor]) -> Self:
        """Returns an independent learner that continues from here."""
        return shallow(self)  # enough if learning creates new arrays

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any], learned: int, shape: tuple[int, ...]) -> None:
        """Restores a saved state after `learned` samples; `shape` is the coefficients' shape."""


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


def block_bounds(rows: int, block_size: int) -> Iterator[tuple[int, int]]:
    """Where each of several whole blocks begins and ends."""
    return ((first, first + block_size) for first in range(0, rows, block_size))


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


class RecursiveRidge(OfflineLearner):
    """Ridge regression on all the past, from its features: stores m^2 numbers for m features.

    Attributes:
        condition: The largest estimate of the condition number of the normal equations so far.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.condition = 1.0
        self._sums: FeatureSums | None = None  # with gamma in them; the first samples set the sizes

    def innovation(self, rows: FeatureRows, Y: Tensor) -> Innovation:
        """Learns new samples, after predicting them."""
        return self._learn(rows.features, Y)[2]

    def _learn(self, features: Tensor, Y: Tensor) -> tuple[Tensor, Tensor, Innovation]:
        """The same; also what the past leaves of their kernel, and what it predicts for them."""
        sums = self._sums
        if sums is None:
            sums = FeatureSums.nothing(features.shape[1], Y.shape[1], Y)
            sums.normal.diagonal().add_(self.gamma)
        R = normal_factor(sums.normal, self.gamma)
        self.condition = max(self.condition, matrix_condition(sums.normal, R))
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

    def warn_once(self) -> bool:
        """Warns once if few digits are correct; returns whether it has ever warned."""
        if self._sums is not None and not self._warned:
            name = "the normal equations of the features"
            self._warned = warn_if_meaningless(name, self.condition, self._sums.normal.dtype)
        return self._warned

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        state: dict[str, Any] = {"condition": self.condition}
        if self._sums is not None:
            state |= {"normal": self._sums.normal, "moment": self._sums.moment}
        return state

    def load_state_dict(self, state: dict[str, Any], learned: int, shape: tuple[int, ...]) -> None:
        """Restores a saved state after `learned` samples."""
        self.condition = float(state["condition"])
        normal = require_shape("normal", state["normal"], shape[0], shape[0])
        self._sums = FeatureSums(normal, require_shape("moment", state["moment"], *shape))


class RecentKernelRidge(OfflineLearner):
    """Ridge regression on the N samples that count, from their kernel, which it stores.

    Every block takes a factorization of that kernel, N^3 / 3 multiplications.
    """

    def __init__(self, aim: Aim, gamma: float) -> None:
        self.aim = aim
        self.gamma = gamma
        self._K = torch.empty(0, 0, device="cpu")
        self._Y = torch.empty(0, 0, device="cpu")

    def predictions(
        self, rows: Tensor, Y: Tensor, block_size: int, start: Tensor | None = None
    ) -> Tensor:
        """(m, c) the prediction for each new block, once it is learned."""
        past = rows.shape[1] - len(Y)
        bounds = block_bounds(len(Y), block_size)
        return torch.cat([self._predict_after(rows[a:b, : past + b], Y[a:b]) for a, b in bounds])

    def _predict_after(self, K_rows: Tensor, Y: Tensor) -> Tensor:
        """(b, c) the prediction for one new block, once it is learned."""
        new = min(len(Y), self.aim.horizon)  # a window may be shorter than a block
        kept = min(len(self._Y), self.aim.horizon - new)
        count = kept + new
        require_memory(
            f"an aim that counts {count} samples",
            3.0 * count * count,
            Y,
            "use a smaller window or discount, or features=..., which keeps sums",
        )
        K = Y.new_empty(count, count)
        targets = Y.new_empty(count, Y.shape[1])
        if kept:
            K[:kept, :kept] = self._K[-kept:, -kept:]
            targets[:kept] = self._Y[-kept:]
        K[kept:] = K_rows[-new:, -count:]
        K[:kept, kept:] = K[kept:, :kept].mT
        targets[kept:] = Y[-new:]
        self._K = K
        self._Y = targets
        noise = self.gamma / self.aim.weights(targets)[:, 0]
        return K_rows[:, -count:] @ self._solve(K, noise, targets)

    def _solve(self, K: Tensor, noise: Tensor, targets: Tensor) -> Tensor:
        """(N, c) the solution of (diag(noise) + K) A = Y, scaled to a diagonal of about 1."""
        scale = (K.diagonal().clamp(min=0) + noise).clamp(min=torch.finfo(K.dtype).tiny).rsqrt()
        M = K * scale[:, None] * scale
        M.diagonal().add_(noise * scale**2)
        factor, info = torch.linalg.cholesky_ex(M)
        if info.item():
            raise not_positive_definite(K + torch.diag(noise), self.gamma, int(info) - 1)
        if not self._warned:
            condition = matrix_condition(M, factor)
            self._warned = warn_if_meaningless("the aim's kernel", condition, M.dtype)
        return scale[:, None] * torch.cholesky_solve(scale[:, None] * targets, factor)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        return {"warned": self._warned, "kernel": self._K, "targets": self._Y}

    def load_state_dict(self, state: dict[str, Any], learned: int, shape: tuple[int, ...]) -> None:
        """Restores a saved state after `learned` samples."""
        self._warned = bool(state["warned"])
        self._Y = require_shape("targets", state["targets"], None, shape[1])
        count = len(self._Y)
        self._K = require_shape("kernel", state["kernel"], count, count)
        if not 1 <= count <= learned:
            raise InvalidInputError(
                f"{count} samples count, but {learned} were learned; expected 1 to {learned}"
            )


class RecentFeatureRidge(OfflineLearner):
    """Ridge regression on the samples that count, from their features."""

    def __init__(self, aim: Aim, gamma: float) -> None:
        self.aim = aim
        self.gamma = gamma

    def predictions(
        self, rows: FeatureRows, Y: Tensor, block_size: int, start: Tensor | None = None
    ) -> Tensor:
        """(m, c) the prediction for each new block, once it is learned."""
        blocks = [slice(*bounds) for bounds in block_bounds(len(Y), block_size)]
        Phi = rows.features
        return torch.cat(
            [Phi[b] @ self._sums_with(Phi[b], Y[b]).weights(self.gamma) for b in blocks]
        )

    @abstractmethod
    def _sums_with(self, features: Tensor, Y: Tensor) -> FeatureSums:
        """Learns new samples; returns the sums over all that count now."""


class WindowedFeatureRidge(RecentFeatureRidge):
    """The same, which stores the features of the N newest samples, and sums them again."""

    _newest: tuple[Tensor, Tensor] | None = None  # features and targets

    def _sums_with(self, features: Tensor, Y: Tensor) -> FeatureSums:
        count = self.aim.horizon
        if self._newest is not None:
            features = torch.cat([self._newest[0], features])
            Y = torch.cat([self._newest[1], Y])
        self._newest = features[-count:], Y[-count:]
        return FeatureSums.of(*self._newest)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        if self._newest is None:
            return {}
        return {"first": self._newest[0], "second": self._newest[1]}

    def load_state_dict(self, state: dict[str, Any], learned: int, shape: tuple[int, ...]) -> None:
        """Restores a saved state after `learned` samples."""
        count = min(self.aim.horizon, learned)
        features = require_shape("first", state["first"], count, shape[0])
        self._newest = features, require_shape("second", state["second"], count, shape[1])


class DiscountedFeatureRidge(RecentFeatureRidge):
    r"""The same, with a factor on the sums $\Phi^\top \Phi$ and $\Phi^\top Y$."""

    _sums: FeatureSums | None = None

    def _sums_with(self, features: Tensor, Y: Tensor) -> FeatureSums:
        sums = FeatureSums.of(features, Y, self.aim.weights(Y))
        if self._sums is not None:
            aged = self.aim.discount ** len(Y)
            sums.normal.add_(self._sums.normal, alpha=aged)
            sums.moment.add_(self._sums.moment, alpha=aged)
        self._sums = sums
        return sums

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        if self._sums is None:
            return {}
        return {"first": self._sums.normal, "second": self._sums.moment}

    def load_state_dict(self, state: dict[str, Any], learned: int, shape: tuple[int, ...]) -> None:
        """Restores a saved state after `learned` samples."""
        normal = require_shape("first", state["first"], shape[0], shape[0])
        self._sums = FeatureSums(normal, require_shape("second", state["second"], *shape))
