"""Other batch models, tried where the batch model is worse than the simplest predictor.

A kernel that is too flexible, or too small a ridge, often is the reason. So before either is
advised, a linear model and a much larger ridge are tried on the same rows.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from torch import Tensor

from retarget.diagnosis.answers import AlternativeModel, Answer
from retarget.diagnosis.measure.choose import choose_gamma
from retarget.diagnosis.measure.compare import Ruler, predictions
from retarget.diagnosis.measure.holdout import Split, as_tensors
from retarget.diagnosis.measure.intervals import ratio
from retarget.diagnosis.options import DiagnosisOptions
from retarget.engine.stream_kernel import FeatureKernel, StreamKernel
from retarget.errors import NotPositiveDefiniteError
from retarget.kernels import Affine, Linear
from retarget.kernels.feature_maps import feature_map
from retarget.kernels.lookup import named_class

LARGER = 100.0  # how many times the ridge is


def tried_alternatives(
    kernel: StreamKernel,
    batch: Tensor,
    gamma: float,
    answers: list[Answer],
    parted: Split,
    options: DiagnosisOptions,
) -> tuple[AlternativeModel, ...]:
    """Tries other batch models on the rows on which the batch model is clearly bad.

    `batch` are the coefficients of the batch model, and `gamma` is its ridge.
    """
    bad = [answer.question for answer in answers if answer.baselines[0].batch.low > 0]
    asked = [question for question in bad if question in parted.asked]
    if not asked:
        return ()
    alternatives: list[AlternativeModel] = []
    for kind, model, ridge in _models(kernel, gamma, parted, options):
        try:
            coefficients = model.offline(ridge).coefficients
        except NotPositiveDefiniteError:
            continue
        for question in asked:
            rows = parted.asked[question]
            ruler = Ruler.of(rows, question, options.metric, parted.whole_groups)
            loss = ruler.mean(predictions(model, rows, [coefficients])[0])
            constant = np.tile(parted.stream.mean_target, (len(rows), 1))
            alternatives.append(
                AlternativeModel(
                    kind=kind,
                    gamma=ridge,
                    question=question,
                    effect=ratio(loss, ruler.mean(predictions(kernel, rows, [batch])[0])),
                    constant=ratio(loss, ruler.mean(constant)),
                )
            )
    return tuple(alternatives)


def _models(
    kernel: StreamKernel, gamma: float, parted: Split, options: DiagnosisOptions
) -> Iterator[tuple[Literal["linear", "smoother"], StreamKernel, float]]:
    """Yields the models to try, each with its ridge."""
    yield "smoother", kernel, LARGER * gamma
    if named_class(options.kernel) not in (Linear, Affine):
        linear = FeatureKernel(feature_map(Affine()), *as_tensors(parted.stream))
        chosen = choose_gamma(options, linear, parted.stream.target_scales)
        yield "linear", linear, chosen.value
