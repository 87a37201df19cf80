r"""A layer's part of the kernel, $\sum_k \langle \nabla f_k(x), \nabla f_k(x') \rangle$.

A layer's weight gradient is $\sum_p g_p a_p^\top$ over the positions p that it is applied at: a is
its input there (for a convolution the patch under the window, with a last 1 for the bias), g the
output's gradient by its result. The same part has several forms:

* gradients: $F = \sum_p g_p a_p^\top$ written out, and $F F'^\top$;
* pairs: $\sum_{pq} (a_p \cdot a'_q)(g_p \cdot g'_q)$, for one or few positions (the a of an
  embedding is the number of the row that was looked up: there the product is 1 or 0);
* read-out: a layer whose result is the output itself has $g_k = e_k$, so that $a \cdot a'$ is all;
* Jacobian: the gradients of parameters without a rule;
* split and sketch: the gradients as two halves, or projected to a few numbers (`projection`).

A form turns a chunk of samples into factors, each with one row per sample, and adds its part to a
block of the kernel from the factors of the block's rows and columns. A sample has r rows in the
kernel: one for each output in the full kernel, else 1, with the outputs among the features.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from retarget.kernels.empirical.recording import Chunk, alike, derivatives, require_alike
from retarget.kernels.empirical.uses import LayerNames
from retarget.samples import count, failure_explained, leaves, mapped, take, with_leaves
from retarget.settings import plain_attention, quiet_batching

Factors = tuple[Tensor, ...]

# Numbers in the two matrices of a product of pairs: they stay in cache, or fill the device.
PAIR_NUMBERS = {"cpu": 1 << 19}
PAIR_NUMBERS_ELSEWHERE = 1 << 27
TRIANGLE_STEPS = 8  # in which products of pairs fill half a symmetric matrix
# Features that a product adds up at a time: for few samples, BLAS adds a long row up one by one.
# With 8 million features, float32 is then off by 2e-3, but in parts (no slower) only by 4e-6.
PRODUCT_DEPTH = 1 << 15
LARGEST = 15  # rows are scaled to stay below 2^LARGEST; half precision ends at 2^16
DEPTH = 2048  # features whose products tensor cores add up at a time


class MoreLivePositionsError(Exception):
    """A sample's outputs depend on more of a layer's positions than its form has room for."""


class Term(ABC):
    """One form of a layer's part of the kernel: its factors, and what they add up to.

    Attributes:
        in_place: Whether its first factor is written where it is to stay.
        stays_in_factors: Whether its features are products that are written a few rows at a time.
    """

    in_place: ClassVar[bool] = False
    stays_in_factors: ClassVar[bool] = False

    @abstractmethod
    def factors(self, chunk: Chunk) -> Factors:
        """The factors of the products, one row per sample."""

    @abstractmethod
    def add(self, K: Tensor, left: Factors, right: Factors, scale: float) -> None:
        """Adds the part between these samples to K (rows * r, columns * r)."""

    @abstractmethod
    def diagonal(self, factors: Factors) -> Tensor:
        """(n, r) each sample's part with itself."""

    @abstractmethod
    def features(self, factors: Factors) -> Tensor:
        """(n, d) whose inner products are the part, for r = 1."""

    def triangle_rows(self, n: int) -> int:
        """How many of n samples to add at a time if half of a symmetric matrix is enough."""
        return n

    def held_beside(self, g: Mapping[LayerNames, Tensor]) -> int:
        """Bytes held for one sample beside its factors, of which `g` has the gradients."""
        return 0


class KeepingTerm(Term):
    """A term of a layer with a rule, which keeps something of the gradients by its results."""

    layer: LayerNames

    @abstractmethod
    def reduce(self, chunk: Chunk, g: Tensor, place: Tensor | None) -> Tensor:
        """(n, ...) what is kept of one output's gradients, in `place` if that is given."""

    @abstractmethod
    def total(self, chunk: Chunk, weights: Tensor) -> Tensor:
        """(features,) the sum of all gradients, with a weight for each sample and output (n, c)."""


class FeatureTerm(Term):
    """A term with explicit features (n, r, features)."""

    def add(self, K: Tensor, left: Factors, right: Factors, scale: float) -> None:
        """Adds the features' inner products, some features at a time to keep digits."""
        F = left[0].flatten(0, 1)
        G = right[0].flatten(0, 1)
        for start in range(0, F.shape[1], PRODUCT_DEPTH):
            some = slice(start, start + PRODUCT_DEPTH)
            K.addmm_(F[:, some], G[:, some].mT, alpha=scale)

    def diagonal(self, factors: Factors) -> Tensor:
        """Sums the squares of each row's features."""
        return factors[0].square().sum(2)

    def features(self, factors: Factors) -> Tensor:
        """The rows of a sample one after the other; there is one if r = 1."""
        return factors[0].flatten(1)


@dataclass(frozen=True)
class GradientTerm(FeatureTerm, KeepingTerm):
    """The gradients of one layer, written out.

    Attributes:
        full: Whether each output has a row of its own.
        live: Positions of a sample that its outputs seem to depend on; None for all.
        root: A preconditioner's roots by feature, which the gradients are multiplied by.
        vocabulary: Rows of an embedding; None for other layers.
    """

    in_place = True

    layer: LayerNames
    full: bool
    live: int | None
    root: Tensor | None
    vocabulary: int | None

    def factors(self, chunk: Chunk) -> Factors:
        """(n, r, features): the gradients."""
        F = chunk.kept[self.layer]
        return (F if self.full else F.flatten(1)[:, None],)

    def total(self, chunk: Chunk, weights: Tensor) -> Tensor:
        """(features,) the sum of all gradients, with a weight for each sample and output (n, c)."""
        return weights.flatten() @ chunk.kept[self.layer].flatten(0, 1)

    def reduce(self, chunk: Chunk, g: Tensor, place: Tensor | None) -> Tensor:
        """(n, features) one output's gradients."""
        a = chunk.scaled_inputs(self.layer)
        if self.live is not None and self.vocabulary is None:
            living = alive(g, (1, 2))
            if int(living.sum(1).max()) <= self.live:
                at = _first(living, self.live)
                a = a.take_along_dim(at[:, None, :, None], 2)
                g = g.take_along_dim(at[:, None, None, :], 3)
        if self.vocabulary is not None:
            F = _by_token(a, g[:, 0].mT, self.vocabulary)
        elif place is None or self.root is not None or g.shape[1] > 1:
            F = (g @ a).flatten(1)
        else:
            torch.bmm(g[:, 0], a[:, 0], out=place.view(len(g), g.shape[2], a.shape[3]))
            return place
        return F if self.root is None else F * self.root


def alive(g: Tensor, over: tuple[int, int]) -> Tensor:
    """(n, positions) where any of the gradients is not zero.

    If only the first token is read out, most positions of a last block have none.
    """
    return (g.amax(over) != 0) | (g.amin(over) != 0)  # several times faster than `any` or a norm


def _first(living: Tensor, count: int) -> Tensor:
    """(n, count) the positions that are alive, padded with others up to `count`."""
    return living.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]


def _by_token(tokens: Tensor, g: Tensor, vocabulary: int) -> Tensor:
    """(n, vocabulary * features) g (n, positions, features), added up by token."""
    n = len(g)
    rows = tokens.reshape(n, -1) + vocabulary * torch.arange(n, device=tokens.device)[:, None]
    summed = g.new_zeros((n * vocabulary, g.shape[2]))
    summed.index_add_(0, rows.flatten(), g.flatten(0, 1))
    return summed.view(n, -1)


class JacobianTerm(FeatureTerm):
    """Gradients of parameters without a rule, however they are used.

    `torch.func` computes them for many samples at once, if it is known to do so correctly.
    Otherwise, or if the module has code that vmap cannot follow (it looks at a mask's numbers,
    say), autograd computes them one by one.
    """

    def __init__(self, names: Sequence[str], full: bool) -> None:
        self.names = tuple(names)
        self.full = full
        self._alone = False

    def factors(self, chunk: Chunk) -> Factors:
        """(n, r, features): the Jacobian."""
        self._alone = self._alone or not chunk.recording.graph.is_known
        if not self._alone:
            try:
                F, outputs = self._at_once(chunk)
            except (AssertionError, IndexError, RuntimeError, TypeError, ValueError):
                self._alone = True
            else:
                self._alone = not alike(outputs, _outputs_of(chunk))
        if self._alone:
            F = self._one_by_one(chunk)
        roots = chunk.network.roots
        parameters = chunk.network.parameters
        if roots:
            whole = [roots[name].expand_as(parameters[name]).flatten() for name in self.names]
            F = F * torch.cat(whole)
        return (F if self.full else F.flatten(1)[:, None],)

    def _at_once(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        network = chunk.network
        chosen = list(chunk.chosen)
        fixed = {name: value.detach() for name, value in network.parameters.items()}

        def outputs(parameters: dict[str, Tensor], *sample: Tensor) -> tuple[Tensor, Tensor]:
            samples = mapped(lambda leaf: leaf[None], with_leaves(chunk.samples, sample))
            result = network(samples, {**fixed, **parameters})[0]
            return result[chosen], result.detach()

        wanted = {name: fixed[name] for name in self.names}
        parts = leaves(chunk.samples)
        with plain_attention, quiet_batching:
            gradients = vmap(jacrev(outputs, has_aux=True), in_dims=(None, *[0] * len(parts)))
            jacobian, predictions = gradients(wanted, *parts)
        shape = len(parts[0]), len(chosen), -1
        return torch.cat([jacobian[name].reshape(shape) for name in self.names], 2), predictions

    def _one_by_one(self, chunk: Chunk) -> Tensor:
        network = chunk.network
        n = count(chunk.samples)
        c = len(chunk.chosen)
        wanted = [network.parameters[name] for name in self.names]
        width = sum(each.numel() for each in wanted)
        F = network.like.new_zeros((n, c, width))
        alone = []
        for i in range(n):
            sample = take(chunk.samples, slice(i, i + 1))
            with torch.enable_grad(), failure_explained(sample):
                outputs = network(sample)
            alone.append(outputs.detach())
            for row, k in enumerate(chunk.chosen if outputs.requires_grad else ()):
                seed = torch.zeros_like(outputs)
                seed[:, k] = 1
                places = torch.split(F[i, row], [each.numel() for each in wanted])
                for place, g in zip(places, derivatives(outputs, wanted, seed), strict=True):
                    if g is not None:
                        place.copy_(g.flatten())
        require_alike(torch.cat(alone), _outputs_of(chunk))
        return F


def _outputs_of(chunk: Chunk) -> Tensor:
    """(n, c) the outputs of the chunk's own samples: the first ones of its pass."""
    return chunk.recording.outputs[: count(chunk.samples)].detach()


@dataclass(frozen=True)
class PairTerm(KeepingTerm):
    """Products of inputs times products of the outputs' gradients, position by position.

    Attributes:
        full: Whether each output has rows of its own.
        live: Positions of a sample that its outputs depend on, to be the only ones kept: samples
            may differ in which they are, but not in how many. None for all.
        vocabulary: Rows of an embedding; None for other layers.
        outputs: The number of outputs that are summed over.
    """

    stays_in_factors = True

    layer: LayerNames
    full: bool
    live: int | None
    vocabulary: int | None
    outputs: int

    def factors(self, chunk: Chunk) -> Factors:
        """(n, positions, inputs) a, and (n, r, positions, results) g."""
        g = chunk.kept[self.layer]
        at = None
        if self.live is not None:
            living = alive(g, (1, 3))
            if int(living.sum(1).max()) > self.live:
                raise MoreLivePositionsError
            at = _first(living, self.live)
            g = g.take_along_dim(at[:, None, :, None], 2)
        a = chunk.scaled_inputs(self.layer, at)[:, 0]
        return a, g if self.full else g.transpose(1, 2).flatten(2)[:, None]

    def total(self, chunk: Chunk, weights: Tensor) -> Tensor:
        """(features,) the sum of all gradients, with a weight for each sample and output (n, c)."""
        use = chunk.recording.layers[self.layer][0]
        g = torch.einsum("nc,ncpo->nop", weights, chunk.kept[self.layer])
        return use.total(chunk.scaled_inputs(self.layer), g[:, None]).flatten()

    def reduce(self, chunk: Chunk, g: Tensor, place: Tensor | None) -> Tensor:
        """(n, positions, results) one output's g."""
        return g[:, 0].mT

    def products(self, left: Tensor, right: Tensor) -> Tensor:
        """(positions, positions) products of a, or of several samples' a one after the other."""
        return left @ right.mT if self.vocabulary is None else left == right.mT

    def held_beside(self, g: Mapping[LayerNames, Tensor]) -> int:
        """All positions of the gradients, from which those that live are taken."""
        return 0 if self.live is None else self.outputs * g[self.layer][:1].nbytes

    def triangle_rows(self, n: int) -> int:
        """Few, so that little is computed twice: even few samples have large products of pairs."""
        return -(-n // TRIANGLE_STEPS)

    def add(self, K: Tensor, left: Factors, right: Factors, scale: float) -> None:
        """A few rows at a time, so that the products stay in cache."""
        a = right[0].flatten(0, 1)
        g = right[1].flatten(0, 2)
        _, r, p, _ = right[1].shape
        numbers = PAIR_NUMBERS.get(K.device.type, PAIR_NUMBERS_ELSEWHERE)
        rows = max(1, numbers // (r * p * len(g)))
        for start in range(0, len(left[0]), rows):
            some = slice(start, start + rows)
            inputs = self.products(left[0][some].flatten(0, 1), a)
            gradients = left[1][some].flatten(0, 2) @ g.mT
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
        """The gradients, in the same order as `GradientTerm`: output by output."""
        a, g = factors
        if self.vocabulary is None:
            return (g.mT @ a[:, None]).flatten(1)
        F = _by_token(a, g[:, 0], self.vocabulary)
        return F.view(len(a), self.vocabulary, self.outputs, -1).transpose(1, 2).flatten(1)


class ReadoutTerm(Term):
    """The last layer: every output has the same inputs, and a row of weights of its own."""

    def __init__(self, layer: LayerNames, full: bool, chosen: range, rows: int) -> None:
        self.layer = layer
        self.full = full
        self.chosen = chosen
        self.rows = rows
        self.outputs = len(chosen)

    def factors(self, chunk: Chunk) -> Factors:
        """(n, inputs) a of the last layer, which is applied once."""
        return (chunk.scaled_inputs(self.layer)[:, 0, 0],)

    def add(self, K: Tensor, left: Factors, right: Factors, scale: float) -> None:
        """Different outputs share no weights, so their kernel is 0."""
        if not self.full:
            K.addmm_(left[0], right[0].mT, alpha=scale * self.outputs)
            return
        block = K.view(len(left[0]), self.outputs, len(right[0]), self.outputs)
        block.diagonal(dim1=1, dim2=3).add_((left[0] @ right[0].mT)[..., None], alpha=scale)

    def diagonal(self, factors: Factors) -> Tensor:
        """The squared length of the inputs, which every output shares."""
        squares = factors[0].square().sum(1, keepdim=True)
        return squares.expand(-1, self.outputs) if self.full else squares * self.outputs

    def features(self, factors: Factors) -> Tensor:
        """The gradients, output by output: the inputs in the output's own row, and 0 elsewhere."""
        a = factors[0]
        F = a.new_zeros((len(a), self.outputs, self.rows, a.shape[1]))
        for place, row in enumerate(self.chosen):
            F[:, place, row] = a
        return F.flatten(1)


class SplitTerm(FeatureTerm):
    r"""Gradients stored as two halves, which take the memory of one float32, and their scale.

    For products of float32 on tensor cores. A number x, scaled so that its row's largest lies under
    $2^{15}$, is the sum of two numbers of half precision, hi = half(x) and lo = half(x - hi), up to
    $2^{-22}$ of x or $2^{-40}$ of the row's largest. Then $x y = \text{hi hi}' + \text{hi lo}' +
    \text{lo hi}'$ up to $2^{-22}$ or so, and each of the three is a product that tensor cores make
    exactly and add up in float32. They round sums towards zero, which adds up over many; so hi hi'
    is made `DEPTH` features at a time, and the rest of the sum is ordinary float32.
    """

    def __init__(self, term: FeatureTerm) -> None:
        self.term = term

    def factors(self, chunk: Chunk) -> Factors:
        """hi, lo, and the factor of each row that restores the gradients."""
        return split(self.term.factors(chunk)[0])

    def add(self, K: Tensor, left: Factors, right: Factors, scale: float) -> None:
        """The products of the halves, except that of the two small ones."""
        mine, theirs = ([each.flatten(0, 1) for each in side] for side in (left, right))
        total = split_product((mine[0], mine[1]), (theirs[0], theirs[1]))
        K.add_(total.mul_(mine[2]).mul_(theirs[2].mT), alpha=scale)

    def diagonal(self, factors: Factors) -> Tensor:
        """The squares of the gradients that the halves add up to."""
        return self.features(factors).view(factors[0].shape).square().sum(2)

    def features(self, factors: Factors) -> Tensor:
        """The gradients, put together again."""
        hi, lo, scale = factors
        return ((hi.float() + lo.float()) * scale).flatten(1)


def split(F: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two halves, and the power of two (one a row) that their sum was divided by."""
    exponent = torch.frexp(F.abs().amax(-1, keepdim=True))[1].clamp_(-100, 100) - LARGEST
    scale = torch.ldexp(torch.ones_like(F[..., :1]), exponent)
    scaled = F / scale
    hi = scaled.half()
    return hi, scaled.sub_(hi).half(), scale


def split_product(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
    """(hi + lo)(hi' + lo')^T in float32, without lo lo'^T."""
    (hi, lo), (their_hi, their_lo) = left, right
    total = _product(hi, their_lo)
    total += _product(lo, their_hi)
    for start in range(0, hi.shape[1], DEPTH):
        features = slice(start, start + DEPTH)
        total += _product(hi[:, features], their_hi[:, features])
    return total


def _product(left: Tensor, right: Tensor) -> Tensor:
    if tensor_cores(left.device):
        return torch.mm(left, right.mT, out_dtype=torch.float32)
    return left.float() @ right.float().mT


@lru_cache(maxsize=8)
def tensor_cores(device: torch.device) -> bool:
    """Whether products of half precision can be summed in float32 here."""
    if device.type != "cuda":
        return False
    try:
        probe = torch.ones((16, 16), dtype=torch.float16, device=device)
        return torch.mm(probe, probe, out_dtype=torch.float32).dtype == torch.float32
    except (AssertionError, RuntimeError):  # no CUDA, or no such cores
        return False
