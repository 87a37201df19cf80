"""The kernel of an infinitely wide network."""

import math
import warnings
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from retarget.arrays import require_memory
from retarget.errors import InvalidInputError, install_line
from retarget.kernels.base import Kernel, mirror_lower
from retarget.kernels.infinite import torch as torch_engine
from retarget.kernels.infinite.layers import (
    Dense,
    Layer,
    OnImages,
    layers_from_dicts,
    layers_to_dicts,
    read_layers,
)
from retarget.kernels.infinite.plan import InfinitePlan, make_plan
from retarget.progress import PatientBar


class InfiniteNTK(Kernel, kind="InfiniteNTK"):
    r"""The neural tangent kernel, or the Gaussian process kernel, of an infinitely wide network.

    Use it for the kernel of an architecture, without weights or training; use `EmpiricalNTK` for
    one network with its weights. It agrees with the library neural-tangents. Time grows with the
    number of pairs of samples: 1,280 images of MNIST take 12 seconds on two cores.

    With independent Gaussian weights of variance $\sigma_w^2 / \text{fan-in}$ ("NTK
    parameterization") and biases of variance $\sigma_b^2$, and all widths infinite, a layer maps
    the covariance $S$ of two samples' activations and the tangent kernel $\Theta$ as follows:

    * Linear, Conv2d: $S' = \sigma_w^2 \, \text{mean}_t S(p + t, q + t) + \sigma_b^2$ over the
      layer's taps t (padding counts as 0), and
      $\Theta' = \sigma_w^2 \, \text{mean}_t \Theta(p + t, q + t) + S'$;
    * ReLU: with $r = \sqrt{S(x,x) S(x',x')}$, $c = S / r$ and $\varphi = \pi - \arccos c$,
      $S' = (r \sqrt{1 - c^2} + \varphi S) / 2 \pi$ and $\Theta' = \Theta \varphi / 2 \pi$;
    * GELU: the closed form derived in `infinite.torch._gelu`;
    * pooling averages both over the pairs of the two windows, Flatten over the pixels p = q.

    This is exact, and only those pairs of pixels (p, q) are computed that the output depends on:
    a read-out after Flatten needs a narrow band, global average pooling all of them.

    Repeated calls agree to the last bit, whatever the number of threads. If two different pixels
    are perfectly correlated (one channel seen through one tap), the arccosine leaves the tangent
    kernel half its digits there; a sample's correlation with itself is exact.

    The module's widths, weights and `bias=` flags are ignored: `weight_std` and `bias_std` say
    what the infinite network has. Samples are (n, d), or images (n, C, H, W) of any size and
    number of channels for a network with Conv2d or pooling. Images must be flattened at the end; a
    Linear after that is the read-out, and without one the kernel is that of the last features.

    Args:
        module: A `torch.nn.Sequential`, nested or not, of Linear, Conv2d (zero padding, one
            group), ReLU, LeakyReLU, GELU, AvgPool2d, AdaptiveAvgPool2d, Flatten and Identity.
        weight_std: $\sigma_w$ of every layer; or a dict by the layer's name in the module ("0",
            "2.1"), 1 for those not in it.
        bias_std: $\sigma_b$ likewise, 0 for those not in it.
        kind: "ntk" for the tangent kernel $\Theta$ (training all layers by gradient descent),
            "nngp" for the covariance $S$ (of the random network, or training the last layer).
        progress: Whether to show a progress bar when it takes more than a second; None shows it
            on a terminal.
        engine: "fused" is a compiled loop (Numba) for the CPU, or a compiled kernel (Triton) for
            CUDA, for networks without GELU; "torch" is plain tensor operations on any device;
            "auto" uses the fused one if possible.

    Examples:
        Two orthogonal samples, one hidden layer of ReLU: S = 0 and r = 1/2 before it, so that
        S' = r / 2 pi after, and the tangent kernel 0 * 1/4 + S'. A sample with itself has
        S = 1/2, S' = 1/4, and 1/2 * 1/2 + 1/4.

        >>> import numpy as np
        >>> from torch import nn
        >>> network = nn.Sequential(nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, 1))
        >>> InfiniteNTK(network)(np.eye(2)).round(4)
        array([[0.5   , 0.0796],
               [0.0796, 0.5   ]])
    """

    def __init__(
        self,
        module: nn.Sequential,
        weight_std: float | Mapping[str, float] = 1.0,
        bias_std: float | Mapping[str, float] = 0.0,
        kind: Literal["ntk", "nngp"] = "ntk",
        progress: bool | None = None,
        engine: Literal["auto", "fused", "torch"] = "auto",
    ) -> None:
        self._set_up(read_layers(module, weight_std, bias_std), kind, progress, engine)

    def _set_up(
        self, layers: tuple[Layer, ...], kind: str, progress: bool | None, engine: str
    ) -> None:
        if kind not in ("ntk", "nngp"):
            raise InvalidInputError(f"kind is {kind!r}; expected 'ntk' or 'nngp'")
        if engine not in ("auto", "fused", "torch"):
            raise InvalidInputError(f"engine is {engine!r}; expected 'auto', 'fused' or 'torch'")
        self._layers = layers
        self.kind = kind
        self.progress = progress
        self.engine = engine

    def __repr__(self) -> str:
        layers = ", ".join(f"{layer.name}: {type(layer).__name__}" for layer in self._layers)
        return f"InfiniteNTK({layers}; kind={self.kind!r})"

    def to_dict(self) -> dict[str, Any]:
        """The kernel as plain values; `of` is what the constructor calls `kind`."""
        return {
            "kind": "InfiniteNTK",
            "of": self.kind,
            "layers": layers_to_dicts(self._layers),
        }

    @classmethod
    def from_dict(cls, of: str, layers: list[dict[str, Any]]) -> "InfiniteNTK":
        """Rebuilds the kernel that `to_dict` described.

        Examples:
            >>> kernel = InfiniteNTK(nn.Sequential(nn.Linear(1, 1)), kind="nngp")
            >>> description = kernel.to_dict()
            >>> del description["kind"]
            >>> InfiniteNTK.from_dict(**description)
            InfiniteNTK(0: Dense; kind='nngp')
        """
        kernel = cls.__new__(cls)
        kernel._set_up(layers_from_dicts(layers), of, None, "auto")
        return kernel

    def _samples(self, name: str, value: Any) -> Tensor:
        samples = super()._samples(name, value)
        shape = tuple(samples.shape)
        images = any(isinstance(layer, OnImages) for layer in self._layers)
        if images and samples.ndim != 4:
            raise InvalidInputError(
                f"{name} has shape {shape}; expected images (n, channels, height, width)"
            )
        if isinstance(self._layers[0], Dense) and samples.ndim != 2:
            raise InvalidInputError(
                f"{name} has shape {shape}; expected (n, features), as this network begins with "
                "a Linear: put a Flatten first if it should take images"
            )
        if samples.ndim not in (2, 4):
            raise InvalidInputError(
                f"{name} has shape {shape}; expected (n, features) or (n, channels, height, width)"
            )
        if 0 in shape[1:]:
            raise InvalidInputError(f"{name} has shape {shape}; expected at least one feature")
        return samples

    def _gram(self, A: Tensor, B: Tensor) -> Tensor:
        if A.device != B.device:
            raise InvalidInputError(
                f"A is on {A.device}, but B is on {B.device}; move both to one device"
            )
        if len(B) < len(A):  # sixteen of the right-hand samples are worked on at once
            return self._gram(B, A).mT.contiguous()
        return self._computed([A, B], len(A) * len(B))

    def _symmetric_gram(self, A: Tensor) -> Tensor:
        return mirror_lower(self._computed([A], len(A) * (len(A) + 1) // 2))

    def _diag(self, A: Tensor) -> Tensor:
        return self._computed([A], None)

    def _computed(self, samples: list[Tensor], pairs: int | None) -> Tensor:
        """The kernel of one or two sets of samples; without a number of pairs, its diagonal.

        For one set, only the lower triangle is valid.
        """
        first, last = samples[0], samples[-1]
        shape = (len(first),) if pairs is None else (len(first), len(last))
        dtype = torch.promote_types(first.dtype, last.dtype)
        if not len(first) or not len(last):
            return first.new_empty(shape, dtype=dtype)
        # (n, C, H, W) in the precision of the computation; vectors are 1 x 1 images
        wide = [each.to(torch.promote_types(dtype, torch.float32)) for each in samples]
        ready = [each if each.ndim == 4 else each[:, :, None, None] for each in wide]
        require_memory(
            "the kernel matrix", math.prod(shape), ready[0], "compute it in several calls, by rows"
        )
        engine, program = self._program(ready[0])
        tangent = self.kind == "ntk"
        steps = sum(map(len, ready)) + (pairs or 0)
        with PatientBar("infinite-width kernel, pairs", steps, self.progress) as bar:
            packed = [engine.pack(program, each, tangent, bar.advance) for each in ready]
            K: Tensor = packed[0].diagonal
            if pairs is not None:
                K = engine.gram(program, packed[0], packed[-1], tangent, bar.advance)
        return K.to(dtype)

    def _program(self, samples: Tensor) -> tuple[ModuleType, Any]:
        """Returns the engine for these samples, and the plan in the engine's own form."""
        channels, height, width = samples.shape[1:]
        plan = _plan(self._layers, (channels, height, width))
        where = samples.device.type
        if self.engine == "fused" and where not in ("cpu", "cuda"):
            raise InvalidInputError(
                f"engine is 'fused', which runs on the CPU and on CUDA, but the samples are on "
                f"{samples.device}; use engine='auto', or move them"
            )
        gelu = any(stage.gelu for stage in plan.stages)
        if self.engine == "fused" and gelu:
            raise InvalidInputError(
                "engine is 'fused', which has no GELU, but the network has one; use engine='auto'"
            )
        wanted = self.engine != "torch" and where in ("cpu", "cuda") and not gelu
        fused = _fused_engine(where) if wanted else None
        if fused is not None:
            program = fused.make_program(plan, samples.dtype, samples.device)
            if where == "cpu" or fused.fits(program, samples):
                return fused, program
        require_memory(
            "the covariances between all pixels that this network needs",
            plan.numbers_per_pair * torch_engine.TENSORS_ALIVE,
            samples,
            "use smaller images, or pool less widely",
        )
        return torch_engine, torch_engine.make_program(plan, samples.dtype, samples.device)


@lru_cache(maxsize=8)
def _plan(layers: tuple[Layer, ...], shape: tuple[int, int, int]) -> InfinitePlan:
    return make_plan(layers, shape)


@lru_cache(maxsize=2)
def _fused_engine(device: str) -> ModuleType | None:
    """The compiled engine; None, with one warning, if its compiler cannot be used."""
    name, compiler, remedy = (
        ("numba", "Numba", f"install it with: {install_line('ntk')}")
        if device == "cpu"
        else ("cuda", "Triton", "reinstall it")
    )
    try:
        engine = import_module(f"retarget.kernels.infinite.{name}")
        engine.probe()
    except Exception as error:  # compilers fail in many ways
        warnings.warn(
            f"InfiniteNTK runs on plain torch, some 20 times slower, because "
            f"{compiler} cannot be used here ({type(error).__name__}: {error}); {remedy}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return engine
