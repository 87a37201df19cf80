r"""The iterative correction in feature space: `sweep`, with nothing of the past kept.

With explicit features the online learner is its weights (`primal`) and the offline learner its
normal equations (`recursive`). The blocks' targets are the same numbers as from the kernel of the
whole stream, and every block costs the same, however many came before it.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor

from retarget.errors import InvalidInputError
from retarget.learners import SGD
from retarget.state_files import part_of, require_shape
from retarget.theory.dual import Window, diagonal_blocks
from retarget.theory.precision import warn_if_meaningless
from retarget.theory.primal import FeatureRows, PrimalLearner
from retarget.theory.recursive import RecursiveRidge
from retarget.theory.settling import Settling
from retarget.theory.stability import GrowthWatch, stable_limit
from retarget.theory.sweep import FirstBlock, Parts, equal_blocks, newest_coefficients, settled


class FeatureSweep:
    """The state of the iterative correction after the blocks so far, in feature space.

    Args:
        learner: The online learner that the targets are for.
        gamma: Ridge of the offline learner, above 0 (unless `parts` is "online").
        ridge: The stabiliser gamma_o of Eq. 15.
        parts: Both halves of Eq. 16, or one alone.
        first_block: Whether the first block's targets are corrected too.
    """

    def __init__(
        self, learner: SGD, gamma: float, ridge: float, parts: Parts, first_block: FirstBlock
    ) -> None:
        self.gamma, self.parts, self.first_block = gamma, parts, first_block
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
        if self.parts != "online" and len(self):
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
        fork._watch = self._watch.fork(_no_past)
        return fork

    def portions(
        self, stop: int, block_size: int, device: torch.device
    ) -> Iterator[tuple[slice, int]]:
        """The stream from here to `stop`, in row ranges of equal blocks: (rows, block size)."""
        return equal_blocks(len(self), stop, block_size, self.first_block, device)

    def correct(self, rows: FeatureRows, Y: Tensor, block_size: int) -> Tensor:
        """Targets for the next blocks, which the learner then learns.

        Args:
            rows: The features of the new samples.
            Y: (m, c) their true targets (less the starting function).
            block_size: Their block size; m is a multiple of it.
        """
        window = self._learner.window(rows)
        aim = Y
        if self.parts != "online":  # the first half of Eq. 16 alone aims at Y_n instead of F_n
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
