"""The error along the stream, and whether recent rows teach more than all rows (drift).

At the start of each chunk of the stream a batch model of all rows so far, and one of recent rows
only, predict the chunk. A long stream is thinned to evenly spaced rows for that.
"""

import math
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import Tensor

from retarget.diagnosis.answers import Drift
from retarget.diagnosis.measure.choose import choose_gamma
from retarget.diagnosis.measure.intervals import Batches, relative_gap
from retarget.diagnosis.measure.passes import offline_errors
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.stream import Stream
from retarget.engine.stream_kernel import DenseKernel, StreamKernel
from retarget.errors import NotPositiveDefiniteError

CHUNKS = 20
THINNED_ROWS = 3000
FEWEST_IN_CHUNK = 30  # rows, of a chunk that models of recent rows are compared on
WINDOW_CHUNKS = 2
FEWEST_REFITS = 5
SERVES = 0.95  # recent rows serve if their model's loss is below this share of the mean's


def errors_along(
    kernel: StreamKernel,
    stream: Stream,
    gamma: float,
    online: Tensor,
    now: Tensor,
    options: DiagnosisOptions,
) -> tuple[pl.DataFrame, Drift | None]:
    """Returns the squared error by chunk (see `Diagnosis.along`), and the drift.

    `online` (n, c) are the online learner's errors before each row, `now` (n, c) its errors at the
    end, both in the units of the stream.
    """
    rows = kernel.spread_rows(THINNED_ROWS)
    few = kernel.dense(rows)
    some = stream.part(rows.numpy())
    chunk = -(-len(few) // CHUNKS)
    batch = np.full_like(some.Y, np.nan)
    drift = None
    try:
        thinned = gamma * len(few) / len(kernel)
        batch = some.Y - offline_errors(few, thinned, chunk).numpy()
        longer = max(chunk, FEWEST_IN_CHUNK)
        refits = math.ceil(len(few) / longer) - 2 * WINDOW_CHUNKS
        if refits >= FEWEST_REFITS and options.hold_out == "rows":
            of_all = batch  # fitted at the same points as the models of recent rows
            if longer > chunk:
                of_all = some.Y - offline_errors(few, thinned, longer).numpy()
            drift = _drift(few, some, of_all, longer, options)
            onset = int(some.rows[drift.onset])
            drift = replace(drift, window=drift.window * len(stream) // len(few), onset=onset)
    except NotPositiveDefiniteError:
        pass
    edges = rows.numpy()[::chunk]
    stops = np.append(edges[1:], len(stream))
    columns = {
        "first": edges + 1,
        "last": stops,
        "online": _by_chunk(stream, online.numpy(), edges),
        "batch": _by_chunk(some, some.Y - batch, np.arange(0, len(few), chunk)),
        "online_now": _by_chunk(stream, now.numpy(), edges),
    }
    return pl.DataFrame(columns), drift


def _by_chunk(
    stream: Stream, errors: NDArray[np.float64], starts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Returns the mean squared error, in the user's units, from each start to the next."""
    stops = np.append(starts[1:], len(errors))
    # chunk by chunk: a long stream is not squared as a whole
    pairs = zip(starts, stops, strict=True)
    return np.array([stream.squared(errors[start:stop]).mean() for start, stop in pairs])


def _drift(
    few: DenseKernel,
    stream: Stream,
    batch: NDArray[np.float64],
    chunk: int,
    options: DiagnosisOptions,
) -> Drift:
    """Compares a batch model of recent rows with the one of all rows so far, and with their mean.

    Chunks are left out as a whole for the interval, since the rows of one share its model. The
    ridge of all rows may be too large just because the stream drifts, so the model of all rows so
    far is also given that of recent rows, and the better one counts. The stream drifts only if
    recent rows serve better than their mean as well: where the batch model is worse than that,
    being better than it means little.

    Where a stream changes at once, the model of recent rows is wrong for a while and then right: a
    few chunks decide the ratio of the two losses, but not whether their difference is below 0.
    """
    window = WINDOW_CHUNKS * chunk
    starts = range(2 * window, len(few), chunk)
    scored = np.arange(2 * window, len(few))
    recent = np.empty_like(stream.Y[scored])
    ridges = []
    for start in starts:
        rows = slice(start, min(start + chunk, len(few)))
        recent_rows = few.part(slice(start - window, start))
        ridge = choose_gamma(options, recent_rows, stream.target_scales).value
        ridges.append(ridge)
        K = few.K[rows, start - window : start]
        place = slice(rows.start - 2 * window, rows.stop - 2 * window)
        recent[place] = (K @ recent_rows.offline(ridge).coefficients).numpy()
    truth = stream.part(scored)
    metric = options.metric
    recent_loss = metric.losses(recent, truth)
    less_smooth = stream.Y - offline_errors(few, float(np.median(ridges)), chunk).numpy()
    candidates = [metric.losses(one[scored], truth) for one in (batch, less_smooth)]
    all_loss = min(candidates, key=lambda loss: float(loss.mean()))
    mean = np.cumsum(stream.Y, axis=0)[scored - 1] / scored[:, None]
    mean_loss = metric.losses(mean, truth)
    batches = Batches.of_groups(scored // chunk)
    of_recent, of_all, of_mean = (
        batches.mean(loss).through(metric.score) for loss in (recent_loss, all_loss, mean_loss)
    )
    effect = relative_gap(of_recent, of_all)
    if not of_recent.value < SERVES * of_mean.value:  # no sign of drift
        effect = effect._replace(low=min(effect.low, 0.0), high=max(effect.high, 0.0))
    # from the onset on, recent rows gain more than from any other point on, whichever ridge
    gained = np.minimum(*candidates) - recent_loss
    gained_from = np.cumsum(gained[::-1])[::-1]
    onset = int(scored[gained_from.argmax()])
    return Drift(window, len(starts), len(scored), effect, onset)
