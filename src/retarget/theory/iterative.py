r"""The causal, iterative correction: one sweep over the stream, block by block.

Proposition 4.2 (Eq. 16-17) says, with $p$ the past and $n$ the new block: let

    F_n = f_off(X_n; X_p+n, Y_p+n)     the offline prediction at the new block, once it has seen it

then the new block's dual coefficients and targets are

    (gamma_o I + K_nn) A_n = F_n - K_np A_p
    Z_n = K_np A_p + (I/eta + K^L_nn) A_n

(the proof is in docs/theory.md, section 4). $F$ comes from the Cholesky factor of the stream so
far, $F_n = Y_n - \gamma L_{nn}^{-\top} \beta_n$ with $\beta = L^{-1} Y$: one factorization serves
every block.

The same minimization for a learner with a memory (`engine/response.py`): $A_p$ is then what the
past's steps have become by the end of the block, and $A_n$ what the block's own steps have. A
learner with momentum is still moving at that time, so what is made to agree with the offline
learner is the function at which it would end. (Matching the function at that time is possible too,
but leaves the velocity free: with a momentum of 0.9 the targets then grow without bound.)
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, get_args

import torch
from torch import Tensor

from retarget.arrays import ArrayT, as_targets
from retarget.engine.condition import warn_if_meaningless
from retarget.engine.dual import DualLearner
from retarget.engine.followers import Iterative, Parts, Steps, follow
from retarget.engine.losses import Loss, check_loss, check_targets
from retarget.engine.offline.all import KernelRidge, RecursiveRidge
from retarget.engine.offline.learner import OfflineLearner
from retarget.engine.offline.logistic import LogisticFit
from retarget.engine.offline.recent import (
    ALL,
    Aim,
    DiscountedFeatureRidge,
    RecentKernelRidge,
    WindowedFeatureRidge,
)
from retarget.engine.primal import PrimalLearner
from retarget.engine.response import require_lasting_start
from retarget.engine.stability import FeatureGrowthWatch, GrowthWatch, no_past
from retarget.engine.stream import FirstBlock, SampleStream, Window
from retarget.errors import InvalidInputError
from retarget.learners import SGD, require_learner
from retarget.progress import PatientBar
from retarget.scalars import as_count, as_non_negative
from retarget.settings import in_plain_torch
from retarget.state_files import part_of, require_shape
from retarget.theory.problem import as_problem


class Sweep(Iterative):
    """The iterative correction of a stream, of which the state can be saved.

    The options are those of `iterative_targets`, plus:

    Args:
        gram: Returns the kernel of a range of the stream; used to explain a failure.
        capacity: Expected length of the stream, if known.
        roomy: Whether samples will arrive a few at a time (see GrowingCholesky).
        aim: Which samples the offline learner counts.
        targets: (n, c) where the targets are kept; None if they are not.
    """

    offline: OfflineLearner | None  # made with the first samples, which set its sizes
    watch: GrowthWatch

    def __init__(
        self,
        learner: SGD,
        gamma: float,
        ridge: float,
        parts: Parts,
        first_block: FirstBlock,
        gram: Callable[[slice], Tensor],
        capacity: int = 0,
        roomy: bool = False,
        loss: Loss = "squared",
        aim: Aim = ALL,
        targets: Tensor | None = None,
    ) -> None:
        follower = DualLearner(learner, capacity)
        watch = GrowthWatch(learner, gram, loss=loss)
        super().__init__(follower, None, ridge, watch, loss, parts, first_block, targets)
        self.gamma = gamma
        self.aim = aim
        self._gram = gram
        self._roomy = roomy
        self._warned = False

    @property
    def coefficients(self) -> Tensor:
        """(n, c) the learner's dual coefficients; (features, c) its weights in feature space."""
        return self.learner.coefficients

    @torch.inference_mode()  # a sixth of the time of a small block; `no_grad` still counts versions
    def learn(self, window: Window) -> Steps:
        """Learns the samples of a window.

        The targets are inference tensors, which autograd refuses: copy them for the caller.
        """
        if self.offline is None and self.parts != "online":
            self.offline = self._new_offline(window.targets.shape[1])
        return super().learn(window)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        state: dict[str, Any] = {
            "block_condition": self.settling.condition,
            "warned": self._warned,
        }
        states = {"watch": self.watch, "learner": self.learner, "offline": self.offline}
        for name, each in states.items():
            if each is not None:
                state |= {f"{name}.{key}": value for key, value in each.state_dict().items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; call it on a new sweep."""
        self.settling.condition = float(state["block_condition"])
        self._warned = bool(state["warned"])
        self.watch.load_state_dict(part_of(state, "watch"))
        self.learner.load_state_dict(part_of(state, "learner"))
        if self.watch.seen != len(self):
            raise InvalidInputError(
                f"{self.watch.seen} samples were seen, but {len(self)} were learned; expected the "
                "same number"
            )
        if not len(self):
            return
        rows, outputs = self.coefficients.shape
        if self.parts != "online":
            self.offline = self._new_offline(outputs)
            offline = part_of(state, "offline")
            self.offline.load_state_dict(offline, len(self), self.coefficients.shape)
        if math.isfinite(self.watch.growth):
            require_shape("probe", self.watch.probe.coefficients, rows, None)

    def fork(self, gram: Callable[[slice], Tensor]) -> Self:
        """Returns an independent sweep that continues from here."""
        fork = super().fork(gram)
        fork._gram = gram
        fork.offline = None if self.offline is None else self.offline.fork(gram)
        return fork

    def _new_offline(self, outputs: int) -> OfflineLearner:
        if self.loss != "squared":
            # blocks come one at a time: few large panels are faster to solve with than many small
            return LogisticFit(self.gamma, outputs, self._gram, roomy=True)
        if self.aim.is_all:
            return KernelRidge(self.gamma, self._gram, self._roomy)
        return RecentKernelRidge(self.aim, self.gamma)

    def warn_once(self) -> None:
        """Warns once if the targets are not reliable."""
        self.watch.warn_once()
        dtype = self.coefficients.dtype
        self._warned = (
            self._warned
            or warn_if_meaningless("the kernel of a block", self.settling.condition, dtype)
            or (self.offline is not None and self.offline.warn_once())
        )


class FeatureSweep(Sweep):
    """The same sweep in feature space: every block costs the same, and gamma must be above 0."""

    def __init__(
        self,
        learner: SGD,
        gamma: float,
        ridge: float,
        parts: Parts,
        first_block: FirstBlock,
        aim: Aim = ALL,
    ) -> None:
        super().__init__(learner, gamma, ridge, parts, first_block, no_past, aim=aim)
        self.learner = PrimalLearner(learner)
        self.watch = FeatureGrowthWatch(learner)

    def _new_offline(self, outputs: int) -> OfflineLearner:
        if self.aim.is_all:
            return RecursiveRidge(self.gamma)
        if self.aim.window is None:
            return DiscountedFeatureRidge(self.aim, self.gamma)
        return WindowedFeatureRidge(self.aim, self.gamma)


class SweepBar(PatientBar):
    """The progress of a sweep over a range of the stream, in percent of its work.

    A block at n samples takes about n^2 multiplications, so that n^3 is done by then.
    """

    def __init__(self, first: int, stop: int) -> None:
        super().__init__(f"correcting the targets of {stop - first} samples, in percent", 100)
        self._first = first
        self._stop = stop
        self._percent = 0

    def over(self, windows: Iterable[Window]) -> Iterator[Window]:
        """Yields windows of the range, and reports each that is done."""
        for window in windows:
            yield window
            work = window.rows.stop**3 - self._first**3
            percent = int(100 * work / (self._stop**3 - self._first**3))
            self.advance(percent - self._percent)
            self._percent = percent


@in_plain_torch
def iterative_targets(
    K: ArrayT,
    Y: Any,
    learner: SGD,
    gamma: float,
    block_size: int,
    ridge: float = 0.0,
    parts: Parts = "both",
    first_block: FirstBlock = "corrected",
    *,
    initial: Any = None,
    loss: Loss = "squared",
) -> ArrayT:
    r"""Targets that lead the online learner, block by block, to the offline learner's predictions.

    Causal: the targets of a block depend only on this block and the past. With `ridge=0` and
    `parts="both"`, the online learner's function agrees after each corrected block, on that block,
    with the offline learner that has seen the stream so far; a ridge makes this approximate, and
    one part alone does not achieve it. With momentum, what agrees is the function that the learner
    would end at if it made no more errors, not its function at that moment.

    For plain SGD whose first block is corrected too, the learning rate changes the targets, but not
    the function learned. (With weight decay it changes both.)

    A block of b samples costs $n^2 b$ multiplications for the squared error.

    With cross-entropy it is the logits that agree, and the offline learner is known up to a
    tolerance: after each block its equation $\gamma A + \sigma(K A) = Y$ holds up to 0.01 in every
    entry, so that it is the exact offline learner of targets that differ by no more than that from
    Y. (After the first block and the first 64 samples it is exact.) That costs a few iterations of
    $2 n^2 c$ multiplications for each block; see docs/theory_extensions.md, cross-entropy.

    Beyond a second of work a progress bar is shown on a terminal, and beyond a minute a line with
    the time left elsewhere.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        learner: The online learner that will be trained on the result.
        gamma: Ridge of the offline learner, 0 or more; with 0, K must be positive definite.
        block_size: Samples whose targets are found together, a multiple of the batch size. The
            last block may be shorter.
        ridge: $\gamma_o$ of Eq. 15, for blocks whose kernel is nearly singular: it keeps the
            targets small. A block whose kernel is singular needs none.
        parts: `"both"`, or one half of Eq. 16 alone: `"online"` ($C_{on}$) or `"offline"`
            ($C_{off}$).
        first_block: `"plain"` leaves the first block's targets as they are.
        initial: Values of the starting function on the stream, if it is not zero (only without
            weight decay).
        loss: `"squared"` or `"cross-entropy"` (for which `initial` is logits), for both learners.
            The halves of Eq. 16 (`parts`) exist only for the squared error.

    Returns:
        Corrected targets with the shape of Y.

    Examples:
        The first of two single-sample blocks aims at its own offline prediction, 1/2 with
        $\gamma = 1$; a step at the rate 1/2 reaches that from the target 1.

        >>> import numpy as np
        >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
        >>> iterative_targets(K, np.array([1.0, 1.0]), SGD(lr=0.5), gamma=1.0, block_size=1)
        array([1.  , 0.95])
    """
    gamma, ridge = check_correction(learner, gamma, block_size, ridge, parts, first_block, loss)
    problem = as_problem(K, Y, initial, factored=parts != "online")
    check_targets("Y", as_targets("Y", Y), loss)
    require_lasting_start(initial, learner)
    K_all = problem.K
    n = len(problem.K)
    learner.rates(n)
    targets = torch.empty_like(problem.Y)
    sweep = Sweep(
        learner,
        gamma,
        ridge,
        parts,
        first_block,
        gram=lambda rows: K_all[rows, rows],
        capacity=n,
        loss=loss,
        targets=targets,
    )
    stream = SampleStream.of_matrix(K_all, problem.Y, problem.start)
    with SweepBar(0, n) as bar:
        follow(bar.over(stream.windows(block_size, first_block)), [sweep])
    sweep.warn_once()
    return problem.give(targets)


@in_plain_torch
def distilled_targets(K: ArrayT, Y: Any, gamma: float, block_size: int) -> ArrayT:
    r"""What the offline learner predicts for each block after seeing the stream up to its end.

    $F_n = f_{off}(X_n; X_{p+n}, Y_{p+n})$, the aim of `iterative_targets`, without the correction
    that would make an online learner reach it: training on it is distillation. It is causal.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        gamma: Ridge of the offline learner, 0 or more.
        block_size: Samples whose predictions are made together.

    Returns:
        Predictions with the shape of Y.

    Examples:
        With $\gamma = 1$ and $k(x, x) = 1$, a first sample is met halfway.

        >>> import numpy as np
        >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
        >>> distilled_targets(K, np.array([1.0, 1.0]), gamma=1.0, block_size=1)
        array([0.5, 0.6])
    """
    gamma = as_non_negative("gamma", gamma)
    block_size = as_count("block_size", block_size)
    problem = as_problem(K, Y, factored=True)
    K_all = problem.K
    ridge = KernelRidge(gamma, lambda rows: K_all[rows, rows])
    windows = SampleStream.of_matrix(K_all, problem.Y).windows(block_size)
    targets = torch.cat([ridge.learn(window) for window in windows])
    ridge.warn_once()
    return problem.give(targets)


def check_correction(
    learner: SGD,
    gamma: float,
    block_size: int,
    ridge: float,
    parts: str,
    first_block: str,
    loss: str = "squared",
) -> tuple[float, float]:
    """Rejects invalid options of the iterative correction; returns gamma and ridge as floats."""
    require_learner(learner)
    if as_count("block_size", block_size) % learner.batch_size:
        raise InvalidInputError(
            f"block_size is {block_size}; expected a positive multiple of the learner's "
            f"batch_size, {learner.batch_size}"
        )
    if parts not in get_args(Parts):
        raise InvalidInputError(f"parts is {parts!r}; expected one of {get_args(Parts)}")
    if first_block not in get_args(FirstBlock):
        raise InvalidInputError(
            f"first_block is {first_block!r}; expected one of {get_args(FirstBlock)}"
        )
    check_loss(loss)
    if loss != "squared" and parts != "both":
        raise InvalidInputError(
            f"parts is {parts!r} with loss={loss!r}; expected 'both': Eq. 16 splits only the "
            "correction of the squared error, which is linear in the targets"
        )
    return as_non_negative("gamma", gamma), as_non_negative("ridge", ridge)
