"""Networks that are written down in a line or two."""

import torch
from torch import nn
from torch.nn import functional


class Network(nn.Module):
    """Modules and parameters by name, and a function of the network and a batch."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.run(self, x)


def parameter(*shape):
    return nn.Parameter(torch.randn(shape))


class Doubled(torch.autograd.Function):
    """A product with a weight, whose gradient is written by hand; vmap knows nothing of it."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return 2 * x @ weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return 2 * g @ weight.mT, 2 * x.mT @ g


class Vmapped(Doubled):
    """The same, which torch's vmap may generate a rule for."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, weight):
        return 2 * x @ weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)


def prototypes(p=2.0):
    """Distances to learned prototypes."""
    return Network(
        lambda m, x: -torch.cdist(m.layer(x), m.prototypes, p=p),
        layer=nn.Linear(5, 4), prototypes=parameter(3, 4),
    )  # fmt: skip


def experts(choose):
    """A mixture of experts: each sample goes to the one that `choose` says."""

    def run(m, x):
        chosen, gate = choose(x), torch.softmax(m.gate(x), 1)
        result = torch.zeros_like(x)
        for i, expert in enumerate(m.experts):
            mine = chosen == i
            if mine.any():
                result[mine] = gate[mine, i : i + 1] * expert(x[mine])
        return m.out(torch.tanh(result))

    several = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
    return Network(run, gate=nn.Linear(5, 3), experts=several, out=nn.Linear(5, 3))


def by_first_number(x):
    return (x[:, 0] > 0).long() + (x[:, 0] > 1).long()


def sorted_experts():
    """Samples in the order of their expert, one after the other, and back again."""

    def run(m, x):
        order = by_first_number(x).argsort(stable=True)
        y = torch.tanh(m.layer(x[order]) * m.scale)
        return m.out(torch.zeros_like(y).index_add(0, order, y))

    return Network(run, layer=nn.Linear(5, 4), scale=parameter(4), out=nn.Linear(4, 3))


def recurrent(kind):
    return Network(
        lambda m, x: m.out(m.layer(x)[0][:, -1]),
        layer=kind(4, 5, num_layers=2, batch_first=True), out=nn.Linear(5, 3),
    )  # fmt: skip


def normalized():
    layers = nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)
    module = nn.Sequential(*layers)
    module[1].running_mean.normal_()
    module[1].weight.data.normal_()
    return module.eval()


def tied():
    module = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    module[2].weight = module[0].weight
    return module


def transposed():
    """A weight that is used as it is and transposed."""
    return Network(
        lambda m, x: m.out(functional.linear(torch.tanh(functional.linear(x, m.w)), m.w.T)),
        w=parameter(4, 5), out=nn.Linear(5, 3),
    )  # fmt: skip


def einsum():
    return Network(
        lambda m, x: torch.einsum("nti,tio->no", torch.tanh(m.layer(x)), m.w),
        layer=nn.Linear(4, 4), w=parameter(3, 4, 3),
    )  # fmt: skip


def bilinear():
    return Network(
        lambda m, x: m.both(torch.tanh(m.layer(x)), x), layer=nn.Linear(5, 4),
        both=nn.Bilinear(4, 5, 3),
    )  # fmt: skip


def weight_normed():
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Linear(5, 4)), nn.Tanh(), norm(nn.Linear(4, 3)))


def by_hand(function):
    """A custom `autograd.Function` that is called with a parameter."""
    return Network(
        lambda m, x: m.out(torch.tanh(function.apply(m.layer(x), m.w))),
        layer=nn.Linear(5, 4), w=parameter(4, 4), out=nn.Linear(4, 3),
    )  # fmt: skip


def hidden_use():
    """A second use of a layer's weight, in a function that no one sees, for some samples only."""

    def run(m, x):
        y, some = torch.tanh(m.layer(x)), x[:, 0] > 1
        if some.any():
            y = y + some[:, None] * Doubled.apply(x, m.layer.weight)
        return m.out(y)

    return Network(run, layer=nn.Linear(5, 5), out=nn.Linear(5, 3))


def scattered():
    """Tokens added up by their kind."""

    def run(m, x):
        kinds = x[..., :1].abs().mul(7).long().remainder(3).expand(-1, -1, 4)
        sums = torch.zeros_like(x).scatter_add(1, kinds, torch.tanh(m.layer(x)))
        return m.out(sums.flatten(1))

    return Network(run, layer=nn.Linear(4, 4), out=nn.Linear(12, 3))


def grouped():
    return nn.Sequential(
        nn.Conv2d(4, 6, 2, groups=2), nn.PReLU(6), nn.Conv2d(6, 3, 1), nn.Tanh(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def upsampled():
    return nn.Sequential(
        nn.ConvTranspose2d(4, 3, 2), nn.Tanh(), nn.AdaptiveMaxPool2d(1), nn.Flatten()
    )


def tokens(x):
    return x.abs().mul(5).long().remainder(7)


def bag():
    return Network(
        lambda m, x: m.out(torch.tanh(m.bag(tokens(x)))),
        bag=nn.EmbeddingBag(7, 4, mode="mean"), out=nn.Linear(4, 3),
    )  # fmt: skip


def looked_up(sparse):
    return Network(
        lambda m, x: m.out(torch.tanh(m.table(tokens(x))).sum(1)),
        table=nn.Embedding(7, 4, sparse=sparse), out=nn.Linear(4, 3),
    )  # fmt: skip


def sparse_by_rows():
    """A sparse embedding whose rows are not samples, so that no rule covers it."""
    return Network(
        lambda m, x: m.out(torch.tanh(m.table(tokens(x.T))).sum(0)),
        table=nn.Embedding(7, 4, sparse=True), out=nn.Linear(4, 3),
    )  # fmt: skip


def squeezed():
    """A single sample loses its first dimension on the way."""

    def run(m, x):
        y = torch.tanh(m.norm(m.layer(x).squeeze()) * m.scale)
        return m.out(y.reshape(len(x), -1))

    return Network(
        run, layer=nn.Linear(5, 4), norm=nn.LayerNorm(4), scale=parameter(4), out=nn.Linear(4, 3)
    )


def sequence_first():
    """torch's attention with its default, (time, samples, features)."""

    def run(m, x):
        x = m.layer(x.transpose(0, 1))
        return m.out(torch.tanh(m.attend(x, x, x, need_weights=False)[0]).mean(0))

    attend = nn.MultiheadAttention(4, 2)
    return Network(run, layer=nn.Linear(4, 4), attend=attend, out=nn.Linear(4, 3))


def encoder():
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0)
    return Network(
        lambda m, x: m.out(m.layer(x.transpose(0, 1)).mean(0)), layer=layer, out=nn.Linear(4, 3)
    )


def views_in_a_row():
    """A sample and its mirror image, one below the other."""

    def run(m, x):
        one, other = torch.tanh(m.layer(torch.cat([x, x.flip(1)]))).chunk(2)
        return m.out(one * other)

    return Network(run, layer=nn.Linear(5, 4), out=nn.Linear(4, 3))


def rectified(numbers):
    return lambda: nn.Sequential(nn.Linear(5, 4), nn.PReLU(numbers), nn.Linear(4, 3))


VECTOR, SEQUENCE, IMAGE = (5,), (3, 4), (4, 4, 3)
# name: how to make it, the shape of a sample; all have three outputs
NETWORKS = {
    "prototypes": (prototypes, VECTOR),
    "prototypes by city blocks": (lambda: prototypes(1.0), VECTOR),
    "prelu, shared": (rectified(1), VECTOR),
    "prelu, by channel": (rectified(4), VECTOR),
    "prelu, last": (lambda: nn.Sequential(nn.Linear(5, 3), nn.PReLU()), VECTOR),
    "experts, all in use": (lambda: experts(by_first_number), VECTOR),
    "experts, sorted": (sorted_experts, VECTOR),
    "lstm": (lambda: recurrent(nn.LSTM), SEQUENCE),
    "gru": (lambda: recurrent(nn.GRU), SEQUENCE),
    "batch normalization": (normalized, VECTOR),
    "tied": (tied, VECTOR),
    "transposed": (transposed, VECTOR),
    "einsum": (einsum, SEQUENCE),
    "bilinear": (bilinear, VECTOR),
    "weight norm": (weight_normed, VECTOR),
    "custom function": (lambda: by_hand(Doubled), VECTOR),
    "custom function for vmap": (lambda: by_hand(Vmapped), VECTOR),
    "hidden use": (hidden_use, VECTOR),
    "scatter": (scattered, SEQUENCE),
    "groups": (grouped, IMAGE),
    "transposed convolution": (upsampled, IMAGE),
    "embedding bag": (bag, VECTOR),
    "embedding": (lambda: looked_up(False), VECTOR),
    "sparse embedding": (lambda: looked_up(True), VECTOR),
    "sparse embedding without a rule": (sparse_by_rows, VECTOR),
    "squeezed": (squeezed, VECTOR),
    "sequence first": (sequence_first, SEQUENCE),
    "encoder": (encoder, SEQUENCE),
    "views in a row": (views_in_a_row, VECTOR),
}  # fmt: skip


def network(name, n):
    """A network in float64 and evaluation mode, and n samples.

    Their first numbers are such that, of 8 samples, the three that are tried first take one way.
    """
    make, shape = NETWORKS[name]
    torch.manual_seed(1)
    module, X = make().double().eval(), torch.randn(n, *shape, dtype=torch.float64)
    X[:, 0] = -X[:, 0].abs()
    X[[i for i in (1, 4) if i < n], 0] = 0.5
    X[[i for i in (2, 5, 7) if i < n], 0] = 1.5
    return module, X
