"""Which form each layer's part of the empirical kernel takes, found out on a few samples.

They also tell whether the module has a tangent kernel: each output a function of its own sample.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from retarget.errors import InvalidInputError
from retarget.kernels.empirical.recording import Chunk, Network, Recording, Reduction
from retarget.kernels.empirical.terms import (
    Factors,
    GradientTerm,
    JacobianTerm,
    PairTerm,
    ReadoutTerm,
    SketchTerm,
    SplitTerm,
    Term,
    TokenGradientTerm,
    TokenPairTerm,
    split,
)
from retarget.kernels.empirical.uses import Dense, Layer, LookedUp
from retarget.samples import Samples, count, leaves, mapped, take, whole_numbers_explained

Mode = Literal["auto", "structured", "jacobian"]

PROBED = 3  # samples to try a module on: a first, a last and one between
# What it costs to multiply two numbers of the products of pairs, and to add that to the kernel, in
# multiply-adds of a matrix product: 40 to 170 on one core of a Xeon, as they wait for memory.
PAIR_OVERHEAD = 64


@dataclass(frozen=True)
class Plan:
    """What to compute for each chunk of samples.

    Attributes:
        reductions: What terms keep of the outputs' gradients by their layers' results.
        example: Each term's factors, for one sample.
        dtype: Type of the products.
        working: Bytes held for one sample while its factors are computed.
        widen: As `Network.record` has it.
    """

    network: Network
    chosen: range
    terms: tuple[Term, ...]
    reductions: Mapping[Layer, Reduction]
    example: tuple[Factors, ...]
    dtype: torch.dtype
    working: int
    widen: bool

    @property
    def held(self) -> int:
        """Bytes of one sample's factors."""
        return sum(part.nbytes for factors in self.example for part in factors)

    def factors(self, samples: Samples) -> list[Factors]:
        """Every term's factors, from one pass through the network."""
        chunk = Chunk(self.network, samples, self.chosen, self.reductions, self.widen)
        if any(layer not in chunk.recording.layers for layer in self.reductions):
            raise InvalidInputError(
                "the module took another path for later samples than for the first; expected the "
                "same layers for all: use mode='jacobian', or wrap what you mean in a module"
            )
        return _factors(self.terms, chunk, self.dtype)


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
    outputs: int | None,
    mode: Mode,
    full: bool,
    dtype: torch.dtype,
    reuse: float,
) -> Plan:
    """Tries the network on a few samples, and chooses.

    Args:
        network: The module, as it is now.
        samples: All of them.
        outputs: The number of the one output to take; None for all.
        mode: As `EmpiricalNTK` has it.
        full: Whether each output has rows of its own.
        dtype: Type of the products.
        reuse: Pairs of samples that each sample's factors serve.
    """
    few = take(samples, slice(None, None, max(1, (count(samples) - 1) // (PROBED - 1))))
    few = mapped(torch.Tensor.contiguous, take(few, slice(0, PROBED)))  # modules take views
    _require_settled_layers(network.module)
    trial = _trial(network, few)
    chosen = _chosen(outputs, trial.outputs.shape[1])
    used = _used(network, trial, chosen)
    layers = dict.fromkeys(_candidates(trial), _second)
    chunk = Chunk(network, few, chosen, layers, trial.widened)
    chunk.recording = trial
    g = chunk.gradients(_seed(trial, chosen, alike=True))
    ruled = [] if mode == "jacobian" else _confirmed(chunk, g, used)
    rest = [name for name in used if not any(name in layer for layer in ruled)]
    terms = [_form(chunk, layer, g[layer], full, reuse) for layer in ruled]
    reductions = {
        term.layer: term.reduce for term in terms if isinstance(term, GradientTerm | PairTerm)
    }
    if rest:
        terms.append(JacobianTerm(rest, full))
    for layer, reduce in reductions.items():  # one output is as large as another
        piece = reduce(chunk.inputs(layer), g[layer])[:, None]
        chunk.kept[layer] = piece.expand(-1, len(chosen), *piece.shape[2:])
    factors = _factors(terms, chunk, dtype)
    example = tuple(tuple(part[:1].clone() for part in parts) for parts in factors)
    held = sum(part.nbytes for parts in example for part in parts)
    working = _passing(chunk) * network.like.element_size() + 3 * held
    parts = tuple(terms)
    return Plan(network, chosen, parts, reductions, example, dtype, working, trial.widened)


def with_split_products(plan: Plan) -> Plan:
    """The plan with the large products made on tensor cores."""
    terms: list[Term] = []
    example: list[Factors] = []
    for term, factors in zip(plan.terms, plan.example, strict=True):
        if isinstance(term, GradientTerm):
            term, factors = SplitTerm(term), split(factors[0])
        terms.append(term)
        example.append(factors)
    return replace(plan, terms=tuple(terms), example=tuple(example))


def sketched(plan: Plan, size: int, seed: int) -> Plan:
    """The plan whose only factors are the projected features."""
    gradients = sum(each.nbytes for each in plan.network.parameters.values()) * len(plan.chosen)
    example = plan.network.like.new_empty((1, 1, size), dtype=plan.dtype)
    return replace(
        plan,
        terms=(SketchTerm(plan.terms, size, seed),),
        example=((example,),),
        working=plan.working + 3 * gradients,
    )


def _require_settled_layers(module: nn.Module) -> None:
    """Refuses layers that are known to mix samples, or to be random, as they are set."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (
            layer.training or layer.running_mean is None
        ):
            raise InvalidInputError(
                f"layer {name!r} ({type(layer).__name__}) normalises by the batch, so that samples "
                "depend on each other; call module.eval() first"
            )
        random = isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0
        if layer.training and (random or isinstance(layer, nn.RReLU)):
            raise InvalidInputError(
                f"layer {name!r} ({type(layer).__name__}) is random in training; call "
                "module.eval() first"
            )


def _trial(network: Network, few: Samples) -> Recording:
    """A first pass, with tokens widened (see `Network.record`) where that changes no output.

    Refuses modules whose output for a sample is not a function of that sample.
    """
    try:
        trial = network.record(few, widen=True)
    except (InvalidInputError, RuntimeError, TypeError, ValueError):  # perhaps by the widening
        with whole_numbers_explained(few):
            trial = network.record(few, widen=False)
    with torch.no_grad():
        alone = torch.cat([network(take(few, slice(i, i + 1))) for i in range(count(few))])
    if trial.widened and not _alike(alone, trial.outputs):
        trial = network.record(few, widen=False)
    if not _alike(alone, trial.outputs):
        gap = (alone - trial.outputs).abs().max().item()
        raise InvalidInputError(
            f"the outputs of a sample alone and of the same sample among others differ by "
            f"{gap:.3g}; expected each to depend on its own sample, and not on chance: call "
            "module.eval(), or leave out what mixes samples"
        )
    return trial


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two ways to the same outputs differ by no more than rounding."""
    if one.shape != other.shape:
        return False
    gap = (one - other).abs().max().item()
    return bool(gap <= _tolerance(one) * other.abs().max().item())


def _tolerance(values: Tensor) -> float:
    """The relative difference between two ways to the same values that rounding may make."""
    return math.sqrt(torch.finfo(values.dtype).eps)


def _second(a: Tensor, g: Tensor) -> Tensor:
    return g


def _chosen(output: int | None, count: int) -> range:
    if output is None:
        return range(count)
    if output >= count:
        raise InvalidInputError(
            f"outputs is {output}, but the module has {count} outputs; expected 0 to {count - 1}"
        )
    return range(output, output + 1)


def _used(network: Network, trial: Recording, chosen: range) -> dict[str, Tensor]:
    """The gradient of a random mixture of the outputs, by each parameter that it depends on."""
    found: Sequence[Tensor | None] = [None]
    if trial.outputs.requires_grad:
        seed = _seed(trial, chosen, alike=False)
        parameters = list(network.parameters.values())
        found = torch.autograd.grad(
            trial.outputs, parameters, seed, retain_graph=True, allow_unused=True
        )
    gradients = {
        name: gradient
        for name, gradient in zip(network.parameters, found, strict=False)
        if gradient is not None
    }
    if not gradients:
        raise InvalidInputError(
            f"the outputs depend on none of the parameters {', '.join(network.parameters)}; "
            "expected parameters that the forward pass uses"
        )
    return gradients


def _mixture(trial: Recording, chosen: range) -> tuple[Tensor, Tensor]:
    """Random weights of the samples (n, 1) and of the outputs (1, c)."""
    random = torch.Generator().manual_seed(0)  # of the CPU: alike on all devices
    shapes = (len(trial.outputs), 1), (1, len(chosen))
    drawn = [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]
    return drawn[0].to(trial.outputs), drawn[1].to(trial.outputs)


def _seed(trial: Recording, chosen: range, alike: bool) -> Tensor:
    """(n, outputs) the random weights of the chosen outputs, times those of samples or not."""
    of_samples, of_outputs = _mixture(trial, chosen)
    seed = torch.zeros_like(trial.outputs)
    seed[:, chosen] = of_outputs if alike else of_samples * of_outputs
    return seed


def _candidates(trial: Recording) -> list[Layer]:
    """Layers whose parameters are used in no other way, and sample by sample as it seems."""
    count: dict[str, int] = {}
    for layer in trial.layers:
        for name in filter(None, layer):
            count[name] = count.get(name, 0) + 1
    return [
        layer
        for layer, uses in trial.layers.items()
        if all(count[name] == 1 and name not in trial.elsewhere for name in filter(None, layer))
        and all(use.has_rows() for use in uses)
        and len({type(use) for use in uses}) == 1
    ]


def _confirmed(chunk: Chunk, gs: Mapping[Layer, Tensor], used: dict[str, Tensor]) -> list[Layer]:
    """The layers for which the sum of g a^T is indeed what autograd says.

    The samples have weights in it: rows of g that are not samples' do not come out right.
    """
    of_samples, _ = _mixture(chunk.recording, chunk.chosen)
    confirmed = []
    for layer, g in gs.items():
        if not all(name in used for name in filter(None, layer)):
            continue
        mixed = g * of_samples[:, :, None, None]
        use = chunk.recording.layers[layer][0]
        ours = use.total(chunk.inputs(layer), mixed)
        parts = [use.by_row(used[name], len(ours)) for name in filter(None, layer)]
        theirs = torch.cat(parts, 1)
        if (ours - theirs).norm() <= _tolerance(theirs) * theirs.norm():
            confirmed.append(layer)
    return confirmed


def _form(chunk: Chunk, layer: Layer, g: Tensor, full: bool, reuse: float) -> Term:
    """The cheapest form, in multiply-adds for a pair of samples."""
    uses, outputs = chunk.recording.layers[layer], chunk.recording.outputs
    c = len(chunk.chosen)
    edge = uses[0].edge
    last = edge.node is outputs.grad_fn and edge.output_nr == outputs.output_nr
    i = chunk.inputs(layer).shape[3]
    _, groups, o, p = g.shape
    looked_up = uses[0] if isinstance(uses[0], LookedUp) else None
    root = chunk.root(layer, looked_up.vocabulary if looked_up else groups * o)
    if last and len(uses) == 1 and isinstance(uses[0], Dense) and root is None:
        return ReadoutTerm(layer, full, c)
    products = c**2 if full else c  # of two samples' rows
    gradients = products * groups * o * i + c * p * groups * o * i / reuse
    pairs = p**2 * (i + products * o + (products if full else 1) * PAIR_OVERHEAD)
    if looked_up:
        size = looked_up.vocabulary
        if root is not None or size * products * o <= pairs:
            return TokenGradientTerm(layer, full, size, root)
        return TokenPairTerm(layer, full, size)
    if root is not None or groups > 1 or gradients <= pairs:
        return GradientTerm(layer, full, root)
    return PairTerm(layer, full)


def _passing(chunk: Chunk) -> int:
    """Numbers that one sample's pass through the network holds, about."""
    uses = [use for layer in chunk.reductions for use in chunk.recording.layers[layer]]
    given: int = sum(leaf.numel() for leaf in leaves(chunk.samples))
    return (given + sum(use.working() for use in uses)) // count(chunk.samples)
