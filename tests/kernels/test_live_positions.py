"""Positions that no output depends on are left out of the tangent kernel, and nothing else is."""

import pytest
import torch
from torch import nn

import retarget as rt
from retarget.kernels.empirical import plan
from retarget.samples import take
from support.oracles.empirical_ntk import close, jacobian_gram
from support.small_bert import Layer, sentences


def last_token(x, mask):
    at = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, x.shape[2])
    return x.gather(1, at)[:, 0]


def mean(x, mask):
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


READ = {
    "first token": lambda x, mask: x[:, 0],
    "last token": last_token,
    "mean": mean,
    "two tokens": lambda x, mask: x[:, 1] * x[:, 3],
    "nothing of some": lambda x, mask: x[:, 0] * (mask.sum(1, keepdim=True) % 2),
    "highest": lambda x, mask: x.amax(1),
}


class Reader(nn.Module):
    """A block of a transformer and what is read of its last positions."""

    def __init__(self, read):
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8), nn.Embedding(9, 8)
        self.layer = Layer(8, 2, 10, nn.LayerNorm)
        self.read, self.out = read, nn.Linear(8, 3)
        for norm in (self.layer.norm1, self.layer.norm2):
            nn.init.normal_(norm.weight)

    def forward(self, input_ids, attention_mask):
        x = self.tokens(input_ids) + self.places(torch.arange(9))
        x = self.layer(x, attention_mask[:, None, None, :].bool())
        return self.out(torch.tanh(self.read(x, attention_mask)))


class EachItsOwn(Reader):
    """Output k reads token k alone: another position for every output."""

    def __init__(self):
        super().__init__(None)

    def forward(self, input_ids, attention_mask):
        x = self.tokens(input_ids) + self.places(torch.arange(9))
        x = self.layer(x, attention_mask[:, None, None, :].bool())
        return torch.tanh(x[:, :3]).sum(2) + 0 * self.out(x[:, 0])


def make(read, n=7):
    torch.manual_seed(1)
    module = Reader(READ[read]) if read in READ else EachItsOwn()
    X = sentences(n)
    del X["token_type_ids"]
    return module.double().eval(), X


def packed(kernel, X, name):
    """The positions that the named layer's form has room for; None where it has all."""
    terms = kernel._plan(kernel._samples("A", X), 1e6).terms
    [live] = [term.live for term in terms if term.layer[0] == f"layer.{name}.weight"]
    return live


@pytest.mark.parametrize("outputs", ["mean", "full", 2])
@pytest.mark.parametrize("read", [*READ, "each its own"])
def test_the_kernel_is_that_of_the_jacobian(read, outputs):
    module, X = make(read)
    kernel = rt.EmpiricalNTK(module, outputs)
    expected = jacobian_gram(module, X, X, outputs)
    c = len(expected) // 7
    close(kernel(X), expected)
    close(kernel(take(X, slice(0, 4)), take(X, slice(3, 7))), expected[: 4 * c, 3 * c :])
    close(kernel.diag(X), expected.diagonal())


@pytest.mark.parametrize(
    ("read", "live"),
    [("first token", 1), ("last token", 1), ("two tokens", 2), ("each its own", 3), ("mean", None)],
)
def test_only_what_is_read_is_kept(read, live):
    module, X = make(read)
    kernel = rt.EmpiricalNTK(module, params="layer")
    for name in ("query", "mix", "up", "down", "norm1", "norm2"):
        assert packed(kernel, X, name) == live
    assert packed(kernel, X, "value") is None  # every token is attended to, as many as there are
    close(kernel(X), jacobian_gram(module, X, X, names=layer_names(module)))


def layer_names(module):
    return [name for name, _ in module.named_parameters() if name.startswith("layer.")]


class Late(Reader):
    """Reads the first token, and of samples that begin with token 10 the mean of all."""

    def forward(self, input_ids, attention_mask):
        self.read = lambda x, mask: torch.where(input_ids[:, :1] == 10, mean(x, mask), x[:, 0])
        return super().forward(input_ids, attention_mask)


@pytest.mark.parametrize("outputs", ["mean", "full"])
@pytest.mark.parametrize("weighted", [False, True])
def test_positions_that_come_alive_in_samples_that_were_not_tried(outputs, weighted):
    torch.manual_seed(2)
    module, X = Late(None).double().eval(), make("mean", n=12)[1]
    X["input_ids"][:, 0] = 3
    X["input_ids"][7, 0] = 10  # the first, the last and the middle ones are tried
    names = layer_names(module)
    weights = {name: torch.rand_like(module.get_parameter(name)) + 0.5 for name in names}
    preconditioner = weights if weighted else None
    kernel = rt.EmpiricalNTK(module, outputs, "layer", preconditioner=preconditioner)
    assert packed(kernel, X, "down") == 1
    expected = jacobian_gram(module, X, X, outputs, names, weights if weighted else None)
    close(kernel(X), expected)
    close(kernel.diag(X), expected.diagonal())
    few, c = take(X, slice(6, 8)), 3 if outputs == "full" else 1
    rows = slice(6 * c, 8 * c)
    close(kernel(X, few), expected[:, rows])  # only the fewer ones have such a sample
    if outputs == "mean":
        F = kernel.features(X)
        close(F @ F.T, expected)


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("read", ["first token", "last token", "mean"])
def test_with_a_preconditioner(read, single):
    module, X = make(read)
    names = [name for name, _ in module.named_parameters()]
    full = {name: torch.rand_like(module.get_parameter(name)) + 0.5 for name in names}
    if single:
        full = {name: torch.full_like(value, value.flatten()[0]) for name, value in full.items()}
    given = {name: value.flatten()[0] for name, value in full.items()} if single else full
    kernel = rt.EmpiricalNTK(module, preconditioner=given)
    close(kernel(X), jacobian_gram(module, X, X, weights=full))


@pytest.mark.parametrize("read", ["first token", "last token", "mean", "each its own"])
def test_a_sketch_is_the_same_in_every_form(read, monkeypatch):
    module, X = make(read)
    sketches = []
    for overhead in (-1e9, 64, 1e9):  # all layers by pairs, the cheapest, all by gradients
        monkeypatch.setattr(plan, "PAIR_OVERHEAD", overhead)
        sketches.append(rt.EmpiricalNTK(module, sketch=40, seed=3).features(X))
    close(sketches[1], sketches[0])
    close(sketches[2], sketches[0])
    features = rt.EmpiricalNTK(module).features(X)
    close(features @ features.T, jacobian_gram(module, X, X))


@pytest.mark.parametrize("samples", [0, 3, 20])
def test_in_chunks_and_panels_of_every_size(samples):
    module, X = make("last token")
    held = rt.EmpiricalNTK(module)._plan(X, 1.0).held
    kernel = rt.EmpiricalNTK(module, memory=1 + samples * held)
    close(kernel(X), jacobian_gram(module, X, X))


MIXES = {
    "next": lambda x: x + torch.cat([x[1:], 0 * x[:1]]),
    "previous": lambda x: x + torch.cat([0 * x[:1], x[:-1]]),
    "mean": lambda x: x + x.mean(0),
    "chance": lambda x: x + torch.randn_like(x),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("n", [2, 3, 9])
def test_samples_that_depend_on_each_other_are_refused(mix, n):
    class Mixing(nn.Linear):
        def forward(self, x):
            return MIXES[mix](super().forward(x))

    torch.manual_seed(0)
    with pytest.raises(rt.errors.InvalidInputError, match="in two batches, among different others"):
        rt.EmpiricalNTK(Mixing(4, 2).double())(torch.randn(n, 4, dtype=torch.float64))
