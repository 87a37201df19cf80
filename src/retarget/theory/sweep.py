r"""The iterative correction, block after block, as one sweep towards the offline predictor.

Proposition 4.2 (Eq. 16-17) says, with $p$ the past and $n$ the new block: let

    F_n = f_off(X_n; X_p+n, Y_p+n)     the offline prediction at the new block, once it has seen it

then the new block's dual coefficients and targets are

    (gamma_o I + K_nn) A_n = F_n - K_np A_p
    Z_n = K_np A_p + (I/eta + K^L_nn) A_n

(the proof is in docs/theory.md, section 4). $F$ comes from the Cholesky factor of the stream so
far, $F_n = Y_n - \gamma L_{nn}^{-\top} \beta_n$ with $\beta = L^{-1} Y$: one factorisation serves
every block.

The same minimisation for a learner with a memory: $A_p$ is then what the past's steps have become
by the end of the block, and $A_n$ what the block's own steps have. A learner with momentum is still
moving at that time, so what is made to agree with the offline learner is the function that it
coasts to. (To pin down where it is, and not where it is going, is possible too, but leaves the
velocity free: with a momentum of 0.9 the targets then grow without bound.)
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, Literal, Self

import torch
from torch import Tensor

from retarget.arrays import GrowingRows, panel_rows
from retarget.errors import InvalidInputError
from retarget.learners import SGD
from retarget.state_files import part_of, require_shape
from retarget.theory.cholesky import (
    GrowingCholesky,
    NewRows,
    solve_lower_transposed,
    warn_if_meaningless,
)
from retarget.theory.dual import DualLearner, Window, diagonal_blocks
from retarget.theory.settling import Settling, in_blocks
from retarget.theory.stability import GrowthWatch

Parts = Literal["both", "online", "offline"]
FirstBlock = Literal["corrected", "plain"]


class Sweep:
    """The state of the iterative correction after the blocks so far.

    Args:
        learner: The online learner that the targets are for.
        gamma: Ridge of the offline learner.
        ridge: The stabiliser gamma_o of Eq. 15.
        parts: Both halves of Eq. 16, or one alone.
        first_block: Whether the first block's targets are corrected too.
        gram: Gives the kernel of a range of the stream, to explain a failure.
        capacity: Expected length of the stream, if known.
        roomy: Whether few samples at a time will come (see GrowingCholesky).
    """

    def __init__(
        self,
        learner: SGD,
        gamma: float,
        ridge: float,
        parts: Parts,
        first_block: FirstBlock,
        gram: Callable[[slice], Tensor],
        capacity: int = 0,
        roomy: bool = False,
    ) -> None:
        self.gamma, self.parts, self.first_block = gamma, parts, first_block
        self.dual = DualLearner(learner, capacity)
        self.factor = GrowingCholesky(gamma, gram, roomy)
        self.beta = GrowingRows(capacity)
        self._settling = Settling(ridge)
        self._watch = GrowthWatch(learner, gram)
        self._warned = False

    def __len__(self) -> int:
        return len(self.dual)

    @property
    def coefficients(self) -> Tensor:
        """(n, c) the learner's dual coefficients."""
        return self.dual.coefficients

    def state_dict(self) -> dict[str, Any]:
        """The state as named tensors and numbers."""
        state: dict[str, Any] = {
            "block_condition": self._settling.condition,
            "warned": self._warned,
        }
        state |= {f"watch.{key}": value for key, value in self._watch.state_dict().items()}
        state |= {f"dual.{key}": value for key, value in self.dual.state_dict().items()}
        state |= {f"factor.{key}": value for key, value in self.factor.state_dict().items()}
        if len(self.beta):
            state["beta"] = self.beta.rows
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state; this sweep must be new."""
        self._settling.condition = float(state["block_condition"])
        self._warned = bool(state["warned"])
        self._watch.load_state_dict(part_of(state, "watch"))
        self.dual.load_state_dict(part_of(state, "dual"))
        self.factor.load_state_dict(part_of(state, "factor"))
        if self.parts != "online" and len(self.dual):
            outputs = self.dual.coefficients.shape[1]
            self.beta.append(require_shape("beta", state["beta"], len(self.dual), outputs))
        lengths = len(self.factor), self._watch.seen
        if lengths != (len(self.beta), len(self.dual)):
            raise InvalidInputError(f"its parts have {lengths} rows, of {len(self.dual)}")

    def fork(self, gram: Callable[[slice], Tensor]) -> Self:
        """A sweep that goes on from here, cheaply; it is void once this one goes on.

        Args:
            gram: Gives the kernel of a range of the stream that the fork follows.
        """
        fork = copy.copy(self)
        fork.dual, fork.beta = self.dual.fork(), self.beta.fork()
        fork.factor, fork._watch = self.factor.fork(gram), self._watch.fork(gram)
        fork._settling = copy.copy(self._settling)
        return fork

    def portions(
        self, stop: int, block_size: int, device: torch.device
    ) -> Iterator[tuple[slice, int]]:
        """The stream from here to `stop`, in row ranges of equal blocks: (rows, block size)."""
        return equal_blocks(len(self), stop, block_size, self.first_block, device)

    def correct(self, K_rows: Tensor, Y: Tensor, block_size: int) -> Tensor:
        """Targets for the next blocks, which the learner then learns.

        Args:
            K_rows: (m, n + m) kernel of the new samples against the past and themselves.
            Y: (m, c) their true targets (less the starting function).
            block_size: Their block size; m is a multiple of it.
        """
        window = self.dual.window(K_rows)
        plain = window.start == 0 and self.first_block == "plain"
        new: NewRows | None = None
        if self.parts == "online":  # the first half of Eq. 16 alone aims at Y_n instead of F_n
            aim = Y
        else:
            new = self.factor.extend(K_rows)
            beta = new.solve(Y, self.beta.rows if len(self.beta) else Y[:0])
            aim = Y - self.gamma * newest_coefficients(new.corner, beta, block_size)

        if plain:
            targets, errors = Y, window.errors(Y)
        else:
            targets, errors = settled(self._settling, window, Y, aim, block_size, self.parts)
        self._watch.follow(K_rows, window, targets, errors)

        if new is not None:
            self.factor.commit(new)
            self.beta.append(beta)
        self.dual.learn(window, errors)
        return targets

    def warn_once(self) -> None:
        """Warns, the first time that it is so, that the targets are not to be relied on."""
        self._watch.warn_once()
        dtype = self.dual.coefficients.dtype
        self._warned = (
            self._warned
            or warn_if_meaningless("the kernel of a block", self._settling.condition, dtype)
            or self.factor.warn_once()
        )


def equal_blocks(
    start: int, stop: int, block_size: int, first_block: FirstBlock, device: torch.device
) -> Iterator[tuple[slice, int]]:
    """The stream from `start` to `stop`, in row ranges of equal blocks: (rows, block size).

    A first block that stays plain, and a last one that is not full, are ranges of their own.
    """
    if start == 0 and first_block == "plain" and stop > 0:
        start = min(block_size, stop)
        yield slice(0, start), start
    whole = stop - (stop - start) % block_size
    stride = max(1, panel_rows(device) // block_size) * block_size
    for begin in range(start, whole, stride):
        yield slice(begin, min(begin + stride, whole)), block_size
    if whole < stop:
        yield slice(whole, stop), stop - whole


def settled(
    settling: Settling, window: Window, Y: Tensor, aim: Tensor, block_size: int, parts: Parts
) -> tuple[Tensor, Tensor]:
    """Targets that settle the learner on the aim, block by block, and the errors made on them."""
    if parts == "offline":
        targets = Y + settling.alone(window, aim - Y, block_size)
        return targets, window.errors(targets)
    # F_n is a function of the kernel's space, Y_n in general is not
    errors = settling.errors(window, aim, block_size, in_range=parts == "both")
    return window.targets(errors), errors


def newest_coefficients(corner: Tensor, beta: Tensor, block_size: int) -> Tensor:
    """L_nn^-T beta_n: the offline coefficients of each block at the time when it is the newest."""
    triangles = diagonal_blocks(corner, block_size)
    blocks = in_blocks(beta, block_size)
    return solve_lower_transposed(triangles, blocks).flatten(0, 1)
