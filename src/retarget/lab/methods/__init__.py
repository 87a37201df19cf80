"""The base class of all methods, a few hooks into the training loop; and two baselines."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from retarget.errors import InvalidInputError

if TYPE_CHECKING:
    from retarget.lab.training import Run


@dataclass
class Batch:
    """A mini-batch of every member. M members, b samples, c outputs.

    Attributes:
        step: (1,) the number of the step within its pass over the data, on the device.
        positions: (M, b) the positions of the samples in the stream.
        weights: (M, b) 1, or 0 for padding in the last mini-batch of a pass.
        inputs: (M, b, ...) the samples.
        targets: (M, b, c) the targets to train on.
        outputs: (M, b, c) the network's outputs before the step.
    """

    step: Tensor
    positions: Tensor
    weights: Tensor
    inputs: Tensor
    targets: Tensor
    outputs: Tensor

    def this_step(self, plan: Tensor) -> Tensor:
        """Returns this step's part of a plan (steps, ...) that was made for the whole pass."""
        return plan.index_select(0, self.step)[0]


class Method:
    """Plain SGD: every hook does nothing. Subclass it, and override the hooks that you need.

    A method is like a plugin in Avalanche or a callback in PyTorch Lightning; several methods can
    be combined.

    All tensors have the members as their first dimension, and members never mix. `targets`,
    `penalty` and `on_batch_end` are called at every step. Set `capturable` to true only if they use
    nothing but tensor operations, with the same shapes at every step, and never read a value: on
    CUDA the step can then be recorded once and replayed.

    A run with a checkpoint resumes from the saved state. If a method keeps anything between hooks,
    it must return it from `state_dict` and restore it in `load_state_dict`; with a checkpoint, a
    method with an `on_...` hook and no `state_dict` is an error. Attributes without a leading
    underscore are options: a run resumes only with the same options, so they must not change during
    a run.
    """

    capturable = False
    keeps_order = False  # whether all epochs of a task must use the same order

    @property
    def name(self) -> str:
        """The name in messages and tables."""
        return type(self).__name__

    def on_start(self, run: "Run") -> None:
        """Called before the first task; reset anything left from an earlier run."""

    def epochs(self, run: "Run", wanted: int) -> int:
        """Returns the number of passes over the current task; the user asked for `wanted`."""
        return wanted

    def on_task_start(self, run: "Run") -> None:
        """Called before the first epoch of a task."""

    def on_epoch_start(self, run: "Run") -> None:
        """Called before each pass over a task; `run.plan` has the samples of each step."""

    def targets(self, run: "Run", batch: Batch) -> Tensor:
        """Returns the targets (M, b, c) to train on, from `batch.targets`."""
        return batch.targets

    def penalty(self, run: "Run", batch: Batch) -> Tensor | None:
        """Returns what is added to each member's loss (M,), or None."""
        return None

    def on_batch_end(self, run: "Run", batch: Batch) -> None:
        """Called after each step."""

    def on_task_end(self, run: "Run") -> None:
        """Called after the last epoch of a task."""

    def test_outputs(self, run: "Run", member: int) -> Tensor | None:
        """Returns a member's outputs (n, c) for its test samples; None to use its network."""
        return None

    def kept_bytes(self, run: "Run") -> int:
        """Returns the bytes kept for one member at the end, besides its network."""
        return 0

    def state_dict(self, run: "Run") -> dict[str, Any]:
        """Returns everything kept between hooks, as tensors and plain (JSON) values."""
        return {}

    def load_state_dict(self, run: "Run", state: dict[str, Any]) -> None:
        """Restores what `state_dict` returned; called after `on_start`, when a run resumes."""

    def likely_cause(self, run: "Run", member: int) -> str | None:
        """Returns why a member's loss may have become infinite, or None if it cannot tell."""
        return None


class Vanilla(Method):
    """Plain training on each task in turn, with the true labels: the baseline for all methods."""

    capturable = True


class LabelSmoothing(Method):
    r"""Targets $(1 - \epsilon)\, y + \epsilon / c$ (Szegedy et al., 2016).

    It does the same as `label_smoothing` in `torch.nn.CrossEntropyLoss`, but for the squared error,
    at no cost.

    Args:
        amount: $\epsilon$, from 0 to 1.
    """

    capturable = True

    def __init__(self, amount: float = 0.1) -> None:
        if not 0 <= amount <= 1:
            raise InvalidInputError(f"amount is {amount}; expected 0 to 1")
        self.amount = amount

    def targets(self, run: "Run", batch: Batch) -> Tensor:
        """Returns the smoothed targets."""
        return (1 - self.amount) * batch.targets + self.amount / batch.targets.shape[-1]
