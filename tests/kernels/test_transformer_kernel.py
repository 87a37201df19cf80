"""The tangent kernel of transformers, on token ids and masks, against torch.func's Jacobian.

Positions that no output depends on are left out of it, and nothing else is.
"""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

import retarget as rt
from retarget.samples import take
from support.networks import Network, parameter
from support.oracles.empirical_ntk import close, forms, jacobian, jacobian_gram, products
from support.oracles.empirical_ntk import gram as oracle_gram
from support.small_bert import Layer, RMSNorm, SmallBert, sentences

BARE = functools.partial(nn.LayerNorm, elementwise_affine=False)
NO_BIAS = functools.partial(nn.LayerNorm, bias=False)
# options of the network, and whether all of its parameters have a rule
NETWORKS = {
    "positions in a row": ({"layers": 2}, True),
    "flat positions": ({"positions": "flat"}, True),
    "positions of each sample": ({"positions": "each"}, True),
    "added positions": ({"positions": "added"}, True),
    "norms without parameters": ({"norm": BARE}, True),
    "norms without bias": ({"norm": NO_BIAS}, True),
    "norms of torch": ({"norm": nn.RMSNorm}, True),
    "norms by hand": ({"norm": RMSNorm}, True),
    "tied": ({"tied": True}, False),
}


def network(name):
    torch.manual_seed(1)
    module = SmallBert(**({"layers": 1} | NETWORKS[name][0])).double().eval()
    for layer in module.modules():
        if isinstance(layer, nn.LayerNorm) and layer.weight is not None:
            nn.init.normal_(layer.weight)  # as if it were trained
    return module


@pytest.mark.parametrize("name", NETWORKS)
def test_agrees_with_the_jacobian(name):
    module, X = network(name), sentences(7)
    A, B, J = take(X, slice(0, 4)), take(X, slice(4, 7)), jacobian(module, X)
    for outputs in ("mean", "full", 1):
        kernel = rt.EmpiricalNTK(module, outputs)
        expected = products(J, J, outputs)
        a = 4 * len(expected) // 7
        close(kernel(A), expected[:a, :a])
        close(kernel(A, B), expected[:a, a:])
        close(kernel(B, A), expected[a:, :a])
        close(kernel.diag(X), expected.diagonal())
        assert ("Jacobian" in forms(kernel, A)) == (not NETWORKS[name][1])


@pytest.mark.parametrize("overhead", [-1e9, 1e9])
def test_both_forms_of_an_embedding_agree(overhead, monkeypatch):
    module, X = network("positions in a row"), sentences(5)
    monkeypatch.setattr("retarget.kernels.empirical.forms.PAIR_OVERHEAD", overhead)
    names = ["tokens.weight", "positions.weight", "segments.weight"]
    J = jacobian(module, X, names)
    for outputs in ("mean", "full"):
        kernel = rt.EmpiricalNTK(module, outputs, params=["tokens", "positions", "segments"])
        assert set(forms(kernel, X)) == {"Pair" if overhead < 0 else "Gradient"}
        expected = products(J, J, outputs)
        close(kernel(X), expected)
        close(kernel.diag(X), expected.diagonal())
    F = rt.EmpiricalNTK(module, params=["tokens", "positions", "segments"]).features(X)
    close(F @ F.T, products(J, J))
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


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_network(part):
    module, X = network("positions in a row"), sentences(4)
    params, matches = PARTS[part]
    names = [name for name, _ in module.named_parameters() if matches(name)]
    assert names
    expected = jacobian_gram(module, X, X, names=names)
    for mode in ("structured", "jacobian"):
        close(rt.EmpiricalNTK(module, params=params, mode=mode)(X), expected)


@pytest.mark.parametrize("mode", ["structured", "jacobian"])
def test_samples_in_every_form(mode):
    module, X = network("flat positions"), sentences(5)
    expected = jacobian_gram(module, X, X)
    kernel = rt.EmpiricalNTK(module, mode=mode)
    close(kernel(X), expected)
    close(kernel(tuple(X.values())), expected)
    arrays = {key: value.numpy() for key, value in X.items()} | {"nothing": None}
    close(torch.from_numpy(kernel(arrays)), expected)

    def run(m, batch):
        return m.inner(*batch["of"]) if isinstance(batch, dict) else m.inner(**batch[0])

    for batch in ({"of": tuple(X.values())}, (X, X["input_ids"])):
        close(rt.EmpiricalNTK(Network(run, inner=module), mode=mode)(batch), expected)
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


def test_what_vmap_cannot_follow_goes_sample_by_sample():
    torch.manual_seed(0)
    module, X = Looking().double().eval(), sentences(6)
    del X["token_type_ids"]
    X["attention_mask"][2] = 1
    assert "Jacobian" in forms(rt.EmpiricalNTK(module), X)
    J = jacobian(module, X)
    for outputs in ("mean", "full"):
        for mode in ("structured", "jacobian"):
            close(rt.EmpiricalNTK(module, outputs, mode=mode)(X), products(J, J, outputs))


def by_hand():
    """Products, sums and norms that are written out."""

    def first(m, x):  # GPT-2's: rows of samples and positions are one, the weight on the right
        return torch.addmm(m.shift, x.view(-1, 4), m.first).view(*x.shape[:-1], -1)

    def run(m, x):
        x = torch.tanh(first(m, x)) @ m.weight + m.bias
        x = m.scale * torch.tanh(m.whole(x)).mT
        return torch.tanh(m.channel(m.group(x))).mean(2).matmul(m.out)

    group, channel, whole = nn.GroupNorm(5, 5), nn.BatchNorm1d(5), nn.LayerNorm((3, 5))
    for numbers in (group.weight, channel.weight, channel.running_mean, whole.weight):
        nn.init.normal_(numbers)
    return Network(
        run, first=parameter(4, 6), shift=parameter(6), weight=parameter(6, 5), bias=parameter(5),
        scale=parameter(), out=parameter(5, 2), group=group, channel=channel, whole=whole,
    )  # fmt: skip


def test_products_sums_and_norms_have_rules():
    torch.manual_seed(2)
    module, X = by_hand().double().eval(), torch.randn(6, 3, 4, dtype=torch.float64)
    for outputs in ("mean", "full", 0):
        kernel = rt.EmpiricalNTK(module, outputs)
        close(kernel(X), oracle_gram(module, X, X, outputs))
        assert "Jacobian" not in forms(kernel, X)


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
def test_what_only_looks_like_a_rule(how):
    torch.manual_seed(3)
    module = Network(
        lambda m, x: m.out(torch.tanh(ODD[how](m, x))),
        table=parameter(6, 4), weight=parameter(4, 4), out=nn.Linear(4, 2),
    ).double()  # fmt: skip
    X = torch.randn(7, 4, dtype=torch.float64)
    if how == "scaled by frequency":  # by the whole batch's, which is not a sample's gradient
        X = X[:1]
    close(rt.EmpiricalNTK(module)(X), oracle_gram(module, X, X))


def test_positions_for_other_shapes():
    def run(m, x):
        x = x.transpose(0, 1) + m.places(torch.arange(5))[:, None]
        return m.out(torch.tanh(x).sum(0))

    torch.manual_seed(0)
    module = Network(run, places=nn.Embedding(5, 4), out=nn.Linear(4, 2)).double()
    X = torch.randn(8, 5, 4, dtype=torch.float64)
    close(rt.EmpiricalNTK(module)(X), oracle_gram(module, X, X))


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
    "each its own": None,  # output k reads token k alone: another position for every output
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
        if self.read is None:
            return torch.tanh(x[:, :3]).sum(2) + 0 * self.out(x[:, 0])
        return self.out(torch.tanh(self.read(x, attention_mask)))


def make(read, n=7):
    torch.manual_seed(1)
    module, X = Reader(READ[read]), sentences(n)
    del X["token_type_ids"]
    return module.double().eval(), X


def packed(kernel, X, name):
    """The positions that the named layer's form has room for; None where it has all."""
    terms = kernel._plan(kernel._samples("A", X), 1e6).terms
    [live] = [term.live for term in terms if term.layer[0] == f"layer.{name}.weight"]
    return live


@pytest.mark.parametrize("read", READ)
def test_the_kernel_and_its_sketch(read, monkeypatch):
    module, X = make(read)
    J = jacobian(module, X)
    for outputs in ("mean", "full", 2):
        kernel, expected = rt.EmpiricalNTK(module, outputs), products(J, J, outputs)
        c = len(expected) // 7
        close(kernel(X), expected)
        close(kernel(take(X, slice(0, 4)), take(X, slice(3, 7))), expected[: 4 * c, 3 * c :])
        close(kernel.diag(X), expected.diagonal())
    F = rt.EmpiricalNTK(module).features(X)
    close(F @ F.T, products(J, J))
    sketches = []
    for overhead in (-1e9, 64, 1e9):  # all layers by pairs, the cheapest, all by gradients
        monkeypatch.setattr("retarget.kernels.empirical.forms.PAIR_OVERHEAD", overhead)
        sketches.append(rt.EmpiricalNTK(module, sketch=40, seed=3).features(X))
    close(sketches[1], sketches[0])
    close(sketches[2], sketches[0])


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


@pytest.mark.parametrize("weighted", [False, True])
def test_positions_that_come_alive_later(weighted):
    torch.manual_seed(2)
    module, X = Late(None).double().eval(), make("mean", n=12)[1]
    X["input_ids"][:, 0] = 3
    X["input_ids"][7, 0] = 10  # the first, the last and the middle ones are tried
    names = layer_names(module)
    weights = {name: torch.rand_like(module.get_parameter(name)) + 0.5 for name in names}
    weights = weights if weighted else None
    J = jacobian(module, X, names, weights)
    for outputs, c in (("mean", 1), ("full", 3)):
        kernel = rt.EmpiricalNTK(module, outputs, params="layer", preconditioner=weights)
        assert packed(kernel, X, "down") == 1
        expected = products(J, J, outputs)
        close(kernel(X), expected)
        close(kernel.diag(X), expected.diagonal())
        few = take(X, slice(6, 8))  # only the fewer ones have such a sample
        close(kernel(X, few), expected[:, 6 * c : 8 * c])
    F = rt.EmpiricalNTK(module, params="layer", preconditioner=weights).features(X)
    close(F @ F.T, products(J, J))


@pytest.mark.parametrize("read", ["first token", "last token", "mean"])
def test_with_a_preconditioner(read):
    module, X = make(read)
    full = {name: torch.rand_like(value) + 0.5 for name, value in module.named_parameters()}
    single = {name: value.flatten()[0] for name, value in full.items()}
    same = {name: single[name].expand(value.shape) for name, value in full.items()}
    for given, weights in ((full, full), (single, same)):
        kernel = rt.EmpiricalNTK(module, preconditioner=given)
        close(kernel(X), jacobian_gram(module, X, X, weights=weights))


def test_in_chunks_and_panels_of_every_size():
    module, X = make("last token")
    held, expected = rt.EmpiricalNTK(module)._plan(X, 1.0).factor_bytes, jacobian_gram(module, X, X)
    for samples in (0, 3, 20):
        close(rt.EmpiricalNTK(module, max_memory=1 + samples * held)(X), expected)


MIXES = {
    "next": lambda x: x + torch.cat([x[1:], 0 * x[:1]]),
    "previous": lambda x: x + torch.cat([0 * x[:1], x[:-1]]),
    "mean": lambda x: x + x.mean(0),
    "chance": lambda x: x + torch.randn_like(x),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("n", [2, 3, 9])
def test_samples_that_depend_on_each_other_are_refused(mix, n):
    torch.manual_seed(0)
    module = Network(lambda m, x: MIXES[mix](m.layer(x)), layer=nn.Linear(4, 2)).double()
    with pytest.raises(rt.errors.InvalidInputError, match="between two batches with different"):
        rt.EmpiricalNTK(module)(torch.randn(n, 4, dtype=torch.float64))
