"""The runs of a model: what is predicted when, whose learning moved what, when epochs end."""

import math
import threading

import numpy as np
import pytest
from sklearn.linear_model import SGDRegressor

from retarget.diagnosis.measure.groups import Partition, partition
from retarget.diagnosis.models import runs
from retarget.diagnosis.models.adapters import ModelFailedError
from retarget.diagnosis.models.runs import (
    HeldOut,
    batch_model,
    checkpoints,
    later_moments,
    pass_as_it_came,
    pass_in_order,
)
from support.diagnosis_streams import as_stream, drifting
from support.user_models import OneByOne, RunningMean, network, opened, quietly


def parts(numbers):
    numbers = np.asarray(numbers)
    return Partition(tuple(f"g{k}" for k in range(numbers.max() + 1)), numbers)


def test_checkpoints_at_changes_of_the_group():
    few = parts([0] * 20 + [1] * 30 + [0] * 50)
    found = checkpoints(few, 1, batch_size=1)
    assert {20, 50, 100} <= set(found)
    assert len(found) <= 40
    assert found == sorted(found)
    assert np.diff([0, *found]).max() <= 3
    found = checkpoints(parts(np.arange(200) % 2), 1, batch_size=1)  # more changes than checkpoints
    assert (len(found), found[-1]) == (40, 200)
    assert all(stop % 16 == 0 or stop == 100 for stop in checkpoints(few, 1, batch_size=16))
    long = parts(np.arange(3_000_000) * 5 // 3_000_000)
    assert 4 <= len(checkpoints(long, 3, batch_size=1)) <= 6
    assert checkpoints(parts([0]), 1, batch_size=4) == [1]


def literal_movement(stream, groups, after, moments, batch):
    """(n, G, c) the definition, row by row and interval by interval."""
    moved = np.zeros((len(stream), len(groups.names), stream.Y.shape[1]))
    for i in range(len(stream)):
        since, last = min((i // batch + 1) * batch, len(stream)), after[i]
        for stop, predictions in moments:
            if stop <= since:
                continue
            between = groups.numbers[since:stop]
            for group in between:
                moved[i, group] += (predictions[i] - last) / len(between)
            since, last = stop, predictions[i]
    return moved


@pytest.mark.parametrize("batch", [1, 4])
def test_a_pass_is_a_plain_loop(batch, monkeypatch):
    stream = drifting(61, outputs=2, dimensions=3)
    numbers = np.random.default_rng(0).integers(3, size=61)
    groups = parts(np.sort(numbers[:40]).tolist() + numbers[40:].tolist())
    model = opened(network(3, 2), stream, lr=0.1, batch_size=batch)
    monkeypatch.setattr(runs, "CHECKPOINTS", 9)
    monkeypatch.setattr(runs, "ROWS_AT_ONCE", 7)
    done = []
    passage = pass_as_it_came(model, stream, groups, 0, done.append)
    assert sum(done) == passage.moments[-1][0] == 61
    by_hand, moments = model.fresh(), dict(passage.moments)
    for start in range(0, 61, batch):
        rows = slice(start, start + batch)
        X, Y = stream.X[rows], stream.Y[rows]
        np.testing.assert_allclose(passage.before[rows], by_hand.predict(X), atol=1e-14)
        by_hand.learn(X, Y)
        np.testing.assert_allclose(passage.after[rows], by_hand.predict(X), atol=1e-14)
        if by_hand.learned in moments:
            seen = by_hand.predict(stream.X[: by_hand.learned])
            np.testing.assert_array_equal(moments.pop(by_hand.learned), seen)
    assert not moments
    np.testing.assert_array_equal(passage.end, by_hand.predict(stream.X))
    found = runs.movement_by_group(stream, groups, passage.after, passage.moments, batch)
    moved = literal_movement(stream, groups, passage.after, passage.moments, batch)
    np.testing.assert_allclose(moved.sum(1), passage.end - passage.after, atol=1e-12)
    along = stream.Y / np.linalg.norm(stream.Y, axis=1, keepdims=True)
    for h in range(3):
        mine = groups.numbers == h
        size = np.linalg.norm(moved[mine], axis=2).mean(0)
        pull = (moved[mine] * along[mine, None]).sum(2).mean(0)
        np.testing.assert_allclose(found.size[h], size, atol=1e-12)
        np.testing.assert_allclose(found.pull[h], pull, atol=1e-12)
        own = np.linalg.norm((passage.after - stream.Y)[mine], axis=1).mean()
        np.testing.assert_allclose(found.own[h], own, atol=1e-12)
    np.testing.assert_array_equal(found.counts, np.bincount(groups.numbers))


@pytest.mark.parametrize("batch", [1, 4])
def test_when_held_out_rows_are_asked(batch):
    """Plain linear SGD, computed again by hand with the weights after each step."""
    stream, rng = drifting(50, outputs=2, dimensions=3), np.random.default_rng(1)
    held = np.sort(rng.permutation(50)[:11])
    held[-1] = 49  # after all others: its time is the end
    learned = np.setdiff1d(np.arange(50), held)
    rows, n = stream.part(learned), len(learned)
    model = opened(network(3, 2, bias=False), rows, lr=0.05, batch_size=batch)
    weights = [network(3, 2, bias=False).weight.detach().numpy().T]
    for start in range(0, n, batch):
        X, Y = rows.X[start : start + batch], rows.Y[start : start + batch]
        weights.append(weights[-1] + 0.05 * X.T @ (Y - X @ weights[-1]))
    times = np.searchsorted(learned, held)
    given = HeldOut(stream.X[held], times)
    found = pass_as_it_came(model, rows, partition(rows), 0, quietly, given)
    for place, time in enumerate(times):
        steps = len(weights) - 1 if time == n else time // batch
        np.testing.assert_allclose(found.first[place], given.X[place] @ weights[steps], atol=1e-12)
    moments = [moment for moment, _ in found.later]
    assert set(moments) == {min(-(-int(moment) // batch) * batch, n) for moment in later_moments(n)}
    for moment, said in found.later:
        np.testing.assert_allclose(said, given.X @ weights[-(-moment // batch)], atol=1e-12)
    alone = pass_as_it_came(model, rows, partition(rows), 0, quietly)
    np.testing.assert_array_equal(found.before, alone.before)
    np.testing.assert_array_equal(found.end, alone.end)
    assert alone.later == ()


def test_when_a_model_is_asked_again():
    assert later_moments(1000).tolist() == [200, 400, 600, 800, 850, 900, 950, 1000]
    assert later_moments(2).tolist() == [1, 2]


class Adapting(RunningMean):
    """It is upset by being asked about many rows at once."""

    def predict(self, X):
        if len(X) > 2:
            self.total += 1000.0
        return super().predict(X) if self.seen else np.zeros(len(X))


class Locked(RunningMean):
    """It cannot be copied once it has learned."""

    def partial_fit(self, X, y):
        super().partial_fit(X, y)
        self.lock = threading.Lock()


def test_being_asked_later_changes_nothing():
    stream = drifting(60)
    held = HeldOut(stream.X[::5] + 0.1, np.arange(0, 60, 5))
    found = pass_as_it_came(opened(Adapting(), stream), stream, partition(stream), 0, quietly, held)
    means = np.cumsum(stream.Y[:, 0]) / np.arange(1, 61)
    np.testing.assert_allclose(found.after[:, 0], means, atol=1e-12)
    np.testing.assert_allclose(found.first[1:, 0], means[held.times[1:] - 1], atol=1e-12)
    assert len(found.moments) > 10
    # a model that cannot be copied is asked itself
    stuck = pass_as_it_came(opened(Locked(), stream), stream, partition(stream), 0, quietly, held)
    np.testing.assert_allclose(stuck.end[:, 0], means[-1], atol=1e-12)
    np.testing.assert_allclose(stuck.later[-1][1], means[-1], atol=1e-12)
    with pytest.raises(ModelFailedError, match="Locked failed .*TypeError"):
        batch_model(opened(Locked(), stream), stream.X, stream.Y, 0, quietly)


def test_another_order():
    stream = drifting(40, dimensions=3)
    model = opened(SGDRegressor(), stream)
    order = np.random.default_rng(0).permutation(40)
    trained, predicted = pass_in_order(model, stream.X, stream.Y, order, 0, quietly, 1)
    shuffled = as_stream(stream.X[order], stream.Y[order])
    expected = pass_as_it_came(model, shuffled, partition(shuffled), 0, quietly)
    np.testing.assert_allclose(predicted[order], expected.before, atol=1e-12)
    np.testing.assert_allclose(trained.predict(stream.X)[order], expected.end, atol=1e-12)
    same, nothing = pass_in_order(model, stream.X, stream.Y, order, 0, quietly)
    assert np.isnan(nothing).all()
    np.testing.assert_allclose(same.predict(stream.X), trained.predict(stream.X), atol=1e-12)


def test_long_streams_are_thinned():
    model = opened(RunningMean(), drifting(40))
    np.testing.assert_array_equal(
        runs.rows_for_orders(model, 30_000, predicted=True), np.arange(30_000)
    )
    rows = runs.rows_for_orders(model, 90_000, predicted=False)
    assert (len(rows), rows[0], rows[-1]) == (30_000, 0, 89_999)
    quick = opened(SGDRegressor(), drifting(40))
    assert len(runs.rows_for_orders(quick, 90_000, predicted=False)) == 90_000
    assert len(runs.rows_for_orders(quick, 90_000, predicted=True)) == 30_000


class Counted(RunningMean):
    """Its error falls up to some epoch, and rises after it."""

    best, epochs, per_epoch = 4, 0, 36

    def partial_fit(self, X, y):
        super().partial_fit(X, y)
        type(self).epochs = math.ceil(len(self.seen) / self.per_epoch)

    def predict(self, X):
        return np.full(len(X), 10.0 + abs(len(self.seen) / self.per_epoch - self.best))


def test_when_epochs_end(monkeypatch):
    stream = drifting(40)
    model = opened(Counted(), stream)
    best = batch_model(model, stream.X, stream.Y, 0, quietly)
    assert best.learned == 4 * 36
    assert Counted.epochs == 4 + runs.PATIENCE
    monkeypatch.setattr(Counted, "best", 1000)
    assert batch_model(model, stream.X, stream.Y, 0, quietly).learned == 50 * 36
    monkeypatch.setattr(runs, "STEPS", 100)
    assert batch_model(model, stream.X, stream.Y, 0, quietly).learned == 5 * 36
    (inner,) = best._models
    rows = {tuple(X[0]) for X, _ in inner.seen}
    assert len(rows) == 36  # a tenth was never learned


def test_epochs_come_near_the_batch_solution():
    stream = drifting(200, dimensions=3)
    trained = batch_model(opened(OneByOne(0.01), stream), stream.X, stream.Y, 0, quietly)
    A = np.column_stack([stream.X, np.ones(200)])
    least = A @ np.linalg.lstsq(A, stream.Y, rcond=None)[0]
    gap = np.square(trained.predict(stream.X) - least).mean()
    assert gap < 0.05 * np.square(stream.Y - least).mean()
    two = drifting(2)  # two rows are enough
    assert batch_model(opened(OneByOne(), two), two.X, two.Y, 0, quietly).learned


def test_the_batch_model_of_rows_so_far():
    stream = drifting(100, dimensions=3)
    model = opened(SGDRegressor(), stream)
    before = np.full((100, 1), 7.0)
    found = runs.progressive_batch(model, stream.X, stream.Y, before, 0, quietly)
    np.testing.assert_array_equal(found[:6], 7.0)
    for start, stop in ((6, 12), (12, 25), (25, 50), (50, 100)):
        fitted = batch_model(model, stream.X[:start], stream.Y[:start], 0, quietly)
        np.testing.assert_array_equal(found[start:stop], fitted.predict(stream.X[start:stop]))
    short = drifting(5)
    model, rows = opened(SGDRegressor(), short), (short.X, short.Y, before[:5])
    found = runs.progressive_batch(model, *rows, 0, quietly)
    assert (found[0] == 7.0, found[1] == 7.0) == (True, False)
