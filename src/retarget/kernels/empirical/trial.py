"""A few samples tried on a network: whether it has a tangent kernel, and which rules hold for it.

It has one if each output is a function of its own sample. A rule holds for a layer if the gradient
that it gives is the one that autograd gives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from retarget.errors import InvalidInputError
from retarget.kernels.empirical.recording import (
    Chunk,
    GradientReduction,
    Network,
    Recording,
    alike,
    derivatives,
    require_alike,
    tolerance,
)
from retarget.kernels.empirical.uses import LayerNames, Use, names_of
from retarget.samples import (
    Samples,
    count,
    failure_explained,
    mapped,
    portions,
    require_finite_outputs,
    take,
)

Outputs = Literal["mean", "sum", "full"] | int | range

TRIED = 3  # samples to try a module on: a first, a last and one between
# A part of a gradient that is smaller than this share of the whole, in last digits, is rounding.
LAST_DIGITS = 100


@dataclass(frozen=True)
class Selection:
    """The outputs that a kernel is of.

    Attributes:
        chosen: Their numbers.
        full: Whether each of them has rows of its own; otherwise they are summed over.
        scale: The factor on that sum.
    """

    chosen: range
    full: bool
    scale: float

    @classmethod
    def of(cls, outputs: Outputs, count: int) -> "Selection":
        """Takes what the caller wants of a module with this many outputs."""
        if isinstance(outputs, str):
            scale = 1 / count if outputs == "mean" else 1.0
            return cls(range(count), outputs == "full", scale)
        chosen = range(outputs, outputs + 1) if isinstance(outputs, int) else outputs
        if max(chosen[0], chosen[-1]) >= count:
            raise InvalidInputError(
                f"outputs is {outputs}, but the module has {count} outputs; expected 0 to "
                f"{count - 1}"
            )
        return cls(chosen, False, 1 / len(chosen))

    @property
    def rows(self) -> int:
        """Rows of the kernel matrix for each sample."""
        return len(self.chosen) if self.full else 1


class TrialPass:
    """A few of the samples, on their way through the network.

    Attributes:
        selection: The outputs that are wanted.
        chunk: The samples, recorded.
        used: The gradient of a random mixture of the outputs, by each parameter that they use.
    """

    def __init__(self, network: Network, samples: Samples, outputs: Outputs) -> None:
        require_settled_layers(network.module)
        few = take(samples, slice(None, None, max(1, (count(samples) - 1) // (TRIED - 1))))
        few = mapped(torch.Tensor.contiguous, take(few, slice(0, TRIED)))  # modules may call view
        recording = _recorded(network, few)
        self.selection = Selection.of(outputs, recording.outputs.shape[1])
        self.chunk = Chunk(network, few, self.selection.chosen, {}, recording.widened)
        self.chunk.recording = recording
        self.used = mixed_gradients(network, recording, self.selection.chosen)
        self._g: dict[LayerNames, Tensor] = {}

    @property
    def recording(self) -> Recording:
        """The pass through the network."""
        return self.chunk.recording

    @property
    def g(self) -> dict[LayerNames, Tensor]:
        """(n, groups, results, positions) a mixture's gradients by the results of each layer."""
        if not self._g:
            seed = _seed(self.recording, self.selection.chosen, alike=True)
            self._g = self.chunk.gradients(self.recording.ways, seed)
        return self._g

    def confirmed(self) -> list[LayerNames]:
        """The layers for which the sum of g a^T is indeed what autograd says.

        The samples have weights in that sum, so that rows of g that are not samples give a wrong
        sum.
        """
        of_samples, _ = mixture(self.recording, self.selection.chosen)
        confirmed = []
        for layer, g in self.g.items():
            names = names_of(layer)
            if not all(name in self.used for name in names):
                continue
            use = self.recording.layers[layer][0]
            ours = use.total(self.chunk.inputs(layer), g * of_samples[:, :, None, None])
            theirs = joined(use, [self.used[name] for name in names])
            if agree(ours.flatten(), theirs.flatten()):
                confirmed.append(layer)
        return confirmed

    def first(
        self, layers: Sequence[LayerNames], reductions: Mapping[LayerNames, GradientReduction]
    ) -> Chunk:
        """The first sample, with what would be kept of its gradients."""
        chunk = self.chunk
        few = take(chunk.samples, slice(0, 1))
        c = len(chunk.chosen)
        scaled = {layer: chunk.scaled_inputs(layer)[:1] for layer in layers}
        first = Chunk(chunk.network, few, chunk.chosen, reductions, chunk.widen, {}, scaled)
        first.recording = chunk.recording
        kept = {
            layer: reduce(first, self.g[layer][:1], None) for layer, reduce in reductions.items()
        }
        first.kept = {  # one output is as large as another
            layer: piece[:, None].expand(-1, c, *piece.shape[1:]) for layer, piece in kept.items()
        }
        return first


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


def require_use(network: Network, samples: Samples) -> None:
    """Raises if none of the parameters is used for any of the samples."""
    for some in portions(samples, TRIED):
        with failure_explained(some):
            recording = network.record(some, widen=False)
        if recording.outputs.requires_grad:
            return
    raise InvalidInputError(
        f"the outputs depend on none of the parameters {', '.join(network.parameters)}; "
        "expected parameters that the forward pass uses"
    )


def _recorded(network: Network, few: Samples) -> Recording:
    """A first pass, with tokens widened if that changes no output.

    Rejects modules whose output for a sample is not a function of that sample.
    """
    try:
        recording = network.record(few, widen=True)
    # perhaps due to widening
    except (AssertionError, IndexError, RuntimeError, TypeError, ValueError):
        with failure_explained(few):
            recording = network.record(few, widen=False)
    weights = network.parameters | network.others | network.buffers
    require_finite_outputs(recording.outputs, weights, few)
    again = list(reversed(range(count(few))))
    batches = [again[::2]] if len(again) > 2 else [[i] for i in again]  # among other neighbors
    with torch.no_grad():
        outputs = torch.cat([network(take(few, batch)) for batch in batches])
    rows = [i for batch in batches for i in batch]
    if recording.widened and not alike(outputs, recording.outputs[rows].detach()):
        recording = network.record(few, widen=False)
    require_alike(outputs, recording.outputs[rows].detach())
    return recording


def mixed_gradients(network: Network, recording: Recording, chosen: range) -> dict[str, Tensor]:
    """The gradient of a random mixture of the outputs, by each parameter that it depends on."""
    if not recording.outputs.requires_grad:
        return {}
    by = list(network.parameters.values())
    seed = _seed(recording, chosen, alike=False)
    gradients = zip(network.parameters, derivatives(recording.outputs, by, seed), strict=True)
    return {name: gradient for name, gradient in gradients if gradient is not None}


def mixture(recording: Recording, chosen: range) -> tuple[Tensor, Tensor]:
    """Random weights of the samples (n, 1) and of the outputs (1, c)."""
    random = torch.Generator().manual_seed(0)  # on the CPU: the same for all devices
    shapes = (len(recording.outputs), 1), (1, len(chosen))
    drawn = [
        torch.randn(shape, generator=random, dtype=torch.float64, device="cpu") for shape in shapes
    ]
    return drawn[0].to(recording.outputs), drawn[1].to(recording.outputs)


def _seed(recording: Recording, chosen: range, alike: bool) -> Tensor:
    """(n, outputs) random weights of the chosen outputs, times those of samples unless alike."""
    of_samples, of_outputs = mixture(recording, chosen)
    seed = torch.zeros_like(recording.outputs)
    seed[:, chosen] = of_outputs if alike else of_samples * of_outputs
    return seed


def joined(use: Use, values: Sequence[Tensor]) -> Tensor:
    """The values of a layer's parameters in the order of its features."""
    rows = min(each.numel() for each in values)  # a bias has one a row
    return torch.cat([use.by_row(each, rows) for each in values], 1)


def agree(ours: Tensor, theirs: Tensor, whole: Tensor | float = 0.0) -> bool:
    """Whether gradients differ by no more than rounding, as a part of one of this length."""
    least = LAST_DIGITS * torch.finfo(theirs.dtype).eps * whole
    return bool((ours - theirs).norm() <= tolerance(theirs) * theirs.norm() + least)
