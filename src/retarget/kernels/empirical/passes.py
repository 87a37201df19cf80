"""Some samples' way through the network and back: each layer's inputs, and gradients by results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from retarget.kernels.empirical.recording import Layer, Network, Recording, Use, Window

# From a layer's inputs (n, groups, positions, features) and one output's gradients by its results
# (n, groups, features, positions), what is to be kept of that output.
Reduction = Callable[[Tensor, Tensor], Tensor]


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
        """The way there."""
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
