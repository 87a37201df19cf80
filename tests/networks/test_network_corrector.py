"""Corrected targets in somebody's own loop, and the theorem that they are for."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import retarget as rt
from retarget.errors import (
    InvalidInputError,
    InvalidTypeError,
    LargeTargetsWarning,
    NotPositiveDefiniteError,
    ResultOverflowError,
    RetargetError,
    TrainingDivergedError,
)
from retarget.networks.corrector import NetworkCorrector
from support.corrected_training import pass_over
from support.lab_problems import mlp
from support.oracles import literal
from support.oracles.empirical_ntk import gram
from support.problems import assert_same, gammas
from support.streaming_objects import CE, saved

LEARNER = rt.SGD(0.05, batch_size=2, reduction="sum")


def problem(n=12, outputs=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 5)), rng.normal(size=(n, outputs))


def nudge(network):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1)


def expected(network, X, Y, learner=LEARNER, gamma=2.0, block=4):
    K = gram(network, torch.tensor(X), torch.tensor(X)).numpy()
    return literal.iterative(Y, K, learner.lr, gamma, block, batch=learner.batch_size)


@pytest.mark.filterwarnings("ignore::retarget.errors.LinearizationWarning")  # nudged, not trained
def test_task_by_task_from_the_refreshed_kernel():
    network, (X, Y) = mlp(1), problem()
    by_task, by_epoch, never = (
        NetworkCorrector(network, LEARNER, 2.0, 4, refresh=refresh)
        for refresh in ("task", "epoch", "never")
    )
    start = expected(network, X, Y)
    for corrector in (by_task, by_epoch, never):
        assert_same(corrector.correct(X[:8], Y[:8]), start[:8])
        assert_same(corrector.recorrect(), start[:8])
    nudge(network)
    now = expected(network, X, Y)
    for corrector, again, after in (
        (by_task, start, now), (by_epoch, now, now), (never, start, start),
    ):  # fmt: skip
        assert_same(corrector.recorrect(), again[:8])
        assert_same(corrector.correct(X[8:], Y[8:]), after[8:])
    nudge(network)
    assert_same(by_epoch.recorrect(), expected(network, X, Y)[8:])
    assert_same(never.recorrect(), start[8:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_in_torch_out_of_the_same_kind(dtype):
    network, (X, Y) = mlp(1, classes=1).to(dtype), problem(outputs=1)
    X, Y = torch.tensor(X, dtype=dtype), torch.tensor(Y, dtype=dtype, requires_grad=True)
    corrector = NetworkCorrector(network, LEARNER, 2.0, 4)
    Z = corrector.correct(X[:8], Y[:8, 0])
    assert (type(Z), Z.dtype, Z.requires_grad) == (torch.Tensor, dtype, False)
    # not the network's precision but the correction's: the kernel is rounded, nothing else
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    wanted = expected(network, X[:8].numpy(), Y[:8].detach().double().numpy())
    assert_same(Z, wanted[:, 0], tolerance)  # flat targets come back flat
    again = corrector.recorrect()
    assert (again.dtype, again.shape) == (dtype, (8,))
    assert corrector.correct(X[8:], Y[8:]).shape == (4, 1)


def test_the_network_and_arrays_stay():
    X, Y = problem()
    network = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double().eval()
    before, Z = copy.deepcopy(network.state_dict()), expected(network, X, Y)
    for refresh in ("epoch", "task"):
        corrector = NetworkCorrector(network, LEARNER, 2.0, 4, refresh=refresh)
        given = X[:8].copy(), Y[:8].copy()
        corrector.correct(*given)[:] = 7.0
        given[0][:] = given[1][:] = 7.0
        assert_same(corrector.recorrect(), Z[:8])
        assert_same(corrector.correct(X[8:], Y[8:]), Z[8:])
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.ones((3, 5))}, "X has 3 samples and Y has 4"),
        ({"X": np.ones((0, 5)), "Y": np.ones((0, 3))}, "X has 0 samples and Y has 0"),
        ({"X": np.ones((4, 6))}, r"shape \(6,\), 3 targets, .* expected .* \(5,\), 3"),
        ({"Y": np.ones((4, 2))}, "2 targets, .* first task"),
        ({"X": np.ones((4, 5), np.float32)}, "torch.float32, .* torch.float64"),
        ({"Y": np.full((4, 3), np.nan)}, "Y holds nan in row 0"),
    ],
)
def test_tasks_that_do_not_fit(change, message):
    X, Y = problem(4)
    corrector = NetworkCorrector(mlp(1), LEARNER, 2.0, 4)
    corrector.correct(X, Y)
    with pytest.raises(InvalidInputError, match=message):
        corrector.correct(**({"X": X, "Y": Y} | change))


def test_what_does_not_fit_the_network():
    network, (X, Y) = mlp(1), problem(4)
    corrector = NetworkCorrector(network, LEARNER, 2.0, 4)
    with pytest.raises(InvalidTypeError, match="have dtype int64"):
        corrector.correct(X.astype(int), Y)
    with pytest.raises(InvalidInputError, match="Y has 2 columns.*3 outputs"):
        corrector.correct(X, Y[:, :2])
    with torch.no_grad():
        network[2].weight *= 1e200
    with pytest.raises(TrainingDivergedError, match="the network's kernel is not finite"):
        corrector.correct(X, Y)
    with pytest.raises(InvalidInputError, match="no task to correct again"):
        corrector.recorrect()
    entropy = NetworkCorrector(mlp(1), LEARNER, 1.0, 4, loss=CE)
    with pytest.raises(InvalidInputError, match="sums to 2 in row 0"):
        entropy.correct(X, np.eye(4, 3) * 2)


def test_samples_without_a_gradient():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(30, 6, bias=False), nn.ReLU(), nn.Linear(6, 2, bias=False))
    X = torch.rand(12, 30, dtype=torch.float64)
    X[[2, 7]] = 0.0
    Y = torch.randn(12, 2, dtype=torch.float64)
    K = rt.EmpiricalNTK(network.double())(X)
    assert (K.diagonal() == 0).nonzero().flatten().tolist() == [2, 7]
    others = [i for i in range(12) if i not in (2, 7)]
    Z = NetworkCorrector(network, LEARNER, 2.0, 4).correct(X, Y)
    for own in (0.1, 30.0):  # whatever they are to themselves
        K[[2, 7], [2, 7]] = own
        assert_same(Z[others], rt.iterative_targets(K, Y, LEARNER, 2.0, 4)[others])
    assert Z.isfinite().all()
    with pytest.raises(TrainingDivergedError, match="zero for every sample"):
        NetworkCorrector(network, LEARNER, 2.0, 4).correct(0 * X, Y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refresh": "often"}, "refresh is 'often'; expected one of .'never'"),
        ({"kind": "best"}, "kind is 'best'; expected one of .'iterative'"),
        ({"kind": "distilled", "ridge": 0.1}, "but kind is 'distilled'; leave them out"),
        ({"kind": "distilled", "parts": "online"}, "but kind is 'distilled'; leave them out"),
        ({"block_size": 3}, "block_size is 3; .* batch_size, 2"),
        ({"loss": "hinge"}, "loss is 'hinge'"),
        ({"loss": CE, "kind": "distilled"}, "with kind='distilled'; use loss="),
        ({"kernel": "ntk"}, "kernel is 'ntk'"),
        (
            {"kernel": rt.RBF(1.0)},
            r"kernel is RBF",
        ),
    ],
)
def test_options_without_a_meaning(options, message):
    given = {"learner": LEARNER, "gamma": 2.0, "block_size": 4} | options
    with pytest.raises(RetargetError, match=message):
        NetworkCorrector(mlp(1), **given)


# The theorem, with torch.optim.SGD in a loop of one's own


def features(n, seed, dimension=40):
    rng = np.random.default_rng(seed)
    X = torch.tensor(rng.normal(size=(n, dimension)) / np.sqrt(dimension))
    return X, torch.tensor(rng.normal(size=(n, 2)))


def offline(X, Y, gamma, queries):
    """Ridge regression in weight space."""
    W = torch.linalg.solve(gamma * torch.eye(X.shape[1]).double() + X.T @ X, X.T @ Y)
    return queries @ W


def zero_network(dimension=40, outputs=2):
    network = nn.Linear(dimension, outputs, bias=False).double()
    nn.init.zeros_(network.weight)
    return network


learners = st.builds(
    rt.SGD,
    lr=st.floats(0.05, 0.9),
    batch_size=st.sampled_from([1, 4]),
    reduction=st.sampled_from(["sum", "mean"]),
)


@pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
@given(learner=learners, gamma=gammas, seed=st.integers(0, 999), last=st.sampled_from([8, 10, 3]))
def test_a_linear_network_agrees_on_every_block(learner, gamma, seed, last):
    """Of the samples so far; the last task may end within a block and a mini-batch."""
    X, Y = features(16 + last, seed)
    network, block = zero_network(), 8
    corrector = NetworkCorrector(network, learner, gamma, block)
    for start, stop in ((0, 8), (8, 16), (16, 16 + last)):
        Z = corrector.correct(X[start:stop], Y[start:stop])
        for first in range(start, stop, block):
            rows = slice(first, min(first + block, stop))
            pass_over(network, X[rows], Z[first - start : rows.stop - start], learner)
            aim = offline(X[: rows.stop], Y[: rows.stop], gamma, X[rows])
            assert_same(network(X[rows]).detach(), aim, 1e-8)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
def test_a_linear_network_agrees_with_logistic_regression(outputs):
    X = torch.tensor(np.random.default_rng(0).normal(size=(30, 5)))
    Y = (X[:, :1] > 0).double()
    if outputs == 3:
        Y = torch.eye(3).double()[X[:, :3].argmax(1)]
    network, learner = zero_network(5, outputs), rt.SGD(0.3, batch_size=3, reduction="mean")
    corrector = NetworkCorrector(network, learner, 0.7, 6, loss=CE)
    for task in (slice(0, 12), slice(12, 30)):
        pass_over(network, X[task], corrector.correct(X[task], Y[task]), learner, CE)
        seen = slice(0, task.stop)
        A = rt.offline_coefficients(X[seen] @ X[seen].T, Y[seen], 0.7, loss=CE)
        rows = slice(task.stop - 6, task.stop)  # a block: it pins down a kernel of rank 5
        torch.testing.assert_close(network(X[rows]), X[rows] @ X[seen].T @ A, rtol=0, atol=1e-7)
    corrector.correct(X[:3], Y[:3])  # compares the network with what cross-entropy makes of it
    assert 0 < corrector.linearization_error < 1e-10
    corrector.trust()
    assert corrector.linearization_error is None


@pytest.mark.parametrize(
    ("flat", "options"),
    [
        (True, {"refresh": "task"}),
        (False, {"refresh": "epoch"}),
        (False, {"refresh": "never", "kind": "distilled"}),
        (True, {"loss": CE}),
    ],
)
@pytest.mark.filterwarnings("ignore::retarget.errors.LinearizationWarning")  # nudged, not trained
def test_loaded_it_goes_on(tmp_path, flat, options):
    """In torch, or in NumPy."""
    network, (X, Y) = mlp(1, classes=1), problem(20, outputs=1)
    path, Y = tmp_path / "corrector.safetensors", 1 / (1 + np.exp(-Y))
    X, Y = (torch.tensor(X), torch.tensor(Y[:, 0])) if flat else (X, Y)
    NetworkCorrector(network, LEARNER, 2.0, 4, **options).save(path)  # a new one is saved too
    corrector = NetworkCorrector.load(path, network)
    corrector.correct(X[:8], Y[:8])
    nudge(network)
    corrector.correct(X[8:14], Y[8:14])
    corrector.save(path)
    # with refresh="never" the weights of the kernel are in the file, and not in the network
    loaded = NetworkCorrector.load(path, network)
    assert loaded.loss == options.get("loss", "squared")
    again, targets = loaded.recorrect(), loaded.correct(X[14:], Y[14:])
    assert type(again) is type(targets) is type(X)
    np.testing.assert_array_equal(again, corrector.recorrect())
    np.testing.assert_array_equal(targets, corrector.correct(X[14:], Y[14:]))
    assert saved(loaded, path) == saved(corrector, path)


def test_a_state_of_another_network_or_class(tmp_path):
    path = tmp_path / "state"
    NetworkCorrector(mlp(1), LEARNER, 2.0, 4, refresh="never").save(path)
    with pytest.raises(InvalidInputError, match="is not a state of a NetworkCorrector"):
        NetworkCorrector.load(path, nn.Linear(5, 3).double())
    rt.ShiftTracker(rt.RBF(1.0), LEARNER, 1.0).save(path)
    with pytest.raises(InvalidInputError, match="holds a ShiftTracker"):
        NetworkCorrector.load(path, mlp(1))


@pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
def test_targets_that_overflow_their_type():
    """Corrected targets are five times the true ones here: beyond float32, though not float64."""
    network = zero_network(dimension=2, outputs=1).float()
    learner, X = rt.SGD(0.1, 2, reduction="sum"), torch.eye(2)
    corrector = NetworkCorrector(network, learner, 1.0, block_size=2)
    with pytest.raises(ResultOverflowError, match="row 1 is beyond 3.4e.38"):
        corrector.correct(X, torch.tensor([[1.0], [1e38]]))
    assert corrector.samples == 0
    Z = corrector.correct(X, torch.tensor([[1.0], [5e37]]))
    np.testing.assert_allclose(Z, [[5.0], [2.5e38]], rtol=1e-5)


def test_a_failed_correction_changes_nothing(tmp_path, monkeypatch):
    (X, Y), path = problem(), tmp_path / "state"
    corrector = NetworkCorrector(mlp(1), LEARNER, 2.0, 4, refresh="epoch")
    corrector.correct(X[:8], Y[:8])
    before = saved(corrector, path)

    def fail(*_, **__):
        raise NotPositiveDefiniteError("failed", deficit=1.0, jitter=1.0)

    monkeypatch.setattr("retarget.networks.corrector.iterative_targets", fail)
    for again in (lambda: corrector.correct(X[8:], Y[8:]), corrector.recorrect):
        with pytest.raises(NotPositiveDefiniteError):
            again()
        assert saved(corrector, path) == before


@pytest.mark.parametrize(
    "kind",
    [
        partial(NetworkCorrector, refresh="never"),
        partial(rt.ClosedLoopCorrector, features=16, replay=6),
    ],
    ids=["open", "closed"],
)
def test_a_state_is_restored_in_place(kind):
    (X, Y), network = problem(14), mlp(1)
    one, same = (kind(network, LEARNER, gamma=2.0, block_size=4) for _ in range(2))

    def feed(corrector, rows):
        closed = isinstance(corrector, rt.ClosedLoopCorrector)
        return (corrector.next_block if closed else corrector.correct)(X[rows], Y[rows])

    feed(one, slice(0, 4))
    assert (one.samples, one.module) == (4, network)
    state = one.to_state()
    same.restore(*state)
    for found, wanted in zip(feed(same, slice(4, 8)), feed(one, slice(4, 8)), strict=True):
        assert_same(found, wanted, 0)
    faster = rt.SGD(0.7, 2, reduction="sum")
    for corrector, message in (
        (same, "has been used; expected a new one"),
        (kind(network, LEARNER, gamma=3.0, block_size=4), "state has the options .* the"),
        (kind(network, faster, gamma=2.0, block_size=4), "the state has the learner"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            corrector.restore(*state)
    elsewhere = kind(mlp(1), LEARNER, gamma=2.0, block_size=4)
    elsewhere.module.to("meta")  # a second device that every machine has, though without numbers
    with pytest.raises(InvalidTypeError, match="samples is on the meta device"):
        elsewhere.restore(*state)


SMALL = {"gamma": 30.0, "block_size": 4}


def open_loop(corrector, X, Y):
    return corrector.correct(X, Y)


def closed_loop(corrector, X, Y):
    return corrector.next_block(X, Y)[1]


@pytest.mark.parametrize(
    ("make", "targets"),
    [
        (partial(NetworkCorrector, **SMALL), open_loop),
        (partial(rt.ClosedLoopCorrector, **SMALL, features=20), closed_loop),
    ],
    ids=["open loop", "closed loop"],
)
def test_class_labels_are_one_hot_rows(make, targets, tmp_path):
    X, network = torch.tensor(problem(4)[0]), mlp(1)
    numbers = torch.tensor([2, 0, 1, 2])
    rows = nn.functional.one_hot(numbers, 3).double()
    wanted = targets(make(network, LEARNER), X, rows)
    names = ["ant", "bee", "cat"]
    text = [names[number] for number in numbers]
    for labels, options in (
        (numbers, {}),
        (numbers.numpy(), {}),
        (numbers.tolist(), {}),
        (text, {"classes": names}),
        (10 - numbers, {"classes": [10, 9, 8]}),
    ):
        corrector = make(network, LEARNER, **options)
        Z = targets(corrector, X, labels)
        assert torch.equal(Z, wanted)
        corrector.save(tmp_path / "state")
        again = type(corrector).load(tmp_path / "state", network)
        mixed = targets(again, X, rows)  # rows after labels
        assert torch.equal(mixed, targets(corrector, X, labels))
    as_numpy = targets(make(network, LEARNER), X.numpy(), numbers)
    assert isinstance(as_numpy, np.ndarray)
    np.testing.assert_array_equal(as_numpy, wanted.numpy())
    with pytest.raises(InvalidInputError, match=r"such as 'cat', .* classes="):
        targets(make(network, LEARNER), X, text)
    with pytest.raises(InvalidInputError, match="X has 4 samples and Y has 3"):
        targets(make(network, LEARNER), X, numbers[:3])


def test_targets_far_from_the_data_warn_once():
    X, Y = problem()
    network = mlp(1)
    K = gram(network, torch.tensor(X), torch.tensor(X)).numpy()
    largest = abs(literal.iterative(Y, K, LEARNER.lr, 0.5, 4, batch=2)).max()
    assert largest > 11 * abs(Y).max()
    corrector = NetworkCorrector(network, LEARNER, 0.5, 4)
    words = (
        f"targets reach {largest:.3g} in size, but the true ones only {abs(Y).max():.3g}; .*auto"
    )
    with pytest.warns(LargeTargetsWarning, match=words) as caught:
        corrector.correct(X, Y)
    assert caught[0].filename == __file__
    corrector.correct(X, Y)  # a second warning would be an error
    trusted = NetworkCorrector(network, LEARNER, 0.5, 4)
    trusted.trust()
    trusted.correct(X, Y)
    NetworkCorrector(network, LEARNER, 1e3, 4).correct(X, Y)
