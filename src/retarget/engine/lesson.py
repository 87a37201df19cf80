r"""What an online learner meets: the next samples, and what the past predicts for them.

All of online learning is one triangular system. With $E_t = y_t - f_t(x_t)$ the error on sample
$t$ before it is learned and $c(t, i)$ the optimizer's memory (see `response`),

$$ E_t + \sum_{i<t} c(t, i)\, k(x_t, x_i)\, E_i = y_t , $$

where $i < t$ means: in an earlier mini-batch. (With cross-entropy the first $E_t$ stands beside
$\sigma$ of the sum: still triangular, and solved mini-batch after mini-batch.) The system is solved
by substitution, a window of samples at a time; a `Lesson` is the system of one window. The past
before the window enters through one matrix product, because the memory of a linear optimizer is two
numbers per sample: its share in the weights and in the velocity.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import shallow
from retarget.engine.losses import Loss, outputs
from retarget.engine.response import KEPT_LENGTH, StepResponse
from retarget.engine.triangular import solve_lower, solve_lower_at_rates
from retarget.locks import cached_property


class Past(NamedTuple):
    """What the past contributes: through the weights and, if the optimizer has one, the velocity.

    Of a learner it is numbers for each sample that it has learned (n, c), or for each feature
    (features, c); of a lesson, what these predict for the samples (m, c).
    """

    weights: Tensor
    velocity: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The weights and, if there is one, the velocity."""
        return (self.weights,) if self.velocity is None else (self.weights, self.velocity)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Past":
        """Applies a linear function to both."""
        return Past(*map(function, self.tensors))

    def after(self, transfer: np.ndarray) -> "Past":
        """The past after steps with this transfer, if no errors are made on the way."""
        if self.velocity is None:  # plain SGD: the past keeps all of its effect
            return self
        (ww, wv), (vw, vv) = transfer.tolist()
        weights = ww * self.weights + wv * self.velocity
        return Past(weights, vw * self.weights + vv * self.velocity)


class Lesson:
    """The next few samples of the stream, as the learner meets them.

    Args:
        start: Position of the first of them in the stream.
        gram: (m, m) their kernel among themselves.
        past: (m, c) the kernel against the past times its weights, and its velocity; None if there
            is no past.
        memory: The optimizer's memory over the window.
        first_step: The optimizer's step that the first of them belongs to; None if all steps
            before were of whole mini-batches.
        place: What else the learner needs to learn them: their features, or their positions.
        past_beside: The same as `past`, for another learner of the same kind.
    """

    def __init__(
        self,
        start: int,
        gram: Tensor,
        past: Past | None,
        memory: StepResponse,
        first_step: int | None = None,
        place: Any = None,
        past_beside: Past | None = None,
    ):
        self.start = start
        self.first_step = first_step
        self.place = place
        self.gram = gram
        self.memory = memory
        self._past = past
        self._past_beside = past_beside

    @cached_property
    def shares(self) -> Past:
        """(m, 1) what each error leaves in the weights (and in the velocity) after the window."""
        return _shares(self.memory, self.gram.dtype, self.gram.device)

    @cached_property
    def coupling(self) -> Tensor:
        """(m, m) strictly lower: what the window's earlier errors add to its later predictions."""
        gram = self.gram
        if gram.shape[0] <= KEPT_LENGTH:
            return gram * _kept_reach(self.memory, gram.dtype, gram.device)
        return _reach(self.memory, gram.dtype, gram.device).mul_(gram)  # no second (m, m) matrix

    def spread(self, response: np.ndarray) -> Tensor:
        """(m, m) one value per sample, from one value per step (m, steps)."""
        return _spread(response, self.memory, self.gram.dtype, self.gram.device)

    def inherited(self, carry: np.ndarray, steps: np.ndarray) -> Tensor:
        """(m, c) what the past before the window predicts, each sample before a step (m,)."""
        if self._past is None:
            return self.gram.new_zeros(())
        weights, velocity = self._past
        if velocity is None:  # plain SGD: the past keeps all of its effect
            return weights
        shares = self.gram.new_tensor(carry[steps])
        return shares[:, [0]] * weights + shares[:, [1]] * velocity

    def inherited_after(self) -> Past | None:
        """(m, c) the samples times the past's weights, and velocity, after the window."""
        return None if self._past is None else self._past.after(self.memory.transfer)

    def beside(self) -> "Lesson":
        """The same samples, as the other learner meets them."""
        twin = shallow(self)
        twin._past = self._past_beside
        return twin

    def errors(
        self, targets: Tensor, loss: Loss = "squared", start: Tensor | None = None
    ) -> Tensor:
        """(m, c) the error on each sample before it is learned, for these targets.

        `start` (m, c) is what is left of the starting function at each sample; None for zero.
        """
        if loss != "squared":
            return self.errors_in_order(targets, lambda rows, f: outputs(f, loss), start)
        rhs = targets if start is None else targets - start
        rhs = rhs - self._inherited_on_the_way()
        return solve_lower(self.coupling, rhs, unit_diagonal=True)

    def errors_at_rates(self, targets: Tensor, rates: Tensor) -> Tensor:
        """(m, rates, c) the same for learners that differ in their rate, if they have no memory.

        The lesson is that of a learner at rate 1 with the outputs of all of them, side by side.
        """
        m, outputs = targets.shape
        inherited = self._inherited_on_the_way().expand(m, len(rates) * outputs)
        rhs = targets[:, None] - inherited.reshape(m, len(rates), outputs)
        return solve_lower_at_rates(self.coupling, rates, rhs)

    def errors_in_order(
        self,
        targets: Tensor,
        outputs: Callable[[slice, Tensor], Tensor],
        start: Tensor | None = None,
    ) -> Tensor:
        """(m, c) the same, mini-batch by mini-batch, for any function `outputs(rows, logits)`."""
        inherited = self._inherited_on_the_way()
        coupling = self.coupling
        logits = inherited.expand_as(targets) if start is None else inherited + start
        errors = torch.empty_like(targets)
        batch = int((self.memory.step_of == 0).sum())
        for first in range(0, len(targets), batch):
            rows = slice(first, min(first + batch, len(targets)))
            f = logits[rows]
            if first:
                f = torch.addmm(f, coupling[rows, :first], errors[:first])
            errors[rows] = targets[rows] - outputs(rows, f)
        return errors

    def targets(
        self, errors: Tensor, loss: Loss = "squared", start: Tensor | None = None
    ) -> Tensor:
        """(m, c) the targets on which the learner makes these errors; the inverse of `errors`."""
        columns = errors.mT.contiguous().mT  # column by column: a third of the time
        logits = torch.addmm(self._inherited_on_the_way(), self.coupling, columns)
        return errors + outputs(logits if start is None else logits + start, loss)

    def predictions_before(self, steps: np.ndarray, errors: Tensor) -> Tensor:
        """(m, c) the prediction for each sample before a step (m,) of the window.

        The samples are the window's own, or others that are met along it. What is predicted for
        them depends on the errors (n, c) of the rows whose steps come before.
        """
        memory = self.memory
        if memory.responses is None:
            rates = self.gram.new_tensor(memory.deposit[0, memory.step_of])
            earlier = torch.from_numpy(memory.step_of < steps[:, None])
            coupling = self.gram * earlier * rates
        else:
            coupling = self.spread(memory.responses[0][steps]).mul_(self.gram)
        return self.inherited(memory.carry, steps) + coupling @ errors

    def _inherited_on_the_way(self) -> Tensor:
        return self.inherited(self.memory.carry, self.memory.step_of)

    def deposits(self, errors: Tensor) -> Past:
        """(m, c) what these errors leave in the weights and in the velocity after the window."""
        return self.shares.map(lambda share: share * errors)


@lru_cache(maxsize=8)
def _shares(memory: StepResponse, dtype: torch.dtype, device: torch.device) -> Past:
    by_sample = memory.deposit[:, memory.step_of, None]
    return Past(*torch.as_tensor(by_sample, dtype=dtype, device=device))


def _spread(
    response: np.ndarray, memory: StepResponse, dtype: torch.dtype, device: torch.device
) -> Tensor:
    by_step = torch.as_tensor(response, dtype=dtype, device=device)
    return by_step[:, torch.from_numpy(memory.step_of)]


def _reach(memory: StepResponse, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(m, m) strictly lower: the weight c(t, i) of each earlier error when a sample is met."""
    if memory.responses is not None:
        return _spread(memory.responses[0][memory.step_of], memory, dtype, device)
    m = len(memory.step_of)
    batch = int((memory.step_of == 0).sum())
    reach = _shares(memory, dtype, device).weights.mT.expand(m, m).tril(-1)
    diagonal_blocks(reach, batch).zero_()
    whole = m - m % batch
    reach[whole:, whole:].zero_()
    return reach


_kept_reach = lru_cache(maxsize=8)(_reach)  # at a constant rate, for windows of equal length


def products(rows: Tensor, *pasts: Past | None) -> list[Past | None]:
    """The products of `rows` with the tensors of every past, reading the rows only once."""
    factors = [tensor for past in pasts if past is not None for tensor in past.tensors]
    if not factors:
        return [None for _ in pasts]
    together = torch.cat([factor.mT for factor in factors]).mT  # column by column: half the time
    widths = [factor.shape[1] for factor in factors]
    parts = iter((rows @ together).split_with_sizes(widths, 1))
    return [None if past is None else past.map(lambda _: next(parts)) for past in pasts]


def diagonal_blocks(M: Tensor, size: int) -> Tensor:
    """(m/size, size, size) the whole diagonal blocks of a square matrix, as a view."""
    rows, columns = M.stride()
    count = M.shape[0] // size
    stride = (size * (rows + columns), rows, columns)
    return M.as_strided((count, size, size), stride, M.storage_offset())
