r"""A layer's part of the kernel, $\sum_k \langle \nabla f_k(x), \nabla f_k(x') \rangle$.

A layer's weight gradient is $\sum_p g_p a_p^\top$ over the positions p that it is applied at: a is
its input there (for a convolution the patch under the window, with a last 1 for the bias), g the
output's gradient by its result. From that come the forms of the same part:

* gradients: $F = \sum_p g_p a_p^\top$ written out, and $F F'^\top$;
* pairs: $\sum_{pq} (a_p \cdot a'_q)(g_p \cdot g'_q)$, for one or few positions;
* tokens: both of these for an embedding, whose a says which row of the weight was looked up;
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
from torch.nn.attention import SDPBackend, sdpa_kernel

from retarget.kernels.empirical.recording import Chunk
from retarget.kernels.empirical.uses import Layer
from retarget.samples import count, leaves, mapped, take, with_leaves

Factors = tuple[Tensor, ...]

# Numbers in the two matrices of a product of pairs: as many as stay in cache, or fill the device.
PAIR_NUMBERS = {"cpu": 1 << 19}
PAIR_NUMBERS_ELSEWHERE = 1 << 27

TRIANGLE_STEPS = 8  # in which products of pairs fill half of a symmetric matrix


class MoreLivePositionsError(Exception):
    """A sample's outputs depend on more of a layer's positions than its form has room for."""


class Term(ABC):
    """One form of one layer's part."""

    @abstractmethod
    def factors(self, chunk: Chunk) -> Factors:
        """What the products are made of, one row a sample."""

    def places(self, factors: Factors, outputs: int) -> dict[Layer, Tensor]:
        """(n, outputs, ...) where in these arrays a layer's gradients can be kept at once."""
        return {}

    @abstractmethod
    def add(self, K: Tensor, left: Factors, right: Factors, scale: float) -> None:
        """Adds the part between these samples to K (rows * r, columns * r)."""

    def triangle_rows(self, n: int) -> int:
        """Of n samples, how many to add at a time where half of a symmetric matrix is enough."""
        return n

    @abstractmethod
    def diagonal(self, factors: Factors) -> Tensor:
        """(n, r) each sample's part with itself."""

    @abstractmethod
    def features(self, factors: Factors) -> Tensor:
        """(n, d) whose inner products are the part, for r = 1."""


class FeatureTerm(Term):
    """Features that are written out, as (n, r, features)."""

    def add(self, K: Tensor, left: Factors, right: Factors, scale: float) -> None:
        """Their products."""
        K.addmm_(left[0].flatten(0, 1), right[0].flatten(0, 1).mT, alpha=scale)

    def diagonal(self, factors: Factors) -> Tensor:
        """Their squares."""
        return factors[0].square().sum(2)

    def features(self, factors: Factors) -> Tensor:
        """As they are."""
        return factors[0].flatten(1)


class GradientTerm(FeatureTerm):
    """The gradients of one layer, written out.

    Args:
        layer: Whose.
        full: Whether each output has a row of its own.
        live: Positions of a sample that its outputs seem to depend on; None for all.
        root: What they are multiplied by: a preconditioner's roots, by feature.
    """

    def __init__(
        self, layer: Layer, full: bool, live: int | None = None, root: Tensor | None = None
    ) -> None:
        self.layer, self.full, self.live, self.root = layer, full, live, root

    def factors(self, chunk: Chunk) -> Factors:
        """(n, r, features): the gradients."""
        F = chunk.kept[self.layer]
        return (F if self.full else F.flatten(1)[:, None],)

    def places(self, factors: Factors, outputs: int) -> dict[Layer, Tensor]:
        """The whole of it."""
        return {self.layer: factors[0].view(len(factors[0]), outputs, -1)}

    def reduce(self, chunk: Chunk, g: Tensor, place: Tensor | None) -> Tensor:
        """(n, features) one output's gradients."""
        a = chunk.scaled_inputs(self.layer)
        if self.live is not None:
            living = alive(g, (1, 2))
            if int(living.sum(1).max()) <= self.live:
                at = _first(living, self.live)
                a = a.take_along_dim(at[:, None, :, None], 2)
                g = g.take_along_dim(at[:, None, None, :], 3)
        if place is None or self.root is not None or g.shape[1] > 1:
            return self._times_root((g @ a).flatten(1))
        torch.bmm(g[:, 0], a[:, 0], out=place.view(len(g), g.shape[2], a.shape[3]))
        return place

    def _times_root(self, F: Tensor) -> Tensor:
        return F if self.root is None else F * self.root


def alive(g: Tensor, over: tuple[int, int]) -> Tensor:
    """(n, positions) where any of the gradients is not zero.

    Where only the first token is read out, most positions of a last block have none.
    """
    return (g.amax(over) != 0) | (g.amin(over) != 0)  # several times faster than `any` or a norm


def _first(living: Tensor, count: int) -> Tensor:
    """(n, count) the positions that are alive, and as many others as are needed for that."""
    return living.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]


class TokenGradientTerm(GradientTerm):
    """The gradients of an embedding, written out: rows of g, added up where the token is."""

    def __init__(
        self, layer: Layer, full: bool, vocabulary: int, root: Tensor | None = None
    ) -> None:
        super().__init__(layer, full, None, root)
        self.vocabulary = vocabulary

    def reduce(self, chunk: Chunk, g: Tensor, place: Tensor | None) -> Tensor:
        """(n, vocabulary * features)."""
        tokens = chunk.scaled_inputs(self.layer)
        return self._times_root(_by_token(tokens, g[:, 0].mT, self.vocabulary))


def _by_token(tokens: Tensor, g: Tensor, vocabulary: int) -> Tensor:
    """(n, vocabulary * features) g (n, positions, features), added up where the token is."""
    n = len(g)
    rows = tokens.reshape(n, -1) + vocabulary * torch.arange(n, device=tokens.device)[:, None]
    found = g.new_zeros((n * vocabulary, g.shape[2]))
    found.index_add_(0, rows.flatten(), g.flatten(0, 1))
    return found.view(n, -1)


class JacobianTerm(FeatureTerm):
    """Gradients of parameters without a rule, whatever they do, by `torch.func`.

    Where the module has code that vmap cannot follow (one that looks at a mask's numbers, say),
    by autograd, sample by sample.
    """

    def __init__(self, names: Sequence[str], full: bool) -> None:
        self.names, self.full = tuple(names), full
        self._by_sample = False

    def factors(self, chunk: Chunk) -> Factors:
        """(n, r, features): the Jacobian."""
        if not self._by_sample:
            try:
                F = self._at_once(chunk)
            except (RuntimeError, ValueError):
                self._by_sample = True
        if self._by_sample:
            F = self._one_by_one(chunk)
        roots, parameters = chunk.network.roots, chunk.network.parameters
        if roots:
            whole = [roots[name].expand_as(parameters[name]).flatten() for name in self.names]
            F = F * torch.cat(whole)
        return (F if self.full else F.flatten(1)[:, None],)

    def _at_once(self, chunk: Chunk) -> Tensor:
        network, chosen = chunk.network, list(chunk.chosen)
        fixed = {name: value.detach() for name, value in network.parameters.items()}

        def outputs(parameters: dict[str, Tensor], *sample: Tensor) -> Tensor:
            samples = mapped(lambda leaf: leaf[None], with_leaves(chunk.samples, sample))
            return network(samples, {**fixed, **parameters})[0, chosen]

        wanted = {name: fixed[name] for name in self.names}
        parts = leaves(chunk.samples)
        over = (None, *[0] * len(parts))
        with sdpa_kernel(SDPBackend.MATH):  # the others have no rules for vmap
            jacobian = vmap(jacrev(outputs), in_dims=over)(wanted, *parts)
        shape = len(parts[0]), len(chosen), -1
        return torch.cat([jacobian[name].reshape(shape) for name in self.names], 2)

    def _one_by_one(self, chunk: Chunk) -> Tensor:
        network, rows = chunk.network, []
        wanted = [network.parameters[name] for name in self.names]
        for i in range(count(chunk.samples)):
            with torch.enable_grad():
                outputs = network(take(chunk.samples, slice(i, i + 1)))[0].unbind()
            for k in chunk.chosen:
                found = torch.autograd.grad(
                    outputs[k], wanted, retain_graph=True, materialize_grads=True
                )
                rows.append(torch.cat([each.flatten() for each in found]))
        return torch.stack(rows).view(count(chunk.samples), len(chunk.chosen), -1)


class PairTerm(Term):
    """Products of inputs times products of the outputs' gradients, position by position.

    Args:
        layer: Whose.
        full: Whether each output has rows of its own.
        live: Positions of a sample that its outputs depend on, to be the only ones kept: which
            they are may differ between samples, but not how many. None for all.
    """

    def __init__(self, layer: Layer, full: bool, live: int | None = None) -> None:
        self.layer, self.full, self.live = layer, full, live

    def factors(self, chunk: Chunk) -> Factors:
        """(n, positions, inputs) a, and (n, r, positions, results) g."""
        g, at = chunk.kept[self.layer], None
        if self.live is not None:
            living = alive(g, (1, 3))
            if int(living.sum(1).max()) > self.live:
                raise MoreLivePositionsError
            at = _first(living, self.live)
            g = g.take_along_dim(at[:, None, :, None], 2)
        a = chunk.scaled_inputs(self.layer, at)[:, 0]
        return a, g if self.full else g.transpose(1, 2).flatten(2)[:, None]

    def places(self, factors: Factors, outputs: int) -> dict[Layer, Tensor]:
        """That of g, unless it is to be packed."""
        if self.live is not None:
            return {}
        n, r, p, _ = factors[1].shape
        return {
            self.layer: factors[1].view(n, r, p, outputs // r, -1).transpose(2, 3).flatten(1, 2)
        }

    def reduce(self, chunk: Chunk, g: Tensor, place: Tensor | None) -> Tensor:
        """(n, positions, results) one output's g."""
        return g[:, 0].mT

    @staticmethod
    def products(left: Tensor, right: Tensor) -> Tensor:
        """(positions, positions) of a, or of several samples' in a row."""
        return left @ right.mT

    def triangle_rows(self, n: int) -> int:
        """So few that little is computed twice: products of pairs are large even of few samples."""
        return -(-n // TRIANGLE_STEPS)

    def add(self, K: Tensor, left: Factors, right: Factors, scale: float) -> None:
        """A few rows at a time, so that the products stay in cache."""
        a, g = right[0].flatten(0, 1), right[1].flatten(0, 2)
        _, r, p, _ = right[1].shape
        numbers = PAIR_NUMBERS.get(K.device.type, PAIR_NUMBERS_ELSEWHERE)
        rows = max(1, numbers // (r * p * len(g)))
        for start in range(0, len(left[0]), rows):
            part = slice(start, start + rows)
            inputs = self.products(left[0][part].flatten(0, 1), a)
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
        return (self.products(a, a)[:, None] * (g @ g.mT)).sum((2, 3))

    def features(self, factors: Factors) -> Tensor:
        """The gradients after all."""
        a, g = factors
        return (g.mT @ a[:, None]).flatten(1)


class TokenPairTerm(PairTerm):
    """The same for an embedding: a token's product with itself is 1, with any other 0."""

    def __init__(
        self, layer: Layer, full: bool, vocabulary: int, outputs: int, live: int | None = None
    ) -> None:
        super().__init__(layer, full, live)
        self.vocabulary, self.outputs = vocabulary, outputs

    @staticmethod
    def products(left: Tensor, right: Tensor) -> Tensor:
        """Whether they are the same."""
        return left == right.mT

    def features(self, factors: Factors) -> Tensor:
        """The gradients after all, in the order of `TokenGradientTerm`'s: output by output."""
        a, g = factors
        F = _by_token(a, g[:, 0], self.vocabulary)
        return F.view(len(a), self.vocabulary, self.outputs, -1).transpose(1, 2).flatten(1)


class ReadoutTerm(Term):
    """The last layer: every output has the same inputs, and a row of weights of its own."""

    def __init__(self, layer: Layer, full: bool, outputs: int) -> None:
        self.layer, self.full, self.outputs = layer, full, outputs

    def factors(self, chunk: Chunk) -> Factors:
        """(n, inputs) a."""
        return (chunk.scaled_inputs(self.layer)[:, 0, 0],)

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
