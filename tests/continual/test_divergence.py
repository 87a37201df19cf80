"""A run that diverges stops at once, says where and why, and leaves the networks as they were."""

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget import continual as lab
from retarget.errors import NotPositiveDefiniteError, TrainingDivergedError
from support.lab_problems import copies, mlp, stream, weights
from support.oracles import continual as oracle


def first_bad_step(network, given, learner):
    """(task, step) of the first loss that is not finite, in a plain loop."""
    loop = oracle.Loop(network, oracle.samples(given.train), given.targets(), learner, 0)
    for task, span in enumerate(given.train.spans()):
        for step, batch in enumerate(loop.batches(np.arange(span.start, span.stop))):
            loss = loop.loss(network(loop.X[batch]), loop.Y[batch])
            if not loss.isfinite():
                return task, step
            loop.descend(loss)
    return None


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(5, 3, bias=False).double()


@pytest.mark.parametrize("lr", [1e15, 1e60])
def test_it_stops_at_the_first_bad_step(lr):
    given, learner = stream(0, sizes=(9, 40)), rt.SGD(lr, batch_size=2)
    task, step = first_bad_step(linear(), given, learner)
    network = linear()
    before = weights(network).clone()
    message = (
        f"the loss of member 0 is not finite at step {step} of epoch 0 of task {task}, with "
        rf"Vanilla; its learning rate, {lr:g}".replace("+", r"\+")
    )
    with pytest.raises(TrainingDivergedError, match=message) as caught:
        lab.train(network, given, learner, lab.Vanilla())
    assert (caught.value.step, caught.value.members) == (step, (0,))
    assert torch.equal(weights(network), before)


def test_checks_between_many_steps_name_the_first_bad_one_too(monkeypatch):
    """As on CUDA, where the loss is looked at now and then."""
    given, learner = stream(0, sizes=(60,)), rt.SGD(1e33, batch_size=2)
    _, step = first_bad_step(linear(), given, learner)
    monkeypatch.setattr("retarget.continual.training.STEPS_BETWEEN_CHECKS", {"cpu": 13})
    with pytest.raises(TrainingDivergedError) as caught:
        lab.train(linear(), given, learner)
    assert caught.value.step == step
    # not after an evaluation either
    with pytest.raises(TrainingDivergedError) as caught:
        lab.train(linear(), given, learner, evaluate_every=2)
    assert caught.value.step in (step - 1, step)


def test_the_members_that_diverge_are_named():
    given = stream(0, sizes=(60,))
    learners = [rt.SGD(lr, batch_size=2) for lr in (0.01, 1e33, 0.02, 1e60)]
    steps = [first_bad_step(linear(m), given, learners[m]) for m in (1, 3)]
    assert steps[1] < steps[0]
    networks = [linear(m) for m in range(4)]
    before = copies(networks)
    with pytest.raises(
        TrainingDivergedError, match="member 3 .* with plain SGD; its .* 1e.60"
    ) as caught:
        lab.train(networks, given, learners)
    assert caught.value.members == (3,)
    assert caught.value.step == steps[1][1]
    for network, same in zip(networks, before, strict=True):
        assert torch.equal(weights(network), weights(same))


def two_layers(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 3, bias=False)).double()


@pytest.mark.parametrize("evaluate_every", [None, 2])
def test_a_last_step_that_overflows_is_found_without_a_loss(evaluate_every):
    """One step throws the weights so far that the outputs overflow; no loss follows it."""
    given = stream(0, sizes=(20,) if evaluate_every else (2,))
    with pytest.raises(
        TrainingDivergedError,
        match="the network of member 1 is not finite after step 0 of epoch 0 of task 0",
    ) as caught:
        lab.train(
            [two_layers(0), two_layers(1), two_layers(2)],
            given,
            [rt.SGD(lr, 2) for lr in (0.1, 1e200, 1e250)],
            evaluate_every=evaluate_every,
        )
    assert (caught.value.step, caught.value.members) == (0, (1, 2))


def test_infinite_weights_behind_a_relu_do_not_go_on():
    """All hidden units at minus infinity: the outputs are 0, and every loss is finite."""

    class Blow(lab.Method):
        def on_task_end(self, run):
            with torch.no_grad():
                run.ensemble.parameters["0.weight"].fill_(-torch.inf)

    network = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    network.double()
    X = torch.rand(4, 2, dtype=torch.float64) + 0.1
    given = lab.TaskStream.from_tasks([(X, [0, 1, 0, 1])])
    with pytest.raises(TrainingDivergedError, match="the network of member 0 is not finite"):
        lab.train(network, given, rt.SGD(0.1), Blow())
    assert network[0].weight.isfinite().all()


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (lab.EWC(1e300), "EWC"),
        (lab.CumulativeReplay(), "CumulativeReplay"),
        ([lab.LabelSmoothing(), lab.DER(3, beta=1.0)], r"LabelSmoothing \+ DER\+\+"),
    ],
)
def test_the_methods_are_named(method, name):
    with pytest.raises(TrainingDivergedError, match=f"of task [01], with {name}; "):
        lab.train(two_layers(), stream(0), rt.SGD(1e40, 2), method, epochs=3)


class Late(lab.Method):
    """Breaks the loss at step 1 of epoch 2 of task 1."""

    def targets(self, run, batch):
        late = run.task == 1 and run.epoch == 2 and int(batch.step) == 1
        return batch.targets * (torch.nan if late else 1.0)


def test_epochs_and_tasks_are_named():
    with pytest.raises(TrainingDivergedError, match="step 1 of epoch 2 of task 1, with Late"):
        lab.train(mlp(1), stream(0), rt.SGD(0.1, 4), Late(), epochs=4)


@pytest.mark.parametrize(
    ("lr", "cause"),
    [
        (1e-6, r"the corrected targets reach .*e.0\d: use a larger ridge, gamma or block_size"),
        (0.05, "its learning rate, 0.05, is probably too high for this network: try a third"),
    ],
)
def test_corrected_targets_far_away_are_the_likely_cause(lr, cause):
    methods = [lab.Corrected(100.0, 4), Late()]
    with pytest.raises(TrainingDivergedError, match=rf"with Corrected \+ Late; {cause}"):
        lab.train(mlp(1), stream(0, sizes=(8, 8)), rt.SGD(lr, 4), methods, epochs=3)


@pytest.mark.parametrize("broken", [torch.nan, 1e200])
def test_a_kernel_that_is_not_finite_names_its_members(broken):
    """The network's outputs may still be finite when the products of its gradients are not."""

    class Break(lab.Method):
        def on_task_end(self, run):
            if run.task == 0:
                with torch.no_grad():
                    run.ensemble.parameters["0.weight"][1] *= 1e-30
                    run.ensemble.parameters["1.weight"][1] *= broken

    given = stream(0, sizes=(8, 8))
    networks = [two_layers(m) for m in range(3)]
    match = "no targets for member 1 before epoch 0 of task 1, with Corrected: the network's kernel"
    if broken != broken:
        match = "the network of member 1 is not finite after step 1 of epoch 0 of task 0"
    with pytest.raises(TrainingDivergedError, match=match) as caught:
        lab.train(networks, given, rt.SGD(0.01, 4), [lab.Corrected(1.0, 4), Break()])
    assert caught.value.members == (1,)


def test_repeated_samples_in_a_block_name_the_member():
    X = torch.ones(8, 5, dtype=torch.float64)
    given = [stream(0, sizes=(8,)), lab.TaskStream.from_tasks([(X, [0, 1, 2, 0, 1, 2, 0, 1])])]
    given[1] = lab.TaskStream(given[1].train, given[0].test, 3)
    with pytest.raises(NotPositiveDefiniteError, match="ridge = .* would do") as caught:
        lab.train([mlp(1), mlp(2)], given, rt.SGD(0.01, 4), lab.Corrected(1.0, 4, parts="online"))
    assert caught.value.__notes__ == ["(member 1, task 0, epoch 0)"]


def test_a_network_that_has_died_names_its_member():
    """All its units answer 0, and so does its kernel."""

    class Kill(lab.Method):
        def on_task_end(self, run):
            with torch.no_grad():
                for weights in run.ensemble.parameters.values():
                    weights[1] = 0.0

    given = stream(0, sizes=(8, 8))
    networks = [two_layers(m) for m in range(3)]
    match = "no targets for member 1 before epoch 0 of task 1, with Corrected: the network's gradi"
    with pytest.raises(TrainingDivergedError, match=match) as caught:
        lab.train(networks, given, rt.SGD(0.01, 4), [lab.Corrected(1.0, 4), Kill()])
    assert caught.value.members == (1,)


def test_targets_that_overflow_name_their_members():
    given = stream(0, sizes=(8,))
    X = given.train.inputs.float()
    single = lab.TaskStream.from_tasks([(X, given.train.labels)], classes=3)
    learners = [rt.SGD(0.01, 4), rt.SGD(1e-41, 4), rt.SGD(1e-42, 4)]
    networks = [mlp(m).float() for m in range(3)]
    with pytest.raises(
        TrainingDivergedError, match="no targets for member 1 .* largest number of float32"
    ) as caught:
        lab.train(networks, single, learners, lab.Corrected(1.0, 4))
    assert caught.value.members == (1, 2)
