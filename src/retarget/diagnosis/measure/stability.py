"""How near the online learner is to diverging."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from retarget.learners import SGD
from retarget.theory.cholesky import solve_lower, solve_lower_transposed
from retarget.theory.stability import stable_limit
from retarget.theory.stream_kernel import StreamKernel

LARGEST_EIGENPROBLEM = 1024
NON_NORMALITY_ROWS = 2000
ITERATIONS = 200
PRECISION = 1e-4


def largest_rate(kernel: StreamKernel, learner: SGD) -> float:
    """The largest rate at which every step over the stream is stable."""
    curvature = 0.0
    for blocks in kernel.blocks(learner.batch_size):
        scale = 1.0 if learner.reduction == "sum" else 1 / blocks.shape[-1]
        curvature = max(curvature, scale * _largest_eigenvalue(blocks))
    return stable_limit(curvature, learner)


@torch.no_grad()
def non_normality(kernel: StreamKernel, learner: SGD, seed: int) -> float:
    r"""Condition number of the online system $M E = Y$, $M = I + c \circ K^L$.

    All eigenvalues of $M$ are 1: no direction grows by itself, and what exceeds 1 here is what the
    steps do to each other. Its largest and smallest singular values come from power iterations on
    $M^\top M$ and its inverse, by products and triangular solves. Of the first rows of a long
    stream; since the inverse of a leading part is the leading part of the inverse, that is at most
    the condition number of the whole.
    """
    n = len(kernel)
    if n > NON_NORMALITY_ROWS:
        n = max(1, NON_NORMALITY_ROWS // learner.batch_size) * learner.batch_size
        n = min(n, len(kernel))
    M = kernel.learner(learner).window(kernel.panel(slice(0, n))).coupling.clone()
    if not bool(M.isfinite().all()):
        return math.nan
    M.diagonal().fill_(1.0)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(n, 1, generator=generator, dtype=M.dtype)
    largest = _growth(lambda v: M.mT @ (M @ v), start)
    smallest = _growth(lambda v: solve_lower(M, solve_lower_transposed(M, v)), start)
    condition = math.sqrt(largest) * math.sqrt(smallest)
    return condition if math.isfinite(condition) else math.inf


def _growth(step: Callable[[Tensor], Tensor], start: Tensor) -> float:
    """The largest eigenvalue of a symmetric positive map, by power iteration."""
    v, value = start / start.norm(), 0.0
    for _ in range(ITERATIONS):
        v = step(v)
        before, value = value, v.norm().item()
        if not math.isfinite(value) or value == 0:
            return math.inf
        v = v / value
        if abs(value - before) <= PRECISION * value:
            break
    return value


def _largest_eigenvalue(blocks: Tensor) -> float:
    """Of a few symmetric matrices (count, b, b)."""
    if blocks.shape[-1] == 1:
        return blocks.max().item()
    if blocks.shape[-1] <= LARGEST_EIGENPROBLEM:
        return float(torch.linalg.eigvalsh(blocks)[:, -1].max())
    generator = torch.Generator().manual_seed(0)
    start = torch.rand(blocks.shape[-1], 1, generator=generator, dtype=blocks.dtype)
    return max(_growth(block.matmul, start) for block in blocks)
