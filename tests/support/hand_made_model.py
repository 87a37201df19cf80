"""A diagnosis of a user's model, and baselines, that are made by hand: what the page shows of them.

The model is real (least mean squares, a row at a time), its scores are invented.
"""

from dataclasses import replace

import numpy as np

from retarget.diagnosis.result import Baseline, Estimate, ModelDiagnosis, ModelScore
from support.real_diagnosis import HOSTILE, UNDEFINED, classification, regression

DOUBT = np.array([1.0, 0.9, 1.2])  # an estimate and its range, relative to it


def estimate(value):
    return Estimate(*(float(value) * DOUBT))


def model_of(diagnosis, **changes):
    """What a linear model has made of a diagnosis's stream."""
    stream = diagnosis.stream
    X, Y = np.c_[stream.X, np.ones(len(stream))], stream.Y
    W = np.zeros((X.shape[1], Y.shape[1]))
    before, after = np.empty_like(Y), np.empty_like(Y)
    for row, (x, y) in enumerate(zip(X, Y, strict=True)):
        before[row] = x @ W
        W += 0.5 / (x @ x) * np.outer(x, y - x @ W)
        after[row] = x @ W
    end = X @ W
    rng = np.random.default_rng(0)
    errors = {"as it came": 9, "random order": 7, "batch": 5, "corrected": 3}
    share = None if stream.kind == "regression" else estimate(0.5)
    made = ModelDiagnosis(
        name="SGDRegressor",
        scores=tuple(ModelScore(way, estimate(error), share) for way, error in errors.items()),
        order=Estimate(-0.22, -0.3, -0.15),
        orders=tuple(7 + rng.normal(size=12)),
        before=before,
        after=after,
        end=end,
        groups=diagnosis.groups,
        description="A linear model with an intercept: its kernel is the rows' inner product.",
        theory=(end - after) + rng.normal(size=Y.shape) / 20,
        agreement=0.94,
        corrected=Y + 0.3 * (Y - end),
        corrected_size=2.8,
        closed=Estimate(0.81, 0.7, 0.9),
        prequential=estimate(8),
        remembered=estimate(11),
        failures=(),
    )
    return replace(made, **changes)


def baselines_of(diagnosis):
    classes = diagnosis.stream.kind == "classification"
    share = estimate(0.25) if classes else None
    first = "the most frequent class" if classes else "the mean"
    return (Baseline(first, estimate(12.5), share), Baseline("the last value", UNDEFINED, share))


def with_model(diagnosis, **changes):
    """The diagnosis of a stream with a model, baselines, and errors by target if several."""
    outputs, classes = diagnosis.stream.Y.shape[1], diagnosis.stream.kind == "classification"
    own = tuple(estimate(10.0**k) for k in range(outputs)) if outputs > 1 and not classes else ()
    return replace(
        diagnosis,
        model=model_of(diagnosis, **changes),
        baselines=baselines_of(diagnosis),
        scores=tuple(replace(score, by_target=own) for score in diagnosis.scores),
    )


def model_regression():
    return with_model(regression())


def model_classification():
    return with_model(classification(), name="a net with a long name, " + HOSTILE[0])


def model_that_failed():
    """Nothing of the model is finite, and nothing describes it."""
    diagnosis = regression()
    lost = np.full_like(diagnosis.stream.Y, np.nan)
    ways = (score.way for score in model_of(diagnosis).scores)
    return with_model(
        diagnosis,
        name=HOSTILE[0],
        scores=tuple(ModelScore(way, UNDEFINED, None) for way in ways),
        order=UNDEFINED,
        orders=(),
        before=lost,
        after=lost,
        end=lost,
        description="Nothing: " + HOSTILE[2],
        theory=None,
        agreement=None,
        corrected=None,
        corrected_size=np.nan,
        closed=UNDEFINED,
        prequential=UNDEFINED,
        remembered=UNDEFINED,
        failures=HOSTILE,
    )
