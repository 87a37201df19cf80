"""A convolution as a matrix product is the same convolution."""

import itertools

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn.functional import conv2d

from retarget.continual.methods.ewc import UnfoldedConvolutions
from support.problems import assert_same


def tensors(groups=1, kernel=(3, 2)):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 7, 6, dtype=torch.float64)
    weight = torch.randn(6, 4 // groups, *kernel, dtype=torch.float64)
    return x, weight, torch.randn(6, dtype=torch.float64)


OPTIONS = [
    {"stride": stride, "padding": padding, "dilation": dilation}
    for stride, padding, dilation in itertools.product(
        (1, (2, 1), (2,)), (1, (2, 1), "valid"), (1, (1, 2))
    )
]


@pytest.mark.parametrize("options", OPTIONS)
def test_it_is_the_same_convolution(options):
    x, weight, bias = tensors()
    expected = conv2d(x, weight, bias, **options)
    with UnfoldedConvolutions():
        got, bare = conv2d(x, weight, bias, **options), conv2d(x, weight, **options)
    assert_same(got, expected, 1e-13)
    assert_same(bare, conv2d(x, weight, **options), 1e-13)


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # PyTorch's own, of the copy it makes
@pytest.mark.parametrize(("kernel", "dilation"), [((3, 5), 1), ((2, 4), 1), ((4, 3), (2, 3))])
def test_padding_to_the_same_size(kernel, dilation):
    x, weight, bias = tensors(kernel=kernel)
    expected = conv2d(x, weight, bias, padding="same", dilation=dilation)
    assert expected.shape[2:] == x.shape[2:]
    with UnfoldedConvolutions():
        assert_same(conv2d(x, weight, bias, padding="same", dilation=dilation), expected, 1e-13)


def test_gradients_are_the_same_and_under_vmap_too():
    x, weight, bias = tensors()
    weights = torch.stack([weight, weight.flip(0), weight**2])

    def loss(w, b, x):
        return conv2d(x, w, b, stride=2, padding=1).tanh().square().sum()

    each = grad(loss, argnums=(0, 1, 2))
    expected = [each(w, bias, x) for w in weights]
    with UnfoldedConvolutions():
        alone = each(weights[1], bias, x)
        together = vmap(each, in_dims=(0, None, None))(weights, bias, x)
        samples = vmap(each, in_dims=(None, None, 0))(weight, bias, x[:, None])
    for i in range(3):
        assert_same(alone[i], expected[1][i], 1e-12)
        assert_same(together[i], torch.stack([one[i] for one in expected]), 1e-12)
        by_sample = torch.stack([each(weight, bias, row[None])[i] for row in x])
        assert_same(samples[i], by_sample, 1e-12)


def test_everything_else_is_as_it_was():
    x, weight, bias = tensors(groups=2)
    with UnfoldedConvolutions():
        grouped = conv2d(x, weight, bias, padding=1, groups=2)
        single = conv2d(x[0], weight, groups=2)
        product = x @ x.mT
    assert torch.equal(grouped, conv2d(x, weight, bias, padding=1, groups=2))
    assert torch.equal(single, conv2d(x[0], weight, groups=2))
    assert torch.equal(product, x @ x.mT)
    x, weight, bias = tensors()
    with UnfoldedConvolutions():
        unbatched, empty = conv2d(x[0], weight), conv2d(x[:0], weight)
    assert torch.equal(unbatched, conv2d(x[0], weight))
    assert empty.shape == (0, 6, 5, 5)


def test_modules_with_every_kind_of_padding():
    x, _, _ = tensors()
    for mode in ("zeros", "circular", "reflect"):
        layer = nn.Conv2d(4, 2, 3, padding=2, padding_mode=mode).double()
        with UnfoldedConvolutions():
            got = layer(x)
        assert_same(got.detach(), layer(x).detach(), 1e-13)
