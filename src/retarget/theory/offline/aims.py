r"""What the iterative correction leads to: the batch learner of all the past, or of what is recent.

Under drift a batch learner of all the past is the wrong example. An aim gives the sample of age
$a$ (0 for the newest of the block) a weight $w(a)$ in the offline learner's loss,

    all              w = 1
    window:N         w = 1 for the N newest samples, 0 for the others
    discount:rho     w = rho^a

so that it minimises $\tfrac12 \sum_i w_i \lVert y_i - f(x_i) \rVert^2 + \tfrac\gamma2 \lVert f
\rVert^2$. Its dual coefficients solve $(\gamma W^{-1} + K) A = Y$ over the samples whose weight is
not 0, and its prediction is K A. The rest of the correction asks for nothing but this prediction
at the newest block.

For all the past one growing factor serves every block. Here all weights change with every block,
and with them all of the factor: it is computed anew, from the samples that count. With explicit
features it is sums that are discounted, or made again from the window's features.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from retarget.arrays import require_memory
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.state_files import require_shape
from retarget.theory.cholesky import (
    inverse_norm,
    normal_factor,
    not_positive_definite,
    warn_if_meaningless,
    worth_estimating,
)

# A discounted sample that counts less than this is left out: rounding is larger.
LEAST_WEIGHT = 2.0**-52
FORMS = "'all', 'window:N' with a number of samples, or 'discount:F' with a factor such as 0.999"


@dataclass(frozen=True)
class Aim:
    """Which samples the offline learner counts, and how much.

    Attributes:
        window: The number of newest samples that count; None for all.
        discount: The factor by which a sample counts less with every newer one.
    """

    window: int | None = None
    discount: float = 1.0

    @property
    def is_all(self) -> bool:
        """Whether every sample counts alike."""
        return self.window is None and self.discount == 1

    @property
    def horizon(self) -> int:
        """Samples that count, at most."""
        if self.window is not None:
            return self.window
        return 1 + math.floor(math.log(LEAST_WEIGHT) / math.log(self.discount))

    def weights(self, like: Tensor) -> Tensor:
        """(len(like), 1) those of as many newest samples, the oldest first."""
        ages = torch.arange(len(like) - 1, -1, -1, dtype=torch.float64, device=like.device)
        return (self.discount**ages).to(like.dtype)[:, None]


ALL = Aim()


def as_aim(text: Any, name: str = "aim") -> Aim:
    """The aim that a text names.

    Args:
        text: `"all"`, `"window:500"` or `"discount:0.999"`.
        name: What it is called where it is given, for messages.
    """
    if not isinstance(text, str):
        raise InvalidTypeError(f"{name} is {text!r}; expected a text: {FORMS}")
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


class RecentKernelRidge:
    """The offline learner of the samples that count, by their kernel.

    It keeps that kernel, N x N numbers for N samples that count, and factorises it for every block:
    N^3 / 3 multiplications.

    Args:
        aim: The weights.
        gamma: Ridge, 0 or more.
    """

    def __init__(self, aim: Aim, gamma: float) -> None:
        self.aim, self.gamma = aim, gamma
        self._K, self._Y = torch.empty(0, 0), torch.empty(0, 0)
        self._warned = False

    def predict_after(self, K_rows: Tensor, Y: Tensor) -> Tensor:
        """(b, c) the prediction for a new block, once it is taken in.

        Args:
            K_rows: (b, n + b) its kernel against all the past and itself.
            Y: (b, c) its targets.
        """
        new = min(len(Y), self.aim.horizon)  # a window may be shorter than a block
        kept = min(len(self._Y), self.aim.horizon - new)
        count = kept + new
        require_memory(
            f"an aim that counts {count} samples",
            3.0 * count * count,
            Y,
            "use a smaller window or discount, or memory=..., which keeps sums",
        )
        K, targets = Y.new_empty(count, count), Y.new_empty(count, Y.shape[1])
        if kept:
            K[:kept, :kept], targets[:kept] = self._K[-kept:, -kept:], self._Y[-kept:]
        K[kept:] = K_rows[-new:, -count:]
        K[:kept, kept:] = K[kept:, :kept].mT
        targets[kept:] = Y[-new:]
        self._K, self._Y = K, targets
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
            norm = float(torch.linalg.matrix_norm(M, 1))
            worth = worth_estimating(norm, M.dtype)
            inverse = inverse_norm(lambda rhs: torch.cholesky_solve(rhs, factor), M, worth)
            condition = norm * float(inverse)
            self._warned = warn_if_meaningless("the aim's kernel", condition, M.dtype)
        return scale[:, None] * torch.cholesky_solve(scale[:, None] * targets, factor)

    def fork(self) -> Self:
        """A learner that goes on from here by itself."""
        return copy.copy(self)  # every block makes its arrays anew

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and numbers."""
        return {"warned": self._warned, "kernel": self._K, "targets": self._Y}

    def load_state_dict(self, state: dict[str, Any], learned: int, outputs: int) -> None:
        """Goes on from a state; `learned` samples are in it, those that count."""
        self._warned = bool(state["warned"])
        count = len(require_shape("targets", state["targets"], None, outputs))
        self._K = require_shape("kernel", state["kernel"], count, count)
        self._Y = state["targets"]
        require_count(count, self.aim, learned)


class RecentFeatureRidge:
    r"""The same for explicit features.

    A discount is a factor on the sums $\Phi^\top \Phi$ and $\Phi^\top Y$: m^2 numbers for m
    features. A window keeps the features of its N samples, N m numbers, and makes the sums anew.

    Args:
        aim: The weights.
        gamma: Ridge, above 0.
    """

    def __init__(self, aim: Aim, gamma: float) -> None:
        self.aim, self.gamma = aim, gamma
        self._parts: tuple[Tensor, Tensor] | None = None  # sums, or features and targets

    def predict_after(self, Phi: Tensor, Y: Tensor) -> Tensor:
        """(b, c) the prediction for a new block of features and targets, once it is taken in."""
        if self.aim.window is not None:
            features, targets = Phi, Y
            if self._parts is not None:
                features = torch.cat([self._parts[0], features])
                targets = torch.cat([self._parts[1], targets])
            features, targets = features[-self.aim.window :], targets[-self.aim.window :]
            self._parts = features, targets
            normal, moment = features.mT @ features, features.mT @ targets
        else:
            weighted = self.aim.weights(Y) * Phi
            normal, moment = weighted.mT @ Phi, weighted.mT @ Y
            if self._parts is not None:
                aged = self.aim.discount ** len(Y)
                normal, moment = normal + aged * self._parts[0], moment + aged * self._parts[1]
            self._parts = normal, moment
        ridge = torch.eye(len(normal), dtype=normal.dtype, device=normal.device) * self.gamma
        return Phi @ torch.cholesky_solve(moment, normal_factor(normal + ridge, self.gamma))

    def fork(self) -> Self:
        """A learner that goes on from here by itself."""
        return copy.copy(self)  # every block makes its arrays anew

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and numbers."""
        if self._parts is None:
            return {}
        return {"first": self._parts[0], "second": self._parts[1]}

    def load_state_dict(
        self, state: dict[str, Any], learned: int, features: int, outputs: int
    ) -> None:
        """Goes on from a state; `learned` samples are in it."""
        window = self.aim.window
        rows = features if window is None else min(window, learned)
        self._parts = (
            require_shape("first", state["first"], rows, features),
            require_shape("second", state["second"], rows, outputs),
        )


def require_count(count: int, aim: Aim, learned: int) -> None:
    """Refuses a saved state that holds more samples than can count."""
    if not min(1, learned) <= count <= max(learned, 0):
        raise InvalidInputError(f"{count} samples count, of {learned} learned")
