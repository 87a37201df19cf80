"""Compares the learners on rows that they have not learned, with confidence intervals."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple, get_args

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
    Change,
    Estimate,
    LearnerName,
    Metric,
    Question,
    Score,
    TriedChange,
)
from retarget.diagnosis.dialect import named, option
from retarget.diagnosis.measure.bootstrap import (
    Bootstrap,
    Resamples,
    any_of,
    estimate,
    gap_closed,
    ratio,
)
from retarget.diagnosis.measure.holdout import Split, as_tensors
from retarget.diagnosis.measure.learn import LearnedStream
from retarget.diagnosis.measure.passes import offline_errors
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.stream import Stream
from retarget.errors import InvalidInputError
from retarget.theory.losses import nearest_distributions
from retarget.theory.stream_kernel import StreamKernel

LEARNERS: tuple[LearnerName, ...] = get_args(LearnerName)
LEAST_PROBABILITY = 1e-3  # for the log-loss: predictions of a least-squares model reach 0
Predictor = LearnerName | tuple[Change, float]  # a learner, or a change that was tried
Predictions = NDArray[np.float64]  # (m, c) for rows that a learner has not learned


class Ruler(NamedTuple):
    """What predictions for some rows are measured with: the true targets, metric, bootstrap."""

    truth: Stream
    question: Question
    metric: Metric
    bootstrap: Bootstrap

    def losses(self, predicted: Predictions) -> NDArray[np.float64]:
        """Returns (m,) the loss on each row, in the user's units; the score is their mean."""
        return losses(predicted, self.truth, self.metric)

    def means(self, predicted: Predictions) -> Resamples:
        """Returns the mean loss and its resampled values."""
        return self.bootstrap.means(self.losses(predicted))

    def error(self, predicted: Predictions) -> Estimate:
        """Returns the mean squared error."""
        return estimate(self.bootstrap.means(losses(predicted, self.truth, "squared")))

    def right(self, predicted: Predictions) -> Resamples:
        """Returns the share of rows whose class is right, and its resampled values."""
        return self.bootstrap.means(1 - losses(predicted, self.truth, "accuracy"))

    def accuracy(self, predicted: Predictions) -> Estimate | None:
        """Returns the share of rows whose class is right; None for regression."""
        return estimate(self.right(predicted)) if self.truth.kind == "classification" else None


def rulers(parted: Split, options: DiagnosisOptions) -> Iterator[Ruler]:
    """Yields what predictions are measured with, for each question.

    Raises:
        InvalidInputError: The metric is for classes, and the targets are numbers.
    """
    of_classes = options.metric in ("log-loss", "accuracy", "balanced-accuracy")
    if of_classes and parted.stream.kind == "regression":
        raise InvalidInputError(
            f"{named('metric')} is {options.metric!r}, which is for classes, and the targets are "
            "numbers; use 'squared' or 'absolute', or say that they are classes "
            f"({option('kind', 'classification')})"
        )
    for question, rows in (parted.asked or {"progressive": parted.stream}).items():
        groups = rows.groups if parted.whole_groups else None
        bootstrap = Bootstrap(len(rows), options.seed, groups)
        yield Ruler(rows, question, options.metric, bootstrap)


def losses(predicted: Predictions, truth: Stream, metric: Metric) -> NDArray[np.float64]:
    """Returns (m,) the loss of a prediction for each row, lower is better; NaN if not finite.

    Squared and absolute errors are means over targets in the user's units. For classes, predictions
    are projected onto the simplex to be probabilities ("log-loss", at least 0.001 each); a wrong
    class costs 1 ("accuracy"), or as much more as its class is rarer ("balanced-accuracy").
    """
    if metric in ("auto", "squared"):
        return truth.squared(truth.Y - predicted)
    if metric == "absolute":
        return np.asarray(np.abs((truth.Y - predicted) * truth.target_scales).mean(axis=1))
    known, of = np.isfinite(predicted).all(axis=1), truth.Y.argmax(axis=1)
    found = np.full(len(of), math.nan)
    if metric == "log-loss":
        chances = nearest_distributions(predicted[known])
        own = np.clip(chances[np.arange(len(chances)), of[known]], LEAST_PROBABILITY, None)
        found[known] = -np.log(own)
        return found
    found[known] = predicted[known].argmax(axis=1) != of[known]
    if metric == "accuracy":
        return found
    counts = np.bincount(of, minlength=truth.Y.shape[1])
    return np.asarray(found * len(of) / (np.count_nonzero(counts) * counts[of]))


def compare(
    predicted: Mapping[Predictor, Predictions],
    baselines: Mapping[BaselineKind, Predictions],
    ruler: Ruler,
    parted: Split,
    options: DiagnosisOptions,
) -> Answer:
    """Answers one question: scores the learners' predictions and what was tried.

    `baselines` holds the "constant" one and, if the batch model to compare with learns from other
    rows than all, that one as "recent".
    """
    truth = ruler.truth
    nothing = np.full(truth.Y.shape, math.nan)
    own = {name: predicted.get(name, nothing) for name in LEARNERS}
    batch = own["offline"]
    if not options.batch_model.is_all:
        batch = baselines.get("recent", batch)
    batch_loss, online = ruler.means(batch), ruler.means(own["online"])
    squared = (ruler.error(part).value for part in (own["online"], baselines["constant"]))
    useful = next(squared) <= DIVERGED * next(squared)
    classes, corrections = truth.kind == "classification", LEARNERS[2:]
    ends = {name: ruler.means(own[name]) for name in corrections}
    unseen: tuple[str, ...] = ()
    if classes and not parted.progressive:
        new = (truth.Y.sum(axis=0) > 0) & (parted.stream.Y.sum(axis=0) == 0)
        unseen = tuple(np.array(truth.target_names, dtype=object)[new])
    return Answer(
        question=ruler.question,
        rows=len(truth),
        scores=tuple(_score(name, own[name], ruler) for name in LEARNERS),
        baselines=tuple(
            Baseline(
                kind,
                ruler.question,
                ruler.error(made),
                ruler.accuracy(made),
                estimate(ruler.means(made)),
                online=ratio(online, ruler.means(made)),
                batch=ratio(batch_loss, ruler.means(made)),
                aim=options.aim if kind == "recent" else "",
            )
            for kind, made in baselines.items()
        ),
        excess=ratio(online, batch_loss),
        accuracy_gap=estimate(ruler.right(batch) - ruler.right(own["online"])) if classes else None,
        gap_closed={
            name: gap_closed(batch_loss, online, ends[name]) if useful else UNKNOWN
            for name in corrections
        },
        effect={name: ratio(ends[name], online) if useful else UNKNOWN for name in corrections},
        trials=_trials(predicted, ruler, options.seed) if useful else (),
        unseen=unseen,
    )


def _score(name: LearnerName, predicted: Predictions, ruler: Ruler) -> Score:
    truth = ruler.truth
    by_target: tuple[Estimate, ...] = ()
    if truth.kind == "regression" and truth.Y.shape[1] > 1:
        with np.errstate(over="ignore"):
            squares = np.square((truth.Y - predicted) * truth.target_scales)
        by_target = tuple(estimate(ruler.bootstrap.means(column)) for column in squares.T)
    error, accuracy = ruler.error(predicted), ruler.accuracy(predicted)
    return Score(name, ruler.question, error, accuracy, estimate(ruler.means(predicted)), by_target)


def _trials(
    predicted: Mapping[Predictor, Predictions], ruler: Ruler, seed: int
) -> tuple[TriedChange, ...]:
    """Returns the effect of each change; all random orders count as one.

    A progressive evaluation uses the second half of the stream: the first half chose the rate.
    """
    start = len(ruler.truth) // 2 if ruler.question == "progressive" else 0
    bootstrap = ruler.bootstrap if not start else Bootstrap(len(ruler.truth) - start, seed)

    def means(made: Predictions) -> Resamples:
        return bootstrap.means(ruler.losses(made)[start:])

    tried = {change: made for change, made in predicted.items() if isinstance(change, tuple)}
    online = means(predicted["online"])
    trials = [
        TriedChange(change, value, ratio(means(made), online))
        for (change, value), made in tried.items()
        if change != "order"
    ]
    orders = [means(made) for (change, _), made in tried.items() if change == "order"]
    if orders:
        trials.append(TriedChange("order", len(orders), ratio(any_of(orders, seed), online)))
    return tuple(trials)


def progressive_predictions(
    kernel: StreamKernel, learned: LearnedStream, gamma: float, batch_size: int
) -> dict[Predictor, Predictions]:
    """Returns each learner's predictions for rows that it has not learned yet.

    The batch model is trained on all rows before the mini-batch; the iteratively corrected one
    predicts a block before learning it. The exactly corrected one is left out: it is right only at
    the end of the stream.
    """
    made: dict[Predictor, Tensor | None] = {}
    if "offline" in learned.coefficients:
        made["offline"] = offline_errors(kernel, gamma, batch_size)
    if "online" in learned.coefficients:
        made["online"] = learned.online.errors
    if "iterative" in learned.coefficients:
        made["iterative"] = learned.before_blocks
    made |= {change: run.errors for change, run in learned.changed.items()}
    return {
        name: (kernel.Y - errors).numpy() for name, errors in made.items() if errors is not None
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
