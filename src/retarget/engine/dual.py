"""The online learner in dual form: a sum over the samples that it has learned, for any kernel."""

from typing import Any, Self

from torch import Tensor

from retarget.arrays import GrowingRows, shallow
from retarget.engine.lesson import Lesson, Past, products
from retarget.engine.response import has_memory, step_response
from retarget.errors import InvalidInputError
from retarget.learners import SGD
from retarget.state_files import require_shape

EVERY = slice(None)


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

    def carry_over(self, lesson: Lesson) -> None:
        """Lets the steps of a window pass, without their own errors."""
        if self.velocity is None or not len(self):
            return
        weights = self.weights.rows
        velocity = self.velocity.rows
        (ww, wv), (vw, vv) = lesson.memory.transfer.tolist()
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
        self.shares = Shares(has_memory(learner), capacity)

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
            for number, share in enumerate(self.shares.both):
                state[f"share{number}"] = share.rows
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; call it on a new learner."""
        self.steps = int(state["steps"])
        if "share0" in state:
            shape = require_shape("share0", state["share0"], None, None).shape
            for number, share in enumerate(self.shares.both):
                name = f"share{number}"
                share.append(require_shape(name, state[name], *shape))
        if not -(-len(self) // self.learner.batch_size) <= self.steps <= len(self):
            raise InvalidInputError(
                f"steps is {self.steps} after {len(self)} samples; expected at most one step per "
                f"sample, of at most {self.learner.batch_size} samples each"
            )

    def lesson(self, K_rows: Tensor, beside: Past | None = None) -> Lesson:
        """The next samples, given their kernel (m, n + m) against the past and themselves.

        `beside` is the `past` of another learner of the same kind, which meets the same samples.
        """
        n = len(self)
        memory = step_response(self.learner, self.steps, K_rows.shape[0])
        past, other = products(K_rows[:, :n], self.past, beside)
        return Lesson(n, K_rows[:, n:], past, memory, self.steps, past_beside=other)

    def queries(self, K_rows: Tensor, lesson: Lesson) -> Lesson:
        """Other samples, met along the same steps as a lesson, of which they are not a part.

        `K_rows` (q, n + m) is their kernel against the past and the window's own samples.
        """
        (past,) = products(K_rows[:, : lesson.start], self.past)
        return Lesson(lesson.start, K_rows[:, lesson.start :], past, lesson.memory)

    @property
    def past(self) -> Past | None:
        """(n, c) the samples' shares in the weights and in the velocity; None before the first."""
        return self.shares.past()

    def fork(self) -> Self:
        """Returns an independent learner that continues from here."""
        fork = shallow(self)
        fork.shares = self.shares.fork()
        return fork

    def learn(self, lesson: Lesson, errors: Tensor) -> None:
        """Takes the steps of a window, on which it made these errors."""
        self.shares.carry_over(lesson)
        self.shares.append(lesson.deposits(errors))
        self.steps += lesson.memory.deposit.shape[1]
