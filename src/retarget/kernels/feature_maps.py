"""Explicit features that replace a kernel in learners with bounded memory."""

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from retarget.arrays import as_tensor
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.kernels.base import Kernel
from retarget.kernels.empirical.ntk import EmpiricalNTK
from retarget.kernels.empirical.projection import Projection
from retarget.kernels.empirical.trial import require_settled_layers
from retarget.kernels.features import Features, require_features
from retarget.kernels.lookup import as_kernel, kernel_names, named_class
from retarget.samples import (
    Samples,
    as_samples,
    copied,
    count,
    failure_explained,
    leaves,
    outputs_of,
    portions,
    require_finite_outputs,
    with_type_of,
)
from retarget.scalars import as_count
from retarget.state_files import checksum

DEFAULT_FEATURES = 1024
# Samples per forward pass: few enough that activations stay in a CPU's cache.
AT_A_TIME = {"cpu": 64}
AT_A_TIME_ELSEWHERE = 4096
SMALLEST_SHARE = 1e-12  # smaller eigenvalues, relative to the largest, are rounding


@dataclass(frozen=True)
class FeatureMap:
    """A function from samples to features, and what is known about it.

    Attributes:
        compute: Returns the features (n, m) of samples and, if learning does not start from zero,
            the values (n, c) that it starts from.
        kernel: The kernel that the features' inner products are or estimate, if there is one.
        exact: Whether the inner products are that kernel, rather than an estimate of it.
        description: Plain values that identify the map in saved files; None if there are none.
        source: What the map is made from, if the description does not say it: a function, a
            network, a kernel.
        any_inputs: Whether samples of any size give the same number of features, so that the
            features do not show that samples have the wrong size.
    """

    compute: Callable[[Any], tuple[Tensor, Tensor | None]]
    kernel: Kernel | None
    exact: bool
    description: dict[str, Any] | None
    any_inputs: bool = False
    source: Any = None

    def __call__(self, X: Any) -> Tensor:
        """(n, m) features, checked."""
        return self.with_start(X)[0]

    def with_start(self, X: Any, first_row: int = 0) -> tuple[Tensor, Tensor | None]:
        """The same, and the values (n, c) that learning starts from; None for zero.

        Errors count rows from `first_row`.
        """
        features, start = self.compute(X)
        require_features(features, count(X), first_row)
        if not features.shape[1]:
            raise InvalidInputError(
                "the samples have no features: there is nothing to learn from; expected X with one "
                "column or more, or a feature map that returns some"
            )
        return features, start


def feature_map(kernel: Any, features: int = DEFAULT_FEATURES, seed: int = 0) -> FeatureMap:
    """Makes the feature map of a kernel, a network or a function.

    Args:
        kernel: A function from samples to features, or a `torch.nn.Module` (copied and frozen,
            in evaluation mode); a kernel that has features, or its name: `Linear`, `Affine` and
            `Features` have exact ones, `RBF`, `Laplace`, `Matern32` and `Matern52` random Fourier
            features, an `EmpiricalNTK` its sketch (its module is copied); or a `FeatureMap`, which
            is returned as it is.
        features: Number of features, for random ones and for an `EmpiricalNTK` without a sketch.
        seed: Seed of the random features.
    """
    features = as_count("features", features)
    if isinstance(kernel, FeatureMap):
        return kernel
    if isinstance(kernel, nn.Module):
        network = copied(kernel).eval()
        require_settled_layers(network)
        return FeatureMap(partial(_frozen_outputs, network), None, True, None, source=network)
    if named_class(kernel) is not None:
        kernel = as_kernel(kernel)
    if not isinstance(kernel, Kernel) and callable(kernel):
        kernel = Features(kernel)
    known = kernel.explicit_features(features, seed) if isinstance(kernel, Kernel) else None
    if known is None:
        raise InvalidTypeError(
            f"kernel is {kernel!r:.80}, which has no features; expected a function from samples to "
            "features, a torch.nn.Module, a kernel that has features, such as rt.RBF, rt.Linear, "
            f"rt.Features or rt.EmpiricalNTK, or one of the names {', '.join(kernel_names())}"
        )
    exact = kernel.exact_features
    description = kernel.to_dict()
    if description is not None and not exact:
        description |= {"features": features, "seed": seed}
    return FeatureMap(
        partial(_without_start, known),
        kernel.estimated_by(known),
        exact,
        description,
        any_inputs=description is not None and not exact,
        source=known if description is None else None,
    )


# Functions, not lambdas: learners are pickled, and sent to other processes.
def _without_start(features: Callable[[Any], Any], X: Any) -> tuple[Tensor, None]:
    return as_tensor("features", features(X)), None


@torch.no_grad()
def _frozen_outputs(network: nn.Module, X: Any) -> tuple[Tensor, None]:
    samples = as_samples("X", X)
    like = next(network.parameters(), None)
    if like is not None:
        samples = with_type_of(like, samples)
    rows = AT_A_TIME.get(leaves(samples)[0].device.type, AT_A_TIME_ELSEWHERE)
    with failure_explained(samples):
        parts = [outputs_of(network, some).flatten(1) for some in portions(samples, rows)]
    outputs = torch.cat(parts)
    require_finite_outputs(outputs, network.state_dict(), samples)
    return outputs, None


def nystroem_map(kernel: Kernel, landmarks: Tensor) -> FeatureMap:
    r"""Makes the map $\phi(x) = k(x, Z)\, k(Z, Z)^{-1/2}$ for a few samples $Z$ (landmarks)."""
    values, vectors = torch.linalg.eigh(kernel(landmarks).to(landmarks))
    kept = values > SMALLEST_SHARE * values[-1].clamp(min=0)
    root = vectors[:, kept] / values[kept].sqrt()
    return FeatureMap(partial(_whitened, kernel, landmarks, root), kernel, False, None)


def _whitened(kernel: Kernel, landmarks: Tensor, root: Tensor, X: Tensor) -> tuple[Tensor, None]:
    return kernel(X, landmarks).to(X) @ root, None


def tangent_map(
    network: nn.Module, params: list[str], features: int, combinations: int, seed: int
) -> FeatureMap:
    """Makes the map to a network's tangent features, with the network's outputs as the start.

    The gradients are those of so many random combinations of the outputs. The network must be in
    evaluation mode, and must not change any more.
    """
    kernel = EmpiricalNTK(
        _CombinedOutputs(network, combinations, seed),
        outputs=range(combinations),
        params=[f"network.{name}" for name in params],
        sketch=features,
        seed=seed,
    )
    # of a small parameter: another version of torch may draw other numbers
    buckets, signs = Projection(features, seed).table("", torch.Size([features]), range(1))
    description = {
        "features": features,
        "combinations": combinations,
        "params": params,
        "seed": seed,
        "projection": checksum("", {"buckets": buckets, "signs": signs}),
        "weights": checksum("", network.state_dict()),
    }
    compute = partial(_tangents_and_outputs, kernel, combinations)
    return FeatureMap(compute, kernel, False, description, source=network)


def _tangents_and_outputs(kernel: EmpiricalNTK, combinations: int, X: Any) -> tuple[Tensor, Tensor]:
    """Returns both from one pass; the outputs come after their combinations."""
    device = next(kernel.module.parameters()).device
    with torch.autocast(device.type, enabled=False):
        features, outputs = kernel.features_and_outputs(X)
    return features, outputs[:, combinations:]


class _CombinedOutputs(nn.Module):
    """Random combinations of a network's outputs (n, q), then the outputs themselves (n, c).

    A combination has random signs, divided by the square root of the number of outputs.
    """

    def __init__(self, network: nn.Module, count: int, seed: int) -> None:
        super().__init__()
        self.network = network
        self.count = count
        self.seed = seed

    def forward(self, samples: Samples, /) -> Tensor:  # positional, so that a dict is not unpacked
        outputs = outputs_of(self.network, samples).flatten(1)
        c = outputs.shape[1]
        signs = combining(c, self.count, self.seed)
        return torch.cat([outputs @ signs.to(outputs), outputs], 1)


@lru_cache(maxsize=64)  # torch.func.vmap, which comes later, does not allow random numbers inside
def combining(outputs: int, count: int, seed: int) -> Tensor:
    """(outputs, count) random combinations of a network's outputs, in float64."""
    random = torch.Generator().manual_seed(seed)
    signs: Tensor = 2 * torch.randint(0, 2, (outputs, count), generator=random, device="cpu") - 1
    return signs.double() / math.sqrt(outputs)


def fingerprint(value: Any) -> str:
    """A text that differs for features or views that differ, also in two processes.

    Arrays and other objects are told apart by what they hold, networks by their weights and what
    they print, and functions by their full name. A lambda, or a function inside another, has no
    name of its own: it is like itself only.
    """
    return _fingerprint(value, ())


def _fingerprint(value: Any, within: tuple[int, ...]) -> str:
    if id(value) in within:  # which contains itself
        return f"{len(within) - within.index(id(value))} levels up"
    if isinstance(value, nn.Module):
        return checksum(repr(value), value.state_dict())
    if isinstance(value, Tensor):
        return checksum("", {"": value})
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        numbers = hashlib.sha256(value.tobytes()).hexdigest()
        return f"{value.dtype.str} {value.shape} {numbers}"
    if isinstance(value, np.ndarray):
        value = [*value.shape, *value.flat]
    if isinstance(value, FunctionType):
        name = f"{value.__module__}.{value.__qualname__}"
        nameless = "<" in name or value.__closure__ is not None
        return f"{name} {os.getpid()} {id(value)}" if nameless else name
    parts = _parts_of(value)
    kind = type(value).__qualname__
    if parts is not None:
        texts = [_fingerprint(each, (*within, id(value))) for each in parts]
        return f"{kind} {hashlib.sha256(json.dumps(texts).encode()).hexdigest()}"
    plain = isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | None)
    return f"{kind} {value!r}" if plain else f"{kind} {getattr(value, '__qualname__', '')}"


def _parts_of(value: Any) -> list[Any] | None:
    """What a value is made of; None if it is compared as it is."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return None
    return [vars(value)]
