"""Runs online learners over a stream, on its targets or on targets corrected along the way.

Several learners share one pass, since computing the rows of the kernel is the expensive window.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retarget.arrays import panels
from retarget.engine.lesson import Lesson, diagonal_blocks
from retarget.engine.response import final_response
from retarget.engine.settling import Settling, in_blocks
from retarget.engine.stream import Window
from retarget.engine.stream_kernel import StreamKernel
from retarget.errors import NotPositiveDefiniteError
from retarget.learners import SGD
from retarget.theory.cholesky import warn_if_meaningless
from retarget.theory.offline.aims import newest_coefficients

# An error above this is meaningless, and its square overflows.
OVERFLOW = 1e150


def follow(
    kernel: StreamKernel,
    followers: Sequence["OnlineRun | ExactCorrection | IterativeCorrection"],
    block_size: int,
    order: Tensor | None = None,
) -> None:
    """Passes over the stream once; a follower that fails is skipped from then on."""
    for window in kernel.windows(block_size, order):
        for follower in followers:
            if follower.failure is None:
                follower.learn(window)


class OnlineRun:
    """An online learner trained on targets, which may be computed along the way.

    `errors` (n, c), if kept, are the errors on each row before it was learned, in the order of
    learning; `before_blocks` (n, c), if requested, are the errors of predictions made before the
    row's block was learned, against the stream's own targets; `after_steps` (n, c), if requested,
    are the predictions made right after the row's step.
    """

    def __init__(
        self,
        kernel: StreamKernel,
        learner: SGD,
        targets: Tensor,
        *,
        keep_errors: bool = False,
        before_blocks: bool = False,
        after_steps: bool = False,
        order: Tensor | None = None,
        probe: "Probe | None" = None,
    ) -> None:
        unknown = torch.full_like(kernel.Y, math.nan)
        self.errors = unknown.clone() if keep_errors else None
        self.before_blocks = unknown.clone() if before_blocks else None
        self.after_steps = unknown if after_steps else None
        self.diverged_at: int | None = None
        self.failure: str | None = None
        self._kernel, self._state, self._order = kernel, kernel.learner(learner), order
        self._targets = targets
        self._probe = probe
        self._squares = targets.new_zeros(2, targets.shape[1])  # for each half of the stream

    def learn(self, window: Window) -> None:
        """Learns the next samples, unless its errors overflow."""
        lesson = self._state.lesson(window.panel)
        errors = lesson.errors(self._targets[window.samples])
        bad = ~(errors.abs() < OVERFLOW).all(1)
        if bad.any():
            self.diverged_at = window.rows.start + int(bad.nonzero()[0, 0]) + 1  # counted from 1
            self.failure = f"from row {self.diverged_at} of the stream on"
            return
        if self.errors is not None:
            self.errors[window.rows] = errors
        step = lesson.memory.step_of
        if self.before_blocks is not None:
            first_of_block = np.arange(len(errors)) // window.block_size * window.block_size
            predicted = predictions_before(step[first_of_block], lesson, errors)
            self.before_blocks[window.rows] = self._kernel.Y[window.samples] - predicted
        if self.after_steps is not None:
            self.after_steps[window.rows] = predictions_before(step + 1, lesson, errors)
        if self._probe is not None:
            self._probe.ask(window, self._state, lesson, errors)
        first = max(0, min(len(errors), len(self._kernel) // 2 - window.rows.start))
        self._squares[0] += errors[:first].square().sum(0)
        self._squares[1] += errors[first:].square().sum(0)
        self._state.learn(lesson, errors)

    @property
    def squared_error(self) -> Tensor:
        """The mean squared errors (c,); NaN if it diverged."""
        return self._squares.sum(0) / (math.nan if self.failure else len(self._kernel))

    @property
    def first_half(self) -> Tensor:
        """The mean squared errors (c,) over the first half of the stream."""
        return self._squares[0] / (math.nan if self.failure else max(1, len(self._kernel) // 2))

    @property
    def coefficients(self) -> Tensor | None:
        """The coefficients that predict a query from its kernel row; None if it diverged."""
        if self.failure:
            return None
        coefficients: Tensor = self._state.coefficients
        if self._order is None:
            return coefficients
        return self._kernel.in_stream_order(coefficients, self._order)


class Probe:
    """Asks a learner about rows that it never learns, at given moments of its pass.

    Args:
        kernel: The kernel of the stream.
        Q: The rows, as `StreamKernel.query` returns them.
        rows: (pairs,) which of them to ask about,
        times: (pairs,) and after how many rows of the stream; mini-batches that are not complete
            by then are not learned yet, unless the pass ends there.
        order: The order in which the stream is learned, if it is another.

    `predictions` (pairs, c) holds the answers; NaN if the learner failed before.
    """

    def __init__(
        self,
        kernel: StreamKernel,
        Q: Tensor,
        rows: NDArray[np.int64],
        times: NDArray[np.int64],
        order: Tensor | None = None,
    ) -> None:
        self.predictions = Q.new_full((len(rows), kernel.Y.shape[1]), math.nan)
        self._kernel, self._Q, self._order = kernel, Q, order
        self._rows, self._times = rows, times

    def ask(self, window: Window, state: Any, lesson: Lesson, errors: Tensor) -> None:
        """Asks what falls into a lesson, of which the errors are known but not yet learned."""
        start, stop = window.rows.start, window.rows.stop
        inside = (self._times > start) & (self._times <= stop)
        if start == 0:
            inside |= self._times == 0
        pairs = np.flatnonzero(inside)
        step_of = lesson.memory.step_of
        batch = int((step_of == 0).sum())
        for some in panels(len(pairs), 1, errors.device):
            chosen = pairs[some]
            times = self._times[chosen]
            steps = np.where(times == stop, step_of[-1] + 1, (times - start) // batch)
            Q = self._kernel.queried(self._Q[self._rows[chosen]], window.rows, self._order)
            asked = state.queries(Q, lesson)
            self.predictions[chosen] = predictions_before(steps, asked, errors)


def predictions_before(steps: np.ndarray, lesson: Lesson, errors: Tensor) -> Tensor:
    """Returns (m, c) predictions for rows, each made before a step (m,) of a lesson.

    They are the lesson's own rows, or others that are met along it.
    A row's prediction depends on the errors (m, c) of the rows whose steps came before.
    """
    memory = lesson.memory
    if memory.responses is None:
        rates = lesson.gram.new_tensor(memory.deposit[0, memory.step_of])
        earlier = torch.from_numpy(memory.step_of < steps[:, None])
        coupling = lesson.gram * earlier * rates
    else:
        coupling = lesson.spread(memory.responses[0][steps]).mul_(lesson.gram)
    return lesson.inherited(memory.carry, steps) + coupling @ errors


class Job(NamedTuple):
    """A learner to run over the stream: on these (n, c) targets, asked by this probe."""

    learner: SGD
    targets: Tensor
    probe: Probe | None = None


def learn_online(
    kernel: StreamKernel,
    jobs: Sequence[Job],
    *,
    keep_errors: bool = True,
    order: Tensor | None = None,
) -> list[OnlineRun]:
    """Runs learners over the stream, in its order or another."""
    runs = [
        OnlineRun(
            kernel, job.learner, job.targets, keep_errors=keep_errors, order=order, probe=job.probe
        )
        for job in jobs
    ]
    # windows end with a mini-batch of every learner, so all can use the same kernel rows
    follow(kernel, runs, math.lcm(*(job.learner.batch_size for job in jobs)), order)
    return runs


def effective_targets(
    kernel: StreamKernel, run: OnlineRun, learner: SGD, gamma: float
) -> tuple[Tensor, Tensor]:
    """Returns the final dual coefficients C = w * E, and Y^e = (gamma I + K) C; NaN if diverged."""
    if run.errors is None or run.coefficients is None:
        return torch.full_like(kernel.Y, math.nan), torch.full_like(kernel.Y, math.nan)
    weight = run.errors.new_tensor(final_response(learner, len(kernel)))
    dual = weight[:, None] * run.errors
    return dual, gamma * dual + kernel.values(run.coefficients)


class ExactCorrection:
    """Computes the targets on which the learner makes the given errors."""

    failure: str | None = None

    def __init__(self, kernel: StreamKernel, learner: SGD, errors: Tensor) -> None:
        self.targets = torch.empty_like(errors)
        self._state, self._errors = kernel.learner(learner), errors

    def learn(self, window: Window) -> None:
        """Computes the targets of the next samples, and learns them."""
        lesson, errors = self._state.lesson(window.panel), self._errors[window.rows]
        self.targets[window.rows] = lesson.targets(errors)
        self._state.learn(lesson, errors)


class IterativeCorrection:
    """Computes targets that lead the learner to (n, c) aims, block by block (Prop. 4.2).

    If that fails, `targets` are NaN and `failure` says why; `size` is the largest distance of a
    target from the true targets' mean, in their standard deviations.
    """

    def __init__(
        self,
        kernel: StreamKernel,
        learner: SGD,
        aims: Tensor,
        ridge: float,
        keep_targets: bool = True,
    ) -> None:
        self.failure: str | None = None
        self.targets = torch.empty_like(aims if keep_targets else aims[:0])
        self.size = 0.0
        spread = kernel.Y.std(0, correction=0)
        self._mean, self._spread = kernel.Y.mean(0), torch.where(spread > 0, spread, 1.0)
        self._state, self._settling, self._aims = kernel.learner(learner), Settling(ridge), aims

    def learn(self, window: Window) -> None:
        """Computes the targets of the next samples, and learns them."""
        lesson = self._state.lesson(window.panel)
        try:
            errors = self._settling.errors(lesson, self._aims[window.rows], window.block_size)
            targets = lesson.targets(errors)
            if not bool((targets.abs() < OVERFLOW).all()):
                self.failure = "its targets overflow; a larger ridge would keep them smaller"
        except NotPositiveDefiniteError as error:
            self.failure = str(error)
        if self.failure is not None:
            self.targets.fill_(math.nan)
            return
        if len(self.targets):
            self.targets[window.rows] = targets
        farthest = ((targets - self._mean).abs() / self._spread).max()
        self.size = max(self.size, float(farthest))
        self._state.learn(lesson, errors)

    @property
    def coefficients(self) -> Tensor | None:
        """The coefficients that predict a query from its kernel row; None if it failed."""
        return None if self.failure else self._state.coefficients

    def warn_if_meaningless(self) -> None:
        """Warns if the targets have lost too many digits to be reliable."""
        if self.failure is None:
            condition, dtype = self._settling.condition, self._aims.dtype
            warn_if_meaningless("the kernel of a block", condition, dtype)


def learn_corrected(
    kernel: StreamKernel,
    learner: SGD,
    correction: ExactCorrection | IterativeCorrection,
    block_size: int,
    before_blocks: bool = False,
    probe: Probe | None = None,
) -> OnlineRun:
    """Trains the learner on corrected targets as they are computed, including rounding."""
    run = OnlineRun(kernel, learner, correction.targets, before_blocks=before_blocks, probe=probe)
    follow(kernel, [correction, run], block_size)
    return run


def offline_aims(kernel: StreamKernel, gamma: float, block_size: int) -> Tensor:
    """Returns (n, c) predictions for each block by the offline learner that has just seen it."""
    aims = torch.empty_like(kernel.Y)
    for window, new in kernel.innovations(gamma, block_size):
        # F_n = Y_n - gamma L_nn^-T beta_n
        newest = newest_coefficients(new.corner, new.beta, window.block_size)
        aims[window.rows] = window.targets - gamma * newest
    return aims


def offline_errors(kernel: StreamKernel, gamma: float, batch_size: int) -> Tensor:
    """Returns (n, c) errors on each mini-batch of the offline learner of all rows before it."""
    errors = torch.empty_like(kernel.Y)
    for window, new in kernel.innovations(gamma, batch_size):
        size = window.block_size
        triangles = diagonal_blocks(new.corner, size).tril()  # L_BB beta_B = y_B - f_off(X_B)
        errors[window.rows] = (triangles @ in_blocks(new.beta, size)).flatten(0, 1)
    return errors
