"""A run that diverges stops at once, says where and why, and leaves the networks as they were."""

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget import lab
from retarget.errors import NotPositiveDefiniteError, TrainingDivergedError
from support.lab_problems import copies, mlp, stream, weights
from support.oracles import lab as oracle


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


def two_layers(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 3, bias=False)).double()


def diverges(message, networks, *arguments, **options):
    """Trains; returns the error, after which the networks must be as they were."""
    before = copies(networks)
    with pytest.raises(TrainingDivergedError, match=message) as caught:
        lab.train(networks, *arguments, **options)
    for network, same in zip(networks, before, strict=True):
        assert torch.equal(weights(network), weights(same))
    return caught.value


@pytest.mark.parametrize(
    ("rates", "sizes", "interval"),
    [([1e15], (9, 40), 1), ([1e60], (9, 40), 13), ([0.01, 1e33, 0.02, 1e60], (60,), 1)],
)  # 13: as on CUDA, looked at now and then
def test_it_stops_at_the_first_bad_step(rates, sizes, interval, monkeypatch):
    monkeypatch.setattr("retarget.lab.training.STEPS_BETWEEN_CHECKS", {"cpu": interval})
    given, learners = (
        stream(0, sizes=sizes),
        [rt.SGD(lr, batch_size=2, reduction="sum") for lr in rates],
    )
    bad = {m: first_bad_step(linear(m), given, learner) for m, learner in enumerate(learners)}
    (task, step), first = min((at, m) for m, at in bad.items() if at)
    cause = f"its learning rate, {rates[first]:g}".replace("+", r"\+")
    message = f"member {first} .* at step {step} of epoch 0 of task {task}, with plain SGD; {cause}"
    networks = [linear(m) for m in range(len(rates))]
    error = diverges(message, networks, given, learners)
    assert (error.step, error.members) == (step, (first,))
    # an evaluation does not hide it
    error = diverges(f"member {first}", networks, given, learners, evaluate_every=2)
    assert error.step in (step - 1, step)


@pytest.mark.parametrize(("size", "evaluate_every"), [(2, None), (20, 2)])
def test_a_last_step_that_overflows(size, evaluate_every):
    """One step throws the weights so far that the outputs overflow; no loss follows it."""
    message = "the network of member 1 is not finite after step 0 of epoch 0 of task 0"
    learners = [rt.SGD(lr, 2, reduction="sum") for lr in (0.1, 1e200, 1e250)]
    networks = [two_layers(m) for m in range(3)]
    given = stream(0, sizes=(size,))
    error = diverges(message, networks, given, learners, evaluate_every=evaluate_every)
    assert (error.step, error.members) == (0, (1, 2))


class AtTaskEnd(lab.Method):
    """Multiplies the weights of some members, layer by layer."""

    def __init__(self, *factors, members=slice(None)):
        self.factors, self.members = factors, members

    def on_task_end(self, run):
        with torch.no_grad():
            for values, factor in zip(run.ensemble.parameters.values(), self.factors, strict=True):
                values[self.members] *= factor


def test_infinite_weights_behind_a_relu():
    """All hidden units at minus infinity: the outputs are 0, and every loss is finite."""
    network = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    with torch.no_grad():
        network.double()[0].weight.fill_(-1.0)
    X = torch.rand(4, 2, dtype=torch.float64) + 0.1
    given = lab.TaskStream.from_tasks([(X, [0, 1, 0, 1])])
    blow = AtTaskEnd(torch.inf, 1.0)
    diverges("the network of member 0 is not finite", [network], given, rt.SGD(0.1), blow)


class Late(lab.Method):
    """Breaks the loss at step 1 of epoch 2 of task 1."""

    def targets(self, run, batch):
        late = run.task == 1 and run.epoch == 2 and int(batch.step) == 1
        return batch.targets * (torch.nan if late else 1.0)


FAR_TARGETS = r"the corrected targets reach .*e.0\d: use a larger ridge, gamma or block_size"
TOO_FAST = "its learning rate, 0.05, is probably too high for this network: try a third"


@pytest.mark.parametrize(
    ("methods", "lr", "message"),
    [
        (
            [lab.EWC(1e300), lab.CumulativeReplay()],
            1e40,
            r"[01], with EWC \+ CumulativeRep.*; ",
        ),
        ([lab.LabelSmoothing(), lab.DER(3, beta=1.0)], 1e40, r"with LabelSmoothing \+ DER\+\+; "),
        (Late(), 0.1, "step 1 of epoch 2 of task 1, with Late"),
        ([lab.Corrected(100.0, 4), Late()], 1e-6, rf"with Corrected \+ Late; {FAR_TARGETS}"),
        ([lab.Corrected(100.0, 4), Late()], 0.05, rf"with Corrected \+ Late; {TOO_FAST}"),
    ],
)
def test_methods_place_and_likely_cause_are_named(methods, lr, message):
    network = mlp(1) if lr < 1 else two_layers()
    diverges(
        message,
        [network],
        stream(0, sizes=(8, 8)),
        rt.SGD(lr, 4, reduction="sum"),
        methods,
        epochs=3,
    )


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        # the outputs may still be finite when the products of the gradients are not
        ((1e-30, 1e200), "no targets for member 1 before epoch 0 of task 1.*the network's kernel"),
        ((1.0, torch.nan), "the network of member 1 is not finite after step 1 of epoch 0 of"),
        # all its units answer 0, and so does its kernel
        ((0.0, 0.0), "no targets for member 1 before epoch 0 of task 1.*the network's gradi"),
    ],
)
def test_a_network_without_a_kernel_names_its_member(factors, message):
    methods = [lab.Corrected(1.0, 4), AtTaskEnd(*factors, members=[1])]
    networks = [two_layers(m) for m in range(3)]
    error = diverges(
        message, networks, stream(0, sizes=(8, 8)), rt.SGD(0.01, 4, reduction="sum"), methods
    )
    assert error.members == (1,)


def test_repeated_samples_in_a_block_name_the_member():
    X = torch.ones(8, 5, dtype=torch.float64)
    given = [stream(0, sizes=(8,)), lab.TaskStream.from_tasks([(X, [0, 1, 2, 0, 1, 2, 0, 1])])]
    given[1] = lab.TaskStream(given[1].train, given[0].test, 3)
    with pytest.raises(NotPositiveDefiniteError, match="ridge = .* would do") as caught:
        lab.train(
            [mlp(1), mlp(2)],
            given,
            rt.SGD(0.01, 4, reduction="sum"),
            lab.Corrected(1.0, 4, parts="online"),
        )
    assert caught.value.__notes__ == ["(member 1, task 0, epoch 0)"]


def test_targets_that_overflow_name_their_members():
    given = stream(0, sizes=(8,))
    single = lab.TaskStream.from_tasks([(given.train.inputs.float(), given.train.labels)], None, 3)
    learners = [
        rt.SGD(0.01, 4, reduction="sum"),
        rt.SGD(1e-41, 4, reduction="sum"),
        rt.SGD(1e-42, 4, reduction="sum"),
    ]
    networks = [mlp(m).float() for m in range(3)]
    message = "no targets for member 1 .* largest number of float32"
    assert diverges(message, networks, single, learners, lab.Corrected(1.0, 4)).members == (1, 2)
