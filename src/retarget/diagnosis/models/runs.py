"""The runs of a user's model: as the stream came, in another order, as a batch model.

Every run starts from the model as it was given, with the same seed. All functions raise
`ModelFailedError` if the model fails; `advance` is called after each step with the number of rows
done.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from retarget.diagnosis.measure.groups import Partition, directions
from retarget.diagnosis.measure.recall import late_moments
from retarget.diagnosis.models.adapters import OnlineModel, seeded
from retarget.diagnosis.result import GroupShift
from retarget.diagnosis.stream import Stream
from retarget.engine.stream_kernel import Advance

ORDERS = 10
STEPS = 300_000  # for all random orders together, and for all epochs of a batch model
CHECKPOINTS = 40
FEWEST_CHECKPOINTS = 4
KEPT_NUMBERS = 20_000_000  # predictions at checkpoints
EPOCHS = 50
FEWEST_EPOCHS = 5
PATIENCE = 3
HELD_ASIDE = 0.1  # share of the rows that decides when a batch model stops
REFITS = 4  # how often a progressive evaluation trains the batch model anew
ROWS_AT_ONCE = 4096
EARLIER = (0.2, 0.4, 0.6)  # of the stream: further moments of the forgetting curve

Checkpoints = tuple[tuple[int, np.ndarray], ...]


class HeldOut(NamedTuple):
    """Rows that the model never learns, and when it is asked about them.

    Attributes:
        X: (q, d) the rows.
        times: (q,) how many rows of the stream come before each.
    """

    X: np.ndarray
    times: NDArray[np.int64]


class Passage(NamedTuple):
    """One pass over the stream as it came: (n, c) predictions, and the model at the end.

    Each row is predicted just before its mini-batch is learned, right after, and at the end of the
    stream; and all rows so far are predicted at each checkpoint. `first` (q, c) are the predictions
    for held-out rows when their time comes, and `later` those at later moments. At checkpoints and
    later moments a copy is asked, so that the pass is the one that it would be without.
    """

    before: np.ndarray
    after: np.ndarray
    end: np.ndarray
    moments: Checkpoints
    model: OnlineModel
    first: np.ndarray
    later: Checkpoints


NONE_HELD_OUT = HeldOut(np.empty((0, 0)), np.empty(0, dtype=np.int64))


def pass_as_it_came(
    model: OnlineModel,
    stream: Stream,
    groups: Partition,
    seed: int,
    advance: Advance,
    held_out: HeldOut = NONE_HELD_OUT,
) -> Passage:
    """Trains the model on the stream in order, and predicts all rows so far at each checkpoint.

    Held-out rows are predicted when the rows before them are learned, and again at later moments.
    """
    X = stream.X
    Y = stream.Y
    before = np.empty(Y.shape)
    after = np.empty(Y.shape)
    first = np.full((len(held_out.times), Y.shape[1]), np.nan)
    wanted = set(checkpoints(groups, Y.shape[1], model.batch_size))
    asked = {_whole_steps(int(m), model.batch_size, len(X)) for m in later_moments(len(X))}
    # a mini-batch that is not complete when a row's time comes is not learned yet, but for the last
    last_step = held_out.times // model.batch_size * model.batch_size
    last_step[held_out.times == len(X)] = len(X)
    moments = []
    later = []
    with seeded(seed):
        model = model.fresh()
        before[: model.batch_size] = model.predict(X[: model.batch_size])
        _ask(model, held_out, last_step == 0, first)
        for rows in _steps(len(X), model.batch_size):
            model.learn(X[rows], Y[rows])
            # one call for the rows just learned and the next ones, since calls are expensive
            coming = slice(rows.stop, min(rows.stop + model.batch_size, len(X)))
            now = model.predict(X[rows.start : coming.stop])
            after[rows], before[coming] = np.split(now, [rows.stop - rows.start])
            _ask(model, held_out, (last_step >= rows.stop) & (last_step < coming.stop), first)
            if rows.stop in wanted:
                moments.append((rows.stop, model.aside().predict(X[: rows.stop])))
            if rows.stop in asked and len(held_out.times):
                later.append((rows.stop, model.aside().predict(held_out.X)))
            advance(rows.stop - rows.start)
        _ask(model, held_out, last_step == len(X), first)
    return Passage(before, after, moments[-1][1], tuple(moments), model, first, tuple(later))


def _ask(
    model: OnlineModel, held_out: HeldOut, now: NDArray[np.bool_], predictions: np.ndarray
) -> None:
    """Predicts the held-out rows whose time has come."""
    if now.any():
        predictions[now] = model.predict(held_out.X[now])


def later_moments(rows: int) -> NDArray[np.int64]:
    """Returns the moments at which the model is asked again: the late ones, and a few before."""
    earlier = np.round(np.array(EARLIER) * rows).astype(np.int64)
    return np.union1d(earlier[earlier > 0], late_moments(rows))


def _whole_steps(rows: int, batch_size: int, total: int) -> int:
    """Returns the number of rows at the end of the mini-batch in which so many are learned."""
    return min(-(-rows // batch_size) * batch_size, total)


def _steps(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def checkpoints(groups: Partition, outputs: int, batch_size: int) -> list[int]:
    """Returns after how many rows the model predicts all rows so far; the last is the stream's end.

    Checkpoints are placed at changes of the group first, then evenly spaced, each at the end of a
    mini-batch. There are fewer than 40 if the predictions would exceed 20 million numbers.
    """
    n = len(groups.numbers)
    most = KEPT_NUMBERS // max(1, n * outputs // 2)
    most = min(CHECKPOINTS, max(FEWEST_CHECKPOINTS, most))
    changes = np.flatnonzero(np.diff(groups.numbers)) + 1
    if len(changes) < most:
        chosen = {n, *changes.tolist()}
        chosen |= set(np.linspace(0, n, most - len(chosen) + 1, dtype=int).tolist())
    else:
        places = np.linspace(0, len(changes) - 1, most - 1).round().astype(int)
        chosen = {n, *changes[places].tolist()}
    return sorted({_whole_steps(stop, batch_size, n) for stop in chosen - {0}})


def movement_by_group(
    stream: Stream, groups: Partition, after: np.ndarray, moments: Checkpoints, batch_size: int
) -> GroupShift:
    """Computes how groups moved each other, from predictions `after` learning and at `moments`.

    A movement between two moments is attributed to the groups learned in between, in proportion to
    their rows; for a row learned in between, to those learned after it.
    """
    n = len(stream)
    count = len(groups.names)
    member = np.eye(count)[groups.numbers]  # (n, G)
    learned = np.vstack([np.zeros(count), np.cumsum(member, axis=0)])  # rows of each group so far
    direction = directions(torch.from_numpy(np.ascontiguousarray(stream.Y))).numpy()
    size = np.zeros((count, count))
    pull = np.zeros((count, count))
    for rows in _steps(n, ROWS_AT_ONCE):
        place = np.arange(rows.start, rows.stop)
        since = np.minimum((place // batch_size + 1) * batch_size, n)  # its step is taken
        last = after[rows]
        moved = np.zeros((len(place), count, after.shape[1]))
        for stop, predictions in moments:
            known = since <= stop
            between = learned[stop] - learned[np.minimum(since, stop)]
            share = between / np.maximum(between.sum(axis=1, keepdims=True), 1)
            now = np.where(known[:, None], predictions[np.minimum(place, stop - 1)], last)
            moved += share[:, :, None] * (now - last)[:, None, :]
            last = now
            since = np.maximum(since, stop)
        own_group = member[rows]
        size += own_group.T @ np.linalg.norm(moved, axis=2)
        pull += own_group.T @ np.einsum("ngc,nc->ng", moved, direction[rows])
    counts = np.bincount(groups.numbers, minlength=count)
    left = np.linalg.norm(after - stream.Y, axis=1)
    own = np.bincount(groups.numbers, weights=left, minlength=count) / counts
    return GroupShift(groups.names, counts, size / counts[:, None], pull / counts[:, None], own)


def pass_in_order(
    model: OnlineModel,
    X: np.ndarray,
    Y: np.ndarray,
    order: np.ndarray,
    seed: int,
    advance: Advance,
    predict_every: int | None = None,
) -> tuple[OnlineModel, np.ndarray]:
    """Trains the model in one pass over rows X with targets Y in some order.

    Returns the model at the end and its predictions (n, c) in the order of X, made for
    `predict_every` rows at a time (whole mini-batches) before it learns any of them; NaN without.
    """
    predicted = np.full(Y.shape, np.nan)
    with seeded(seed):
        model = model.fresh()
        for rows in _steps(len(X), predict_every or len(X)):
            coming = order[rows]
            if predict_every is not None:
                predicted[coming] = model.predict(X[coming])
            model.learn_in_turn(X[coming], Y[coming], advance)
    return model, predicted


def rows_for_orders(model: OnlineModel, n: int, predicted: bool) -> np.ndarray:
    """Returns the rows to try random orders on: all n, or as many, evenly spaced, as is affordable.

    Ten orders of a long stream would take hours. Up to 30,000 steps all rows are used; beyond that,
    the thinned stream is also run as it came, so that only the order differs. `predicted`: whether
    each row is predicted before it is learned.
    """
    most = n if model.quick and not predicted else STEPS // ORDERS * model.batch_size
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))


def batch_model(
    model: OnlineModel, X: np.ndarray, Y: np.ndarray, seed: int, advance: Advance
) -> OnlineModel:
    """Trains the model on all rows, by its library's own `fit` or in epochs over shuffled rows.

    Epochs stop once the error on a held-out tenth of the rows has not fallen for three of them; the
    best state is kept. There are at most 50, or as many as fit in 300,000 steps (but at least 5).
    """
    with seeded(seed):
        fitted = model.fresh()
        if fitted.fit(X, Y):
            advance(len(X))
            return fitted
        rng = np.random.default_rng(seed)
        aside, learned = np.split(rng.permutation(len(X)), [max(1, round(HELD_ASIDE * len(X)))])
        if not len(learned):
            learned = aside
        affordable = STEPS * model.batch_size // len(learned)
        model = model.fresh()
        best = fitted
        least = float("inf")
        waited = 0
        for _ in range(min(EPOCHS, max(FEWEST_EPOCHS, affordable))):
            order = rng.permutation(learned)
            model.learn_in_turn(X[order], Y[order], advance)
            with np.errstate(over="ignore"):  # it may diverge
                error = float(np.square(model.predict(X[aside]) - Y[aside]).mean())
            waited += 1
            if error < least:
                best = model.copied()
                least = error
                waited = 0
            if waited == PATIENCE:
                break
    return best


def progressive_batch(
    model: OnlineModel,
    X: np.ndarray,
    Y: np.ndarray,
    before: np.ndarray,
    seed: int,
    advance: Advance,
) -> np.ndarray:
    """Returns (n, c) predictions for each row by a batch model of earlier rows.

    It is trained anew after 1/16, 1/8, 1/4 and 1/2 of the stream, so each model predicts as many
    rows as it was trained on. The first sixteenth has no batch model, and keeps `before`, the
    predictions of the online model.
    """
    predicted = before.copy()
    n = len(X)
    for power in range(REFITS, 0, -1):
        start, stop = n >> power, n >> (power - 1)
        if start:
            fitted = batch_model(model, X[:start], Y[:start], seed, advance)
            predicted[start:stop] = fitted.predict(X[start:stop])
    return predicted
