"""Compares the learners: on which rows, by which errors, and with what confidence."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retarget.diagnosis.measure.choose import Learned
from retarget.diagnosis.measure.trials import offline_errors
from retarget.diagnosis.options import Options, batch_model_name
from retarget.diagnosis.result import (
    DIVERGED,
    Baseline,
    Change,
    Estimate,
    Evaluation,
    GroupShift,
    LearnerName,
    Score,
    Trial,
)
from retarget.diagnosis.stream import Stream
from retarget.errors import InvalidInputError
from retarget.theory.stream_kernel import StreamKernel

LEARNERS: tuple[LearnerName, ...] = get_args(LearnerName)
RESAMPLES = 1000
# Resampling a million rows a thousand times would take minutes. Rows are assigned to this many
# groups and the groups are resampled, which gives the mean the same variance.
RESAMPLED_GROUPS = 4000

UNKNOWN = Estimate(math.nan, math.nan, math.nan)
Name = LearnerName | tuple[Change, float]  # a learner, or a change that was tried
Errors = NDArray[np.float64]  # (m, c) errors of a learner on rows that it has not learned


class Split(NamedTuple):
    """A stream to learn from, and held-out rows (None: each row is scored before it is learned)."""

    stream: Stream
    test: Stream | None
    evaluation: Evaluation


def split(stream: Stream, test: Stream | None, options: Options) -> Split:
    """Holds out rows according to the options."""
    evaluation = options.evaluation_with(test)
    _require_numbers("the stream", stream)
    if evaluation in ("last", "random"):
        _require_rows(stream, 3, "learn from and hold out")
        classes = stream.Y.argmax(axis=1) if stream.kind == "classification" else None
        held = held_out(len(stream), evaluation, options, classes)
        stream, test = stream.part(~held), stream.part(held)
    return as_split(stream, test, evaluation)


def as_split(stream: Stream, test: Stream | None, evaluation: Evaluation) -> Split:
    """Checks that a stream and the held-out rows fit together, and returns them as a split."""
    _require_numbers("the stream", stream)
    _require_rows(stream, 2, "learn from")
    if test is not None:
        _require_numbers("the test set", test)
        _require_rows(test, 1, "test on")
        if test.X.shape[1:] != stream.X.shape[1:] or test.Y.shape[1] != stream.Y.shape[1]:
            raise InvalidInputError(
                f"the test set has {test.X.shape[1]} features and {test.Y.shape[1]} targets, the "
                f"stream {stream.X.shape[1]} and {stream.Y.shape[1]}; expected the same numbers"
            )
    return Split(stream, test, evaluation)


def held_out(
    rows: int, evaluation: Evaluation, options: Options, classes: np.ndarray | None
) -> NDArray[np.bool_]:
    """Returns (rows,) whether each row is held out: the last, or random ones of every class."""
    held = np.zeros(rows, dtype=bool)
    if evaluation == "last":
        held[rows - held_out_rows(rows, options.test_share) :] = True
    elif evaluation == "random":
        count = held_out_rows(rows, options.test_share)
        order = np.random.default_rng(options.seed).permutation(rows)
        if classes is not None:
            # each class is spread evenly over the order, whose beginning is held out
            order = order[np.argsort(classes[order], kind="stable")]
            _, sizes = np.unique(classes, return_counts=True)
            share = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
            order = order[np.argsort(share, kind="stable")]
        held[order[:count]] = True
    return held


def held_out_rows(rows: int, test_share: float) -> int:
    """Returns how many rows to hold out: at least one, and leaving at least two."""
    if not 0 < test_share < 1:
        raise InvalidInputError(f"test_share is {test_share}; expected a share between 0 and 1")
    return min(max(1, round(rows * test_share)), max(rows - 2, 0))


def as_tensors(stream: Stream) -> tuple[Tensor, Tensor]:
    """Returns X and Y as tensors."""
    X, Y = (np.ascontiguousarray(array, dtype=np.float64) for array in (stream.X, stream.Y))
    return torch.from_numpy(X), torch.from_numpy(Y)


def _require_rows(stream: Stream, least: int, purpose: str) -> None:
    if len(stream) < least:
        raise InvalidInputError(
            f"there are {len(stream)} rows; expected at least {least} to {purpose}"
        )


def _require_numbers(what: str, stream: Stream) -> None:
    for name, array in (("X", stream.X), ("Y", stream.Y)):
        if array.ndim != 2 or len(array) != len(stream.X) or array.shape[1] == 0:
            raise InvalidInputError(
                f"{what} has {name} of shape {array.shape}; expected (rows, columns), and the "
                "same number of rows in X and Y"
            )
        if not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
            raise InvalidInputError(
                f"{what} holds a value that is not a finite number in row {row} of {name}; fill in "
                "or remove missing values first"
            )


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison: fields of `Diagnosis`, and `Approximation.reference`."""

    scores: tuple[Score, ...]
    baselines: tuple[Baseline, ...]
    excess: Estimate
    gap_closed: dict[str, Estimate]
    accuracy_gap: Estimate | None
    trials: tuple[Trial, ...]
    rows: int
    true_kernel: Estimate | None = None


def compare(
    errors: Mapping[Name, Errors],
    baselines: Mapping[str, Errors],
    parted: Split,
    options: Options,
    true_kernel: Errors | None = None,
) -> Comparison:
    """Scores learners by their errors, with confidence intervals.

    The first of the baselines is the mean, or the most frequent class; `true_kernel` are the errors
    of an offline learner with the true kernel.
    """
    stream = parted.stream
    Y = stream.Y if parted.test is None else parted.test.Y
    own = {name: errors.get(name, np.full(Y.shape, math.nan)) for name in LEARNERS}
    bootstrap = Bootstrap(len(Y), options.seed)

    def means(made: Errors) -> NDArray[np.float64]:
        return bootstrap.means(squared_errors(made, stream))

    reference = means(baselines.get(batch_model_name(options.batch_model), own["offline"]))
    online, mean = means(own["online"]), means(next(iter(baselines.values())))
    useful = online[0] <= DIVERGED * mean[0]
    right = [bootstrap.means(right_classes(Y - own[name], Y)) for name in LEARNERS[:2]]
    trials = _trials(errors, own["online"], parted, options.seed) if useful else ()
    return Comparison(
        scores=tuple(
            Score(
                name,
                *score(own[name], Y, stream, bootstrap),
                _by_target(own[name], stream, bootstrap),
            )
            for name in LEARNERS
        ),
        baselines=tuple(
            Baseline(name, *score(made, Y, stream, bootstrap)) for name, made in baselines.items()
        ),
        excess=ratio(online, reference),
        gap_closed={
            str(name): gap_closed(reference, online, means(own[name])) if useful else UNKNOWN
            for name in LEARNERS[2:]
        },
        accuracy_gap=None if stream.kind == "regression" else estimate(right[0] - right[1]),
        trials=trials,
        rows=len(Y),
        true_kernel=None
        if true_kernel is None
        else ratio(means(true_kernel), means(own["offline"])),
    )


def _trials(
    errors: Mapping[Name, Errors], online: Errors, parted: Split, seed: int
) -> tuple[Trial, ...]:
    """Returns the effect of each change; all random orders count as one.

    A progressive evaluation uses the second half of the stream: the first half chose the rate.
    """
    stream, start = parted.stream, len(online) // 2 if parted.test is None else 0
    bootstrap = Bootstrap(len(online) - start, seed)

    def means(made: Errors) -> NDArray[np.float64]:
        return bootstrap.means(squared_errors(made[start:], stream))

    tried = {change: made for change, made in errors.items() if isinstance(change, tuple)}
    trials = [
        Trial(change, value, ratio(means(made), means(online)))
        for (change, value), made in tried.items()
        if change != "order"
    ]
    orders = [means(made) for (change, _), made in tried.items() if change == "order"]
    if orders:
        trials.append(Trial("order", len(orders), ratio(any_of(orders, seed), means(online))))
    return tuple(trials)


def any_of(runs: list[NDArray[np.float64]], seed: int) -> NDArray[np.float64]:
    """Combines several runs: their mean, and in each resample a random one of them.

    So the interval reflects chance in the order as well as in the rows.
    """
    if not np.isfinite(runs).all():
        return np.full_like(runs[0], math.nan)
    made = np.array(runs)
    drawn = np.random.default_rng(seed).integers(len(runs), size=made.shape[1])
    chosen: NDArray[np.float64] = made[drawn, np.arange(made.shape[1])]
    chosen[0] = made[:, 0].mean()
    return chosen


def progressive_errors(
    kernel: StreamKernel, learned: Learned, gamma: float, batch_size: int
) -> dict[Name, Errors]:
    """Returns each learner's errors on rows that it has not learned yet.

    The offline learner is trained on all rows before the mini-batch; the iteratively corrected one
    predicts a block before learning it. The exactly corrected one is left out: it is right only at
    the end of the stream.
    """
    made: dict[Name, Tensor | None] = {}
    if "offline" in learned.coefficients:
        made["offline"] = offline_errors(kernel, gamma, batch_size)
    if "online" in learned.coefficients:
        made["online"] = learned.online.errors
    if "iterative" in learned.coefficients:
        made["iterative"] = learned.before_blocks
    made |= {change: run.errors for change, run in learned.changed.items()}
    return {name: errors.numpy() for name, errors in made.items() if errors is not None}


def held_out_errors(kernel: StreamKernel, test: Stream, learned: Learned) -> dict[Name, Errors]:
    """Returns each learner's errors on the held-out rows, at the end of the stream."""
    ends: dict[Name, Tensor | None] = {name: learned.coefficients.get(name) for name in LEARNERS}
    ends |= {change: run.coefficients for change, run in learned.changed.items()}
    known = {name: end for name, end in ends.items() if end is not None}
    return dict(zip(known, prediction_errors(kernel, test, list(known.values())), strict=True))


def prediction_errors(
    kernel: StreamKernel, test: Stream, coefficients: list[Tensor]
) -> list[Errors]:
    """Returns the errors of several predictors, which share the kernel rows."""
    if not coefficients:
        return []
    X, Y = as_tensors(test)
    predictions = kernel.predict(X, torch.cat(coefficients, dim=1))
    parts = predictions.reshape(len(Y), len(coefficients), -1)
    return [(Y - parts[:, place]).numpy() for place in range(len(coefficients))]


class Bootstrap:
    """Resampled means over rows, the same resamples for all: differences and ratios are paired."""

    def __init__(self, rows: int, seed: int) -> None:
        groups = min(rows, RESAMPLED_GROUPS)
        rng = np.random.default_rng(seed)
        counts = rng.multinomial(groups, np.full(groups, 1 / groups), size=RESAMPLES)
        self._counts = counts.astype(np.float64)
        self._group = np.arange(rows) % groups
        self._sizes = self._counts @ np.bincount(self._group, minlength=groups)

    def means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the mean, then the means of the resamples: (1 + resamples,)."""
        if not np.isfinite(values).all():
            return np.full(1 + RESAMPLES, math.nan)
        sums = np.bincount(self._group, weights=values)
        resampled = (self._counts @ sums) / self._sizes
        return np.append(values.mean(), resampled)


def estimate(samples: NDArray[np.float64]) -> Estimate:
    """Returns a value and its 95% interval, from (1 + resamples,) numbers, the value first."""
    if not np.isfinite(samples).all():
        return UNKNOWN
    low, high = np.percentile(samples[1:], [2.5, 97.5])
    return Estimate(float(samples[0]), float(low), float(high))


def squared_errors(errors: Errors, stream: Stream) -> NDArray[np.float64]:
    """Returns (m,) mean squared errors over targets, in the user's units."""
    with np.errstate(over="ignore"):
        return np.asarray(np.square(errors * stream.target_scales).mean(axis=1))


def score(
    errors: Errors, Y: NDArray[np.float64], stream: Stream, bootstrap: Bootstrap
) -> tuple[Estimate, Estimate | None]:
    """Returns mean squared error and, for classes, accuracy of predictions with these errors."""
    error = estimate(bootstrap.means(squared_errors(errors, stream)))
    if stream.kind == "regression":
        return error, None
    return error, estimate(bootstrap.means(right_classes(Y - errors, Y)))


def right_classes(predicted: np.ndarray, Y: np.ndarray) -> NDArray[np.float64]:
    """Returns (m,) 1 if the class is right, 0 if not, NaN if the prediction is not finite."""
    right = np.asarray(predicted.argmax(axis=1) == Y.argmax(axis=1), dtype=np.float64)
    right[~np.isfinite(predicted).all(axis=1)] = math.nan
    return right


def _by_target(errors: Errors, stream: Stream, bootstrap: Bootstrap) -> tuple[Estimate, ...]:
    if stream.kind == "classification" or errors.shape[1] == 1:
        return ()
    with np.errstate(over="ignore"):
        squares = np.square(errors * stream.target_scales)
    return tuple(estimate(bootstrap.means(column)) for column in squares.T)


def ratio(above: NDArray[np.float64], below: NDArray[np.float64]) -> Estimate:
    """Returns how far one mean error is above another, relative to the other."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return estimate(above / below - 1)


def gap_closed(
    offline: NDArray[np.float64], online: NDArray[np.float64], other: NDArray[np.float64]
) -> Estimate:
    """Returns the share of the online learner's excess error that another learner removes.

    NaN unless the online error is above the offline one with 95% confidence.
    """
    if not estimate(online - offline).low > 1e-9 * online[0]:
        return UNKNOWN
    with np.errstate(divide="ignore", invalid="ignore"):
        return estimate((online - other) / (online - offline))


MOST_GROUPS = 30
PARTS = 10


class Partition(NamedTuple):
    """The groups' names in order of appearance, and (n,) each row's group, from 0."""

    names: tuple[str, ...]
    numbers: np.ndarray


def partition(stream: Stream) -> Partition:
    """Partitions rows by the stream's groups (the largest, if many), or into consecutive parts."""
    n = len(stream)
    if stream.groups is None:
        count = min(PARTS, n)
        names = tuple(f"part {part + 1}" for part in range(count))
        return Partition(names, np.arange(n) * count // n)
    found, first, number, counts = np.unique(
        stream.groups, return_index=True, return_inverse=True, return_counts=True
    )
    many = len(found) > MOST_GROUPS
    kept = np.argsort(-counts, kind="stable")[: MOST_GROUPS - 1] if many else np.arange(len(found))
    kept = kept[np.argsort(first[kept])]  # in order of appearance
    place = np.full(len(found), len(kept))  # all other groups come last, as one
    place[kept] = np.arange(len(kept))
    labels = [str(found[group]) for group in kept]
    if many:
        labels.append(f"the other {len(found) - len(kept):,}")
    return Partition(tuple(labels), place[number.reshape(-1)])


def group_shift(
    kernel: StreamKernel, stream: Stream, groups: Partition, C: Tensor, shift: Tensor, batch: int
) -> GroupShift:
    """Computes how groups moved each other's targets; NaN if the online learner diverged.

    `C` (n, c) are its final dual coefficients, `shift` (n, c) the shift of each row, and `batch`
    the rows learned in one step.
    """
    count = len(groups.names)
    number = torch.from_numpy(groups.numbers)
    direction = directions(stream)
    size, pull = C.new_zeros(count, count), C.new_zeros(count, count)
    own = C.new_zeros(count)
    if C.isnan().any():
        size, pull, own = (part.fill_(math.nan) for part in (size, pull, own))
    else:
        for rows, moved in kernel.later(C, number, count, batch):
            size.index_add_(0, number[rows], moved.norm(dim=2))
            pull.index_add_(0, number[rows], (moved * direction[rows, None]).sum(2))
            own.index_add_(0, number[rows], (shift[rows] - moved.sum(1)).norm(dim=1))
    counts = np.bincount(groups.numbers, minlength=count)
    per_row = counts[:, None]
    return GroupShift(
        groups.names, counts, size.numpy() / per_row, pull.numpy() / per_row, own.numpy() / counts
    )


def directions(stream: Stream) -> Tensor:
    """Returns (n, c) unit vectors along each row's target; for one-hot targets, the target."""
    Y = torch.from_numpy(np.asarray(stream.Y, dtype=np.float64))
    lengths: Tensor = torch.linalg.vector_norm(Y, dim=1, keepdim=True)
    return Y / lengths.clamp(min=torch.finfo(Y.dtype).tiny)
