"""Every method of the lab equals its definition, typed as a plain loop (oracles.lab)."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn.functional import conv2d

import retarget as rt
from retarget import lab
from retarget.errors import InvalidInputError
from retarget.lab.methods.ewc import UnfoldedConvolutions, fisher_diagonal
from support.lab_problems import (
    CORRECTED,
    LEARNERS,
    METHODS,
    Tied,
    conv_net,
    copies,
    led,
    mlp,
    samples,
    stream,
    weights,
)
from support.oracles import lab as oracle
from support.problems import assert_same

# the networks are small
pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LinearizationWarning")


def slow(cases):
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


def compare(make, network, given, learner, epochs, reshuffle, seed):
    """Trains a network by the lab and by the oracle; both must agree in all that is left."""
    methods, plain = make()
    expected = copy.deepcopy(network)
    before = weights(network).clone()
    history = lab.train(
        network, given, learner, methods, epochs=epochs, reshuffle=reshuffle, seeds=[seed]
    )
    run = oracle.train(expected, given, learner, plain, epochs, reshuffle, seed)
    assert (weights(expected) - before).abs().max() > 1e-3
    assert_same(weights(network), weights(expected))
    assert_same(history.matrix[0], run.matrix, 1e-12)
    assert_same(history.accuracy[1:, 0], run.overall, 1e-12)
    assert np.isnan(history.loss[0]).all()
    assert_same(history.loss[1:, 0], run.losses)


@pytest.mark.parametrize(
    ("method", "learner"),
    [
        *itertools.product(METHODS, ["mean"]),
        *(("DER++", learner) for learner in LEARNERS if learner != "mean"),
        *slow((method, "nesterov and decay") for method in METHODS if method != "DER++"),
        *slow(("plain", learner) for learner in ("sum", "one at a time", "momentum", "decay")),
    ],
)
def test_a_method_equals_its_plain_loop(method, learner):
    compare(METHODS[method], mlp(1), stream(2), LEARNERS[learner], 2, True, 5)


@pytest.mark.parametrize(
    ("method", "learner", "sizes"),
    [
        *((method, "mean", (8, 4, 8)) for method in CORRECTED),
        ("corrected", "sum", (8, 4, 8)),
        ("taken for a mean", "sum", (8, 4, 8)),
        ("corrected", "momentum", (12, 8)),
        ("corrected", "nesterov and decay", (12, 8)),
        ("corrected", "sum", (11, 6, 9)),  # tasks end within a mini-batch
        ("corrected", "one at a time", (11, 6, 9)),
    ],
)
def test_corrected_equals_equation_16(method, learner, sizes):
    compare(CORRECTED[method], mlp(2), stream(4, sizes=sizes), LEARNERS[learner], 2, True, 3)


@pytest.mark.parametrize("method", ["EWC", "cumulative", "DER++", "every epoch", "distilled"])
def test_a_method_equals_its_plain_loop_with_convolutions(method):
    """In every epoch in the same order."""
    given, make = stream(3, sizes=(8, 12), shape=(2, 4, 4)), (METHODS | CORRECTED)[method]
    compare(make, conv_net(1), given, LEARNERS["mean"], 2, False, 0)


@pytest.mark.parametrize(
    ("learner", "epochs"), [("mean", 2), ("one at a time", 1), *slow([("sum", 1)])]
)
def test_led_equals_a_plain_closed_loop(learner, epochs):
    """Tasks that neither a block nor a mini-batch divides."""
    given = stream(2, sizes=(13, 10))
    compare(led(features=24), mlp(1), given, LEARNERS[learner], epochs, True, 5)


@pytest.mark.slow
def test_led_with_convolutions():
    given, make = stream(3, sizes=(7, 6), shape=(2, 4, 4)), led(gamma=0.9, block_size=4)
    compare(make, conv_net(1), given, LEARNERS["mean"], 1, False, 2)


def test_a_network_with_a_frozen_part():
    network = mlp(4)
    network[0].weight.requires_grad_(False)
    for make in (METHODS["EWC"], METHODS["DER++"], CORRECTED["corrected"]):
        given = stream(4, sizes=(8, 8))
        compare(make, copy.deepcopy(network), given, LEARNERS["mean"], 1, False, 0)


@pytest.mark.parametrize(("make", "members"), [(Tied, 1), (Tied, 2), (mlp, 3), (conv_net, 2)])
def test_tied_weights_convolutions_and_strengths_of_several_members(make, members):
    networks, strengths = [make(m) for m in range(members)], (40.0, np.float32(7), 0.0)[:members]
    expected = copies(networks)
    given = stream(2, shape=(2, 4, 4) if make is conv_net else (5,))
    lab.train(networks, given, LEARNERS["mean"], lab.EWC(strengths))
    for m, (network, plain) in enumerate(zip(networks, expected, strict=True)):
        methods = [oracle.Anchored(float(strengths[m]))]
        oracle.train(plain, given, LEARNERS["mean"], methods, seed=m)
        assert_same(weights(network), weights(plain))
        assert make is not Tied or network.first.weight is network.second.weight


MEMBERS = {
    **{name: METHODS[name] for name in ("EWC", "cumulative", "ER", "DER++")},
    **{name: CORRECTED[name] for name in ("never", "every epoch", "DER, corrected")},
    "tangent": lambda: (lab.Tangent(features=40), []),
    "last layer": lambda: (lab.LastLayer(), []),
    "joint": lambda: (lab.Joint(2), []),
    "led": led(features=24),
}
LONG = ("never", "led", "ER")


@pytest.mark.parametrize(
    ("method", "pools"),
    [
        *((name, "shared") for name in MEMBERS if name not in LONG),
        *itertools.product(["DER, corrected", "led"], ["separate"]),
        *slow((name, "shared") for name in LONG),
    ],
)
def test_members_at_once_equal_one_by_one(method, pools):
    make, seeds = MEMBERS[method], (4, 9, 4)
    options = [(0.05, 0.5, 0.0), (0.011, 0.0, 0.2), (0.03, 0.9, 0.1)]
    if method == "led":  # for plain SGD
        options = [(lr, 0.0, 0.0) for lr, _, _ in options]
    learners = [
        rt.SGD(lr, 4, momentum=mu, weight_decay=decay, reduction="mean")
        for lr, mu, decay in options
    ]
    if pools == "shared":
        random = np.random.default_rng(0)
        X, y = samples(random, 60)
        data = lab.LabeledData(X, y, *samples(random, 30))
        given = [lab.class_incremental(data, seed, 1, per_class=11) for seed in (0, 1, 2)]
        assert given[0].train.inputs is given[1].train.inputs
    else:
        given = [stream(seed, sizes=(8, 13)) for seed in (0, 1, 2)]
    networks = [mlp(seed) for seed in (5, 6, 7)]
    alone = copies(networks)
    options = {"epochs": 2, "reshuffle": True, "evaluate_every": 8}
    history = lab.train(networks, given, learners, make()[0], seeds=seeds, **options)
    for m in range(3):
        one = lab.train(alone[m], given[m], learners[m], make()[0], seeds=[seeds[m]], **options)
        assert_same(weights(networks[m]), weights(alone[m]))
        for name in ("samples", "task"):
            np.testing.assert_array_equal(getattr(history, name), getattr(one, name))
        for name in ("accuracy", "task_accuracy"):
            assert_same(getattr(history, name)[:, m], getattr(one, name)[:, 0], 1e-12)
        trained = ~np.isnan(one.loss[:, 0])  # least squares have no loss after the first task
        assert_same(history.loss[trained, m], one.loss[trained, 0])
    assert (weights(networks[0]) - weights(networks[1])).abs().max() > 0.01


@pytest.mark.parametrize("method", ["EWC", "DER++", "never", "tangent", "led"])
def test_nothing_is_left_of_an_earlier_run(method):
    used, first, second = MEMBERS[method]()[0], mlp(1), mlp(1)
    given, learner = stream(2, sizes=(6, 5)), LEARNERS["mean"]
    lab.train(mlp(8), stream(5, sizes=(4, 5)), learner, used)
    lab.train(first, given, learner, used)
    lab.train(second, given, learner, MEMBERS[method]()[0])
    assert torch.equal(weights(first), weights(second))


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # PyTorch's own, of the copy it makes
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [
        *itertools.product((1, (2, 1), (2,)), ((2, 1), "valid"), (1, (1, 2)), [1]),
        *((1, "same", dilation, 1) for dilation in (1, (2, 3))),
        (1, 1, 1, 2),
    ],
)
def test_a_convolution_as_a_matrix_product(stride, padding, dilation, groups):
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    torch.manual_seed(0)
    for kernel in ((3, 2), (4, 3), (1, 1)):
        sizes = (3, 4, 7, 6), (6, 4 // groups, *kernel), (6,)
        x, weight, bias = (torch.randn(size, dtype=torch.float64) for size in sizes)
        for given in ((x, weight, bias), (x, weight), (x[0], weight, bias), (x[:0], weight)):
            expected = conv2d(*given, **options)
            with UnfoldedConvolutions():
                assert_same(conv2d(*given, **options), expected, 1e-13)


def test_its_gradients_and_vmap():
    torch.manual_seed(0)
    sizes = (3, 4, 7, 6), (3, 6, 4, 3, 2), (6,)
    x, weights, bias = (torch.randn(size, dtype=torch.float64) for size in sizes)

    def loss(w, b, x):
        return conv2d(x, w, b, stride=2, padding=1).tanh().square().sum()

    each = grad(loss, argnums=(0, 1, 2))
    with UnfoldedConvolutions():
        together = vmap(each, in_dims=(0, None, None))(weights, bias, x)
        samples = vmap(each, in_dims=(None, None, 0))(weights[0], bias, x[:, None])
    for i in range(3):
        assert_same(together[i], torch.stack([each(w, bias, x)[i] for w in weights]), 1e-12)
        by_sample = [each(weights[0], bias, row[None])[i] for row in x]
        assert_same(samples[i], torch.stack(by_sample), 1e-12)


@pytest.mark.parametrize("at_a_time", [200, 2**26])
@pytest.mark.parametrize("network", [mlp(3), conv_net(3)])
def test_the_fisher_information_is_of_single_samples(network, at_a_time, monkeypatch):
    monkeypatch.setattr("retarget.lab.methods.ewc.GRADIENTS_AT_A_TIME", at_a_time)
    shape = (5,) if isinstance(network[0], nn.Linear) else (2, 4, 4)
    X, y = samples(np.random.default_rng(0), 9, shape)
    Y = torch.eye(3).double()[y]
    got = fisher_diagonal(network, X, Y)
    expected = oracle.fisher_by_hand(network, X, Y)
    assert list(got) == [name for name, _ in network.named_parameters()]
    for one, other in zip(got.values(), expected, strict=True):
        assert_same(one, other, 1e-13)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lab.EWC, {"strength": -1.0}, "strength is -1.0"),
        (lab.LabelSmoothing, {"amount": 1.5}, "amount is 1.5; expected 0 to 1"),
        (lab.CumulativeReplay, {"passes": 0}, "passes is 0; expected 1 or more"),
        (lab.ER, {"capacity": 0}, "capacity is 0; expected 1 or more"),
        (lab.DER, {"capacity": 3, "batch_size": 0}, "batch_size is 0; expected 1 or more"),
        (lab.DER, {"capacity": 3, "alpha": -1}, "alpha is -1"),
        (lab.Corrected, {"gamma": 1.0, "kind": "both"}, "kind is 'both'; expected one of"),
        (lab.Corrected, {"gamma": 1.0, "assumed_reduction": "max"}, "reduction is 'max'; expected"),
        (lab.Tangent, {"features": 0}, "features is 0"),
        (lab.Tangent, {"first_epochs": -1}, "first_epochs is -1"),
        (lab.LastLayer, {"random_features": -3}, "random_features is -3"),
        (lab.Led, {"features": None}, "features is None; expected"),
    ],
)
def test_options_of_methods_without_a_meaning(make, options, message):
    with pytest.raises(rt.RetargetError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("method", "learner", "message"),
    [
        (lab.EWC([1.0, 2.0]), "mean", "2 strengths for 1 members; expected one for"),
        (lab.Corrected(1.0, 6), "mean", "block_size is 6; .* batch_size, 4"),
        (lab.Led(), "momentum", "closed loop needs plain SGD"),
    ],
)
def test_what_only_the_run_can_know(method, learner, message):
    with pytest.raises(InvalidInputError, match=message):
        lab.train(mlp(1), stream(2), LEARNERS[learner], method)


def test_a_kernel_of_some_layers_only():
    """The kernel of a network whose other layers are frozen."""
    targets = []

    class Watched(lab.Corrected):
        def targets(self, run, batch):
            targets.append(super().targets(run, batch))
            return targets[-1]

    network, frozen = mlp(2), mlp(2)
    frozen[0].requires_grad_(False)
    for module, options in (
        (network, {"kernel": lambda module: rt.EmpiricalNTK(module, params=["2"])}),
        (frozen, {}),
    ):
        lab.train(module, stream(4, sizes=(8,)), LEARNERS["mean"], Watched(3.0, 8, **options))
    assert_same(torch.cat(targets[:2]), torch.cat(targets[2:]))
