"""Samples' way through a network and back: the raw material of gradients.

Forward, note is taken of how each parameter was used; backward, of the outputs' gradients by each
layer's results. The notes are taken at the level of functions (`linear`, `conv2d`), not of layers.
So functional use, subclasses and tied weights are seen as they are, and the module itself is left
alone: no hook is registered, and it runs on stand-ins for its parameters and buffers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from retarget.errors import InvalidInputError
from retarget.text import did_you_mean

# A layer is a weight and a bias that are used together, by their names; None where there is none
# or it is not asked for.
Layer = tuple[str | None, str | None]

# From a layer's inputs (n, groups, positions, features) and one output's gradients by its results
# (n, groups, features, positions), what is to be kept of that output.
Reduction = Callable[[Tensor, Tensor], Tensor]


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
    def from_module(cls, module: nn.Module, wanted: Iterable[str]) -> "Network":
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


@dataclass
class Chunk:
    """Some samples, to be passed through the network when that is first asked for.

    Attributes:
        chosen: The numbers of the outputs that are summed over.
        reductions: Layers whose gradients are wanted, and what of them to keep.
    """

    network: Network
    samples: Tensor
    chosen: range
    reductions: Mapping[Layer, Reduction]

    @cached_property
    def recording(self) -> Recording:
        """What each layer was given and returned on the way forward."""
        return self.network.record(self.samples)

    @cached_property
    def kept(self) -> dict[Layer, Tensor]:
        """(n, c, ...) what the reductions made of each of the chosen outputs."""
        uses = [use for layer in self.reductions for use in self.recording.layers[layer]]
        inputs = {layer: self.inputs(layer) for layer in self.reductions}
        outputs, c = self.recording.outputs, len(self.chosen)
        kept: dict[Layer, Tensor] = {}
        for row, k in enumerate(self.chosen):
            # one backward pass serves all samples, as no sample's output depends on another's
            seed = torch.zeros_like(outputs)
            seed[:, k] = 1
            edges = [use.edge for use in uses]
            found = torch.autograd.grad(
                outputs, edges, seed, retain_graph=row + 1 < c, allow_unused=True
            )
            parts = iter([_by_position(use, g) for use, g in zip(uses, found, strict=True)])
            for layer, reduce in self.reductions.items():
                g = _joined([next(parts) for _ in self.recording.layers[layer]], 3)
                piece = reduce(inputs[layer], g)
                if layer not in kept:
                    kept[layer] = piece.new_empty((len(piece), c, *piece.shape[1:]))
                kept[layer][:, row] = piece
        return kept

    def inputs(self, layer: Layer) -> Tensor:
        """(n, groups, positions, features) a layer's inputs, those of all its uses in a row."""
        weight, bias = layer
        a = _joined([_positions(use) for use in self.recording.layers[layer]], 2)
        if weight is None:
            return a.new_ones((*a.shape[:3], 1))
        return a if bias is None else nn.functional.pad(a, (0, 1), value=1.0)


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return torch.cat(list(parts), dim) if len(parts) > 1 else parts[0]


def _positions(use: Use) -> Tensor:
    x = use.input.detach()
    if use.window is None:
        return x.reshape(len(x), 1, -1, x.shape[-1])
    patches = _patches(x, use.window)
    groups = use.window.groups
    return patches.reshape(len(x), groups, -1, patches.shape[-1]).mT


def _by_position(use: Use, g: Tensor | None) -> Tensor:
    if g is None:  # this output does not depend on it
        g = torch.zeros(use.shape, dtype=use.input.dtype, device=use.input.device)
    if use.window is None:
        return g.reshape(len(g), 1, -1, g.shape[-1]).mT
    groups = use.window.groups
    return g.reshape(len(g), groups, g.shape[1] // groups, -1)


def _patches(x: Tensor, window: Window) -> Tensor:
    """(n, channels * height * width of the window, positions).

    By strides, as `torch.nn.functional.unfold` goes sample by sample on CUDA.
    """
    size, stride, dilation = window.size, _two(window.stride), _two(window.dilation)
    spread = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
    if window.padding == "same":
        before = [each // 2 for each in spread]
        after = [each - each // 2 for each in spread]
    else:
        before = after = list(_two(0 if window.padding == "valid" else window.padding))
    x = nn.functional.pad(x, (before[1], after[1], before[0], after[0]))
    n, channels, *sides = x.shape
    counts = [(sides[i] - spread[i] - 1) // stride[i] + 1 for i in (0, 1)]
    over, across, *along = x.stride()
    steps = [dilation[i] * along[i] for i in (0, 1)] + [stride[i] * along[i] for i in (0, 1)]
    view = x.as_strided((n, channels, *size, *counts), (over, across, *steps))
    return view.reshape(n, channels * size[0] * size[1], counts[0] * counts[1])


def _two(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


# Which parameters: a name, a layer or a pattern, several of these, or a function of a name.
Choice = str | Sequence[str] | Callable[[str], bool] | None


def trained_parameters(module: nn.Module, wanted: Choice = None) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name, and of these the ones that are wanted.

    Args:
        module: Whose parameters.
        wanted: A name, the name of a layer for all of its parameters, a pattern as in file names
            (`"*.bias"`), several of these, or a function of a name; None for all.
    """
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    if not trained:
        raise InvalidInputError(
            "the module has no parameters that are trained; expected some with requires_grad=True"
        )
    if wanted is None:
        return trained
    if callable(wanted):
        chosen = {name: value for name, value in trained.items() if wanted(name)}
    else:
        patterns = [wanted] if isinstance(wanted, str) else list(wanted)
        for each in patterns:
            if not any(_within(name, each) for name in trained):
                raise InvalidInputError(
                    f"params has {each!r}; expected names of trained parameters, of layers with "
                    f"some, or patterns: did you mean {_nearest(each, trained)!r}?"
                )
        chosen = {
            name: value
            for name, value in trained.items()
            if any(_within(name, each) for each in patterns)
        }
    if not chosen:
        raise InvalidInputError(
            "params is empty; expected some names of parameters, or None for all of them"
        )
    return chosen


def _within(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}.") or fnmatchcase(name, wanted)


def _nearest(wanted: str, trained: dict[str, nn.Parameter]) -> str:
    layers = {name.rpartition(".")[0] for name in trained} - {""}
    return str(did_you_mean(wanted, [*trained, *sorted(layers)], cutoff=0.0))
