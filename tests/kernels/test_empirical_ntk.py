"""The empirical NTK against its definition, for all kinds of modules, forms and options."""

import copy
import io
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError, StreamTooLargeError
from retarget.kernels.empirical import assembly, plan, terms
from retarget.kernels.empirical.terms import split, split_product
from support.networks import Network, parameter
from support.oracles.empirical_ntk import close, forms, gradients, products
from support.oracles.empirical_ntk import gram as oracle_gram
from support.problems import fewer_examples

OUTPUTS = ["mean", "sum", "full", 1]


def block():
    """A transformer's block in small: LayerNorm, Linear on (n, positions, features), residual."""

    def run(m, x):
        x = x + m.down(functional.gelu(m.up(m.norm(x))))
        return m.out(x.mean(1))

    parts = {"norm": nn.LayerNorm(4), "up": nn.Linear(4, 6), "down": nn.Linear(6, 4)}
    return Network(run, **parts, out=nn.Linear(4, 3))


def custom():
    """Parameters of its own, one of them never used."""
    return Network(
        lambda m, x: m.linear(torch.tanh(x * m.scale)),
        scale=parameter(5), idle=parameter(2), linear=nn.Linear(5, 3),
    )  # fmt: skip


def twice(tied_bias):
    """One layer applied twice, and another tied to it."""

    def run(m, x):
        x = torch.tanh(m.layer(x))
        return m.out(torch.tanh(m.other(torch.tanh(m.layer(x)))))

    module = Network(run, layer=nn.Linear(5, 5), other=nn.Linear(5, 5), out=nn.Linear(5, 2))
    module.other.weight = module.layer.weight
    if tied_bias:
        module.other.bias = module.layer.bias
    return module


def by_functions():
    """Weights used by functions, transposed and masked too; results changed in place."""

    def run(m, x):
        x = functional.relu_(functional.linear(x, m.a))
        x = functional.linear(x, m.b) + functional.linear(x, m.b.T)
        x = functional.conv2d(input=x.view(-1, 1, 2, 2), weight=m.kernel, padding=(1, 0))
        return 0.5 * m.out(x.relu_().flatten(1)[:, :8].repeat(1, 2)[:, :8])

    out = nn.Linear(8, 3, bias=False)
    return Network(run, a=parameter(4, 5), b=parameter(4, 4), kernel=parameter(2, 1, 2, 2), out=out)


def time_first():
    """Works on (time, n, features), so that rows are not samples; 3 times, as many as probed."""
    return Network(
        lambda m, x: m.out(torch.tanh(m.layer(x.transpose(0, 1))).sum(0)),
        layer=nn.Linear(4, 4), out=nn.Linear(4, 2),
    )  # fmt: skip


def attention():
    return Network(
        lambda m, x: m.out(m.attend(x, x, x)[0].mean(1)),
        attend=nn.MultiheadAttention(4, 2, batch_first=True), out=nn.Linear(4, 2),
    )  # fmt: skip


def wasteful():
    """Throws a result away."""

    def run(m, x):
        m.layer(x + 1)
        return m.out(torch.tanh(m.layer(x)))

    return Network(run, layer=nn.Linear(5, 4), out=nn.Linear(4, 2))


def sequential(*layers):
    return lambda: nn.Sequential(*(layer() for layer in layers))


def conv(*arguments, **options):
    return lambda: nn.Conv2d(*arguments, **options)


def linear(*arguments, **options):
    return lambda: nn.Linear(*arguments, **options)


def parametrized():
    layer = nn.Linear(5, 4)
    squared = Network(lambda _, weight: weight**2)
    nn.utils.parametrize.register_parametrization(layer, "weight", squared)
    return layer


def frozen():
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    module[2].weight.requires_grad_(False)
    module[4].bias.requires_grad_(False)
    return module


def normalized():
    module = nn.Sequential(
        nn.Conv2d(2, 3, 2, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(),
        nn.Linear(12, 2),
    )  # fmt: skip
    module[1].running_mean.normal_()
    return module.eval()


# name: module, a sample's shape, the forms that it should take for many samples
IMAGE, VECTOR, SEQUENCE = (4, 6, 4), (5,), (3, 4)
MODULES = {
    "mlp": (
        sequential(linear(5, 7), nn.Tanh, linear(7, 6), nn.ReLU, linear(6, 3)),
        VECTOR, ["Pair", "Pair", "Readout"],
    ),
    "one layer": (linear(5, 3), VECTOR, ["Readout"]),
    "softmax": (sequential(linear(5, 3), lambda: nn.Softmax(1)), VECTOR, ["Gradient"]),
    "convolutions": (
        sequential(conv(4, 6, 3, stride=2, padding=1, groups=2), lambda: nn.ReLU(inplace=True),
                   conv(6, 4, (3, 1), dilation=(2, 1), padding="same", bias=False), nn.Tanh,
                   nn.Flatten, linear(24, 2)),
        IMAGE, ["Gradient", "Gradient", "Readout"],
    ),
    "uneven windows": (
        sequential(conv(4, 3, (3, 2), padding=(2, 1), stride=(2, 1), dilation=(1, 2)), nn.ReLU,
                   conv(3, 3, 1, padding="valid", padding_mode="circular"), nn.Tanh,
                   conv(3, 2, 3, padding=1, padding_mode="reflect"),
                   lambda: nn.AdaptiveAvgPool2d(1), nn.Flatten),
        IMAGE, ["Gradient"] * 3,
    ),
    "wide windows": (  # one position: products of pairs are cheaper
        sequential(conv(4, 9, (6, 4)), nn.ReLU, nn.Flatten, linear(9, 2)),
        IMAGE, ["Pair", "Readout"],
    ),
    "convolution 1d": (
        sequential(lambda: nn.Conv1d(3, 2, 2), nn.Flatten, linear(6, 2)),
        SEQUENCE, ["Readout", "Jacobian"],
    ),
    "block": (block, SEQUENCE, ["Gradient", "Gradient", "Gradient", "Readout"]),
    "few positions": (
        sequential(linear(4, 40), nn.Tanh, linear(40, 30), nn.Tanh, nn.Flatten, linear(90, 2)),
        SEQUENCE, ["Gradient", "Pair", "Readout"],
    ),
    "custom": (custom, VECTOR, ["Gradient", "Readout"]),
    "twice": (lambda: twice(True), VECTOR, ["Gradient", "Readout"]),
    "tied to another bias": (lambda: twice(False), VECTOR, ["Readout", "Jacobian"]),
    "functional": (by_functions, VECTOR, ["Gradient", "Gradient", "Gradient", "Jacobian"]),
    "time first": (time_first, SEQUENCE, ["Readout", "Jacobian"]),
    "attention": (attention, SEQUENCE, ["Readout", "Jacobian"]),
    "parametrized": (
        sequential(parametrized, nn.ReLU, linear(4, 2)),
        VECTOR, ["Gradient", "Readout", "Jacobian"],
    ),
    "frozen": (frozen, VECTOR, ["Gradient", "Readout"]),
    "wasteful": (wasteful, VECTOR, ["Gradient", "Readout"]),
    "evaluated": (normalized, (2, 3, 3), ["Gradient", "Gradient", "Readout"]),
}  # fmt: skip


def make(name, n=6, seed=0):
    """A module in float64, and samples."""
    torch.manual_seed(seed)
    build, shape, _ = MODULES[name]
    return build().double(), torch.randn(n, *shape, dtype=torch.float64)


def mlp():
    return make("mlp")[0]


@pytest.mark.parametrize("name", MODULES)
def test_every_layer_by_the_definition(name):
    module, X = make(name, n=9)
    A, B, G = X[:5], X[5:], gradients(module, X)
    for outputs, mode in (*((each, "structured") for each in OUTPUTS), ("full", "jacobian")):
        kernel = rt.EmpiricalNTK(module, outputs, mode=mode)
        expected = products(G, G, outputs)
        a = 5 * len(expected) // 9
        K = kernel(A)
        close(K, expected[:a, :a])
        assert torch.equal(K, K.T)
        close(kernel.diag(X), expected.diagonal())
        close(kernel(A, B), expected[:a, a:])
        close(kernel(B, A), expected[a:, :a])
        if outputs != "full" and name in ("mlp", "convolutions", "block"):
            for way in ("structured", "jacobian"):
                F = rt.EmpiricalNTK(module, outputs, mode=way, max_memory=30_000).features(A)
                close(F @ F.T, expected[:a, :a])
    assert forms(rt.EmpiricalNTK(module), X) == MODULES[name][2]
    assert forms(rt.EmpiricalNTK(module, mode="jacobian"), X) == ["Jacobian"]


@pytest.mark.parametrize("name", ["mlp", "few positions", "wide windows", "twice", "softmax"])
def test_both_forms_of_a_layer_agree(name, monkeypatch):
    module, X = make(name)
    G = gradients(module, X)
    monkeypatch.setattr(terms, "PAIR_NUMBERS", {"cpu": 500})  # few rows at a time
    for overhead, outputs in itertools.product((-1e9, 1e9), OUTPUTS):
        monkeypatch.setattr("retarget.kernels.empirical.forms.PAIR_OVERHEAD", overhead)
        kernel, expected = rt.EmpiricalNTK(module, outputs), products(G, G, outputs)
        assert ("Pair" in forms(kernel, X)) == (overhead < 0)
        assert ("Gradient" in forms(kernel, X)) == (overhead > 0)
        close(kernel(X), expected)
        close(kernel.diag(X), expected.diagonal())


@pytest.mark.parametrize("second", [lambda m, x: x @ m.layer.weight, lambda m, x: m.other(x)])
def test_weights_used_for_some_samples_only(second):
    """A second use of one weight, which opens for positive samples only."""
    torch.manual_seed(0)
    module = Network(
        lambda m, x: m.out(torch.tanh(m.layer(x)) + x[:, :1].relu() * second(m, x)),
        layer=nn.Linear(3, 3), other=nn.Linear(3, 3), out=nn.Linear(3, 2),
    ).double()  # fmt: skip
    module.other.weight = module.layer.weight
    X = torch.randn(7, 3, dtype=torch.float64)
    X[:, 0] = torch.tensor([-1.0, 1, 1, -1, 1, 1, -1])  # closed for those that are tried
    close(rt.EmpiricalNTK(module)(X), oracle_gram(module, X, X))


def test_gradients_are_computed_once_a_panel(monkeypatch):
    module, X = make("convolutions", n=12)
    kernel, passed = rt.EmpiricalNTK(module), []
    factors, prepare = plan.EmpiricalPlan.factors, assembly.Assembly.__init__

    def counted(plan, x, into):
        passed.append(len(x))
        return factors(plan, x, into)

    def small(made, *arguments):
        prepare(made, *arguments)
        made.chunk = 2
        made.panel = 5

    monkeypatch.setattr(plan.EmpiricalPlan, "factors", counted)
    kernel(X)
    assert sum(passed) == 12
    kernel(X, X[:5])
    assert sum(passed) == 12 + 17
    monkeypatch.setattr(assembly.Assembly, "__init__", small)
    kernel(X)
    assert sum(passed) == 12 + 17 + 12 + 7 + 2


def test_libraries_types_and_accumulation():
    module, X = make("convolutions", n=20)
    kernel = rt.EmpiricalNTK(module)
    exact = kernel(X)
    K = kernel(X.numpy(), X.numpy()[:2])
    assert isinstance(K, np.ndarray)
    np.testing.assert_array_equal(K, kernel(X, X[:2]).numpy())
    assert isinstance(kernel.diag(X.numpy()), np.ndarray)
    assert isinstance(kernel.features(X.numpy()), np.ndarray)
    module.float()
    single = rt.EmpiricalNTK(module)(X)  # computes in the parameters' type
    assert single.dtype == torch.float32
    close(single.double(), exact, 1e-5)
    double = rt.EmpiricalNTK(module, accumulate=torch.float64)
    assert double(X).dtype == double.diag(X).dtype == double(X, X[:3]).dtype == torch.float64
    F = rt.EmpiricalNTK(module).features(X).double()
    close(double(X), F @ F.T, 1e-6)
    module.double()
    assert rt.EmpiricalNTK(module, accumulate=torch.float32)(X).dtype == torch.float32
    module.bfloat16()
    close(rt.EmpiricalNTK(module)(X).double(), exact, 0.1)


def test_a_million_gradients_add_up_in_single_precision():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(1000, 1000), nn.Tanh(), nn.Linear(1000, 1))
    X = torch.randn(4, 1000)
    single = rt.EmpiricalNTK(module, mode="jacobian")(X).double()
    close(single, rt.EmpiricalNTK(module.double())(X.double()), 1e-5)


def test_outputs_samples_and_weights_that_change():
    module, X = make("mlp")
    expected = (oracle_gram(module, X, X, 1) + oracle_gram(module, X, X, 2)) / 2
    for mode in ("structured", "jacobian"):
        kernel = rt.EmpiricalNTK(module, range(1, 3), mode=mode)  # the mean over these
        close(kernel(X), expected)
        features, outputs = kernel.features_and_outputs(X)
        close(features @ features.T, expected)
        close(outputs, module(X).detach())  # all of them, from the same pass
    for outputs, rows in (("mean", 1), ("full", 3)):
        kernel = rt.EmpiricalNTK(module, outputs)
        assert kernel(X[:0]).shape == (0, 0)
        assert kernel(X[:0], X[:0]).shape == (0, 0)
        assert kernel(X[:0], X).shape == (0, 6 * rows)
        assert kernel(X, X[:0]).shape == (6 * rows, 0)
        assert kernel.diag(X[:0]).shape == (0,)
        close(kernel(X[:1]), oracle_gram(module, X[:1], X[:1], outputs))
    kernel = rt.EmpiricalNTK(module)
    before = kernel(X)
    with torch.no_grad():
        module[0].weight.mul_(2)
    assert (kernel(X) - before).abs().max() > 0.01
    close(kernel(X), oracle_gram(module, X, X))
    module[0].requires_grad_(False)
    close(kernel(X), oracle_gram(module, X, X))


@st.composite
def problems(draw):
    """A random small network and samples."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    c, width, bias = draw(st.integers(1, 4)), draw(st.integers(1, 6)), draw(st.booleans())
    activation = draw(st.sampled_from([nn.ReLU, nn.Tanh, nn.GELU]))
    if draw(st.booleans()):
        stride, padding = draw(st.integers(1, 2)), draw(st.integers(0, 2))
        first = nn.Conv2d(2, 2 * width, 2, stride, padding, groups=draw(st.sampled_from([1, 2])))
        size = first(torch.zeros(1, 2, 3, 4)).numel()
        module = nn.Sequential(first, activation(), nn.Flatten(), nn.Linear(size, c, bias=bias))
        shape = (2, 3, 4)
    else:
        module = nn.Sequential(
            nn.Linear(3, width, bias=bias), activation(), nn.Linear(width, c, bias=bias)
        )
        shape = (3,)
    X = torch.randn(draw(st.integers(2, 8)), *shape, dtype=torch.float64)
    return module.double(), X


def test_amounts_of_memory():
    amounts = {"30kB": 30_000, "1.5 MiB": 3 << 19, 4000: 4000, "auto": "auto"}
    assert {each: rt.EmpiricalNTK(mlp(), max_memory=each).max_memory for each in amounts} == amounts


@fewer_examples
@given(problems(), st.sampled_from(OUTPUTS[:3]), st.integers(1, 200_000))
def test_positive_symmetric_and_made_of_blocks(problem, outputs, memory):
    module, X = problem
    kernel = rt.EmpiricalNTK(module, outputs, max_memory=memory)
    K = kernel(X)
    assert torch.equal(K, K.T)
    assert torch.linalg.eigvalsh(K).min() >= -1e-12 * K.diagonal().max()
    close(kernel.diag(X), K.diagonal(), 1e-12)
    r = len(K) // len(X)
    close(kernel(X[:1], X[1:]), K[:r, r:], 1e-12)
    close(K, oracle_gram(module, X, X, outputs))


def test_the_error_of_sketches_falls():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 60), nn.Tanh(), nn.Linear(60, 40), nn.Tanh(),
                           nn.Linear(40, 3)).double()  # fmt: skip
    X = torch.randn(8, 20, dtype=torch.float64)
    exact, sizes, errors = rt.EmpiricalNTK(module)(X), [16, 64, 256], []
    for size in sizes:
        draws = torch.stack(
            [rt.EmpiricalNTK(module, sketch=size, seed=seed)(X) for seed in range(40)]
        )
        gap = draws - exact
        errors.append(gap.square().mean().sqrt().item())
        standard = gap.square().mean(0).sqrt() / math.sqrt(40)
        assert (gap.mean(0).abs() <= 4.5 * standard).all()
        norms = exact.diagonal()[:, None] * exact.diagonal()
        assert (gap.square().mean(0) <= 2 * (norms + exact**2) / size).all()
    exponent = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.6 < exponent < -0.4


def test_a_sketch_is_the_same_for_all_calls():
    module, X = make("block", n=9)
    kernel = rt.EmpiricalNTK(module, sketch=50, seed=3)
    S = kernel.features(X)
    assert S.shape == (9, 50)
    close(kernel(X), S @ S.T, 1e-12)
    close(kernel(X[:4], X), (S @ S.T)[:4], 1e-12)
    close(kernel.diag(X), S.square().sum(1), 1e-12)
    torch.manual_seed(1)
    small = rt.EmpiricalNTK(module, sketch=50, seed=3, max_memory=1)
    close(small.features(X[3:]), S[3:], 1e-12)
    assert not torch.allclose(rt.EmpiricalNTK(module, sketch=50, seed=4).features(X), S)
    X = torch.randn(5, 6, dtype=torch.float64)
    last = nn.Linear(6, 4, bias=False).double()  # exact from 6 numbers for each of its outputs on
    for outputs, size in (("mean", 24), (range(3), 18), (range(3, 0, -2), 12), (3, 6)):
        kernel = rt.EmpiricalNTK(last, outputs, sketch=size, seed=2)
        close(kernel(X), rt.EmpiricalNTK(last, outputs)(X), 1e-12)
    module = nn.Sequential(last, nn.Tanh()).double()  # and others for as many as their gradients
    close(rt.EmpiricalNTK(module, sketch=96)(X), oracle_gram(module, X, X), 1e-12)


def test_split_products_are_as_precise_as_float32():
    torch.manual_seed(0)
    for spread in (0.0, 3.0):
        sizes = torch.exp(spread * torch.randn(40, 5000))
        F = torch.randn(40, 5000) * sizes * 10.0 ** torch.linspace(-12, 12, 40)[:, None]
        F[3] = 0
        hi, lo, scale = split(F)
        assert hi.dtype == lo.dtype == torch.float16
        K = split_product((hi, lo), (hi, lo)).double() * scale.double() * scale.double().T
        exact = F.double() @ F.double().T
        size = F.double().norm(dim=1)[:, None] * F.double().norm(dim=1) + 1e-300
        assert ((K - exact).abs() / size).max() < 1e-6


def test_split_terms_on_tensor_cores(monkeypatch):
    """The arithmetic of CUDA's tensor cores, in plain float32."""
    module, X = make("convolutions", n=9)
    exact = rt.EmpiricalNTK(module, "full")(X)
    single = rt.EmpiricalNTK(module.float(), "full")
    assert torch.equal(single(X), rt.EmpiricalNTK(module, "full", precision="split")(X))
    monkeypatch.setattr("retarget.kernels.empirical.ntk.tensor_cores", lambda device: True)
    monkeypatch.setattr(terms, "DEPTH", 7)
    kernel = rt.EmpiricalNTK(module, "full", precision="split", max_memory=100_000)
    assert forms(kernel, X.float()) == ["Split", "Split", "Readout"]
    close(kernel(X).double(), exact, 1e-5)
    close(kernel.diag(X).double(), exact.diagonal(), 1e-5)
    close(kernel(X[:2], X).double(), exact[:4], 1e-5)
    F = rt.EmpiricalNTK(module, precision="split").features(X).double()
    close(F @ F.T, oracle_gram(module.double(), X, X), 1e-5)


def snapshot(module):
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    hooks = [
        (len(part._forward_hooks), len(part._forward_pre_hooks), len(part._backward_hooks))
        for part in module.modules()
    ]
    flags = [part.training for part in module.modules()]
    wanted = [value.requires_grad for value in module.parameters()]
    return file.getvalue(), hooks, flags, wanted


def counting():
    """Writes to a buffer in every forward pass."""

    def run(m, x):
        m.calls += 1
        return torch.tanh(m.linear(x)) * m.scale

    module = Network(run, linear=nn.Linear(5, 2), scale=nn.Parameter(torch.ones(())))
    module.register_buffer("calls", torch.zeros(()))
    return module


@pytest.mark.parametrize("name", ["mlp", "convolutions", "evaluated", "parametrized", "counting"])
def test_everything_is_left_as_it_was(name):
    module, X = make("mlp" if name == "counting" else name)
    module = counting().double() if name == "counting" else module
    expected = oracle_gram(copy.deepcopy(module), X, X)
    parameters, copied = list(module.parameters()), X.clone()
    for value in parameters:
        value.grad = torch.full_like(value, 7.0)
    before = snapshot(module)
    X.requires_grad_()
    torch.set_float32_matmul_precision("high")
    try:
        for mode in ("structured", "jacobian"):
            kernel = rt.EmpiricalNTK(module, mode=mode)
            K = kernel(X)
            close(K, expected)
            assert not K.requires_grad
            with pytest.raises(InvalidInputError, match="does not take samples of shape"):
                kernel(X.detach().flatten(1)[:, :1])
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert snapshot(module) == before
    assert all(a is b for a, b in zip(module.parameters(), parameters, strict=True))
    assert all((value.grad == 7).all() for value in parameters)
    assert X.grad is None
    assert torch.equal(X.detach(), copied)


def returns(change):
    return lambda: Network(lambda m, x: change(m.linear(x)), linear=nn.Linear(5, 3))


def batch_norm(**options):
    return nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, **options), nn.Linear(3, 2))


def two_types():
    return nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2).double())


def turn():
    """Takes another path for many samples than for the few that are tried."""
    return Network(
        lambda m, x: m.out((m.a if len(x) < 4 else m.b)(x).tanh()),
        a=nn.Linear(5, 2), b=nn.Linear(5, 2), out=nn.Linear(2, 2),
    )  # fmt: skip


# module, other options, message
REFUSED = [
    (mlp, {"outputs": "all"}, "outputs is 'all'; expected 'mean'"),
    (mlp, {"outputs": True}, "outputs is True; expected"),
    (mlp, {"outputs": -1}, "outputs is -1; expected"),
    (mlp, {"outputs": range(0)}, r"outputs is range\(0, 0\); expected"),
    (mlp, {"outputs": range(-1, 2)}, "or a range of them"),
    (mlp, {"outputs": 3}, "has 3 outputs; expected 0 to 2"),
    (mlp, {"outputs": range(2, 4)}, "has 3 outputs; expected 0 to 2"),
    (mlp, {"mode": "fast"}, "mode is 'fast'; expected 'struct"),
    (mlp, {"accumulate": torch.float16}, "accumulate is torch.float16; expected torch.float32"),
    (mlp, {"precision": "half"}, "precision is 'half'; expected"),
    (mlp, {"max_memory": 0}, "max_memory is 0; expected an amount such as 4GB"),
    (mlp, {"max_memory": "lots"}, "max_memory is 'lots'; expected an amount"),
    (mlp, {"sketch": -2}, "sketch is -2; expected a positive"),
    (mlp, {"sketch": 9.0}, "sketch is 9.0; expected a positive whole number"),
    (mlp, {"sketch": "9"}, "sketch is '9'; expected a positive whole number"),
    (mlp, {"seed": None}, "seed is None; expected a whole number from 0"),
    (mlp, {"outputs": "full", "sketch": 9}, "'full', which cannot be sketched"),
    (mlp, {"params": ["2.wieght"]}, r"params has '2.wieght', .*did you mean '2.weight'\?"),
    (mlp, {"params": []}, "params selects no parameters; expected"),
    (nn.ReLU, {}, "no trained parameters; expected"),
    (lambda: mlp().requires_grad_(False), {}, "no trained parameters"),
    (returns(lambda y: torch.ones(len(y), 2)), {}, "depend on none of .* linear.weight"),
    (custom, {"params": "idle"}, "depend on none of the parameters idle"),
    (two_types, {}, "float32 on cpu, torch.float64 on cpu"),
    (batch_norm, {}, r"layer '1' \(BatchNorm1d\) normalizes by the batch.*eval"),
    (lambda: batch_norm(track_running_stats=False).eval(), {}, "normalizes by the batch"),
    (lambda: nn.Sequential(nn.Linear(5, 2), nn.Dropout(0.1)), {}, r"\(Dropout\) is random in"),
    (returns(functional.dropout), {}, "and are not random"),
    (returns(lambda y: y * math.nan), {}, "not finite, though its weights and samples are, as if"),
    (returns(lambda y: (y, y)), {}, "returned a tuple; exp"),
    (returns(lambda y: y[:, 0]), {}, r"shape \(3,\) for 3"),
    (returns(lambda y: y[:1]), {}, r"shape \(1, 3\) for 3"),
    (returns(lambda y: y > 0), {}, "returned torch.bool"),
    (turn, {}, "between two batches with different other samples"),
]


@pytest.mark.parametrize(("make", "options", "message"), REFUSED)
def test_refused_modules_and_options(make, options, message):
    with pytest.raises(InvalidInputError, match=message):
        rt.EmpiricalNTK(make(), **options)(torch.randn(7, 5))


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda kernel, x: kernel(x.to("meta")), InvalidInputError, "A is on meta, but the module is"),
    (lambda kernel, x: kernel(x.long()), InvalidTypeError, "have dtype int64, and the module"),
    (lambda kernel, x: kernel(x, x[:, :2]), InvalidInputError, "expected the same features"),
    (lambda kernel, x: kernel.features(x[:0]), InvalidInputError, "A is empty; expected at least"),
    (lambda kernel, x: rt.EmpiricalNTK(mlp(), "full").features(x), InvalidInputError, "one row"),
    (lambda kernel, x: rt.EmpiricalNTK("net"), InvalidTypeError, "module is 'net'; expected a"),
])  # fmt: skip
def test_refused_calls(call, error, message):
    with pytest.raises(error, match=message):
        call(rt.EmpiricalNTK(mlp()), torch.randn(7, 5))


@pytest.mark.parametrize("params", [3.0, [1, 2], [["0.weight"]], torch.ones(2), b"0.weight"])
def test_parameters_that_are_no_names(params):
    told = f"params is a {type(params).__name__}; expected the name of a parameter or a layer"
    with pytest.raises(InvalidTypeError, match=told):
        rt.EmpiricalNTK(mlp(), params=params)
    with pytest.raises(InvalidTypeError, match=told):
        rt.TangentLearner(mlp(), params=params)


def test_too_large_a_matrix_is_refused(monkeypatch):
    module, X = make("mlp", n=20)
    monkeypatch.setattr("retarget.arrays.free_memory", lambda device: 1000)
    with pytest.raises(StreamTooLargeError, match="the kernel matrix needs about"):
        rt.EmpiricalNTK(module)(X)
    monkeypatch.setattr("retarget.arrays.free_memory", lambda device: None)
    monkeypatch.setattr("retarget.kernels.empirical.assembly.free_memory", lambda device: None)
    close(rt.EmpiricalNTK(module)(X), oracle_gram(module, X, X))


def test_representation_progress_and_the_oracle_itself(capsys, monkeypatch):
    module, X = make("mlp", n=2)
    assert repr(rt.EmpiricalNTK(module, "sum")) == "EmpiricalNTK(Sequential, outputs='sum')"
    sketch = rt.EmpiricalNTK(module, 1, sketch=8, seed=2)
    assert repr(sketch) == "EmpiricalNTK(Sequential, outputs=1, sketch=8, seed=2)"
    monkeypatch.setattr("retarget.progress.PATIENCE", 0.0)
    rt.EmpiricalNTK(module, progress=True)(X)
    assert "empirical kernel" in capsys.readouterr().err
    # the oracle against a finite difference
    weight, step = module[0].weight, 1e-6
    found = gradients(module, X[:1])[0, :, 0]
    with torch.no_grad():
        before = module(X[:1])[0]
        weight[0, 0] += step
        torch.testing.assert_close((module(X[:1])[0] - before) / step, found, rtol=1e-4, atol=1e-6)
