r"""The steps that settle a learner on a given function, block after block (Eq. 16, first line).

With the aim $F_n$ for a block, $(\gamma_o I + K_{nn}) A_n = F_n - K_{np} A_p$: whatever the aim
comes from, the learner's function agrees with it on the block once the block is learned.
"""

import numpy as np
import torch
from torch import Tensor

from retarget.errors import NotPositiveDefiniteError
from retarget.theory.cholesky import needed_jitter
from retarget.theory.dual import Window, diagonal_blocks
from retarget.theory.precision import eigenvalue_bound
from retarget.theory.triangular import solve_lower, solve_lower_transposed


class Settling:
    """Finds the errors whose steps settle the learner, each block in one solve.

    Args:
        ridge: The stabiliser gamma_o of Eq. 15.

    Attributes:
        condition: A lower bound on the largest condition number of the blocks so far.
    """

    def __init__(self, ridge: float) -> None:
        self.ridge = ridge
        self.condition = 1.0

    def errors(self, window: Window, aim: Tensor, block_size: int) -> Tensor:
        """Errors whose steps make the learner's function, after each block, `aim` on that block."""
        ends = _block_ends(window, block_size)
        share = _own_share(window, ends)
        cholesky = self._block_factors(window, block_size)
        scaled = _solve_blocks(cholesky, aim - window.inherited(window.memory.coasting_carry[ends]))
        if len(cholesky) > 1:
            # T A = rhs with T block lower triangular: its block rows times the inverses of their
            # diagonal blocks make it unit lower triangular.
            coupling = window.gram.clone()
            if window.memory.responses is not None:
                coupling.mul_(window.spread(window.memory.responses[1][ends])).div_(share)
            diagonal_blocks(coupling, block_size).zero_()
            coupling = _solve_blocks(cholesky, coupling)
            scaled = solve_lower(coupling, scaled, unit_diagonal=True)
        return scaled / share[:, None]

    def alone(self, window: Window, gap: Tensor, block_size: int) -> Tensor:
        """(F_n - Y_n), through C_off of Eq. 17 less its factor: each block for itself."""
        share = _own_share(window, _block_ends(window, block_size))
        errors = _solve_blocks(self._block_factors(window, block_size), gap) / share[:, None]
        coupling = diagonal_blocks(window.coupling, block_size)
        return errors + (coupling @ in_blocks(errors, block_size)).flatten(0, 1)

    def _block_factors(self, window: Window, block_size: int) -> Tensor:
        """(blocks, b, b) Cholesky factors of gamma_o I + K_nn."""
        # column by column, as LAPACK stores it: the factors take the place of the blocks
        gram = diagonal_blocks(window.gram, block_size)
        blocks = gram.mT.clone(memory_format=torch.contiguous_format).mT
        blocks.diagonal(dim1=1, dim2=2).add_(self.ridge)
        largest = eigenvalue_bound(blocks)
        info = torch.empty(len(blocks), dtype=torch.int32, device=blocks.device)
        torch.linalg.cholesky_ex(blocks, out=(blocks, info))
        if info.any():
            bad = int(info.nonzero()[0, 0])
            block = gram[bad].clone()
            block.diagonal().add_(self.ridge)
            deficit, jitter = needed_jitter(block)
            first = window.start + bad * block_size
            raise NotPositiveDefiniteError(
                f"the kernel of the block of samples {first} to {first + block_size - 1} is not "
                f"positive definite in {str(blocks.dtype).removeprefix('torch.')}: its smallest "
                f"eigenvalue is {-deficit:.3g} with ridge = {self.ridge:g}, as when samples repeat "
                f"or features are fewer than block_size; ridge = {self.ridge + jitter:.4g} would "
                f"do (jitter {jitter:.3g}), or use a smaller block_size",
                deficit=deficit,
                jitter=jitter,
            )
        pivots = blocks.diagonal(dim1=1, dim2=2).amin(1)
        condition = float((largest / pivots**2).max())
        self.condition = max(self.condition, condition)
        return blocks


def in_blocks(rows: Tensor, size: int) -> Tensor:
    """(m/size, size, ...) rows grouped into blocks."""
    return rows.reshape(-1, size, *rows.shape[1:])


def _block_ends(window: Window, block_size: int) -> np.ndarray:
    """(m,) the step of the window before which each sample's block has been learned."""
    last = (np.arange(len(window.gram)) // block_size + 1) * block_size - 1
    ends: np.ndarray = window.memory.step_of[last] + 1
    return ends


def _solve_blocks(cholesky: Tensor, rhs: Tensor) -> Tensor:
    """Block-diagonal solve, from the blocks' Cholesky factors."""
    blocks = in_blocks(rhs, cholesky.shape[-1])
    # two triangular solves, since torch.cholesky_solve copies the factors
    return solve_lower_transposed(cholesky, solve_lower(cholesky, blocks)).flatten(0, 1)


def _own_share(window: Window, ends: np.ndarray) -> Tensor:
    """(m,) how much of a sample's error is in the function after its block."""
    return window.gram.new_tensor(window.memory.coasting_share(ends))
