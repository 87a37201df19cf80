"""The empirical NTK of networks of all kinds, against autograd, one sample and output at a time."""

import pytest

import retarget as rt
from support.networks import NETWORKS, network
from support.oracles.empirical_ntk import close, gradients, products


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("n", [1, 3, 8])  # one, as many as outputs, others
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_has_the_kernel_of_its_gradients(name, n):
    module, X = network(name, n)
    G = gradients(module, X)
    for mode in ("structured", "jacobian"):
        for outputs in ("mean", "full", 1):
            kernel, expected = rt.EmpiricalNTK(module, outputs, mode=mode), products(G, G, outputs)
            close(kernel(X), expected)
            r = len(expected) // n
            close(kernel(X, X[:2]), expected[:, : 2 * r])
            close(kernel.diag(X), expected.diagonal())
        features, found = rt.EmpiricalNTK(module, mode=mode).features_and_outputs(X)
        close(features @ features.T, products(G, G))
        close(found, module(X).detach())
