"""The learners compared: on which rows, by which errors, and how sure that is."""

import math
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retarget.diagnosis.kernels.base import StreamKernel
from retarget.diagnosis.measure.choose import Attempt
from retarget.diagnosis.measure.correction import offline_errors
from retarget.diagnosis.measure.learn import Learned
from retarget.diagnosis.measure.passes import errors_before_blocks
from retarget.diagnosis.result import Estimate, Evaluation, LearnerName, Score, Trial
from retarget.diagnosis.stream import Stream
from retarget.errors import InvalidInputError
from retarget.learners import SGD

LEARNERS: tuple[LearnerName, ...] = get_args(LearnerName)
RESAMPLES = 1000
# Resampling a million rows a thousand times would take minutes. Dealt out to this many hands, and
# the hands resampled, the mean varies as it does by rows.
HANDS = 4000

UNKNOWN = Estimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Split:
    """A stream, and the rows kept from it.

    Attributes:
        stream: The rows learned from.
        test: The rows held out; None where learners are compared on each row before learning it.
        evaluation: Which rows those are.
    """

    stream: Stream
    test: Stream | None
    evaluation: Evaluation


def split(stream: Stream, test: Stream | None, evaluation: str, test_share: float) -> Split:
    """Holds out rows as wanted. A given test set is used, whatever the share."""
    if evaluation not in get_args(Evaluation):
        raise InvalidInputError(
            f"evaluation is {evaluation!r}; expected one of {get_args(Evaluation)}"
        )
    _require_numbers("the stream", stream)
    if evaluation == "test set" and test is None:
        raise InvalidInputError("evaluation is 'test set', but no test rows were given; pass test")
    if test is not None:
        return _with_test_set(stream, test, evaluation)
    if evaluation == "progressive":
        _require_rows(stream, 2, "learn from")
        return Split(stream, None, "progressive")
    held = held_out_rows(len(stream), test_share)
    _require_rows(stream, 3, "learn from and hold out")
    cut = len(stream) - held
    return Split(part(stream, slice(0, cut)), part(stream, slice(cut, len(stream))), "last part")


def held_out_rows(rows: int, test_share: float) -> int:
    """How many rows the last part of a stream has: at least one, and at least two are left.

    Example:
        >>> held_out_rows(10, 0.25), held_out_rows(3, 0.2)
        (2, 1)
    """
    if not 0 < test_share < 1:
        raise InvalidInputError(f"test_share is {test_share}; expected a share between 0 and 1")
    return min(max(1, round(rows * test_share)), max(rows - 2, 0))


def part(stream: Stream, rows: slice | np.ndarray) -> Stream:
    """Some rows of a stream."""
    return replace(
        stream,
        X=stream.X[rows],
        Y=stream.Y[rows],
        rows=stream.rows[rows],
        groups=None if stream.groups is None else stream.groups[rows],
        times=None if stream.times is None else stream.times[rows],
    )


def _with_test_set(stream: Stream, test: Stream, evaluation: str) -> Split:
    if evaluation == "progressive":
        raise InvalidInputError(
            "test rows were given with evaluation 'progressive', which uses none; leave one out"
        )
    _require_numbers("the test set", test)
    _require_rows(stream, 2, "learn from")
    _require_rows(test, 1, "test on")
    if test.X.shape[1:] != stream.X.shape[1:] or test.Y.shape[1] != stream.Y.shape[1]:
        raise InvalidInputError(
            f"the test set has {test.X.shape[1]} features and {test.Y.shape[1]} targets, the "
            f"stream {stream.X.shape[1]} and {stream.Y.shape[1]}; expected the same"
        )
    return Split(stream, test, "test set")


def _require_rows(stream: Stream, least: int, purpose: str) -> None:
    if len(stream) < least:
        raise InvalidInputError(
            f"there are {len(stream)} rows; expected at least {least} to {purpose}"
        )


def _require_numbers(what: str, stream: Stream) -> None:
    for name, array in (("X", stream.X), ("Y", stream.Y)):
        if array.ndim != 2 or len(array) != len(stream.X) or array.shape[1] == 0:
            raise InvalidInputError(
                f"{what} has {name} of shape {array.shape}; expected (rows, columns), as many rows "
                "in X as in Y"
            )
        if not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
            raise InvalidInputError(
                f"{what} holds a value that is not a finite number in row {row} of {name}; fill in "
                "or remove what is missing first"
            )


@dataclass(frozen=True)
class Comparison:
    """How the learners compare.

    Attributes:
        scores: One for each learner.
        excess: How far the online learner's error is above the offline one's, relative to it.
        gap_closed: The share of that which each correction takes away.
        trials: What other learners would have brought.
        rows: Number of rows that they were compared on.
        reference: How far the error of an offline learner with the true kernel, on a sample of the
            rows, is above the offline learner's, relative to it; None where there is none.
    """

    scores: tuple[Score, ...]
    excess: Estimate
    gap_closed: dict[str, Estimate]
    trials: tuple[Trial, ...]
    rows: int
    reference: Estimate | None = None


def compare(
    errors: dict[LearnerName, NDArray[np.float64]],
    tried: list[tuple[Attempt, NDArray[np.float64]]],
    parted: Split,
    seed: int,
    reference: NDArray[np.float64] | None = None,
) -> Comparison:
    """Scores, with their uncertainty, of learners that made these errors (m, c)."""
    stream = parted.stream
    Y = stream.Y if parted.test is None else parted.test.Y
    nothing = np.full(Y.shape, math.nan)
    own = {name: errors.get(name, nothing) for name in LEARNERS}
    squares = {name: squared_errors(own[name], stream) for name in LEARNERS}
    bootstrap = Bootstrap(len(Y), seed)
    closed = {
        name: gap_closed(squares["offline"], squares["online"], squares[name], bootstrap)
        for name in LEARNERS[2:]
    }
    trials = [
        Trial(attempt.change, attempt.value, gap(squared, squares["online"], bootstrap))
        for attempt, squared in ((made, squared_errors(e, stream)) for made, e in tried)
    ]
    beside = None
    if reference is not None:
        beside = gap(squared_errors(reference, stream), squares["offline"], bootstrap)
    return Comparison(
        scores=tuple(score(name, own[name], Y, stream, bootstrap) for name in LEARNERS),
        excess=gap(squares["online"], squares["offline"], bootstrap),
        gap_closed={str(name): closed[name] for name in closed},
        trials=tuple(trials),
        rows=len(Y),
        reference=beside,
    )


@torch.no_grad()
def held_out_errors(
    kernel: StreamKernel, X: Tensor, Y: Tensor, coefficients: list[Tensor]
) -> list[NDArray[np.float64]]:
    """(m, c) the errors on rows held out, of each predictor: one kernel row serves all."""
    if not coefficients:
        return []
    predictions = kernel.predict(X, torch.cat(coefficients, dim=1))
    parts = predictions.reshape(len(Y), len(coefficients), -1)
    return [(Y - parts[:, place]).numpy() for place in range(len(coefficients))]


@torch.no_grad()
def progressive_errors(
    kernel: StreamKernel, learned: Learned, learner: SGD, gamma: float, block_size: int
) -> dict[LearnerName, NDArray[np.float64]]:
    """(n, c) each learner's errors on rows that it has not learned yet.

    The offline learner is that of all rows before the mini-batch. The iteratively corrected one
    predicts a block before it learns any row of it. The exactly corrected one is left out: it is
    right at the end of the stream only.
    """
    errors: dict[LearnerName, NDArray[np.float64]] = {}
    if learned.offline is not None:
        errors["offline"] = offline_errors(kernel, gamma, learner.batch_size).numpy()
    if learned.online.coefficients is not None and learned.online.errors is not None:
        errors["online"] = learned.online.errors.numpy()
    if "iterative" in learned.coefficients:
        made = errors_before_blocks(kernel, learner, learned.iterative, block_size)
        errors["iterative"] = made.numpy()
    return errors


class Bootstrap:
    """Resampled means over rows. The same resamples serve all: differences and ratios are of pairs.

    Args:
        rows: Number of rows.
        seed: Of the resamples.
    """

    def __init__(self, rows: int, seed: int) -> None:
        hands = min(rows, HANDS)
        rng = np.random.default_rng(seed)
        counts = rng.multinomial(hands, np.full(hands, 1 / hands), size=RESAMPLES)
        self._counts = counts.astype(np.float64)
        self._hand = np.arange(rows) % hands
        sizes = np.bincount(self._hand, minlength=hands)
        self._sizes = self._counts @ sizes

    def means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """(1 + resamples,) the mean, and the means of the resamples."""
        if not np.isfinite(values).all():
            return np.full(1 + RESAMPLES, math.nan)
        sums = np.bincount(self._hand, weights=values)
        resampled = (self._counts @ sums) / self._sizes
        return np.append(values.mean(), resampled)


def estimate(samples: NDArray[np.float64]) -> Estimate:
    """A value and its 95% interval, from (1 + resamples,) numbers: the value comes first."""
    if not np.isfinite(samples).all():
        return UNKNOWN
    low, high = np.percentile(samples[1:], [2.5, 97.5])
    return Estimate(float(samples[0]), float(low), float(high))


def squared_errors(errors: NDArray[np.float64], stream: Stream) -> NDArray[np.float64]:
    """(m,) mean square over targets, in the user's units."""
    with np.errstate(over="ignore"):
        return np.asarray(np.square(errors * stream.target_scales).mean(axis=1))


def score(
    learner: LearnerName,
    errors: NDArray[np.float64],
    Y: NDArray[np.float64],
    stream: Stream,
    bootstrap: Bootstrap,
) -> Score:
    """The score of a learner with these errors (m, c) on rows with targets Y."""
    error = estimate(bootstrap.means(squared_errors(errors, stream)))
    if stream.kind == "regression":
        return Score(learner, error, None)
    accuracy = UNKNOWN
    if np.isfinite(errors).all():
        right = (Y - errors).argmax(axis=1) == Y.argmax(axis=1)
        accuracy = estimate(bootstrap.means(right.astype(np.float64)))
    return Score(learner, error, accuracy)


def gap(online: NDArray[np.float64], other: NDArray[np.float64], bootstrap: Bootstrap) -> Estimate:
    """How far the online learner's error lies above another's, relative to the other's."""
    above, below = bootstrap.means(online), bootstrap.means(other)
    with np.errstate(divide="ignore", invalid="ignore"):
        return estimate(above / below - 1)


def gap_closed(
    offline: NDArray[np.float64],
    online: NDArray[np.float64],
    other: NDArray[np.float64],
    bootstrap: Bootstrap,
) -> Estimate:
    """The share of the online learner's excess error that another one does not have.

    A share of nothing has no meaning: NaN unless the online learner's error is above the offline
    one's with 95% confidence.
    """
    below, above = bootstrap.means(offline), bootstrap.means(online)
    excess = estimate(above - below)
    if not excess.low > 1e-9 * above[0]:
        return UNKNOWN
    with np.errstate(divide="ignore", invalid="ignore"):
        return estimate((above - bootstrap.means(other)) / (above - below))
