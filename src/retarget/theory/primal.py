r"""Both learners, and the iterative correction, in feature space: nothing of the past is kept.

With explicit features, $k(x, x') = \phi(x)^\top \phi(x')$, the online learner is its weights: what
a window of new samples inherits is its features times the weights (and the velocity). Within the
window the system is the triangular one of `dual`, so that the errors are the same numbers.

The offline learner is recursive least squares. With $G = \gamma I + \Phi_p^\top \Phi_p = R R^\top$
and $b = \Phi_p^\top Y_p$ the past is $m \times m$ numbers, however long it is. For the new samples
let $V = R^{-1} \Phi_n^\top$; then

    K_nn - K_np (gamma I + K_pp)^-1 K_pn = gamma V^T V        what the past leaves of their kernel
    f_off(X_n; X_p, Y_p) = V^T R^-1 b                          what it predicts for them

so the rows of the stream's Cholesky factor that `Sweep` works on are those of the small matrix
$\gamma (I + V^\top V)$, and $\beta_n$ comes from it. The blocks' targets are the same numbers as
from the kernel of the whole stream, and every block costs the same, however many came before it.
"""

import copy
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from retarget.errors import InvalidInputError
from retarget.learners import SGD
from retarget.state_files import part_of, require_shape
from retarget.theory.cholesky import normal_factor, solve_lower, warn_if_meaningless
from retarget.theory.dual import Window, diagonal_blocks
from retarget.theory.iterative import (
    FirstBlock,
    Parts,
    block_bounds,
    equal_blocks,
    newest_coefficients,
    settled,
)
from retarget.theory.offline.aims import ALL, Aim, RecentFeatureRidge
from retarget.theory.response import StepResponse, step_response
from retarget.theory.settling import Settling
from retarget.theory.stability import GrowthWatch, stable_limit

MEMORIES = 8  # lengths of windows whose response is kept


class FeatureRows:
    """The features (m, features) of a few consecutive samples."""

    def __init__(self, features: Tensor) -> None:
        self.features = features

    @cached_property
    def gram(self) -> Tensor:
        """(m, m) their kernel among themselves."""
        return self.features @ self.features.mT


class FeatureWindow(Window):
    """The next few samples, with their features."""

    def __init__(
        self,
        start: int,
        rows: FeatureRows,
        past: tuple[Tensor, ...],
        memory: StepResponse,
        first_step: int,
    ) -> None:
        super().__init__(start, rows.gram, past, memory, first_step)
        self.features = rows.features


class PrimalLearner:
    """The state of an online learner after the samples so far, in feature space."""

    def __init__(self, learner: SGD) -> None:
        self.learner = learner
        self.steps = 0
        self._size = 0
        self._parts: tuple[Tensor, ...] = ()  # weights and, where there is a memory, velocity
        self._memories: dict[int, StepResponse] = {}

    def __len__(self) -> int:
        return self._size

    @property
    def coefficients(self) -> Tensor:
        """(features, c) the weights: the prediction for a query is its features times these."""
        return self._parts[0]

    def window(self, rows: FeatureRows) -> FeatureWindow:
        """The next samples."""
        memory = self._memory(len(rows.features))
        return FeatureWindow(self._size, rows, self.past(rows), memory, self.steps)

    def past(self, rows: FeatureRows) -> tuple[Tensor, ...]:
        """(m, c) what the weights, and the velocity, give at the next samples."""
        return tuple(rows.features @ part for part in self._parts)

    def fork(self) -> Self:
        """A learner that goes on from here by itself."""
        return copy.copy(self)  # learning makes new weights, and leaves the old ones be

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and numbers."""
        parts = {f"part{i}": part for i, part in enumerate(self._parts)}
        return {"steps": self.steps, "size": self._size} | parts

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state; this learner must be new."""
        self.steps, self._size = int(state["steps"]), int(state["size"])
        if not -(-self._size // self.learner.batch_size) <= self.steps <= self._size:
            raise InvalidInputError(f"steps is {self.steps}, where there are {self._size} samples")
        if self._size:
            shape = require_shape("part0", state["part0"], None, None).shape
            kept = range(2 if self.learner.has_memory else 1)
            self._parts = tuple(require_shape(f"part{i}", state[f"part{i}"], *shape) for i in kept)

    def learn(self, window: FeatureWindow, errors: Tensor) -> None:
        """Takes the steps of the window, on which these errors were made."""
        kept = 2 if self.learner.has_memory else 1
        new = [window.features.mT @ part for part in window.deposits(errors)[:kept]]
        if self._parts:
            transfer = window.memory.transfer[:kept, :kept].tolist()
            for part, shares in zip(new, transfer, strict=True):
                for share, old in zip(shares, self._parts, strict=True):
                    part.add_(old, alpha=share)
        self._parts = tuple(new)
        self._size += len(errors)
        self.steps += window.memory.deposit.shape[1]

    def _memory(self, m: int) -> StepResponse:
        """That of the next `m` samples, which at one rate is that of any `m` samples."""
        if not isinstance(self.learner.lr, float):
            return step_response(self.learner, self.steps, m)
        if m not in self._memories:
            if len(self._memories) == MEMORIES:  # a stream in odd portions has no end of lengths
                self._memories.clear()
            self._memories[m] = step_response(self.learner, 0, m)
        return self._memories[m]


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


class FeatureSweep:
    """The state of the iterative correction after the blocks so far, in feature space.

    Args:
        learner: The online learner that the targets are for.
        gamma: Ridge of the offline learner, above 0 (unless `parts` is "online").
        ridge: The stabiliser gamma_o of Eq. 15.
        parts: Both halves of Eq. 16, or one alone.
        first_block: Whether the first block's targets are corrected too.
        aim: Which samples the offline learner counts.
    """

    def __init__(
        self,
        learner: SGD,
        gamma: float,
        ridge: float,
        parts: Parts,
        first_block: FirstBlock,
        aim: Aim = ALL,
    ) -> None:
        self.gamma, self.parts, self.first_block = gamma, parts, first_block
        self._recent = None if aim.is_all else RecentFeatureRidge(aim, gamma)
        self._learner = PrimalLearner(learner)
        self._offline: RecursiveRidge | None = None  # sizes are known with the first samples
        self._settling = Settling(ridge)
        self._watch = FeatureGrowthWatch(learner)
        self._warned = False

    def __len__(self) -> int:
        return len(self._learner)

    @property
    def coefficients(self) -> Tensor:
        """(features, c) the learner's weights."""
        return self._learner.coefficients

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and numbers."""
        state: dict[str, Any] = {
            "block_condition": self._settling.condition,
            "warned": self._warned,
        }
        state |= {f"watch.{key}": value for key, value in self._watch.state_dict().items()}
        state |= {f"learner.{key}": value for key, value in self._learner.state_dict().items()}
        if self._recent is not None:
            recent = self._recent.state_dict()
            state |= {f"recent.{key}": value for key, value in recent.items()}
        if self._offline is not None:
            state |= {f"offline.{key}": value for key, value in self._offline.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state; this sweep must be new."""
        self._settling.condition = float(state["block_condition"])
        self._warned = bool(state["warned"])
        self._watch.load_state_dict(part_of(state, "watch"))
        self._learner.load_state_dict(part_of(state, "learner"))
        if self._watch.seen != len(self):
            raise InvalidInputError(f"{self._watch.seen} samples are seen, {len(self)} learned")
        if self._recent is not None and self.parts != "online" and len(self):
            shape = self.coefficients.shape
            self._recent.load_state_dict(part_of(state, "recent"), len(self), *shape)
        elif self.parts != "online" and len(self):
            self._offline = self._new_offline(self.coefficients)
            self._offline.load_state_dict(part_of(state, "offline"))
        if len(self) and math.isfinite(self._watch.growth):
            require_shape("probe", self._watch.probe_weights, len(self.coefficients), 1)

    def fork(self, gram: object = None) -> Self:
        """A sweep that goes on from here by itself.

        Args:
            gram: As of `Sweep.fork`; here nothing of the past is looked at again.
        """
        fork = copy.copy(self)
        fork._learner, fork._settling = self._learner.fork(), copy.copy(self._settling)
        fork._offline = None if self._offline is None else self._offline.fork()
        fork._recent = None if self._recent is None else self._recent.fork()
        fork._watch = self._watch.fork(_no_past)
        return fork

    def portions(
        self, stop: int, block_size: int, device: torch.device
    ) -> Iterator[tuple[slice, int]]:
        """The stream from here to `stop`, in row ranges of equal blocks: (rows, block size)."""
        return equal_blocks(len(self), stop, block_size, self.first_block, device)

    def correct(
        self, rows: FeatureRows, Y: Tensor, block_size: int, start: Tensor | None = None
    ) -> Tensor:
        """Targets for the next blocks, which the learner then learns.

        Args:
            rows: The features of the new samples.
            Y: (m, c) their true targets.
            block_size: Their block size; m is a multiple of it.
            start: (m, c) the starting function at them; None for zero.
        """
        if start is not None:
            return self.correct(rows, Y - start, block_size) + start
        window = self._learner.window(rows)
        aim = Y
        if self._recent is not None and self.parts != "online":
            Phi, bounds = rows.features, block_bounds(len(Y), block_size)
            aim = torch.cat([self._recent.predict_after(Phi[a:b], Y[a:b]) for a, b in bounds])
        elif self.parts != "online":  # the first half of Eq. 16 alone aims at Y_n instead of F_n
            if self._offline is None:
                self._offline = self._new_offline(rows.features.mT @ Y)
            new = self._offline.learn(rows.features, Y)
            aim = Y - self.gamma * newest_coefficients(new.corner, new.beta, block_size)
        if window.start == 0 and self.first_block == "plain":
            targets, errors = Y, window.errors(Y)
        else:
            targets, errors = settled(self._settling, window, Y, aim, block_size, self.parts)
        self._watch.follow(rows, window, targets, errors)
        self._learner.learn(window, errors)
        return targets

    def warn_once(self) -> None:
        """Warns, the first time that it is so, that the targets are not to be relied on."""
        self._watch.warn_once()
        if self._warned or not len(self):
            return
        dtype = self.coefficients.dtype
        offline = 1.0 if self._offline is None else self._offline.condition
        self._warned = warn_if_meaningless(
            "the kernel of a block", self._settling.condition, dtype
        ) or warn_if_meaningless("the normal equations of the features", offline, dtype)

    def _new_offline(self, weights: Tensor) -> RecursiveRidge:
        features, outputs = weights.shape
        return RecursiveRidge(self.gamma, features, outputs, like=weights)


class FeatureGrowthWatch(GrowthWatch):
    """The same watch, with a probe in feature space.

    The rate that would do comes from the largest curvature of the mini-batches so far, which is
    kept as one number: the samples are not there to be looked at again.

    Attributes:
        curvature: The largest eigenvalue of a mini-batch's kernel, times its loss's reduction.
    """

    def __init__(self, learner: SGD) -> None:
        super().__init__(learner, _no_past, PrimalLearner(learner))
        self.curvature = 0.0

    @property
    def probe_weights(self) -> Tensor:
        """(features, 1) the probe's weights."""
        return self._probe.coefficients

    def follow(self, K_rows: Any, window: Window, targets: Tensor, errors: Tensor) -> None:
        """As `GrowthWatch.follow`, from the features of the samples."""
        batch, m = self.learner.batch_size, len(window.gram)
        whole = m - m % batch
        full = diagonal_blocks(window.gram[:whole, :whole], batch)
        for blocks in (full, window.gram[None, whole:, whole:]):
            if blocks.numel():
                scale = 1.0 if self.learner.reduction == "sum" else 1.0 / blocks.shape[-1]
                top = torch.linalg.eigvalsh(blocks)[:, -1].max().item()
                self.curvature = max(self.curvature, scale * top)
        super().follow(K_rows, window, targets, errors)

    def stable_lr(self, n: int) -> float:
        """A rate at which the samples so far are learned without blowing up."""
        return stable_limit(self.curvature, self.learner)

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and numbers."""
        return super().state_dict() | {"curvature": self.curvature}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state; this watch must be new."""
        super().load_state_dict(state)
        self.curvature = float(state["curvature"])


def _no_past(rows: slice) -> Tensor:
    raise AssertionError(f"nothing is kept of the samples {rows.start} to {rows.stop}")
