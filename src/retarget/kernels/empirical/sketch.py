"""A random projection of gradients that keeps their inner products on average."""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from retarget.kernels.empirical.passes import Chunk
from retarget.kernels.empirical.plan import Plan
from retarget.kernels.empirical.terms import Factors, GradientTerm, Term


class SketchTerm(GradientTerm):
    r"""All terms' features, projected to m numbers and added up.

    The features of each term are dealt out at random into m heaps of equal size, and a heap is
    added up with random signs: $s_b = \sum_{d \in b} \pm F_d$. As the signs are independent,
    $E[s \cdot s'] = F \cdot F'$, and the variance is at most
    $(\lVert F \rVert^2 \lVert F' \rVert^2 + (F \cdot F')^2) / m$, as for Gaussian projections, but
    at the price of reading the features once.

    Args:
        terms: What to project.
        size: m.
        seed: Of the random draws.
    """

    def __init__(self, terms: tuple[Term, ...], size: int, seed: int) -> None:
        self.terms, self.size, self.seed = terms, size, seed

    def factors(self, chunk: Chunk) -> Factors:
        """(n, 1, m)."""
        total = chunk.samples.new_zeros((len(chunk.samples), 1, self.size))
        for place, term in enumerate(self.terms):
            features = term.features(term.factors(chunk))
            index, signs = _draw(features.shape[1], self.size, self.seed, place, features.device)
            heaps = features[:, index] * signs.to(features.dtype)
            total += heaps.view(len(heaps), 1, self.size, -1).sum(3)
        return (total,)


def sketched(plan: Plan, size: int, seed: int) -> Plan:
    """The plan whose only factors are the projected features."""
    gradients = sum(each.nbytes for each in plan.network.parameters.values()) * len(plan.chosen)
    example = plan.example[0][0].new_empty((1, 1, size))
    return replace(
        plan,
        terms=(SketchTerm(plan.terms, size, seed),),
        example=((example,),),
        working=plan.working + 3 * gradients,
    )


@lru_cache(maxsize=64)
def _draw(
    width: int, size: int, seed: int, place: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Which feature lies where in the heaps, in a row, and its sign: 0 where there is none.

    Drawn on the CPU, from the seed and the term's place alone: all calls and devices agree.
    """
    random = torch.Generator().manual_seed(seed + 1_000_003 * place)
    heap = -(-width // size)
    dealt = torch.randperm(heap * size, generator=random)
    signs = 2 * torch.randint(0, 2, (heap * size,), generator=random) - 1
    signs = (signs * (dealt < width)).to(torch.int8)
    return dealt.clamp(max=width - 1).to(device), signs.to(device)
