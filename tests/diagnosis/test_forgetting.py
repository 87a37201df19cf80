"""Forgetting and the two costs against a plain loop over folds, rows and moments."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.diagnosis.measure.forgetting import (
    OrderLosses,
    Remembered,
    half_life,
    mean_over_orders,
    measured_forgetting,
)
from retarget.diagnosis.measure.holdout import split
from retarget.diagnosis.measure.intervals import Batches, ratio
from retarget.diagnosis.measure.passes import Job, learn_online
from retarget.diagnosis.measure.recall import Fold, Pairs, curve_moments, late_moments
from retarget.diagnosis.measuring import diagnose_split
from retarget.kernels import Linear
from support.diagnosis_options import options_for
from support.diagnosis_streams import as_stream, both_kernels, classes, drifting
from support.oracles import forgetting as oracle
from support.problems import assert_same, fewer_examples, panel_sizes, panels_of, problems

SCALES = np.array([2.0, 0.5])
TWO = drifting(70, outputs=2, seed=3)
STREAMS = {
    "numbers": as_stream(TWO.X, TWO.Y, scales=SCALES),
    "classes": classes(66, 3, seed=1),
    "one target": drifting(64, seed=5),
    "groups": replace(
        drifting(72, seed=2),
        groups=np.array([f"g{k}" for k in np.random.default_rng(0).integers(9, size=72)]),
        group_column="g",
    ),
}
CASES = {  # the stream, and the options
    "plain": ("numbers", {"kernel": rt.RBF(1.3), "lr": 0.4}),
    "memory": (
        "one target",
        {"kernel": "linear", "lr": 0.01, "batch_size": 3, "momentum": 0.6, "weight_decay": 0.05},
    ),
    "nesterov, absolute": (
        "numbers",
        {
            "kernel": rt.RBF(0.9),
            "lr": 0.1,
            "batch_size": 4,
            "reduction": "mean",
            "momentum": 0.5,
            "nesterov": True,
            "metric": "absolute",
        },
    ),
    "classes, features": (
        "classes",
        {"kernel": "linear", "features": 8, "lr": 0.02, "batch_size": 2},
    ),
    "features with a memory": (
        "one target",
        {"kernel": "linear", "features": 8, "lr": 0.02, "momentum": 0.3, "weight_decay": 0.1},
    ),
    "groups": ("groups", {"kernel": rt.RBF(1.1), "lr": 0.3, "hold_out": "group", "seed": 4}),
}


def kernel_of(options):
    kernel = Linear() if options["kernel"] == "linear" else options["kernel"]
    return lambda A, B: kernel(torch.from_numpy(A), torch.from_numpy(B)).numpy()


def places_of(pairs, cell):
    """The places of the pairs of a fold and a moment."""
    return np.flatnonzero([(one.fold, one.moment) == cell for one in pairs])


@pytest.mark.parametrize("case", CASES)
def test_forgetting_and_its_causes_against_a_plain_loop(case):
    name, asked = CASES[case]
    stream, gamma, block = STREAMS[name], 0.3, 12
    plain = not {"momentum", "weight_decay"} & asked.keys()
    options = options_for(
        gamma=gamma, ridge=0.05, block_size=block, test_share=0.15, **{"seed": 2} | asked
    )
    parted = split(stream, None, options)
    assert len(parted.folds) > 1
    found = diagnose_split(parted, options)

    past, scales, learner = parted.past, stream.target_scales, options.learner
    loss = oracle.absolute if options.metric.name == "absolute" else oracle.squared
    other = 4 if learner.batch_size == 1 else 1
    changes = {("batch", other): replace(learner, batch_size=other)}

    def targets(K, Y):
        return rt.iterative_targets(K, Y, learner, gamma, block, 0.05)

    pairs, complete = [], []
    for number, held in enumerate(parted.folds):
        some, learned = oracle.pairs_of_fold(
            number,
            held,
            past.X,
            past.Y,
            kernel_of(asked),
            learner,
            gamma,
            lambda truth, said: loss(truth, said, scales),
            options.seed,
            changes,
            (targets, block) if plain else None,
        )
        pairs += some
        complete.append(learned)
    late = [one for one in pairs if one.late]
    assert found.forgetting.value == pytest.approx(oracle.increase(late), rel=1e-8)
    assert found.forgetting.rows == len({one.row for one in late}) == sum(map(len, parted.folds))
    points = oracle.curve(pairs, complete[0])
    curve = found.forgetting.curve
    assert len(points) >= 7
    if parted.whole_groups:
        same = curve.drop("low", "high").to_numpy()
        expected = [(age, value, rows) for age, value, _, _, rows in points]
        np.testing.assert_allclose(same, expected, rtol=1e-8)
    else:
        np.testing.assert_allclose(curve.to_numpy(), points, rtol=1e-8)
        interval = oracle.interval_within_strips(late)
        assert found.forgetting.increase[1:] == pytest.approx(interval, rel=1e-8)
    expected = oracle.doubled(points)
    assert found.forgetting.half_life == (expected and pytest.approx(expected, rel=1e-8))
    mean = {name: np.mean([one.losses[name] for one in late]) for name in late[0].losses}
    in_random_order = np.mean([np.mean(one.orders) for one in late])
    constant = parted.stream.Y.mean(axis=0)
    simplest = np.mean([loss(past.Y[one.row], constant, scales) for one in late])
    first = np.mean([one.first for one in late])
    for value, numerator, denominator in (
        (found.order_cost, mean["online"], in_random_order),
        (found.one_pass_cost, in_random_order, mean["offline"]),
        (found.forgetting.known, first, simplest),
        (found.forgetting.knowable, mean["offline"], mean["mean"]),
    ):
        assert value.value == pytest.approx(numerator / denominator - 1, rel=1e-8)
        assert value.low <= value.value <= value.high

    rows = np.array([one.row for one in late])
    consecutive, strips = Batches.consecutive(rows), Batches.within_strips(rows)
    if parted.whole_groups:
        consecutive = strips = Batches.of_groups(past.groups[rows])

    def losses(name):
        return np.array([one.losses[name] for one in late])

    cells = [
        OrderLosses(np.array([late[place].orders for place in places]).T, places)
        for cell in sorted({(one.fold, one.moment) for one in late})
        for places in [places_of(late, cell)]
    ]
    forgotten = [np.array([getattr(one, when) for one in late]) for when in ("later", "first")]
    for cost, expected in (
        (found.forgetting.increase, ratio(*map(strips.mean, forgotten))),
        (
            found.order_cost,
            ratio(strips.mean(losses("online")), mean_over_orders(cells, strips)),
        ),
        (
            found.one_pass_cost,
            ratio(mean_over_orders(cells, consecutive), consecutive.mean(losses("offline"))),
        ),
    ):
        assert cost == pytest.approx(expected, rel=1e-7)

    answer = found.answer("whole")
    assert answer.rows == len({one.row for one in late})
    assert answer.score("online").loss.value == pytest.approx(mean["online"], rel=1e-8)
    assert answer.score("offline").loss.value == pytest.approx(mean["offline"], rel=1e-8)
    assert answer.baselines[0].loss.value == pytest.approx(mean["mean"], rel=1e-8)
    excess = mean["online"] / mean["offline"] - 1
    assert answer.excess.value == pytest.approx(excess, rel=1e-8)
    if plain:
        assert answer.score("iterative").loss.value == pytest.approx(mean["iterative"], rel=1e-6)
        effect = mean["iterative"] / mean["online"] - 1
        assert answer.effect["iterative"].value == pytest.approx(effect, rel=1e-6)
    # the exactly corrected learner is the batch model, at the end, and was asked in the first fold
    at_the_end = [one for one in late if one.fold == 0 and one.at_the_end]
    exact = np.mean([one.losses["offline"] for one in at_the_end])
    assert answer.score("corrected").loss.value == pytest.approx(exact, rel=1e-6)
    trials = {(one.change, one.value): one.effect.value for one in answer.trials}
    for change in changes:
        effect = mean[change] / mean["online"] - 1
        assert trials[change] == pytest.approx(effect, rel=1e-8)
    order = in_random_order / mean["online"] - 1
    cells = len(parted.folds) * 10 + 2  # two orders for each of five moments; four for one of them
    assert trials["order", cells] == pytest.approx(order, rel=1e-8)


@fewer_examples
@given(problem=problems(), panel=panel_sizes, seed=st.integers(0, 99))
def test_any_learner_is_asked_at_any_moment(problem, panel, seed):
    """Momentum, Nesterov, weight decay, schedules; whole mini-batches, in any order."""
    stream, learner = problem
    n, rng = len(stream), np.random.default_rng(seed)
    X = np.concatenate([stream.features, stream.queries])
    rng.shuffle(X)
    Y = np.concatenate([stream.Y, stream.Y[:1].repeat(len(stream.queries), axis=0)])
    held = np.sort(rng.permutation(len(X))[: len(stream.queries)])
    learned = np.setdiff1d(np.arange(len(X)), held)
    past = as_stream(X, Y)
    K, Q = X[learned] @ X[learned].T, X[held] @ X[learned].T
    states = oracle.sgd_states(K, Y[learned], learner)
    order = rng.permutation(n)[: rng.integers(1, n + 1)]
    few = replace(learner, lr=0.01)
    shuffled = oracle.sgd_states(K[np.ix_(order, order)], Y[learned][order], few)
    with panels_of(panel):
        for kernel in both_kernels(as_stream(X[learned], Y[learned])):
            fold = Fold(kernel, past, held)
            assert [int((learned < row).sum()) for row in held] == fold.times.tolist()
            probe, later = fold.whole_probe()
            learn_online(kernel, [Job(learner, kernel.Y, probe)])
            moments = np.concatenate([fold.times, later.moment])
            places = np.concatenate([np.arange(len(held)), later.place])
            expected = [
                Q[place] @ oracle.state_at(states, learner, moment, n)
                for place, moment in zip(places, moments, strict=True)
            ]
            assert_same(probe.predictions, np.array(expected))
            # in another order of some of the rows, at the end of it
            asked = Pairs(np.arange(len(held)), np.full(len(held), len(order)))
            probe = fold.probe(asked, torch.from_numpy(order))
            job = Job(few, kernel.Y, probe)
            learn_online(kernel, [job], torch.from_numpy(order))
            assert_same(probe.predictions, Q[:, order] @ shuffled[-1])


def test_moments():
    assert late_moments(1000).tolist() == [800, 850, 900, 950, 1000]
    assert late_moments(300_001).tolist() == [270_001, 300_001]
    assert late_moments(2).tolist() == [2]
    assert late_moments(1).tolist() == [1]
    moments = curve_moments(1000)
    assert {83, 500, 833, 1000, 850} <= set(moments)
    assert len(moments) == 16
    pairs = Pairs.of(np.array([0, 5, 9]), np.array([4, 9]))
    assert pairs.place.tolist() == [0, 0, 1, 2]
    assert pairs.moment.tolist() == [4, 9, 9, 9]


def test_evenly_spaced_rows_are_asked(monkeypatch):
    monkeypatch.setattr("retarget.diagnosis.measure.recall.MOST_ASKED", 4)
    stream = drifting(40)
    held = np.arange(1, 40, 3)
    learned = np.setdiff1d(np.arange(40), held)
    fold = Fold(both_kernels(stream.part(learned))[0], stream, held)
    assert fold.rows.tolist() == [1, 13, 25, 37]
    # all held-out rows are left out of the rows learned before each
    assert fold.times.tolist() == [(learned < row).sum() for row in fold.rows]


def remembered(first, later, **more):
    """Every row asked about once, at the end of a stream of as many rows."""
    rows = np.arange(len(first))
    given = {
        "rows": rows,
        "ages": len(rows) - rows,
        "late": np.ones(len(rows), dtype=bool),
        "first": np.asarray(first, dtype=float),
        "later": np.asarray(later, dtype=float),
        "learned": len(rows),
        "constant": np.full(len(rows), 5.0),
    }
    return Remembered(**given | more)


def test_what_cannot_be_measured_is_not():
    ones = np.ones(30)
    assert measured_forgetting(remembered(ones[:9], ones[:9])) is None
    for wrong in (np.nan, np.inf):
        assert measured_forgetting(remembered(ones, [*ones[1:], wrong])) is None
    assert measured_forgetting(remembered(ones, ones, late=np.arange(30) < 9)) is None
    same_row = np.arange(30) // 4  # pairs of a row count as one row
    assert measured_forgetting(remembered(ones, ones, rows=same_row)) is None
    ten = measured_forgetting(remembered(ones[:10], 3 * ones[:10]))
    assert ten.increase == pytest.approx((2, 2, 2))
    assert ten.known == pytest.approx((-0.8, -0.8, -0.8))
    assert len(ten.curve) == 0
    # a loss that overflowed at another moment than the late ones does not matter
    early = remembered(np.ones(40), [np.inf, *np.ones(39)], late=np.arange(40) > 0)
    assert measured_forgetting(early).value == 0


def test_the_curve_has_the_same_rows():
    """Rows that are hard from the start are not taken for forgotten ones."""
    rows = np.arange(200)
    hard = np.where(rows < 100, 100.0, 1.0)  # and old ones, at the end of the stream
    same = measured_forgetting(remembered(hard, hard))
    assert same.increase == (0, 0, 0)
    assert same.curve["value"].to_list() == [0.0] * 7
    assert same.half_life is None
    old = 200 - rows > 80  # 0.4 of the rows: an edge between two points
    forgotten = measured_forgetting(remembered(hard, np.where(old, 4.0, 1.0) * hard))
    assert forgotten.curve["value"].to_list() == pytest.approx([0.0] * 3 + [3.0] * 4)
    assert forgotten.curve["rows"].to_list() == [14, 20, 30, 30, 30, 30, 30]
    assert forgotten.curve["age"].to_list() == [23.5, 40.5, 65.5, 95.5, 125.5, 155.5, 185.5]
    assert forgotten.half_life == pytest.approx(65.5 + 30 / 3)


def test_half_life_is_on_the_line_between_points():
    def of(*points):
        return half_life(pl.DataFrame([*points], schema=["age", "value"], orient="row"))

    assert of((10.0, 0.5), (30.0, 2.5)) == 15
    assert of((10.0, 4.0)) == 2.5  # from nothing at age 0 on
    assert of((10.0, 1.0), (20.0, 0.0)) == 10
    assert of((10.0, 0.9), (20.0, 0.99)) is None
    assert of((10.0, -0.5), (20.0, 2.5), (30.0, 0.0)) == 15
    assert half_life(pl.DataFrame(schema={"age": pl.Float64, "value": pl.Float64})) is None


def test_what_chance_in_the_orders_adds():
    """Each fold and moment has orders of its own; the variances of their means add up."""
    rng = np.random.default_rng(0)
    batches = Batches.consecutive(np.arange(12), 3)
    cells = [
        OrderLosses(rng.exponential(size=(4, 5)), np.array([0, 2, 4, 6, 8])),
        OrderLosses(rng.exponential(size=(2, 6)), np.array([1, 3, 5, 7, 9, 11])),
        OrderLosses(rng.exponential(size=(1, 1)), np.array([10])),
    ]
    found = mean_over_orders(cells, batches)
    rows = np.empty(12)
    for losses, places in cells:
        rows[places] = losses.mean(axis=0)
    np.testing.assert_allclose(found.without, batches.mean(rows).without)
    assert found.value == pytest.approx(rows.mean())
    chance = (5 / 12) ** 2 * cells[0].losses.mean(axis=1).var(ddof=1) / 4
    chance += (6 / 12) ** 2 * cells[1].losses.mean(axis=1).var(ddof=1) / 2
    assert found.over_runs == pytest.approx(np.sqrt(chance))
    assert found.runs == 1 + 3 + 1  # one more than the degrees of freedom


def diagnosed(stream, **asked):
    options = options_for(**asked)
    parted = split(stream, None, options)
    return parted, options, diagnose_split(parted, options)


def test_only_the_online_learner_in_more_folds(monkeypatch):
    asked = {"lr": 0.3, "gamma": 0.1, "kernel": rt.RBF(1.0), "ridge": 0.1}
    parted, options, whole = diagnosed(drifting(120, seed=1), **asked)
    monkeypatch.setattr("retarget.diagnosis.measure.whole.complete_folds", lambda rows: 2)
    few = diagnose_split(parted, options)
    assert len(parted.folds) == 4
    assert few.forgetting.value == whole.forgetting.value
    assert few.forgetting.rows == whole.forgetting.rows == 96
    assert few.answer("whole").rows == 48
    two = diagnose_split(parted._replace(folds=parted.folds[:2]), options)
    assert few.answer("whole") == two.answer("whole")
    assert few.order_cost == two.order_cost
    assert few.one_pass_cost == two.one_pass_cost


def test_random_orders_in_affordable_folds(monkeypatch):
    asked = {"lr": 0.3, "gamma": 0.1, "kernel": "linear", "ridge": 0.1}
    parted, options, whole = diagnosed(drifting(120, seed=1), **asked)
    monkeypatch.setattr("retarget.diagnosis.measure.whole.ORDERED_PAIRS", 2 * 96**2)
    few = diagnose_split(parted, options)
    two = diagnose_split(parted._replace(folds=parted.folds[:2]), options)
    assert few.order_cost == two.order_cost != whole.order_cost
    assert few.one_pass_cost == two.one_pass_cost
    assert few.answer("whole").excess == whole.answer("whole").excess


def test_one_fold_without_memory_for_all(monkeypatch):
    monkeypatch.setattr("retarget.diagnosis.measure.approximation.folds_memory", lambda rows: 10**9)
    asked = {"lr": 0.3, "kernel": "linear"}
    for more, rows in ((10**9, 80), (10**9 - 1, 20)):
        parted, _, found = diagnosed(drifting(100), max_memory=more, **asked)
        assert len(parted.folds) == 4
        assert found.answer("whole").rows == found.forgetting.rows == rows


def test_divergence_has_no_forgetting_and_costs():
    _, _, found = diagnosed(drifting(80), lr=1e6, kernel="linear")
    assert found.forgetting is None
    assert np.isnan(found.order_cost.value)
    assert np.isnan(found.one_pass_cost.value)
    assert found.verdict.kind == "diverged"
