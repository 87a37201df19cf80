"""Runs online learners over a stream, on its targets or on targets corrected along the way.

Several learners share one pass, since computing the rows of the kernel is the expensive window.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retarget.arrays import panels
from retarget.engine.condition import warn_if_meaningless
from retarget.engine.followers import Exact, Iterative, Online, SideBySide, Steps, follow
from retarget.engine.lesson import Lesson
from retarget.engine.response import final_responses, has_memory
from retarget.engine.stream import Window
from retarget.engine.stream_kernel import StreamKernel
from retarget.errors import NotPositiveDefiniteError
from retarget.journal import Kept, KeptTensors
from retarget.learners import SGD
from retarget.state_files import part_of
from retarget.theory.correction import errors_reaching

# An error above this is meaningless, and its square overflows.
OVERFLOW = 1e150


def unknown(kernel: StreamKernel) -> Tensor:
    """(n, c) NaN for each row of a stream."""
    Y = kernel.Y
    return kernel.of_rows(Y.shape[1], lambda rows: torch.full_like(Y[rows], math.nan))


class OnlineRun(Online):
    """An online learner trained on targets, which may be computed along the way.

    `errors` (n, c), if kept, are the errors on each row before it was learned; `before_blocks`
    (n, c), if requested, are the errors of predictions made before the row's block was learned,
    against the stream's own targets; `after_steps` (n, c), if requested, are the predictions made
    right after the row's step.
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
        super().__init__(kernel.learner(learner), errors=unknown(kernel) if keep_errors else None)
        self.before_blocks = unknown(kernel) if before_blocks else None
        self.after_steps = unknown(kernel) if after_steps else None
        self.diverged_at: int | None = None
        self._kernel = kernel
        self._order = order
        self._given = targets
        self._probe = probe
        self._squares = targets.new_zeros(2, targets.shape[1])  # for each half of the stream

    def teach(self, window: Window, lesson: Lesson) -> Steps:
        """Finds its errors on the targets; fails if they overflow."""
        steps = super().teach(window._replace(targets=self._given[window.samples]), lesson)
        bad = ~(steps.errors.abs() < OVERFLOW).all(1)
        if bad.any():
            self.diverged_at = window.rows.start + int(bad.nonzero()[0, 0]) + 1  # counted from 1
            self.failure = f"from row {self.diverged_at} of the stream on"
        return steps

    def note(self, window: Window, lesson: Lesson, steps: Steps) -> None:
        """Keeps what was requested."""
        errors = steps.errors
        step_of = lesson.memory.step_of
        if self.before_blocks is not None:
            first_of_block = np.arange(len(errors)) // window.block_size * window.block_size
            predicted = lesson.predictions_before(step_of[first_of_block], errors)
            self.before_blocks[window.rows] = window.targets - predicted
        if self.after_steps is not None:
            self.after_steps[window.rows] = lesson.predictions_before(step_of + 1, errors)
        if self._probe is not None:
            self._probe.ask(window, self.learner, lesson, errors)
        first = max(0, min(len(errors), len(self._kernel) // 2 - window.rows.start))
        self._squares[0] += errors[:first].square().sum(0)
        self._squares[1] += errors[first:].square().sum(0)

    def state_dict(self) -> dict[str, Any]:
        """Returns the learner's state, its errors so far and what it said to the probe."""
        state = super().state_dict()
        state |= {"squares": self._squares, "diverged_at": self.diverged_at}
        return state if self._probe is None else state | {"said": self._probe.predictions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; call it on a new run."""
        super().load_state_dict(state)
        self._squares.copy_(state["squares"])
        self.diverged_at = state["diverged_at"]
        if self._probe is not None:
            self._probe.predictions.copy_(state["said"])

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
        coefficients = self.learner.coefficients
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
        self._kernel = kernel
        self._Q = Q
        self._order = order
        self._rows = rows
        self._times = times
        self._pairs = np.argsort(times, kind="stable")  # pairs in the order in which they are asked
        self._sorted_times = times[self._pairs]

    def ask(self, window: Window, state: Any, lesson: Lesson, errors: Tensor) -> None:
        """Asks what falls into a lesson, of which the errors are known but not yet learned."""
        start, stop = window.rows.start, window.rows.stop
        low, high = np.searchsorted(self._sorted_times, (start, stop), side="right")
        pairs = self._pairs[low if start else 0 : high]
        step_of = lesson.memory.step_of
        batch = int((step_of == 0).sum())
        for some in panels(len(pairs), 1, errors.device):
            chosen = pairs[some]
            times = self._times[chosen]
            steps = np.where(times == stop, step_of[-1] + 1, (times - start) // batch)
            Q = self._kernel.queried(self._Q[self._rows[chosen]], window.rows, self._order)
            asked = state.queries(Q, lesson)
            self.predictions[chosen] = asked.predictions_before(steps, errors)


class Job(NamedTuple):
    """A learner to run over the stream: on these (n, c) targets, asked by this probe."""

    learner: SGD
    targets: Tensor
    probe: Probe | None = None
    keep_errors: bool = True


def learn_online(
    kernel: StreamKernel, jobs: Sequence[Job], order: Tensor | None = None
) -> list[OnlineRun]:
    """Runs learners over the stream, in its order or another, in one pass."""
    runs = [
        OnlineRun(
            kernel,
            job.learner,
            job.targets,
            keep_errors=job.keep_errors,
            order=order,
            probe=job.probe,
        )
        for job in jobs
    ]
    # windows end with a mini-batch of every learner, so all can use the same kernel rows
    together = math.lcm(*(job.learner.batch_size for job in jobs))
    follow(kernel.windows(together, order, keeping=runs), runs)
    return runs


def squared_errors_of_rates(
    kernel: StreamKernel, learner: SGD, rates: NDArray[np.float64], first_half: bool = False
) -> Tensor:
    """Returns (rates, c) mean squared errors of a learner at each rate; NaN if it diverges.

    They are those of all rows, each before it is learned, or of the first half of the stream.
    """
    if has_memory(learner):
        learners = [replace(learner, lr=float(rate)) for rate in rates]
        runs = learn_online(kernel, [Job(one, kernel.Y, keep_errors=False) for one in learners])
        return torch.stack([run.first_half if first_half else run.squared_error for run in runs])
    rows = max(1, len(kernel) // 2) if first_half else len(kernel)
    total = kernel.Y.new_zeros(len(rates), kernel.Y.shape[1])
    diverged = torch.zeros(len(rates), dtype=torch.bool)

    def note(window: Window, errors: Tensor) -> None:
        diverged.logical_or_((~(errors.abs() < OVERFLOW)).any(2).any(0))
        total.add_(errors[: max(0, rows - window.rows.start)].square().sum(0))

    together = SideBySide(
        kernel.learner(replace(learner, lr=1.0)), torch.from_numpy(rates).to(kernel.Y), note
    )
    keeping: list[Kept] = [together, KeptTensors(total=total, diverged=diverged)]
    follow(kernel.windows(learner.batch_size, keeping=keeping), [together])
    total[diverged] = math.nan
    return total / rows


def effective_targets(
    kernel: StreamKernel, run: OnlineRun, learner: SGD, gamma: float
) -> tuple[Tensor, Tensor]:
    """Returns the final dual coefficients C = w * E, and Y^e = (gamma I + K) C; NaN if diverged."""
    errors = run.errors
    if errors is None or run.coefficients is None:
        return unknown(kernel), unknown(kernel)
    weights = final_responses(learner, len(kernel))
    outputs = errors.shape[1]
    dual = kernel.of_rows(outputs, lambda rows: errors.new_tensor(weights(rows)) * errors[rows])
    values = kernel.values(run.coefficients)
    return dual, kernel.of_rows(outputs, lambda rows: gamma * dual[rows] + values[rows])


def exact_correction(kernel: StreamKernel, learner: SGD, dual: Tensor) -> Exact:
    """Leads the learner to the dual coefficients (n, c) of the offline learner (Thm. 3.2).

    Raises:
        UnreachableTargetsError: Some step has no effect at the end.
    """
    outputs = dual.shape[1]
    weights = final_responses(learner, len(kernel))
    if kernel.files is None or has_memory(learner):
        errors = errors_reaching(dual, learner)
    else:
        errors = kernel.of_rows(outputs, lambda rows: dual[rows] / dual.new_tensor(weights(rows)))
    return Exact(kernel.learner(learner), errors, targets=kernel.row_values(outputs))


class KnownPredictions:
    """An offline learner of which the predictions (n, c) are known."""

    def __init__(self, predictions: Tensor) -> None:
        self._predictions = predictions

    def learn(self, window: Window) -> Tensor:
        """(m, c) its prediction for each new block, once it has learned that block."""
        return self._predictions[window.rows]


class TriedCorrection(Iterative):
    """Leads the learner to (n, c) aims, block by block (Prop. 4.2), on targets that are not kept.

    If that fails, `failure` says why; `size` is the largest distance of a target from the true
    targets' mean, in their standard deviations.
    """

    def __init__(self, kernel: StreamKernel, learner: SGD, aims: Tensor, ridge: float) -> None:
        super().__init__(kernel.learner(learner), KnownPredictions(aims), ridge)
        self.size = 0.0
        self._kernel = kernel
        self._mean, spread = kernel.target_moments
        self._spread = torch.where(spread > 0, spread, 1.0)

    def teach(self, window: Window, lesson: Lesson) -> Steps:
        """Finds the targets; fails if there are none, or if they overflow."""
        try:
            steps = super().teach(window, lesson)
        except NotPositiveDefiniteError as error:
            self.failure = str(error)
            return Steps(window.targets, torch.full_like(window.targets, math.nan))
        if not bool((steps.targets.abs() < OVERFLOW).all()):
            self.failure = "its targets overflow; a larger ridge would keep them smaller"
        return steps

    def note(self, window: Window, lesson: Lesson, steps: Steps) -> None:
        """Measures the targets."""
        farthest = ((steps.targets - self._mean).abs() / self._spread).max()
        self.size = max(self.size, float(farthest))

    def state_dict(self) -> dict[str, Any]:
        """Returns the learner's state, and how large the targets are so far."""
        return super().state_dict() | {"size": self.size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; call it on a new correction."""
        super().load_state_dict(state)
        self.size = float(state["size"])

    @property
    def coefficients(self) -> Tensor | None:
        """The coefficients that predict a query from its kernel row; None if it failed."""
        return None if self.failure else self.learner.coefficients

    def warn_if_meaningless(self) -> None:
        """Warns if the targets have lost too many digits to be reliable."""
        if self.failure is None:
            condition = self.settling.condition
            dtype = self._mean.dtype
            warn_if_meaningless("the kernel of a block", condition, dtype)


class IterativeCorrection(TriedCorrection):
    """The same, with its `targets` (n, c), which are NaN if it fails."""

    targets: Tensor

    def __init__(self, kernel: StreamKernel, learner: SGD, aims: Tensor, ridge: float) -> None:
        super().__init__(kernel, learner, aims, ridge)
        self.targets = kernel.row_values(aims.shape[1])

    def teach(self, window: Window, lesson: Lesson) -> Steps:
        """Finds the targets."""
        steps = super().teach(window, lesson)
        if self.failure is not None:
            for rows in self._kernel.ranges():
                self.targets[rows] = math.nan
        return steps


def learn_corrected(
    kernel: StreamKernel,
    learner: SGD,
    correction: Exact | IterativeCorrection,
    block_size: int,
    before_blocks: bool = False,
    probe: Probe | None = None,
) -> OnlineRun:
    """Trains the learner on corrected targets as they are computed, including rounding."""
    targets = correction.targets
    taught = OnlineRun(kernel, learner, targets, before_blocks=before_blocks, probe=probe)
    both = [correction, taught]
    follow(kernel.windows(block_size, keeping=both), both)
    return taught


class OfflineRun:
    """The offline learner on its way through a stream.

    `aims` (n, c) are its predictions for each block, once it has learned that block.
    """

    failure: str | None = None

    def __init__(self, kernel: StreamKernel, gamma: float) -> None:
        self.aims = kernel.row_values(kernel.Y.shape[1])
        self._kernel = kernel
        self._offline = kernel.offline_learner(gamma)
        self._learned = 0

    def learn(self, window: Window) -> None:
        """Learns the samples of a window."""
        self.aims[window.rows] = self._offline.learn(window)
        self._learned = window.rows.stop

    def state_dict(self) -> dict[str, Any]:
        """Returns the offline learner's state."""
        offline = {f"offline.{name}": value for name, value in self._offline.state_dict().items()}
        return offline | {"learned": self._learned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; call it on a new run."""
        self._learned = int(state["learned"])
        features = self._kernel.query(self._kernel.X[:1]).shape[1]
        shape = features, self._kernel.Y.shape[1]
        self._offline.load_state_dict(part_of(state, "offline"), self._learned, shape)


def offline_aims(kernel: StreamKernel, gamma: float, block_size: int) -> Tensor:
    """Returns (n, c) predictions for each block by the offline learner that has just seen it."""
    run = OfflineRun(kernel, gamma)
    follow(kernel.windows(block_size, least=kernel.offline_rows, keeping=[run]), [run])
    return run.aims


def offline_errors(kernel: StreamKernel, gamma: float, batch_size: int) -> Tensor:
    """Returns (n, c) errors on each mini-batch of the offline learner of all rows before it."""
    errors = kernel.row_values(kernel.Y.shape[1])
    offline = kernel.offline_learner(gamma)
    for window in kernel.windows(batch_size, least=kernel.offline_rows):
        new = offline.innovation(window.panel, window.targets)
        errors[window.rows] = new.errors(window.block_size)
    return errors
