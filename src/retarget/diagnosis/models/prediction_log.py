"""Diagnoses a log of a model's predictions, if there is no model to run."""

import math
from typing import Any

import numpy as np

from retarget.diagnosis.answers import UNKNOWN, Forgetting, ModelScore
from retarget.diagnosis.measure.compare import rulers
from retarget.diagnosis.measure.forgetting import Remembered, measured_forgetting
from retarget.diagnosis.measure.groups import partition
from retarget.diagnosis.measure.holdout import Split
from retarget.diagnosis.measure.intervals import estimate, ratio
from retarget.diagnosis.models.runs import movement_by_group
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.result import ModelDiagnosis
from retarget.diagnosis.stream import Stream
from retarget.errors import InvalidInputError
from retarget.text import listed


def from_predictions(
    stream: Stream,
    predictions: Any = None,
    predictions_after: Any = None,
    options: DiagnosisOptions | None = None,
) -> ModelDiagnosis:
    """Diagnoses a log of a model's predictions, without the model.

    `predictions` are (n,) or (n, c) for each row just before it was learned, in the user's units,
    or (n,) names of classes; `predictions_after` are those at the end of the stream, or later.

    The shift is then measured from before a row was learned to the end, so it includes the effect
    of the row's own step. The log does not show when a prediction moved, so every later row gets
    the same share of the movement.
    """
    if predictions is None and predictions_after is None:
        raise InvalidInputError("there are no predictions; give predictions, or predictions_after")
    nothing = np.full(stream.Y.shape, math.nan)
    before = nothing if predictions is None else _logged("predictions", predictions, stream)
    end = nothing
    if predictions_after is not None:
        end = _logged("predictions_after", predictions_after, stream)
    options = options or DiagnosisOptions()
    (ruler,) = rulers(Split(stream, {}, options.hold_out == "group"), options)
    as_it_came = ModelScore(
        "as it came",
        ruler.question,
        ruler.error(before),
        ruler.accuracy(before),
        ruler.loss(before),
        change=ratio(ruler.mean(before), ruler.mean(before)),
        constant=ratio(ruler.mean(before), ruler.mean(_constant(stream))),
        recall=tuple(estimate(mean, 0.0, 1.0) for mean in ruler.recall(before)),
        confusion=ruler.confusion([before]),
    )
    return ModelDiagnosis(
        name="the logged predictions",
        scores=(as_it_came,),
        orders={ruler.question: ()},
        before=before,
        after=before,
        end=end,
        groups=movement_by_group(stream, partition(stream), before, ((len(stream), end),), 1),
        description="Only predictions were given: nothing is known about the model behind them.",
        theory=None,
        agreement=None,
        corrected=None,
        corrected_size=math.nan,
        closed={ruler.question: UNKNOWN},
        prequential=ruler.error(before),
        remembered=ruler.error(end),
        forgetting=_forgetting(stream, before, end, options),
    )


def _forgetting(
    stream: Stream, before: np.ndarray, end: np.ndarray, options: DiagnosisOptions
) -> Forgetting | None:
    """Returns how much the loss on the rows learned rose since just before each was learned.

    The model has learned each row in between, so this understates what it forgot.
    """
    rows = np.arange(len(stream))
    whole_groups = options.hold_out == "group"
    metric = options.metric
    return measured_forgetting(
        Remembered(
            rows=rows,
            ages=len(stream) - rows,
            late=np.ones(len(stream), dtype=bool),
            first=metric.losses(before, stream),
            later=metric.losses(end, stream),
            learned=len(stream),
            constant=metric.losses(_constant(stream), stream),
            groups=stream.groups if whole_groups else None,
            score=metric.score,
        )
    )


def _constant(stream: Stream) -> np.ndarray:
    """Returns (n, c) the predictions of the mean."""
    return np.tile(stream.Y.mean(axis=0), (len(stream), 1))


def _logged(name: str, values: Any, stream: Stream) -> np.ndarray:
    """Returns (n, c) logged predictions in the units of `stream.Y`."""
    array = np.asarray(values)
    array = array.reshape(len(array), -1) if array.ndim else array.reshape(1, 1)
    columns = 1 if stream.kind == "classification" else stream.Y.shape[1]
    if array.shape != (len(stream), columns):
        raise InvalidInputError(
            f"{name} has shape {np.shape(values)}; expected {len(stream)} rows of {columns} columns"
        )
    if stream.kind == "classification":
        labels = [str(label) for label in array[:, 0].tolist()]
        unknown = sorted(set(labels) - set(stream.target_names))
        if unknown:
            raise InvalidInputError(
                f"{name} holds classes that the stream does not have ({listed(unknown)}); expected "
                f"some of {listed(stream.target_names)}"
            )
        places = [stream.target_names.index(label) for label in labels]
        return np.asarray(np.eye(len(stream.target_names))[places])
    try:
        numbers = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{name} holds something that is not a number: {error}") from error
    missing = int((~np.isfinite(numbers).all(axis=1)).sum())
    if missing:
        raise InvalidInputError(
            f"{name} is missing or not finite in {missing:,} rows; expected a number for each row"
        )
    return np.asarray((numbers - stream.target_means) / stream.target_scales)
