r"""The random projection of gradients to m numbers, which names and shapes of parameters determine.

The numbers of a parameter's gradients, those of all outputs, are put in a fixed order and cut into
runs of m. Each run is laid around a ring of m buckets, from a random bucket on, with random signs;
and a bucket is added up: $s_b = \sum_{d \in b} \pm F_d$. The projection is the sum over all
parameters. As the signs are independent, $E[s \cdot s'] = F \cdot F'$. Two numbers of one run
never meet, and two of different runs share a bucket with probability 1/m, so that the variance is
at most $(\lVert F \rVert^2 \lVert F' \rVert^2 + (F \cdot F')^2) / m$, as for Gaussian
projections. But each number is read only once, and in the order in which it lies in memory: random
places for single numbers would take several times as long.

The order begins with row k of output k's gradient, because a last layer has no others. So its
weight adds no error of its own if all outputs have at most m inputs together, and another parameter
adds none if it has at most m numbers for all outputs together.

Places and signs depend on the seed and on the parameter's name and shape, and on nothing else: not
on how a network uses the parameter, how its gradients are computed, or what is in a batch.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from retarget.kernels.empirical.recording import Chunk
from retarget.kernels.empirical.terms import Factors, FeatureTerm, PairTerm, Term
from retarget.samples import count

# Numbers of gradients that are written out at a time: few enough to stay in a CPU's cache.
BLOCK = {"cpu": 1 << 19}
BLOCK_ELSEWHERE = 1 << 26


@dataclass(frozen=True)
class Drawn:
    """What is random about one parameter.

    Attributes:
        starts: The bucket that each run of m numbers begins at.
        signs: (numbers,) of all outputs together, in the order of the projection.
    """

    starts: tuple[int, ...]
    signs: Tensor


class Projection:
    """A random linear map from gradients to so many numbers.

    Args:
        size: The number of buckets, m.
        seed: Seed of the draw.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed

    def __deepcopy__(self, memo: object) -> "Projection":
        """Itself, because it never changes: copies share what it has drawn."""
        return self

    def drawn(self, name: str, shape: torch.Size, outputs: int) -> Drawn:
        """Draws the starts and the signs of a parameter; on the CPU, so that all devices agree."""
        numbers = outputs * shape.numel()
        digest = hashlib.sha256(f"{self.seed} {name} {tuple(shape)}".encode()).digest()
        random = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))
        bits = torch.randint(0, 2, (numbers,), generator=random, dtype=torch.int8, device="cpu")
        runs = -(-numbers // self.size)
        starts = torch.randint(0, self.size, (runs,), generator=random, device="cpu")
        return Drawn(tuple(starts.tolist()), 2 * bits - 1)

    def table(self, name: str, shape: torch.Size, outputs: range) -> tuple[Tensor, Tensor]:
        """(outputs, numbers) the bucket and the sign of each number of the outputs' gradients."""
        drawn = self.drawn(name, shape, len(outputs))
        starts = torch.tensor(drawn.starts, dtype=torch.int32, device="cpu")
        places = torch.arange(len(drawn.signs), dtype=torch.int32, device="cpu")
        buckets = (starts.repeat_interleave(self.size)[: len(places)] + places) % self.size
        rows = _rows(shape)
        in_order = (rows, len(outputs), shape.numel() // rows)
        own = [(torch.arange(rows, device="cpu") - output) % rows for output in outputs]
        by_output = (
            torch.stack([each.view(in_order)[first, k].flatten() for k, first in enumerate(own)])
            for each in (buckets, drawn.signs)
        )
        return next(by_output), next(by_output)

    def add(self, ring: Tensor, name: str, gradients: Tensor, outputs: range) -> None:
        """Adds the projected gradients (n, outputs, *shape) of a parameter to a ring (n, 2 m).

        The ring is m buckets and then, for runs that begin late, the same buckets once more.
        """
        shape = gradients.shape[2:]
        rows = _rows(shape)
        ordered = _in_order(gradients.reshape(*gradients.shape[:2], rows, -1), outputs)
        self._add_run(ring, self._kept(name, shape, outputs, ring.device), 0, ordered.flatten(1))

    def add_products(
        self,
        ring: Tensor,
        name: str,
        shape: torch.Size,
        left: Tensor,
        right: Tensor,
        outputs: range,
    ) -> None:
        """The same for gradients left @ right, which are never held as a whole.

        They are (n, outputs, rows, positions) and (n, positions, columns).
        """
        drawn = self._kept(name, shape, outputs, ring.device)
        left = _in_order(left, outputs).flatten(1, 2)
        n = len(left)
        columns = right.shape[2]
        room = BLOCK.get(ring.device.type, BLOCK_ELSEWHERE)
        rows = max(1, room // (n * columns))
        for first in range(0, left.shape[1], rows):
            block = torch.bmm(left[:, first : first + rows], right)
            self._add_run(ring, drawn, first * columns, block.flatten(1))

    def _add_run(self, ring: Tensor, drawn: Drawn, first: int, numbers: Tensor) -> None:
        """Adds numbers (n, k), of which the first has this place in the order."""
        signs = drawn.signs[first : first + numbers.shape[1]].to(numbers.dtype)
        done = 0
        while done < numbers.shape[1]:
            run, offset = divmod(first + done, self.size)
            length = min(self.size - offset, numbers.shape[1] - done)
            bucket = drawn.starts[run] + offset
            piece = slice(done, done + length)
            ring[:, bucket : bucket + length].addcmul_(numbers[:, piece], signs[piece])
            done += length

    def _kept(self, name: str, shape: torch.Size, outputs: range, device: torch.device) -> Drawn:
        known = _drawn.setdefault(self, {})
        key = name, shape, len(outputs), device
        if key not in known:
            drawn = self.drawn(name, shape, len(outputs))
            known[key] = Drawn(drawn.starts, drawn.signs.to(device))
        return known[key]


# What is in use: not in the projection, which is saved, copied and compared without it.
_drawn: WeakKeyDictionary[Projection, dict[tuple[str, torch.Size, int, torch.device], Drawn]] = (
    WeakKeyDictionary()
)


def _rows(shape: torch.Size) -> int:
    return max(1, shape[0]) if shape else 1


def _in_order(values: Tensor, outputs: range) -> Tensor:
    """(n, rows, outputs, ...) from (n, outputs, rows, ...): an output's own row is the first."""
    if len(outputs) == 1 and outputs[0] % values.shape[2] == 0:  # as they are
        return values.transpose(1, 2)
    turned = [values[:, k].roll(-output, 1) for k, output in enumerate(outputs)]
    return torch.stack(turned, 2)


@dataclass(frozen=True)
class Arrangement:
    """Where the gradients of parameters lie in a term's features.

    Attributes:
        names: The parameters.
        order: "rows", in each row of the first parameter's matrix one parameter after the other;
            "columns", the same of the transposed matrix; "flat", one parameter after the other.
    """

    names: tuple[str, ...]
    order: Literal["rows", "columns", "flat"]

    def gradients(
        self, features: Tensor, parameters: Mapping[str, Tensor], outputs: int
    ) -> Iterator[tuple[str, Tensor]]:
        """Yields each parameter's name and its gradients (n, outputs, *shape)."""
        own = [parameters[name] for name in self.names]
        rows = 1
        if self.order == "rows":
            rows = min(each.numel() for each in own)  # a bias has one a row
        if self.order == "columns":
            rows = own[0].shape[-1]
        features = features.view(len(features), outputs, rows, -1)
        parts = torch.split(features, [each.numel() // rows for each in own], 3)
        for name, parameter, gradient in zip(self.names, own, parts, strict=True):
            turned = self.order == "columns" and parameter.ndim == 2
            gradient = gradient.mT if turned else gradient
            yield name, gradient.reshape(*gradient.shape[:2], *parameter.shape)


def _is_products(term: Term, arrangement: Arrangement, outputs: int) -> TypeGuard[PairTerm]:
    """Whether each row of the gradients, in the order of the projection, is one of g times a^T."""
    products = isinstance(term, PairTerm) and term.vocabulary is None
    return products and (arrangement.order == "rows" or outputs == 1)


class SketchTerm(FeatureTerm):
    """All terms' gradients, projected and added up."""

    def __init__(
        self,
        terms: tuple[Term, ...],
        arrangements: tuple[Arrangement, ...],
        projection: Projection,
        outputs: range,
    ) -> None:
        self.terms = terms
        self.arrangements = arrangements
        self.projection = projection
        self.outputs = outputs

    def factors(self, chunk: Chunk) -> Factors:
        """(n, 1, m) the projected gradients."""
        size = self.projection.size
        ring = chunk.network.like.new_zeros((count(chunk.samples), 2 * size))
        for term, arrangement in zip(self.terms, self.arrangements, strict=True):
            factors = term.factors(chunk)
            if _is_products(term, arrangement, len(self.outputs)):
                self._add_products(ring, term, arrangement, factors, chunk)
            else:
                features = term.features(factors)
                parameters = chunk.network.parameters
                for name, each in arrangement.gradients(features, parameters, len(self.outputs)):
                    self.projection.add(ring, name, each, self.outputs)
        return ((ring[:, :size] + ring[:, size:])[:, None],)

    def _add_products(
        self, ring: Tensor, term: PairTerm, arrangement: Arrangement, factors: Factors, chunk: Chunk
    ) -> None:
        """A layer's gradients by weight and bias, which are the products g a^T and g 1."""
        a, g = factors
        n = len(a)
        q = len(self.outputs)
        g = g[:, 0].view(n, g.shape[2], q, -1).permute(0, 2, 3, 1)
        weight, bias = term.layer
        if bias is not None:
            shape = chunk.network.parameters[bias].shape
            self.projection.add_products(ring, bias, shape, g, a[..., -1:], self.outputs)
        if weight is None:
            return
        shape = chunk.network.parameters[weight].shape
        inputs = a if bias is None else a[..., :-1]
        if arrangement.order == "rows":
            self.projection.add_products(ring, weight, shape, g, inputs, self.outputs)
            return
        left, right = inputs.mT[:, None], g[:, 0].mT
        self.projection.add_products(ring, weight, shape, left, right, self.outputs)
