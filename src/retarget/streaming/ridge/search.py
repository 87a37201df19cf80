r"""Generalized cross-validation of every ridge at once, from the spectrum of C.

With eigenvalues $\lambda_i$ of C, and $p_i$ the squared length of B along eigenvector i, the
residual sum of squares and the trace of the hat matrix are, for any ridge,

    RSS(gamma) = s - sum_i p_i (lambda_i + 2 gamma) / (lambda_i + gamma)^2
    tr H(gamma) = sum_i lambda_i / (lambda_i + gamma) .

A sample with several rows $\phi_v$ is left out with all of them. What its own targets contribute to
its mean prediction is then, on average over the samples, tr (C + gamma I)^-1 P / n, where

    P = sum over samples of u u^T,   u = sum_v phi_v / sqrt(V) .

P is C for equal rows, and C / V for rows that have nothing in common.

Few features, or few samples, allow all eigenvalues. Otherwise a space of few dimensions stands for
them: the eigenvalues of C in it, weighted by what they hold of B and of a few random vectors of
signs, whose mean stands for the trace (Hutchinson, 1990; Golub and Meurant, 2010). A Krylov space
of C is most exact for large eigenvalues, which shows where to look. One of (C + g I)^-1 is exact
for the ridge g, and nearly so around it. With W the solution at g, $w_i$ its squared length along
eigenvector i, and l the eigenvalue,

    RSS(gamma) = RSS(g) + (gamma - g) sum_i w_i (gamma (l + g) + g (l + gamma)) / (l + gamma)^2 .

No digits are lost to the difference of large numbers here, so a few steps are enough. The spaces
need not be exact: they are made in float32, at half the price, but what is read from them is not.
"""

import math
from collections.abc import Callable
from functools import partial
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
# A ridge with a score that is better by this share would be a different choice.
BETTER_SCORE = 0.01
# A pivot below this share of the largest is rounding.
LEAST_PIVOT = 1e-15
# All eigenvalues of C are computed for at most so many features, or rows.
EXACT_FEATURES = 384
FEW_ROWS = 256
# Steps of a Krylov space, of C and of its inverse, and its dimensions at most.
KRYLOV_STEPS = 12
INVERSE_STEPS = 3
MOST_KRYLOV = 512
# Random vectors that stand for a trace: few if few of the samples are spent on fitting features,
# otherwise as many as make its error about this share of it.
FEW_PROBES = 8
PROBES = 64
TRACE_ERROR = 0.004
# An estimate counts if it is more than so many standard errors away from zero.
SURE = 3
# A solution by a factor in float32 is refined at most so many times, to a residual of this share.
REFINEMENTS = 8
SMALL_RESIDUAL = 1e-14


class RidgeProblem(NamedTuple):
    """The sums over a stream, and what cross-validation needs to know besides."""

    C: Tensor  # (m, m)
    B: Tensor  # (m, c)
    power: float  # s, the sum of the targets' squares
    known: float  # a residual below it is lost to cancellation
    weight: float  # N
    samples: float  # as many as would be worth as much with equal weights
    intercept: bool
    probed: Tensor | None  # (m, k) P z for the vectors of `probes`; None if P is C

    def has_many_samples(self) -> bool:
        """Whether only a small share of the samples is spent on fitting the features."""
        return self.samples > 4 * len(self.C)


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


class CrossValidation(NamedTuple):
    """The generalized cross-validation score of a ridge."""

    problem: RidgeProblem
    spectrum: Spectrum
    probes: int = 0  # by which the trace is estimated; 0 if it is exact
    near: tuple[float, float] | None = None  # g and RSS(g), if the spectrum has W

    def residual(self, gamma: float) -> float:
        """RSS / N."""
        nodes, power, _ = self.spectrum
        if self.near is None:
            explained = (power * (nodes + 2 * gamma) / (nodes + gamma).square()).sum()
            total = self.problem.power - float(explained)
        else:
            g, there = self.near
            slopes = (gamma * (nodes + g) + g * (nodes + gamma)) / (nodes + gamma).square()
            total = there + (gamma - g) * float((power * slopes).sum())
        return max(total, self.problem.known) / self.problem.weight

    def score(self, gamma: float) -> float:
        """RSS / N / (1 - tr H / n)^2; the smaller the better.

        Infinite if nothing is left to divide by, or less than the error of an estimate.
        """
        nodes, _, own = self.spectrum
        spent = float((own / (nodes + gamma)).sum()) + self.problem.intercept
        freedom = 1 - spent / self.problem.samples
        # the variance of one probe is at most 2 tr H^2, and tr H^2 is at most tr H
        error = math.sqrt(2 * max(spent, 0) / self.probes) if self.probes else 0
        unclear = freedom <= SURE * error / self.problem.samples
        return math.inf if unclear else self.residual(gamma) / freedom**2


class BestRidge(NamedTuple):
    """What a search has found."""

    power: int  # of STEP
    scores: CrossValidation  # by which it was found
    weights: Tensor | None  # the solution, if it was needed on the way

    @property
    def gamma(self) -> float:
        """The ridge."""
        return STEP**self.power


def best_ridge(problem: RidgeProblem, few: Eigen | None, start: int, lowest: int) -> BestRidge:
    """Returns the ridge with the best score, among powers of STEP.

    Args:
        problem: The sums.
        few: The eigenvectors of C, if they are known.
        start: The power at which the search starts.
        lowest: The least power; below it, rounding decides.
    """
    if few is None and len(problem.C) > EXACT_FEATURES:
        return _search_estimates(problem, start, lowest)
    scores = exact_scores(problem, few)
    best = downhill(scores.score, start, lowest)
    return BestRidge(best, scores, None)


def exact_scores(problem: RidgeProblem, known: Eigen | None = None) -> CrossValidation:
    """The scores by all eigenvalues; zeros are left out, because they change no score."""
    vectors, values = eigen(problem.C) if known is None else known
    power = (vectors.mT @ problem.B).square().sum(1)
    own = values
    if problem.probed is not None:
        z = probes(len(vectors), problem.B)
        products = (vectors.mT @ z) * (vectors.mT @ problem.probed)
        own = products.sum(1) / _traces(z)
    return CrossValidation(problem, Spectrum(values, power, own))


def _search_estimates(problem: RidgeProblem, start: int, lowest: int) -> BestRidge:
    """The same by estimates: rough ones of all scores, then better ones near the best."""
    inverse = Inverse(problem.C)
    many = problem.has_many_samples()
    scores = _rough_scores(problem, inverse)
    best = downhill(scores.score, start, lowest)
    tried = set[int]()
    solved = None
    while best not in tried:  # an estimate is good near the ridge that it is made with
        center = best
        tried.add(center)
        solved = inverse.solved(problem.B, STEP**center)
        if solved is None:
            break
        scores = near = scores_near(problem, STEP**center, *solved)
        around = range(center + 3, max(center - 4, lowest - 1), -1)
        best = min(around, key=lambda each: near.score(STEP**each))
        if near.score(STEP**center) <= (1 + SAME_SCORE) * near.score(STEP**best):
            best = center
        elif many and abs(best - center) < 3:  # with fewer samples, scores are steep
            solved = inverse.solved(problem.B, STEP**best)
            break
    return BestRidge(best, scores, None if solved is None else solved[0])


class Inverse:
    """Solutions with C + gamma I, at half the price: factors in float32, and refinement."""

    def __init__(self, C: Tensor) -> None:
        self.C = C
        self.largest = float(C.diagonal().max())
        self.coarse = torch.div(C, self.largest, out=torch.empty_like(C, dtype=torch.float32))

    def product(self, block: Tensor) -> Tensor:
        """Multiplies by C, in float32."""
        return (self.coarse @ block.float()).to(block) * self.largest

    def solved(self, B: Tensor, gamma: float) -> tuple[Tensor, Callable[[Tensor], Tensor]] | None:
        """Returns W with (C + gamma I) W = B, and a function that roughly solves for others.

        None if C + gamma I is not positive definite.
        """
        for exact in (False, True):  # in float64 only where float32 is too coarse
            matrix = self.C / self.largest if exact else self.coarse.clone()
            matrix.diagonal().add_(gamma / self.largest)
            L, failed = torch.linalg.cholesky_ex(matrix)
            if failed.item():
                continue
            solve = partial(_by_factor, L, self.largest)
            W = solve(B)
            before = float(B.norm())
            for _ in range(REFINEMENTS):
                rest = B - self.C @ W - gamma * W
                W = W + solve(rest)
                left = float(rest.norm())
                # the next one would be smaller by the same factor: what rounding of C W leaves?
                scale = float(B.norm()) + self.largest * float(W.norm())
                if left * left <= SMALL_RESIDUAL * scale * before:
                    return W, solve
                before = left
        return None


def _by_factor(L: Tensor, scale: float, B: Tensor) -> Tensor:
    """(scale L L^T)^-1 B; for few columns, twice as fast as torch.cholesky_solve."""
    inner = torch.linalg.solve_triangular(L, B.to(L) / scale, upper=False)
    result: Tensor = torch.linalg.solve_triangular(L.mT, inner, upper=True).to(B)
    return result


def _rough_scores(problem: RidgeProblem, inverse: Inverse) -> CrossValidation:
    """The scores of all ridges, from products with C: good for large ones."""
    times = inverse.product
    spectrum = _estimated(problem, times, times, problem.B, FEW_PROBES, KRYLOV_STEPS)
    return CrossValidation(problem, spectrum, FEW_PROBES)


def scores_near(
    problem: RidgeProblem, gamma: float, W: Tensor, solve: Callable[[Tensor], Tensor]
) -> CrossValidation:
    """The scores of ridges near this one, from its solution and from a rough inverse."""
    C = problem.C
    B = problem.B
    m = len(problem.C)
    # The error of a trace by k probes is the share sqrt(2 / (k m)) of it.
    number = min(PROBES, max(FEW_PROBES, math.ceil(2 / (TRACE_ERROR**2 * m))))
    if problem.has_many_samples():
        number = FEW_PROBES
    elif problem.samples < 2 * m:  # they are nearly all spent, and what is left is what counts
        number = PROBES
    spectrum = _estimated(problem, lambda block: C @ block, solve, W, number, INVERSE_STEPS)
    # RSS = s - 2 <B, W> + <W, C W>, and C W = B - gamma W
    explained = (B * W).sum() + gamma * W.square().sum()
    there = problem.power - float(explained)
    return CrossValidation(problem, spectrum, number, near=(gamma, there))


def _estimated(
    problem: RidgeProblem,
    product: Callable[[Tensor], Tensor],
    grow: Callable[[Tensor], Tensor],
    start: Tensor,
    number: int,
    steps: int,
) -> Spectrum:
    """The spectrum of C in a small space.

    Args:
        problem: The sums.
        product: Multiplies vectors by C.
        grow: Makes the next vectors of the space from the last ones.
        start: The first vectors of the space, besides the probes; the power is that of these.
        number: How many probes.
        steps: How many times the space grows, if it does not become too large.
    """
    m, c = start.shape
    z = probes(m, start)[:, :number]
    width = c + z.shape[1]
    steps = min(steps, max(2, MOST_KRYLOV // width), max(1, m // width))
    block, R = torch.linalg.qr(torch.cat([start, z], 1))
    basis = block
    images = [product(block)]
    for _ in range(steps - 1):
        block = images[-1] if grow is product else grow(block)
        for _ in range(2):  # again, because rounding is large where little is left
            block = torch.linalg.qr(block - basis @ (basis.mT @ block))[0]
        basis = torch.cat([basis, block], 1)
        images.append(product(block))
    T = basis.mT @ torch.cat(images, 1)
    nodes, vectors = torch.linalg.eigh((T + T.mT) / 2)
    nodes = nodes.clamp(min=0)
    coordinates = vectors[: len(R)].mT @ R
    seen = coordinates[:, c:]
    if problem.probed is None:
        own = seen.square().sum(1) * nodes
    else:
        own = (seen * (vectors.mT @ (basis.mT @ problem.probed[:, :number]))).sum(1)
    return Spectrum(nodes, coordinates[:, :c].square().sum(1), own / _traces(z))


def downhill(score: Callable[[float], float], start: int, lowest: int) -> int:
    """Returns the power of STEP with the best score, going downhill from a start.

    By powers of ten, looking past two worse ones, because a spectrum with gaps makes scores with
    bumps; then by half powers of ten. Of ridges that are as good as each other, the first is kept.
    """
    best = start
    scores = {start: score(STEP**start)}
    for step, patience in ((2, 2), (1, 0)):
        for direction in (-step, step):
            if direction > 0 and best < start and patience:
                break  # smaller ridges were better: larger ones need not be tried
            following = best + direction
            passed = 0
            while passed <= patience and lowest <= following <= start + MOST_STEPS:
                if following not in scores:
                    scores[following] = score(STEP**following)
                if scores[following] < (1 - SAME_SCORE) * scores[best]:
                    best = following
                    passed = -1
                following += direction
                passed += 1
    return best


def eigen(C: Tensor) -> Eigen:
    """Returns the eigenvectors of a symmetric matrix."""
    values, vectors = torch.linalg.eigh(C)
    largest = max(values.abs().tolist(), default=0.0)  # of none, if all features were equal
    kept = values > LEAST_PIVOT * largest
    return Eigen(vectors[:, kept], values[kept])


def low_rank_eigen(C: Tensor, rank: int) -> Eigen:
    """The same for a matrix of at most this rank, by pivoted Cholesky, in O(m rank^2)."""
    rest = C.diagonal().clone()
    L = C.new_zeros(len(C), rank)
    least = LEAST_PIVOT * float(rest.max())
    columns = 0
    while columns < rank:
        pivot = int(rest.argmax())
        size = float(rest[pivot])
        if size <= least:
            break
        column = C[pivot] - L[:, :columns] @ L[pivot, :columns]
        column /= math.sqrt(size)
        rest -= column.square()
        rest[pivot] = 0
        L[:, columns] = column
        columns += 1
    Q, R = torch.linalg.qr(L[:, :columns])  # C = Q (R R^T) Q^T
    inside = eigen(R @ R.mT)
    return Eigen(Q @ inside.vectors, inside.values)


def are_few(rows: int, m: int) -> bool:
    """Whether C is a sum over so few rows that its rank is worth using."""
    return m > EXACT_FEATURES and rows <= min(FEW_ROWS, m // 2)


def probes(m: int, like: Tensor) -> Tensor:
    """Vectors z (m, k) whose mean stands for a trace: the axes for few features, else signs.

    They are the same for the same m, so that the same sums always give the same ridge.
    """
    if m <= max(EXACT_FEATURES, PROBES):
        return torch.eye(m, dtype=like.dtype, device=like.device)
    random = torch.Generator().manual_seed(0)
    return (2 * torch.randint(0, 2, (m, PROBES), generator=random, device="cpu") - 1).to(like)


def _traces(z: Tensor) -> float:
    """The number of traces that the sum over these probes is worth."""
    return float(z.square().sum()) / len(z)
