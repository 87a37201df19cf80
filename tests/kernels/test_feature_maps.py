"""Features instead of a kernel: exact ones, random ones, and what is refused."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.kernels import InfiniteNTK
from retarget.kernels.feature_maps import FeatureMap, feature_map
from support.problems import assert_same

X = np.random.default_rng(0).normal(size=(7, 4))


def squares(X):
    return X**2


def network(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), *more, nn.Tanh(), nn.Linear(6, 3)).double()


@pytest.mark.parametrize(
    ("kernel", "features"),
    [(rt.Linear(), X), (rt.Features(squares), X**2), (squares, X**2)],
    ids=["linear", "Features", "function"],
)
def test_exact_features_have_the_kernel_as_inner_products(kernel, features):
    found = feature_map(kernel)
    assert found.exact
    assert_same(found(X), features, 0)
    assert_same(found(X) @ found(X).mT, found.kernel(X), 1e-12)


def test_random_features_are_the_gaussian_kernel():
    exact, errors = rt.RBF(2.0)(X), {}
    for m in (64, 256, 1024):
        grams = []
        for seed in range(40):
            phi = feature_map(rt.RBF(2.0), m, seed)(X)
            assert phi.shape == (7, m)
            assert_same((phi**2).sum(1), np.ones(7), 1e-12)
            grams.append((phi @ phi.mT).numpy())
        errors[m] = np.sqrt(np.mean((np.array(grams) - exact) ** 2))
        assert errors[m] < 1 / np.sqrt(m)
        # right on average: no further away than chance would have it
        assert np.abs(np.mean(grams, axis=0) - exact).max() < 4 / np.sqrt(40 * m)
    assert errors[64] / errors[256] == pytest.approx(2, rel=0.2)
    assert errors[256] / errors[1024] == pytest.approx(2, rel=0.2)


def test_random_features_of_a_seed():
    phi = feature_map(rt.RBF(2.0), np.int64(7), 3)  # odd: one more
    assert phi(X).shape == (7, 8)
    assert_same(phi(X), feature_map(rt.RBF(4.0), 7, 3)(2 * X), 1e-12)
    assert_same(phi(X)[2:3], phi(X[2:3]), 1e-12)
    assert not np.allclose(phi(X), feature_map(rt.RBF(2.0), 7, 4)(X))
    images = X[:, :, None].repeat(3, axis=2)  # are long vectors
    assert feature_map(rt.Linear())(images).shape == (7, 12)
    assert feature_map(rt.RBF(1.0), 10)(images).shape == (7, 10)
    assert feature_map(rt.Linear())(X[:, 0]).shape == (7, 1)
    single = phi(X.astype(np.float32))
    assert single.dtype == torch.float32
    assert_same(single, phi(X), 1e-5)


def test_a_network_is_copied_and_frozen():
    module = network(nn.Dropout(0.5)).train()
    before = copy.deepcopy(module.state_dict())
    found = feature_map(module)
    assert module.training
    expected = copy.deepcopy(module).eval()(torch.from_numpy(X)).detach()
    assert_same(found(X), expected, 1e-14)
    assert not found(X).requires_grad
    with torch.no_grad():
        module[0].weight.add_(1.0)
    assert_same(found(X), expected, 1e-14)
    assert all(value.requires_grad for value in module.parameters())
    assert not torch.equal(before["0.weight"], module[0].weight)
    single = feature_map(network().float())
    assert single(X).dtype == torch.float32  # samples take the type of the parameters
    numbers = np.array([[1, 2], [3, 8]])  # whole ones reach it as they are
    assert feature_map(nn.Embedding(9, 5))(numbers).shape == (2, 10)
    assert feature_map(nn.Flatten())(X.astype(np.float32)).dtype == torch.float32


def test_a_tangent_kernel_gives_its_sketch():
    module = network()
    kernel = rt.EmpiricalNTK(module)
    found = feature_map(kernel, 40, seed=5)
    expected = rt.EmpiricalNTK(copy.deepcopy(module), sketch=40, seed=5).features(X)
    assert_same(found(X), expected, 1e-14)
    with torch.no_grad():
        module[0].weight.add_(1.0)
    assert_same(found(X), expected, 1e-14)
    assert not found.exact
    assert kernel.sketch is None
    own = feature_map(rt.EmpiricalNTK(network(), sketch=11, seed=2), 40, seed=5)
    assert_same(own(X), rt.EmpiricalNTK(network(), sketch=11, seed=2).features(X), 1e-14)


@pytest.mark.parametrize(
    "features",
    [rt.Linear(), squares, rt.RBF(1.5), network(), rt.EmpiricalNTK(network())],
    ids=["linear", "function", "rbf", "module", "tangent"],
)
def test_feature_maps_go_to_other_processes(features):
    found = feature_map(features, 12)
    again = pickle.loads(pickle.dumps(found))
    assert_same(again(X), found(X), 0)
    assert again.description == found.description


def returning(result):
    return lambda: FeatureMap(lambda _: (result, None), None, True, None)(X)


INFINITE = InfiniteNTK(nn.Sequential(nn.Linear(4, 1)))


def test_names_of_kernels():
    assert_same(feature_map("linear")(X), X, 0)
    named, known = feature_map("rbf", 9, 2), feature_map(rt.RBF(2.0), 9, 2)  # X has four columns
    assert_same(named(X), known(X), 0)
    assert (named.kernel.width, named.description["width"]) == ("auto", "auto")


@pytest.mark.parametrize(("call", "error", "match"), [
    (lambda: feature_map(3), InvalidTypeError, "kernel is 3, .* a function from samples"),
    (lambda: feature_map("cosine"), InvalidTypeError, "kernel is 'cosine'"),
    (lambda: feature_map(INFINITE)(X), InvalidTypeError, "expected a function"),
    (returning(torch.zeros(7)), InvalidInputError, r"returned shape \(7,\) for 7 samples; expect"),
    (returning(torch.zeros(7, 2).long()), InvalidTypeError, "features has dtype int64"),
    (returning(torch.full((7, 2), torch.inf)), InvalidInputError, "result holds inf in row 0"),
    (lambda: feature_map(rt.RBF(1.0), 2.5), InvalidTypeError, "features is 2.5; expected a whole"),
    (lambda: feature_map(rt.RBF(1.0), True), InvalidTypeError, "features is True; expected a"),
    (lambda: feature_map(rt.RBF(1.0), 0), InvalidInputError, "features is 0; expected 1 or more"),
])  # fmt: skip
def test_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()
