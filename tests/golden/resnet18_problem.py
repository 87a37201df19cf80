"""Weights and images for the golden values of ResNet-18, the same for both libraries."""

import zlib

import numpy as np

CLASSES = 7
# Of inputs to the network, and of photographs to prepare for it.
INPUTS = {"square": (2, 3, 64, 64), "odd": (1, 3, 75, 97)}
PHOTOGRAPHS = {"smaller": (1, 3, 23, 31), "larger": (1, 3, 5, 6)}
PREPARED_SIZE = 8


def drawn(name, shape, low=-1.0, high=1.0):
    """Numbers that depend on nothing but the name and the shape."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return low + (high - low) * random.random(shape)


def drawn_weights(shapes):
    """A value for every tensor of a state dict, such that no part of the network is idle."""
    return {name: _drawn_weight(name, shape) for name, shape in shapes.items()}


def _drawn_weight(name, shape):
    if name.endswith("num_batches_tracked"):
        return np.array(3)
    if name.endswith("running_var") or (name.endswith("weight") and len(shape) == 1):
        return drawn(name, shape, 0.5, 1.5)
    inputs = np.prod(shape[1:]) if len(shape) > 1 else 12
    return drawn(name, shape) * np.sqrt(6 / inputs)


def photograph(name):
    return (drawn(name, PHOTOGRAPHS[name], 0, 256)).astype(np.uint8)
