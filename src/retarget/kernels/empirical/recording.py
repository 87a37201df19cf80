"""The forward and backward pass of samples through a network, recorded to compute gradients.

The forward pass notes how each parameter is used, the backward pass the outputs' gradients by each
layer's results. Uses are noted at the level of functions (`linear`, `embedding`), not of layers, so
that functional use, subclasses and tied weights are all covered. The module is not changed: no
hook is registered, and a private copy runs on stand-ins for its parameters and buffers.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import (
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from retarget.errors import InvalidInputError
from retarget.kernels.empirical.graph import Graph
from retarget.kernels.empirical.private import (
    NotPrivateError,
    is_keras,
    private_copy,
    undisturbed,
)
from retarget.kernels.empirical.uses import RULES, LayerNames, Use, names_of
from retarget.locks import cached_property
from retarget.samples import (
    Samples,
    count,
    failure_explained,
    leaves,
    outputs_of,
    unfit_outputs,
)

# Reduces one output's gradients by a layer's results (n, groups, features, positions) to what is
# kept of them: in the array (n, ...) that it is given, or in a new one.
GradientReduction = Callable[["Chunk", Tensor, Tensor | None], Tensor]
# How a layer is used in a pass: for each use its kind, the numbers of its result for one sample,
# and whether the result is the network's output.
Ways = tuple[tuple[type[Use], int, bool], ...]


class CallMode(TorchFunctionMode):
    """A function mode of torch that lasts for one call, also if the call is interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self._over = False

    def during(self, run: Callable[[], Tensor]) -> Tensor:
        """Calls `run`, and sees every function that it calls.

        `with self` would do the same, except for Ctrl-C. Torch puts the mode aside while it calls
        some functions: an interrupt at that moment finds no mode to leave, and torch may put it
        back later, when it must not see anything any more.
        """
        others = _len_torch_function_stack()
        try:
            _push_on_torch_function_stack(self)
            return run()
        finally:
            self._over = True
            if _len_torch_function_stack() > others:
                _pop_torch_function_stack()


class Recording(CallMode):
    """A forward pass, which sees every torch function that is called.

    Args:
        parameters: The parameters whose uses are noted.
        samples: The network's input.
        widen: Whether embeddings of tokens that do not come from the samples (mostly positions)
            are looked up for each sample separately, so that samples have their own gradients.
        originals: The `id` of each parameter that must not be used, as it has a stand-in.

    Attributes:
        outputs: (n, c).
        layers: The uses of each layer that have a rule.
        elsewhere: Parameters that were (also) used in another way.
        widened: Whether some tokens were widened.
    """

    outputs: Tensor

    def __init__(
        self,
        parameters: dict[str, Tensor],
        samples: Samples,
        widen: bool,
        originals: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__()
        self._originals = originals
        self._names = {id(value): name for name, value in parameters.items()}
        self._count = count(samples)
        self._widen = widen
        # integer tensors from the samples, kept alive so that their ids stay unique
        self._given = {id(leaf): leaf for leaf in leaves(samples)}
        self.layers: dict[LayerNames, list[Use]] = {}
        self.elsewhere: set[str] = set()
        self.widened = False

    @cached_property
    def graph(self) -> Graph:
        """What the outputs were computed by."""
        return Graph.of(self.outputs)

    @property
    def reached(self) -> set[str]:
        """The parameters that the outputs depend on, in whatever way."""
        return {self._names[leaf] for leaf in self.graph.edges if leaf in self._names}

    @cached_property
    def ways(self) -> dict[LayerNames, Ways]:
        """The layers whose parameters are used in no other way and, it seems, sample by sample."""
        used = Counter(name for layer in self.layers for name in names_of(layer))
        edges = Counter({self._names.get(leaf): n for leaf, n in self.graph.edges.items()})
        ways = {}
        for layer, uses in self.layers.items():
            names = names_of(layer)
            seen = sum(use.edge.node in self.graph.nodes for use in uses)
            if (
                all(used[name] == 1 and name not in self.elsewhere for name in names)
                and all(edges[name] <= seen for name in names)  # none that was not noted
                and all(use.has_rows() for use in uses)
                and len({type(use) for use in uses}) == 1
            ):
                ways[layer] = tuple(
                    (type(use), use.zeros.numel() // use.n, self.is_output(use)) for use in uses
                )
        return ways

    def is_output(self, use: Use) -> bool:
        """Whether the result of this use is the network's output itself."""
        outputs = self.outputs
        return use.edge.node is outputs.grad_fn and use.edge.output_nr == outputs.output_nr

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._over:
            return func(*args, **kwargs)
        if func is nn.functional.embedding and self._widen:
            args, kwargs = self._widened(*args, **kwargs)
        used = [id(leaf) for leaf in _tensors([*args, *kwargs.values()])]
        if not self._originals.isdisjoint(used):
            raise NotPrivateError
        result = func(*args, **kwargs)
        if func in RULES and isinstance(result, Tensor) and result.requires_grad:
            call = RULES[func](*args, **kwargs)
            if call is not None and id(call.input) not in self._names and call.has_one_type(result):
                layer = self._names.get(id(call.weight)), self._names.get(id(call.bias))
                if layer != (None, None):
                    self.layers.setdefault(layer, []).append(call.use(result, self._count))
                return result
        tensors = _tensors([result])
        if tensors:
            self.elsewhere.update(self._names[leaf] for leaf in used if leaf in self._names)
            if any(leaf in self._given for leaf in used):
                self._given |= {id(leaf): leaf for leaf in tensors if not leaf.is_floating_point()}
        return result

    def _widened(
        self, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of an embedding, with a row of tokens for each sample."""
        alike = input.ndim == 1 or (input.ndim > 1 and len(input) == 1)
        if alike and id(input) not in self._given and id(weight) in self._names:
            row = input if input.ndim == 1 else input[0]
            input = row.expand(self._count, *row.shape)
            self.widened = True
        return (input, weight, *args), kwargs


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    """All tensors among the values; only containers are searched, to save time."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple | dict):
            tensors.extend(leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
    return tensors


@dataclass(frozen=True)
class Network:
    """A module with its current weights, to be run without changing it.

    Attributes:
        parameters: Stand-ins, by name, for the parameters to differentiate by.
        others: Stand-ins for the other parameters.
        buffers: The module's own buffers; a pass writes to copies of them.
        roots: The square roots of a diagonal preconditioner's factors, by parameter name: for all
            of `parameters`, or for none.
        originals: The `id` of each parameter of the module that `module` is a private copy of;
            empty if it is the module itself.
    """

    module: nn.Module
    parameters: dict[str, Tensor]
    others: dict[str, Tensor]
    buffers: dict[str, Tensor]
    roots: dict[str, Tensor]
    originals: frozenset[int] = frozenset()

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        wanted: Iterable[str],
        factors: Mapping[str, Tensor] | None = None,
        private: bool = False,
    ) -> "Network":
        """Wraps a module with the parameters to differentiate by and a preconditioner's factors.

        With `private`, it is copied first, so that other threads may use it meanwhile.
        """
        wanted = set(wanted)
        others = {name: _detached(value) for name, value in module.named_parameters()}
        parameters = {n: others.pop(n).requires_grad_() for n in list(others) if n in wanted}
        buffers = {name: value.detach() for name, value in module.named_buffers()}
        roots = {name: factor.sqrt() for name, factor in (factors or {}).items()}
        if not private:
            return cls(module, parameters, others, buffers, roots)
        stand_ins = parameters | others
        instead = {id(value): stand_ins[name] for name, value in module.named_parameters()}
        twin = private_copy(module, instead)
        originals = frozenset(instead)
        return cls(twin, parameters, others, buffers, roots, originals)

    @property
    def like(self) -> Tensor:
        """A tensor of the parameters' type, on their device."""
        return next(iter(self.parameters.values()))

    def record(self, samples: Samples, widen: bool) -> Recording:
        """Runs one forward pass, with a graph."""
        recording = Recording(self.parameters, samples, widen, self.originals)
        with torch.enable_grad():
            recording.outputs = recording.during(lambda: self(samples))
        return recording

    def __call__(self, samples: Samples, instead: dict[str, Tensor] | None = None) -> Tensor:
        """The outputs (n, c), with other values for some parameters if given."""
        state = {**self.parameters, **self.others, **(instead or {})}
        copies = {name: value.clone() for name, value in self.buffers.items()}
        with _keras_variables(self.module, state):
            outputs = outputs_of(self.module, samples, {**state, **copies})
        if outputs.ndim != 2:
            raise unfit_outputs(outputs, count(samples))
        return outputs


def _detached(value: Tensor) -> Tensor:
    """The tensor without a graph; a copy if it was made in inference mode, which allows none."""
    return value.detach().clone() if value.is_inference() else value.detach()


def derivatives(
    outputs: Tensor, by: Sequence[Tensor], seed: Tensor, retain: bool = True
) -> list[Tensor | None]:
    """The gradients of outputs, weighted by the seed: dense, and None where none depends on it."""
    gradients = torch.autograd.grad(outputs, by, seed, retain_graph=retain, allow_unused=True)
    return [each if each is None else _dense(each) for each in gradients]


@cache
def load_gradients() -> None:
    """Has torch import what its first gradient with a seed needs, which takes about a second.

    In a process that is forked while a thread imports it, every later gradient would wait forever.
    """
    with torch.inference_mode(False), torch.enable_grad():
        one = torch.ones(1, device="cpu", requires_grad=True)
        derivatives(2 * one, [one], torch.ones_like(one))


def _dense(gradient: Tensor) -> Tensor:
    """A sparse embedding has a sparse gradient."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether the same outputs, computed in two ways, differ by no more than rounding."""
    if one.shape != other.shape:
        return False
    gap = (one - other).abs().max().item()
    return bool(gap <= tolerance(one) * other.abs().max().item())


def tolerance(values: Tensor) -> float:
    """The relative difference that rounding may make if values are computed in two ways."""
    return math.sqrt(torch.finfo(values.dtype).eps)


def require_alike(outputs: Tensor, others: Tensor) -> None:
    """Rejects outputs for the same samples that depend on the samples beside them."""
    if not alike(outputs, others):
        gap = (outputs - others).abs().max().item()
        raise InvalidInputError(
            f"the outputs for a sample differ by {gap:.3g} between two batches with different "
            "other samples; expected outputs that depend only on their own sample and are not "
            "random: call module.eval(), or leave out layers that mix samples"
        )


def outputs_with(module: nn.Module, samples: Samples, weights: Mapping[str, Tensor]) -> Tensor:
    """Runs a module with other parameters and buffers, while other threads may use it."""
    values = dict([*module.named_parameters(), *module.named_buffers()])
    instead = {id(value): weights[name] for name, value in values.items() if name in weights}

    def run(private: bool) -> Tensor:
        if not private:
            return outputs_of(module, samples, dict(weights))
        recording = Recording({}, samples, widen=False, originals=frozenset(instead))
        return recording.during(lambda: outputs_of(private_copy(module, instead), samples))

    return undisturbed(module, run)


def _keras_variables(module: nn.Module, state: dict[str, Tensor]) -> AbstractContextManager[Any]:
    """Makes layers of Keras 3 (on its torch backend) compute with the stand-ins, too.

    They read their variables, not the torch parameters that these have registered, so that
    `functional_call` does not reach them.
    """
    layers: list[Any] = [each for each in module.modules() if is_keras(each)]
    if not layers:
        return nullcontext()
    import keras  # installed, because these are its layers

    names = {id(value): name for name, value in module.named_parameters()}
    variables = {id(each): each for layer in layers for each in layer.variables}.values()
    known = [(each, state[names[id(each.value)]]) for each in variables if id(each.value) in names]
    scope: AbstractContextManager[Any] = keras.StatelessScope(known)
    return scope


@dataclass
class Chunk:
    """Some samples, which pass through the network when first needed.

    Attributes:
        chosen: The numbers of the outputs that are summed over.
        reductions: Layers whose gradients are needed, and what to keep of those gradients.
        places: Arrays (n, c, ...) to keep it in, for some layers.
    """

    network: Network
    samples: Samples
    chosen: range
    reductions: Mapping[LayerNames, GradientReduction]
    widen: bool = False
    places: Mapping[LayerNames, Tensor] = field(default_factory=dict)
    _scaled: dict[LayerNames, Tensor] = field(default_factory=dict)

    @cached_property
    def recording(self) -> Recording:
        """The one forward pass, with every use of a parameter in it."""
        with failure_explained(self.samples):
            return self.network.record(self.samples, self.widen)

    @cached_property
    def kept(self) -> dict[LayerNames, Tensor]:
        """(n, c, ...) what the reductions made of each of the chosen outputs."""
        outputs = self.recording.outputs
        c = len(self.chosen)
        kept = dict(self.places)
        for row, k in enumerate(self.chosen):
            seed = torch.zeros_like(outputs)
            seed[:, k] = 1
            for layer, g in self.gradients(self.reductions, seed, last=row + 1 == c).items():
                place = kept[layer][:, row] if layer in kept else None
                piece = self.reductions[layer](self, g, place)
                if place is None:
                    kept[layer] = piece.new_empty((len(piece), c, *piece.shape[1:]))
                    place = kept[layer][:, row]
                if piece is not place:
                    place.copy_(piece)
        return kept

    def gradients(
        self, layers: Iterable[LayerNames], seed: Tensor, last: bool = False
    ) -> dict[LayerNames, Tensor]:
        """(n, groups, features, positions) the gradient of outputs, weighted by the seed (n, c).

        One backward pass serves all samples, as no sample's output depends on another's.
        """
        uses_of = {layer: self.recording.layers[layer] for layer in layers}
        uses = [use for each in uses_of.values() for use in each]
        if not uses:
            return {}
        edges = [use.edge for use in uses]
        gs = torch.autograd.grad(
            self.recording.outputs, edges, seed, retain_graph=not last, allow_unused=True
        )
        parts = (
            use.arranged(use.zeros if g is None else g) for use, g in zip(uses, gs, strict=True)
        )
        return {layer: _joined([next(parts) for _ in each], 3) for layer, each in uses_of.items()}

    def inputs(self, layer: LayerNames, at: Tensor | None = None) -> Tensor:
        """(n, groups, positions, features) the inputs of all uses of a layer in a row.

        With `at`, only those at these positions (n, few) of each sample.
        """
        weight, bias = layer
        a = _joined([use.positions() for use in self.recording.layers[layer]], 2)
        if at is not None:
            a = a.take_along_dim(at[:, None, :, None], 2)
        if weight is None:
            return a.new_ones((*a.shape[:3], 1))
        return a if bias is None else nn.functional.pad(a, (0, 1), value=1.0)

    def scaled_inputs(self, layer: LayerNames, at: Tensor | None = None) -> Tensor:
        """The same times the preconditioner's roots, if each parameter has a single one."""
        if at is None and layer in self._scaled:  # kept, because every output needs them
            return self._scaled[layer]
        a = self.inputs(layer, at)
        if self.has_single_roots(layer) and a.is_floating_point():
            roots = [self.network.roots[name] for name in names_of(layer)]
            a = a * torch.cat([roots[0].expand(a.shape[3] - 1), roots[-1].expand(1)])
        if at is None:
            self._scaled[layer] = a
        return a

    def has_single_roots(self, layer: LayerNames) -> bool:
        """Whether a preconditioner has one number for each parameter of the layer."""
        roots = self.network.roots
        return bool(roots) and not any(roots[name].ndim for name in names_of(layer))


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return torch.cat(list(parts), dim) if len(parts) > 1 else parts[0]
