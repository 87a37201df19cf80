"""Dark experience replay, DER and DER++."""

from typing import TYPE_CHECKING

from torch import Tensor

from retarget.arrays import as_non_negative
from retarget.continual.method import Batch
from retarget.continual.replay import BufferedReplay

if TYPE_CHECKING:
    from retarget.continual.training import Run


class DER(BufferedReplay):
    """Replays samples with the outputs that the network had when it first saw them.

    Adds alpha times the loss of a mini-batch from the memory against its stored outputs and, for
    DER++, beta times that of another one against its true targets (Buzzega et al., "Dark
    Experience for General Continual Learning", 2020). With `Corrected` before it in the list of
    methods, the current samples are learned from their corrected targets.

    Args:
        capacity: Samples in the memory.
        batch_size: Samples of the memory in each of the two.
        alpha: Weight of the stored outputs.
        beta: Weight of the true targets; above 0 it is DER++.
    """

    def __init__(
        self, capacity: int, batch_size: int = 4, alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        self.alpha, self.beta = as_non_negative("alpha", alpha), as_non_negative("beta", beta)
        super().__init__(capacity, batch_size, draws=2 if self.beta else 1)

    @property
    def name(self) -> str:
        """DER or DER++."""
        return "DER++" if self.beta else "DER"

    def penalty(self, run: "Run", batch: Batch) -> Tensor:
        """The loss of the drawn samples."""
        outputs, positions = self.replayed(run, batch)
        stored = self.stored_outputs(batch, 0)
        loss = self.alpha * run.loss(outputs[:, 0], stored, self.draw_weights(batch, 0))
        if self.beta:
            targets = run.true_targets(positions[:, 1])
            loss = loss + self.beta * run.loss(outputs[:, 1], targets, self.draw_weights(batch, 1))
        return loss
