r"""A layer's part of the kernel, $\sum_k \langle \nabla f_k(x), \nabla f_k(x') \rangle$.

A layer's weight gradient is $\sum_p g_p a_p^\top$ over the positions p that it is applied at: a is
its input there (for a convolution the patch under the window, with a last 1 for the bias), g the
output's gradient by its result. From that come three forms of the same part:

* gradients: $F = \sum_p g_p a_p^\top$ written out, and $F F'^\top$;
* pairs: $\sum_{pq} (a_p \cdot a'_q)(g_p \cdot g'_q)$, for one or few positions;
* read-out: a layer whose result is the output itself has $g_k = e_k$, so that $a \cdot a'$ is all.

A form turns a chunk of samples into factors, each with one row a sample, and adds its part to a
block of the kernel from the factors of the block's rows and columns. Between the sample and the
features stand r rows: one output each for the full kernel, else 1, the outputs being features too.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from retarget.kernels.empirical.passes import Chunk
from retarget.kernels.empirical.recording import Layer

Factors = tuple[Tensor, ...]

# Numbers in the two matrices of a product of pairs: as many as stay in cache, or fill the device.
PAIR_NUMBERS = {"cpu": 1 << 19}
PAIR_NUMBERS_ELSEWHERE = 1 << 27


class Term(ABC):
    """One form of one layer's part."""

    @abstractmethod
    def factors(self, chunk: Chunk) -> Factors:
        """What the products are made of, one row a sample."""

    @abstractmethod
    def add(self, K: Tensor, left: Factors, right: Factors, scale: float) -> None:
        """Adds the part between these samples to K (rows * r, columns * r)."""

    @abstractmethod
    def diagonal(self, factors: Factors) -> Tensor:
        """(n, r) each sample's part with itself."""

    @abstractmethod
    def features(self, factors: Factors) -> Tensor:
        """(n, d) whose inner products are the part, for r = 1."""


class GradientTerm(Term):
    """The gradients of one layer, written out; with `full`, one row an output."""

    def __init__(self, layer: Layer, full: bool) -> None:
        self.layer, self.full = layer, full

    def factors(self, chunk: Chunk) -> Factors:
        """(n, r, features): the gradients."""
        F = chunk.kept[self.layer]
        return (F if self.full else F.flatten(1)[:, None],)

    @staticmethod
    def reduce(a: Tensor, g: Tensor) -> Tensor:
        """(n, features) one output's gradients."""
        return (g @ a).flatten(1)

    def add(self, K: Tensor, left: Factors, right: Factors, scale: float) -> None:
        """Their products."""
        K.addmm_(left[0].flatten(0, 1), right[0].flatten(0, 1).mT, alpha=scale)

    def diagonal(self, factors: Factors) -> Tensor:
        """Their squares."""
        return factors[0].square().sum(2)

    def features(self, factors: Factors) -> Tensor:
        """The gradients as they are."""
        return factors[0].flatten(1)


class JacobianTerm(GradientTerm):
    """Gradients of parameters without a rule, whatever they do, by `torch.func`."""

    def __init__(self, names: Sequence[str], full: bool) -> None:
        self.names, self.full = tuple(names), full

    def factors(self, chunk: Chunk) -> Factors:
        """(n, r, features): the Jacobian."""
        network, chosen = chunk.network, list(chunk.chosen)
        fixed = {name: value.detach() for name, value in network.parameters.items()}

        def outputs(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
            return network(sample[None], {**fixed, **parameters})[0, chosen]

        wanted = {name: fixed[name] for name in self.names}
        jacobian = vmap(jacrev(outputs), in_dims=(None, 0))(wanted, chunk.samples)
        shape = len(chunk.samples), len(chosen), -1
        F = torch.cat([jacobian[name].reshape(shape) for name in self.names], 2)
        return (F if self.full else F.flatten(1)[:, None],)


class PairTerm(Term):
    """Products of inputs times products of the outputs' gradients, position by position."""

    def __init__(self, layer: Layer, full: bool) -> None:
        self.layer, self.full = layer, full

    def factors(self, chunk: Chunk) -> Factors:
        """(n, positions, inputs) a, and (n, r, positions, results) g."""
        a, g = chunk.inputs(self.layer)[:, 0], chunk.kept[self.layer]
        return a, g if self.full else g.transpose(1, 2).flatten(2)[:, None]

    @staticmethod
    def reduce(a: Tensor, g: Tensor) -> Tensor:
        """(n, positions, results) one output's g."""
        return g[:, 0].mT

    def add(self, K: Tensor, left: Factors, right: Factors, scale: float) -> None:
        """A few rows at a time, so that the products stay in cache."""
        a, g = right[0].flatten(0, 1), right[1].flatten(0, 2)
        _, r, p, _ = right[1].shape
        numbers = PAIR_NUMBERS.get(K.device.type, PAIR_NUMBERS_ELSEWHERE)
        rows = max(1, numbers // (r * p * len(g)))
        for start in range(0, len(left[0]), rows):
            part = slice(start, start + rows)
            inputs = left[0][part].flatten(0, 1) @ a.mT
            gradients = left[1][part].flatten(0, 2) @ g.mT
            # i, j: samples; k, l: outputs; p, q: positions
            product = gradients.view(-1, r, p, len(a) // p, r, p)
            product *= inputs.view(-1, 1, p, len(a) // p, 1, p)
            summed = product.sum((2, 5)) if p > 1 else product
            block = K[start * r : (start + rows) * r]
            block.add_(summed.reshape(block.shape), alpha=scale)

    def diagonal(self, factors: Factors) -> Tensor:
        """The products at two positions of one sample."""
        a, g = factors
        return ((a @ a.mT)[:, None] * (g @ g.mT)).sum((2, 3))

    def features(self, factors: Factors) -> Tensor:
        """The gradients after all."""
        a, g = factors
        return (g.mT @ a[:, None]).flatten(1)


class ReadoutTerm(Term):
    """The last layer: every output has the same inputs, and a row of weights of its own."""

    def __init__(self, layer: Layer, full: bool, outputs: int) -> None:
        self.layer, self.full, self.outputs = layer, full, outputs

    def factors(self, chunk: Chunk) -> Factors:
        """(n, inputs) a."""
        return (chunk.inputs(self.layer)[:, 0, 0],)

    def add(self, K: Tensor, left: Factors, right: Factors, scale: float) -> None:
        """Between different outputs there is nothing."""
        if not self.full:
            K.addmm_(left[0], right[0].mT, alpha=scale * self.outputs)
            return
        block = K.view(len(left[0]), self.outputs, len(right[0]), self.outputs)
        block.diagonal(dim1=1, dim2=3).add_((left[0] @ right[0].mT)[..., None], alpha=scale)

    def diagonal(self, factors: Factors) -> Tensor:
        """The squares of the inputs."""
        squares = factors[0].square().sum(1, keepdim=True)
        return squares.expand(-1, self.outputs) if self.full else squares * self.outputs

    def features(self, factors: Factors) -> Tensor:
        """The inputs, once for all outputs."""
        return factors[0] * math.sqrt(self.outputs)
