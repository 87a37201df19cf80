"""The one loop: its hooks, its evaluations, what it refuses."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget import lab
from retarget.errors import InvalidInputError
from retarget.lab.steps import Ensemble
from support.lab_problems import LEARNERS, copies, mlp, stream, weights
from support.oracles import lab as oracle
from support.problems import assert_same


class Diary(lab.Method):
    """Somebody's own method: notes every call, and looks at values as a recorded step could not."""

    def __init__(self):
        self.calls, self.outputs = [], []

    def on_start(self, run):
        self.calls.append(f"start, {run.seen} seen")

    def on_task_start(self, run):
        self.calls.append(f"task {run.task} from epoch {run.epoch}")

    def on_epoch_start(self, run):
        self.calls.append(f"epoch {run.epoch} of {len(run.plan)}")

    def targets(self, run, batch):
        real = batch.positions[0][batch.weights[0].bool()].tolist()
        self.calls.append(f"targets {int(batch.step)} {real}")
        assert torch.equal(batch.targets, run.true_targets(batch.positions))
        with torch.no_grad():
            assert torch.equal(batch.outputs, run.ensemble(batch.inputs))
        assert not batch.outputs.requires_grad
        self.expected = 2 * batch.targets
        return self.expected

    def penalty(self, run, batch):
        self.calls.append("penalty")
        assert batch.targets is self.expected
        self.outputs.append(batch.outputs)
        return sum(p.flatten(1).sum(1) for p in run.ensemble.parameters.values())

    def on_batch_end(self, run, batch):
        self.calls.append("batch end")
        assert torch.equal(batch.outputs, self.outputs[-1])
        with torch.no_grad():
            assert not torch.equal(batch.outputs, run.ensemble(batch.inputs))

    def on_task_end(self, run):
        self.calls.append(f"end {run.task}, {run.seen} seen")


class Doubled(oracle.Plain):
    """What the diary makes of targets and loss."""

    def targets(self, rows, targets):
        return 2 * targets

    def penalty(self):
        return sum(w.sum() for w in self.loop.weights)


def test_the_hooks_of_an_own_method():
    diary, network, expected = Diary(), mlp(1), mlp(1)
    given, learner = stream(0, sizes=(5, 2)), LEARNERS["momentum"]
    lab.train(network, given, learner, diary, epochs=2)
    oracle.train(expected, given, learner, [Doubled()], epochs=2)
    assert_same(weights(network), weights(expected))

    def step(number, positions):
        return [f"targets {number} {positions}", "penalty", "batch end"]

    first, second = [*step(0, [0, 1, 2, 3]), *step(1, [4])], step(0, [5, 6])
    assert diary.calls == [
        "start, 0 seen",
        "task 0 from epoch 0",
        *("epoch 0 of 2", *first, "epoch 1 of 2", *first, "end 0, 10 seen"),
        "task 1 from epoch 0",
        *("epoch 0 of 1", *second, "epoch 1 of 1", *second, "end 1, 14 seen"),
    ]
    assert diary.name == "Diary"
    assert diary.likely_cause(None, 0) is None


def test_targets_pass_through_the_methods_in_turn():
    class Squared(lab.Method):
        def targets(self, run, batch):
            return batch.targets**2

    smooth, found = lab.LabelSmoothing(0.5), []
    for methods in ([smooth], [Squared(), smooth], [smooth, Squared()]):
        lab.train(network := mlp(1), stream(3), LEARNERS["mean"], methods)
        found.append(weights(network))
    assert_same(found[1], found[0])
    assert (found[2] - found[0]).abs().max() > 1e-3


# When it is evaluated, and what then is written


@pytest.mark.parametrize(
    ("sizes", "samples", "task", "steps"),
    [
        ((12, 8), [0, 16, 24, 32, 40], [0, 0, 1, 1, 2], [4, 6, 8]),
        # a multiple that a short mini-batch steps over is evaluated at once
        ((10, 9), [0, 18, 20, 33, 38], [0, 0, 1, 1, 2], [5, 6, 10]),
    ],
)
def test_evaluations_before_within_and_after_tasks(sizes, samples, task, steps, monkeypatch):
    """In portions; the loss is the mean over the steps since the last one."""
    monkeypatch.setattr("retarget.lab.training.EVALUATED_AT_A_TIME", {"cpu": 7})
    losses = []

    class Watch(lab.Method):
        def penalty(self, run, batch):
            losses.append(run.loss(batch.outputs, batch.targets, batch.weights).item())

    given, network = stream(0, sizes=sizes, test=20), mlp(1)
    all_at_start, at_start = oracle.accuracies(network, given)
    history = lab.train(network, given, LEARNERS["mean"], Watch(), epochs=2, evaluate_every=16)
    assert history.samples.tolist() == samples
    assert history.task.tolist() == task
    assert history.accuracy[0, 0] == pytest.approx(all_at_start)
    assert_same(history.task_accuracy[0, 0], at_start, 1e-12)
    assert_same(history.task_accuracy[-1, 0], oracle.accuracies(network, given)[1], 1e-12)
    means = [part.mean() for part in np.split(np.array(losses), steps)]
    assert_same(history.loss[1:, 0], means, 1e-12)
    only_ends = lab.train(other := mlp(1), given, LEARNERS["mean"], epochs=2)
    assert only_ends.samples.tolist() == [samples[i] for i in (0, 2, 4)]
    assert torch.equal(weights(network), weights(other))  # looked at, no more
    assert_same(only_ends.accuracy, history.accuracy[[0, 2, 4]], 1e-12)


def test_seeds_are_the_members_numbers_unless_given():
    found = []
    for seeds in (None, [0, 1], [7, 7]):
        networks = [mlp(1), mlp(1)]
        lab.train(networks, stream(0), LEARNERS["mean"], lab.ER(4), seeds=seeds)
        found.append(torch.stack([weights(network) for network in networks]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(*found[0])
    assert_same(*found[2], 1e-13)


# What it refuses


class Two(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs is 0; expected 1 or more"),
        ({"evaluate_every": 6}, "evaluate_every is 6"),
        ({"evaluate_every": 0}, "evaluate_every is 0"),
        ({"seeds": [1]}, "there are 1 seeds for 2 modules"),
        ({"streams": [stream(0)]}, "there are 1 streams for 2 modules"),
        ({"learners": [rt.SGD(0.1)] * 3}, "there are 3 learners for 2 modules"),
        ({"learners": rt.SGD([0.1, 0.2])}, "a learner has a schedule of rates"),
        (
            {"learners": [rt.SGD(0.1, 4, reduction="sum"), rt.SGD(0.1, 2, reduction="sum")]},
            r"differ in batch_size: \[2, 4\]; exp",
        ),
        ({"learners": [rt.SGD(0.1, 4, reduction="sum"), LEARNERS["mean"]]}, "differ in reduction"),
        (
            {
                "learners": [
                    rt.SGD(0.1, 4, 0.5, reduction="sum"),
                    rt.SGD(0.1, 4, 0.5, True, reduction="sum"),
                ]
            },
            "differ in nesterov",
        ),
        ({"streams": [stream(0), stream(0, sizes=(11, 6))]}, r"stream 1 has tasks of \(11, 6\)"),
        ({"streams": [stream(0), stream(0, test=8)]}, "stream 1 has test samples: 27; expected 24"),
        ({"streams": [stream(0), stream(0, shape=(4,))]}, r"of shape \(4,\); expected \(5,\)"),
        ({"modules": mlp(1).float()}, "stream 0 is torch.float64, but the network is"),
        ({"modules": mlp(1, classes=4)}, r"for 2 samples is \(2, 4\); expected \(2, 3\)"),
        ({"modules": Two(5, 3).double()}, "for 2 samples is tuple; expected"),
    ],
)
def test_runs_without_a_meaning(changes, message):
    arguments = {"modules": [mlp(1), mlp(2)], "streams": stream(0), "learners": LEARNERS["mean"]}
    with pytest.raises(InvalidInputError, match=message):
        lab.train(**arguments | changes)


# Several networks as one: nothing lost, nothing mixed


def test_frozen_parameters_stay_and_flags_too():
    network = mlp(1)
    network[0].bias.requires_grad_(False)
    before = copy.deepcopy(network)
    assert list(Ensemble([network, before]).parameters) == ["0.weight", "2.weight", "2.bias"]
    lab.train(network, stream(1), rt.SGD(0.1, 2, weight_decay=0.5, reduction="sum"))
    assert torch.equal(network[0].bias, before[0].bias)
    assert not torch.equal(network[0].weight, before[0].weight)
    assert [p.requires_grad for p in network.parameters()] == [True, False, True, True]
    assert all(p.grad is None and p.is_leaf for p in network.parameters())


class WithBuffers(nn.Module):
    """Counts its samples in training; a part of it never trains."""

    def __init__(self, seed):
        super().__init__()
        self.net = mlp(seed)
        self.still = nn.Dropout(0.5)
        self.register_buffer("shift", torch.full((3,), float(seed), dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.count += 1
        return self.still(self.net(x)) + self.shift


def test_buffers_are_each_members_own_and_written_back():
    networks = [WithBuffers(seed) for seed in (1, 2)]
    for network in networks:
        network.still.eval()
    plain = copies(networks)
    lab.train(networks, stream(1, sizes=(8, 6)), LEARNERS["mean"], evaluate_every=4)
    for m, (network, alone) in enumerate(zip(networks, plain, strict=True)):
        assert network.count == 4  # steps; evaluations do not count
        assert torch.equal(network.shift, torch.full((3,), m + 1.0, dtype=torch.float64))
        assert network.training
        assert network.net.training
        assert not network.still.training
        lab.train(alone, stream(1, sizes=(8, 6)), LEARNERS["mean"], seeds=[m])
        assert_same(weights(network), weights(alone))


@pytest.mark.parametrize(
    "change",
    [
        lambda n: n.append(nn.Identity()),
        lambda n: n.__setitem__(0, nn.Linear(5, 7, bias=False).double()),
        lambda n: n.float(),
        lambda n: n[0].weight.requires_grad_(False),
        lambda n: n.eval(),
        lambda n: n.register_buffer("more", torch.zeros(1)),
        lambda n: n.__setitem__(1, nn.ReLU()),
    ],
)
def test_networks_of_different_architectures(change):
    other = mlp(2)
    change(other)
    with pytest.raises(InvalidInputError, match="module 2 .* from module 0"):
        Ensemble([mlp(1), mlp(3), other])


def test_networks_that_cannot_be_trained():
    for networks, message in (
        ([], "there are no modules; expected one network"),
        ([nn.Tanh()], "the module has no trainable parameters"),
        ([mlp(1)] * 2, "two members are the same module; .*deepcopy"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            Ensemble(networks)


def mirrored(inputs):
    return inputs.flip(-1)


def test_random_views_in_every_pass():
    """Against a plain loop with the same draws: one for each sample of each pass."""
    problem, learner = stream(), LEARNERS["mean"]
    network, twin = mlp(0), mlp(0)
    lab.train(network, problem, learner, epochs=2, views=[None, mirrored], seeds=[7])
    random = np.random.default_rng(7)
    loop = oracle.Loop(twin, oracle.samples(problem.train), problem.targets(), learner, 0)
    for span in problem.train.spans():
        for _ in range(2):
            shown = random.integers(2, size=span.stop - span.start)
            order = np.arange(span.start, span.stop)
            for batch in loop.batches(order):
                X = loop.X[batch].clone()
                flipped = shown[batch - span.start].astype(bool)
                X[flipped] = X[flipped].flip(-1)
                loop.descend(loop.loss(twin(X), loop.Y[batch]))
    assert (weights(network) - weights(twin)).abs().max() < 1e-10
    with pytest.raises(InvalidInputError, match="Corrected computes the targets"):
        lab.train(mlp(0), problem, learner, lab.Corrected(1.0, 4), views=[None, mirrored])
