"""The one loop: its hooks, its evaluations, what it refuses."""

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget import continual as lab
from retarget.errors import InvalidInputError
from support.lab_problems import LEARNERS, mlp, stream, weights
from support.oracles import continual as oracle
from support.problems import assert_same


class Diary(lab.Method):
    """Somebody's own method: notes every call, and looks at values as a recorded step could not."""

    def __init__(self):
        self.calls, self.outputs = [], []

    def on_start(self, run):
        self.calls.append("start")
        assert run.seen == 0

    def on_task_start(self, run):
        self.calls.append(f"task {run.task}")
        assert run.epoch == 0

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


def test_the_hooks_of_ones_own_method_are_called_in_order():
    diary, network = Diary(), mlp(1)
    lab.train(network, stream(0, sizes=(5, 2)), LEARNERS["mean"], diary, epochs=2)

    def step(number, positions):
        return [f"targets {number} {positions}", "penalty", "batch end"]

    first = [*step(0, [0, 1, 2, 3]), *step(1, [4])]
    second = step(0, [5, 6])
    assert diary.calls == [
        "start",
        *("task 0", "epoch 0 of 2", *first, "epoch 1 of 2", *first, "end 0, 10 seen"),
        *("task 1", "epoch 0 of 1", *second, "epoch 1 of 1", *second, "end 1, 14 seen"),
    ]
    assert diary.name == "Diary"
    assert diary.likely_cause(None, 0) is None


def test_what_ones_own_method_returns_is_trained_on():
    class Doubled(oracle.Plain):
        def targets(self, rows, targets):
            return 2 * targets

        def penalty(self):
            return sum(w.sum() for w in self.loop.weights)

    network, expected = mlp(1), mlp(1)
    lab.train(network, stream(3), LEARNERS["momentum"], Diary())
    oracle.train(expected, stream(3), LEARNERS["momentum"], [Doubled()])
    assert_same(weights(network), weights(expected))


def test_targets_pass_through_the_methods_in_turn():
    def trained(*methods):
        network = mlp(1)
        lab.train(network, stream(3), LEARNERS["mean"], methods)
        return weights(network)

    class Squared(lab.Method):
        def targets(self, run, batch):
            return batch.targets**2

    smooth = lab.LabelSmoothing(0.5)
    one, other = trained(Squared(), smooth), trained(smooth, Squared())
    assert_same(one, trained(smooth))
    assert (one - other).abs().max() > 1e-3


# When it is evaluated, and what then is written


def test_evaluations_before_within_and_after_tasks():
    given = stream(0, sizes=(12, 8))
    network = mlp(1)
    _, at_start = oracle.accuracies(network, given)
    history = lab.train(network, given, LEARNERS["mean"], epochs=2, evaluate_every=8)
    assert history.samples.tolist() == [0, 8, 16, 24, 32, 40]
    assert history.task.tolist() == [0, 0, 0, 1, 1, 2]
    assert_same(history.task_accuracy[0, 0], at_start, 1e-12)
    assert_same(history.task_accuracy[-1, 0], oracle.accuracies(network, given)[1], 1e-12)
    assert history.accuracy.shape == (6, 1)
    only_ends = lab.train(other := mlp(1), given, LEARNERS["mean"], epochs=2)
    assert only_ends.samples.tolist() == [0, 24, 40]
    assert torch.equal(weights(network), weights(other))  # looked at, no more
    assert_same(only_ends.accuracy, history.accuracy[[0, 3, 5]], 1e-12)


def test_a_multiple_that_a_short_mini_batch_steps_over_is_evaluated_at_once():
    history = lab.train(mlp(1), stream(0, sizes=(10, 9)), LEARNERS["mean"], evaluate_every=8)
    assert history.samples.tolist() == [0, 8, 10, 18, 19]
    assert history.task.tolist() == [0, 0, 1, 1, 2]


def test_the_loss_is_the_mean_over_the_steps_since_the_last_evaluation():
    losses = []

    class Watch(lab.Method):
        def penalty(self, run, batch):
            losses.append(run.loss(batch.outputs, batch.targets, batch.weights).item())

    given = stream(0, sizes=(12, 8))
    history = lab.train(mlp(1), given, LEARNERS["mean"], Watch(), epochs=2, evaluate_every=16)
    assert history.samples.tolist() == [0, 16, 24, 32, 40]
    parts = np.split(np.array(losses), [4, 6, 8])
    assert_same(history.loss[1:, 0], [part.mean() for part in parts], 1e-12)


def test_many_test_samples_are_evaluated_in_portions(monkeypatch):
    given = stream(0, test=50)
    expected = oracle.accuracies(mlp(1), given)
    monkeypatch.setattr("retarget.continual.training.EVALUATED_AT_A_TIME", {"cpu": 7})
    history = lab.train(mlp(1), given, LEARNERS["mean"])
    assert history.accuracy[0, 0] == pytest.approx(expected[0])
    assert_same(history.task_accuracy[0, 0], expected[1], 1e-12)


def test_seeds_are_the_members_numbers_unless_given():
    def trained(**seeds):
        networks = [mlp(1), mlp(1)]
        lab.train(networks, stream(0), LEARNERS["mean"], lab.ER(4), **seeds)
        return [weights(network) for network in networks]

    one, other = trained(), trained(seeds=[0, 1])
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])
    assert not torch.equal(one[0], one[1])
    same = trained(seeds=[7, 7])
    assert_same(same[0], same[1], 1e-13)


# What it refuses


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs is 0; expected 1 or more"),
        ({"evaluate_every": 6}, "evaluate_every is 6; expected a positive multiple .* 4"),
        ({"evaluate_every": 0}, "evaluate_every is 0; expected a positive multiple"),
        ({"seeds": [1]}, "there are 1 seeds for 2 modules; expected one per module"),
        ({"streams": [stream(0)]}, "there are 1 streams for 2 modules"),
        ({"learners": [rt.SGD(0.1)] * 3}, "there are 3 learners for 2 modules"),
        ({"learners": rt.SGD([0.1, 0.2])}, "a learner has a schedule of rates"),
        *(
            ({"learners": [rt.SGD(0.1, 4, 0.5), other]}, f"the learners differ in {name}")
            for name, other in {
                r"batch_size: \[2, 4\]; expected the same": rt.SGD(0.1, 2, 0.5),
                "reduction": rt.SGD(0.1, 4, 0.5, reduction="mean"),
                "nesterov": rt.SGD(0.1, 4, 0.5, nesterov=True),
            }.items()
        ),
        *(
            ({"streams": [stream(0), other]}, f"stream 1 has {difference}")
            for difference, other in {
                r"tasks of \(11, 6\) samples; expected \(11, 6, 9\)": stream(0, sizes=(11, 6)),
                "test samples: 27; expected 24": stream(0, test=8),
                r"samples of shape \(4,\); expected \(5,\)": stream(0, shape=(4,)),
            }.items()
        ),
    ],
)
def test_runs_without_a_meaning(changes, message):
    arguments = {"streams": stream(0), "learners": LEARNERS["mean"]} | changes
    with pytest.raises(InvalidInputError, match=message):
        lab.train([mlp(1), mlp(2)], **arguments)


class Two(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (mlp(1).float(), "stream 0 is torch.float64, but the network is"),
        (mlp(1, classes=4), r"for 2 samples is \(2, 4\); expected \(2, 3\)"),
        (Two(5, 3).double(), "for 2 samples is tuple; expected"),
    ],
    ids=["type", "classes", "tuple"],
)
def test_a_network_that_does_not_fit_the_stream(network, message):
    with pytest.raises(InvalidInputError, match=message):
        lab.train(network, stream(0), LEARNERS["mean"])
