"""What a change to the learner or to the order of the rows would have brought, tried out."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from retarget.diagnosis.kernels.base import StreamKernel
from retarget.diagnosis.measure.choose import with_rate
from retarget.diagnosis.measure.passes import Pass, learn_online
from retarget.diagnosis.result import Choice, Estimate
from retarget.learners import SGD

Change = Literal["rate", "batch", "order"]
BETTER_RATE = 0.95  # a rate whose prequential error is below this share of the learner's is tried
BATCH_FACTOR = 4


@dataclass(frozen=True)
class Trial:
    """One change, and what came of it.

    Attributes:
        change: What was changed.
        value: The rate or batch size tried; for the order, the seed of the permutation.
        effect: The change of the error, relative to the online learner's: below 0 is
            better.
    """

    change: Change
    value: float
    effect: Estimate


@dataclass(frozen=True)
class Attempt:
    """A trial that has run and is not measured yet."""

    change: Change
    value: float
    run: Pass


def attempt_changes(
    kernel: StreamKernel, learner: SGD, lr: Choice, seed: int, progressive: bool
) -> list[Attempt]:
    """Runs the learner at a better rate (if there is one), with other batches, and shuffled.

    In a progressive evaluation errors on the way are kept, and the order is left as it is: in
    another one, other rows would be predicted.
    """
    changes: list[tuple[Change, float, SGD]] = []
    better = better_rate(lr)
    if better is not None:
        changes.append(("rate", better, with_rate(learner, better)))
    b = learner.batch_size
    changes += [
        ("batch", batch, _with_batch(learner, batch))
        for batch in sorted({max(1, b // BATCH_FACTOR), b * BATCH_FACTOR} - {b})
        if batch <= len(kernel) // BATCH_FACTOR
    ]
    attempts = []
    if changes:
        jobs = [(other, kernel.Y) for _, _, other in changes]
        runs = learn_online(kernel, jobs, keep_errors=progressive)
        attempts = [
            Attempt(change, value, run)
            for (change, value, _), run in zip(changes, runs, strict=True)
        ]
    if progressive:
        return attempts
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(kernel)))
    (shuffled,) = learn_online(kernel, [(learner, kernel.Y)], keep_errors=False, order=order)
    return [*attempts, Attempt("order", seed, shuffled)]


def better_rate(lr: Choice) -> float | None:
    """The rate with the least prequential error, if it is clearly less than at the rate used."""
    tried = lr.tried.drop_nulls()
    if tried.is_empty():
        return None
    value, score = min(tried.iter_rows(), key=lambda row: float(row[1]))
    used = [row[1] for row in tried.iter_rows() if row[0] == lr.value]
    if used and score >= BETTER_RATE * used[0]:
        return None
    return float(value)


def _with_batch(learner: SGD, batch_size: int) -> SGD:
    return SGD(**{**learner.to_dict(), "batch_size": batch_size})
