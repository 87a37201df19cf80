r"""The steps that settle a learner on a given function, block after block (Eq. 16, first line).

With the aim $F_n$ for a block, $(\gamma_o I + K_{nn}) A_n = F_n - K_{np} A_p$: whatever the aim is,
the learner's function agrees with it on the block once the block is learned.

If $K_{nn}$ is singular (samples repeat, or there are fewer features than samples) and
$\gamma_o = 0$, the system still has a solution when the aim is a function of the kernel's space on
the samples: $K$ is positive semi-definite, so that $K_{np} A_p$ and $F_n$ lie in the range of
$K_{nn}$. The function is unique; the coefficients of least norm are used, which is
also the limit $\gamma_o \to 0$.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from retarget.engine.condition import (
    SLACK,
    diagonal_roots,
    plenty,
    probed_condition,
    scaled_condition,
)
from retarget.engine.definite import needed_jitter, rounded_up
from retarget.engine.lesson import Lesson, diagonal_blocks
from retarget.engine.probes import random_probes
from retarget.engine.response import StepResponse
from retarget.engine.triangular import solve_lower, solve_lower_right, solve_lower_transposed
from retarget.errors import NotPositiveDefiniteError

# Eigenvalues of a block of b samples below b eps times this and the largest one are rounding: a
# computed Gram matrix has errors of a few eps in every entry.
ROUNDING = 8.0


class Settling:
    """Finds the errors whose steps settle the learner, with the stabilizer gamma_o of Eq. 15.

    Attributes:
        condition: An estimate of the largest condition number of the blocks so far (that of H in
            `cholesky`), or 1 if digits are plenty.
    """

    def __init__(self, ridge: float) -> None:
        self.ridge = ridge
        self.condition = 1.0

    def errors(self, lesson: Lesson, aim: Tensor, block_size: int, in_range: bool = True) -> Tensor:
        """Errors whose steps make the learner's function, after each block, `aim` on that block.

        If the aim is a function of the kernel's space (`in_range`), there is a solution even if
        the kernel of a block is singular.
        """
        ends = _block_ends(lesson.memory, block_size)
        share = _own_share(lesson, ends)
        blocks = self._inverted(lesson, block_size, in_range)
        coupling = lesson.gram
        if lesson.memory.responses is not None:
            coupling = coupling * lesson.spread(lesson.memory.responses[1][ends]) / share.mT
        rest = aim - lesson.inherited(lesson.memory.coasting_carry, ends)
        return blocks.solve_in_turn(coupling, rest) / share

    def alone(self, lesson: Lesson, gap: Tensor, block_size: int) -> Tensor:
        """C_off (f_off - Y_n) of Eq. 16 from the gap F_n - Y_n, for each block separately."""
        share = _own_share(lesson, _block_ends(lesson.memory, block_size))
        blocks = self._inverted(lesson, block_size, in_range=False)
        errors = blocks.solve(gap) / share
        coupling = diagonal_blocks(lesson.coupling, block_size)
        return errors + (coupling @ in_blocks(errors, block_size)).flatten(0, 1)

    def _inverted(self, lesson: Lesson, block_size: int, in_range: bool) -> "BlockInverses":
        """Inverts gamma_o I + K_nn of every block, and records the condition."""
        gram = diagonal_blocks(lesson.gram, block_size)
        inverses = invert_blocks(gram, self.ridge, lesson.start, in_range)
        self.condition = max(self.condition, inverses.condition)
        return inverses


@dataclass
class BlockInverses:
    """The inverses of several blocks gamma_o I + K_nn.

    Attributes:
        cholesky: (blocks, b, b) Cholesky factors; the identity for a singular block.
        condition: An estimate of the largest condition number.
        rounding: Eigenvalues below this part of the largest one are taken for rounding.
        singular: Indices of the blocks whose kernel is singular, if any.
        roots: (singular, b, b) with roots @ roots^T the pseudo-inverse of each of them.
    """

    cholesky: Tensor
    condition: float
    rounding: float
    singular: Tensor | None = None
    roots: Tensor | None = None

    def solve(self, rhs: Tensor) -> Tensor:
        """(m, c) the least-norm solution of every block."""
        blocks = in_blocks(rhs, self.cholesky.shape[-1])
        half = self._rooted(solve_lower(self.cholesky, blocks), transposed=True)
        return self._rooted(solve_lower_transposed(self.cholesky, half)).flatten(0, 1)

    def solve_in_turn(self, coupling: Tensor, rhs: Tensor) -> Tensor:
        r"""(m, c) the same if each block also sees those before it, through `coupling` (m, m).

        With $G G^\top$ the blocks and $N$ the coupling below them, $A = G^{-\top} U$ leaves the
        triangular system $(G + N G^{-\top})\, U = B$. A singular block has its root $R$ for
        $G^{-\top}$, and $R^\top$ is multiplied to its rows.
        """
        count, size, _ = self.cholesky.shape
        if count == 1:
            return self.solve(rhs)
        columns = coupling.reshape(-1, count, size).transpose(0, 1)
        columns = self._rooted(solve_lower_right(self.cholesky, columns).mT, transposed=True).mT
        lower = self._rooted(in_blocks(columns.transpose(0, 1).reshape(coupling.shape), size), True)
        lower = lower.flatten(0, 1)
        diagonal_blocks(lower, size).copy_(self.cholesky)
        U = solve_lower(lower, self._rooted(in_blocks(rhs, size), transposed=True).flatten(0, 1))
        solution = solve_lower_transposed(self.cholesky, in_blocks(U, size))
        return self._rooted(solution).flatten(0, 1)

    def _rooted(self, blocks: Tensor, transposed: bool = False) -> Tensor:
        """The rows of each singular block times its root; the others as they are."""
        if self.singular is None or self.roots is None:
            return blocks
        roots = self.roots.mT if transposed else self.roots
        rooted = blocks.clone()
        rooted[self.singular] = roots @ blocks[self.singular]
        return rooted


def invert_blocks(gram: Tensor, ridge: float, start: int, in_range: bool) -> BlockInverses:
    """Inverts gamma_o I + K_nn of every block of `gram` (blocks, b, b), the first at `start`.

    A block that is singular without a ridge gets a pseudo-inverse if `in_range`, and raises an
    error otherwise.
    """
    rounding = ROUNDING * gram.shape[-1] * torch.finfo(gram.dtype).eps
    factors, failed, probed = _factored(gram, ridge)
    if probed < min(plenty(gram.dtype), 1 / rounding / SLACK) and not failed.any():
        return BlockInverses(factors, 1.0, rounding)
    condition = _conditions(gram, ridge, factors)
    if in_range and ridge == 0:
        singular = failed | ~(condition * rounding < 1)
        return _with_pseudo_inverses(gram, factors, condition, rounding, start, singular)
    _require_definite(gram, ridge, start, failed)
    return BlockInverses(factors, float(condition.max()), rounding)


def _factored(gram: Tensor, ridge: float) -> tuple[Tensor, Tensor, float]:
    """Cholesky factors of the blocks, the identity where it failed; where; a probed condition."""
    # column by column, as LAPACK stores it, so that the factors overwrite the blocks
    factors = gram.mT.clone(memory_format=torch.contiguous_format).mT
    factors.diagonal(dim1=1, dim2=2).add_(ridge)
    info = torch.empty(gram.shape[0], dtype=torch.int32, device=gram.device)
    torch.linalg.cholesky_ex(factors, out=(factors, info))
    roots = diagonal_roots(gram, ridge)
    probed = probed_condition(solve_lower(factors, roots * random_probes(0, roots)))
    failed = info != 0
    if failed.any():  # the identity of a block that is the whole stream is as large as the kernel
        factors[failed] = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return factors, failed, probed


def _conditions(gram: Tensor, ridge: float, factors: Tensor) -> Tensor:
    """(blocks,) estimates of the condition of H (see `condition`) of each block."""
    roots = diagonal_roots(gram, ridge)
    return scaled_condition(
        torch.where(roots > 0, roots, 1.0),
        lambda rhs: _cholesky_solve(factors, rhs),
        lambda x: gram @ x + ridge * x,
    )


def _with_pseudo_inverses(
    gram: Tensor,
    factors: Tensor,
    condition: Tensor,
    rounding: float,
    start: int,
    singular: Tensor,
) -> BlockInverses:
    """The inverses of blocks without a ridge, of which those in `singular` (blocks,) have none."""
    if not singular.any():
        return BlockInverses(factors, float(condition.max()), rounding)
    eigenvalues, vectors = torch.linalg.eigh(gram[singular])
    indefinite = singular.clone()
    indefinite[singular] = eigenvalues[:, 0] < -rounding * eigenvalues[:, -1].abs()
    _require_definite(gram, 0.0, start, indefinite)
    kept = torch.where(eigenvalues > rounding * eigenvalues[:, -1:], eigenvalues, torch.inf)
    condition[singular] = (eigenvalues[:, -1] / kept.amin(1)).clamp(min=1.0)
    factors[singular] = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    roots = vectors * kept.rsqrt()[:, None, :]
    indices = singular.nonzero()[:, 0]
    return BlockInverses(factors, float(condition.max()), rounding, indices, roots)


def _require_definite(gram: Tensor, ridge: float, start: int, failed: Tensor) -> None:
    """Raises an error for the first block that failed, with a ridge that is large enough."""
    if not failed.any():
        return
    bad = int(failed.nonzero()[0, 0])
    size = gram.shape[-1]
    block = gram[bad].clone()
    first = start + bad * size
    block.diagonal().add_(ridge)
    deficit, jitter = needed_jitter(block)
    raise NotPositiveDefiniteError(
        f"the kernel of the block of samples {first} to {first + size - 1} is not positive "
        f"definite in {str(gram.dtype).removeprefix('torch.')}: its smallest eigenvalue is "
        f"{-deficit:.3g} with ridge = {ridge:g}, as when samples repeat or there are fewer "
        f"features than samples; ridge = {rounded_up(ridge + jitter):g} would do (jitter "
        f"{jitter:.3g}), or use a smaller block_size",
        deficit=deficit,
        jitter=jitter,
    )


def in_blocks(rows: Tensor, size: int) -> Tensor:
    """(m/size, size, ...) rows grouped into blocks."""
    return rows.reshape(-1, size, *rows.shape[1:])


def _cholesky_solve(factors: Tensor, rhs: Tensor) -> Tensor:
    # two triangular solves, since torch.cholesky_solve copies the factors
    return solve_lower_transposed(factors, solve_lower(factors, rhs))


@lru_cache(maxsize=8)
def _block_ends(memory: StepResponse, block_size: int) -> np.ndarray:
    """(m,) the step of the window before which each sample's block has been learned."""
    last = (np.arange(len(memory.step_of)) // block_size + 1) * block_size - 1
    ends: np.ndarray = memory.step_of[last] + 1
    return ends


def _own_share(lesson: Lesson, ends: np.ndarray) -> Tensor:
    """(m, 1) how much of a sample's error is in the function after its block."""
    if lesson.memory.responses is None:
        return lesson.shares.weights
    return lesson.gram.new_tensor(lesson.memory.responses[1][ends, lesson.memory.step_of, None])
