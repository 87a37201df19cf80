"""Several epochs: targets that are taught again in each (`test_online` has the learner itself)."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retarget as rt
from retarget.engine.stability import largest_stable_lr
from retarget.errors import (
    DivergedError,
    DivergenceWarning,
    ResultOverflowError,
    UnreachableTargetsError,
)
from retarget.theory import epochs as module
from support.oracles import literal
from support.oracles.simulation import train
from support.problems import (
    assert_same,
    batches,
    fewer_examples,
    gammas,
    make_class_stream,
    make_stream,
    panel_sizes,
    panels_of,
    reductions,
)

numbers, sizes, seeds = st.integers(2, 5), st.integers(1, 15), st.integers(0, 2**32 - 1)
small_streams = st.builds(
    make_stream, n=sizes, outputs=st.integers(1, 3), seed=seeds,
    scale=st.sampled_from([0.5, 1.0, 1.4]),
)  # fmt: skip
small_class_streams = st.builds(
    make_class_stream, n=sizes, outputs=st.integers(1, 4), seed=seeds,
    scale=st.sampled_from([0.5, 1.0, 3.0]), certain=st.booleans(),
)  # fmt: skip


@st.composite
def stable_problems(draw):
    """Plain SGD at a rate at which every step is stable: the theorem's condition."""
    stream, batch, reduction = draw(small_streams), draw(batches), draw(reductions)
    unit = rt.SGD(lr=1.0, batch_size=batch, reduction=reduction)
    K = torch.from_numpy(stream.K)
    limit = largest_stable_lr(lambda rows: K[rows, rows], unit, len(stream))
    share = draw(st.floats(0.05, 0.95))
    return stream, rt.SGD(lr=share * limit, batch_size=batch, reduction=reduction)


@fewer_examples
@given(problem=stable_problems(), gamma=gammas, epochs=numbers, panel=panel_sizes)
def test_targets_exist_at_stable_rates(problem, gamma, epochs, panel):
    stream, learner = problem
    with panels_of(panel):
        Z = rt.corrected_targets(stream.K, stream.Y, learner, gamma, epochs=epochs)
    assert_reached(stream, Z, learner, gamma, epochs)
    again = rt.effective_targets(stream.K, Z, learner, gamma, epochs=epochs)
    assert_same(again, stream.Y)


@given(stream=small_streams, gamma=gammas, epochs=numbers, batch=st.integers(1, 5))
def test_they_are_the_formula(stream, gamma, epochs, batch):
    """G = sum over j < E of (I - B K)^j B, and Z = G^-1 A."""
    eta = 0.4 / batch
    n = len(stream)
    B = np.linalg.inv(np.eye(n) / eta + literal.upper(stream.K, batch).T)
    step = np.eye(n) - B @ stream.K
    G = sum(np.linalg.matrix_power(step, j) for j in range(epochs)) @ B
    A = rt.offline_coefficients(stream.K, stream.Y, gamma)
    learner = rt.SGD(lr=eta, batch_size=batch, reduction="sum")
    Z = rt.corrected_targets(stream.K, stream.Y, learner, gamma, epochs=epochs)
    assert_same(Z, np.linalg.solve(G, A), 1e-9)


def assert_reached(stream, Z, learner, gamma, epochs, loss="squared", initial=None):
    """torch.optim.SGD on these targets, epoch by epoch, ends as the offline learner."""
    run = train(stream.features, Z, learner, offset=initial, epochs=epochs, loss=loss)
    A = rt.offline_coefficients(stream.K, stream.Y, gamma, initial=initial, loss=loss)
    assert_same(stream.queries @ run.weights, stream.K_query @ A)


def falling(lr, share, steps, **options):
    return rt.SGD(tuple(lr / (1 + share * s) for s in range(steps)), **options)


@pytest.mark.parametrize(("loss", "gamma", "learner", "started"), [
    ("squared", 0.3, rt.SGD(0.05, 4, momentum=0.9, reduction="mean"), False),
    ("squared", 0.3, rt.SGD(0.1, 7, 0.6, True, 0.02, "sum"), False),
    ("squared", 0.3, rt.SGD(0.1, weight_decay=0.05), False),
    ("squared", 0.3, falling(0.4, 0.1, 36, batch_size=3, reduction="sum"), False),
    ("squared", 0.5, rt.SGD(0.3, 3, reduction="sum"), True),
    ("cross-entropy", 0.5, rt.SGD(0.3, 3, reduction="sum"), True),
    ("cross-entropy", 2.0,
     falling(0.3, 0.05, 27, batch_size=4, weight_decay=0.02, reduction="mean"), False),
])  # fmt: skip
def test_any_memory_start_and_batches(loss, gamma, learner, started):
    stream = (make_stream if loss == "squared" else make_class_stream)(34, 2, seed=4)
    start = np.random.default_rng(1).normal(size=(34, 2)) if started else None
    options = {"epochs": 3, "loss": loss, "initial": start}
    Z = rt.corrected_targets(stream.K, stream.Y, learner, gamma, **options)
    assert_reached(stream, Z, learner, gamma, **options)


@pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
@fewer_examples
@given(
    stream=small_class_streams, gamma=gammas, epochs=st.integers(2, 4), batch=st.integers(1, 5),
    momentum=st.sampled_from([0.0, 0.5]), panel=panel_sizes,
)  # fmt: skip
def test_cross_entropy_has_targets_for_every_epoch(stream, gamma, epochs, batch, momentum, panel):
    learner = rt.SGD(
        lr=0.3 * (1 - momentum) / batch, batch_size=batch, momentum=momentum, reduction="sum"
    )
    options = {"epochs": epochs, "loss": "cross-entropy"}
    with panels_of(panel):
        Z = rt.corrected_targets(stream.K, stream.Y, learner, gamma, **options)
    assert_reached(stream, Z, learner, gamma, **options)
    again = rt.effective_targets(stream.K, Z, learner, gamma, **options)
    assert_same(again, stream.Y, 1e-9)
    if stream.Y.shape[1] > 1:
        assert_same(Z.sum(1), np.ones(len(Z)))


def test_a_singular_kernel_has_them_too():
    rng = np.random.default_rng(6)
    features = rng.normal(size=(40, 5)) / 3
    Y, learner = rng.normal(size=(40, 2)), rt.SGD(lr=0.2, batch_size=3, reduction="sum")
    K = features @ features.T
    Z = rt.corrected_targets(K, Y, learner, 0.1, epochs=6)
    run = train(features, Z, learner, epochs=6)
    assert_same(run.weights, features.T @ rt.offline_coefficients(K, Y, 0.1), 1e-9)


def test_many_epochs_and_zeros():
    """The limit: a learner that trains until it fits is taught what it should end with."""
    stream, zeros = make_stream(8, 1, seed=7), np.zeros(8)
    A = rt.offline_coefficients(stream.K, stream.Y, 0.5)
    Z = rt.corrected_targets(stream.K, stream.Y, rt.SGD(lr=0.8), 0.5, epochs=100)
    assert_same(Z, stream.K @ A, 1e-6)
    Z = rt.corrected_targets(stream.K, zeros, rt.SGD(lr=0.1), 1.0, epochs=2)
    np.testing.assert_array_equal(Z, zeros)


@pytest.mark.parametrize(("size", "dtype", "digits"), [
    (1e-300, np.float64, 1e-10), (1e-200, np.float64, 1e-10), (1e200, np.float64, 1e-10),
    (1e300, np.float64, 1e-10), (1e-30, np.float32, 1e-3), (1e30, np.float32, 1e-3),
])  # fmt: skip
def test_targets_of_any_size(size, dtype, digits):
    """Targets times a number have corrected targets times that number."""
    stream, learner = make_stream(30, 2, seed=11), rt.SGD(0.2, 3, reduction="sum")
    K, Y = stream.K.astype(dtype), (size * stream.Y).astype(dtype)
    Z = rt.corrected_targets(K, Y, learner, 0.1, epochs=3)
    expected = rt.corrected_targets(stream.K, stream.Y, learner, 0.1, epochs=3)
    assert_same(Z.astype(np.float64) / size, expected, digits)


def test_outputs_of_sizes_that_are_far_apart():
    stream, learner = make_stream(20, 3, seed=13), rt.SGD(0.2, 3, reduction="sum")
    sizes = np.array([1e-180, 1.0, 1e180])
    Z = rt.corrected_targets(stream.K, sizes * stream.Y, learner, 0.1, epochs=3)
    expected = rt.corrected_targets(stream.K, stream.Y, learner, 0.1, epochs=3)
    assert_same(Z / sizes, expected)


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
@pytest.mark.parametrize("options", [
    {}, {"momentum": 0.5}, {"momentum": 0.4, "nesterov": True, "weight_decay": 0.02},
])  # fmt: skip
@pytest.mark.parametrize(("size", "dtype", "digits"), [
    (1e-300, np.float64, 1e-10), (1e-160, np.float64, 1e-10), (1e100, np.float64, 1e-10),
    (1e200, np.float64, 1e-10), (1e-30, np.float32, 1e-3), (1e30, np.float32, 1e-3),
])  # fmt: skip
def test_a_kernel_of_any_size(size, dtype, digits, options, loss):
    """A kernel and a ridge times a number, with a rate divided by it, describe the same learner."""
    if size == 1e200 and loss == "cross-entropy":
        pytest.skip("logistic regression refuses a ridge above 1e100")
    stream = make_class_stream(30, 2, seed=12)
    K, Y = (size * stream.K).astype(dtype), stream.Y.astype(dtype)
    expected = rt.SGD([0.2, 0.25] * 15, 3, reduction="sum", **options)
    decay = size * expected.weight_decay
    learner = replace(expected, lr=[eta / size for eta in expected.lr], weight_decay=decay)
    Z = rt.corrected_targets(K, Y, learner, 0.1 * size, epochs=3, loss=loss)
    options = {"epochs": 3, "loss": loss}
    assert_same(Z, rt.corrected_targets(stream.K, stream.Y, expected, 0.1, **options), digits)


@pytest.mark.parametrize("size", [1.0, 1e-200, 1e200])
def test_the_stable_rate_in_units_of_the_kernel(size):
    stream = make_stream(12, 1, seed=3)
    K = size * stream.K
    with pytest.raises(UnreachableTargetsError, match="would be stable") as caught:
        rt.corrected_targets(K, stream.Y, rt.SGD(lr=1e30 / size), size, epochs=40)
    stable = float(re.search(r"below lr = (\S+)", str(caught.value))[1])
    assert stable * size == pytest.approx(2 / stream.K.diagonal().max(), rel=1e-3)


def test_targets_that_overflow_say_so():
    K, Y = np.eye(3), np.array([1.0, 1e308, 1e308])
    with pytest.raises(ResultOverflowError, match="row 1 is beyond"):
        rt.corrected_targets(K, Y, rt.SGD(0.01), 1e-3, epochs=2)
    with pytest.raises(ResultOverflowError, match="row 0 is beyond"):
        rt.corrected_targets(0.1 * K, Y[::-1], rt.SGD(0.1), 0.0, epochs=2)


def test_learners_without_such_targets(monkeypatch):
    """At eta k = 2 the second epoch takes back what the first one learned: A = 0 for all Z."""
    K, y, learner = np.array([[2.0]]), np.array([1.0]), rt.SGD(lr=1.0)
    with pytest.raises(UnreachableTargetsError, match="same in all 2 epochs .* smaller rate"):
        rt.corrected_targets(K, y, learner, 0.5, epochs=2)
    rt.corrected_targets(K, y, learner, 0.5, epochs=3)
    # one that blows up: they would exist, but no number of digits could lead it there
    rng = np.random.default_rng(3)
    features = rng.normal(size=(60, 8))
    K, Y = features @ features.T, rng.normal(size=60)
    with pytest.raises(UnreachableTargetsError, match="use a smaller rate"):
        rt.corrected_targets(K, Y, rt.SGD(lr=0.6), 1.0, epochs=3)
    with pytest.raises(UnreachableTargetsError, match="diverges within 3 epochs"):
        rt.corrected_targets(K, Y, rt.SGD(lr=1e9), 1.0, epochs=3)
    # a search that takes too long
    monkeypatch.setattr(module, "MOST_STEPS", 1)
    monkeypatch.setattr(module, "DIRECTIONS", 2)
    stream = make_stream(30, 2, seed=8)
    with pytest.raises(UnreachableTargetsError, match="the best miss"):
        rt.corrected_targets(stream.K, stream.Y, rt.SGD(lr=0.3), 0.2, epochs=4)


def test_divergence_in_a_later_epoch():
    stream = make_stream(9, 1, seed=10)
    learner = rt.SGD(lr=60.0, batch_size=4, reduction="sum")
    with pytest.raises(DivergedError) as caught:
        rt.online_coefficients(stream.K, stream.Y, learner, epochs=400)
    assert caught.value.step >= 3  # of the second epoch, or later: an epoch has three steps
    with pytest.raises(DivergedError) as fewer:  # it is the step that the loop counts
        rt.online_coefficients(stream.K, stream.Y, learner, epochs=caught.value.step // 3 + 1)
    assert fewer.value.step == caught.value.step
    with pytest.warns(DivergenceWarning, match=r"blows up: .* below 1.047"):
        rt.online_coefficients(stream.K, stream.Y, learner, epochs=2)
