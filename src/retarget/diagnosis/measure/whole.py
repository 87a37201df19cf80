"""What a learner still knows of the whole stream, from every row that was held out in some fold."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from retarget.diagnosis.answers import (
    UNKNOWN,
    Answer,
    BaselineKind,
    Estimate,
    Forgetting,
    Predictor,
    TriedChange,
)
from retarget.diagnosis.measure.approximation import Opened
from retarget.diagnosis.measure.baselines import of_recent
from retarget.diagnosis.measure.compare import Predictions, Ruler, compare
from retarget.diagnosis.measure.forgetting import (
    OrderLosses,
    Remembered,
    mean_over_orders,
    measured_forgetting,
)
from retarget.diagnosis.measure.holdout import Split, complete_folds
from retarget.diagnosis.measure.intervals import Batches, ratio
from retarget.diagnosis.measure.learn import LearnedStream
from retarget.diagnosis.measure.recall import (
    ORDERED_PAIRS,
    AskedAgain,
    Correction,
    Fold,
    FoldAnswers,
)
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.stream import Stream
from retarget.errors import NotPositiveDefiniteError
from retarget.learners import SGD


class WholeStream(NamedTuple):
    """What was found on rows from the whole stream.

    Attributes:
        answer: The scores at the late moments of the stream.
        forgetting: How much was forgotten; None if that is not known.
        order_cost: How far the loss is above the mean over random orders, relative to it.
        one_pass_cost: How far that mean is above the batch model's loss, relative to it.
    """

    answer: Answer
    forgetting: Forgetting | None
    order_cost: Estimate
    one_pass_cost: Estimate


def first_fold(opened: Opened, parted: Split) -> Fold | None:
    """Returns the rows to ask about while the stream is learned; None if none are held out."""
    if parted.past is None or not parted.folds:
        return None
    return Fold(opened.kernel, parted.past, parted.folds[0])


def ask_about_whole(
    opened: Opened,
    parted: Split,
    options: DiagnosisOptions,
    learned: LearnedStream,
    first: FoldAnswers,
    learner: SGD,
    others: dict[Predictor, SGD],
    gamma: float,
    block_size: int,
) -> WholeStream:
    """Answers what is still known of the whole stream.

    The `first` fold was asked about when the stream was learned; the learners are run again for
    each other fold, with what was chosen for the first.
    """
    past = first.fold.past
    correction = None
    if learned.iterative_gamma is not None and learned.iterative_ridge is not None:
        ridges = learned.iterative_gamma.value, learned.iterative_ridge.value
        correction = Correction(*ridges, block_size)
    complete = complete_folds(len(past))
    ordered = max(1, int(ORDERED_PAIRS / len(past) ** 2))
    again = AskedAgain(learner, gamma, correction, others, options.seed)

    def asked(number: int) -> tuple[FoldAnswers | None, Remembered]:
        """Asks about a fold; its kernel is gone before the next one's is made, if it may be."""
        fold = _other_fold(opened, parted, past, number)
        if number < complete:
            answers = again.everybody(fold, number, number < ordered)
            return answers, _remembered(answers, past, parted, options)
        return None, _remembered(again.online(fold), past, parted, options)

    answers = [first]
    remembered = [_remembered(first, past, parted, options)]
    for number in range(1, 1 if opened.whole is None else len(parted.folds)):
        of_all, of_online = asked(number)
        answers += [] if of_all is None else [of_all]
        remembered.append(of_online)
    return _combined(answers, Remembered.together(remembered), past, parted, options)


def _other_fold(opened: Opened, parted: Split, past: Stream, number: int) -> Fold:
    """Returns a fold but the first, with the kernel of the rows that it leaves to learn."""
    if opened.whole is None:
        raise ValueError("the kernel of all rows was not opened")
    learned = torch.from_numpy(parted.learned_in(number))
    return Fold(opened.whole.part(learned), past, parted.folds[number])


def _combined(
    folds: list[FoldAnswers],
    remembered: Remembered,
    past: Stream,
    parted: Split,
    options: DiagnosisOptions,
) -> WholeStream:
    """Returns what the folds say in which everybody was asked, and the online learner in all."""
    rows = np.concatenate([one.fold.rows[one.fold.late.place] for one in folds])
    truth = past.part(rows)
    ruler = Ruler.of(truth, "whole", options.metric, parted.whole_groups, rows)
    predictions_of = _together(folds, truth)
    order, order_cost, one_pass_cost = _costs(folds, ruler, predictions_of, parted)
    baselines: dict[BaselineKind, Predictions] = {
        "constant": np.concatenate([one.fold.mean_predictions() for one in folds])
    }
    if not options.batch_model.is_all:
        recent = [_recent_predictions(one.fold, past, options) for one in folds]
        if all(predictions is not None for predictions in recent):
            baselines["recent"] = np.concatenate(recent)  # type: ignore[arg-type]
    answer = compare(predictions_of, baselines, ruler, parted, options, order)
    forgetting = measured_forgetting(remembered)
    if forgetting is not None and "offline" in predictions_of:
        strips = _history(ruler, parted)
        by_strip = ruler.within(strips)
        above = by_strip.mean(predictions_of["offline"])
        below = by_strip.mean(baselines["constant"])
        forgetting = replace(forgetting, knowable=ratio(above, below))
    return WholeStream(answer, forgetting, order_cost, one_pass_cost)


def _together(folds: list[FoldAnswers], truth: Stream) -> dict[Predictor, Predictions]:
    """Returns (late pairs of all folds, c) the predictions of every learner that all folds have.

    The exactly corrected learner was asked in the first fold only.
    """
    predictions_of: dict[Predictor, Predictions] = {}
    for name, of_first in folds[0].said.items():
        parts = [one.said.get(name) for one in folds]
        nothing = np.full((len(truth) - len(of_first), truth.Y.shape[1]), math.nan)
        if name == "corrected":
            predictions_of[name] = np.concatenate([of_first, nothing])
        elif all(predictions is not None for predictions in parts):
            predictions_of[name] = np.concatenate(
                [predictions for predictions in parts if predictions is not None]
            )
    return predictions_of


def _costs(
    folds: list[FoldAnswers],
    ruler: Ruler,
    predictions_of: dict[Predictor, Predictions],
    parted: Split,
) -> tuple[TriedChange | None, Estimate, Estimate]:
    """Returns what random orders change, the cost of the order and that of a single pass.

    They are measured on the folds in which random orders were run.
    """
    cells, pairs = _cells(folds, ruler)
    if not len(pairs) or "online" not in predictions_of:
        return None, UNKNOWN, UNKNOWN
    chosen = np.zeros(len(ruler.rows), dtype=bool)
    chosen[pairs] = True
    place = np.cumsum(chosen) - 1
    moved = [cell._replace(pairs=place[cell.pairs]) for cell in cells]
    some = ruler.some(chosen, parted.whole_groups)
    strips = _history(some, parted)
    online = predictions_of["online"][chosen]
    by_strip = mean_over_orders(moved, strips).through(some.metric.score)
    overall = mean_over_orders(moved, some.batches).through(some.metric.score)
    orders = sum(len(cell.losses) for cell in cells)
    change = TriedChange("order", orders, ratio(overall, some.mean(online)))
    order_cost = ratio(some.within(strips).mean(online), by_strip)
    one_pass_cost = UNKNOWN
    if "offline" in predictions_of:
        one_pass_cost = ratio(overall, some.mean(predictions_of["offline"][chosen]))
    return change, order_cost, one_pass_cost


def _history(ruler: Ruler, parted: Split) -> Batches:
    """Returns batches for what the stream's history decides: only which rows came is chance."""
    return ruler.batches if parted.whole_groups else Batches.within_strips(ruler.rows)


def _cells(folds: list[FoldAnswers], ruler: Ruler) -> tuple[list[OrderLosses], NDArray[np.int64]]:
    """Returns the losses of random orders by fold and moment, and the pairs that have any."""
    cells: list[OrderLosses] = []
    start = 0
    for one in folds:
        late = one.fold.late
        if one.orders is not None:
            for moment, predictions in one.orders.said.items():
                pairs = start + np.flatnonzero(late.moment == moment)
                truth = ruler.truth.part(pairs)
                losses = [ruler.metric.losses(each, truth) for each in predictions]
                cells.append(OrderLosses(np.array(losses), pairs))
        start += len(late.place)
    places = [cell.pairs for cell in cells]
    return cells, np.sort(np.concatenate(places)) if places else np.empty(0, dtype=np.int64)


def _remembered(
    answers: FoldAnswers, past: Stream, parted: Split, options: DiagnosisOptions
) -> Remembered:
    """Returns the online learner's losses on every row at its time and at all later moments."""
    fold = answers.fold
    later = answers.later
    rows = fold.rows[later.place]
    truth = past.part(rows)
    constant = np.tile(parted.stream.mean_target, (len(rows), 1))
    metric = options.metric
    return Remembered(
        rows=rows,
        ages=later.moment - fold.times[later.place],
        late=np.isin(later.moment, fold.late.moment),
        first=metric.losses(answers.first, past.part(fold.rows))[later.place],
        later=metric.losses(answers.afterwards, truth),
        learned=len(fold.kernel),
        constant=metric.losses(constant, truth),
        score=metric.score,
        groups=past.groups[rows] if parted.whole_groups and past.groups is not None else None,
    )


def _recent_predictions(fold: Fold, past: Stream, options: DiagnosisOptions) -> Predictions | None:
    """Returns (late pairs, c) predictions of the batch model of recent rows at each moment."""
    predictions = np.full((len(fold.late.place), past.Y.shape[1]), math.nan)
    queries = past.X[fold.rows]
    try:
        for moment in np.unique(fold.late.moment):
            pairs = np.flatnonzero(fold.late.moment == moment)
            asked = queries[fold.late.place[pairs]]
            scales = past.target_scales
            predictions[pairs] = of_recent(fold.kernel, int(moment), asked, options, scales)
    except NotPositiveDefiniteError:
        return None
    return predictions
