"""Streams for the diagnosis, and both kernels of one stream."""

import numpy as np
import polars as pl
import torch

from retarget.diagnosis.result import ChosenValue
from retarget.diagnosis.stream import Stream
from retarget.engine.stream_kernel import DenseKernel, FeatureKernel
from retarget.kernels import Linear
from retarget.kernels.feature_maps import feature_map


def as_stream(X, Y, kind="regression", groups=None, scales=None):
    c = Y.shape[1]
    return Stream(
        X=np.asarray(X, dtype=float),
        Y=np.asarray(Y, dtype=float),
        kind=kind,
        target_names=tuple(f"y{i}" for i in range(c)),
        target_means=np.zeros(c),
        target_scales=np.ones(c) if scales is None else np.asarray(scales),
        feature_names=tuple(f"x{i}" for i in range(X.shape[1])),
        rows=np.arange(1, len(X) + 1),
        groups=None if groups is None else np.asarray(groups),
        group_column=None if groups is None else "g",
    )


def drifting(n=60, outputs=1, seed=0, dimensions=2, noise=0.1):
    """A smooth function, learned from one side to the other."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(dimensions, outputs))  # first: the seed makes the function, whatever n
    X = rng.uniform(-2, 2, size=(n, dimensions))
    X = X[np.argsort(X[:, 0])]
    return as_stream(X, np.sin(2 * X @ W) + noise * rng.normal(size=(n, outputs)))


def spread(n=40, outputs=1, seed=0, dimensions=2):
    """The same function, met everywhere: rows to test on."""
    rng = np.random.default_rng(seed)
    stream = drifting(4 * n, outputs, seed, dimensions)
    rows = rng.permutation(len(stream.X))[:n]
    return as_stream(stream.X[rows], stream.Y[rows])


def classes(n=60, count=3, seed=0, dimensions=3):
    """Classes one after the other, each with its own group."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) * count // n
    X = rng.normal(size=(count, dimensions))[y] * 2 + rng.normal(size=(n, dimensions))
    return as_stream(X, np.eye(count)[y], "classification", groups=[f"class {k}" for k in y])


def both_kernels(stream):
    """The kernel of explicit features, dense and through the features."""
    X = stream.X if isinstance(stream, Stream) else stream.features
    X, Y = torch.from_numpy(X), torch.from_numpy(stream.Y)
    return DenseKernel(Linear(), X, Y), FeatureKernel(feature_map(Linear()), X, Y)


def by_hand(value):
    """A parameter that the user gave."""
    return ChosenValue(value, False, "given", pl.DataFrame())
