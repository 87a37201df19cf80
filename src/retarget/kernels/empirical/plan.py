"""The form that each layer's part of the empirical kernel takes, chosen by trying a few samples.

They also show whether the module has a tangent kernel: each output a function of its own sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from retarget.errors import InvalidInputError
from retarget.kernels.empirical.projection import Arrangement, Projection, SketchTerm
from retarget.kernels.empirical.recording import (
    Chunk,
    GradientReduction,
    Network,
    Recording,
    Ways,
    alike,
    derivatives,
    require_alike,
    tolerance,
)
from retarget.kernels.empirical.terms import (
    Factors,
    FeatureTerm,
    GradientTerm,
    JacobianTerm,
    PairTerm,
    ReadoutTerm,
    SplitTerm,
    Term,
    alive,
    split,
)
from retarget.kernels.empirical.uses import (
    Convolved,
    LayerNames,
    LinearUse,
    LookedUp,
    Multiplied,
    Use,
    names_of,
)
from retarget.samples import (
    Samples,
    count,
    failure_explained,
    leaves,
    mapped,
    portions,
    require_finite_outputs,
    take,
)

GradientMode = Literal["structured", "jacobian"]
Outputs = Literal["mean", "sum", "full"] | int | range

PROBED = 3  # samples to try a module on: a first, a last and one between
# What it costs to multiply two numbers of the products of pairs, and to add that to the kernel, in
# multiply-adds of a matrix product: 40 to 170 on one core of a Xeon, as they wait for memory.
PAIR_OVERHEAD = 64
# A part of a gradient that is smaller than this share of the whole, in last digits, is rounding.
LAST_DIGITS = 100
WRITING = 64  # likewise, the cost of writing one number of a gradient


class RuleError(Exception):
    """A rule does not give the gradients of these samples, as it did of those that were tried."""


@dataclass(frozen=True)
class EmpiricalPlan:
    """What to compute for each chunk of samples.

    Attributes:
        rows: Rows of the kernel matrix for each sample.
        scale: The factor on the sum over the outputs.
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
    chosen: range
    rows: int
    scale: float
    terms: tuple[Term, ...]
    ruled: tuple[GradientTerm | PairTerm, ...]
    ways: Mapping[LayerNames, Ways]
    names: frozenset[str]
    example: tuple[Factors, ...]
    dtype: torch.dtype
    working: int
    widen: bool
    positions: int
    arrangements: tuple[Arrangement, ...]

    @property
    def held(self) -> int:
        """Bytes of one sample's factors."""
        return sum(part.nbytes for factors in self.example for part in factors)

    def features(self, factors: Sequence[Factors]) -> Tensor:
        """(n, d) the projected gradients; if they are not, all of them, 0 where none was computed.

        They are then one parameter's after the other's, in the order of the network, and each
        one's output by output: the same for all samples, whatever they use.
        """
        if not self.arrangements:
            return self.terms[0].features(factors[0])
        parameters = self.network.parameters
        outputs = len(self.chosen)
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
            term.layer: arrays[0].view(len(arrays[0]), len(self.chosen), -1)
            for term, arrays in zip(self.terms, into, strict=True)
            if isinstance(term, GradientTerm) and self.dtype == self.network.like.dtype
        }
        factors, _ = self.factors_and_outputs(samples, places)
        for arrays, parts in zip(into, factors, strict=True):
            for array, part in zip(arrays, parts, strict=True):
                if array.data_ptr() != part.data_ptr():
                    array.copy_(part)

    def factors_and_outputs(
        self, samples: Samples, places: Mapping[LayerNames, Tensor] | None = None
    ) -> tuple[list[Factors], Tensor]:
        """The same in new arrays, except for these `places`, and all of the network's outputs."""
        reductions = {term.layer: term.reduce for term in self.ruled}
        chunk = Chunk(self.network, samples, self.chosen, reductions, self.widen, places or {})
        recording = chunk.recording
        others = any(recording.ways.get(layer) != way for layer, way in self.ways.items())
        if others or not recording.reached <= self.names:
            raise RuleError
        sums = None
        if self.ruled and not recording.graph.is_known:  # before the graph is used up
            sums = _gradients(self.network, recording, self.chosen)
        factors = _factors(self.terms, chunk, self.dtype)
        if sums is not None:
            self._require_sums(chunk, sums)
        return factors, recording.outputs.detach()

    def _require_sums(self, chunk: Chunk, sums: Mapping[str, Tensor]) -> None:
        """Compares each layer's gradients of all samples and outputs with autograd's, in a sum.

        The weights are random, so that no two errors cancel.
        """
        of_samples, of_outputs = _mixture(chunk.recording, self.chosen)
        whole = torch.stack([each.norm() for each in sums.values()]).norm() if sums else 0.0
        for term in self.ruled:
            ours = term.total(chunk, of_samples * of_outputs)
            theirs = []
            for name in names_of(term.layer):
                root = self.network.roots.get(name)
                gradient = sums.get(name, torch.zeros_like(self.network.parameters[name]))
                theirs.append(gradient if root is None else gradient * root)
            use = chunk.recording.layers[term.layer][0]
            if not _agree(ours, _joined(use, theirs).flatten(), whole):
                raise RuleError


def _factors(terms: Sequence[Term], chunk: Chunk, dtype: torch.dtype) -> list[Factors]:
    factors = [term.factors(chunk) for term in terms]
    if dtype == chunk.network.like.dtype:
        return factors
    return [
        tuple(part.to(dtype) if part.is_floating_point() else part for part in parts)
        for parts in factors
    ]


def make_plan(
    network: Network,
    samples: Samples,
    outputs: Outputs,
    mode: GradientMode,
    dtype: torch.dtype,
    reuse: float,
    packed: bool = True,
    rules: bool = True,
    *,
    in_factors: bool = False,
) -> EmpiricalPlan:
    """Tries the network on a few of the samples, and chooses the form of each layer's part.

    Products have this dtype, and each sample's factors serve `reuse` pairs of samples. If `packed`,
    positions that no output depends on may be left out: all of the samples then need as many as
    those that were tried, or `MoreLivePositionsError` is raised. Without `rules`, all parameters
    take the Jacobian, whether or not those samples use them. Linear layers stay `in_factors` to be
    projected.
    """
    few = take(samples, slice(None, None, max(1, (count(samples) - 1) // (PROBED - 1))))
    few = mapped(torch.Tensor.contiguous, take(few, slice(0, PROBED)))  # modules may call view
    require_settled_layers(network.module)
    trial = _trial(network, few)
    chosen = _chosen(outputs, trial.outputs.shape[1])
    full = outputs == "full"
    used = _gradients(network, trial, chosen)
    if not used and rules:
        _require_use(network, samples)
        raise RuleError
    chunk = Chunk(network, few, chosen, {}, trial.widened)
    chunk.recording = trial
    g = chunk.gradients(trial.ways, _seed(trial, chosen, alike=True))
    ruled = _confirmed(chunk, g, used) if rules and mode == "structured" else []
    rest = [name for name in used if not any(name in layer for layer in ruled)]
    if not rules:
        rest = list(network.parameters)
    terms = []
    for layer in ruled:
        live = _live_positions(g[layer]) if packed else None
        terms.append(_form(chunk, layer, g[layer], full, reuse, live, in_factors))
    written = tuple(term for term in terms if isinstance(term, GradientTerm | PairTerm))
    if rest:
        terms.append(JacobianTerm(rest, full))
    first = _first(chunk, ruled, {term.layer: term.reduce for term in written}, g)
    example = tuple(
        tuple(part[:1].clone() for part in parts) for parts in _factors(terms, first, dtype)
    )
    mean = outputs == "mean" or isinstance(outputs, range)
    return EmpiricalPlan(
        network=network,
        chosen=chosen,
        rows=len(chosen) if full else 1,
        scale=1 / len(chosen) if mean else 1.0,
        terms=tuple(terms),
        ruled=written,
        ways={layer: trial.ways[layer] for layer in ruled},
        names=frozenset(rest).union(*map(names_of, ruled)),
        example=example,
        dtype=dtype,
        working=_working(chunk, terms, example, g),
        widen=trial.widened,
        positions=_positions(trial),
        arrangements=_arrangements(trial, ruled, rest),
    )


def _arrangements(
    trial: Recording, layers: Sequence[LayerNames], rest: list[str]
) -> tuple[Arrangement, ...]:
    ruled = [
        Arrangement(
            tuple(names_of(layer)),
            "columns" if isinstance(trial.layers[layer][0], Multiplied) else "rows",
        )
        for layer in layers
    ]
    return (*ruled, Arrangement(tuple(rest), "flat")) if rest else tuple(ruled)


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
        parameters[name].nbytes * len(plan.chosen)
        for term, arrangement in zip(plan.terms, plan.arrangements, strict=True)
        if not isinstance(term, PairTerm)
        for name in arrangement.names
    ]
    example = plan.network.like.new_empty((1, 1, projection.size), dtype=plan.dtype)
    term = SketchTerm(plan.terms, plan.arrangements, projection, plan.chosen)
    return replace(
        plan,
        terms=(term,),
        arrangements=(),
        example=((example,),),
        working=plan.working + plan.held + 3 * (max(written, default=0) + 2 * example.nbytes),
    )


def require_settled_layers(module: nn.Module) -> None:
    """Rejects layers that mix samples or are random in their current mode."""
    for name, layer in module.named_modules():
        label = f"layer {name!r} ({type(layer).__name__})"
        by_batch = layer.training or getattr(layer, "running_mean", None) is None
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and by_batch:
            advice = "call module.eval() first"
            if not layer.training:
                advice = "expected running statistics: make it with track_running_stats=True"
            raise InvalidInputError(
                f"{label} normalizes by the batch, so that samples depend on each other; {advice}"
            )
        random = isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0
        if layer.training and (random or isinstance(layer, nn.RReLU)):
            raise InvalidInputError(f"{label} is random in training; call module.eval() first")


def _trial(network: Network, few: Samples) -> Recording:
    """A first pass, with tokens widened if that changes no output.

    Rejects modules whose output for a sample is not a function of that sample.
    """
    try:
        trial = network.record(few, widen=True)
    # perhaps due to widening
    except (AssertionError, IndexError, RuntimeError, TypeError, ValueError):
        with failure_explained(few):
            trial = network.record(few, widen=False)
    weights = network.parameters | network.others | network.buffers
    require_finite_outputs(trial.outputs, weights, few)
    again = list(reversed(range(count(few))))
    batches = [again[::2]] if len(again) > 2 else [[i] for i in again]  # among other neighbors
    with torch.no_grad():
        outputs = torch.cat([network(take(few, batch)) for batch in batches])
    rows = [i for batch in batches for i in batch]
    if trial.widened and not alike(outputs, trial.outputs[rows].detach()):
        trial = network.record(few, widen=False)
    require_alike(outputs, trial.outputs[rows].detach())
    return trial


def _chosen(outputs: Outputs, count: int) -> range:
    if isinstance(outputs, str):
        return range(count)
    chosen = range(outputs, outputs + 1) if isinstance(outputs, int) else outputs
    if max(chosen[0], chosen[-1]) >= count:
        raise InvalidInputError(
            f"outputs is {outputs}, but the module has {count} outputs; expected 0 to {count - 1}"
        )
    return chosen


def _gradients(network: Network, recording: Recording, chosen: range) -> dict[str, Tensor]:
    """The gradient of a random mixture of the outputs, by each parameter that it depends on."""
    if not recording.outputs.requires_grad:
        return {}
    by = list(network.parameters.values())
    seed = _seed(recording, chosen, alike=False)
    gradients = zip(network.parameters, derivatives(recording.outputs, by, seed), strict=True)
    return {name: gradient for name, gradient in gradients if gradient is not None}


def _require_use(network: Network, samples: Samples) -> None:
    """Raises if none of the parameters is used for any of the samples."""
    for some in portions(samples, PROBED):
        with failure_explained(some):
            recording = network.record(some, widen=False)
        if recording.outputs.requires_grad:
            return
    raise InvalidInputError(
        f"the outputs depend on none of the parameters {', '.join(network.parameters)}; "
        "expected parameters that the forward pass uses"
    )


def _mixture(trial: Recording, chosen: range) -> tuple[Tensor, Tensor]:
    """Random weights of the samples (n, 1) and of the outputs (1, c)."""
    random = torch.Generator().manual_seed(0)  # on the CPU: the same for all devices
    shapes = (len(trial.outputs), 1), (1, len(chosen))
    drawn = [
        torch.randn(shape, generator=random, dtype=torch.float64, device="cpu") for shape in shapes
    ]
    return drawn[0].to(trial.outputs), drawn[1].to(trial.outputs)


def _seed(trial: Recording, chosen: range, alike: bool) -> Tensor:
    """(n, outputs) random weights of the chosen outputs, times those of samples unless alike."""
    of_samples, of_outputs = _mixture(trial, chosen)
    seed = torch.zeros_like(trial.outputs)
    seed[:, chosen] = of_outputs if alike else of_samples * of_outputs
    return seed


def _confirmed(
    chunk: Chunk, gs: Mapping[LayerNames, Tensor], used: dict[str, Tensor]
) -> list[LayerNames]:
    """The layers for which the sum of g a^T is indeed what autograd says.

    The samples have weights in that sum, so that rows of g that are not samples give a wrong sum.
    """
    of_samples, _ = _mixture(chunk.recording, chunk.chosen)
    confirmed = []
    for layer, g in gs.items():
        if not all(name in used for name in names_of(layer)):
            continue
        use = chunk.recording.layers[layer][0]
        ours = use.total(chunk.inputs(layer), g * of_samples[:, :, None, None])
        if _agree(ours.flatten(), _joined(use, [used[name] for name in names_of(layer)]).flatten()):
            confirmed.append(layer)
    return confirmed


def _joined(use: Use, values: Sequence[Tensor]) -> Tensor:
    """The values of a layer's parameters in the order of its features."""
    rows = min(each.numel() for each in values)  # a bias has one a row
    return torch.cat([use.by_row(each, rows) for each in values], 1)


def _agree(ours: Tensor, theirs: Tensor, whole: Tensor | float = 0.0) -> bool:
    """Whether gradients differ by no more than rounding, as a part of one of this length."""
    least = LAST_DIGITS * torch.finfo(theirs.dtype).eps * whole
    return bool((ours - theirs).norm() <= tolerance(theirs) * theirs.norm() + least)


def _first(
    chunk: Chunk,
    layers: Sequence[LayerNames],
    reductions: Mapping[LayerNames, GradientReduction],
    g: Mapping[LayerNames, Tensor],
) -> Chunk:
    """The first sample of the trial, with what would be kept of its gradients."""
    few = take(chunk.samples, slice(0, 1))
    c = len(chunk.chosen)
    scaled = {layer: chunk.scaled_inputs(layer)[:1] for layer in layers}
    first = Chunk(chunk.network, few, chunk.chosen, reductions, chunk.widen, {}, scaled)
    first.recording = chunk.recording
    kept = {layer: reduce(first, g[layer][:1], None) for layer, reduce in reductions.items()}
    first.kept = {  # one output is as large as another
        layer: piece[:, None].expand(-1, c, *piece.shape[1:]) for layer, piece in kept.items()
    }
    return first


def _live_positions(g: Tensor) -> int | None:
    """The number of positions that a sample's outputs depend on; None if all, or if it varies."""
    counts = alive(g, (1, 2)).sum(1)
    first = int(counts[0])
    return first if 0 < first < g.shape[3] and bool((counts == first).all()) else None


def _form(
    chunk: Chunk,
    layer: LayerNames,
    g: Tensor,
    full: bool,
    reuse: float,
    live: int | None,
    in_factors: bool,
) -> Term:
    """The cheapest form, in multiply-adds for a pair of samples."""
    uses = chunk.recording.layers[layer]
    use = uses[0]
    c = len(chunk.chosen)
    last = chunk.recording.is_output(use)
    i = chunk.inputs(layer).shape[3]
    _, groups, o, p = g.shape
    vocabulary = use.vocabulary if isinstance(use, LookedUp) else None
    root = _root(chunk, layer)
    if last and len(uses) == 1 and isinstance(use, LinearUse) and root is None:
        return ReadoutTerm(layer, full, chunk.chosen, chunk.recording.outputs.shape[1])
    if in_factors and isinstance(use, LinearUse) and root is None:
        return PairTerm(layer, full, live, None, c)
    p = p if live is None else live
    products = c**2 if full else c  # of two samples' rows
    gradients = products * groups * o * i + c * (p + WRITING) * groups * o * i / reuse
    if vocabulary is not None:
        gradients = vocabulary * products * o
    pairs = p**2 * (i + products * o + (products if full else 1) * PAIR_OVERHEAD)
    if root is not None or groups > 1 or gradients <= pairs:
        return GradientTerm(layer, full, live, root, vocabulary)
    return PairTerm(layer, full, live, vocabulary, c)


def _root(chunk: Chunk, layer: LayerNames) -> Tensor | None:
    """(features,) a preconditioner's roots by gradient, unless they scale the inputs."""
    roots = chunk.network.roots
    use = chunk.recording.layers[layer][0]
    if not roots or (chunk.has_single_roots(layer) and not isinstance(use, LookedUp)):
        return None
    parameters = chunk.network.parameters
    whole = [roots[name].expand_as(parameters[name]) for name in names_of(layer)]
    return _joined(use, whole).flatten()


def _working(
    chunk: Chunk, terms: Sequence[Term], example: Sequence[Factors], g: Mapping[LayerNames, Tensor]
) -> int:
    """About how many bytes are held for one sample on its way through the network."""
    uses = [use for layer in g for use in chunk.recording.layers[layer]]
    given: int = sum(leaf.numel() for leaf in leaves(chunk.samples))
    passing = (given + sum(use.working() for use in uses)) // count(chunk.samples)
    like = chunk.network.like
    needed = passing * like.element_size()
    for term, factors in zip(terms, example, strict=True):
        size = sum(part.nbytes for part in factors)
        in_place = isinstance(term, GradientTerm) and factors[0].dtype == like.dtype
        needed += size if in_place else 3 * size
        if isinstance(term, PairTerm) and term.live is not None:
            needed += len(chunk.chosen) * g[term.layer][:1].nbytes
    return needed


def _positions(trial: Recording) -> int:
    """The most positions of a sample that a `linear` or a `conv2d` is applied at."""
    uses = [use for uses in trial.layers.values() for use in uses]
    dense = [use.zeros.shape[:-1].numel() // use.n for use in uses if isinstance(use, LinearUse)]
    convolved = [use.zeros.shape[2:].numel() for use in uses if isinstance(use, Convolved)]
    return max([1, *dense, *convolved])
