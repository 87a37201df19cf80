r"""Online learners that follow a stream, window by window, each taught in its own way.

    Online          on the stream's targets             finds the errors
    Exact           so that it makes given errors       finds the targets
    Iterative       to agree with an offline learner    finds both, block by block (Eq. 16)
    ShiftFollower   on the stream's targets             and what it predicts for all the past

All take the same steps: what the window is to the learner, what it is taught, the watch, what is
noted down, the learner's own steps. `follow` passes a stream to several of them, so that the kernel
of a window is computed once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from retarget.arrays import require_no_overflow, shallow
from retarget.engine.dual import DualLearner, Shares
from retarget.engine.lesson import Lesson
from retarget.engine.losses import Loss
from retarget.engine.primal import PrimalLearner
from retarget.engine.response import has_memory
from retarget.engine.settling import Settling
from retarget.engine.stability import GrowthWatch
from retarget.engine.stream import FirstBlock, Window
from retarget.journal import Kept
from retarget.state_files import part_of

Parts = Literal["both", "online", "offline"]
OnlineLearner = DualLearner | PrimalLearner


class Steps(NamedTuple):
    """What a learner does in a window.

    Attributes:
        targets: (m, c) what it is trained on.
        errors: (m, c) its error on each sample before it is learned.
    """

    targets: Tensor
    errors: Tensor


class Follower(ABC):
    """An online learner that follows a stream; `teach` says what it is trained on.

    Args:
        learner: The learner, which may have learned before.
        watch: What warns if it diverges; None if nothing does.
        loss: The learner's loss. With the squared error it learns the targets without the starting
            function, and the targets that it is found to need have that added again.

    Attributes:
        targets: (n, c) what it was trained on, of the samples so far; None if they are not kept.
        errors: (n, c) its error on each sample before it was learned; None if they are not kept.
        failure: Why it learns no more, if something went wrong; `follow` then leaves it out.
    """

    targets: Tensor | None = None
    errors: Tensor | None = None
    failure: str | None = None

    def __init__(
        self, learner: OnlineLearner, watch: GrowthWatch | None = None, loss: Loss = "squared"
    ) -> None:
        self.learner = learner
        self.watch = watch
        self.loss = loss

    def __len__(self) -> int:
        return len(self.learner)

    def learn(self, window: Window) -> Steps:
        """Learns the samples of a window."""
        start = window.start if self.loss == "squared" else None
        if start is not None:
            window = window._replace(targets=window.targets - start, start=None)
        watch = self.watch
        lesson = self.learner.lesson(window.panel, None if watch is None else watch.riding)
        steps = self.teach(window, lesson)
        if self.failure is not None:
            return steps
        if watch is not None:
            watch.follow(lesson, steps.targets, steps.errors)
        self.note(window, lesson, steps)
        self.learner.learn(lesson, steps.errors)
        if start is not None:
            steps = steps._replace(targets=steps.targets + start)
        if self.targets is not None:
            self.targets[window.samples] = steps.targets
        if self.errors is not None:
            self.errors[window.samples] = steps.errors
        return steps

    @abstractmethod
    def teach(self, window: Window, lesson: Lesson) -> Steps:
        """What the learner does in this window; may set `failure` to stop it before."""

    def note(self, window: Window, lesson: Lesson, steps: Steps) -> None:  # noqa: B027
        """Called with what it is about to do, for followers that keep more of it."""

    def state_dict(self) -> dict[str, Any]:
        """Returns what the samples so far have changed, beside what is kept of each of them.

        A watch is not part of it: none is needed where a pass may be interrupted.
        """
        learner = {f"learner.{name}": value for name, value in self.learner.state_dict().items()}
        return learner | {"failure": self.failure}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; call it on a new follower."""
        self.learner.load_state_dict(part_of(state, "learner"))
        self.failure = state["failure"]

    def fork(self, gram: Callable[[slice], Tensor]) -> Self:
        """Returns an independent follower that continues from here.

        `gram` returns the kernel of a range of the stream that the fork follows.
        """
        fork = shallow(self)
        fork.learner = self.learner.fork()
        fork.watch = None if self.watch is None else self.watch.fork(gram)
        return fork


class Following(Kept, Protocol):
    """What can follow a stream."""

    failure: str | None

    def learn(self, window: Window) -> Any:
        """Learns the samples of a window."""


def follow(windows: Iterable[Window], followers: Sequence[Following]) -> None:
    """Passes over a stream once; a follower that fails is left out from then on."""
    for window in windows:
        for follower in followers:
            if follower.failure is None:
                follower.learn(window)


class Online(Follower):
    """A learner that is trained on the stream's own targets.

    With `errors` (n, c) the errors are kept there.
    """

    def __init__(
        self,
        learner: OnlineLearner,
        watch: GrowthWatch | None = None,
        loss: Loss = "squared",
        errors: Tensor | None = None,
    ) -> None:
        super().__init__(learner, watch, loss)
        self.errors = errors

    def teach(self, window: Window, lesson: Lesson) -> Steps:
        """Finds the errors that it makes."""
        return Steps(window.targets, lesson.errors(window.targets, self.loss, window.start))


class SideBySide:
    """Learners that differ in their rate and have no memory, as the outputs of one at rate 1.

    An error that is made at the rate eta moves the weights as eta times this error does at the rate
    1. So the kernel of a window, and what the past predicts, are computed once for all rates.

    Args:
        learner: A learner at rate 1, before its first sample.
        rates: (rates,) the rates.
        note: Called with each window and the errors on it (m, rates, c).
    """

    failure: str | None = None

    def __init__(
        self, learner: OnlineLearner, rates: Tensor, note: Callable[[Window, Tensor], None]
    ) -> None:
        if has_memory(learner.learner) or learner.learner.lr != 1.0:
            raise ValueError(f"expected rate 1 and no memory, got {learner.learner}")
        self.learner = learner
        self.rates = rates
        self._note = note

    def learn(self, window: Window) -> None:
        """Learns the samples of a window at every rate."""
        lesson = self.learner.lesson(window.panel)
        errors = lesson.errors_at_rates(window.targets, self.rates)
        self._note(window, errors)
        self.learner.learn(lesson, (self.rates[:, None] * errors).flatten(1))

    def state_dict(self) -> dict[str, Any]:
        """Returns the learner's state."""
        return self.learner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; call it on new learners."""
        self.learner.load_state_dict(state)


class Exact(Follower):
    """A learner that makes given errors (n, c), on targets that are found for it and kept.

    They are kept in `targets`, if that is given.
    """

    targets: Tensor

    def __init__(
        self,
        learner: OnlineLearner,
        errors: Tensor,
        watch: GrowthWatch | None = None,
        loss: Loss = "squared",
        targets: Tensor | None = None,
    ) -> None:
        super().__init__(learner, watch, loss)
        self.targets = torch.empty_like(errors) if targets is None else targets
        self._wanted = errors

    def teach(self, window: Window, lesson: Lesson) -> Steps:
        """Finds the targets on which it makes them."""
        errors = self._wanted[window.rows]
        return Steps(lesson.targets(errors, self.loss, window.start), errors)


class ShiftFollower(Online):
    """A learner of which is followed what it predicts for all samples that it has learned.

    Attributes:
        values: The kernel of these samples times their shares in the weights (and the velocity):
            the values at the samples of the functions that these represent.
    """

    learner: DualLearner
    watch: GrowthWatch

    def __init__(self, learner: DualLearner, watch: GrowthWatch, loss: Loss = "squared") -> None:
        super().__init__(learner, watch, loss)
        self.values = Shares(has_memory(learner.learner))

    def note(self, window: Window, lesson: Lesson, steps: Steps) -> None:
        """Moves the values by the new errors times the kernel (Eq. 11).

        New samples start at their prediction and move by the same rule.
        """
        n = len(self)
        deposits = lesson.deposits(steps.errors)
        inherited = lesson.inherited_after()
        predicted = deposits.map(torch.zeros_like) if inherited is None else inherited
        self.values.carry_over(lesson)
        for values, prediction, deposit in zip(
            self.values.both, predicted.tensors, deposits.tensors, strict=True
        ):
            if n:
                values.rows.addmm_(window.panel[:, :n].mT, deposit)
            values.append(torch.addmm(prediction, window.panel[:, n:], deposit))
            require_no_overflow(values.rows)

    def fork(self, gram: Callable[[slice], Tensor]) -> Self:
        """Returns an independent follower that continues from here."""
        fork = super().fork(gram)
        fork.values = self.values.clone()
        return fork


class OfflineFollower(Protocol):
    """An offline learner that follows a stream."""

    def learn(self, window: Window) -> Tensor:
        """(m, c) its prediction for each new block, once it has learned that block."""


class Iterative(Follower):
    """A learner that is led to an offline learner's predictions, block by block (Prop. 4.2).

    Args:
        learner: The learner.
        offline: The offline learner; None to lead it to the targets themselves.
        ridge: The stabilizer of Eq. 15.
        watch: What warns if it diverges.
        loss: The loss of both learners.
        parts: Which halves of Eq. 16 are used.
        first_block: `"plain"` leaves the first block's targets as they are.
        targets: (n, c) where the targets are kept; None if they are not.
    """

    def __init__(
        self,
        learner: OnlineLearner,
        offline: OfflineFollower | None,
        ridge: float,
        watch: GrowthWatch | None = None,
        loss: Loss = "squared",
        parts: Parts = "both",
        first_block: FirstBlock = "corrected",
        targets: Tensor | None = None,
    ) -> None:
        super().__init__(learner, watch, loss)
        self.offline = offline
        self.settling = Settling(ridge)
        self.parts = parts
        self.first_block = first_block
        self.targets = targets

    def teach(self, window: Window, lesson: Lesson) -> Steps:
        """Finds the targets, and the errors on them, that settle it on the offline learner."""
        Y = window.targets
        aim = Y  # that of the first half of Eq. 16 alone, instead of F_n
        if self.offline is not None:
            aim = self.offline.learn(window)
        if lesson.start == 0 and self.first_block == "plain":
            return Steps(Y, lesson.errors(Y, self.loss, window.start))
        if self.parts == "offline":
            targets = Y + self.settling.alone(lesson, aim - Y, window.block_size)
            return Steps(targets, lesson.errors(targets))
        # F_n is a function of the kernel's space, Y_n in general is not
        in_range = self.parts == "both"
        errors = self.settling.errors(lesson, aim, window.block_size, in_range)
        return Steps(lesson.targets(errors, self.loss, window.start), errors)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state; that of the offline learner is not part of it."""
        return super().state_dict() | {"condition": self.settling.condition}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; call it on a new follower."""
        super().load_state_dict(state)
        self.settling.condition = float(state["condition"])

    def fork(self, gram: Callable[[slice], Tensor]) -> Self:
        """Returns an independent follower that continues from here."""
        fork = super().fork(gram)
        fork.settling = shallow(self.settling)
        return fork
