"""Operations that are trusted in batches: torch.func's gradients of them, one by one compared.

With as many samples as outputs, as numbers in a row, and others: a faulty batching rule may be
right for some sizes only.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional

import retarget as rt
from retarget.kernels.empirical import terms
from retarget.kernels.empirical.graph import KNOWN, Graph
from retarget.settings import plain_attention
from support.networks import Network, parameter
from support.oracles.empirical_ntk import close, gradients, products

WIDTH, OUTPUTS = 16, 3


def positive(y):
    return y.abs() + 0.5


def image(y):
    return y.view(-1, 1, 4, 4)


def square(y):
    return y.view(-1, 4, 4)


def attended(y):
    return functional.scaled_dot_product_attention(
        y.view(-1, 2, 2, 4), y.view(-1, 2, 2, 4).sin(), y.view(-1, 2, 2, 4)
    )


def attended_plainly(y):
    """As while another thread computes a kernel, since torch's choice is that of the process."""
    with plain_attention:
        return attended(y)


def tokens(y):
    return y.abs().mul(5).long() % WIDTH


def plain_norm(y):
    zeros = y.detach().new_zeros(WIDTH)
    return functional.batch_norm(y, zeros, zeros + 2)


# The operation, and what a network with parameters m makes of its hidden units y (n, 16).
OPERATIONS = {
    "Abs": lambda m, y: y.abs(),
    "Acos": lambda m, y: torch.acos(0.9 * torch.tanh(y)),
    "AdaptiveAvgPool2D": lambda m, y: functional.adaptive_avg_pool2d(image(y), 3),
    "AdaptiveMaxPool2D": lambda m, y: functional.adaptive_max_pool2d(image(y), 2),
    "Add": lambda m, y: y + y.sin() + m.v,
    "Addcmul": lambda m, y: torch.addcmul(y, y, m.v),
    "Addmm": lambda m, y: torch.addmm(m.v, y, m.w),
    "Amax": lambda m, y: square(y).amax(1),
    "Amin": lambda m, y: square(y).amin(2),
    "Asin": lambda m, y: torch.asin(0.9 * torch.tanh(y)),
    "Atan": lambda m, y: y.atan(),
    "Atan2": lambda m, y: torch.atan2(y, positive(y)),
    "AvgPool2D": lambda m, y: functional.avg_pool2d(image(y), 2),
    "Baddbmm": lambda m, y: torch.baddbmm(square(y), square(y), square(y)),
    "Bmm": lambda m, y: torch.einsum("nij,jk->nik", square(y) @ square(y).mT, m.w4),
    "Cat": lambda m, y: torch.cat([m.v.expand(len(y), -1), y], 1),
    "Celu": lambda m, y: functional.celu(y),
    "Clamp": lambda m, y: y.clamp(-0.5, 0.5),
    "ClampMax": lambda m, y: y.clamp_max(0.2),
    "ClampMin": lambda m, y: y.clamp_min(-0.2),
    "Clone": lambda m, y: y.clone(),
    "ConstantPadNd": lambda m, y: functional.pad(y, (1, 2)),
    "Convolution": lambda m, y: torch.cat(
        [
            functional.conv2d(image(y), m.k, m.b, padding=1).flatten(1),
            functional.conv1d(y[:, None], m.k[:, :, 0], m.b, stride=2).flatten(1),
            functional.conv_transpose2d(image(y), m.k.transpose(0, 1)).flatten(1),
            functional.conv2d(y.view(-1, 2, 4, 2), m.k[:2], groups=2, padding=1).flatten(1),
            functional.conv3d(y.view(-1, 1, 4, 2, 2), m.k[:, :, :2, :2, None]).flatten(1),
        ],
        1,
    ),
    "Cos": lambda m, y: y.cos(),
    "Cosh": lambda m, y: y.cosh(),
    "Cumsum": lambda m, y: y.cumsum(1),
    "Div": lambda m, y: y / positive(y) / 2,
    "Elu": lambda m, y: functional.selu(functional.elu(y)),
    "Embedding": lambda m, y: functional.embedding(tokens(y), m.w).mean(1) * y,
    "Erf": lambda m, y: y.erf(),
    "Exp": lambda m, y: y.exp(),
    "Expand": lambda m, y: y[:, :, None].expand(-1, -1, 2),
    "Expm1": lambda m, y: y.expm1(),
    "Gelu": lambda m, y: functional.gelu(functional.gelu(y), approximate="tanh"),
    "Glu": lambda m, y: functional.glu(y, 1),
    "Hardshrink": lambda m, y: functional.hardshrink(y),
    "Hardsigmoid": lambda m, y: functional.hardsigmoid(y),
    "Hardswish": lambda m, y: functional.hardswish(y),
    "Hardtanh": lambda m, y: functional.hardtanh(y),
    "Im2Col": lambda m, y: functional.unfold(image(y), 2),
    "LeakyRelu": lambda m, y: functional.leaky_relu(y),
    "Lerp": lambda m, y: torch.lerp(y, y.sin(), 0.3),
    "LinalgVectorNorm": lambda m, y: functional.normalize(y) * y.norm(dim=1, keepdim=True),
    "Log": lambda m, y: positive(y).log(),
    "Log1P": lambda m, y: torch.log1p(positive(y)),
    "Log2": lambda m, y: positive(y).log2(),
    "LogSigmoid": lambda m, y: functional.logsigmoid(y),
    "LogSoftmax": lambda m, y: y.log_softmax(1),
    "Logsumexp": lambda m, y: square(y).logsumexp(2),
    "MaskedFill": lambda m, y: y.masked_fill(y > 0, 0.3),
    "Max": lambda m, y: square(y).max(1).values,
    "MaxPool2DWithIndices": lambda m, y: functional.max_pool2d(image(y), 2),
    "Maximum": lambda m, y: torch.maximum(y, y.sin() + 0.1),
    "Mean": lambda m, y: square(y).mean(1),
    "Minimum": lambda m, y: torch.minimum(y, y.sin() + 0.1),
    "Mish": lambda m, y: functional.mish(y),
    "Mm": lambda m, y: functional.linear(y, m.w.T) @ m.w,
    "Mul": lambda m, y: y * y.sin() * m.v,
    "Mv": lambda m, y: y * (m.w @ m.v),
    "NativeBatchNorm": lambda m, y: functional.batch_norm(
        plain_norm(y), m.w[0].detach(), m.w[1].detach().abs(), m.v, m.w[0]
    ),
    "NativeGroupNorm": lambda m, y: functional.group_norm(square(y), 2, m.v4, m.w4[0]),
    "NativeLayerNorm": lambda m, y: functional.layer_norm(y, (WIDTH,), m.v, m.w[0]),
    "Neg": lambda m, y: -y,
    "Permute": lambda m, y: y.view(-1, 2, 2, 4).permute(0, 3, 1, 2),
    "PixelShuffle": lambda m, y: functional.pixel_shuffle(y.view(-1, 4, 2, 2), 2),
    "Pow": lambda m, y: positive(y) ** (y**3),
    "Prod": lambda m, y: square(y).prod(2),
    "Reciprocal": lambda m, y: positive(y).reciprocal(),
    "ReflectionPad2D": lambda m, y: functional.pad(image(y), (1, 1, 1, 1), mode="reflect"),
    "Relu": lambda m, y: functional.relu_(functional.relu(y - 1) + y),
    "Repeat": lambda m, y: y.repeat(1, 2) * m.v.repeat(len(y), 2),
    "ReplicationPad2D": lambda m, y: functional.pad(image(y), (1, 1, 1, 1), mode="replicate"),
    "ReshapeAlias": lambda m, y: (square(y) @ square(y).mT),
    "Rsqrt": lambda m, y: functional.rms_norm(y, (WIDTH,), m.v),
    "Rsub": lambda m, y: 1 - y,
    "SafeSoftmax": lambda m, y: attended_plainly(y),
    "ScaledDotProductFlashAttentionForCpu": lambda m, y: attended(y),
    "Select": lambda m, y: square(y)[:, 1],
    "Sigmoid": lambda m, y: y.sigmoid(),
    "Silu": lambda m, y: functional.silu(y),
    "Sin": lambda m, y: y.sin(),
    "Sinh": lambda m, y: y.sinh(),
    "Slice": lambda m, y: y[:, 2:9:2] * m.v[3:7],
    "Softmax": lambda m, y: y.softmax(1) @ m.w.softmax(0),
    "Softplus": lambda m, y: functional.softplus(y),
    "Softshrink": lambda m, y: functional.softshrink(y),
    "Split": lambda m, y: torch.cat([part.sin() for part in y.split(5, 1)], 1),
    "SplitWithSizes": lambda m, y: torch.cat([part.sin() for part in y.split([5, 11], 1)], 1),
    "Sqrt": lambda m, y: positive(y).sqrt(),
    "Squeeze1": lambda m, y: functional.max_pool1d(y[:, None].sin(), 2).squeeze(1),
    "Stack": lambda m, y: torch.stack([y, y.sin()], 1),
    "Std": lambda m, y: square(y).std(2),
    "Sub": lambda m, y: y - y.sin(),
    "Sum": lambda m, y: square(y).sum(2),
    "T": lambda m, y: y @ m.w.t(),
    "Tan": lambda m, y: torch.tan(torch.tanh(y)),
    "Tanh": lambda m, y: y.tanh(),
    "Threshold": lambda m, y: functional.threshold(y, 0.1, 0.2),
    "ToCopy": lambda m, y: y.half().double() * 0 + y,
    "Transpose": lambda m, y: m.w4 @ square(y).transpose(1, 2),
    "Tril": lambda m, y: square(y).tril(),
    "Unbind": lambda m, y: torch.cat([part.sin() for part in square(y).unbind(1)], 1),
    "UnsafeView": lambda m, y: square(y) @ m.w4,
    "Unsqueeze": lambda m, y: y[:, :, None] * y[:, None, :4],
    "UpsampleBilinear2D": lambda m, y: functional.interpolate(
        image(y), scale_factor=2, mode="bilinear"
    ),
    "UpsampleNearest2D": lambda m, y: functional.interpolate(image(y), scale_factor=2),
    "Var": lambda m, y: square(y).var(2),
    "View": lambda m, y: square(y).sin(),
    "WeightNormInterface": lambda m, y: functional.linear(
        y, torch._weight_norm(m.w, m.w[:, :1], 0)
    ),
    "Where": lambda m, y: torch.where(y > 0, y, y.sin()),
}  # fmt: skip


def network(operation):
    torch.manual_seed(0)

    def run(m, x):
        y = OPERATIONS[operation](m, m.layer(x)).flatten(1)
        return torch.tanh(y) @ m.out[: y.shape[1]]

    return Network(
        run, layer=nn.Linear(5, WIDTH), out=parameter(300, OUTPUTS), w=parameter(WIDTH, WIDTH),
        v=parameter(WIDTH), w4=parameter(4, 4), v4=parameter(4), k=parameter(3, 1, 3, 3),
        b=parameter(3),
    ).double()  # fmt: skip


def operations(module, X):
    names = [node.name() for node in Graph.of(module(X)).nodes]
    return {name.partition("Backward")[0] for name in names} | {
        name.replace("Backward", "") for name in names
    }


def test_every_known_operation_is_tried():
    assert OPERATIONS.keys() == KNOWN


@pytest.mark.parametrize("operation", OPERATIONS)
def test_batched_gradients_of_known_operations_are_right(operation, monkeypatch):
    monkeypatch.delattr(terms.JacobianTerm, "_one_by_one")  # nothing falls back on it
    module = network(operation)
    for n in (1, OUTPUTS, 4):
        X = torch.randn(n, 5, dtype=torch.float64)
        assert operation in operations(module, X)
        assert Graph.of(module(X)).is_known
        G = gradients(module, X)
        close(rt.EmpiricalNTK(module, "full", mode="jacobian")(X), products(G, G, "full"))


@pytest.mark.parametrize("name", ["cdist", "prelu", "index", "squeeze", "user"])
def test_other_operations_are_not_known(name):
    ways = {
        "cdist": lambda m, y: torch.cdist(y, m.w),
        "prelu": lambda m, y: functional.prelu(y, m.v),
        "index": lambda m, y: y[torch.arange(len(y)).flip(0)],
        "squeeze": lambda m, y: (y * m.v).squeeze(),
        "user": lambda m, y: Mul.apply(y, m.v),
    }
    module = Network(lambda m, x: ways[name](m, m.layer(x)), layer=nn.Linear(5, WIDTH),
                       w=parameter(3, WIDTH), v=parameter(WIDTH))  # fmt: skip
    assert not Graph.of(module(torch.randn(2, 5))).is_known


class Mul(torch.autograd.Function):
    """It is called as one of torch's operations, but is the user's own."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g * weight, (g * x).sum(0)


class HalfInside(nn.Module):
    """Its own forward pass multiplies in half precision, whoever calls it."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(torch.tanh(self.body(x))).float()


@pytest.mark.parametrize("mode", ["structured", "jacobian"])
def test_a_network_that_turns_autocast_on_itself(mode):
    torch.manual_seed(0)
    module, X = HalfInside(), torch.randn(7, 5)
    G = gradients(module, X)
    close(rt.EmpiricalNTK(module, mode=mode)(X), products(G, G), 2e-2)
    learner = rt.TangentLearner(module, 0.3, 40).learn(X, X[:, :3])
    alone = torch.cat([learner.predict(x[None]) for x in X])
    close(alone, learner.predict(X), 2e-2)
