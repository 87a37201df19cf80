"""Explicit features that replace a kernel in learners with bounded memory."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from retarget.arrays import as_tensor
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.kernels.empirical.ntk import EmpiricalNTK
from retarget.kernels.simple import RBF, Features, Kernel, Linear, require_features
from retarget.samples import (
    as_samples,
    count,
    failure_explained,
    leaves,
    outputs_of,
    portions,
    require_finite_outputs,
    require_network,
    with_type_of,
)

DEFAULT_MEMORY = 1024
# Samples per forward pass: few enough that activations stay in a CPU's cache.
AT_A_TIME = {"cpu": 64}
AT_A_TIME_ELSEWHERE = 4096


@dataclass(frozen=True)
class FeatureMap:
    """A function from samples to features, and what is known about it.

    Attributes:
        compute: Returns the features (n, m) of samples.
        kernel: The kernel that the features' inner products are or estimate, if there is one.
        exact: Whether the inner products are that kernel, rather than an estimate of it.
        description: Plain values that identify the map in saved files; None if there are none.
        source: What the map is made from, if the description does not say it: a function, a
            network, a kernel.
        any_inputs: Whether samples of any size give the same number of features, so that the
            features do not show that samples have the wrong size.
    """

    compute: Callable[[Any], Tensor]
    kernel: Kernel | None
    exact: bool
    description: dict[str, Any] | None
    any_inputs: bool = False
    source: Any = None

    def __call__(self, X: Any, first_row: int = 0) -> Tensor:
        """(n, m) features, checked; errors count rows from `first_row`."""
        features = self.compute(X)
        require_features(features, count(X), first_row)
        return features


def feature_map(features: Any, memory: int = DEFAULT_MEMORY, seed: int = 0) -> FeatureMap:
    """Makes the feature map of a kernel, a network or a function.

    Args:
        features: A function from samples to features, or a `torch.nn.Module` (copied and frozen,
            in evaluation mode); `Linear` and `Features`, whose features are exact; `RBF`, by
            random Fourier features; or an `EmpiricalNTK`, by its sketch (its module is copied).
        memory: Number of features, for `RBF` and for an `EmpiricalNTK` without a sketch.
        seed: Seed of the random features.
    """
    memory = as_count("memory", memory)
    if isinstance(features, Linear):
        return FeatureMap(partial(_samples_of, features), features, True, features.to_dict())
    if isinstance(features, Features):
        compute = partial(_values_of, features)
        return FeatureMap(compute, features, True, None, source=features.fn)
    if isinstance(features, RBF):
        random = RandomFourier(features, memory, seed)
        description = {**features.to_dict(), "memory": memory, "seed": seed}
        return FeatureMap(random, features, False, description, any_inputs=True)
    if isinstance(features, EmpiricalNTK):
        frozen = copy.copy(features)
        frozen.preconditioner = features.factors()
        frozen.module = copy.deepcopy(features.module)  # so that its training changes nothing
        sketched = copy.copy(frozen)
        sketched.sketch, sketched.seed = features.sketch or memory, features.seed or seed
        return FeatureMap(partial(_sketch_of, sketched), frozen, False, None, source=sketched)
    if isinstance(features, nn.Module):
        network = FrozenModule(features)
        return FeatureMap(network, None, True, None, source=network.module)
    if isinstance(features, Kernel) or not callable(features):
        raise InvalidTypeError(
            f"features is {features!r}; expected a function from samples to features, a "
            "torch.nn.Module, Linear, RBF, Features or EmpiricalNTK"
        )
    return feature_map(Features(features), memory, seed)


# Functions, not lambdas: learners are pickled, and sent to other processes.
def _samples_of(kernel: Linear, X: Any) -> Tensor:
    return kernel._samples("X", X).flatten(1)


def _values_of(kernel: Features, X: Any) -> Tensor:
    return kernel.values("X", X)


def _sketch_of(kernel: EmpiricalNTK, X: Any) -> Tensor:
    return as_tensor("features", kernel.features(X))


def as_count(name: str, value: Any) -> int:
    """A whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidTypeError(f"{name} is {value!r}; expected a whole number")
    if value < 1:
        raise InvalidInputError(f"{name} is {value}; expected 1 or more")
    return int(value)


class RandomFourier:
    r"""Random features of the Gaussian kernel (Rahimi and Recht, 2007).

    $\phi(x) = \sqrt{2/m} \, [\cos(\Omega x), \sin(\Omega x)]$ with $\Omega$ drawn from the Fourier
    transform of $\exp(-\|x\|^2 / \text{width}^2)$, a Gaussian of variance $2 / \text{width}^2$. The
    mean of $\phi(x) \cdot \phi(x')$ is the kernel, its standard deviation at most $1/\sqrt{m}$.
    An odd m is rounded up. The draw is made on the CPU, so that it is the same on every device.
    """

    def __init__(self, kernel: RBF, count: int, seed: int) -> None:
        self.kernel, self.count, self.seed = kernel, count, seed
        # drawn for the latest length of a sample, which is often the next one's
        self._frequencies = torch.empty(0, 0)

    def __call__(self, X: Any) -> Tensor:
        """(n, m) features."""
        samples = self.kernel._samples("X", X).flatten(1)
        half = -(-self.count // 2)
        frequencies = self._frequencies
        if len(frequencies) != samples.shape[1]:
            random = torch.Generator().manual_seed(self.seed)
            shape = samples.shape[1], half
            drawn = torch.randn(shape, generator=random, dtype=torch.float64)
            frequencies = self._frequencies = drawn * (math.sqrt(2) / self.kernel.width)
        angles = samples @ frequencies.to(samples)
        return torch.cat([angles.cos(), angles.sin()], 1).mul_(math.sqrt(1 / half))


class FrozenModule:
    """The outputs of a network with its current weights, in evaluation mode, one row per sample."""

    def __init__(self, module: nn.Module) -> None:
        require_network(module)
        self.module = copy.deepcopy(module).eval().requires_grad_(False)

    @torch.no_grad()
    def __call__(self, X: Any) -> Tensor:
        """(n, outputs)."""
        samples = as_samples("X", X)
        like = next(self.module.parameters(), None)
        if like is not None:
            samples = with_type_of(like, samples)
        rows = AT_A_TIME.get(leaves(samples)[0].device.type, AT_A_TIME_ELSEWHERE)
        with failure_explained(samples):
            parts = [outputs_of(self.module, part).flatten(1) for part in portions(samples, rows)]
        outputs = torch.cat(parts)
        require_finite_outputs(outputs, self.module.state_dict())
        return outputs


def alike(one: Any, other: Any) -> bool:
    """Whether two things compute the same, as far as that can be told.

    Functions are compared by their code and what they refer to, so that a copy from another process
    is like the original; arrays, networks and other objects by what they hold.
    """
    return _alike(one, other, set())


def _alike(one: Any, other: Any, seen: set[tuple[int, int]]) -> bool:
    if one is other or (id(one), id(other)) in seen:
        return True
    if type(one) is not type(other):
        return False
    seen.add((id(one), id(other)))
    if isinstance(one, Tensor | np.ndarray):
        same_kind = one.dtype == other.dtype and one.shape == other.shape
        return same_kind and bool((one == other).all())
    mine, theirs = _parts_of(one), _parts_of(other)
    if mine is None or theirs is None:
        return bool(one == other)
    pairs = zip(mine, theirs, strict=False)
    return len(mine) == len(theirs) and all(_alike(a, b, seen) for a, b in pairs)


def _parts_of(value: Any) -> list[Any] | None:
    """What a value is made of; None if it is compared as it is."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, *cells]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, CodeType | type) or not hasattr(value, "__dict__"):
        return None
    return [vars(value)]
