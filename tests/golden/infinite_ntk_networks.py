"""The networks whose kernels are kept as golden values, as plain data for both libraries.

A layer is (name, options); `weight_std` and `bias_std` hold for every layer of a network.
"""

NETWORKS = {
    "dense": {
        "shape": [5],
        "weight_std": 1.4,
        "bias_std": 0.3,
        "layers": [["dense", {}], ["relu", {}], ["dense", {}], ["relu", {}], ["dense", {}]],
    },
    "leaky": {
        "shape": [5],
        "weight_std": 1.2,
        "bias_std": 0.1,
        "layers": [["dense", {}], ["leaky", {"slope": 0.2}], ["dense", {}]],
    },
    "paper": {
        "shape": [1, 8, 8],
        "weight_std": 1.0,
        "bias_std": 0.0,
        "layers": [
            ["conv", {"kernel": 3, "stride": 1, "same": True}],
            ["relu", {}],
            ["pool", {"kernel": 2}],
            ["conv", {"kernel": 3, "stride": 1, "same": True}],
            ["relu", {}],
            ["pool", {"kernel": 2}],
            ["flatten", {}],
            ["dense", {}],
        ],
    },
    "strided": {
        "shape": [3, 9, 9],
        "weight_std": 1.3,
        "bias_std": 0.2,
        "layers": [
            ["conv", {"kernel": 3, "stride": 2, "same": False}],
            ["leaky", {"slope": 0.1}],
            ["conv", {"kernel": 2, "stride": 1, "same": False}],
            ["relu", {}],
            ["flatten", {}],
            ["dense", {}],
            ["relu", {}],
            ["dense", {}],
        ],
    },
    "global": {
        "shape": [2, 6, 6],
        "weight_std": 1.1,
        "bias_std": 0.4,
        "layers": [
            ["conv", {"kernel": 3, "stride": 1, "same": True}],
            ["relu", {}],
            ["conv", {"kernel": 3, "stride": 1, "same": True}],
            ["relu", {}],
            ["pool", {"kernel": 6}],
            ["flatten", {}],
            ["dense", {}],
        ],
    },
    "gelu": {
        "shape": [2, 6, 6],
        "weight_std": 1.5,
        "bias_std": 0.2,
        "layers": [
            ["conv", {"kernel": 3, "stride": 1, "same": True}],
            ["gelu", {}],
            ["pool", {"kernel": 2}],
            ["conv", {"kernel": 3, "stride": 1, "same": True}],
            ["gelu", {}],
            ["flatten", {}],
            ["dense", {}],
        ],
    },
}
