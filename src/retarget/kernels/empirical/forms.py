"""The form that a layer's part of the empirical kernel takes: the one that costs least.

A new form is a class in `terms` and an entry of `FORMS`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from retarget.kernels.empirical.terms import GradientTerm, PairTerm, ReadoutTerm, Term, alive
from retarget.kernels.empirical.trial import Selection, TrialPass, joined
from retarget.kernels.empirical.uses import LayerNames, names_of

# What it costs to multiply two numbers of the products of pairs, and to add that to the kernel, in
# multiply-adds of a matrix product: 40 to 170 on one core of a Xeon, as they wait for memory.
PAIR_OVERHEAD = 64
WRITING = 64  # likewise, the cost of writing one number of a gradient


@dataclass(frozen=True)
class RuledLayer:
    """A layer that has a rule, and what its form depends on.

    Attributes:
        names: Its parameters.
        selection: The outputs that the kernel is of.
        outputs: The number of all outputs.
        reads_out: Whether its result is the network's output, and its only one.
        is_linear: Whether each result has a row of weights of its own.
        vocabulary: Rows of an embedding; None for other layers.
        groups: Groups of channels.
        inputs: Numbers that a row of weights is multiplied by.
        results: Numbers that come out, in each group.
        positions: Positions that count of each sample.
        live: The same, if others can be left out; None if all count.
        root: (features,) a preconditioner's roots by gradient, unless they scale the inputs.
        reuse: Pairs of samples that each sample's factors serve.
        in_factors: Whether linear layers are wanted as products, to be projected.
    """

    names: LayerNames
    selection: Selection
    outputs: int
    reads_out: bool
    is_linear: bool
    vocabulary: int | None
    groups: int
    inputs: int
    results: int
    positions: int
    live: int | None
    root: Tensor | None
    reuse: float
    in_factors: bool

    @classmethod
    def of(
        cls, trial: TrialPass, names: LayerNames, reuse: float, packed: bool, in_factors: bool
    ) -> "RuledLayer":
        """Takes a layer of a trial, for this use of its factors."""
        uses = trial.recording.layers[names]
        use = uses[0]
        g = trial.g[names]
        live = _live_positions(g) if packed else None
        return cls(
            names,
            trial.selection,
            trial.recording.outputs.shape[1],
            reads_out=len(uses) == 1 and trial.recording.is_output(use),
            is_linear=use.is_linear,
            vocabulary=use.rows_looked_up(),
            groups=g.shape[1],
            inputs=trial.chunk.inputs(names).shape[3],
            results=g.shape[2],
            positions=g.shape[3] if live is None else live,
            live=live,
            root=_root(trial, names),
            reuse=reuse,
            in_factors=in_factors,
        )

    @property
    def sums(self) -> int:
        """Outputs that are summed over."""
        return len(self.selection.chosen)

    @property
    def products(self) -> int:
        """Products of two samples' rows."""
        return self.sums**2 if self.selection.full else self.sums


class LayerForm(NamedTuple):
    """A form that layers can have.

    Attributes:
        cost: Multiply-adds for a pair of samples; infinite where the form does not fit.
        term: Makes it.
    """

    cost: Callable[[RuledLayer], float]
    term: Callable[[RuledLayer], Term]


def _readout_cost(layer: RuledLayer) -> float:
    fits = layer.reads_out and layer.is_linear and layer.root is None
    return -math.inf if fits else math.inf  # no gradient is needed at all


def _readout(layer: RuledLayer) -> Term:
    return ReadoutTerm(layer.names, layer.selection.full, layer.selection.chosen, layer.outputs)


def _gradient_cost(layer: RuledLayer) -> float:
    if layer.vocabulary is not None:
        return layer.vocabulary * layer.products * layer.results
    size = layer.groups * layer.results * layer.inputs
    writing = layer.sums * (layer.positions + WRITING) * size / layer.reuse
    return layer.products * size + writing


def _gradients(layer: RuledLayer) -> Term:
    full = layer.selection.full
    return GradientTerm(layer.names, full, layer.live, layer.root, layer.vocabulary)


def _pair_cost(layer: RuledLayer) -> float:
    if layer.root is not None or layer.groups > 1:
        return math.inf
    if layer.in_factors and layer.is_linear:
        return 0.0
    products = layer.products
    overhead = (products if layer.selection.full else 1) * PAIR_OVERHEAD
    return layer.positions**2 * (layer.inputs + products * layer.results + overhead)


def _pairs(layer: RuledLayer) -> Term:
    full = layer.selection.full
    return PairTerm(layer.names, full, layer.live, layer.vocabulary, layer.sums)


# of two that cost the same, the first is taken
FORMS = (
    LayerForm(_readout_cost, _readout),
    LayerForm(_gradient_cost, _gradients),
    LayerForm(_pair_cost, _pairs),
)


def cheapest_form(layer: RuledLayer) -> Term:
    """The layer's part of the kernel, in the form that costs least."""
    return min(FORMS, key=lambda form: form.cost(layer)).term(layer)


def _live_positions(g: Tensor) -> int | None:
    """The number of positions that a sample's outputs depend on; None if all, or if it varies."""
    counts = alive(g, (1, 2)).sum(1)
    first = int(counts[0])
    return first if 0 < first < g.shape[3] and bool((counts == first).all()) else None


def _root(trial: TrialPass, names: LayerNames) -> Tensor | None:
    """(features,) a preconditioner's roots by gradient, unless they scale the inputs."""
    network = trial.chunk.network
    use = trial.recording.layers[names][0]
    scales_inputs = trial.chunk.has_single_roots(names) and use.input.is_floating_point()
    if not network.roots or scales_inputs:
        return None
    whole = [network.roots[name].expand_as(network.parameters[name]) for name in names_of(names)]
    return joined(use, whole).flatten()
