"""The networks whose kernels are kept as golden values, as plain data for both libraries.

A layer is (name, options); `weight_std` and `bias_std` hold for every layer of a network.
"""

DENSE, RELU, GELU, FLATTEN = (["dense", {}], ["relu", {}], ["gelu", {}], ["flatten", {}])


def conv(kernel, stride=1, same=True):
    return ["conv", {"kernel": kernel, "stride": stride, "same": same}]


def leaky(slope):
    return ["leaky", {"slope": slope}]


def pool(kernel):
    return ["pool", {"kernel": kernel}]


def network(shape, weight_std, bias_std, *layers):
    return {
        "shape": shape, "weight_std": weight_std, "bias_std": bias_std, "layers": list(layers)
    }  # fmt: skip


NETWORKS = {
    "dense": network([5], 1.4, 0.3, DENSE, RELU, DENSE, RELU, DENSE),
    "leaky": network([5], 1.2, 0.1, DENSE, leaky(0.2), DENSE),
    "paper": network(
        [1, 8, 8], 1.0, 0.0, conv(3), RELU, pool(2), conv(3), RELU, pool(2), FLATTEN, DENSE
    ),
    "strided": network(
        [3, 9, 9], 1.3, 0.2, conv(3, 2, same=False), leaky(0.1), conv(2, same=False), RELU, FLATTEN,
        DENSE, RELU, DENSE,
    ),
    "global": network([2, 6, 6], 1.1, 0.4, conv(3), RELU, conv(3), RELU, pool(6), FLATTEN, DENSE),
    "gelu": network([2, 6, 6], 1.5, 0.2, conv(3), GELU, pool(2), conv(3), GELU, FLATTEN, DENSE),
}  # fmt: skip
