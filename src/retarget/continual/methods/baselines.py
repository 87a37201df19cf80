"""The baselines without a memory: plain SGD, and softer targets."""

from typing import TYPE_CHECKING

from torch import Tensor

from retarget.continual.methods.base import Batch, Method
from retarget.errors import InvalidInputError

if TYPE_CHECKING:
    from retarget.continual.training import Run


class Vanilla(Method):
    """Trains on each task as it comes, with its own labels: what every method is compared with."""

    capturable = True


class LabelSmoothing(Method):
    r"""Targets $(1 - \epsilon)\, y + \epsilon / c$ (Szegedy et al., 2016).

    As `label_smoothing` of `torch.nn.CrossEntropyLoss`, here for the squared error; it costs
    nothing.

    Args:
        amount: $\epsilon$, from 0 to 1.
    """

    capturable = True

    def __init__(self, amount: float = 0.1) -> None:
        if not 0 <= amount <= 1:
            raise InvalidInputError(f"amount is {amount}; expected 0 to 1")
        self.amount = amount

    def targets(self, run: "Run", batch: Batch) -> Tensor:
        """The smoothed targets."""
        return (1 - self.amount) * batch.targets + self.amount / batch.targets.shape[-1]
