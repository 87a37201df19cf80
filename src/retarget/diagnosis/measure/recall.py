"""Asks learners about held-out rows: when their time comes, and again at later moments.

A row's time is its place in the stream: the learner has learned the rows before it. What it says
then, and what it says about the same row later, differ only by what it has learned in between. So
their losses show directly what later rows did to what was known (`measure.forgetting`). Late
moments, in the last fifth of the stream, tell what a learner still knows: several of them, so that
the luck of the very last rows does not decide.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retarget.diagnosis.answers import Predictor
from retarget.diagnosis.measure.passes import (
    IterativeCorrection,
    Job,
    OnlineRun,
    Probe,
    learn_corrected,
    learn_online,
    offline_aims,
)
from retarget.diagnosis.stream import Stream
from retarget.engine.stream_kernel import StreamKernel
from retarget.errors import NotPositiveDefiniteError
from retarget.learners import SGD

LATE = (0.8, 0.85, 0.9, 0.95, 1.0)  # of the rows learned
LATE_OF_LONG = (0.9, 1.0)  # a long stream leaves less to the luck of the last rows
LONG_ROWS = 50_000
CURVE_MOMENTS = 12  # for the forgetting curve, evenly spaced over the stream
MOST_ASKED = 10_000  # held-out rows; of more, evenly spaced ones are asked about
# Random orders for each late moment; more for the last one, which also serves the next rows.
ORDERS = 2
ORDERS_AT_THE_END = 4
ORDERED_PAIRS = 1e8  # rows squared times folds in which random orders are run


def late_moments(rows: int) -> NDArray[np.int64]:
    """Returns after how many of so many learned rows the late moments are."""
    shares = LATE_OF_LONG if rows > LONG_ROWS else LATE
    return np.unique(np.maximum(1, np.round(np.array(shares) * rows)).astype(np.int64))


def curve_moments(rows: int, count: int = CURVE_MOMENTS) -> NDArray[np.int64]:
    """Returns moments all over the stream, with the late ones, for the forgetting curve."""
    spread = np.round(np.linspace(0, rows, count + 1)[1:]).astype(np.int64)
    return np.union1d(spread, late_moments(rows))


class Pairs(NamedTuple):
    """Held-out rows, each with a moment at which a learner is asked about it.

    Attributes:
        place: (pairs,) which of the held-out rows it is.
        moment: (pairs,) after how many learned rows it is asked.
    """

    place: NDArray[np.int64]
    moment: NDArray[np.int64]

    @classmethod
    def of(cls, times: NDArray[np.int64], moments: NDArray[np.int64]) -> "Pairs":
        """Returns every row with every moment that is not before its own time."""
        known = times[:, None] <= moments
        place, number = np.nonzero(known)
        return cls(place, moments[number])


class Fold:
    """Rows that are never learned, and the kernel of those that are.

    Args:
        kernel: The kernel of the rows that are learned.
        past: All rows, in order, the held-out ones among them.
        held: Positions of the held-out rows in `past`.
    """

    def __init__(self, kernel: StreamKernel, past: Stream, rows: NDArray[np.int64]) -> None:
        learned = np.setdiff1d(np.arange(len(past)), rows)
        if len(rows) > MOST_ASKED:
            rows = rows[np.round(np.linspace(0, len(rows) - 1, MOST_ASKED)).astype(np.int64)]
        self.kernel = kernel
        self.past = past
        self.rows = rows
        # how many learned rows come before each held-out one
        self.times = np.searchsorted(learned, rows)
        self.late = Pairs.of(self.times, late_moments(len(kernel)))
        self._Q = kernel.query(torch.from_numpy(np.ascontiguousarray(past.X[rows])))

    def probe(self, pairs: Pairs | None = None, order: Tensor | None = None) -> Probe:
        """Returns what asks a learner about pairs of rows and moments; about the late ones."""
        place, moment = self.late if pairs is None else pairs
        return Probe(self.kernel, self._Q, place, moment, order)

    def block_probe(self, block_size: int) -> Probe:
        """Returns what asks a corrected learner about the late pairs, at the end of a block.

        Within a block its targets lead it through states that mean nothing by themselves.
        """
        place, moment = self.late
        complete = moment // block_size * block_size
        return self.probe(Pairs(place, np.where(moment < len(self.kernel), complete, moment)))

    def whole_probe(self) -> "tuple[Probe, Pairs]":
        """Returns what asks about every row at its time and at all moments, and these pairs."""
        later = Pairs.of(self.times, curve_moments(len(self.kernel)))
        place = np.concatenate([np.arange(len(self.times)), later.place])
        moment = np.concatenate([self.times, later.moment])
        return self.probe(Pairs(place, moment)), later

    def mean_predictions(self) -> NDArray[np.float64]:
        """Returns (late pairs, c) the mean target of the rows before each moment."""
        Y = self.kernel.Y.numpy()
        moments, number = np.unique(self.late.moment, return_inverse=True)
        return np.array([Y[:moment].mean(axis=0) for moment in moments])[number]

    def batch_predictions(self, gamma: float) -> NDArray[np.float64]:
        """Returns (late pairs, c) what the batch models of the rows before each moment predict."""
        moments = np.unique(self.late.moment)
        try:
            predictions = self.kernel.offline_predictions(self._Q, gamma, moments.tolist())
        except NotPositiveDefiniteError:
            return np.full((len(self.late.place), self.kernel.Y.shape[1]), math.nan)
        number = np.searchsorted(moments, self.late.moment)
        return torch.stack(predictions).numpy()[number, self.late.place]

    def end_predictions(self, coefficients: Tensor) -> NDArray[np.float64]:
        """Returns (late pairs, c) what a learner predicts at the end; NaN for earlier moments."""
        predictions = (self._Q @ coefficients).numpy()[self.late.place]
        predictions[self.late.moment < len(self.kernel)] = math.nan
        return np.asarray(predictions)

    def in_random_orders(self, learner: SGD, rng: np.random.Generator, last: bool) -> "Orders":
        """Runs the learner over the rows before each late moment in random orders of these.

        With `last`, there are more orders of all rows, and their learners are kept. Of a long
        stream there are a few orders of all rows only.
        """
        predictions: dict[int, list[NDArray[np.float64]]] = {}
        ends: list[OnlineRun] = []
        long = len(self.kernel) > LONG_ROWS
        moments = np.unique(self.late.moment)
        for moment in moments[-1:] if long else moments:
            asked = np.flatnonzero(self.late.moment == moment)
            whole = last and moment == len(self.kernel)
            predictions[int(moment)] = []
            for _ in range(ORDERS_AT_THE_END if whole and not long else ORDERS):
                order = torch.from_numpy(rng.permutation(int(moment)))
                pairs = Pairs(self.late.place[asked], self.late.moment[asked])
                probe = self.probe(pairs, order)
                job = Job(learner, self.kernel.Y, probe, keep_errors=False)
                (run,) = learn_online(self.kernel, [job], order)
                predictions[int(moment)].append(probe.predictions.numpy())
                ends += [run] if whole else []
        return Orders(predictions, ends)


class Orders(NamedTuple):
    """What a learner says that has learned the rows in random orders.

    Attributes:
        said: For each late moment, (its pairs, c) predictions of every order.
        ends: The runs over all rows.
    """

    said: dict[int, list[NDArray[np.float64]]]
    ends: list[OnlineRun]


@dataclass
class FoldAnswers:
    """What learners say about the held-out rows of one fold.

    Attributes:
        fold: The rows, and the moments.
        online: What asks the online learner, and the pairs behind the rows' own times.
        said: (late pairs, c) the predictions of each learner.
        orders: The same for random orders; None if none were run.
    """

    fold: Fold
    online: Probe
    later: Pairs
    said: dict[Predictor, NDArray[np.float64]] = field(default_factory=dict)
    orders: Orders | None = None

    @property
    def first(self) -> NDArray[np.float64]:
        """(rows, c) what the online learner says about each row when its time comes."""
        return self.online.predictions[: len(self.fold.rows)].numpy()

    @property
    def afterwards(self) -> NDArray[np.float64]:
        """(later pairs, c) what it says at later moments."""
        return self.online.predictions[len(self.fold.rows) :].numpy()

    def note_online(self) -> None:
        """Adds what the online learner says at the late moments to what others say."""
        late = np.isin(self.later.moment, self.fold.late.moment)
        self.said["online"] = self.afterwards[late]


class Correction(NamedTuple):
    """How the iterative correction is made: its batch model's ridge, its own, its blocks."""

    gamma: float
    ridge: float
    block_size: int


@dataclass(frozen=True)
class AskedAgain:
    """Runs the learners again for another fold, with what was chosen for the first one.

    Attributes:
        learner: The online learner.
        gamma: The batch model's ridge.
        correction: How its targets are corrected; None if they are not.
        changes: Other learners to run.
        seed: What random orders are drawn from.
    """

    learner: SGD
    gamma: float
    correction: Correction | None
    changes: dict[Predictor, SGD]
    seed: int

    def online(self, fold: Fold) -> FoldAnswers:
        """Asks the online learner only."""
        return self._learned(fold, [])

    def everybody(self, fold: Fold, number: int, orders: bool) -> FoldAnswers:
        """Asks every learner about a fold of this number, perhaps in random orders as well."""
        probes = {change: fold.probe() for change in self.changes}
        Y = fold.kernel.Y
        jobs = [
            Job(other, Y, probes[change], keep_errors=False)
            for change, other in self.changes.items()
        ]
        answers = self._learned(fold, jobs)
        answers.note_online()
        answers.said |= {change: one.predictions.numpy() for change, one in probes.items()}
        answers.said["offline"] = fold.batch_predictions(self.gamma)
        if self.correction is not None:
            answers.said["iterative"] = _corrected(fold, self.learner, self.correction)
        if orders:
            rng = np.random.default_rng([self.seed, number])
            answers.orders = fold.in_random_orders(self.learner, rng, last=False)
        return answers

    def _learned(self, fold: Fold, others: list[Job]) -> FoldAnswers:
        probe, later = fold.whole_probe()
        learn_online(
            fold.kernel, [Job(self.learner, fold.kernel.Y, probe, keep_errors=False), *others]
        )
        return FoldAnswers(fold, probe, later)


def _corrected(fold: Fold, learner: SGD, correction: Correction) -> NDArray[np.float64]:
    """Returns (late pairs, c) what the learner says that is trained on corrected targets."""
    kernel = fold.kernel
    probe = fold.block_probe(correction.block_size)
    try:
        aims = offline_aims(kernel, correction.gamma, correction.block_size)
    except NotPositiveDefiniteError:
        return probe.predictions.numpy()
    targets = IterativeCorrection(kernel, learner, aims, correction.ridge)
    learn_corrected(kernel, learner, targets, correction.block_size, probe=probe)
    if targets.failure is not None:
        probe.predictions.fill_(math.nan)
    return probe.predictions.numpy()
