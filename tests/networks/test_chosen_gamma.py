"""`NetworkCorrector(gamma="auto")`: what it tries and chooses is what a plain loop would choose."""

import copy
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import retarget as rt
from retarget import lab
from retarget.errors import InvalidInputError
from retarget.networks import trials
from retarget.networks.trials import CANDIDATES, Trial, held_out_rows
from support.corrected_training import pass_over, row_losses
from support.lab_problems import mlp, stream
from support.problems import assert_same
from support.streaming_objects import CE, saved

pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LinearizationWarning")
rated = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")  # of the oracle
BLOCK = 6
MOMENTUM = rt.SGD(
    0.03, batch_size=3, momentum=0.6, nesterov=True, weight_decay=0.01, reduction="mean"
)
SCHEDULE = rt.SGD(list(np.linspace(0.05, 0.01, 42)), batch_size=3, reduction="sum")


def clouds(task, n=42, classes=3, dtype=torch.float64):
    """Task after task, another class: what plain training forgets."""
    random = np.random.default_rng(task)
    y = torch.from_numpy(np.where(random.random(n) < 0.9, task, random.integers(classes, size=n)))
    centers = torch.from_numpy(np.random.default_rng(9).normal(size=(classes, 5)))
    X = 2 * centers[y] + torch.from_numpy(random.normal(size=(n, 5)))
    return X.to(dtype), functional.one_hot(y, classes).to(dtype)


def by_hand(network, tasks, learner, loss, seed):
    """The errors of all candidates for the last task, and which is chosen."""
    sizes = [len(Y) for _, Y in tasks]
    X, Y = (torch.cat(parts) for parts in zip(*tasks, strict=True))
    held = set(held_out_rows(sizes, seed).tolist())
    past = sum(sizes[:-1])
    before = [row for row in range(past) if row not in held]
    while (len(before) - past) % BLOCK:  # the task begins where a block begins, as in the stream
        del before[0]
    now = [row for row in range(past, len(Y)) if row not in held]
    first_step, tested = sum(learner.steps(size) for size in sizes[:-1]), sorted(held)
    K = rt.EmpiricalNTK(network)(X)[before + now][:, before + now]
    lr = learner.lr
    if not isinstance(lr, float):
        skipped = first_step - len(before) // learner.batch_size
        lr = lr[skipped : skipped + learner.steps(len(before) + len(now))]
    shifted = rt.SGD(**learner.to_dict() | {"lr": lr})
    losses = []
    for strength in (None, *CANDIDATES):
        Z = Y[now]
        if strength is not None:
            gamma, ridge = (float(s * K.diagonal().mean()) for s in strength)
            Z = rt.iterative_targets(
                K, Y[before + now], shifted, gamma, BLOCK, ridge, loss=loss
            )[len(before) :]  # fmt: skip
        trained = copy.deepcopy(network)
        pass_over(trained, X[now], Z, learner, loss, first_step)
        losses.append(row_losses(trained(X[tested]), Y[tested], loss).detach().numpy())
    best = int(np.argmin(np.mean(losses, 1)))
    gain = losses[0] - losses[best]
    clear = gain.mean() > 2 * gain.std(ddof=1) / np.sqrt(len(gain))
    return np.mean(losses, 1), best if clear else 0


@rated
@pytest.mark.parametrize("loss", ["squared", CE])
@pytest.mark.parametrize("whole", [MOMENTUM, SCHEDULE], ids=["momentum", "schedule"])
def test_the_choice_is_that_of_a_plain_loop(loss, whole):
    learner, network, tasks, choices = whole, mlp(1), [clouds(task) for task in range(3)], []
    corrector = rt.NetworkCorrector(network, learner, "auto", BLOCK, loss=loss, seed=5)
    for t, (X, Y) in enumerate(tasks):
        if whole is SCHEDULE:  # the rates so far
            corrector.learner = learner = replace(whole, lr=whole.lr[: 14 * (t + 1)])
        errors, best = by_hand(network, tasks[: t + 1], learner, loss, seed=5)
        Z = corrector.correct(X, Y)
        assert_same([trial.error for trial in corrector.trials], errors)
        assert [trial.chosen for trial in corrector.trials].index(True) == best
        assert sum(trial.chosen for trial in corrector.trials) == 1
        choices.append(best)
        chosen = corrector.trials[best]
        if best:  # the targets are for all rows
            everything = (torch.cat(parts) for parts in zip(*tasks[: t + 1], strict=True))
            X_all, Y_all = everything
            K = rt.EmpiricalNTK(network)(X_all)
            wanted = rt.iterative_targets(
                K, Y_all, learner, chosen.gamma, BLOCK, chosen.ridge, loss=loss
            )
            assert_same(Z, wanted[-len(Y) :])
        else:
            assert torch.equal(Z, Y)
        pass_over(network, X, Z, learner, loss, sum(learner.steps(42) for _ in range(t)))
    assert any(choices)  # otherwise the test would show little


def test_no_correction_is_chosen_where_corrections_harm(tmp_path):
    """The network is right already: its true targets are its own outputs."""
    network, learner = mlp(2), rt.SGD(0.05, batch_size=3, reduction="sum")
    for task in range(2):
        X = clouds(task)[0]
        Y = network(X).detach()
        corrector = rt.NetworkCorrector(network, learner, "auto", BLOCK)
        assert torch.equal(corrector.correct(X, Y), Y)
        first, *others = corrector.trials
        assert first[:2] == (None, None)
        assert first.chosen
        assert first.error < 1e-20
        assert all(trial.error > 1e-9 and not trial.chosen for trial in others)
    corrector.save(tmp_path / "state")
    again = rt.NetworkCorrector.load(tmp_path / "state", network)
    assert torch.equal(again.recorrect(), Y)
    assert torch.equal(corrector.recorrect(), Y)


def test_nothing_is_predicted_without_a_correction():
    network, learner = mlp(1), rt.SGD(0.05, batch_size=3, reduction="sum")
    corrector = rt.NetworkCorrector(network, learner, "auto", BLOCK)
    for X, Y in (clouds(0), clouds(1)):
        pass_over(network, X, corrector.correct(X, Y), learner)
    assert not corrector.trials[0].chosen
    X = clouds(2)[0]
    corrector.correct(X, network(X).detach())
    assert corrector.trials[0].chosen
    compared = corrector.linearization_error  # of the second task
    assert compared is not None
    with torch.no_grad():
        network[2].weight.add_(0.1)
    corrector.correct(*clouds(2))
    assert corrector.linearization_error == compared


def test_a_small_advantage_is_not_enough():
    """Held-out rows of noise: whatever is best on them is best by accident."""
    random = torch.Generator().manual_seed(3)
    X = torch.randn(60, 5, generator=random, dtype=torch.float64)
    Y = 0.01 * torch.randn(60, 3, generator=random, dtype=torch.float64)
    network = mlp(1)
    with torch.no_grad():
        network[2].weight.zero_(), network[2].bias.zero_()
    corrector = rt.NetworkCorrector(
        network, rt.SGD(1e-3, batch_size=3, reduction="sum"), "auto", BLOCK
    )
    assert torch.equal(corrector.correct(X, Y), Y)
    errors = [trial.error for trial in corrector.trials]
    assert corrector.trials[0].chosen
    assert min(errors) < errors[0]


def test_candidates_that_fail_are_not_chosen():
    """A rate at which everything diverges, and a task without a row to spare."""
    network, (X, Y) = mlp(1), clouds(0)
    corrector = rt.NetworkCorrector(
        network, rt.SGD(1e100, batch_size=3, reduction="sum"), "auto", BLOCK
    )
    assert torch.equal(corrector.correct(X, Y), Y)
    assert [trial.error for trial in corrector.trials[1:]] == [math.inf] * len(CANDIDATES)
    single = rt.NetworkCorrector(network, rt.SGD(0.01), "auto", 1)
    assert torch.equal(single.correct(X[:1], Y[:1]), Y[:1])
    assert single.trials[0] == Trial(None, None, math.inf, True)


@pytest.mark.parametrize("sizes", [[42, 9, 1, 100], [3, 2]])
def test_rows_are_spread_over_each_task(sizes):
    held, start = held_out_rows(sizes, seed=4), 0
    for size in sizes:
        mine = held[(held >= start) & (held < start + size)] - start
        assert len(mine) == max(size // 10, min(4, size // 2))
        assert len(set(mine)) == len(mine)
        for i, row in enumerate(mine):
            assert int(i * size / len(mine)) <= row < int((i + 1) * size / len(mine))
        start += size
    assert np.array_equal(held, held_out_rows(sizes, seed=4))
    earlier = held_out_rows(sizes[:-1], seed=4)  # those of earlier tasks stay
    assert np.array_equal(held[: len(earlier)], earlier)
    assert not np.array_equal(held_out_rows([100], 1), held_out_rows([100], 2))


class Masked(nn.Module):
    """Takes a dict; has a buffer, and noise while training."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        self.noise, self.frozen = nn.Dropout(0.5), nn.Linear(5, 3).requires_grad_(False)

    def forward(self, x, mask):
        return self.noise(self.layers(x * mask)) + self.frozen(x)


@pytest.mark.parametrize("optimizer", [None, torch.optim.Adam])
def test_network_optimizer_and_random_state_stay(optimizer):
    network = Masked().eval()
    network.noise.train()
    network.noise.p = 0.0
    X, Y = clouds(0, dtype=torch.float32)
    X = {"x": X, "mask": torch.ones_like(X)}
    given = {}
    if optimizer is not None:
        given["preconditioner"] = optimizer(network.layers.parameters(), 0.01)
        network(**X).square().sum().backward()
        given["preconditioner"].step()
        given["preconditioner"].zero_grad()
    before = copy.deepcopy([network.state_dict(), [o.state_dict() for o in given.values()]])
    modes, state = [part.training for part in network.modules()], torch.get_rng_state()
    corrector = rt.NetworkCorrector(
        network, rt.SGD(0.01, batch_size=3, reduction="sum"), "auto", BLOCK, **given
    )
    Z = corrector.correct(X, Y)
    assert (Z.dtype, Z.shape) == (torch.float32, Y.shape)
    assert all(math.isfinite(trial.error) for trial in corrector.trials)
    torch.testing.assert_close(
        [network.state_dict(), [o.state_dict() for o in given.values()]], before, rtol=0, atol=0
    )
    assert [part.training for part in network.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in network.parameters())
    again = rt.NetworkCorrector(
        network, rt.SGD(0.01, batch_size=3, reduction="sum"), "auto", BLOCK, **given
    )
    assert torch.equal(again.correct(X, Y), Z)
    assert again.trials == corrector.trials


class Restless(nn.Module):
    """Each training step draws a number and changes a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3, dtype=torch.float64)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        if torch.is_grad_enabled():
            torch.rand(1)
        self.calls += 1
        return self.layer(x)


def test_copies_have_own_random_numbers():
    network, state = Restless(), torch.get_rng_state()
    learner = rt.SGD(0.01, batch_size=3, reduction="sum")
    rt.NetworkCorrector(network, learner, "auto", BLOCK, kernel=lambda _: rt.Linear()).correct(
        *clouds(0)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert network.calls == 0


def test_copies_use_the_loops_optimizer():
    """Adam with the state that it has: no correction is tried as the loop would train."""
    network, (X, Y) = mlp(1), clouds(0)
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    learner = rt.SGD(0.02, batch_size=3, reduction="sum")
    pass_over(network, X, Y, learner, optimizer=optimizer)
    corrector = rt.NetworkCorrector(network, learner, "auto", BLOCK, preconditioner=optimizer)
    corrector.correct(X, Y)
    held = held_out_rows([42], 0)
    rows = np.setdiff1d(np.arange(42), held)
    pass_over(network, X[rows], Y[rows], learner, optimizer=optimizer)
    error = row_losses(network(X[held]), Y[held], "squared").mean().item()
    assert_same(corrector.trials[0].error, error)
    scale = {name: 1.0 for name, _ in network.named_parameters()}
    with pytest.raises(InvalidInputError, match="a dict with gamma='auto'"):
        rt.NetworkCorrector(network, learner, "auto", BLOCK, preconditioner=scale)


def test_chosen_parameters_and_a_single_output():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    X, Y = clouds(1)
    learner = rt.SGD(0.05, batch_size=3, reduction="mean")
    corrector = rt.NetworkCorrector(network, learner, "auto", BLOCK, params="2", loss=CE)
    corrector.correct(X, Y[:, 1])
    held = held_out_rows([42], 0)
    rows = np.setdiff1d(np.arange(42), held)
    network[0].requires_grad_(False)
    pass_over(network, X[rows], Y[rows, 1:2], learner, CE)
    error = row_losses(network(X[held]), Y[held, 1:2], CE).mean().item()
    assert_same(corrector.trials[0].error, error)


def test_saved_and_resumed(tmp_path):
    network, learner = mlp(1), rt.SGD(0.05, batch_size=3, reduction="sum")
    make = partial(rt.NetworkCorrector, network, learner, "auto", BLOCK, refresh="epoch", seed=3)
    whole, tasks = make(), [clouds(task) for task in range(3)]
    for X, Y in tasks[:2]:
        Z = whole.correct(X, Y)
        pass_over(network, X, Z, learner)
    assert any(trial.chosen for trial in whole.trials[1:])
    saved(whole, tmp_path / "corrector")
    loaded = rt.NetworkCorrector.load(tmp_path / "corrector", network)
    resumed = make()
    resumed.resume(tasks[:2], Z, whole.trials)
    again = whole.recorrect()  # with the choice of the task
    for other in (loaded, resumed):
        assert other.trials == whole.trials
        assert torch.equal(other.recorrect(), again)
    targets = whole.correct(*tasks[2])
    for other in (loaded, resumed):
        assert torch.equal(other.correct(*tasks[2]), targets)
        assert other.trials == whole.trials
    unchosen = [trial._replace(chosen=False) for trial in whole.trials]
    with pytest.raises(InvalidInputError, match="5 trials of which 0 are chosen"):
        make().resume(tasks[:2], Z, unchosen)
    fixed = rt.NetworkCorrector(network, learner, 1.0, BLOCK)
    given = Z.clone()
    fixed.resume(tasks[:2], given)
    given.zero_()  # a caller may use its tensor for something else
    assert torch.equal(fixed.recorrect(), Z)
    with pytest.raises(InvalidInputError, match="5 trials of which 1 are chosen"):
        fixed.resume(tasks[:2], Z, whole.trials)
    wrong = [tuple(trial) for trial in whole.trials]
    wrong[1] = (-1.0, *wrong[1][1:])
    with pytest.raises(InvalidInputError, match="the strength of a trial is -1"):
        make().resume(tasks[:2], Z, wrong)


def test_a_task_without_trials_is_tried_later(tmp_path):
    """A new Adam has no second moments, so adapters train on true targets until it has some."""
    network, learner, (X, Y) = mlp(1), rt.SGD(0.02, batch_size=3, reduction="sum"), clouds(0)
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    options = {"preconditioner": optimizer, "refresh": "epoch"}
    resumed, plain = (
        rt.NetworkCorrector(network, learner, "auto", BLOCK, **options) for _ in range(2)
    )
    resumed.resume([(X, Y)], Y)
    pass_over(network, X, Y, learner, optimizer=optimizer)
    resumed.save(tmp_path / "corrector")
    kernel = partial(rt.EmpiricalNTK, preconditioner=optimizer)
    loaded = rt.NetworkCorrector.load(tmp_path / "corrector", network, kernel)
    Z = plain.correct(X, Y)
    for corrector in (resumed, loaded):
        assert corrector.trials == ()
        assert_same(corrector.recorrect(), Z)
        assert corrector.trials == plain.trials


def test_in_the_lab_and_its_checkpoints(tmp_path):
    class Unlucky(lab.Method):
        def penalty(self, run, batch):
            if (run.task, run.epoch) == (1, 1) and fails:
                raise InterruptedError

    def trained(checkpoint):
        network, learner = mlp(1), rt.SGD(0.05, batch_size=2, reduction="sum")
        methods = [lab.Corrected("auto", 4, refresh="epoch"), Unlucky()]
        lab.train(network, stream(), learner, methods, epochs=3, checkpoint=checkpoint)
        return network[0].weight

    fails = False
    whole = trained(None)
    fails = True
    with pytest.raises(InterruptedError):
        trained(tmp_path / "run")
    fails = False
    assert torch.equal(trained(tmp_path / "run"), whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "distilled"}, "gamma is 'auto' with kind='distilled'; .* gamma as a number"),
        ({"ridge": 0.5}, "ridge is 0.5 with gamma='auto', .* leave ridge out"),
    ],
)
def test_options_that_do_not_go_with_it(options, message):
    with pytest.raises(InvalidInputError, match=message):
        rt.NetworkCorrector(mlp(1), rt.SGD(0.1), "auto", 4, **options)


@rated
def test_fixed_strengths_try_nothing():
    network, (X, Y) = mlp(1), clouds(0)
    corrector = rt.NetworkCorrector(network, rt.SGD(0.01, 3, reduction="sum"), 1.0, BLOCK)
    corrector.correct(X, Y)
    assert corrector.trials == ()


def test_it_says_what_it_tried(caplog):
    """Once a task, with the optimizer that is to blame, and not where a correction was chosen."""
    caplog.set_level("INFO", "retarget")
    network, learner = mlp(2), rt.SGD(0.05, batch_size=3, reduction="sum")
    X = clouds(0)[0]
    Y = network(X).detach()
    corrector = rt.NetworkCorrector(network, learner, refresh="epoch")
    corrector.correct(X, Y)
    corrector.recorrect()
    assert [(record.name, record.levelname) for record in caplog.records] == [("retarget", "INFO")]
    words = caplog.text
    assert "no correction for this task of 42 samples" in words
    for trial in corrector.trials[1:]:
        assert f"{trial.error:.3g} with gamma {trial.gamma:.3g}" in words
    assert "lower by 2 standard errors; rt.TangentLearner learns" in words
    caplog.clear()
    optimizer = torch.optim.AdamW(network.parameters(), 0.01, weight_decay=0.0)
    pass_over(network, X, Y, learner, optimizer=optimizer)
    adaptive = rt.NetworkCorrector(
        network, rt.SGD(0.01, batch_size=3, reduction="sum"), preconditioner=optimizer
    )
    adaptive.correct(X, network(X).detach())
    assert "AdamW divides every step by the size of recent gradients" in caplog.text
    assert "use SGD, or rt.TangentLearner" in caplog.text
    caplog.clear()
    chosen = rt.NetworkCorrector(mlp(1), learner)
    for task in range(3):
        chosen.correct(*clouds(task))
        assert len(caplog.records) == chosen.trials[0].chosen
        caplog.clear()


def test_a_size_of_block_near_twenty():
    for batch, block in ((1, 20), (3, 21), (8, 16), (16, 16), (20, 20), (64, 64)):
        learner = rt.SGD(0.1, batch_size=batch, reduction="mean")
        assert rt.NetworkCorrector(mlp(1), learner).block_size == block
        assert rt.ClosedLoopCorrector(mlp(1), learner).block_size == block


def test_corrections_that_blow_up_are_not_chosen(monkeypatch):
    """Logits without bound have no loss on held-out rows that are all of one class."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    X = torch.randn(42, 5, dtype=torch.float64) + 1
    Y = functional.one_hot(torch.zeros(42, dtype=torch.int64), 3).double()
    learner = rt.SGD(0.05, batch_size=3, reduction="mean")
    corrector = rt.NetworkCorrector(network, learner, "auto", BLOCK, loss=CE)
    corrector.correct(X, Y)
    assert corrector.trials[1].chosen  # its outputs are 30 times as large as without a correction
    monkeypatch.setattr(trials, "BLOWN_UP", 20.0)
    careful = rt.NetworkCorrector(network, learner, "auto", BLOCK, loss=CE)
    careful.correct(X, Y)
    assert careful.trials[1].error == math.inf
    assert not careful.trials[1].chosen
    errors = [[trial.error for trial in each.trials] for each in (corrector, careful)]
    assert errors[0][0] == errors[1][0]
    assert errors[0][2:] == errors[1][2:]
