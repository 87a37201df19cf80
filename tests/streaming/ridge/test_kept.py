"""Rows that are kept: leaving one out is learning all others, and forgotten ones are gone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

import retarget as rt
from retarget.errors import InvalidInputError
from retarget.state_files import read_state, write_state
from support.problems import assert_same


def random_stream(n=30, d=4, c=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 2
    return X, X @ rng.normal(size=(d, c)) + rng.normal(size=(n, c)), rng.uniform(0.3, 3.0, size=n)


def learner(kernel="linear", gamma=0.7, calibration=50, **options):
    return rt.StreamingRidge(kernel, gamma, calibration=calibration, **options)


def features_of(thing):
    return {tuple(row.features.tolist()) for row in thing.learned.kept.rows}


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_left_out_is_learning_all_others(intercept, weighted):
    X, Y, weights = random_stream()
    weights = weights if weighted else np.ones(len(X))
    thing = learner(intercept=intercept)
    for rows in (slice(0, 9), slice(9, 10), slice(10, None)):
        thing.learn(X[rows], Y[rows], weights[rows])
    left_out = thing.left_out()
    assert left_out.times.tolist() == [1.0] * len(X)
    for i in range(0, len(X), 7):
        others = np.arange(len(X)) != i
        other = learner(intercept=intercept).learn(X[others], Y[others], weights[others])
        row = [tuple(each) for each in left_out.targets.numpy()].index(tuple(Y[i]))
        assert_same(left_out.predictions[row].numpy(), other.predict(X[i : i + 1])[0], 1e-10)
        assert_same(left_out.spreads[row : row + 1], other.spread(X[i : i + 1]), 1e-10)


def test_weights_that_are_repeats():
    X, Y, _ = random_stream(12)
    times = np.arange(12) % 3 + 1
    once = learner(intercept=True).learn(X, Y, times.astype(float), repeats=True).left_out()
    rows = np.repeat(np.arange(12), times)
    repeated = learner(intercept=True).learn(X[rows], Y[rows]).left_out()
    assert once.times.tolist() == times.tolist()
    assert_same(once.predictions[rows], repeated.predictions, 1e-10)
    forgotten = learner(intercept=True).learn(X, Y, times.astype(float), repeats=True)
    forgotten.forget(X[:5], Y[:5], times[:5].astype(float), repeats=True)
    fewer = learner(intercept=True).learn(X[5:], Y[5:], times[5:].astype(float), repeats=True)
    assert_same(forgotten.left_out().predictions, fewer.left_out().predictions, 1e-9)
    assert forgotten.learned.moments.squared_weight == fewer.learned.moments.squared_weight


def test_discounted_rows_in_present_weights():
    X, Y, _ = random_stream(20)
    thing = learner().learn(X[:12], Y[:12]).discount(0.4).learn(X[12:], Y[12:])
    weights = np.where(np.arange(20) < 12, 0.4, 1.0)
    peer = learner().learn(X, Y, weights)
    assert_same(thing.left_out().predictions, peer.left_out().predictions, 1e-10)


@given(seed=st.integers(0, 99), cuts=st.sets(st.integers(1, 39), max_size=5))
def test_the_rows_with_the_lowest_tickets(seed, cuts):
    X, Y, _ = random_stream(40, seed=seed)
    thing = learner(calibration=7)
    seen = 0
    for rows in np.split(np.arange(40), sorted(cuts)):
        thing.learn(X[rows], Y[rows])
        seen += len(rows)
        kept = thing.learned.kept
        assert len(kept.rows) == min(seen, 7)
        assert all(row.ticket < kept.bound for row in kept.rows)
    assert features_of(thing) <= set(map(tuple, X))


def test_each_sample_is_kept_with_the_same_probability():
    times = np.zeros(40)
    for seed in range(300):
        X, Y, _ = random_stream(40, seed=seed)
        kept = learner(calibration=10).learn(X[:13], Y[:13]).learn(X[13:], Y[13:])
        places = {tuple(row): i for i, row in enumerate(X)}
        for features in features_of(kept):
            times[places[features]] += 1
    assert times.sum() == 3000
    # of 300 draws with probability 1/4: 75, standard deviation 7.5
    assert np.abs(times - 75).max() < 4 * 7.5
    assert abs(times[:13].mean() - 75) < 10


@pytest.mark.parametrize("calibration", [50, 9])
def test_a_forgotten_sample_leaves_no_trace(calibration, tmp_path):
    X, Y, _ = random_stream()
    thing = learner(calibration=calibration, intercept=True).learn(X, Y)
    before = features_of(thing)
    thing.forget(X[4:21], Y[4:21])
    gone = set(map(tuple, X[4:21]))
    assert features_of(thing) == before - gone
    thing.save(tmp_path / "state")
    with safe_open(tmp_path / "state", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            numbers = set(file.get_tensor(name).flatten().tolist())
            assert not any(numbers >= set(row) for row in gone), name


def test_of_equal_samples_one_goes():
    X, Y, _ = random_stream(3)
    thing = learner().learn(np.repeat(X, 2, axis=0), np.repeat(Y, 2, axis=0))
    thing.forget(X[:1], Y[:1])
    assert [row.features.tolist() for row in thing.learned.kept.rows].count(X[0].tolist()) == 1
    other = learner().learn(np.vstack([X, X[:1]]), np.vstack([Y, Y[:1] + 5]))
    other.forget(X[:1], Y[:1])
    assert len(other.learned.kept.rows) == 3
    assert Y[0].tolist() not in [row.targets.tolist() for row in other.learned.kept.rows]


def test_float32_features_with_other_last_digits():
    X, Y, _ = random_stream(20)
    shift = [0.0]

    def features(X):
        return torch.as_tensor(X).float() * (1 + shift[0])

    thing = learner(features, calibration=20).learn(X, Y)
    shift[0] = 3e-6  # as beside other samples in a batch
    thing.forget(X[:17], Y[:17])
    assert len(thing.learned.kept.rows) == 3
    shift[0] = 0.0
    fewer = learner(features, calibration=20).learn(X[17:], Y[17:])
    assert_same(thing.predict(X), fewer.predict(X), 1e-2)
    with pytest.raises(InvalidInputError, match="that were not learned"):
        learner(features).learn(X, Y).forget(3 * X[:2], Y[:2])


def test_merged_rows_have_the_lowest_tickets():
    X, Y, _ = random_stream(40)
    one = learner(calibration=8).learn(X[:30], Y[:30])
    two = learner(calibration=8).learn(X[30:], Y[30:])
    tickets = [*one.learned.kept.rows, *two.learned.kept.rows]
    one.merge(two)
    kept = one.learned.kept
    assert len(kept.rows) <= 8
    lowest = sorted(row.ticket for row in tickets if row.ticket < kept.bound)
    assert sorted(row.ticket for row in kept.rows) == lowest
    large = learner().learn(X[:30], Y[:30]).merge(learner().learn(X[30:], Y[30:]))
    assert_same(large.left_out().predictions, learner().learn(X, Y).left_out().predictions, 1e-10)


def test_rows_and_new_outputs():
    X, _, _ = random_stream(12)
    Y = np.eye(3)[np.arange(12) % 3]
    thing = learner().learn(X[Y[:, 2] == 0], Y[Y[:, 2] == 0][:, :2]).rearranged([1, 0, None])
    thing.learn(X[Y[:, 2] == 1], Y[Y[:, 2] == 1][:, [1, 0, 2]])
    whole = learner().learn(
        np.vstack([X[Y[:, 2] == 0], X[Y[:, 2] == 1]]), np.vstack([Y[Y[:, 2] == 0], Y[Y[:, 2] == 1]])
    )
    assert_same(thing.left_out().predictions[:, [1, 0, 2]], whole.left_out().predictions, 1e-10)
    fewer = whole.rearranged([0, 2])
    assert len(fewer.learned.kept.rows) == 8
    assert len(whole.learned.kept.rows) == 12
    assert_same(fewer.predict(X), whole.predict(X)[:, [0, 2]], 1e-12)


def test_saved_and_forged_rows(tmp_path):
    X, Y, _ = random_stream()
    thing = learner(calibration=9).learn(X, Y)
    path = tmp_path / "state"
    thing.save(path)
    loaded = rt.StreamingRidge.load(path, "linear")
    assert_same(loaded.left_out().predictions, thing.left_out().predictions, 1e-12)
    loaded.learn(X[:3], Y[:3])
    assert features_of(loaded) == features_of(thing.fork().learn(X[:3], Y[:3]))
    values, tensors = read_state(path)
    forged = [
        ({"kept_bound": 2.0}, {}, "kept_bound is 2.0"),
        ({"kept_bound": 1e-9}, {}, "not rows that a learner keeps"),
        ({}, {"kept_features": tensors["kept_features"][:, :3]}, r"kept_features has shape \(9, 3"),
        ({}, {"kept_targets": tensors["kept_targets"] / 0}, "not rows that a learner keeps"),
        ({}, {"kept_weights": -tensors["kept_weights"]}, "not rows that a learner keeps"),
        ({}, {"kept_times": tensors["kept_times"][:2]}, "kept_times has shape"),
        ({"options": values["options"] | {"calibration": 5}}, {}, "expected at most 5"),
    ]
    for other_values, other_tensors, match in forged:
        write_state(path, values | other_values, tensors | other_tensors)
        with pytest.raises(InvalidInputError, match=match):
            rt.StreamingRidge.load(path, "linear")


def test_what_cannot_be_known_or_kept():
    X, Y, _ = random_stream()
    with pytest.raises(InvalidInputError, match="nothing has been learned yet"):
        learner().left_out()
    with pytest.raises(InvalidInputError, match="0 rows are kept of 30 samples"):
        learner(calibration=0).learn(X, Y).left_out()
    with pytest.raises(InvalidInputError, match="1 rows are kept of 1 samples"):
        learner().learn(X[:1], Y[:1]).left_out()
    with pytest.raises(InvalidInputError, match="calibration is 3 with 2 views"):
        learner(calibration=3, views=[None, np.negative])
    with pytest.raises(InvalidInputError, match="calibration is -1"):
        learner(calibration=-1)
    with pytest.raises(InvalidInputError, match="'calibration': 50"):
        learner().learn(X, Y).merge(learner(calibration=0).learn(X, Y))


def test_memory_is_counted_and_bounded():
    X, Y, _ = random_stream(40)
    thing = learner(calibration=8).learn(X, Y)
    without = learner(calibration=0).learn(X, Y)
    assert thing.nbytes == without.nbytes + 8 * 8 * (4 + 3)


def test_a_starting_network_keeps_its_outputs():
    """With another number learning starts from zero, and the sums are those from the start."""
    torch.manual_seed(0)
    network = torch.nn.Linear(4, 3).double()
    X, Y, _ = random_stream()
    tangents = rt.TangentLearner(network, 0.7, features=20)
    with pytest.raises(InvalidInputError, match="cannot widen 3 outputs to 4"):
        tangents.empty().learn(X, Y).rearranged([0, 1, 2, None])
    with pytest.raises(InvalidInputError, match="cannot rearrange 3 outputs to 1"):
        tangents.empty().learn(X, Y).rearranged([1])
    with pytest.raises(InvalidInputError, match="cannot widen 2 outputs to 3"):
        tangents.empty().learn(X, Y[:, :2]).widened(3)
    with pytest.raises(InvalidInputError, match="outputs=1; expected 2 or more"):
        tangents.empty().learn(X, Y[:, :2]).widened(1)
    four = tangents.empty().learn(X, Y[:, :2]).widened(4)
    assert_same(four.predict(X)[:, :2], tangents.empty().learn(X, Y[:, :2]).predict(X), 1e-12)
    with pytest.raises(InvalidInputError, match="cannot rearrange 3 outputs to 3"):
        tangents.empty().learn(X, Y).rearranged([2, 0, 1])
    assert tangents.empty().learn(X, Y).widened(3).learned.outputs == 3
