"""One forward pass, with a note of how each parameter was used: the raw material of gradients.

The notes are taken at the level of functions (`linear`, `conv2d`), not of layers. So functional
use, subclasses and tied weights are seen as they are, and the module itself is left alone: no hook
is registered, and it runs on stand-ins for its parameters and buffers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from retarget.errors import InvalidInputError

# A layer is a weight and a bias that are used together, by their names; None where there is none
# or it is not asked for.
Layer = tuple[str | None, str | None]


@dataclass(frozen=True)
class Window:
    """The geometry of a convolution."""

    size: tuple[int, int]
    stride: Any
    padding: Any
    dilation: Any
    groups: int


@dataclass(frozen=True)
class Use:
    """One call of `linear` (without a window) or `conv2d` with a layer's parameters.

    Attributes:
        edge: Where the gradient by the call's result is found in the graph. Unlike the result
            itself it still stands for it after an operation in place, a ReLU's for one.
    """

    input: Tensor
    edge: GradientEdge
    shape: torch.Size
    window: Window | None


@dataclass
class Recording:
    """What a forward pass has left behind.

    Attributes:
        outputs: (n, c).
        layers: The uses of each layer that a rule is known for.
        elsewhere: Parameters that were used in some other way (too).
    """

    outputs: Tensor
    layers: dict[Layer, list[Use]]
    elsewhere: set[str]


class _Recorder(TorchFunctionMode):
    """Sees every torch function that the forward pass calls."""

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in parameters.items()}
        self.layers: dict[Layer, list[Use]] = {}
        self.elsewhere: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        known = _CALLS.get(func)
        if known is not None:
            call = known(*args, **kwargs)
            if id(call.input) not in self._names and result.requires_grad:
                self._note(call, result)
                return result
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            leaves = (id(leaf) for leaf in tree_leaves((args, kwargs)))
            self.elsewhere.update(self._names[leaf] for leaf in leaves if leaf in self._names)
        return result

    def _note(self, call: "_Call", result: Tensor) -> None:
        layer = self._names.get(id(call.weight)), self._names.get(id(call.bias))
        if layer != (None, None):
            use = Use(call.input, get_gradient_edge(result), result.shape, call.window)
            self.layers.setdefault(layer, []).append(use)


@dataclass(frozen=True)
class _Call:
    input: Tensor
    weight: Tensor
    bias: Tensor | None
    window: Window | None


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> _Call:  # noqa: A002
    return _Call(input, weight, bias, None)


def _conv2d(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> _Call:
    size = weight.shape[2], weight.shape[3]
    return _Call(input, weight, bias, Window(size, stride, padding, dilation, groups))


_CALLS: dict[Any, Callable[..., _Call]] = {
    nn.functional.linear: _linear,
    nn.functional.conv2d: _conv2d,
}


@dataclass(frozen=True)
class Network:
    """A module as it is now, to be run without touching it.

    Attributes:
        parameters: Stand-ins, by name, for those that gradients are taken of.
        others: For those that they are not.
        buffers: The module's own: what is written to are copies.
    """

    module: nn.Module
    parameters: dict[str, Tensor]
    others: dict[str, Tensor] = field(repr=False)
    buffers: dict[str, Tensor] = field(repr=False)

    @classmethod
    def of(cls, module: nn.Module, wanted: Iterable[str]) -> "Network":
        """The module with gradients of the named parameters."""
        wanted = set(wanted)
        values = {name: value.detach() for name, value in module.named_parameters()}
        parameters = {
            name: values.pop(name).requires_grad_() for name in list(values) if name in wanted
        }
        buffers = {name: value.detach() for name, value in module.named_buffers()}
        return cls(module, parameters, values, buffers)

    def record(self, samples: Tensor) -> Recording:
        """One forward pass, with a graph."""
        with torch.enable_grad(), _Recorder(self.parameters) as recorder:
            outputs = self(samples)
        return Recording(outputs, recorder.layers, recorder.elsewhere)

    def __call__(self, samples: Tensor, instead: dict[str, Tensor] | None = None) -> Tensor:
        """The outputs (n, c); with some parameters instead of their stand-ins, where given."""
        state = {**self.parameters, **self.others, **(instead or {})}
        copies = {name: value.clone() for name, value in self.buffers.items()}
        outputs = functional_call(self.module, {**state, **copies}, (samples,))
        if not isinstance(outputs, Tensor):
            raise InvalidInputError(
                f"the module returned a {type(outputs).__name__}; expected one tensor of outputs "
                "(n, c): wrap it in a module that returns the part you mean"
            )
        if outputs.ndim != 2 or len(outputs) != len(samples) or not outputs.is_floating_point():
            raise InvalidInputError(
                f"the module returned {outputs.dtype} of shape {tuple(outputs.shape)} for "
                f"{len(samples)} samples; expected real outputs of shape ({len(samples)}, c): "
                "wrap it in a module that reshapes them"
            )
        return outputs
