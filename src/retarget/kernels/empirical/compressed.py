"""Features in another form: as two halves, for tensor cores, or projected to a few numbers."""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from retarget.kernels.empirical.recording import Chunk
from retarget.kernels.empirical.terms import Factors, FeatureTerm, Term
from retarget.samples import count

LARGEST = 15  # power of two under which a row's largest is scaled; half precision ends at 2^16
DEPTH = 2048  # features whose products tensor cores add up at a time


class SplitTerm(FeatureTerm):
    r"""Gradients kept as two halves, which take the memory of one float32, and their scale.

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
        """hi, lo, and what to multiply a row by to have the gradients again."""
        return split(self.term.factors(chunk)[0])

    def add(self, K: Tensor, left: Factors, right: Factors, scale: float) -> None:
        """The products of the halves, but for that of the two small ones."""
        mine = [each.flatten(0, 1) for each in left]
        theirs = [each.flatten(0, 1) for each in right]
        total = split_product((mine[0], mine[1]), (theirs[0], theirs[1]))
        K.add_(total.mul_(mine[2]).mul_(theirs[2].mT), alpha=scale)

    def diagonal(self, factors: Factors) -> Tensor:
        """The squares of the gradients."""
        return _joined(factors).square().sum(2)

    def features(self, factors: Factors) -> Tensor:
        """The gradients, put together again."""
        return _joined(factors).flatten(1)


class SketchTerm(FeatureTerm):
    r"""All terms' features, projected to m numbers and added up.

    The features of each term are assigned at random to m buckets of equal size, and a bucket is
    added up with random signs: $s_b = \sum_{d \in b} \pm F_d$. As the signs are independent,
    $E[s \cdot s'] = F \cdot F'$, and the variance is at most
    $(\lVert F \rVert^2 \lVert F' \rVert^2 + (F \cdot F')^2) / m$, as for Gaussian projections, but
    at the price of reading the features once.

    Args:
        terms: What to project.
        size: m.
        seed: Seed of the random draws.
    """

    def __init__(self, terms: tuple[Term, ...], size: int, seed: int) -> None:
        self.terms, self.size, self.seed = terms, size, seed

    def factors(self, chunk: Chunk) -> Factors:
        """(n, 1, m)."""
        total = chunk.network.like.new_zeros((count(chunk.samples), 1, self.size))
        for place, term in enumerate(self.terms):
            features = term.features(term.factors(chunk))
            index, signs = _draw(features.shape[1], self.size, self.seed, place, features.device)
            # a feature of all samples lies together, as it costs more to find it than to read it
            heaps = functional.embedding_bag(
                index.view(self.size, -1),
                features.mT.contiguous(),
                mode="sum",
                per_sample_weights=signs.to(features.dtype).view(self.size, -1),
            )
            total += heaps.mT[:, None]
        return (total,)


def split(F: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two halves, and the power of two (one a row) that their sum was divided by."""
    exponent = torch.frexp(F.abs().amax(-1, keepdim=True))[1].clamp_(-100, 100) - LARGEST
    scale = torch.ldexp(torch.ones_like(F[..., :1]), exponent)
    scaled = F / scale
    hi = scaled.half()
    return hi, scaled.sub_(hi).half(), scale


def _joined(factors: Factors) -> Tensor:
    hi, lo, scale = factors
    return (hi.float() + lo.float()) * scale


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
    """Whether half precision in and float32 out can be asked for here."""
    if device.type != "cuda":
        return False
    try:
        probe = torch.ones((16, 16), dtype=torch.float16, device=device)
        return torch.mm(probe, probe, out_dtype=torch.float32).dtype == torch.float32
    except (AssertionError, RuntimeError, TypeError):  # no CUDA, no such cores, torch before 2.8
        return False


@lru_cache(maxsize=64)
def _draw(
    width: int, size: int, seed: int, place: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Which feature lies where in the buckets, in a row, and its sign: 0 where there is none.

    Drawn on the CPU, from the seed and the term's place alone: all calls and devices agree.
    """
    random = torch.Generator().manual_seed(seed + 1_000_003 * place)
    heap = -(-width // size)
    dealt = torch.randperm(heap * size, generator=random)
    signs = 2 * torch.randint(0, 2, (heap * size,), generator=random) - 1
    signs = (signs * (dealt < width)).to(torch.int8)
    return dealt.clamp(max=width - 1).to(device), signs.to(device)
