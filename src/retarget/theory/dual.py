r"""The online learner: in dual form, as a sum over the samples it has learned, or as weights.

All of online learning is one triangular system. With $E_t = y_t - f_t(x_t)$ the error on sample
$t$ before it is learned and $c(t, i)$ the optimizer's memory (see `response`),

$$ E_t + \sum_{i<t} c(t, i)\, k(x_t, x_i)\, E_i = y_t , $$

where $i < t$ means: in an earlier mini-batch. (With cross-entropy the first $E_t$ stands beside
$\sigma$ of the sum: still triangular, and solved mini-batch after mini-batch.) The system is solved
by substitution, a window of samples at a time. The past before the window enters through one
matrix product, because the memory of a linear optimizer is two numbers per sample: its share in the
weights and in the velocity.

With explicit features, $k(x, x') = \phi(x)^\top \phi(x')$, the past is the weights themselves (and
the velocity): nothing else is kept, every window costs the same, and the errors are the same.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import GrowingRows, shallow
from retarget.errors import InvalidInputError
from retarget.learners import SGD
from retarget.locks import cached_property
from retarget.state_files import require_shape
from retarget.theory.cholesky import solve_lower
from retarget.theory.losses import Loss, outputs
from retarget.theory.response import KEPT_LENGTH, StepResponse, step_response

EVERY = slice(None)


class Past(NamedTuple):
    """What the past contributes: through the weights and, if the optimizer has one, the velocity.

    Of a learner it is numbers for each sample that it has learned (n, c), or for each feature
    (features, c); of a window, what these predict for its samples (m, c).
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


class Window:
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

    def beside(self) -> "Window":
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

    def errors_in_order(
        self,
        targets: Tensor,
        outputs: Callable[[slice, Tensor], Tensor],
        start: Tensor | None = None,
    ) -> Tensor:
        """(m, c) the same, mini-batch by mini-batch, for any function `outputs(rows, logits)`."""
        inherited, coupling = self._inherited_on_the_way(), self.coupling
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
    m, batch = len(memory.step_of), int((memory.step_of == 0).sum())
    reach = _shares(memory, dtype, device).weights.mT.expand(m, m).tril(-1)
    diagonal_blocks(reach, batch).zero_()
    whole = m - m % batch
    reach[whole:, whole:].zero_()
    return reach


_kept_reach = lru_cache(maxsize=8)(_reach)  # at a constant rate, for windows of equal length


class Shares:
    """A row for each sample so far: its part in the weights and, with a memory, in the velocity.

    Args:
        has_memory: Whether the optimizer keeps a velocity.
        capacity: The number of rows to make room for at once.
    """

    def __init__(self, has_memory: bool, capacity: int = 0) -> None:
        self.weights = GrowingRows(capacity)
        self.velocity = GrowingRows(capacity) if has_memory else None

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def both(self) -> tuple[GrowingRows, ...]:
        """The rows for the weights and, if there is one, for the velocity."""
        return (self.weights,) if self.velocity is None else (self.weights, self.velocity)

    def past(self, rows: slice = EVERY) -> Past | None:
        """These rows of the samples so far; None before the first."""
        return Past(*(share.rows[rows] for share in self.both)) if len(self) else None

    def append(self, new: Past) -> None:
        """Appends the rows of the next samples."""
        for share, rows in zip(self.both, new.tensors, strict=True):
            share.append(rows)

    def carry_over(self, window: Window) -> None:
        """Lets the steps of a window pass, without their own errors."""
        if self.velocity is None or not len(self):
            return
        weights, velocity = self.weights.rows, self.velocity.rows
        (ww, wv), (vw, vv) = window.memory.transfer.tolist()
        aged = ww * weights + wv * velocity
        velocity.mul_(vv).add_(weights, alpha=vw)
        weights.copy_(aged)

    def fork(self) -> "Shares":
        """Returns independent rows that continue from here."""
        fork = shallow(self)
        # with a memory, the rows of the past change with every step
        fork.weights = self.weights.fork() if self.velocity is None else self.weights.clone()
        fork.velocity = None if self.velocity is None else self.velocity.clone()
        return fork

    def clone(self) -> "Shares":
        """Returns independent rows that may be changed."""
        clone = shallow(self)
        clone.weights = self.weights.clone()
        clone.velocity = None if self.velocity is None else self.velocity.clone()
        return clone


class DualLearner:
    """The state of an online learner after the samples so far, for any kernel."""

    def __init__(self, learner: SGD, capacity: int = 0) -> None:
        self.learner = learner
        self.steps = 0
        self.shares = Shares(learner.has_memory, capacity)

    def __len__(self) -> int:
        return len(self.shares)

    @property
    def coefficients(self) -> Tensor:
        """(n, c) dual coefficients: the prediction for a query is its kernel row times these."""
        return self.shares.weights.rows

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        state: dict[str, Any] = {"steps": self.steps}
        if len(self):
            for part, share in enumerate(self.shares.both):
                state[f"share{part}"] = share.rows
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; call it on a new learner."""
        self.steps = int(state["steps"])
        if "share0" in state:
            shape = require_shape("share0", state["share0"], None, None).shape
            for part, share in enumerate(self.shares.both):
                share.append(require_shape(f"share{part}", state[f"share{part}"], *shape))
        if not -(-len(self) // self.learner.batch_size) <= self.steps <= len(self):
            raise InvalidInputError(
                f"steps is {self.steps} after {len(self)} samples; expected at most one step per "
                f"sample, of at most {self.learner.batch_size} samples each"
            )

    def window(self, K_rows: Tensor, beside: Past | None = None) -> Window:
        """The next samples, given their kernel (m, n + m) against the past and themselves.

        `beside` is the `past` of another learner of the same kind, which meets the same samples.
        """
        n = len(self)
        memory = step_response(self.learner, self.steps, K_rows.shape[0])
        past, other = products(K_rows[:, :n], self.past, beside)
        return Window(n, K_rows[:, n:], past, memory, self.steps, past_beside=other)

    def queries(self, K_rows: Tensor, window: Window) -> Window:
        """Other samples, met along the same steps as a window, of which they are not a part.

        `K_rows` (q, n + m) is their kernel against the past and the window's own samples.
        """
        (past,) = products(K_rows[:, : window.start], self.past)
        return Window(window.start, K_rows[:, window.start :], past, window.memory)

    @property
    def past(self) -> Past | None:
        """(n, c) the samples' shares in the weights and in the velocity; None before the first."""
        return self.shares.past()

    def fork(self) -> Self:
        """Returns an independent learner that continues from here."""
        fork = shallow(self)
        fork.shares = self.shares.fork()
        return fork

    def learn(self, window: Window, errors: Tensor) -> None:
        """Takes the steps of the window, on which it made these errors."""
        self.shares.carry_over(window)
        self.shares.append(window.deposits(errors))
        self.steps += window.memory.deposit.shape[1]


class FeatureRows:
    """The features (m, features) of a few consecutive samples."""

    def __init__(self, features: Tensor) -> None:
        self.features = features

    @cached_property
    def gram(self) -> Tensor:
        """(m, m) their kernel among themselves."""
        return self.features @ self.features.mT


class PrimalLearner:
    """The state of an online learner after the samples so far, in feature space."""

    def __init__(self, learner: SGD) -> None:
        self.learner = learner
        self.steps = 0
        self.past: Past | None = None  # (features, c); None before the first sample
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def coefficients(self) -> Tensor:
        """(features, c) the weights: the prediction for a query is its features times these."""
        if self.past is None:
            raise InvalidInputError("nothing has been learned yet")
        return self.past.weights

    def window(self, rows: FeatureRows, beside: Past | None = None) -> Window:
        """The next samples; see `DualLearner`."""
        features = rows.features
        memory = step_response(self.learner, self.steps, len(features))
        past, other = products(features, self.past, beside)
        return Window(self._size, rows.gram, past, memory, self.steps, features, other)

    def queries(self, rows: FeatureRows, window: Window) -> Window:
        """Other samples, met along the same steps as a window; see `DualLearner`."""
        (past,) = products(rows.features, self.past)
        return Window(window.start, rows.features @ window.place.mT, past, window.memory)

    def fork(self) -> Self:
        """Returns an independent learner that continues from here."""
        return shallow(self)  # learning makes new weights and does not change the old ones

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        tensors = () if self.past is None else self.past.tensors
        parts = {f"part{i}": part for i, part in enumerate(tensors)}
        return {"steps": self.steps, "size": self._size} | parts

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; call it on a new learner."""
        self.steps = int(state["steps"])
        self._size = int(state["size"])
        if not self.learner.steps(self._size) <= self.steps <= self._size:
            raise InvalidInputError(
                f"steps is {self.steps} after {self._size} samples; expected at most one step per "
                f"sample, of at most {self.learner.batch_size} samples each"
            )
        if self._size:
            shape = require_shape("part0", state["part0"], None, None).shape
            names = ["part0", "part1"] if self.learner.has_memory else ["part0"]
            self.past = Past(*(require_shape(name, state[name], *shape) for name in names))

    def learn(self, window: Window, errors: Tensor) -> None:
        """Takes the steps of the window, on which it made these errors."""
        new = window.deposits(errors).map(lambda deposit: window.place.mT @ deposit)
        if self.past is not None:
            count = len(new.tensors)
            transfer = window.memory.transfer[:count, :count].tolist()
            for part, shares in zip(new.tensors, transfer, strict=True):
                for share, old in zip(shares, self.past.tensors, strict=True):
                    part.add_(old, alpha=share)
        self.past = new
        self._size += len(errors)
        self.steps += window.memory.deposit.shape[1]


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
