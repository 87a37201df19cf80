"""A network's gradients are projected in one way, whatever the batch or the process."""

import pytest
import torch
from torch import nn

import retarget as rt
from retarget.errors import InvalidInputError
from retarget.kernels.empirical import projection
from retarget.kernels.empirical.projection import Projection
from support.problems import assert_same


class Written(nn.Module):
    """A network whose forward pass is a function of it and of the samples."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run, self.layers = run, nn.ModuleDict(layers)

    def forward(self, x):
        return self.run(x, **self.layers)


def sequence_first():
    """Torch's default for transformers: samples are the second dimension."""
    encoder = nn.TransformerEncoderLayer(6, 2, 9, dropout=0.0)

    def run(x, encoder, head):
        return head(encoder(x.transpose(0, 1)).mean(0))

    return Written(run, encoder=encoder, head=nn.Linear(6, 3))


def stacked():
    """Two views of every sample, one below the other."""

    def run(x, body, head):
        one, other = body(torch.cat([x, x.flip(2)], 0)).tanh().mean(1).chunk(2)
        return head(one * other)

    return Written(run, body=nn.Linear(6, 5), head=nn.Linear(5, 3))


def squeezing():
    """One sample loses its first dimension on the way."""

    def run(x, body, norm, head):
        return head(norm(body(x[:, :1]).squeeze())).reshape(len(x), 3)

    return Written(run, body=nn.Linear(6, 5), norm=nn.LayerNorm(5), head=nn.Linear(5, 3))


def routing():
    """Each sample goes to one of two experts; all experts' results count a little."""

    def run(x, left, right, gate):
        x = x[:, 0]
        chosen = (x[:, :1] > 0).to(x)
        every = left(x) * chosen + right(x) * (1 - chosen)
        return every + gate(x).softmax(1)

    return Written(run, left=nn.Linear(6, 3), right=nn.Linear(6, 3), gate=nn.Linear(6, 3))


def unused_in_short():
    """A layer that samples without a positive number do not use."""

    def run(x, body, rare, head):
        hidden = body(x[:, 0]).tanh()
        rows = (x[:, 0, 0] > 0.5).nonzero()[:, 0]
        hidden = hidden.index_add(0, rows, rare(hidden[rows]))
        return head(hidden)

    return Written(run, body=nn.Linear(6, 5), rare=nn.Linear(5, 5), head=nn.Linear(5, 3))


NETWORKS = {
    "sequence first": sequence_first,
    "stacked": stacked,
    "squeezing": squeezing,
    "routing": routing,
    "unused": unused_in_short,
}


def network_and_stream(name, n=13, outputs=3):
    torch.manual_seed(4)
    network = NETWORKS[name]().double().eval()
    return network, torch.randn(n, 4, 6).double(), torch.randn(n, outputs).double()


def learned(name, **options):
    network, X, Y = network_and_stream(name)
    return rt.TangentLearner(network, 0.3, 31, seed=5, **options).learn(X, Y)


# --- the same for one sample and for many


@pytest.mark.parametrize("name", NETWORKS)
def test_one_sample_is_predicted_as_in_a_batch(name):
    learner = learned(name, combinations=2)
    _, queries, _ = network_and_stream(name, 9)
    together = learner.predict(queries)
    alone = torch.cat([learner.predict(query[None]) for query in queries])
    pairs = torch.cat([learner.predict(queries[i : i + 2]) for i in range(0, 9, 2)])
    assert_same(alone, together)
    assert_same(pairs, together)


@pytest.mark.parametrize("name", NETWORKS)
def test_learning_one_by_one_is_learning_at_once(name):
    """An empty learner looks at its first sample alone."""
    network, X, Y = network_and_stream(name)
    together, one_by_one = learned(name), rt.TangentLearner(network, 0.3, 31, seed=5)
    for x, y in zip(X, Y, strict=True):
        one_by_one.learn(x[None], y[None])
    assert_same(one_by_one.predict(X), together.predict(X))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("sketch", [None, 31])
def test_features_of_one_sample_and_of_many_agree(name, sketch):
    """Also where they are not projected, and what a sample does not use is zero."""
    network, X, _ = network_and_stream(name)
    kernel = rt.EmpiricalNTK(network, sketch=sketch, seed=2)
    whole = kernel.features(X)
    rows = torch.cat([kernel.features(x[None]) for x in X])
    by_jacobian = rt.EmpiricalNTK(network, sketch=sketch, seed=2, mode="jacobian").features(X)
    assert_same(rows, whole)
    assert_same(by_jacobian, whole)
    if sketch is None:
        numbers = sum(each.numel() for each in network.parameters())
        assert whole.shape == (13, 3 * numbers)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_module_made_after_one_sample(name):
    learner = learned(name)
    _, queries, _ = network_and_stream(name, 9)
    expected = learner.predict(queries)
    learner.predict(queries[:1])
    module = learner.as_module()
    assert_same(module(queries), expected)
    assert_same(torch.cat([module(query[None]) for query in queries]), expected)


@pytest.mark.parametrize("inside", ["learning", "predicting", "both"])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_autocast_changes_nothing(inside, precision):
    network, X, Y = network_and_stream("sequence first")
    network, X, Y = network.float(), X.float(), Y.float()

    def half(when):
        return torch.autocast("cpu", torch.bfloat16, enabled=inside in (when, "both"))

    plain = rt.TangentLearner(network, 0.3, 31, precision=precision).learn(X, Y)
    expected, learner = plain.predict(X), rt.TangentLearner(network, 0.3, 31, precision=precision)
    with half("learning"):
        learner.learn(X, Y)
        module = learner.as_module()
    with half("predicting"):
        found, alone, by_module = learner.predict(X), learner.predict(X[:1]), module(X)
    assert torch.equal(found, expected)
    assert_same(alone, expected[:1], 1e-5)
    assert_same(by_module, expected, 1e-5)


# --- what the projection is


class Mixed(nn.Module):
    """Parameters of all kinds: with rules and without, transposed, looked up, in groups, scalar."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(7, 6, padding_idx=0), nn.LayerNorm((4, 6))
        self.matrix, self.offset = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(4))
        self.product = nn.Parameter(torch.randn(4, 4))
        self.convolution = nn.Conv2d(4, 4, (2, 1), groups=2)
        self.prelu, self.scale = nn.PReLU(), nn.Parameter(torch.tensor(0.7))
        self.unused, self.nothing = nn.Linear(2, 3), nn.Parameter(torch.zeros(0, 4))
        self.head = nn.Linear(12, 3)

    def forward(self, ids):
        x = self.norm(self.table(ids))
        x = torch.addmm(self.offset, x.flatten(0, 1), self.matrix).view(-1, 4, 4)
        x = torch.tanh(x @ self.product) * self.scale
        x = self.convolution(x[..., None]).flatten(1)
        return self.head(self.prelu(x) + self.nothing.sum())


@pytest.mark.parametrize("outputs", ["mean", "sum", 1, range(2), range(2, -1, -2)])
@pytest.mark.parametrize("size", [5, 23, 700])
@pytest.mark.parametrize("block", [1, 1 << 19], ids=["row by row", "at once"])
def test_all_gradients_give_the_same_projection(outputs, size, block, monkeypatch):
    """The product of one matrix and the Jacobian by autograd, however layers are computed."""
    monkeypatch.setitem(projection.BLOCK, "cpu", block)
    torch.manual_seed(1)
    network, ids = Mixed().double().eval(), torch.randint(0, 7, (6, 4))
    chosen = outputs if isinstance(outputs, range) else range(3)
    chosen = range(outputs, outputs + 1) if isinstance(outputs, int) else chosen
    J = jacobian(network, ids, chosen)
    expected, every = torch.zeros(6, size).double(), []
    for name, parameter in network.named_parameters():
        buckets, signs = Projection(size, 3).table(name, parameter.shape, chosen)
        S = nn.functional.one_hot(buckets.flatten().long(), size) * signs.flatten()[:, None]
        gradients = J[name].flatten(1)
        expected += gradients @ S.double()
        every.append(gradients)
    scale = 1 if outputs == "sum" else len(chosen) ** -0.5
    for mode in ("structured", "jacobian"):
        kernel = rt.EmpiricalNTK(network, outputs, sketch=size, seed=3, mode=mode)
        assert_same(kernel.features(ids), scale * expected)
        assert_same(kernel.features(ids[2:3]), scale * expected[2:3])
        whole = rt.EmpiricalNTK(network, outputs, mode=mode).features(ids)
        assert_same(whole, scale * torch.cat(every, 1))


class AsManyOutputs(nn.Module):
    """Has three outputs for each number in a sequence."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(1, width)

    def forward(self, x):
        return torch.tanh(self.layer(x[..., None])).flatten(1)


def test_a_kernel_follows_its_network_to_other_shapes():
    module = AsManyOutputs(3).double()
    kernel = rt.EmpiricalNTK(module, sketch=17, seed=2)
    for width, length in ((3, 2), (3, 4), (4, 3)):  # other outputs, then another shape
        module.layer = nn.Linear(1, width).double()
        X = torch.randn(4, length).double()
        fresh = rt.EmpiricalNTK(module, sketch=17, seed=2)
        assert torch.equal(kernel.features(X), fresh.features(X))


def jacobian(network, X, outputs):
    """(n, outputs, numbers) by name, one gradient at a time."""
    parameters = dict(network.named_parameters())
    rows = [
        torch.autograd.grad(
            network(x[None])[0, k], list(parameters.values()), materialize_grads=True,
            allow_unused=True,
        )
        for x in X for k in outputs
    ]  # fmt: skip
    return {
        name: torch.stack([row[i].flatten() for row in rows]).view(len(X), len(outputs), -1)
        for i, name in enumerate(parameters)
    }


def test_the_projection_is_what_it_says():
    """Every seven numbers around a ring of seven, with signs, by seed, name and shape alone."""
    shape = torch.Size([4, 5])
    buckets, signs = Projection(7, 3).table("layer.weight", shape, range(2))
    assert buckets.shape == signs.shape == (2, 20)
    assert sorted(buckets.flatten().bincount().tolist()) == [5, 5, 6, 6, 6, 6, 6]
    assert set(signs.flatten().tolist()) == {-1, 1}
    # row k of output k comes first
    own = torch.cat([buckets.view(2, 4, 5)[k, k] for k in (0, 1)])
    assert own[:7].tolist() == [(int(own[0]) + place) % 7 for place in range(7)]
    for found, expected in zip(
        Projection(7, 3).table("layer.weight", shape, range(2)), (buckets, signs), strict=True
    ):
        assert torch.equal(found, expected)
    for other in (
        Projection(7, 4).table("layer.weight", shape, range(2)),
        Projection(7, 3).table("layer.bias", shape, range(2)),
        Projection(7, 3).table("layer.weight", torch.Size([5, 4]), range(2)),
    ):
        assert not torch.equal(buckets, other[0])
        assert not torch.equal(signs, other[1])
    # as written down once, on another machine
    buckets, signs = Projection(5, 3).table("layer.weight", torch.Size([2, 4]), range(2))
    assert buckets.tolist() == [[3, 4, 0, 1, 3, 4, 4, 0], [1, 2, 3, 3, 2, 0, 1, 2]]
    assert signs.tolist() == [[1, 1, 1, -1, -1, -1, 1, 1], [-1, -1, 1, -1, 1, -1, 1, 1]]
    few, _ = Projection(50, 3).table("layer.weight", shape, range(2))
    assert len(few.unique()) == 40  # each has a bucket of its own


@pytest.mark.parametrize("pattern", ["any", "one column", "one row"])
def test_products_of_random_signs(pattern):
    """Over 4,000 seeds: mean F . F', variance at most (|F|^2 |F'|^2 + (F . F')^2) / m."""
    torch.manual_seed(3)
    size, shape = 9, torch.Size([6, 8])
    F, G = torch.randn(2, 1, 2, *shape).double()
    mask = torch.zeros(shape)
    rows, columns = {"any": (6, 8), "one column": (6, 1), "one row": (1, 8)}[pattern]
    mask[:rows, :columns] = 1
    F, G = F * mask, G * mask
    G = G + F / 2
    products = []
    for seed in range(4000):
        rings = torch.zeros(2, 1, 2 * size).double()
        for ring, each in zip(rings, (F, G), strict=True):
            Projection(size, seed).add(ring, "layer.weight", each, range(2))
        left, right = rings[:, 0, :size] + rings[:, 0, size:]
        products.append(left @ right)
    products = torch.stack(products)
    exact = (F * G).sum()
    bound = (F.square().sum() * G.square().sum() + exact**2) / size
    assert abs(products.mean() - exact) < 4 * (bound / 4000).sqrt()
    assert products.var() < 1.15 * bound
    if pattern == "any":
        assert products.var() > 0.5 * bound  # numbers do meet


def test_a_file_with_another_projection(tmp_path, monkeypatch):
    """As it would be if a version of torch drew other random numbers from a seed."""
    network, _, _ = network_and_stream("routing")
    learned("routing").save(tmp_path / "learner")
    draw = Projection.table

    def otherwise(projection, *arguments):
        buckets, signs = draw(projection, *arguments)
        return buckets.flip(1), signs

    monkeypatch.setattr(Projection, "table", otherwise)
    with pytest.raises(InvalidInputError, match="with the kernel .*'projection': "):
        rt.TangentLearner.load(tmp_path / "learner", network)
