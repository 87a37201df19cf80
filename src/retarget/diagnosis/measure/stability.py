"""How close an online learner is to diverging: its largest stable rate, its condition number."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from retarget.engine.stability import stable_limit
from retarget.engine.stream_kernel import StreamKernel
from retarget.engine.triangular import solve_lower, solve_lower_transposed
from retarget.journal import KeptTensors
from retarget.learners import SGD
from retarget.settings import in_plain_torch

LARGEST_EIGENPROBLEM = 1024
NON_NORMALITY_ROWS = 2000
ITERATIONS = 200  # of power iterations
PRECISION = 1e-4  # of their result


def largest_rate(kernel: StreamKernel, learner: SGD) -> float:
    """Returns the largest rate at which every step over the stream is stable."""
    curvature = kernel.Y.new_zeros(())
    for blocks in kernel.blocks(learner.batch_size, [KeptTensors(curvature=curvature)]):
        scale = 1.0 if learner.reduction == "sum" else 1 / blocks.shape[-1]
        curvature.fill_(max(float(curvature), scale * _largest_eigenvalue(blocks)))
    return stable_limit(float(curvature), learner)


@in_plain_torch
def non_normality(kernel: StreamKernel, learner: SGD, seed: int) -> float:
    r"""Returns the condition number of the online system $M E = Y$, $M = I + c \circ K^L$.

    All eigenvalues of $M$ are 1, so no single step amplifies anything; a value above 1 is due to
    the interaction of steps. The largest and smallest singular values come from power iterations
    on $M^\top M$ and its inverse, by products and triangular solves. Only the first rows of a long
    stream are used: the inverse of a leading part is the leading part of the inverse, so the result
    is at most the condition number of the whole.
    """
    n = len(kernel)
    if n > NON_NORMALITY_ROWS:
        n = max(1, NON_NORMALITY_ROWS // learner.batch_size) * learner.batch_size
        n = min(n, len(kernel))
    M = kernel.learner(learner).lesson(kernel.panel(slice(0, n))).coupling.clone()
    if not bool(M.isfinite().all()):
        return math.nan
    M.diagonal().fill_(1.0)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(n, 1, generator=generator, dtype=M.dtype, device="cpu")
    largest = _growth(lambda v: M.mT @ (M @ v), start)
    smallest = _growth(lambda v: solve_lower(M, solve_lower_transposed(M, v)), start)
    condition = math.sqrt(largest) * math.sqrt(smallest)
    return condition if math.isfinite(condition) else math.inf


def _growth(step: Callable[[Tensor], Tensor], start: Tensor) -> float:
    """Returns the largest eigenvalue of a symmetric positive map, by power iteration."""
    v = start / start.norm()
    value = 0.0
    for _ in range(ITERATIONS):
        v = step(v)
        before = value
        value = v.norm().item()
        if not math.isfinite(value) or value == 0:
            return math.inf
        v = v / value
        if abs(value - before) <= PRECISION * value:
            break
    return value


def _largest_eigenvalue(blocks: Tensor) -> float:
    """Returns the largest eigenvalue of a few symmetric matrices (count, b, b)."""
    if blocks.shape[-1] == 1:
        return blocks.max().item()
    if blocks.shape[-1] <= LARGEST_EIGENPROBLEM:
        return float(torch.linalg.eigvalsh(blocks)[:, -1].max())
    generator = torch.Generator().manual_seed(0)
    start = torch.rand(blocks.shape[-1], 1, generator=generator, dtype=blocks.dtype, device="cpu")
    return max(_growth(block.matmul, start) for block in blocks)
