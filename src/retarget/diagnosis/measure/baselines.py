"""Baselines that any model should beat: simple predictors, and batch models of recent rows."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from retarget.diagnosis.measure.choose import choose_gamma
from retarget.diagnosis.measure.compare import Errors, Split
from retarget.diagnosis.options import Options, batch_model_name
from retarget.errors import NotPositiveDefiniteError
from retarget.theory.offline.aims import Aim
from retarget.theory.stream_kernel import StreamKernel

RECENT_SHARE = 0.1  # share of the stream that the batch model of recent rows uses
FEWEST_RECENT, MOST_RECENT = 50, 2000
Predictor = Callable[[NDArray[np.float64]], NDArray[np.float64]]
COUNTED = 0.01  # rows discounted below this weight are left out
REFITS = 40  # how often a progressive evaluation refits such a model


def baseline_errors(kernel: StreamKernel, parted: Split, options: Options) -> dict[str, Errors]:
    """Returns errors by baseline; the mean or the most frequent class comes first.

    A reference other than "all" is one of the baselines.
    """
    Y = parted.stream.Y
    name = "the most frequent class" if parted.stream.kind == "classification" else "the mean"
    if parted.test is None:
        earlier = np.vstack([np.zeros_like(Y[:1]), Y[:-1]])
        counts = np.maximum(np.arange(len(Y)), 1)[:, None]
        made = {name: Y - np.cumsum(earlier, axis=0) / counts, "the last value": Y - earlier}
    else:
        made = {name: parted.test.Y - Y.mean(axis=0)}
        if parted.evaluation == "last":
            held = parted.test.Y
            made["the last value"] = held - np.vstack([Y[-1:], held[:-1]])
    recent = options.batch_model
    if recent.is_all and parted.evaluation in ("last", "progressive"):
        rows = min(round(RECENT_SHARE * len(Y)), MOST_RECENT)
        recent = Aim(window=rows) if rows >= FEWEST_RECENT else recent
    if not recent.is_all:
        errors = _recent_errors(kernel, parted, recent, options)
        if errors is not None:
            made[batch_model_name(recent)] = errors
    return made


def _recent_errors(
    kernel: StreamKernel, parted: Split, recent: Aim, options: Options
) -> Errors | None:
    """Returns the errors of the batch model of recent rows; None if there is no such model."""
    scales, test = parted.stream.target_scales, parted.test
    try:
        if test is not None:
            fitted = _fitted(kernel, len(kernel), recent, options, scales)
            return np.asarray(test.Y - fitted(test.X))
        # refitted at intervals and used until the next refit; it knows nothing at the start
        errors = parted.stream.Y.copy()
        starts = np.unique(np.linspace(2, len(errors), REFITS, endpoint=False, dtype=int))
        for start, stop in zip(starts, [*starts[1:], len(errors)], strict=True):
            fitted = _fitted(kernel, int(start), recent, options, scales)
            errors[start:stop] -= fitted(parted.stream.X[start:stop])
        return errors
    except NotPositiveDefiniteError:
        return None


def _fitted(
    kernel: StreamKernel, stop: int, recent: Aim, options: Options, scales: NDArray[np.float64]
) -> Predictor:
    """Returns the batch model of the recent rows before `stop`, as a function of queries."""
    rows = recent.window or math.ceil(math.log(COUNTED) / math.log(recent.discount))
    rows = max(rows, 2)  # one row has no leave-one-out error
    part = kernel.part(slice(max(0, stop - rows), stop))
    gamma = choose_gamma(options, part, scales).value
    weights = None if recent.discount == 1 else recent.weights(part.Y)[:, 0]
    coefficients = part.offline(gamma, weights).coefficients

    def predict(X: NDArray[np.float64]) -> NDArray[np.float64]:
        queries = torch.from_numpy(np.ascontiguousarray(X, dtype=np.float64))
        return part.predict(queries, coefficients).numpy()

    return predict
