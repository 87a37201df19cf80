"""Compares the learners on rows that they have not learned, with confidence intervals."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retarget.diagnosis.answers import (
    DIVERGED,
    UNKNOWN,
    Answer,
    Baseline,
    BaselineKind,
    Estimate,
    LearnerName,
    Predictor,
    Question,
    Score,
    TriedChange,
)
from retarget.diagnosis.measure.holdout import Split, as_tensors
from retarget.diagnosis.measure.intervals import (
    Batches,
    Mean,
    difference,
    estimate,
    gap_closed,
    mean_over_runs,
    ratio,
)
from retarget.diagnosis.measure.learn import LearnedStream
from retarget.diagnosis.measure.passes import offline_errors
from retarget.diagnosis.metrics import ACCURACY, METRICS, SQUARED, Metric
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.stream import Stream, TargetKind
from retarget.engine.stream_kernel import StreamKernel
from retarget.errors import InvalidInputError

LEARNERS: tuple[LearnerName, ...] = get_args(LearnerName)
IN_WORDS: dict[TargetKind, str] = {"regression": "numbers", "classification": "classes"}
MOST_CONFUSED = 20  # classes, for counts of which was taken for which
Predictions = NDArray[np.float64]  # (m, c) for rows that a learner has not learned


@dataclass(frozen=True)
class Ruler:
    """What predictions for some rows are measured with.

    Attributes:
        truth: The rows with their true targets; a row may be there several times, if it is asked
            about at several moments.
        question: Which rows they are.
        metric: What is measured.
        batches: The rows in batches, for intervals.
        rows: (m,) which row it is; equal for the same row.
    """

    truth: Stream
    question: Question
    metric: Metric
    batches: Batches
    rows: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        truth: Stream,
        question: Question,
        metric: Metric,
        whole_groups: bool,
        rows: NDArray[np.int64] | None = None,
    ) -> Self:
        """Returns the ruler for rows in the order of the stream; `rows` says which are the same."""
        numbered = np.arange(len(truth)) if rows is None else rows
        if whole_groups and truth.groups is not None:
            batches = Batches.of_groups(truth.groups)
        else:
            batches = Batches.consecutive(numbered)
        return cls(truth, question, metric, batches, numbered)

    def some(self, chosen: NDArray[np.bool_], whole_groups: bool) -> "Ruler":
        """Returns the ruler for some of the rows."""
        truth = self.truth.part(chosen)
        return Ruler.of(truth, self.question, self.metric, whole_groups, self.rows[chosen])

    def within(self, batches: Batches) -> "Ruler":
        """Returns the ruler for the same rows with other batches."""
        return replace(self, batches=batches)

    def losses(self, predicted: Predictions) -> NDArray[np.float64]:
        """Returns (m,) the loss on each row, in the user's units."""
        return self.metric.losses(predicted, self.truth)

    def mean(self, predicted: Predictions) -> Mean:
        """Returns the score: the mean loss, or what the metric makes of it."""
        return self.batches.mean(self.losses(predicted)).through(self.metric.score)

    def loss(self, predicted: Predictions) -> Estimate:
        """Returns the score with its interval."""
        return estimate(self.mean(predicted), lowest=0.0)

    def error(self, predicted: Predictions) -> Estimate:
        """Returns the mean squared error."""
        return estimate(self.batches.mean(SQUARED.losses(predicted, self.truth)), lowest=0.0)

    def right(self, predicted: Predictions) -> Mean:
        """Returns the share of rows whose class is right."""
        return self.batches.mean(1 - ACCURACY.losses(predicted, self.truth))

    def accuracy(self, predicted: Predictions) -> Estimate | None:
        """Returns the share of rows whose class is right; None for regression."""
        if self.truth.kind != "classification":
            return None
        return estimate(self.right(predicted), lowest=0.0, highest=1.0)

    def recall(self, predicted: Predictions) -> list[Mean]:
        """Returns the share of each class's rows whose class is right; nothing for numbers."""
        if self.truth.kind != "classification":
            return []
        right = 1 - ACCURACY.losses(predicted, self.truth)
        classes = self.truth.Y.argmax(axis=1)
        means = []
        for number in range(self.truth.Y.shape[1]):
            of_class = classes == number
            batches = Batches.consecutive(self.rows[of_class])
            means.append(batches.mean(right[of_class]))
        return means

    def confusion(self, runs: list[Predictions]) -> tuple[tuple[int, ...], ...]:
        """Counts for each class which classes were predicted, in all runs together.

        Nothing for numbers or many classes, or if a prediction is not finite.
        """
        classes = self.truth.Y.shape[1]
        if self.truth.kind != "classification" or classes > MOST_CONFUSED:
            return ()
        if not all(np.isfinite(predicted).all() for predicted in runs):
            return ()
        counts = np.zeros((classes, classes), dtype=np.int64)
        for predicted in runs:
            np.add.at(counts, (self.truth.Y.argmax(axis=1), predicted.argmax(axis=1)), 1)
        return tuple(tuple(int(count) for count in row) for row in counts)


def rulers(parted: Split, options: DiagnosisOptions) -> Iterator[Ruler]:
    """Yields what predictions are measured with, for each question.

    Raises:
        InvalidInputError: The metric is not for such targets.
    """
    metric = options.metric
    kind = parted.stream.kind
    if kind not in metric.kinds:
        meant = IN_WORDS[metric.kinds[0]]
        others = [repr(other.name) for other in METRICS.values() if kind in other.kinds]
        raise InvalidInputError(
            f"{spelled('metric')} is {metric.name!r}, which is for {meant}, and the targets are "
            f"{IN_WORDS[kind]}; use {', '.join(others)}, or say that they are {meant}, "
            f"{spelled('kind', metric.kinds[0])}"
        )
    for question, rows in (parted.asked or {"progressive": parted.stream}).items():
        yield Ruler.of(rows, question, metric, parted.whole_groups)


def compare(
    predicted: Mapping[Predictor, Predictions],
    baselines: Mapping[BaselineKind, Predictions],
    ruler: Ruler,
    parted: Split,
    options: DiagnosisOptions,
    order: TriedChange | None = None,
) -> Answer:
    """Answers one question: scores the learners' predictions and what was tried.

    `baselines` holds the "constant" one and, if the batch model to compare with learns from other
    rows than all, that one as "recent". `order` is what random orders change, if that was measured
    apart. A learner that was asked about some of the rows only is compared with others on these.
    """
    truth = ruler.truth
    nothing = np.full(truth.Y.shape, math.nan)
    own = {name: predicted.get(name, nothing) for name in LEARNERS}
    batch = own["offline"]
    if not options.batch_model.is_all:
        batch = baselines.get("recent", batch)
    batch_loss = ruler.mean(batch)
    online_loss = ruler.mean(own["online"])
    useful = ruler.error(own["online"]).value <= DIVERGED * parted.stream.variance
    classes = truth.kind == "classification"
    corrections = LEARNERS[2:]
    closed: dict[str, Estimate] = dict.fromkeys(corrections, UNKNOWN)
    effect: dict[str, Estimate] = dict.fromkeys(corrections, UNKNOWN)
    for name in corrections if useful else ():
        asked = _known(own[name])
        if asked.any():
            some = ruler if asked.all() else ruler.some(asked, parted.whole_groups)
            losses_there = (
                some.mean(predictions[asked]) for predictions in (batch, own["online"], own[name])
            )
            batch_there, online_there, corrected = losses_there
            closed[name] = gap_closed(batch_there, online_there, corrected)
            effect[name] = ratio(corrected, online_there)
    unseen: tuple[str, ...] = ()
    if classes and not parted.progressive:
        new = (truth.Y.sum(axis=0) > 0) & (parted.stream.mean_target == 0)
        unseen = tuple(np.array(truth.target_names, dtype=object)[new])
    gap = None
    if classes and options.metric.shows_accuracy:  # a metric that was chosen decides alone
        gap = difference(ruler.right(batch), ruler.right(own["online"]))
    return Answer(
        question=ruler.question,
        rows=len(np.unique(ruler.rows)),
        scores=tuple(_score(name, own[name], ruler, parted.whole_groups) for name in LEARNERS),
        baselines=tuple(
            Baseline(
                kind,
                ruler.question,
                ruler.error(predictions),
                ruler.accuracy(predictions),
                ruler.loss(predictions),
                online=ratio(online_loss, ruler.mean(predictions)),
                batch=ratio(batch_loss, ruler.mean(predictions)),
                aim=options.aim if kind == "recent" else "",
            )
            for kind, predictions in baselines.items()
        ),
        excess=ratio(online_loss, batch_loss),
        accuracy_gap=None if gap is None else estimate(gap),
        gap_closed=closed,
        effect=effect,
        trials=_trials(predicted, ruler, order) if useful else (),
        unseen=unseen,
    )


def _known(predicted: Predictions) -> NDArray[np.bool_]:
    """Returns (m,) whether there is a prediction."""
    return np.asarray(np.isfinite(predicted).all(axis=1))


def _score(name: LearnerName, predicted: Predictions, ruler: Ruler, whole_groups: bool) -> Score:
    """Scores a learner, on the rows that it was asked about."""
    asked = _known(predicted)
    if asked.any() and not asked.all() and name == "corrected":
        ruler = ruler.some(asked, whole_groups)
        predicted = predicted[asked]
    truth = ruler.truth
    by_target: tuple[Estimate, ...] = ()
    if truth.kind == "regression" and truth.Y.shape[1] > 1:
        with np.errstate(over="ignore"):
            squares = np.square((truth.Y - predicted) * truth.target_scales)
        means = (ruler.batches.mean(column) for column in squares.T)
        by_target = tuple(estimate(mean, lowest=0.0) for mean in means)
    return Score(
        name,
        ruler.question,
        error=ruler.error(predicted),
        accuracy=ruler.accuracy(predicted),
        loss=ruler.loss(predicted),
        by_target=by_target,
        recall=tuple(estimate(mean, 0.0, 1.0) for mean in ruler.recall(predicted)),
        confusion=ruler.confusion([predicted]),
    )


def _trials(
    predicted: Mapping[Predictor, Predictions], ruler: Ruler, order: TriedChange | None
) -> tuple[TriedChange, ...]:
    """Returns the effect of each change; all random orders count as one.

    A progressive evaluation uses the second half of the stream: the first half chose the rate.
    """
    start = len(ruler.truth) // 2 if ruler.question == "progressive" else 0
    batches = Batches.consecutive(ruler.rows[start:]) if start else ruler.batches

    def mean(predictions: Predictions) -> Mean:
        return batches.mean(ruler.losses(predictions)[start:])

    tried = {
        change: predictions
        for change, predictions in predicted.items()
        if isinstance(change, tuple)
    }
    online = mean(predicted["online"])
    trials = [
        TriedChange(change, value, ratio(mean(predictions), online))
        for (change, value), predictions in tried.items()
        if change != "order"
    ]
    runs = [mean(predictions) for (change, _), predictions in tried.items() if change == "order"]
    if runs:
        trials.append(TriedChange("order", len(runs), ratio(mean_over_runs(runs), online)))
    elif order is not None:
        trials.append(order)
    return tuple(trials)


def progressive_predictions(
    kernel: StreamKernel, learned: LearnedStream, gamma: float, batch_size: int
) -> dict[Predictor, Predictions]:
    """Returns each learner's predictions for rows that it has not learned yet.

    The batch model is trained on all rows before the mini-batch; the iteratively corrected one
    predicts a block before learning it. The exactly corrected one is left out: it is right only at
    the end of the stream.
    """
    errors_of: dict[Predictor, Tensor | None] = {}
    if "offline" in learned.coefficients:
        errors_of["offline"] = offline_errors(kernel, gamma, batch_size)
    if "online" in learned.coefficients:
        errors_of["online"] = learned.online.errors
    if "iterative" in learned.coefficients:
        errors_of["iterative"] = learned.before_blocks
    errors_of |= {change: run.errors for change, run in learned.changed.items()}
    return {
        name: (kernel.Y - errors).numpy()
        for name, errors in errors_of.items()
        if errors is not None
    }


def held_out_predictions(
    kernel: StreamKernel, rows: Stream, learned: LearnedStream
) -> dict[Predictor, Predictions]:
    """Returns each learner's predictions for held-out rows, at the end of the stream."""
    ends: dict[Predictor, Tensor | None] = {
        name: learned.coefficients.get(name) for name in LEARNERS
    }
    ends |= {change: run.coefficients for change, run in learned.changed.items()}
    known = {name: end for name, end in ends.items() if end is not None}
    return dict(zip(known, predictions(kernel, rows, list(known.values())), strict=True))


def predictions(kernel: StreamKernel, rows: Stream, ends: list[Tensor]) -> list[Predictions]:
    """Returns the predictions of several learners' coefficients, which share the kernel rows."""
    if not ends:
        return []
    X, Y = as_tensors(rows)
    parts = kernel.predict(X, torch.cat(ends, dim=1)).reshape(len(Y), len(ends), -1)
    return [np.ascontiguousarray(parts[:, place].numpy()) for place in range(len(ends))]
