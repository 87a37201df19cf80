"""A tangent learner as an ordinary module: the same answers, without the learner."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget.errors import InvalidInputError
from retarget.streaming import module as module_file


def flip(X):
    return X.flip(-1)


class Tokens(nn.Module):
    """Takes a dict; has tied weights, a transposed matrix, an embedding and a bare parameter."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(7, 6), nn.LayerNorm(6)
        self.matrix, self.scale = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.randn(6))
        self.tied = nn.Linear(6, 7)
        self.tied.weight = self.table.weight
        self.offset = nn.Parameter(torch.randn(5))

    def forward(self, ids, mask):
        seen = torch.tanh(self.norm(self.table(ids)) * self.scale) * mask[..., None]
        both = torch.addmm(self.offset, seen.mean(1), self.matrix)
        return torch.cat([both, self.tied(torch.tanh(seen).sum(1))], 1)


def mlp(c=3):
    return nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 8, bias=False), nn.Linear(8, c))


def convolutional(c=3):
    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 2, groups=2)]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, c))


def samples(name, n=12):
    if name == "tokens":
        return {"ids": torch.randint(0, 7, (n, 4)), "mask": torch.rand(n, 4).double()}
    return torch.randn(n, 4).double() if name == "mlp" else torch.randn(n, 2, 7, 7).double()


NETWORKS = {"mlp": mlp, "conv": convolutional, "tokens": Tokens}


def learned_module(name, outputs, **options):
    torch.manual_seed(3)
    network = NETWORKS[name]().double()
    learner = rt.TangentLearner(network, 0.3, 29, seed=5, **options)
    return learner.learn(samples(name), torch.randn(12, outputs).double())


@pytest.mark.parametrize("few", [0, 99], ids=["gradients", "directions"])
@pytest.mark.parametrize(
    ("name", "outputs", "options"),
    [
        ("mlp", 3, {}),  # learning starts from the network's outputs
        ("mlp", 5, {"combinations": 3, "views": [None, flip]}),
        ("mlp", 1, {"params": ["0.bias", "3"]}),
        ("conv", 3, {"combinations": 3, "views": [flip, None]}),
        ("conv", 2, {"params": "*.weight"}),
        ("tokens", 12, {}),
        ("tokens", 4, {"combinations": 3}),
    ],
)
def test_a_module_predicts_as_its_learner(name, outputs, options, few, monkeypatch):
    monkeypatch.setattr(module_file, "FEW_DIRECTIONS", few)
    learner = learned_module(name, outputs, **options)
    module, queries = learner.as_module(), samples(name, 7)
    before = learner.predict(queries)
    learner.learn(samples(name), torch.randn(12, outputs).double())  # which changes no module
    found = module.train()(queries)
    assert not module.network.training
    assert not any(each.requires_grad for each in module.parameters())
    torch.testing.assert_close(found, before, rtol=0, atol=1e-10)
    monkeypatch.setattr(module_file, "GRADIENT_NUMBERS", 1)  # a sample at a time
    torch.testing.assert_close(module(queries), before, rtol=0, atol=1e-10)


def test_one_axis_of_targets_and_their_type():
    learner = rt.TangentLearner(mlp(1), 0.3, 20).learn(torch.randn(9, 4), torch.randn(9).double())
    queries = torch.randn(5, 4)
    found = learner.as_module()(queries)
    assert (found.shape, found.dtype) == ((5, 1), torch.float64)
    torch.testing.assert_close(found[:, 0], learner.predict(queries), rtol=0, atol=1e-5)


def test_a_learner_that_was_loaded_or_merged(tmp_path):
    learner, queries = learned_module("conv", 3, combinations=2), samples("conv", 5)
    learner.save(tmp_path / "learner")
    loaded = rt.TangentLearner.load(tmp_path / "learner", convolutional().double())
    torch.testing.assert_close(
        loaded.as_module()(queries), learner.predict(queries), rtol=0, atol=1e-10
    )
    options = {"combinations": 2, "seed": 5}
    merged = rt.TangentLearner(learner.module, 0.3, 29, **options).merge(learner)
    module = merged.as_module()  # though no sample has passed through this learner's network
    torch.testing.assert_close(module(queries), merged.predict(queries), rtol=0, atol=1e-10)


class Branching(nn.Module):
    """Looks at its samples' numbers, which `torch.func.vmap` does not allow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, X):
        return torch.tanh(self.layer(X)) if X.abs().max() < 1e6 else self.layer(X)


def test_a_network_that_branches_on_its_samples():
    learner = rt.TangentLearner(Branching().double(), 0.3, 11)
    learner.learn(samples("mlp"), torch.randn(12, 3).double())
    queries = samples("mlp", 5)
    found = learner.as_module()(queries)
    torch.testing.assert_close(found, learner.predict(queries), rtol=0, atol=1e-10)


class Counting(nn.Linear):
    """Counts its calls and adds up its samples."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("total", torch.zeros(()))

    def forward(self, X):
        self.calls += 1
        self.total += X.detach().sum()
        return super().forward(X)


class Sine(torch.autograd.Function):
    """A derivative of one's own, for a backward pass only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class OwnFunction(nn.Module):
    """Uses its first layer for samples with a positive number only."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, X):
        rows = X[:, :1] > 0
        seen = torch.where(rows, Sine.apply(self.first(X)), X) if rows.any() else X
        return Sine.apply(self.last(seen))


@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: nn.Sequential(Counting(4, 6), nn.Tanh(), Counting(6, 3)), {}),
        (OwnFunction, {"combinations": 2}),
        (OwnFunction, {"params": "first"}),  # on which some samples' outputs do not depend
    ],
    ids=["counter", "own function", "own function, some parameters"],
)
def test_counters_and_own_derivatives(make, options, mode, outputs):
    torch.manual_seed(0)
    learner = rt.TangentLearner(make().double(), 0.3, 17, seed=1, **options)
    learner.learn(samples("mlp"), torch.randn(12, outputs).double())
    queries = samples("mlp", 7)
    expected, module = learner.predict(queries), learner.as_module()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with mode():
        found = module(queries), torch.cat([module(query[None]) for query in queries])
        assert module(queries[:0]).shape == (0, outputs)
    for each in found:
        torch.testing.assert_close(each.clone(), expected, rtol=0, atol=1e-10)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


class Padded(nn.Module):
    """Looks tokens up with these options."""

    def __init__(self, **options):
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(6, 7)), nn.Linear(7, 4)
        self.options = options

    def forward(self, tokens):
        vectors = nn.functional.embedding(tokens, self.table, **self.options)
        return self.head(torch.tanh(vectors.sum(1)))


def padded(outputs, **options):
    torch.manual_seed(2)
    tokens = torch.randint(0, 6, (12, 5))
    learner = rt.TangentLearner(Padded(**options).double(), 0.3, 23)
    return learner.learn(tokens, torch.randn(12, outputs).double()), tokens


EMBEDDINGS = {
    "padding": {"padding_idx": -2},
    "sparse padding": {"padding_idx": 4, "sparse": True},
    "by frequency": {"scale_grad_by_freq": True},
}


@pytest.mark.parametrize("few", [0, 99], ids=["gradients", "directions"])
@pytest.mark.parametrize("kind", EMBEDDINGS)
def test_embeddings_whose_gradients_are_no_derivatives(kind, few, monkeypatch):
    monkeypatch.setattr(module_file, "FEW_DIRECTIONS", few)
    learner, tokens = padded(3, **EMBEDDINGS[kind])
    expected = torch.cat([learner.predict(each[None]) for each in tokens])
    torch.testing.assert_close(learner.as_module()(tokens), expected, rtol=0, atol=1e-10)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch 2.11 exports no forward mode")
def test_what_torch_exports_of_such_embeddings():
    learner, tokens = padded(3, padding_idx=4)
    exported = torch.export.export(learner.as_module(), (tokens,)).module()
    torch.testing.assert_close(exported(tokens), learner.predict(tokens), rtol=0, atol=1e-10)
    learner, tokens = padded(3, scale_grad_by_freq=True)
    with pytest.raises(InvalidInputError, match="an embedding with scale_grad_by_freq"):
        torch.export.export(learner.as_module(), (tokens,))


class Rounded(torch.autograd.Function):
    """Passes gradients straight through, but is constant in forward mode, as it really is."""

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g

    @staticmethod
    def jvp(ctx, tangent):
        return 0 * tangent


class Straight(Rounded):
    """Its rule for batches is wrong."""

    @staticmethod
    def vmap(info, dims, x):
        return 2 * x, dims[0]


class Through(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.function, self.last = nn.Linear(4, 6), function, nn.Linear(6, 3)

    def forward(self, X):
        return self.last(self.function.apply(3 * self.first(X)) / 3)


@pytest.mark.parametrize("outputs", [1, 5])  # forward mode, gradients
@pytest.mark.parametrize("function", [Rounded, Straight])
def test_functions_whose_derivatives_contradict_each_other(function, outputs):
    torch.manual_seed(5)
    learner = rt.TangentLearner(Through(function).double(), 0.3, 17)
    learner.learn(samples("mlp"), torch.randn(12, outputs).double())
    queries = samples("mlp", 7)
    expected = torch.cat([learner.predict(query[None]) for query in queries])
    torch.testing.assert_close(learner.as_module()(queries), expected, rtol=0, atol=1e-10)


def test_nothing_learned():
    with pytest.raises(InvalidInputError, match="nothing has been learned yet"):
        rt.TangentLearner(mlp()).as_module()


def test_weights_go_from_one_module_to_another():
    one, other = (
        learned_module("mlp", 5),
        learned_module("mlp", 5).learn(samples("mlp"), torch.ones(12, 5).double()),
    )
    module, queries = one.as_module(), samples("mlp", 5)
    module.load_state_dict(other.as_module().state_dict())
    torch.testing.assert_close(module(queries), other.predict(queries), rtol=0, atol=1e-10)
    module.load_state_dict({name: 0 * each for name, each in module.state_dict().items()})
    torch.testing.assert_close(learned_module("mlp", 5).as_module()(queries), one.predict(queries))


def test_a_saved_module_runs_alone(tmp_path):
    learner, queries = learned_module("mlp", 5, views=[None, torch.negative]), samples("mlp", 5)
    torch.save(learner.as_module(), tmp_path / "module")
    np.savez(tmp_path / "case", X=queries.numpy(), Y=learner.predict(queries).numpy())
    script = f"""
import numpy, torch
module = torch.load({str(tmp_path / "module")!r}, weights_only=False)
case = numpy.load({str(tmp_path / "case.npz")!r})
gap = numpy.abs(module(torch.tensor(case["X"])).numpy() - case["Y"]).max()
assert gap < 1e-10, gap
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch 2.11 exports no forward mode")
@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_torch_exports_it(name, tmp_path):
    learner = learned_module(name, 3, combinations=2, views=[None, flip])
    queries = samples(name, 6)
    torch.export.save(torch.export.export(learner.as_module(), (queries,)), tmp_path / "net.pt2")
    found = torch.export.load(tmp_path / "net.pt2").module()(queries)
    torch.testing.assert_close(found, learner.predict(queries), rtol=0, atol=1e-10)
