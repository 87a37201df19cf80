"""Standard deviations of predictions: those of scikit-learn's Gaussian process."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct
from torch import nn

import retarget as rt
from retarget.errors import InvalidInputError
from support.problems import assert_same


def random_stream(n=30, d=4, c=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    Y = X @ rng.normal(size=(d, c)) + 0.3 * rng.normal(size=(n, c))
    return X, Y, rng.normal(size=(7, d)) * 2


@pytest.mark.parametrize("gamma", [0.7, 3.0])
@pytest.mark.parametrize("n", [30, 3])
def test_it_is_that_of_a_gaussian_process(gamma, n):
    X, Y, queries = random_stream(n)
    learner = rt.StreamingRidge("linear", gamma)
    for rows in np.array_split(np.arange(n), 3):
        learner.learn(X[rows], Y[rows])
    mean, std = learner.predict(queries, return_std=True)
    assert mean.shape == std.shape == (7, 2)
    assert_same(mean, learner.predict(queries), 0)
    for output, noise in enumerate(learner.noise_):
        kernel = ConstantKernel(noise / gamma) * DotProduct(0.0, "fixed")
        peer = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(X, Y[:, output])
        expected_mean, expected_std = peer.predict(queries, return_std=True)
        assert_same(mean[:, output], expected_mean, 1e-8)
        assert_same(std[:, output], expected_std, 1e-8)


def test_the_most_likely_noise():
    X, Y, _ = random_stream(30, c=1)
    learner = rt.StreamingRidge("linear", 0.7).learn(X, Y[:, 0])
    K = X @ X.T / 0.7 + np.eye(30)  # covariance of the targets, by the noise

    def log_likelihood(noise):
        _, size = np.linalg.slogdet(noise * K)
        return -0.5 * (Y[:, 0] @ np.linalg.solve(noise * K, Y[:, 0]) + size)

    best = learner.noise_
    assert isinstance(best, float)
    assert log_likelihood(best) > max(log_likelihood(0.99 * best), log_likelihood(1.01 * best))


def test_the_intercept_is_not_penalized():
    X, Y, queries = random_stream()
    X, queries = X + 50, queries + 50
    learner = rt.StreamingRidge("linear", 0.7, intercept=True).learn(X, Y)
    wide = np.hstack([X, np.full((30, 1), 1.0)])
    asked = np.hstack([queries, np.full((7, 1), 1.0)])
    inverse = np.linalg.inv(wide.T @ wide + np.diag([0.7] * 4 + [0.0]))
    expected = np.einsum("ij,jk,ik->i", asked, inverse, asked)
    assert_same(learner.spread(queries).numpy(), expected, 1e-8)
    residual = Y - Y.mean(0)
    centered = X - X.mean(0)
    explained = (
        centered.T
        @ residual
        * np.linalg.solve(centered.T @ centered + 0.7 * np.eye(4), centered.T @ residual)
    )
    noise = ((residual**2).sum(0) - explained.sum(0)) / 29
    assert_same(learner.noise_, noise, 1e-10)
    _, std = learner.predict(queries, return_std=True)
    assert_same(std, np.sqrt(expected[:, None] * noise), 1e-8)


def test_few_samples_for_many_features():
    """Then eigenvectors of C solve, and not its factor."""
    rng = np.random.default_rng(0)
    X, Y, queries = rng.normal(size=(12, 500)), rng.normal(size=12), rng.normal(size=(5, 500))
    learner = rt.StreamingRidge("linear", 2.0).learn(X, Y)
    _, std = learner.predict(queries, return_std=True)
    inverse = np.linalg.inv(X.T @ X + 2.0 * np.eye(500))
    expected = np.sqrt(learner.noise_ * np.einsum("ij,jk,ik->i", queries, inverse, queries))
    assert_same(std, expected, 1e-8)


def test_it_grows_with_distance_and_falls_with_samples():
    X, Y, queries = random_stream()
    learner = rt.StreamingRidge("rbf", 0.1, features=200).learn(X, Y)
    _, near = learner.predict(X, return_std=True)
    _, far = learner.predict(X + 9, return_std=True)
    assert (far > near).all()
    more = learner.fork().learn(queries, np.zeros((7, 2)))
    assert (more.spread(queries) < learner.spread(queries)).all()
    assert_same(more.forget(queries, np.zeros((7, 2))).spread(queries), learner.spread(queries))


def test_views_are_one_observation():
    X, Y, queries = random_stream()
    once = rt.StreamingRidge("linear", 0.7, intercept=True).learn(X, Y)
    # each view counts as a row: with the ridge of both, equal views are the sample itself
    twice = rt.StreamingRidge("linear", 1.4, intercept=True, views=[None, np.copy]).learn(X, Y)
    for one, other in zip(
        once.predict(queries, return_std=True), twice.predict(queries, return_std=True), strict=True
    ):
        assert_same(one, other, 1e-10)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_networks_and_prepared_features(precision):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    X, Y, queries = (torch.from_numpy(each) for each in random_stream(c=1))
    learner = rt.TangentLearner(network, 0.3, features=40, precision=precision).learn(X, Y[:, 0])
    mean, std = learner.predict(queries, return_std=True)
    assert std.shape == (7,)
    phi = learner._map(X)
    asked = learner._map(queries)
    inverse = torch.linalg.inv(phi.mT @ phi + 0.3 * torch.eye(40).double())
    expected = (learner.noise_ * torch.einsum("ij,jk,ik->i", asked, inverse, asked)).sqrt()
    assert_same(std, expected, 1e-8 if precision == "float64" else 1e-4)
    prepared = learner.prepare(queries)
    for one, other in zip(learner.predict(prepared, return_std=True), (mean, std), strict=True):
        assert_same(one, other, 1e-12)


def test_what_cannot_be_known():
    X, Y, queries = random_stream()
    learner = rt.StreamingRidge("linear", 0.7)
    with pytest.raises(InvalidInputError, match="nothing has been learned yet"):
        learner.predict(queries, return_std=True)
    with pytest.raises(InvalidInputError, match="1 sample was learned"):
        learner.learn(X[:1], Y[:1]).predict(queries, return_std=True)


def test_the_factor_is_not_pickled():
    X, Y, _ = random_stream(60, d=40)
    learner = rt.StreamingRidge("linear", 0.7).learn(X, Y)
    learner.predict(X[:2])
    before = len(pickle.dumps(learner))
    _, std = learner.predict(X[:2], return_std=True)
    assert len(pickle.dumps(learner)) == before
    twin = pickle.loads(pickle.dumps(learner))
    assert_same(twin.predict(X[:2], return_std=True)[1], std, 1e-12)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_the_regressor_has_it_too(flat, kernel):
    X, Y, queries = random_stream()
    Y = Y[:, 0] if flat else Y
    model = rt.StreamingRidgeRegressor(kernel, 0.3, features=30).fit(X, Y)
    learner = rt.StreamingRidge(kernel, 0.3, 30, intercept=True).learn(X, Y)
    for one, other in zip(
        model.predict(queries, return_std=True),
        learner.predict(queries, return_std=True),
        strict=True,
    ):
        assert_same(one, other, 1e-12)
