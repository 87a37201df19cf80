"""What to compute for each chunk of samples: the parts of the empirical kernel, and their forms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from retarget.kernels.empirical.forms import RuledLayer, cheapest_form
from retarget.kernels.empirical.projection import Arrangement, Projection, SketchTerm
from retarget.kernels.empirical.recording import Chunk, Network, Ways
from retarget.kernels.empirical.terms import (
    Factors,
    FeatureTerm,
    JacobianTerm,
    KeepingTerm,
    SplitTerm,
    Term,
    split,
)
from retarget.kernels.empirical.trial import (
    Outputs,
    Selection,
    TrialPass,
    agree,
    joined,
    mixed_gradients,
    mixture,
    require_use,
)
from retarget.kernels.empirical.uses import LayerNames, names_of
from retarget.samples import Samples, count, leaves

GradientMode = Literal["structured", "jacobian"]


class RuleError(Exception):
    """A rule does not give the gradients of these samples, as it did of those that were tried."""


@dataclass(frozen=True)
class EmpiricalPlan:
    """What to compute for each chunk of samples.

    Attributes:
        selection: The outputs that it is of.
        ruled: The terms that keep something of the outputs' gradients by their layers' results.
        ways: How the layers with a rule were used by the samples that were tried.
        names: All parameters that are covered.
        example: Each term's factors, for one sample.
        dtype: Type of the products.
        working: Bytes held for one sample while its factors are computed, besides the factors.
        positions: The most positions of a sample that a `linear` or a `conv2d` is applied at.
        arrangements: Where each term's features have the gradients of which parameters; none if
            they are projected.
    """

    network: Network
    selection: Selection
    terms: tuple[Term, ...]
    ruled: tuple[KeepingTerm, ...]
    ways: Mapping[LayerNames, Ways]
    names: frozenset[str]
    example: tuple[Factors, ...]
    dtype: torch.dtype
    working: int
    widen: bool
    positions: int
    arrangements: tuple[Arrangement, ...]

    @property
    def factor_bytes(self) -> int:
        """Bytes of one sample's factors."""
        return sum(factor.nbytes for factors in self.example for factor in factors)

    def features(self, factors: Sequence[Factors]) -> Tensor:
        """(n, d) the projected gradients; if they are not, all of them, 0 where none was computed.

        They are then one parameter's after the other's, in the order of the network, and each
        one's output by output: the same for all samples, whatever they use.
        """
        if not self.arrangements:
            return self.terms[0].features(factors[0])
        parameters = self.network.parameters
        outputs = len(self.selection.chosen)
        gradients: dict[str, Tensor] = {}
        for term, arrangement, each in zip(self.terms, self.arrangements, factors, strict=True):
            gradients |= arrangement.gradients(term.features(each), parameters, outputs)
        n = len(factors[0][0])
        like = next(iter(gradients.values()))
        return torch.cat(
            [
                gradients[name].flatten(1)
                if name in gradients
                else like.new_zeros((n, outputs * parameter.numel()))
                for name, parameter in parameters.items()
            ],
            1,
        )

    def factors(self, samples: Samples, into: Sequence[Factors]) -> None:
        """Writes every term's factors to these arrays, from one pass through the network."""
        # gradients, the largest of them, are computed in place
        places = {
            term.layer: arrays[0].view(len(arrays[0]), len(self.selection.chosen), -1)
            for term, arrays in zip(self.terms, into, strict=True)
            if isinstance(term, KeepingTerm)
            and term.in_place
            and self.dtype == self.network.like.dtype
        }
        factors, _ = self.factors_and_outputs(samples, places)
        for arrays, parts in zip(into, factors, strict=True):
            for array, factor in zip(arrays, parts, strict=True):
                if array.data_ptr() != factor.data_ptr():
                    array.copy_(factor)

    def factors_and_outputs(
        self, samples: Samples, places: Mapping[LayerNames, Tensor] | None = None
    ) -> tuple[list[Factors], Tensor]:
        """The same in new arrays, except for these `places`, and all of the network's outputs."""
        reductions = {term.layer: term.reduce for term in self.ruled}
        chosen = self.selection.chosen
        chunk = Chunk(self.network, samples, chosen, reductions, self.widen, places or {})
        recording = chunk.recording
        others = any(recording.ways.get(layer) != way for layer, way in self.ways.items())
        if others or not recording.reached <= self.names:
            raise RuleError
        sums = None
        if self.ruled and not recording.graph.is_known:  # before the graph is used up
            sums = mixed_gradients(self.network, recording, chosen)
        factors = _factors(self.terms, chunk, self.dtype)
        if sums is not None:
            self._require_sums(chunk, sums)
        return factors, recording.outputs.detach()

    def _require_sums(self, chunk: Chunk, sums: Mapping[str, Tensor]) -> None:
        """Compares each layer's gradients of all samples and outputs with autograd's, in a sum.

        The weights are random, so that no two errors cancel.
        """
        of_samples, of_outputs = mixture(chunk.recording, self.selection.chosen)
        whole = torch.stack([each.norm() for each in sums.values()]).norm() if sums else 0.0
        for term in self.ruled:
            ours = term.total(chunk, of_samples * of_outputs)
            theirs = []
            for name in names_of(term.layer):
                root = self.network.roots.get(name)
                gradient = sums.get(name, torch.zeros_like(self.network.parameters[name]))
                theirs.append(gradient if root is None else gradient * root)
            use = chunk.recording.layers[term.layer][0]
            if not agree(ours, joined(use, theirs).flatten(), whole):
                raise RuleError


def _factors(terms: Sequence[Term], chunk: Chunk, dtype: torch.dtype) -> list[Factors]:
    factors = [term.factors(chunk) for term in terms]
    if dtype == chunk.network.like.dtype:
        return factors
    return [
        tuple(factor.to(dtype) if factor.is_floating_point() else factor for factor in parts)
        for parts in factors
    ]


@dataclass(frozen=True)
class PlanOptions:
    """What a plan is made for.

    Attributes:
        outputs: The outputs that the kernel is of.
        mode: "jacobian" for the gradients of all parameters without any rule.
        dtype: Type of the products.
        reuse: Pairs of samples that each sample's factors serve.
        packed: Whether positions that no output depends on may be left out: all of the samples
            then need as many as those that were tried, or `MoreLivePositionsError` is raised.
        rules: Whether there may be rules; without, all parameters take the Jacobian, whether or not
            the samples that were tried use them.
        in_factors: Whether linear layers stay in factors, to be projected.
    """

    outputs: Outputs
    mode: GradientMode
    dtype: torch.dtype
    reuse: float = 1.0
    packed: bool = True
    rules: bool = True
    in_factors: bool = False


def make_plan(network: Network, samples: Samples, options: PlanOptions) -> EmpiricalPlan:
    """Tries the network on a few of the samples, and chooses the form of each layer's part."""
    trial = TrialPass(network, samples, options.outputs)
    if not trial.used and options.rules:
        require_use(network, samples)
        raise RuleError
    ruled = trial.confirmed() if options.rules and options.mode == "structured" else []
    used = trial.used if options.rules else network.parameters
    rest = [name for name in used if not any(name in layer for layer in ruled)]
    terms = [
        cheapest_form(
            RuledLayer.of(trial, layer, options.reuse, options.packed, options.in_factors)
        )
        for layer in ruled
    ]
    keeping = tuple(term for term in terms if isinstance(term, KeepingTerm))
    if rest:
        terms.append(JacobianTerm(rest, trial.selection.full))
    first = trial.first(ruled, {term.layer: term.reduce for term in keeping})
    example = tuple(
        tuple(factor[:1].clone() for factor in parts)
        for parts in _factors(terms, first, options.dtype)
    )
    return EmpiricalPlan(
        network=network,
        selection=trial.selection,
        terms=tuple(terms),
        ruled=keeping,
        ways={layer: trial.recording.ways[layer] for layer in ruled},
        names=frozenset(rest).union(*map(names_of, ruled)),
        example=example,
        dtype=options.dtype,
        working=_working(trial, terms, example),
        widen=trial.recording.widened,
        positions=_positions(trial),
        arrangements=_arrangements(trial, ruled, rest),
    )


def _arrangements(
    trial: TrialPass, layers: Sequence[LayerNames], rest: list[str]
) -> tuple[Arrangement, ...]:
    ruled = [
        Arrangement(tuple(names_of(layer)), trial.recording.layers[layer][0].order)
        for layer in layers
    ]
    return (*ruled, Arrangement(tuple(rest), "flat")) if rest else tuple(ruled)


def _working(trial: TrialPass, terms: Sequence[Term], example: Sequence[Factors]) -> int:
    """About how many bytes are held for one sample on its way through the network."""
    samples = trial.chunk.samples
    uses = [use for layer in trial.g for use in trial.recording.layers[layer]]
    given: int = sum(leaf.numel() for leaf in leaves(samples))
    passing = (given + sum(use.working() for use in uses)) // count(samples)
    like = trial.chunk.network.like
    needed = passing * like.element_size()
    for term, factors in zip(terms, example, strict=True):
        size = sum(factor.nbytes for factor in factors)
        in_place = term.in_place and factors[0].dtype == like.dtype
        needed += size if in_place else 3 * size
        needed += term.held_beside(trial.g)
    return needed


def _positions(trial: TrialPass) -> int:
    """The most positions of a sample that a `linear` or a `conv2d` is applied at."""
    uses = [use for uses in trial.recording.layers.values() for use in uses]
    return max([1, *(use.applied_at() for use in uses)])


def with_split_products(plan: EmpiricalPlan) -> EmpiricalPlan:
    """Returns the plan with its large products on tensor cores."""
    parts: list[tuple[Term, Factors]] = [
        (SplitTerm(term), split(factors[0])) if isinstance(term, FeatureTerm) else (term, factors)
        for term, factors in zip(plan.terms, plan.example, strict=True)
    ]
    terms, example = zip(*parts, strict=True)
    return replace(plan, terms=terms, example=example)


def sketched(plan: EmpiricalPlan, projection: Projection) -> EmpiricalPlan:
    """Returns a plan whose only factors are the projected gradients."""
    parameters = plan.network.parameters
    written = [  # what is not written out a few rows at a time
        parameters[name].nbytes * len(plan.selection.chosen)
        for term, arrangement in zip(plan.terms, plan.arrangements, strict=True)
        if not term.stays_in_factors
        for name in arrangement.names
    ]
    example = plan.network.like.new_empty((1, 1, projection.size), dtype=plan.dtype)
    writing = 3 * (max(written, default=0) + 2 * example.nbytes)
    term = SketchTerm(plan.terms, plan.arrangements, projection, plan.selection.chosen)
    return replace(
        plan,
        terms=(term,),
        arrangements=(),
        example=((example,),),
        working=plan.working + plan.factor_bytes + writing,
    )
