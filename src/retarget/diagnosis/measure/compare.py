"""The learners compared, on rows held out or on each row before it was learned."""

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retarget.diagnosis.kernels.base import StreamKernel
from retarget.diagnosis.measure.correction import offline_errors
from retarget.diagnosis.measure.evaluation import Split
from retarget.diagnosis.measure.learn import Learned
from retarget.diagnosis.measure.passes import errors_before_blocks
from retarget.diagnosis.measure.scoring import Bootstrap, gap, gap_closed, score, squared_errors
from retarget.diagnosis.measure.trials import Attempt, Trial
from retarget.diagnosis.result import Estimate, LearnerName, Score
from retarget.learners import SGD

LEARNERS: tuple[LearnerName, ...] = get_args(LearnerName)


@dataclass(frozen=True)
class Measured:
    """How the learners compare.

    Attributes:
        scores: One for each learner.
        excess: How far the online learner's error is above the offline one's, relative to it.
        gap_closed: The share of that which each correction takes away.
        trials: What other learners would have brought.
        rows: Number of rows that they were compared on.
        reference: How far the error of an offline learner with the true kernel, on a sample of the
            rows, is above the offline learner's, relative to it; None where there is none.
    """

    scores: tuple[Score, ...]
    excess: Estimate
    gap_closed: dict[str, Estimate]
    trials: tuple[Trial, ...]
    rows: int
    reference: Estimate | None = None

    def errors(self) -> dict[LearnerName, Estimate]:
        """Each learner's mean squared error."""
        return {score.learner: score.error for score in self.scores}


def compare(
    errors: dict[LearnerName, NDArray[np.float64]],
    tried: list[tuple[Attempt, NDArray[np.float64]]],
    parted: Split,
    seed: int,
    reference: NDArray[np.float64] | None = None,
) -> Measured:
    """Scores, with their uncertainty, of learners that made these errors (m, c)."""
    stream = parted.stream
    Y = stream.Y if parted.test is None else parted.test.Y
    nothing = np.full(Y.shape, math.nan)
    own = {name: errors.get(name, nothing) for name in LEARNERS}
    squares = {name: squared_errors(own[name], stream) for name in LEARNERS}
    bootstrap = Bootstrap(len(Y), seed)
    closed = {
        name: gap_closed(squares["offline"], squares["online"], squares[name], bootstrap)
        for name in LEARNERS[2:]
    }
    trials = [
        Trial(attempt.change, attempt.value, gap(squared, squares["online"], bootstrap))
        for attempt, squared in ((made, squared_errors(e, stream)) for made, e in tried)
    ]
    beside = None
    if reference is not None:
        beside = gap(squared_errors(reference, stream), squares["offline"], bootstrap)
    return Measured(
        scores=tuple(score(name, own[name], Y, stream, bootstrap) for name in LEARNERS),
        excess=gap(squares["online"], squares["offline"], bootstrap),
        gap_closed={str(name): closed[name] for name in closed},
        trials=tuple(trials),
        rows=len(Y),
        reference=beside,
    )


@torch.no_grad()
def held_out_errors(
    kernel: StreamKernel, X: Tensor, Y: Tensor, coefficients: list[Tensor]
) -> list[NDArray[np.float64]]:
    """(m, c) the errors on rows held out, of each predictor: one kernel row serves all."""
    if not coefficients:
        return []
    predictions = kernel.predict(X, torch.cat(coefficients, dim=1))
    parts = predictions.reshape(len(Y), len(coefficients), -1)
    return [(Y - parts[:, place]).numpy() for place in range(len(coefficients))]


@torch.no_grad()
def progressive_errors(
    kernel: StreamKernel, learned: Learned, learner: SGD, gamma: float, block_size: int
) -> dict[LearnerName, NDArray[np.float64]]:
    """(n, c) each learner's errors on rows that it has not learned yet.

    The offline learner is that of all rows before the mini-batch. The iteratively corrected one
    predicts a block before it learns any row of it. The exactly corrected one is left out: it is
    right at the end of the stream only.
    """
    errors: dict[LearnerName, NDArray[np.float64]] = {}
    if learned.offline is not None:
        errors["offline"] = offline_errors(kernel, gamma, learner.batch_size).numpy()
    if learned.online.coefficients is not None and learned.online.errors is not None:
        errors["online"] = learned.online.errors.numpy()
    if "iterative" in learned.coefficients:
        made = errors_before_blocks(kernel, learner, learned.iterative, block_size)
        errors["iterative"] = made.numpy()
    return errors
