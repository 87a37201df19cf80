"""What a method of continual learning is, a few hooks into the one training loop; baselines."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from retarget.errors import InvalidInputError

if TYPE_CHECKING:
    from retarget.continual.training import Run


@dataclass
class Batch:
    """A mini-batch of every member. M members, b samples, c outputs.

    Attributes:
        step: (1,) the number of the step within its pass over the data, on the device.
        positions: (M, b) where in the stream the samples stand.
        weights: (M, b) 1, or 0 for what only fills up the last mini-batch of a pass.
        inputs: (M, b, ...) the samples.
        targets: (M, b, c) what the outputs are to become.
        outputs: (M, b, c) what they were, before the step.
    """

    step: Tensor
    positions: Tensor
    weights: Tensor
    inputs: Tensor
    targets: Tensor
    outputs: Tensor

    def this_step(self, plan: Tensor) -> Tensor:
        """This step's part of a plan (steps, ...) that was made for the whole pass."""
        return plan.index_select(0, self.step)[0]


class Method:
    """Plain SGD: every hook does nothing. Subclass it, and override the hooks that you need.

    Like plugins in Avalanche or callbacks in PyTorch Lightning; several methods work together.

    All tensors have the members as their first dimension, and members never mix. `targets`,
    `penalty` and `on_batch_end` are called at every step. If `capturable` is true they consist of
    tensor operations alone, of the same shapes at every step, and never look at a value: on CUDA
    the step can then be recorded once and replayed.

    A run with a checkpoint resumes from what the checkpoint holds. A method that keeps anything
    from one hook to a later one must therefore return it from `state_dict` and restore it in
    `load_state_dict`; a method with an `on_...` hook and no `state_dict` is refused there.
    Attributes without a leading underscore are its options: a checkpoint is only resumed with the
    same options, so they must not change during a run.
    """

    capturable = False
    keeps_order = False  # whether later epochs must show the samples in the first one's order

    @property
    def name(self) -> str:
        """As messages and tables call it."""
        return type(self).__name__

    def on_start(self, run: "Run") -> None:
        """Called before the first task; forget what an earlier run left behind."""

    def epochs(self, run: "Run", wanted: int) -> int:
        """Passes over the current task, if so many were asked for."""
        return wanted

    def on_task_start(self, run: "Run") -> None:
        """Before the first epoch of a task."""

    def on_epoch_start(self, run: "Run") -> None:
        """Before each pass over a task; `run.plan` says what comes at each step."""

    def targets(self, run: "Run", batch: Batch) -> Tensor:
        """(M, b, c) the targets to train on, from `batch.targets`."""
        return batch.targets

    def penalty(self, run: "Run", batch: Batch) -> Tensor | None:
        """(M,) what is added to each member's loss."""
        return None

    def on_batch_end(self, run: "Run", batch: Batch) -> None:
        """Called after each step."""

    def on_task_end(self, run: "Run") -> None:
        """After the last epoch of a task."""

    def test_outputs(self, run: "Run", member: int) -> Tensor | None:
        """(n, c) a member's answers to its test samples; None for those of its network."""
        return None

    def kept_bytes(self, run: "Run") -> int:
        """Bytes kept for one member at the end, beside its network: samples, or sums over them."""
        return 0

    def state_dict(self, run: "Run") -> dict[str, Any]:
        """Everything that is kept between hooks, as tensors and plain values (as JSON has them)."""
        return {}

    def load_state_dict(self, run: "Run", state: dict[str, Any]) -> None:
        """Restores what `state_dict` returned; called after `on_start`, on a restored run."""

    def likely_cause(self, run: "Run", member: int) -> str | None:
        """Why a member's loss may have become infinite, if this method can tell."""
        return None


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
