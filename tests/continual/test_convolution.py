"""A convolution as a matrix product is the same convolution."""

import itertools

import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import conv2d

from retarget.continual.methods.ewc import UnfoldedConvolutions
from support.problems import assert_same

# PyTorch's own, of the copy it makes
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")
OPTIONS = [
    *itertools.product((1, (2, 1), (2,)), ((2, 1), "valid"), (1, (1, 2)), [1]),
    *((1, "same", dilation, 1) for dilation in (1, (2, 3))),
    (1, 1, 1, 2),
]


def tensors(kernel=(3, 2), groups=1):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 7, 6, dtype=torch.float64)
    weight = torch.randn(6, 4 // groups, *kernel, dtype=torch.float64)
    return x, weight, torch.randn(6, dtype=torch.float64)


@pytest.mark.parametrize("kernel", [(3, 2), (4, 3), (1, 1)])
@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), OPTIONS)
def test_it_is_the_same_convolution(kernel, stride, padding, dilation, groups):
    x, weight, bias = tensors(kernel, groups)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    for given in ((x, weight, bias), (x, weight), (x[0], weight, bias), (x[:0], weight)):
        expected = conv2d(*given, **options)
        with UnfoldedConvolutions():
            assert_same(conv2d(*given, **options), expected, 1e-13)


def test_gradients_are_the_same_and_under_vmap_too():
    x, weight, bias = tensors()
    weights = torch.stack([weight, weight.flip(0), weight**2])

    def loss(w, b, x):
        return conv2d(x, w, b, stride=2, padding=1).tanh().square().sum()

    each = grad(loss, argnums=(0, 1, 2))
    with UnfoldedConvolutions():
        alone = each(weights[1], bias, x)
        together = vmap(each, in_dims=(0, None, None))(weights, bias, x)
        samples = vmap(each, in_dims=(None, None, 0))(weight, bias, x[:, None])
    for i in range(3):
        assert_same(alone[i], each(weights[1], bias, x)[i], 1e-12)
        assert_same(together[i], torch.stack([each(w, bias, x)[i] for w in weights]), 1e-12)
        by_sample = torch.stack([each(weight, bias, row[None])[i] for row in x])
        assert_same(samples[i], by_sample, 1e-12)
