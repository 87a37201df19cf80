"""The tangent kernel of transformers, on token ids and masks, against torch.func's Jacobian."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

import retarget as rt
from retarget.kernels.empirical import plan
from retarget.samples import take
from support.oracles.empirical_ntk import close, forms, jacobian_gram
from support.oracles.empirical_ntk import gram as oracle_gram
from support.small_bert import RMSNorm, SmallBert, sentences

BARE = functools.partial(nn.LayerNorm, elementwise_affine=False)
NO_BIAS = functools.partial(nn.LayerNorm, bias=False)
# options of the network, and whether all of its parameters have a rule
NETWORKS = {
    "positions in a row": ({}, True),
    "flat positions": ({"positions": "flat"}, True),
    "positions of each sample": ({"positions": "each"}, True),
    "added positions": ({"positions": "added"}, True),
    "norms without parameters": ({"norm": BARE}, True),
    "norms without bias": ({"norm": NO_BIAS}, True),
    "norms of torch": ({"norm": nn.RMSNorm}, True),
    "norms by hand": ({"norm": RMSNorm}, True),
    "tied": ({"tied": True}, False),
}


def network(name, **options):
    torch.manual_seed(1)
    module = SmallBert(**NETWORKS[name][0], **options).double().eval()
    for layer in module.modules():
        if isinstance(layer, nn.LayerNorm) and layer.weight is not None:
            nn.init.normal_(layer.weight)  # as if it were trained
    return module


@pytest.mark.parametrize("outputs", ["mean", "full", 1])
@pytest.mark.parametrize("name", NETWORKS)
def test_agrees_with_the_jacobian(name, outputs):
    module, X = network(name), sentences(7)
    A, B = take(X, slice(0, 4)), take(X, slice(4, 7))
    kernel = rt.EmpiricalNTK(module, outputs)
    expected = jacobian_gram(module, X, X, outputs)
    a = 4 * len(expected) // 7
    close(kernel(A), expected[:a, :a])
    close(kernel(A, B), expected[:a, a:])
    close(kernel(B, A), expected[a:, :a])
    close(kernel.diag(X), expected.diagonal())
    assert ("Jacobian" in forms(kernel, A)) == (not NETWORKS[name][1])


@pytest.mark.parametrize("outputs", ["mean", "full"])
@pytest.mark.parametrize("overhead", [-1e9, 1e9])
def test_both_forms_of_an_embedding_agree(overhead, outputs, monkeypatch):
    module, X = network("positions in a row"), sentences(5)
    monkeypatch.setattr(plan, "PAIR_OVERHEAD", overhead)
    kernel = rt.EmpiricalNTK(module, outputs, params=["tokens", "positions", "segments"])
    assert set(forms(kernel, X)) == {"Pair" if overhead < 0 else "Gradient"}
    names = ["tokens.weight", "positions.weight", "segments.weight"]
    expected = jacobian_gram(module, X, X, outputs, names)
    close(kernel(X), expected)
    close(kernel.diag(X), expected.diagonal())
    if outputs == "mean":
        F = kernel.features(X)
        close(F @ F.T, expected)
        exact = rt.EmpiricalNTK(module, params="tokens.weight", sketch=3 * 11 * 8)
        close(exact(X), jacobian_gram(module, X, X, names=["tokens.weight"]))


PARTS = {
    "layer": ("layers.1", lambda name: name.startswith("layers.1.")),
    "pattern": ("*.norm?.bias", lambda name: ".norm" in name and name.endswith("bias")),
    "several": (
        ["classifier", "pooler.bias"], lambda name: name.startswith(("classifier", "pooler.b"))
    ),
    "function": (lambda name: "query" in name, lambda name: "query" in name),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["structured", "jacobian"])
@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_network(part, mode):
    module, X = network("positions in a row"), sentences(4)
    params, matches = PARTS[part]
    names = [name for name, _ in module.named_parameters() if matches(name)]
    assert names
    kernel = rt.EmpiricalNTK(module, params=params, mode=mode)
    close(kernel(X), jacobian_gram(module, X, X, names=names))


@pytest.mark.parametrize("mode", ["structured", "jacobian"])
def test_samples_in_every_form(mode):
    module, X = network("flat positions"), sentences(5)
    expected = jacobian_gram(module, X, X)
    kernel = rt.EmpiricalNTK(module, mode=mode)
    close(kernel(X), expected)
    close(kernel(tuple(X.values())), expected)
    arrays = {key: value.numpy() for key, value in X.items()} | {"nothing": None}
    close(torch.from_numpy(kernel(arrays)), expected)

    class OneArgument(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, batch):
            return self.inner(*batch["of"]) if isinstance(batch, dict) else self.inner(**batch[0])

    for batch in ({"of": tuple(X.values())}, (X, X["input_ids"])):
        close(rt.EmpiricalNTK(OneArgument(), mode=mode)(batch), expected)
    alone = {"input_ids": X["input_ids"]}
    close(kernel(X["input_ids"]), jacobian_gram(module, alone, alone))


class Looking(nn.Module):
    """Looks at the numbers of the mask, as Hugging Face's do, so that vmap cannot follow."""

    def __init__(self):
        super().__init__()
        self.bert, self.scale = SmallBert(), nn.Parameter(torch.randn(9, 1))

    def forward(self, input_ids, attention_mask=None):
        if attention_mask is not None and attention_mask.all():
            attention_mask = None
        drift = torch.exp(self.scale).T @ input_ids.double()[..., None]  # without a rule
        return self.bert(input_ids, attention_mask) + drift[:, 0]


@pytest.mark.parametrize("outputs", ["mean", "full"])
def test_what_vmap_cannot_follow_goes_sample_by_sample(outputs):
    torch.manual_seed(0)
    module, X = Looking().double().eval(), sentences(6)
    del X["token_type_ids"]
    X["attention_mask"][2] = 1
    expected = jacobian_gram(module, X, X, outputs)
    assert "Jacobian" in forms(rt.EmpiricalNTK(module), X)
    close(rt.EmpiricalNTK(module, outputs)(X), expected)
    close(rt.EmpiricalNTK(module, outputs, mode="jacobian")(X), expected)


class Conv1D(nn.Module):
    """GPT-2's layer: rows of samples and positions are one, and the weight stands on the right."""

    def __init__(self, inputs, results):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(inputs, results)),
            nn.Parameter(torch.randn(results)),
        )

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class ByHand(nn.Module):
    """Products, sums and norms that are written out."""

    def __init__(self):
        super().__init__()
        self.first, self.weight = Conv1D(4, 6), nn.Parameter(torch.randn(6, 5))
        self.bias, self.scale = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(()))
        self.group, self.channel = nn.GroupNorm(5, 5), nn.BatchNorm1d(5)
        self.whole = nn.LayerNorm((3, 5))
        self.out = nn.Parameter(torch.randn(5, 2))
        nn.init.normal_(self.channel.running_mean)
        for norm in (self.group, self.channel, self.whole):
            nn.init.normal_(norm.weight)

    def forward(self, x):
        x = torch.tanh(self.first(x)) @ self.weight + self.bias
        x = self.scale * torch.tanh(self.whole(x)).mT
        return torch.tanh(self.channel(self.group(x))).mean(2).matmul(self.out)


@pytest.mark.parametrize("outputs", ["mean", "full", 0])
def test_products_sums_and_norms_have_rules(outputs):
    torch.manual_seed(2)
    module, X = ByHand().double().eval(), torch.randn(6, 3, 4, dtype=torch.float64)
    kernel = rt.EmpiricalNTK(module, outputs)
    close(kernel(X), oracle_gram(module, X, X, outputs))
    assert "Jacobian" not in forms(kernel, X)


class Odd(nn.Module):
    """One use of a parameter that looks as if it had a rule, and has not."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.table = nn.Parameter(torch.randn(6, 4))
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(torch.tanh(self.how(self, x)))


def tokens(x):
    return (x.abs() * 10).long() % 6


ODD = {
    "scaled by frequency": lambda m, x: functional.embedding(
        tokens(x), m.table, scale_grad_by_freq=True
    ).sum(1),
    "subtracted alpha": lambda m, x: torch.add(x, m.weight[0], alpha=2.0) @ m.weight,
    "in place": lambda m, x: (x * 1).mul_(m.weight[1]).add_(m.weight[2]),
    "a product of parameters": lambda m, x: x @ (m.weight * m.table[:4]),
    "looked up by an index": lambda m, x: m.table[tokens(x)].sum(1),
    "weights of both sides": lambda m, x: x @ m.weight @ m.weight,
    "positions over samples": lambda m, x: m.table[:4, 0] + functional.embedding(
        torch.arange(4), m.table
    )[:, 1] * x,
    "transposed": lambda m, x: (m.weight @ x.mT).mT,
    "scaled sum": lambda m, x: torch.addmm(m.weight[0], x, m.weight, alpha=0.5),
}  # fmt: skip


@pytest.mark.parametrize("how", ODD)
def test_what_only_looks_like_a_rule_is_right_all_the_same(how):
    torch.manual_seed(3)
    module, X = Odd(ODD[how]).double(), torch.randn(7, 4, dtype=torch.float64)
    if how == "scaled by frequency":  # by the whole batch's, which is not a sample's gradient
        X = X[:1]
    kernel = rt.EmpiricalNTK(module)
    close(kernel(X), oracle_gram(module, X, X))


def test_positions_looked_up_for_other_shapes_keep_their_own():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.places, self.out = nn.Embedding(5, 4), nn.Linear(4, 2)

        def forward(self, x):
            x = x.transpose(0, 1) + self.places(torch.arange(5))[:, None]
            return self.out(torch.tanh(x).sum(0))

    torch.manual_seed(0)
    module, X = TimeFirst().double(), torch.randn(8, 5, 4, dtype=torch.float64)
    close(rt.EmpiricalNTK(module)(X), oracle_gram(module, X, X))
