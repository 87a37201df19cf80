r"""Generalized cross-validation of every ridge at once, from the spectrum of C.

With eigenvalues $\lambda_i$ of C, and $p_i$ the squared length of B along eigenvector i, the
residual sum of squares and the trace of the hat matrix are, for any ridge,

    RSS(gamma) = s - sum_i p_i (lambda_i + 2 gamma) / (lambda_i + gamma)^2
    tr H(gamma) = sum_i lambda_i / (lambda_i + gamma) .

A sample with several rows $\phi_v$ is left out with all of them. What its own targets contribute to
its mean prediction is then, on average over the samples, tr (C + gamma I)^-1 P / n, where

    P = sum over samples of u u^T,   u = sum_v phi_v / sqrt(V) .

P is C for equal rows, and C / V for rows that have nothing in common.

Few features, or few samples, allow all eigenvalues. Otherwise a block Krylov space stands for them
(Golub and Meurant, 2010): its Ritz values, weighted by what they hold of B and of a few random
vectors of signs, whose mean stands for the trace (Hutchinson, 1990). Built with C it is most exact
for large eigenvalues, which shows where to look. Built with (C + g I)^-1 it is exact for those near
g. With W the solution at g, $w_i$ its squared length along eigenvector i, and l the eigenvalue,

    RSS(gamma) = RSS(g) + (gamma - g) sum_i w_i (gamma (l + g) + g (l + gamma)) / (l + gamma)^2 .

No digits are lost to the difference of large numbers here, so a few steps are enough.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# The ridge is searched among the powers of ten, then between them in steps of sqrt(10).
STEP = math.sqrt(10)
MOST_STEPS = 40
# A score counts as better only if it is better by this share: with as many features as samples
# it changes with the ridge mostly by rounding, which depends on the order of the samples.
SAME_SCORE = 1e-3
# A residual below this share of the targets' sum of squares is lost to cancellation.
LEAST_ERROR = 1e-12
# A pivot below this share of the largest is rounding.
LEAST_PIVOT = 1e-15


class Spectrum(NamedTuple):
    """Eigenvalues of C, or nodes that stand for them."""

    nodes: Tensor  # (d,)
    power: Tensor  # (d,) squared length of B along each, or of W
    own: Tensor  # (d,) what P holds of each; with one row a sample, the eigenvalues themselves


class Eigen(NamedTuple):
    """The eigenvectors (m, r) of C with eigenvalues (r,) above 0; C is zero across them."""

    vectors: Tensor
    values: Tensor

    def solve(self, B: Tensor, gamma: float) -> Tensor:
        """Returns (C + gamma I)^-1 B for a B in the range of C."""
        return self.vectors @ ((self.vectors.mT @ B) / (self.values + gamma)[:, None])

    def spectrum(self, B: Tensor, probes: Tensor, held: Tensor | None) -> Spectrum:
        """Returns the exact spectrum; zeros are left out, because they change no score.

        Args:
            B: (m, c) products of features and targets.
            probes: (m, k) vectors z.
            held: (m, k) the products P z; None if P is C.
        """
        power = (self.vectors.mT @ B).square().sum(1)
        if held is None:
            return Spectrum(self.values, power, self.values)
        products = (self.vectors.mT @ probes) * (self.vectors.mT @ held)
        return Spectrum(self.values, power, products.sum(1) / trace_of(probes))


class CrossValidation(NamedTuple):
    """The generalized cross-validation score of a ridge, and what it needs besides the spectrum."""

    spectrum: Spectrum
    power: float  # s, the sum of the targets' squares
    known: float  # a residual below it is lost to cancellation
    weight: float  # N
    samples: float  # as many as would be worth as much with equal weights
    intercept: bool
    near: tuple[float, float] | None = None  # g and RSS(g), if the spectrum has W

    def residual(self, gamma: float) -> float:
        """RSS / N."""
        nodes, power, _ = self.spectrum
        if self.near is None:
            explained = (power * (nodes + 2 * gamma) / (nodes + gamma).square()).sum()
            total = self.power - float(explained)
        else:
            g, there = self.near
            slopes = (gamma * (nodes + g) + g * (nodes + gamma)) / (nodes + gamma).square()
            total = there + (gamma - g) * float((power * slopes).sum())
        return max(total, self.known) / self.weight

    def score(self, gamma: float) -> float:
        """RSS / N / (1 - tr H / n)^2; the smaller the better, infinite if nothing is left."""
        nodes, _, own = self.spectrum
        spent = float((own / (nodes + gamma)).sum()) + self.intercept
        freedom = 1 - spent / self.samples
        return math.inf if freedom <= 0 else self.residual(gamma) / freedom**2


def downhill(score: Callable[[float], float], start: int, lowest: int) -> int:
    """Returns the exponent of STEP with the best score, going downhill from a start.

    By powers of ten, looking past two worse ones, because a spectrum with gaps makes scores with
    bumps; then by half powers of ten. Of ridges that are as good as each other, the first is kept.
    """
    best, scores = start, {start: score(STEP**start)}
    for step, patience in ((2, 2), (1, 0)):
        for direction in (-step, step):
            if direction > 0 and best < start and patience:
                break  # smaller ridges were better: larger ones need not be tried
            following, passed = best + direction, 0
            while passed <= patience and lowest <= following <= start + MOST_STEPS:
                if following not in scores:
                    scores[following] = score(STEP**following)
                if scores[following] < (1 - SAME_SCORE) * scores[best]:
                    best, passed = following, -1
                following, passed = following + direction, passed + 1
    return best


def eigen(C: Tensor) -> Eigen:
    """Returns the eigenvectors of a matrix of which the lower triangle is filled."""
    values, vectors = torch.linalg.eigh(C)
    kept = values > LEAST_PIVOT * values.abs().max()
    return Eigen(vectors[:, kept], values[kept])


def low_rank_eigen(C: Tensor, rank: int) -> Eigen:
    """The same for a matrix of at most this rank, by pivoted Cholesky, in O(m rank^2)."""
    rest, L = C.diagonal().clone(), C.new_zeros(len(C), rank)
    least, found = LEAST_PIVOT * float(rest.max()), 0
    while found < rank:
        pivot = int(rest.argmax())
        size = float(rest[pivot])
        if size <= least:
            break
        column = torch.cat([C[pivot, :pivot], C[pivot:, pivot]]) - L[:, :found] @ L[pivot, :found]
        column /= math.sqrt(size)
        rest -= column.square()
        rest[pivot] = 0
        L[:, found], found = column, found + 1
    Q, R = torch.linalg.qr(L[:, :found])  # C = Q (R R^T) Q^T
    inside = eigen(R @ R.mT)
    return Eigen(Q @ inside.vectors, inside.values)


def signs(m: int, k: int, like: Tensor) -> Tensor:
    """Vectors z (m, k) for `krylov_spectrum`: the axes if there are m of them, else random signs.

    They are the same for the same sizes, so that the same sums always give the same ridge.
    """
    if k >= m:
        return torch.eye(m, dtype=like.dtype, device=like.device)
    random = torch.Generator().manual_seed(0)
    return (2 * torch.randint(0, 2, (m, k), generator=random) - 1).to(like)


def trace_of(probes: Tensor) -> float:
    """By what a sum over these vectors is to be divided to estimate a trace."""
    return float(probes.square().sum()) / len(probes)


def krylov_spectrum(
    product: Callable[[Tensor], Tensor], B: Tensor, probes: Tensor, held: Tensor | None, steps: int
) -> Spectrum:
    """Estimates the spectrum of a matrix from its products with blocks of vectors.

    The `own` of the result is what `held` has of each node or, without it, the number of
    eigenvalues there.
    """
    c = B.shape[1]
    block, R = torch.linalg.qr(torch.cat([B, probes], 1))
    basis, images = block, [product(block)]
    for _ in range(steps - 1):
        block = images[-1]
        for _ in range(2):  # again, because rounding is large where little is left
            block = torch.linalg.qr(block - basis @ (basis.mT @ block))[0]
        basis = torch.cat([basis, block], 1)
        images.append(product(block))
    T = basis.mT @ torch.cat(images, 1)
    nodes, vectors = torch.linalg.eigh((T + T.mT) / 2)
    found = vectors[: len(R)].mT @ R
    seen = found[:, c:]
    other = seen if held is None else vectors.mT @ (basis.mT @ held)
    own = (seen * other).sum(1) / trace_of(probes)
    return Spectrum(nodes.clamp(min=0), found[:, :c].square().sum(1), own)
