"""Some samples' way through the network and back: each layer's inputs, and gradients by results."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from retarget.kernels.gradient_recording import Layer, Network, Recording, Use, Window


@dataclass
class Chunk:
    """Some samples, and their pass through the network when some form needs it.

    Attributes:
        chosen: The numbers of the outputs that are summed over.
        layers: Those whose gradients will be asked for.
    """

    network: Network
    samples: Tensor
    chosen: range
    layers: Sequence[Layer]
    recording: Recording

    @cached_property
    def gradients(self) -> dict[Layer, list[Tensor]]:
        """(n, c, ...) for each use of each layer: the chosen outputs' gradients by its result."""
        uses = [use for layer in self.layers for use in self.recording.layers[layer]]
        n, c, outputs = len(self.samples), len(self.chosen), self.recording.outputs
        found = [outputs.new_zeros((n, c, *use.shape[1:])) for use in uses]
        edges = [use.edge for use in uses]
        for row, k in enumerate(self.chosen):
            # one backward pass serves all samples, as no sample's output depends on another's
            seed = torch.zeros_like(outputs)
            seed[:, k] = 1
            parts = torch.autograd.grad(
                outputs, edges, seed, retain_graph=row + 1 < c, allow_unused=True
            )
            for total, part in zip(found, parts, strict=True):
                if part is not None:
                    total[:, row] = part
        each = iter(found)
        return {layer: [next(each) for _ in self.recording.layers[layer]] for layer in self.layers}

    def inputs(self, layer: Layer) -> Tensor:
        """(n, groups, positions, features) a layer's inputs, those of all its uses in a row."""
        weight, bias = layer
        parts = [_positions(use) for use in self.recording.layers[layer]]
        a = torch.cat(parts, 2) if len(parts) > 1 else parts[0]
        if weight is None:
            return a.new_ones((*a.shape[:3], 1))
        return a if bias is None else nn.functional.pad(a, (0, 1), value=1.0)

    def results(self, layer: Layer) -> Tensor:
        """(n, c, groups, features, positions) the outputs' gradients, matching `inputs`."""
        uses = self.recording.layers[layer]
        parts = [_by_position(use, g) for use, g in zip(uses, self.gradients[layer], strict=True)]
        return torch.cat(parts, 4) if len(parts) > 1 else parts[0]


def _positions(use: Use) -> Tensor:
    x = use.input.detach()
    if use.window is None:
        return x.reshape(len(x), 1, -1, x.shape[-1])
    patches = _patches(x, use.window)
    groups = use.window.groups
    return patches.reshape(len(x), groups, -1, patches.shape[-1]).mT


def _by_position(use: Use, g: Tensor) -> Tensor:
    if use.window is None:
        return g.reshape(*g.shape[:2], 1, -1, g.shape[-1]).mT
    n, c, channels = g.shape[:3]
    groups = use.window.groups
    return g.reshape(n, c, groups, channels // groups, -1)


def _patches(x: Tensor, window: Window) -> Tensor:
    """(n, channels * height * width of the window, positions)."""
    padding = window.padding
    if padding == "valid":
        padding = 0
    if padding == "same":
        spread = [d * (k - 1) for d, k in zip(_two(window.dilation), window.size, strict=True)]
        rows, columns = spread
        x = nn.functional.pad(
            x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
        )
        padding = 0
    return nn.functional.unfold(x, window.size, window.dilation, padding, window.stride)


def _two(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
