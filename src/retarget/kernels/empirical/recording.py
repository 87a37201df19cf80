"""Samples' way through a network and back: the raw material of gradients.

Forward, note is taken of how each parameter was used; backward, of the outputs' gradients by each
layer's results. The notes are taken at the level of functions (`linear`, `embedding`), not of
layers. So functional use, subclasses and tied weights are seen as they are, and the module itself
is left alone: no hook is registered, and it runs on stand-ins for its parameters and buffers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from retarget.errors import InvalidInputError
from retarget.kernels.empirical.uses import CALLS, Layer, Use
from retarget.samples import Samples, count, leaves, outputs_of

# From one output's gradients by a layer's results (n, groups, features, positions), what is to be
# kept of that output: in the array (n, ...) that is given for it, or in one of its own.
Reduction = Callable[["Chunk", Tensor, Tensor | None], Tensor]


@dataclass
class Recording:
    """What a forward pass has left behind.

    Attributes:
        outputs: (n, c).
        layers: The uses of each layer that a rule is known for.
        elsewhere: Parameters that were used in some other way (too).
        widened: Whether some tokens were widened, see `_Recorder`.
    """

    outputs: Tensor
    layers: dict[Layer, list[Use]]
    elsewhere: set[str]
    widened: bool


class _Recorder(TorchFunctionMode):
    """Sees every torch function that the forward pass calls.

    Args:
        parameters: Whose uses are noted.
        samples: What the network is given.
        widen: Whether embeddings of tokens that do not come from the samples (positions, mostly)
            are looked up for each sample anew: only then do samples have gradients of their own.
    """

    def __init__(self, parameters: dict[str, Tensor], samples: Samples, widen: bool) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in parameters.items()}
        self._count, self._widen = count(samples), widen
        # whole numbers that come from the samples, held so that their ids stay theirs
        self._given = {id(leaf): leaf for leaf in leaves(samples)}
        self.layers: dict[Layer, list[Use]] = {}
        self.elsewhere: set[str] = set()
        self.widened = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.embedding and self._widen:
            args, kwargs = self._widened(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in CALLS and isinstance(result, Tensor) and result.requires_grad:
            call = CALLS[func](*args, **kwargs)
            if call is not None and id(call.input) not in self._names:
                layer = self._names.get(id(call.weight)), self._names.get(id(call.bias))
                if layer != (None, None):
                    self.layers.setdefault(layer, []).append(call.use(result, self._count))
                return result
        found = _tensors([result])
        if found:
            used = [id(leaf) for leaf in _tensors([*args, *kwargs.values()])]
            self.elsewhere.update(self._names[leaf] for leaf in used if leaf in self._names)
            if any(leaf in self._given for leaf in used):
                self._given |= {id(leaf): leaf for leaf in found if not leaf.is_floating_point()}
        return result

    def _widened(
        self,
        input: Tensor,  # noqa: A002
        weight: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of an embedding, with a row of tokens for each sample."""
        alike = input.ndim == 1 or (input.ndim > 1 and len(input) == 1)
        if alike and id(input) not in self._given and id(weight) in self._names:
            row = input if input.ndim == 1 else input[0]
            input = row.expand(self._count, *row.shape)  # noqa: A001
            self.widened = True
        return (input, weight, *args), kwargs


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    """All tensors among them; they are looked into only where they may hold some, as that costs."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple | dict):
            found.extend(leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
    return found


@dataclass(frozen=True)
class Network:
    """A module as it is now, to be run without touching it.

    Attributes:
        parameters: Stand-ins, by name, for those that gradients are taken of.
        others: For those that they are not.
        buffers: The module's own: what is written to are copies.
        roots: The square roots of a diagonal preconditioner's factors, by the parameters' names;
            empty where there is none.
    """

    module: nn.Module
    parameters: dict[str, Tensor]
    others: dict[str, Tensor] = field(repr=False)
    buffers: dict[str, Tensor] = field(repr=False)
    roots: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def from_module(
        cls, module: nn.Module, wanted: Iterable[str], factors: Mapping[str, Tensor] | None = None
    ) -> "Network":
        """The module with gradients of the named parameters, and a preconditioner's factors."""
        wanted = set(wanted)
        values = {name: value.detach() for name, value in module.named_parameters()}
        parameters = {
            name: values.pop(name).requires_grad_() for name in list(values) if name in wanted
        }
        buffers = {name: value.detach() for name, value in module.named_buffers()}
        roots = {name: factor.sqrt() for name, factor in (factors or {}).items()}
        return cls(module, parameters, values, buffers, roots)

    @property
    def like(self) -> Tensor:
        """A tensor of the parameters' type, on their device."""
        return next(iter(self.parameters.values()))

    def record(self, samples: Samples, widen: bool) -> Recording:
        """One forward pass, with a graph; see `_Recorder` for the rest."""
        with torch.enable_grad(), _Recorder(self.parameters, samples, widen) as recorder:
            outputs = self(samples)
        return Recording(outputs, recorder.layers, recorder.elsewhere, recorder.widened)

    def __call__(self, samples: Samples, instead: dict[str, Tensor] | None = None) -> Tensor:
        """The outputs (n, c); with some parameters instead of their stand-ins, where given."""
        state = {**self.parameters, **self.others, **(instead or {})}
        copies = {name: value.clone() for name, value in self.buffers.items()}
        with _keras_variables(self.module, state):
            outputs = outputs_of(self.module, samples, {**state, **copies})
        n = count(samples)
        if outputs.ndim != 2 or len(outputs) != n or not outputs.is_floating_point():
            raise InvalidInputError(
                f"the module returned {outputs.dtype} of shape {tuple(outputs.shape)} for "
                f"{n} samples; expected real outputs of shape ({n}, c): "
                "wrap it in a module that reshapes them"
            )
        return outputs


def _keras_variables(module: nn.Module, state: dict[str, Tensor]) -> AbstractContextManager[Any]:
    """Lets layers of Keras 3 (on its torch backend) compute with the stand-ins, too.

    They read their variables, not the torch parameters that these have registered, so that
    `functional_call` does not reach them.
    """
    layers: list[Any] = [each for each in module.modules() if _is_keras(each)]
    if not layers:
        return nullcontext()
    import keras  # it is there, as its layers are

    names = {id(value): name for name, value in module.named_parameters()}
    variables = {id(each): each for layer in layers for each in layer.variables}.values()
    known = [each for each in variables if id(each.value) in names]
    scope: AbstractContextManager[Any] = keras.StatelessScope(
        [(each, state[names[id(each.value)]]) for each in known]
    )
    return scope


def _is_keras(module: nn.Module) -> bool:
    return any(base.__module__.partition(".")[0] == "keras" for base in type(module).__mro__)


@dataclass
class Chunk:
    """Some samples, to be passed through the network when that is first asked for.

    Attributes:
        chosen: The numbers of the outputs that are summed over.
        reductions: Layers whose gradients are wanted, and what of them to keep.
        widen: As `Network.record` has it.
        places: Arrays (n, c, ...) to keep it in, for layers that have one.
        inputs_at_hand: Scaled inputs that were asked for before.
    """

    network: Network
    samples: Samples
    chosen: range
    reductions: Mapping[Layer, Reduction]
    widen: bool = False
    places: Mapping[Layer, Tensor] = field(default_factory=dict)
    inputs_at_hand: dict[Layer, Tensor] = field(default_factory=dict)

    @cached_property
    def recording(self) -> Recording:
        """What each layer was given and returned on the way forward."""
        return self.network.record(self.samples, self.widen)

    @cached_property
    def kept(self) -> dict[Layer, Tensor]:
        """(n, c, ...) what the reductions made of each of the chosen outputs."""
        outputs, c = self.recording.outputs, len(self.chosen)
        kept = dict(self.places)
        for row, k in enumerate(self.chosen):
            seed = torch.zeros_like(outputs)
            seed[:, k] = 1
            for layer, g in self.gradients(seed, last=row + 1 == c).items():
                place = kept[layer][:, row] if layer in kept else None
                piece = self.reductions[layer](self, g, place)
                if place is None:
                    kept[layer] = piece.new_empty((len(piece), c, *piece.shape[1:]))
                    place = kept[layer][:, row]
                if piece is not place:
                    place.copy_(piece)
        return kept

    def gradients(self, seed: Tensor, last: bool = False) -> dict[Layer, Tensor]:
        """(n, groups, features, positions) the gradient of outputs, weighted by the seed (n, c).

        One backward pass serves all samples, as no sample's output depends on another's.
        """
        uses = [use for layer in self.reductions for use in self.recording.layers[layer]]
        if not uses:
            return {}
        edges = [use.edge for use in uses]
        found = torch.autograd.grad(
            self.recording.outputs, edges, seed, retain_graph=not last, allow_unused=True
        )
        parts = iter([use.by_position(g) for use, g in zip(uses, found, strict=True)])
        return {
            layer: _joined([next(parts) for _ in self.recording.layers[layer]], 3)
            for layer in self.reductions
        }

    def inputs(self, layer: Layer, at: Tensor | None = None) -> Tensor:
        """(n, groups, positions, features) a layer's inputs, those of all its uses in a row.

        With `at`, only those at these positions (n, few) of each sample.
        """
        weight, bias = layer
        a = _joined([use.positions() for use in self.recording.layers[layer]], 2)
        if at is not None:
            a = a.take_along_dim(at[:, None, :, None], 2)
        if weight is None:
            return a.new_ones((*a.shape[:3], 1))
        return a if bias is None else nn.functional.pad(a, (0, 1), value=1.0)

    def scaled_inputs(self, layer: Layer, at: Tensor | None = None) -> Tensor:
        """The same times the preconditioner's roots, where each parameter has a single one."""
        if at is not None:
            return self._times_single_roots(layer, self.inputs(layer, at))
        if layer not in self.inputs_at_hand:  # held, as every output asks for them
            self.inputs_at_hand[layer] = self._times_single_roots(layer, self.inputs(layer))
        return self.inputs_at_hand[layer]

    def _times_single_roots(self, layer: Layer, a: Tensor) -> Tensor:
        names = [name for name in layer if name is not None]
        roots = [self.network.roots.get(name) for name in names]
        single = [root for root in roots if root is not None and not root.ndim]
        if len(single) < len(names) or not a.is_floating_point():
            return a
        last = single[-1].expand(1)
        return a * torch.cat([single[0].expand(a.shape[3] - 1), last])

    def root(self, layer: Layer, rows: int) -> Tensor | None:
        """(features,) the roots that gradients are to be multiplied with, if any are left."""
        names = [name for name in layer if name is not None]
        roots, use = self.network.roots, self.recording.layers[layer][0]
        single = all(not roots[name].ndim for name in names if name in roots)
        if not roots or (single and self.inputs(layer).is_floating_point()):
            return None
        whole = [roots[name].expand_as(self.network.parameters[name]) for name in names]
        return torch.cat([use.by_row(each, rows) for each in whole], 1).flatten()


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return torch.cat(list(parts), dim) if len(parts) > 1 else parts[0]
