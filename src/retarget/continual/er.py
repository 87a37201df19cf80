"""Experience replay."""

from typing import TYPE_CHECKING

from torch import Tensor

from retarget.continual.method import Batch
from retarget.continual.replay import BufferedReplay

if TYPE_CHECKING:
    from retarget.continual.training import Run


class ER(BufferedReplay):
    """Adds the loss of a mini-batch from the memory, with its true targets, to every step.

    (Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019.)

    Args:
        capacity: Samples in the memory.
        batch_size: Samples of the memory in a step.
    """

    def __init__(self, capacity: int, batch_size: int = 4) -> None:
        super().__init__(capacity, batch_size, draws=1)

    def penalty(self, run: "Run", batch: Batch) -> Tensor:
        """The loss of the drawn samples."""
        outputs, positions = self.replayed(run, batch)
        targets = run.true_targets(positions[:, 0])
        return run.loss(outputs[:, 0], targets, self.draw_weights(batch, 0))
