r"""The online learner with explicit features: its weights.

With $k(x, x') = \phi(x)^\top \phi(x')$, the past is the weights themselves (and the velocity):
nothing else is kept, every window costs the same, and the errors are those of the dual form.
"""

from typing import Any, Self

from torch import Tensor

from retarget.arrays import shallow
from retarget.engine.lesson import Lesson, Past, products
from retarget.engine.response import has_memory, step_response
from retarget.errors import InvalidInputError
from retarget.learners import SGD
from retarget.locks import cached_property
from retarget.state_files import require_shape


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

    def lesson(self, rows: FeatureRows, beside: Past | None = None) -> Lesson:
        """What the next samples are to the learner; `beside` is the past of another one."""
        features = rows.features
        memory = step_response(self.learner, self.steps, len(features))
        past, other = products(features, self.past, beside)
        return Lesson(self._size, rows.gram, past, memory, self.steps, features, other)

    def queries(self, rows: FeatureRows, lesson: Lesson) -> Lesson:
        """Other samples, met along the same steps as a lesson, of which they are not a part."""
        (past,) = products(rows.features, self.past)
        return Lesson(lesson.start, rows.features @ lesson.place.mT, past, lesson.memory)

    def fork(self) -> Self:
        """Returns an independent learner that continues from here."""
        return shallow(self)  # learning makes new weights and does not change the old ones

    def state_dict(self) -> dict[str, Any]:
        """Returns the state as named tensors and numbers."""
        tensors = () if self.past is None else self.past.tensors
        named = {f"part{i}": tensor for i, tensor in enumerate(tensors)}
        return {"steps": self.steps, "size": self._size} | named

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
            names = ["part0", "part1"] if has_memory(self.learner) else ["part0"]
            self.past = Past(*(require_shape(name, state[name], *shape) for name in names))

    def learn(self, lesson: Lesson, errors: Tensor) -> None:
        """Takes the steps of a window, on which it made these errors."""
        new = lesson.deposits(errors).map(lambda deposit: lesson.place.mT @ deposit)
        if self.past is not None:
            count = len(new.tensors)
            transfer = lesson.memory.transfer[:count, :count].tolist()
            for tensor, shares in zip(new.tensors, transfer, strict=True):
                for share, old in zip(shares, self.past.tensors, strict=True):
                    tensor.add_(old, alpha=share)
        self.past = new
        self._size += len(errors)
        self.steps += lesson.memory.deposit.shape[1]
