"""The empirical NTK of networks of all kinds, against autograd, one sample and output at a time."""

import functools

import pytest
import torch
from torch import nn

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.kernels.empirical import assembly, ntk, private
from support.networks import NETWORKS, Doubled, Network, network, parameter
from support.oracles.empirical_ntk import close, gradients, products

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor"),
    pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning"),
]


@pytest.mark.parametrize("n", [1, 3, 8])  # one, as many as outputs, others
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_has_the_kernel_of_its_gradients(name, n):
    module, X = network(name, n)
    G = gradients(module, X)
    for mode in ("structured", "jacobian"):
        for outputs in ("mean", "full", 1):
            kernel, expected = rt.EmpiricalNTK(module, outputs, mode=mode), products(G, G, outputs)
            close(kernel(X), expected)
            r = len(expected) // n
            close(kernel(X, X[:2]), expected[:, : 2 * r])
            close(kernel.diag(X), expected.diagonal())
        features, found = rt.EmpiricalNTK(module, mode=mode).features_and_outputs(X)
        close(features @ features.T, products(G, G))
        close(found, module(X).detach())


def in_chunks(chunk, prepare=assembly.Assembly.__init__):
    """An `Assembly` that passes so many samples through the network at a time."""

    def small(made, *arguments):
        prepare(made, *arguments)
        made.chunk = chunk
        made.panel = 5

    return small


@pytest.mark.parametrize("name", NETWORKS)
def test_chunks_of_one_and_two(name, monkeypatch):
    module, X = network(name, 8)
    G = gradients(module, X)
    weights = {key: torch.rand_like(value) + 0.5 for key, value in module.named_parameters()}
    roots = torch.cat([each.sqrt().flatten() for each in weights.values()])
    for chunk in (1, 3):
        monkeypatch.setattr(assembly.Assembly, "__init__", in_chunks(chunk))
        close(rt.EmpiricalNTK(module)(X), products(G, G))
        close(rt.EmpiricalNTK(module, preconditioner=weights)(X), products(G * roots, G * roots))


@pytest.mark.parametrize("name", NETWORKS)
def test_targets_of_every_network(name):
    module, X = network(name, 8)
    G, Y = gradients(module, X), torch.randn(8, 3, dtype=torch.float64)
    learner = rt.SGD(0.01, batch_size=2, reduction="sum")
    corrected = rt.NetworkCorrector(module, learner, 2.0, 4).correct(X, Y)
    close(corrected, rt.iterative_targets(products(G, G), Y, learner, 2.0, 4), 1e-8)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_kernel_of_every_part_of_every_network(name):
    """docs/training.md: training some layers is exact for the tangent kernel of that part."""
    module, X = network(name, 6)
    for part in dict(module.named_parameters()):
        G = gradients(module, X, [part])
        close(rt.EmpiricalNTK(module, "full", params=part)(X), products(G, G, "full"))


def plans(kernel, X, monkeypatch):
    """Whether each plan that was made to compute the kernel had rules."""
    made, make = [], ntk.make_plan

    def noted(network, samples, options):
        made.append(options.rules)
        return make(network, samples, options)

    monkeypatch.setattr(ntk, "make_plan", noted)
    kernel(X)
    return made


# Where something is met on the way that those samples did not show that were tried first.
MET_LATER = ["experts, all in use", "experts, sorted", "hidden use"]


@pytest.mark.parametrize("name", NETWORKS)
def test_rules_are_given_up_only_where_they_fail(name, monkeypatch):
    module, X = network(name, 8)
    weights = {key: torch.rand_like(value) + 0.5 for key, value in module.named_parameters()}
    single = {key: float(value.flatten()[0]) for key, value in weights.items()}
    for preconditioner in (None, weights, single):
        kernel = rt.EmpiricalNTK(module, preconditioner=preconditioner)
        made = plans(kernel, X, monkeypatch)
        assert made == ([True, False] if name in MET_LATER else [True])


def test_a_parameter_that_only_later_samples_use():
    module, X = network("experts, all in use", 8)
    names = ["experts.2.weight", "experts.2.bias"]
    G = gradients(module, X, names)
    for mode in ("structured", "jacobian"):
        close(rt.EmpiricalNTK(module, params="experts.2", mode=mode)(X), products(G, G))


def test_partial_functions_of_a_private_copy():
    """Otherwise no other thread could use the network meanwhile."""
    module, X = nn.Sequential(nn.Linear(3, 2)).double(), torch.eye(3).double()
    module.forward = functools.partial(nn.Linear.forward, module[0])
    close(rt.EmpiricalNTK(module)(X), products(*2 * [gradients(module, X)]))
    assert private._known[module]


def test_a_token_that_comes_twice(monkeypatch):
    made, make = [], ntk.make_plan
    monkeypatch.setattr(ntk, "make_plan", lambda *a, **k: made.append(make(*a, **k)) or made[-1])
    module = nn.Sequential(nn.Embedding(6, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)).double()
    X = torch.tensor([[1, 1, 3], [4, 1, 0], [0, 3, 3]])
    close(rt.EmpiricalNTK(module)(X), products(*2 * [gradients(module, X)]))
    assert [{name for layer in each.ways for name in layer} for each in made] == [
        {"0.weight", None, "3.weight", "3.bias"}
    ]


def test_padding_that_only_samples_between_those_tried_have():
    module = nn.Sequential(nn.Embedding(6, 4, padding_idx=0), nn.Flatten(), nn.Linear(12, 2))
    X = torch.tensor([[1, 2, 3], [4, 0, 0], [5, 1, 2], [0, 3, 0], [3, 4, 5]])
    close(rt.EmpiricalNTK(module.double())(X), products(*2 * [gradients(module, X)]))


def multiply(x, weight):
    return x @ weight


@functools.cache
def scripted():
    """Its operations are torch's own, but what it is called with is not seen."""
    return torch.jit.script(multiply)


def otherwise(change):
    """What one sample alone, the fifth, has done to it on the way."""

    def run(m, x):
        y, odd = torch.tanh(m.layer(x)), x[:, 0] > 1.4
        if odd.any():
            y = change(m, x, y, odd[:, None].double())
        return m.out(y)

    torch.manual_seed(0)
    parts = {"layer": nn.Linear(5, 5), "other": nn.Linear(5, 5), "out": nn.Linear(5, 3)}
    module, X = Network(run, **parts).double(), torch.randn(8, 5, dtype=torch.float64)
    X[:, 0] = torch.tensor([-1.0, 0, 0, 1, 1.5, 0, 0, 0])  # the first, fourth and seventh are tried
    return module, X


CHANGES = {
    "another layer": lambda m, x, y, odd: y + odd * m.other(x),
    "the layer again": lambda m, x, y, odd: y + odd * m.layer(y),
    "its weight by itself": lambda m, x, y, odd: y + odd * m.layer.weight[0],
    "its weight in a product": lambda m, x, y, odd: y + odd * (x @ m.layer.weight),
    "its weight in a user's function": lambda m, x, y, odd: (
        y + odd * Doubled.apply(x, m.layer.weight)
    ),
    "its weight in a scripted function": lambda m, x, y, odd: (
        y + odd * scripted()(x, m.layer.weight)
    ),
    "the last layer twice": lambda m, x, y, odd: y + odd * m.out(y).sum(1, keepdim=True),
    "rows that change places": lambda m, x, y, odd: torch.tanh(
        m.layer(x.flip(0))[torch.arange(len(x) - 1, -1, -1)] * (1 + odd)
    ),
}


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("mode", ["structured", "jacobian"])
@pytest.mark.parametrize("how", CHANGES)
def test_another_way_that_a_later_sample_takes(how, mode):
    module, X = otherwise(CHANGES[how])
    G = gradients(module, X)
    for outputs in ("mean", "full"):
        close(rt.EmpiricalNTK(module, outputs, mode=mode)(X), products(G, G, outputs))
    F = rt.EmpiricalNTK(module, mode=mode).features(X)
    close(F @ F.T, products(G, G))


def test_a_small_wrong_part():
    module, X = network("experts, sorted", 8)
    small = module.run
    module.run = lambda m, x: small(m, x) + m.large(100 * x)
    module.large = nn.Linear(5, 3).double()
    G = gradients(module, X)
    close(rt.EmpiricalNTK(module)(X), products(G, G))


@pytest.mark.parametrize("overhead", [-1e9, 1e9])  # pairs, gradients
def test_a_layer_at_more_positions_for_later_samples(overhead, monkeypatch):
    def run(m, x):
        several = torch.stack([x, (x[:, :1] > 1.4) * x.flip(1)], 1)
        y = torch.tanh(m.layer(several if (x[:, 0] > 1.4).any() else x[:, None]))
        return m.out((y * y[:, :, :1]).sum(1))

    module, X = otherwise(None)
    module.run = run
    monkeypatch.setattr("retarget.kernels.empirical.forms.PAIR_OVERHEAD", overhead)
    monkeypatch.setattr(assembly.Assembly, "__init__", in_chunks(2))
    G = gradients(module, X)
    close(rt.EmpiricalNTK(module)(X), products(G, G))


def last_otherwise(m, x):
    """The output is not the last layer's own, for some samples."""
    y = m.out(torch.tanh(m.layer(x)))
    return y * (1 + (x[:, :1] > 1)) if (x[:, 0] > 1).any() else y


def test_a_last_layer_that_is_not_last():
    torch.manual_seed(0)
    module = Network(last_otherwise, layer=nn.Linear(5, 4), out=nn.Linear(4, 3)).double()
    X = network("experts, all in use", 8)[1]
    G = gradients(module, X)
    close(rt.EmpiricalNTK(module)(X), products(G, G))


def test_outputs_that_depend_on_the_batch():
    """The plain gradients, of samples alone, would not be those of the outputs."""
    module = Network(
        lambda m, x: torch.cdist(m.a(x), m.prototypes) * (1.0 if len(x) < 4 else 2.0),
        a=nn.Linear(5, 4), prototypes=parameter(3, 4),
    ).double()  # fmt: skip
    with pytest.raises(InvalidInputError, match="between two batches"):
        rt.EmpiricalNTK(module)(torch.randn(7, 5, dtype=torch.float64))


@pytest.mark.parametrize("n", [2, 3, 5])
def test_outputs_that_grow_with_the_batch(n):
    module = Network(lambda m, x: len(x) * m.layer(x), layer=nn.Linear(5, 3)).double()
    with pytest.raises(InvalidInputError, match="between two batches"):
        rt.EmpiricalNTK(module)(torch.randn(n, 5, dtype=torch.float64))


def test_outputs_that_differ_for_one_sample():
    """torch.func passes single samples, and computes their gradients many at a time."""
    module = Network(
        lambda m, x: torch.tanh(m.layer(x)) * (1.0 if len(x) > 1 else 2.0), layer=nn.Linear(5, 3)
    ).double()
    X = torch.randn(7, 5, dtype=torch.float64)
    with pytest.raises(InvalidInputError, match="between two batches"):
        rt.EmpiricalNTK(module, mode="jacobian")(X)


def test_a_module_that_fails_later():
    table = Network(
        lambda m, x: m.out(m.table(x)[:, 0]), table=nn.Embedding(7, 4), out=nn.Linear(4, 3)
    )
    tokens = torch.tensor([0, 1, 9, 3, 4, 5, 6])
    with pytest.raises(InvalidTypeError, match="take them .*out of range"):
        rt.EmpiricalNTK(table)(tokens)
