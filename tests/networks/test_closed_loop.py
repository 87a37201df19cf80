"""The closed loop: targets from the network as it is now, towards a learner that keeps nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import retarget as rt
from retarget.networks.closed_loop import StoredSamples, closed_loop_targets
from retarget.state_files import read_state, write_state
from support.corrected_training import pass_over
from support.lab_problems import mlp
from support.oracles.empirical_ntk import gram
from support.problems import assert_same
from support.streaming_objects import saved

# networks are nudged here, not trained as they should be
pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LinearizationWarning")
LEARNER = rt.SGD(0.05, batch_size=2, reduction="mean")
OPTIONS = {"gamma": 0.7, "block_size": 8, "features": 30, "replay": 0}


def problem(n=40, outputs=3, seed=0):
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.normal(size=(n, 5))), torch.tensor(rng.normal(size=(n, outputs)))


def literal(K, f, F, learner, damping, first_step=0):
    """a = (K + rho mean(diag K) I)^-1 (F - f); Z = f + (I/eta + K^bL) a, sample by sample."""
    m = len(K)
    a = np.linalg.solve(K + damping * np.mean(np.diag(K)) * np.eye(m), F - f)
    Z = np.empty_like(f)
    for i in range(m):
        step = i // learner.batch_size
        size = min(learner.batch_size, m - step * learner.batch_size)
        rate = learner.rate(first_step + step) / (size if learner.reduction == "mean" else 1)
        Z[i] = f[i] + a[i] / rate
        for j in range(step * learner.batch_size):
            Z[i] += K[i, j] * a[j]
    return Z, f + K @ a


@given(
    m=st.integers(1, 9),
    batch=st.sampled_from([1, 2, 4]),
    reduction=st.sampled_from(["sum", "mean"]),
    damping=st.sampled_from([0.3, 1.0, 4.0]),
    schedule=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_sgd_lands_at_the_damped_solution(m, batch, reduction, damping, schedule, seed):
    """A linear network has a constant kernel, and the same one for every output."""
    rng = np.random.default_rng(seed)
    lr = tuple(0.1 + 0.02 * step for step in range(30)) if schedule else 0.13
    learner = rt.SGD(lr, batch_size=batch, reduction=reduction)
    first_step = 2 if schedule else 0
    X, F = torch.tensor(rng.normal(size=(m, 6))), torch.tensor(rng.normal(size=(m, 2)))
    network = nn.Linear(6, 2, bias=False).double()
    f = network(X).detach()
    # the mean over outputs of a linear layer's kernel is that of each output
    K = X @ X.T
    Z, expected = closed_loop_targets(K, f, F, learner, damping, first_step)
    wanted = literal(K.numpy(), f.numpy(), F.numpy(), learner, damping, first_step)
    assert_same(Z, wanted[0])
    assert_same(expected, wanted[1])
    pass_over(network, X, Z, learner, step=first_step)
    assert_same(network(X).detach(), wanted[1])


class Following:
    """The damping of Levenberg and Marquardt, from the outputs that are seen: f, expected, now."""

    def __init__(self, least):
        self.least = self.damping = least
        self.last = None

    def targets(self, network, X, K, F, learner, first_step=0):
        f = seen(network, X)
        if self.last is not None and (seen(network, self.last[0]) != self.last[1]).any():
            samples, before, expected = self.last
            moved = np.linalg.norm(expected - before)
            off = np.linalg.norm(seen(network, samples) - expected) / moved
            if off > 0.5:
                self.damping = min(2 * self.damping, 64 * self.least)
            if off < 0.25:
                self.damping = max(self.damping / 2, self.least)
        Z, expected = literal(K.numpy(), f, F.numpy(), learner, self.damping, first_step)
        self.last = X, f, expected
        return Z


def seen(network, X):
    return network(X).detach().numpy()


def nudge(network):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.01)


def blocks(X, Y, size=7, number=3):
    return list(zip(X.split(size), Y.split(size), strict=True))[:number]


@pytest.mark.parametrize(
    ("batch", "replay", "trained"), [(1, 0, True), (2, 4, True), (5, 0, True), (2, 0, False)]
)
def test_block_by_block_with_stored_samples(batch, replay, trained):
    network, (X, Y) = mlp(1), problem()
    rates = [0.05 + 0.01 * step for step in range(40)]  # the schedule goes on from block to block
    learner = rt.SGD(rates, batch_size=batch, reduction="mean")
    options = OPTIONS | {"block_size": 10, "damping": 2.0, "replay": replay, "seed": 3}
    corrector = rt.ClosedLoopCorrector(network, learner, **options)
    leader = rt.TangentLearner(network, 0.7, 30, seed=3)  # of the network at construction
    following, dampings, stored, step = Following(2.0), [], [], 0
    for number, (x, y) in enumerate(blocks(X, Y, number=4)):
        before = [p.clone() for p in network.parameters()]
        block, Z = corrector.next_block(x, y)
        assert all(torch.equal(p, q) for p, q in zip(network.parameters(), before, strict=True))
        assert torch.equal(block[:7], x)
        rows = [tuple(row.tolist()) for row in block[7:]]
        assert len(set(rows)) == len(rows) == (replay if number else 0)
        assert set(rows) <= {tuple(row.tolist()) for row in X[: 7 * number]}
        stored += rows
        F, K = leader.learn(x, y).predict(block), gram(network, block, block)
        assert_same(Z, following.targets(network, block, K, F, learner, step))
        step += learner.steps(len(block))
        dampings.append(following.damping)
        if trained:
            nudge(network)
    # a nudge is not where the targets lead to; a network that stays is not compared
    assert dampings == ([2.0, 4.0, 8.0, 16.0] if trained else [2.0] * 4)
    assert len(set(stored)) > replay or not replay  # not the same ones for ever
    if replay:
        with pytest.raises(rt.errors.InvalidInputError, match=r"call X, Z = next_block\(X, Y\)"):
            corrector.correct(X[28:35], Y[28:35])


def test_the_callers_library_shape_and_type():
    X, Y = problem(7)
    network = mlp(1, classes=1).float()
    single = rt.ClosedLoopCorrector(network, LEARNER, **OPTIONS)
    block, Z = single.next_block(X.float().numpy(), Y[:, 0].float().numpy())
    assert (type(Z), Z.shape, Z.dtype) == (np.ndarray, (7,), np.float32)
    np.testing.assert_array_equal(block, X.float())


class Followed:
    """A linear network that goes a chosen share of the way that the targets lead to."""

    def __init__(self, damping):
        torch.manual_seed(0)
        self.network = nn.Linear(6, 2, bias=False).double()
        options = {"gamma": 0.7, "block_size": 4, "features": 30, "damping": damping, "replay": 0}
        self.corrector = rt.ClosedLoopCorrector(self.network, LEARNER, **options)
        self.random = np.random.default_rng(1)

    def block(self, off):
        """The damping of a block, after which the outputs are off by this share of the way."""
        X, Y = (torch.tensor(self.random.normal(size=(4, k))) for k in (6, 2))
        self.corrector.correct(X, Y)
        values, tensors = self.corrector.to_state()
        f, expected = tensors["watch.before"], tensors["watch.predicted"]
        wanted = expected - off * (expected - f)
        with torch.no_grad():  # of all weights with these outputs, the nearest
            moved = torch.linalg.lstsq(X, wanted - self.network(X), driver="gelsd").solution
            self.network.weight += moved.T
        return values["state"]["damping"]


@pytest.mark.parametrize(
    ("off", "factor"), [(0.02, 0.5), (0.24, 0.5), (0.26, 1), (0.49, 1), (0.51, 2), (7.0, 2)]
)
def test_the_damping_doubles_and_halves_at_the_thresholds(off, factor):
    followed = Followed(damping=0.5)
    assert [followed.block(off=3.0) for _ in range(2)] == [0.5, 1.0]
    assert followed.block(off) == 2.0
    assert followed.block(0.4) == 2.0 * factor
    assert followed.block(0.4) == 2.0 * factor  # neither far nor near


def test_the_damping_is_bounded_and_saved(tmp_path):
    followed, path = Followed(damping=0.5), tmp_path / "state"
    up = [followed.block(off=3.0) for _ in range(9)]
    assert up == [0.5 * 2**power for power in range(7)] + [32.0] * 2
    assert followed.block(off=0.1) == 32.0
    followed.corrector.save(path)
    followed.corrector = rt.ClosedLoopCorrector.load(path, followed.network)
    assert followed.corrector.options.damping == 0.5  # what was asked for
    down = [followed.block(off=0.1) for _ in range(7)]
    assert down == [0.5 * 2**power for power in range(5, -1, -1)] + [0.5]
    values, tensors = read_state(path)
    for damping in (0.49, 32.1, float("nan")):
        values["state"]["damping"] = damping
        write_state(path, values, tensors)
        with pytest.raises(rt.errors.InvalidInputError, match=f"damping is {damping}"):
            rt.ClosedLoopCorrector.load(path, followed.network)


def test_the_reservoir_is_fair():
    """Each of 40 samples is kept by 10 of 40, over many seeds."""
    kept = np.zeros(40)
    samples = torch.arange(40.0)[:, None]
    for seed in range(300):
        reservoir = StoredSamples(10, seed)
        for start in range(0, 40, 8):
            reservoir.offer(samples[start : start + 8])
        assert len(reservoir) == 10
        kept[reservoir.samples[:, 0].int().numpy()] += 1
    # binomial with p = 1/4: its standard deviation is 7.5
    assert np.abs(kept - 75).max() < 36


def test_loaded_it_goes_on_bit_by_bit(tmp_path):
    network, (X, Y) = mlp(1), problem()
    path = tmp_path / "state"
    options = OPTIONS | {"gamma": "auto", "replay": 5, "damping": 1.5, "seed": 2}
    one = rt.ClosedLoopCorrector(network, rt.SGD([0.05] * 99), **options)
    for x, y in blocks(X, Y):
        state = saved(one, path)
        other = rt.ClosedLoopCorrector.load(path, network)
        assert saved(other, path) == state
        for mine, others in zip(one.next_block(x, y), other.next_block(x, y), strict=True):
            assert torch.equal(mine, others)
        nudge(network)  # the learner that leads is of the network as it was
    values, tensors = read_state(path)
    values["options"]["features"] = 31
    write_state(path, values, tensors)
    with pytest.raises(rt.errors.InvalidInputError, match="differ from the corrector's"):
        rt.ClosedLoopCorrector.load(path, network)


def test_a_call_that_fails_changes_nothing(tmp_path):
    (X, Y), path = problem(), tmp_path / "state"
    corrector = rt.ClosedLoopCorrector(mlp(1), LEARNER, **(OPTIONS | {"replay": 5}))
    corrector.next_block(X[:7], Y[:7])
    before = saved(corrector, path)
    corrector.kernel = lambda X: torch.full((len(X), len(X)), torch.inf)
    for y, message in ((Y[7:14] * torch.nan, "Y holds nan"), (Y[7:14], "kernel is not finite")):
        with pytest.raises(rt.RetargetError, match=message):
            corrector.next_block(X[7:14], y)
        assert saved(corrector, path) == before


def test_what_the_closed_loop_refuses():
    X, Y = problem()
    corrector = rt.ClosedLoopCorrector(mlp(1), LEARNER, **OPTIONS)
    corrector.correct(X[:7], Y[:7])
    for call, words in (
        (lambda: corrector.correct(X[:9], Y[:9]), "block_size is 8"),
        (lambda: corrector.correct(X[:7, :4], Y[:7]), "first task"),
    ):
        with pytest.raises(rt.RetargetError, match=words):
            call()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learner": rt.SGD(0.1, momentum=0.5)}, "closed loop needs plain SGD"),
        ({"learner": rt.SGD(0.1, weight_decay=0.5)}, "closed loop needs plain SGD"),
        ({"gamma": -1.0}, "gamma is -1.0"),
        ({"block_size": 3}, "block_size is 3; .* batch_size, 2"),
        ({"damping": 0.0}, "damping is 0.0; expected a positive"),
        ({"features": 0}, "features is 0; expected 1 or more"),
        ({"features": None}, "features is None; expected a whole number"),
        ({"replay": -3}, "replay is -3; expected 1 or more"),
        ({"replay": None}, "replay is None; expected a whole number"),
    ],
)
def test_options_without_a_meaning(options, message):
    with pytest.raises(rt.RetargetError, match=message):
        rt.ClosedLoopCorrector(mlp(1), **({"learner": LEARNER} | options))


@pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")
@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["open loop", "closed loop"])
def test_only_the_form_of_first_samples_is_kept(options):
    X, Y = problem(8)
    kind = rt.ClosedLoopCorrector if options else rt.NetworkCorrector
    corrector = kind(mlp(1), LEARNER, **({"gamma": 0.7, "block_size": 8} | options))
    corrector.correct(X, Y)
    tensors = corrector.to_state()[1]
    assert tensors["first.samples"].shape == (0, 5)
    assert tensors["first.targets"].shape == (0, 3)
