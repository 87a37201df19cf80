"""Baselines that any model should beat, and batch models of recent rows."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from retarget.diagnosis.answers import BaselineKind, Question
from retarget.diagnosis.measure.choose import choose_gamma
from retarget.diagnosis.measure.compare import Predictions
from retarget.diagnosis.measure.holdout import Split
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.stream import Stream
from retarget.engine.stream_kernel import StreamKernel
from retarget.errors import NotPositiveDefiniteError

COUNTED = 0.01  # rows discounted below this weight are left out
REFITS = 40  # how often a progressive evaluation refits such a model


def baseline_predictions(
    kernel: StreamKernel, parted: Split, question: Question, options: DiagnosisOptions
) -> dict[BaselineKind, Predictions]:
    """Returns the predictions of each baseline for the rows of a question.

    The mean, or the most frequent class, comes first. A batch model of recent rows, if the online
    learner is compared with one, is "recent".
    """
    Y = parted.stream.Y
    asked = parted.asked.get(question)
    simple: dict[BaselineKind, Predictions]
    if asked is None:
        earlier = np.vstack([np.zeros_like(Y[:1]), Y[:-1]])
        counts = np.maximum(np.arange(len(Y)), 1)[:, None]
        simple = {"constant": np.cumsum(earlier, axis=0) / counts, "last": earlier}
    else:
        simple = {"constant": np.tile(parted.stream.mean_target, (len(asked), 1))}
        if question == "next" and parted.previous is not None:
            simple["last"] = parted.previous
    if not options.batch_model.is_all:
        recent = _recent_predictions(kernel, parted.stream, asked, options)
        if recent is not None:
            simple["recent"] = recent
    return simple


def _recent_predictions(
    kernel: StreamKernel, stream: Stream, asked: Stream | None, options: DiagnosisOptions
) -> Predictions | None:
    """Returns the predictions of the batch model of recent rows; None if there is no such model."""
    scales = stream.target_scales
    try:
        if asked is not None:
            return of_recent(kernel, len(kernel), asked.X, options, scales)
        # refitted at intervals and used until the next refit; it knows nothing at the start
        predicted = np.zeros_like(stream.Y)
        starts = np.unique(np.linspace(2, len(predicted), REFITS, endpoint=False, dtype=int))
        for start, stop in zip(starts, [*starts[1:], len(predicted)], strict=True):
            queries = stream.X[start:stop]
            predicted[start:stop] = of_recent(kernel, int(start), queries, options, scales)
        return predicted
    except NotPositiveDefiniteError:
        return None


def of_recent(
    kernel: StreamKernel,
    stop: int,
    queries: NDArray[np.float64],
    options: DiagnosisOptions,
    scales: NDArray[np.float64],
) -> Predictions:
    """Returns the predictions of the batch model of the recent rows before `stop`."""
    recent = options.batch_model
    rows = recent.window or math.ceil(math.log(COUNTED) / math.log(recent.discount))
    rows = max(rows, 2)  # one row has no leave-one-out error
    recent_rows = kernel.part(slice(max(0, stop - rows), stop))
    gamma = choose_gamma(options, recent_rows, scales).value
    weights = None if recent.discount == 1 else recent.weights(recent_rows.Y)[:, 0]
    X = torch.from_numpy(np.ascontiguousarray(queries, dtype=np.float64))
    return recent_rows.predict(X, recent_rows.offline(gamma, weights).coefficients).numpy()
