r"""Ridge regression on recent samples, for streams that drift.

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
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from retarget.arrays import require_memory
from retarget.engine.cholesky import GrowingCholesky
from retarget.engine.offline.learner import OfflineLearner, RidgeFromSums, block_bounds
from retarget.engine.primal import FeatureRows
from retarget.engine.sums import FeatureSums
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.state_files import require_shape

# A discounted sample with less weight than this is left out: rounding is larger.
LEAST_WEIGHT = 2.0**-52
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
        return K_rows[:, -count:] @ self._coefficients(K, targets)

    def _coefficients(self, K: Tensor, targets: Tensor) -> Tensor:
        r"""(N, c) $A = W^{1/2} (\gamma I + W^{1/2} K W^{1/2})^{-1} W^{1/2} Y$."""
        root = self.aim.weights(targets).sqrt()
        scaled = root * K * root.mT
        factor = GrowingCholesky(self.gamma, lambda rows: scaled[rows, rows])
        factor.commit(factor.extend(scaled))
        self._warned = self._warned or factor.warn_once()
        return root * factor.solve(root * targets)

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


class RecentFeatureRidge(RidgeFromSums):
    """Ridge regression on the samples that count, from their features."""

    def __init__(self, aim: Aim, gamma: float) -> None:
        super().__init__(gamma)
        self.aim = aim

    def predictions(
        self, rows: FeatureRows, Y: Tensor, block_size: int, start: Tensor | None = None
    ) -> Tensor:
        """(m, c) the prediction for each new block, once it is learned."""
        blocks = [slice(*bounds) for bounds in block_bounds(len(Y), block_size)]
        return torch.cat([self._predict_after(rows.features[b], Y[b]) for b in blocks])

    def _predict_after(self, features: Tensor, Y: Tensor) -> Tensor:
        """(b, c) the prediction for one new block, once it is learned."""
        sums = self._sums_with(features, Y)
        return features @ torch.cholesky_solve(sums.moment, self._factor(sums))

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
        state: dict[str, Any] = {"condition": self.condition}
        if self._newest is not None:
            state |= {"features": self._newest[0], "targets": self._newest[1]}
        return state

    def load_state_dict(self, state: dict[str, Any], learned: int, shape: tuple[int, ...]) -> None:
        """Restores a saved state after `learned` samples."""
        self.condition = float(state["condition"])
        count = min(self.aim.horizon, learned)
        features = require_shape("features", state["features"], count, shape[0])
        self._newest = features, require_shape("targets", state["targets"], count, shape[1])


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
        state: dict[str, Any] = {"condition": self.condition}
        return state if self._sums is None else state | self._sums.to_state()

    def load_state_dict(self, state: dict[str, Any], learned: int, shape: tuple[int, ...]) -> None:
        """Restores a saved state after `learned` samples."""
        self.condition = float(state["condition"])
        self._sums = FeatureSums.from_state(state, shape)
