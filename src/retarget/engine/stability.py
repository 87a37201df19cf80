r"""Which learning rates are stable, and the warnings and errors if one is not.

A step on a mini-batch with kernel block $B$ multiplies the error on it by $I - \eta r B$, which
grows unless $\eta\,(r \lambda_{\max}(B) + \lambda) \le 2$. Momentum repeats every step $1/(1-\mu)$
times in total, while the learner already sees other samples: on a stream in random order
$\eta / (1-\mu)$ has to obey the same bound. (If the same mini-batch is repeated for ever the bound
is looser, $2(1+\mu)$, but streams are not like that.)
"""

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from retarget.arrays import shallow
from retarget.engine.dual import DualLearner
from retarget.engine.lesson import Lesson, Past, diagonal_blocks
from retarget.engine.losses import Loss, slope_product, steepest_slope
from retarget.engine.primal import PrimalLearner
from retarget.engine.probes import random_signs
from retarget.engine.response import lasting_effect
from retarget.errors import (
    DivergedError,
    DivergenceWarning,
    InvalidInputError,
    LargeTargetsWarning,
    ResultOverflowError,
    warn_caller,
)
from retarget.learners import SGD
from retarget.state_files import part_of, require_shape

# Errors this many times the largest target are no longer explained by the targets. At the
# rates that we call stable they stay below four times it on random streams.
FAR_BEYOND = 100.0
# Targets of cross-entropy that leave [0, 1] by more than this cause steps that are more than ten
# times as long as any true label's.
FAR_OUTSIDE = 10.0
MEANINGFUL = 1e-2  # relative error up to which two digits are correct
# the attributes of a watch in a saved state
WATCHED = {
    **dict.fromkeys(("growth", "largest_target", "largest_error"), float),
    "seen": int,
    "_warned": bool,
    "_warned_of_size": bool,
}


def largest_stable_lr(batch_gram: Callable[[slice], Tensor], learner: SGD, n: int) -> float:
    """A rate below which the learner does not blow up on the first `n` samples, in random order.

    `batch_gram` returns the kernel of a range of samples; the learner's own rate does not matter.
    """
    curvature = 0.0
    for start in range(0, n, learner.batch_size):
        rows = slice(start, min(start + learner.batch_size, n))
        top = torch.linalg.eigvalsh(batch_gram(rows))[-1].item()
        scale = 1.0 if learner.reduction == "sum" else 1.0 / (rows.stop - rows.start)
        curvature = max(curvature, scale * top)
    return stable_limit(curvature, learner)


def stable_limit(curvature: float, learner: SGD) -> float:
    r"""The largest stable rate if the largest $r \lambda_{\max}(B)$ is `curvature`."""
    curvature += learner.weight_decay
    return 2.0 / (lasting_effect(learner) * curvature) if curvature > 0 else math.inf


class GrowthWatch:
    r"""Watches an online learner for growth that its targets do not explain.

    Besides the learner's errors, it follows a probe: the same learner on random targets of $\pm 1$.
    For nearly any $Y$ the solution of the online system $T E = Y$ is as large as the probe's; for
    targets that were made for it (corrected ones) the solution is small, but every rounding error
    on the way still grows as the probe does. With cross-entropy the probe is the learner's own
    derivative: how perturbations of $\pm 1$ in its targets grow.

    Args:
        learner: The online learner.
        gram: Returns the kernel of a range of the stream; used to find a stable rate.
        probe: The learner to use as the probe; None for a new one in dual form.
        loss: The learner's loss.
        length: Samples in the stream, if it is passed over several times.

    Attributes:
        seen: Samples so far.
        growth: The probe's largest error.
        largest_target: The largest of all targets.
        largest_error: The largest of all errors on them.
    """

    def __init__(
        self,
        learner: SGD,
        gram: Callable[[slice], Tensor],
        probe: DualLearner | PrimalLearner | None = None,
        loss: Loss = "squared",
        length: int | None = None,
    ) -> None:
        self.learner = learner
        self.loss = loss
        self._length = length
        self._gram = gram
        self.probe = DualLearner(learner) if probe is None else probe
        self.growth = self.largest_target = self.largest_error = 0.0
        self.seen = 0
        self._dtype = torch.float64
        self._outputs = 1
        self._warned = self._warned_of_size = False

    @property
    def riding(self) -> Past | None:
        """The probe's past, for the learner's `lesson`; None if the probe has overflowed."""
        return self.probe.past if math.isfinite(self.growth) else None

    def follow(self, lesson: Lesson, targets: Tensor, errors: Tensor) -> None:
        """Checks the errors that the learner made on the next samples, before it learned them.

        `lesson` was made with the probe `riding` beside the learner. Raises a `DivergedError` if an
        error is not finite.
        """
        self._dtype = errors.dtype
        self._outputs = errors.shape[1]
        self.seen = lesson.start + len(errors)
        probing = math.isfinite(self.growth)
        beside = lesson.beside()
        grown = self._grown(beside, targets, errors) if probing else errors
        # on a GPU, reading numbers waits for all work before: so all of them are read at once
        extremes = [extreme for each in (targets, errors, grown) for extreme in each.aminmax()]
        lows_and_highs = torch.stack(extremes).reshape(3, 2).tolist()
        target, error, growth = (max(-low, high) for low, high in lows_and_highs)
        self.largest_target = max(self.largest_target, target)
        if not math.isfinite(error):
            row = lesson.start if self._length is None else lesson.start % self._length
            _require_finite_errors(errors, row, self.learner, self.stable_lr, lesson.first_step)
        self.largest_error = max(self.largest_error, error)
        if probing and math.isfinite(growth):
            self.growth = max(self.growth, growth)
            self.probe.learn(beside, grown)
        elif probing:
            self.growth = math.inf

    def _grown(self, lesson: Lesson, targets: Tensor, errors: Tensor) -> Tensor:
        """(m, 1) the probe's errors; (m, c) with cross-entropy, whose outputs are coupled."""
        signs = random_signs(lesson.start, errors)
        if self.loss == "squared":
            return lesson.errors(signs)
        p = targets - errors
        alternating = 1 - 2 * (torch.arange(p.shape[1], device=p.device) % 2)
        return lesson.errors_in_order(
            signs * alternating, lambda rows, change: slope_product(p[rows], change)
        )

    def warn_once(self) -> None:
        """Warns once if the learner blows up, and once if its targets are large."""
        if self.loss != "squared" and not self._warned_of_size:
            self._warned_of_size = warn_of_large_targets(self.largest_target)
        if self._warned or self.largest_error == 0:
            return
        eps = torch.finfo(self._dtype).eps
        rounding = eps * self.growth * max(self.largest_target, self.largest_error)
        # outputs of cross-entropy lie in [0, 1], even if all targets are 0
        natural = self.largest_target if self.loss == "squared" else max(self.largest_target, 1.0)
        if self.largest_error > FAR_BEYOND * natural:
            what = blown_up(self.largest_error, self.largest_target)
        elif rounding > MEANINGFUL * self.largest_error:
            what = (
                f"the online learner amplifies rounding errors by {self.growth:.1g}, so that fewer "
                "than two digits of what it learns are certain"
            )
        else:
            return
        self._warned = True
        _warn(what, self.learner, self.stable_lr(self.seen))

    def stable_lr(self, n: int) -> float:
        """A rate at which the first `n` samples are learned without blowing up."""
        n = n if self._length is None else min(n, self._length)
        steepest = steepest_slope(self.loss, self._outputs)
        return largest_stable_lr(lambda rows: steepest * self._gram(rows), self.learner, n)

    def fork(self, gram: Callable[[slice], Tensor]) -> Self:
        """Returns a watch that continues from here, on a stream whose kernel `gram` returns."""
        fork = shallow(self)
        fork._gram = gram
        fork.probe = self.probe.fork()
        return fork

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        probe = {f"probe.{key}": value for key, value in self.probe.state_dict().items()}
        return {name.removeprefix("_"): getattr(self, name) for name in WATCHED} | probe

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; call it on a new watch."""
        for name, kind in WATCHED.items():
            setattr(self, name, kind(state[name.removeprefix("_")]))
        self.probe.load_state_dict(part_of(state, "probe"))
        if math.isfinite(self.growth) and len(self.probe) != self.seen:
            raise InvalidInputError(
                f"the probe has {len(self.probe)} rows; expected {self.seen}, one per sample seen"
            )
        if len(self.probe):
            outputs = 1 if self.loss == "squared" else None
            require_shape("probe", self.probe.coefficients, None, outputs)
            self._dtype = self.probe.coefficients.dtype


class FeatureGrowthWatch(GrowthWatch):
    """The same watch, with a probe in feature space.

    The stable rate is computed from the largest curvature of the mini-batches so far, which is
    stored as one number, because the samples are not kept.

    Attributes:
        curvature: The largest eigenvalue of a mini-batch's kernel, times its loss's reduction.
    """

    def __init__(self, learner: SGD) -> None:
        super().__init__(learner, no_past, PrimalLearner(learner))
        self.curvature = 0.0

    def follow(self, lesson: Lesson, targets: Tensor, errors: Tensor) -> None:
        """As `GrowthWatch.follow`, from the features of the samples."""
        batch = self.learner.batch_size
        m = len(lesson.gram)
        whole = m - m % batch
        full = diagonal_blocks(lesson.gram[:whole, :whole], batch)
        for blocks in (full, lesson.gram[None, whole:, whole:]):
            if blocks.numel():
                scale = 1.0 if self.learner.reduction == "sum" else 1.0 / blocks.shape[-1]
                top = torch.linalg.eigvalsh(blocks)[:, -1].max().item()
                self.curvature = max(self.curvature, scale * top)
        super().follow(lesson, targets, errors)

    def stable_lr(self, n: int) -> float:
        """A rate at which the samples so far are learned without blowing up."""
        return stable_limit(self.curvature, self.learner)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        return super().state_dict() | {"curvature": self.curvature}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; call it on a new watch."""
        super().load_state_dict(state)
        self.curvature = float(state["curvature"])


def warn_of_large_targets(largest: float) -> bool:
    """Warns of targets of cross-entropy far outside [0, 1]; returns whether it did."""
    if largest <= 1 + FAR_OUTSIDE:
        return False
    warn_caller(
        f"the targets reach {largest:.3g} in size, but cross-entropy has true targets in [0, 1]; "
        "they are exact, but cause far longer steps than true targets do: use a larger gamma, rate "
        "or block_size to make them smaller",
        LargeTargetsWarning,
    )
    return True


def blown_up(largest_error: float, largest_target: float) -> str:
    """The warning's text for a learner whose errors have grown far beyond its targets."""
    return (
        f"the online learner blows up: its errors reach {largest_error:.3g}, but its targets only "
        f"{largest_target:.3g}"
    )


def warn_of_divergence(
    what: str, learner: SGD, batch_gram: Callable[[slice], Tensor], n: int
) -> None:
    """Warns that a learner diverges on `n` samples, with a rate at which it would not."""
    _warn(what, learner, largest_stable_lr(batch_gram, learner, n))


def _warn(what: str, learner: SGD, limit: float) -> None:
    lr = learner.lr if isinstance(learner.lr, float) else max(learner.lr)
    warn_caller(
        f"{what}. Its rate is lr = {lr:g}; below {limit:.4g} it would be stable",
        DivergenceWarning,
    )


def require_converging(
    errors: Tensor, start: int, learner: SGD, batch_gram: Callable[[slice], Tensor]
) -> None:
    """Raises if an error on the samples from `start` on is not finite."""
    _require_finite_errors(
        errors, start, learner, lambda n: largest_stable_lr(batch_gram, learner, n)
    )


def _require_finite_errors(
    errors: Tensor,
    start: int,
    learner: SGD,
    stable_lr: Callable[[int], float],
    first_step: int | None = None,
) -> None:
    if math.isfinite(errors.sum().item()) or errors.isfinite().all():
        return
    bad = int((~errors.isfinite().all(dim=1)).nonzero()[0, 0])
    row = start + bad
    first_step = start // learner.batch_size if first_step is None else first_step
    step = first_step + bad // learner.batch_size
    limit = stable_lr(row + 1)
    if learner.rate(step) <= limit:  # the learner is not the cause
        limits = torch.finfo(errors.dtype)
        raise ResultOverflowError(
            f"the error on sample {row} is beyond {limits.max:.3g}, the largest number of "
            f"{limits.dtype}, though the learner is stable at lr = {learner.rate(step):g}; scale "
            "the targets down, or use a larger ridge"
        )
    raise DivergedError(
        f"the online learner diverged: its error overflows at step {step} (sample {row}) with "
        f"lr = {learner.rate(step):g}; below lr = {limit:.4g} it would be stable",
        step=step,
        largest_stable_lr=limit,
    )


def no_past(rows: slice) -> Tensor:
    """Stands in for the kernel of the past, which is never needed in feature space."""
    raise AssertionError(f"the samples {rows.start} to {rows.stop} were not kept")
