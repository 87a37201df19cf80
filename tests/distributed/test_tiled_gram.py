import dask
import dask.array as da
import numpy as np
import pytest
from sklearn.gaussian_process.kernels import Matern

import retarget as rt
from retarget import distributed as rd


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def X():
    return np.random.default_rng(0).normal(size=(23, 4))


@pytest.mark.parametrize("block_size", [1, 5, 23, 100])
def test_equals_the_kernel(X, block_size):
    K = rd.gram(rt.RBF(width=2.0), X, block_size).compute()
    np.testing.assert_allclose(K, rt.RBF(width=2.0)(X), rtol=1e-13)
    np.testing.assert_array_equal(K, K.T)


def test_samples_in_dask_chunks_of_their_own(X):
    K = rd.gram(rt.Linear(), da.from_array(X, chunks=((9, 9, 5), (3, 1))), 6)
    assert K.chunks == ((6, 6, 6, 5), (6, 6, 6, 5))
    np.testing.assert_allclose(K.compute(), X @ X.T, atol=1e-14)


def test_any_kernel_and_precision(X):
    K = rd.gram(Matern(length_scale=1.5), X, 6)
    np.testing.assert_allclose(K.compute(), Matern(length_scale=1.5)(X), rtol=1e-12)
    images = X.astype(np.float32).reshape(23, 2, 2)
    K = rd.gram(rt.RBF(width=2.0), images, 6)
    assert K.dtype == K.compute().dtype == np.float32


class Counting(rt.kernels.Kernel):
    """Notes which rows (their one feature is their number) meet which."""

    def __init__(self):
        self.met = []

    def _gram(self, A, B):
        self.met.append((int(A[0, 0]), int(B[0, 0])))
        return (A @ B.mT).exp()

    def _symmetric_gram(self, A):
        self.met.append((int(A[0, 0]), "itself"))
        return (A @ A.mT).exp()

    def _diag(self, A):
        return A[:, 0].square().exp()


def test_only_the_lower_tiles_are_computed_and_only_those_that_are_needed():
    kernel = Counting()
    K = rd.gram(kernel, np.arange(6.0)[:, None], 2)
    del kernel.met[:]  # one row, for the precision
    K[:2, 4:].compute()
    assert kernel.met == [(4, 0)]
    del kernel.met[:]
    K.compute()
    itself = {(0, "itself"), (2, "itself"), (4, "itself")}
    assert set(kernel.met) == itself | {(2, 0), (4, 0), (4, 2)}
    assert len(kernel.met) == 6


def test_every_tile_is_computed_once_in_a_pass():
    kernel = Counting()
    K = rd.gram(kernel, np.arange(6.0)[:, None] / 9, 2)
    del kernel.met[:]
    rd.online_coefficients(K, np.arange(6.0), rt.SGD(lr=0.1))
    assert len(kernel.met) == 6
