r"""The random projection of gradients to m numbers, which names and shapes of parameters determine.

The numbers of a parameter's gradients, those of all outputs, are put in a fixed order. The first m
of them are assigned at random to m buckets, one to each, then the next m, and so on; and a bucket
is added up with random signs: $s_b = \sum_{d \in b} \pm F_d$. The projection is the sum over all
parameters. As the signs are independent, $E[s \cdot s'] = F \cdot F'$, and the variance is at most
$(\lVert F \rVert^2 \lVert F' \rVert^2 + (F \cdot F')^2) / m$, as for Gaussian projections, but each
number is read only once.

The order begins with row k of output k's gradient, because a last layer has no others. So its
weight adds no error of its own if all outputs have at most m inputs together, and another parameter
adds none if it has at most m numbers for all outputs together.

Buckets and signs depend on the seed and on the parameter's name and shape, and on nothing else: not
on how a network uses the parameter, how its gradients are computed, or what is in a batch.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from retarget.kernels.empirical.recording import Chunk
from retarget.kernels.empirical.terms import Factors, FeatureTerm, Term
from retarget.samples import count

# For each number of a parameter's gradients its bucket and its sign; or the numbers by bucket.
Table = tuple[Tensor, Tensor]
# From so many numbers of a parameter on, a CPU reads them in their order and adds each to its
# bucket; below, it reads bucket by bucket. (Large gradients come a few samples at a time.)
MANY_NUMBERS = 1 << 18


class Projection:
    """A random linear map from gradients to so many numbers.

    Args:
        size: The number of buckets, m.
        seed: Seed of the draw.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed

    def __deepcopy__(self, memo: object) -> "Projection":
        """Itself, because it never changes: copies share the tables that it has drawn."""
        return self

    def table(self, name: str, shape: torch.Size, outputs: range) -> Table:
        """(outputs, numbers) the bucket and the sign of each number of the outputs' gradients.

        Drawn on the CPU, so that all devices agree.
        """
        rows = max(1, shape[0]) if shape else 1
        sizes = rows, len(outputs), shape.numel() // rows
        width = math.prod(sizes)
        digest = hashlib.sha256(f"{self.seed} {name} {tuple(shape)}".encode()).digest()
        random = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))
        signs = 2 * torch.randint(0, 2, (width,), generator=random, device="cpu") - 1
        dealt = [
            torch.randperm(self.size, generator=random, device="cpu", dtype=torch.int32)
            for _ in range(0, max(1, width), self.size)
        ]
        drawn = torch.cat(dealt)[:width].view(sizes), signs.to(torch.int8).view(sizes)
        # an output's own row is the first
        order = [(torch.arange(rows, device="cpu") - output) % rows for output in outputs]
        buckets, signs = (
            torch.stack([each[first, k].flatten() for k, first in enumerate(order)])
            for each in drawn
        )
        return buckets, signs

    def add(self, total: Tensor, name: str, gradients: Tensor, outputs: range) -> None:
        """Adds the projected gradients (n, outputs, *shape) of a parameter to `total` (n, m)."""
        width, device = gradients.shape[1:].numel(), total.device
        many = width >= MANY_NUMBERS and device.type == "cpu"
        by_bucket = width > self.size and not many
        table = self._kept(name, gradients.shape[2:], outputs, device, by_bucket)
        if by_bucket:
            numbers, signs = table
            # one number of all samples is contiguous: it costs more to find than to read
            sums = functional.embedding_bag(
                numbers,
                gradients.movedim(0, -1).reshape(width, -1).contiguous(),
                mode="sum",
                per_sample_weights=signs.to(gradients.dtype),
            )
            total += sums.mT
            return
        buckets, signs = table
        signed = (gradients * signs.view(gradients.shape[1:])).flatten(1)
        if not many:  # each number has a bucket of its own
            total.index_add_(1, buckets.flatten(), signed)
            return
        for row, each in zip(total, signed, strict=True):
            row.index_add_(0, buckets.flatten(), each)

    def _kept(
        self, name: str, shape: torch.Size, outputs: range, device: torch.device, by_bucket: bool
    ) -> Table:
        known = _tables.setdefault(self, {})
        key = name, shape, outputs, device, by_bucket
        if key not in known:
            table = self.table(name, shape, outputs)
            first, second = self._by_bucket(*table) if by_bucket else table
            known[key] = first.to(device), second.to(device)
        return known[key]

    def _by_bucket(self, buckets: Tensor, signs: Tensor) -> Table:
        """(m, places) the numbers in each bucket and their signs, 0 in a place without one."""
        order = buckets.flatten().argsort(stable=True)
        sizes = buckets.flatten().bincount(minlength=self.size)
        places = torch.arange(int(sizes.max()), device="cpu") < sizes[:, None]
        numbers = torch.zeros(places.shape, dtype=torch.int64, device="cpu")
        of_numbers = torch.zeros(places.shape, dtype=torch.int8, device="cpu")
        numbers[places] = order
        of_numbers[places] = signs.flatten()[order]
        return numbers, of_numbers


# Tables in use: not in the projection, which is saved, copied and compared without them.
_tables: WeakKeyDictionary[
    Projection, dict[tuple[str, torch.Size, range, torch.device, bool], Table]
] = WeakKeyDictionary()


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
        for name, parameter, part in zip(self.names, own, parts, strict=True):
            turned = self.order == "columns" and parameter.ndim == 2
            yield name, (part.mT if turned else part).reshape(*part.shape[:2], *parameter.shape)


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
        parameters = chunk.network.parameters
        total = chunk.network.like.new_zeros((count(chunk.samples), self.projection.size))
        for term, arrangement in zip(self.terms, self.arrangements, strict=True):
            features = term.features(term.factors(chunk))
            for name, each in arrangement.gradients(features, parameters, len(self.outputs)):
                self.projection.add(total, name, each, self.outputs)
        return (total[:, None],)
