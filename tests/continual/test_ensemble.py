"""Several networks as one: nothing lost, nothing mixed."""

import copy

import pytest
import torch
from torch import nn

import retarget as rt
from retarget import continual as lab
from retarget.continual.steps import Ensemble
from retarget.errors import InvalidInputError
from support.lab_problems import LEARNERS, copies, mlp, stream, weights
from support.problems import assert_same


def test_frozen_parameters_stay_and_flags_too():
    network = mlp(1)
    network[0].bias.requires_grad_(False)
    before = copy.deepcopy(network)
    assert list(Ensemble([network, before]).parameters) == ["0.weight", "2.weight", "2.bias"]
    lab.train(network, stream(1), rt.SGD(0.1, 2, weight_decay=0.5))
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
    with pytest.raises(InvalidInputError, match="module 2 has other parameters than module 0"):
        Ensemble([mlp(1), mlp(3), other])


def test_networks_that_cannot_be_trained():
    for networks, message in (
        ([], "there are no modules; expected one network"),
        ([nn.Tanh()], "the module has no trainable parameters"),
        ([mlp(1)] * 2, "two members are the same module; .*deepcopy"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            Ensemble(networks)
