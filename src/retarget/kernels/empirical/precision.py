r"""Products of float32 on tensor cores, each number split into two halves.

A number x, scaled so that its row's largest lies under $2^{15}$, is the sum of two numbers of half
precision, hi = half(x) and lo = half(x - hi), up to $2^{-22}$ of x or $2^{-40}$ of the row's
largest. Then $x y = \text{hi hi}' + \text{hi lo}' + \text{lo hi}'$ up to $2^{-22}$ or so, and each
of the three is a product that tensor cores make exactly and add up in float32. They round sums
towards zero, which adds up over many; so hi hi' is made `DEPTH` features at a time, and the rest
of the sum is ordinary float32.
"""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from retarget.kernels.empirical.passes import Chunk
from retarget.kernels.empirical.plan import Plan
from retarget.kernels.empirical.terms import Factors, GradientTerm, Term

LARGEST = 15  # power of two under which a row's largest is scaled; half precision ends at 2^16
DEPTH = 2048


class SplitTerm(GradientTerm):
    """Gradients kept as two halves, which take the memory of one float32, and their scale."""

    def __init__(self, term: GradientTerm) -> None:
        self.term, self.full = term, term.full

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
