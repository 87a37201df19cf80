"""The runs of a user's model: over the stream as it came, in random orders, and as a batch model.

Every run starts from the model as it was given, with the same seed.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from retarget.diagnosis.measure.compare import Partition, directions
from retarget.diagnosis.models.adapters import Advance, OnlineModel, seeded
from retarget.diagnosis.result import GroupShift
from retarget.diagnosis.stream import Stream

ORDERS = 10
STEPS = 300_000  # of learning, for all random orders together, and for all epochs of a batch model
CHECKPOINTS = 40
FEWEST_CHECKPOINTS = 4
KEPT_NUMBERS = 20_000_000  # predictions at checkpoints
EPOCHS, FEWEST_EPOCHS, PATIENCE = 50, 5, 3
HELD_ASIDE = 0.1  # of the rows, to tell when a batch model has learned enough
REFITS = 4  # of the batch model, along a progressive evaluation
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Passage:
    """One pass over the stream as it came.

    Attributes:
        before: (n, c) predictions for each row just before its mini-batch was learned.
        after: (n, c) right after.
        end: (n, c) at the end of the stream.
        moments: Rows learned at each checkpoint, and the (rows, c) predictions for them then.
        model: The model at the end.
    """

    before: np.ndarray
    after: np.ndarray
    end: np.ndarray
    moments: tuple[tuple[int, np.ndarray], ...]
    model: OnlineModel


def pass_as_it_came(
    model: OnlineModel, stream: Stream, groups: Partition, seed: int, advance: Advance
) -> Passage:
    """Runs the model over the stream, and asks it about every row three times or more.

    Args:
        model: The model.
        stream: The rows, in their order.
        groups: Whose changes are the moments at which it predicts all rows so far.
        seed: Seed of whatever the model draws.
        advance: Called with the number of rows after each step.

    Raises:
        ModelFailedError: The model did.
    """
    X, Y = stream.X, stream.Y
    before, after = np.empty(Y.shape), np.empty(Y.shape)
    wanted = set(checkpoints(groups, Y.shape[1], model.batch_size))
    moments = []
    with seeded(seed):
        model = model.fresh()
        before[: model.batch_size] = model.predict(X[: model.batch_size])
        for rows in _steps(len(X), model.batch_size):
            model.learn(X[rows], Y[rows])
            # one call for the rows just learned and those that come: calls are what costs
            coming = slice(rows.stop, rows.stop + model.batch_size)
            now = model.predict(X[rows.start : coming.stop])
            after[rows], before[coming] = np.split(now, [rows.stop - rows.start])
            if rows.stop in wanted:
                moments.append((rows.stop, _predictions(model, X[: rows.stop])))
            advance(rows.stop - rows.start)
    return Passage(before, after, moments[-1][1], tuple(moments), model)


def _steps(n: int, batch_size: int) -> Iterator[slice]:
    for start in range(0, n, batch_size):
        yield slice(start, min(start + batch_size, n))


def _predictions(model: OnlineModel, X: np.ndarray) -> np.ndarray:
    parts = [model.predict(X[rows]) for rows in _steps(len(X), ROWS_AT_ONCE)]
    return np.concatenate(parts)


def checkpoints(groups: Partition, outputs: int, batch_size: int) -> list[int]:
    """After how many rows the model predicts all rows so far; the end of the stream is the last.

    Where the group changes, as far as there is room, then evenly spaced: each at the end of a
    mini-batch. Fewer than 40 where the predictions would be more than 20 million numbers.
    """
    n = len(groups.numbers)
    most = KEPT_NUMBERS // max(1, n * outputs // 2)
    most = min(CHECKPOINTS, max(FEWEST_CHECKPOINTS, most))
    changes = np.flatnonzero(np.diff(groups.numbers)) + 1
    chosen = {n}
    if len(changes) < most:
        chosen |= set(changes.tolist())
        left = most - len(chosen)
        chosen |= set(np.linspace(0, n, left + 1, dtype=int)[1:].tolist()) if left else set()
    else:
        places = np.linspace(0, len(changes) - 1, most - 1).round().astype(int)
        chosen |= set(changes[places].tolist())
    return sorted({min(-(-stop // batch_size) * batch_size, n) for stop in chosen - {0}})


def movement_by_group(
    stream: Stream,
    groups: Partition,
    after: np.ndarray,
    moments: tuple[tuple[int, np.ndarray], ...],
    batch_size: int,
) -> GroupShift:
    """Whose learning moved whose predictions, from the predictions at a few moments.

    What moved between two moments belongs to the groups learned in between, in proportion to their
    rows; for a row learned in between, to those learned after it.

    Args:
        stream: The stream.
        groups: Its groups.
        after: (n, c) the prediction for each row right after it was learned.
        moments: Rows learned, and (rows, c) predictions for them; the last is the end.
        batch_size: Rows learned in one step.
    """
    n, count = len(stream), len(groups.names)
    member = np.eye(count)[groups.numbers]  # (n, G)
    learned = np.vstack([np.zeros(count), np.cumsum(member, axis=0)])  # rows of each group so far
    direction = directions(stream).numpy()
    size, pull = np.zeros((count, count)), np.zeros((count, count))
    for rows in _steps(n, ROWS_AT_ONCE):
        place = np.arange(rows.start, rows.stop)
        since = np.minimum((place // batch_size + 1) * batch_size, n)  # its step is taken
        last = after[rows]
        moved = np.zeros((len(place), count, after.shape[1]))
        for stop, predictions in moments:
            known = since <= stop
            between = learned[stop] - learned[np.minimum(since, stop)]
            total = between.sum(axis=1, keepdims=True)
            share = between / np.maximum(total, 1)
            now = np.where(known[:, None], predictions[np.minimum(place, stop - 1)], last)
            moved += share[:, :, None] * (now - last)[:, None, :]
            last, since = now, np.maximum(since, stop)
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
) -> tuple[OnlineModel, np.ndarray | None]:
    """One pass in some order, and what the model predicts on the way.

    Args:
        model: The model.
        X: (n, d) rows.
        Y: (n, c) what it is trained on.
        order: (n,) the order in which rows are learned.
        seed: Seed of whatever the model draws.
        advance: Called with the number of rows after each step.
        predict_every: Predicts so many rows at a time (whole mini-batches) before it learns any of
            them; None: not at all.

    Returns:
        The model at the end, and the (n, c) predictions, in the order of X.

    Raises:
        ModelFailedError: The model did.
    """
    predicted = None if predict_every is None else np.empty(Y.shape)
    with seeded(seed):
        model = model.fresh()
        for rows in _steps(len(X), predict_every or len(X)):
            coming = order[rows]
            if predicted is not None:
                predicted[coming] = model.predict(X[coming])
            model.learn_in_turn(X[coming], Y[coming], advance)
    return model, predicted


def order_rows(model: OnlineModel, n: int, predicted: bool) -> np.ndarray:
    """The rows that random orders are tried on: all, or as many, evenly spaced, as are affordable.

    Ten orders of a long stream would take hours. Up to 30,000 steps all rows are used; above, the
    thinned stream is run as it came as well, so that only the order differs.

    Args:
        model: The model.
        n: Rows of the stream.
        predicted: Whether each row is predicted before it is learned.
    """
    most = n if model.quick and not predicted else STEPS // ORDERS * model.batch_size
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))


def batch_model(
    model: OnlineModel, X: np.ndarray, Y: np.ndarray, seed: int, advance: Advance
) -> OnlineModel:
    """The model trained on all rows: its library's own `fit`, or epochs over shuffled rows.

    Epochs go on until the error on a tenth of the rows, which is held aside, has not fallen for
    three of them; the best state is kept. At most 50, or as many (5 at least) as 300,000 steps
    make.

    Raises:
        ModelFailedError: The model did.
    """
    with seeded(seed):
        fitted = model.fresh()
        if fitted.fit(X, Y):
            advance(len(X))
            return fitted
        rng = np.random.default_rng(seed)
        shuffled = rng.permutation(len(X))
        aside, learned = np.split(shuffled, [max(1, round(HELD_ASIDE * len(X)))])
        if not len(learned):
            learned = aside
        affordable = STEPS * model.batch_size // max(1, len(learned))
        model, best, waited = model.fresh(), fitted, 0
        least = float("inf")
        for _ in range(min(EPOCHS, max(FEWEST_EPOCHS, affordable))):
            order = rng.permutation(learned)
            model.learn_in_turn(X[order], Y[order], advance)
            error = float(np.square(_predictions(model, X[aside]) - Y[aside]).mean())
            if error < least:
                best, least, waited = copy.deepcopy(model), error, 0
            else:
                waited += 1
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
    """(n, c) what a batch model of the rows so far predicts for each row that comes.

    It is trained anew after 1/16, 1/8, 1/4 and 1/2 of the stream, so that each is asked about as
    many rows as it was trained on. The first sixteenth has no batch model, and keeps `before`.

    Args:
        model: The model.
        X: (n, d) rows.
        Y: (n, c) their targets.
        before: (n, c) what the online model predicted for each row before it learned it.
        seed: Seed of the shuffles, and of whatever the model draws.
        advance: Called with numbers of rows.

    Raises:
        ModelFailedError: The model did.
    """
    predicted, n = before.copy(), len(X)
    for power in range(REFITS, 0, -1):
        start, stop = n >> power, n >> (power - 1)
        if start:
            fitted = batch_model(model, X[:start], Y[:start], seed, advance)
            predicted[start:stop] = _predictions(fitted, X[start:stop])
    return predicted
