import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import pairwise

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.kernels import (
    CallableKernel,
    PrecomputedKernel,
    SklearnKernel,
    as_kernel,
    kernel_from_dict,
)
from support.problems import assert_same, panels_of


def phi(x):
    return torch.tanh(torch.as_tensor(x)) if isinstance(x, torch.Tensor) else np.tanh(x)


def cubic(A, B):
    return (1 + A @ B.T) ** 3


KERNELS = {
    "rbf": (rt.RBF(1.7), lambda A, B: pairwise.rbf_kernel(A, B, gamma=1 / 1.7**2)),
    "linear": (rt.Linear(), pairwise.linear_kernel),
    "features": (rt.Features(phi), lambda A, B: np.tanh(A) @ np.tanh(B).T),
    "callable": (as_kernel(cubic), cubic),
    "sklearn": (as_kernel("laplacian"), pairwise.laplacian_kernel),
    "sklearn with parameters": (
        SklearnKernel("polynomial", degree=2, gamma=0.3),
        lambda A, B: pairwise.polynomial_kernel(A, B, degree=2, gamma=0.3),
    ),
}


@pytest.fixture
def samples():
    rng = np.random.default_rng(0)
    return rng.normal(size=(7, 4)), rng.normal(size=(5, 4))


@pytest.mark.parametrize(("kernel", "oracle"), KERNELS.values(), ids=KERNELS.keys())
def test_the_formula_in_the_callers_library(kernel, oracle, samples):
    A, B = samples
    needs_gradients = kernel is not KERNELS["callable"][0]
    theirs = [torch.tensor(part, requires_grad=needs_gradients) for part in samples]
    for arguments, expected in (((0, 1), oracle(A, B)), ((0,), oracle(A, A))):
        assert_same(kernel(*(samples[i] for i in arguments)), expected, 1e-13)
        got = kernel(*(theirs[i] for i in arguments))
        assert isinstance(got, torch.Tensor)
        assert not got.requires_grad
        assert_same(got, expected, 1e-13)
    assert_same(kernel.diag(A), np.diag(oracle(A, A)), 1e-13)
    assert isinstance(kernel.diag(theirs[0]), torch.Tensor)
    A = A.astype(np.float32)
    assert kernel(A).dtype == oracle(A, A).dtype  # scikit-learn widens some of its own
    assert_same(kernel(A), oracle(A, A), 1e-4)


@given(seed=st.integers(0, 9999), n=st.integers(1, 20), width=st.floats(0.01, 50))
def test_gram_matrices_are_symmetric_to_the_last_bit(seed, n, width):
    X = np.random.default_rng(seed).normal(size=(n, 3)) * 3 + 1000
    for kernel in (rt.RBF(width), rt.Linear(), rt.Features(np.sin)):
        with panels_of(4):
            K = kernel(X)
        np.testing.assert_array_equal(K, K.T)
    K = rt.RBF(width)(X)
    np.testing.assert_array_equal(np.diag(K), 1.0)
    assert K.max() <= 1.0


def test_flat_features_images_and_far_samples(
    samples,
):
    near = rt.RBF(1.3)(*samples)
    far = rt.RBF(1.3)(samples[0] + 1e6, samples[1] + 1e6)
    assert np.abs(near - far).max() < 1e-8
    x = np.array([0.0, 0.5, 2.0])
    np.testing.assert_array_equal(rt.RBF(1.0)(x), rt.RBF(1.0)(x[:, None]))
    images = np.random.default_rng(0).normal(size=(4, 2, 3, 3))
    flat = images.reshape(4, -1)
    for kernel in (rt.RBF(2.0), rt.Linear()):
        assert_same(kernel(images), kernel(flat), 1e-13)
        assert_same(kernel.diag(images), kernel.diag(flat), 1e-13)


def test_precomputed_rows():
    K = rt.RBF(1.0)(np.arange(6.0))
    kernel = as_kernel(K)
    assert isinstance(kernel, PrecomputedKernel)
    rows, columns = np.array([4, 0]), np.array([1, 2, 5])
    np.testing.assert_array_equal(kernel(rows, columns), K[np.ix_(rows, columns)])
    np.testing.assert_array_equal(kernel(rows), K[np.ix_(rows, rows)])
    np.testing.assert_array_equal(kernel.diag(rows), np.ones(2))
    assert isinstance(kernel(torch.tensor([1]), torch.tensor([2])), torch.Tensor)


def test_descriptions_of_kernels(samples):
    for kernel in (rt.RBF(0.3), rt.Linear(), SklearnKernel("sigmoid", coef0=2.0)):
        again = kernel_from_dict(kernel.to_dict())
        assert repr(again) == repr(kernel)
        np.testing.assert_array_equal(again(*samples), kernel(*samples))
    for kernel in (rt.Features(phi), as_kernel(cubic), as_kernel(np.eye(2))):
        assert kernel.to_dict() is None
        assert "object at" not in repr(kernel).replace("<function", "")


def whole(A, B):
    return np.ones((len(A), len(B)), int)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda A, B: rt.RBF(0.0), InvalidInputError, "width is 0.0"),
    (lambda A, B: rt.RBF(1.0)(A, B[:, :3]), InvalidInputError, r"A has samples of shape \(4,\)"),
    (lambda A, B: rt.RBF(1.0)(np.float64(3.0)), InvalidInputError, "A is a single number"),
    (lambda A, B: rt.RBF(1.0)(A.astype(int)), InvalidTypeError, "A has dtype int64"),
    (lambda A, B: rt.Linear()(A * np.nan), InvalidInputError, "A holds nan in row 0"),
    (lambda A, B: rt.Features("tanh"), InvalidInputError, "fn is 'tanh'; expected a function"),
    (lambda A, B: rt.Features(lambda x: x[:2])(A), InvalidInputError, r"returned shape \(2, 4\)"),
    (lambda A, B: rt.Features(lambda x: x * np.inf)(A), InvalidInputError, "result holds -?inf"),
    (lambda A, B: rt.Features(lambda x: x > 0)(A), InvalidTypeError, "features has dtype bool"),
    (lambda A, B: as_kernel("rfb"), InvalidInputError, "kernel is 'rfb'; .* rbf, sigmoid"),
    (lambda A, B: as_kernel(3), InvalidTypeError, "kernel is 3; expected a retarget kernel"),
    (lambda A, B: as_kernel(lambda A, B: A)(A, B), InvalidInputError, r"\(7, 4\) for 7 and 5"),
    (lambda A, B: as_kernel(lambda A, B: np.triu(A @ B.T))(A), InvalidInputError, "not symmetric"),
    (lambda A, B: as_kernel(whole)(A, B), InvalidTypeError, "kernel's result has dtype int64"),
    (lambda A, B: as_kernel(A), InvalidInputError, r"K has shape \(7, 4\)"),
    (lambda A, B: as_kernel(np.eye(3, dtype=int)), InvalidTypeError, "K has dtype int64"),
    (lambda A, B: as_kernel(np.eye(3))(A), InvalidTypeError, "samples are its row numbers"),
    (lambda A, B: as_kernel(np.eye(3))(np.array([0, 3])), InvalidInputError, "from 0 to 3; exp"),
    (lambda A, B: kernel_from_dict({"kind": "os.system"}), InvalidInputError, "kernel kind is"),
])  # fmt: skip
def test_refused(call, error, message, samples):
    with pytest.raises(error, match=message):
        call(*samples)


def test_a_wrapped_function_serves_wherever_a_kernel_does(samples):
    A, B = (torch.tensor(part) for part in samples)
    kernel = CallableKernel(cubic)
    assert_same(kernel._gram(A, B), cubic(*samples), 1e-13)
    assert_same(kernel._diag(A), np.diag(cubic(samples[0], samples[0])), 1e-13)


@pytest.mark.parametrize("kernel", [rt.RBF(1.0), rt.Linear(), rt.Features(np.asarray)])
def test_two_sets_of_different_precision(kernel):
    X = np.random.default_rng(0).normal(size=(8, 3))
    single = X[:5].astype(np.float32)
    expected = kernel(X, single.astype(float))
    assert_same(kernel(X, single), expected, 1e-12)
    assert_same(kernel(single, X), expected.T, 1e-12)


def test_a_network_is_no_kernel_but_has_one():
    network, X = torch.nn.Linear(3, 2).double(), np.random.default_rng(0).normal(size=(8, 3))
    with pytest.raises(InvalidTypeError, match=r"a network; .*rt.EmpiricalNTK"):
        as_kernel(network)
    for kernel in (rt.EmpiricalNTK(network), rt.Features(lambda x: network(torch.tensor(x)))):
        corrector = rt.TargetCorrector(kernel, rt.SGD(0.01), 1.0, 4)
        assert np.isfinite(corrector.correct(X, X[:, :2])).all()


def test_rows_of_a_precomputed_kernel():
    K = rt.RBF(1.0)(np.random.default_rng(0).normal(size=(9, 2)))
    kernel = PrecomputedKernel(K)
    for rows, columns in (
        ([2, 3, 4], [0, 1]),
        ([2, 4, 3], [0, 1]),
        ([4, 2], [7]),
        ([5], [8, 7]),
        ([], [1, 2]),
    ):
        rows, columns = np.array(rows, dtype=int), np.array(columns)
        found = kernel(rows, columns)
        np.testing.assert_array_equal(found, K[np.ix_(rows, columns)])
        found[:] = np.nan
        np.testing.assert_array_equal(kernel(np.arange(9)), K)
