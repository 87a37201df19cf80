"""What the methods with a small memory have in common: a reservoir, and draws from it."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from retarget.continual.method import Batch, Method
from retarget.continual.reservoir import Reservoir
from retarget.continual.training import take
from retarget.errors import InvalidInputError

if TYPE_CHECKING:
    from retarget.continual.training import Run


class BufferedReplay(Method):
    """At every step, independent mini-batches drawn from a reservoir of the stream are at hand.

    Args:
        capacity: Samples in the memory.
        batch_size: Samples of the memory in a draw.
        draws: Draws a step.
    """

    capturable = True

    def __init__(self, capacity: int, batch_size: int, draws: int) -> None:
        for name, value in (("capacity", capacity), ("batch_size", batch_size)):
            if value < 1:
                raise InvalidInputError(f"{name} is {value}; expected 1 or more samples")
        self.capacity, self.batch_size, self.draws = capacity, batch_size, draws

    def on_start(self, run: "Run") -> None:
        """An empty memory for each member."""
        self._reservoirs = [Reservoir(self.capacity, random) for random in run.random]
        # One more slot: what is not kept is written there, and never read.
        self._stored = run.targets.new_zeros(
            len(run.ensemble), self.capacity + 1, run.targets.shape[-1]
        )

    def on_epoch_start(self, run: "Run") -> None:
        """Decides what is kept and what is drawn at each step of this pass."""
        positions = run.plan.positions.cpu().numpy()
        weights = run.plan.weights.cpu().numpy()
        plans = [
            reservoir.plan(positions[:, m], weights[:, m], self.draws, self.batch_size)
            for m, reservoir in enumerate(self._reservoirs)
        ]

        def stacked(name: str) -> Tensor:
            values = np.stack([getattr(plan, name) for plan in plans], axis=1)
            return torch.from_numpy(values).to(run.ensemble.device)

        self._store, self._positions = stacked("store"), stacked("positions")
        self._slots = stacked("slots")
        self._weights = stacked("weights").to(run.targets.dtype)

    def on_batch_end(self, run: "Run", batch: Batch) -> None:
        """Keeps the outputs of the samples that stay in the memory."""
        slots = batch.of(self._store)[..., None].expand_as(batch.outputs)
        self._stored.scatter_(1, slots, batch.outputs)

    def state_dict(self, run: "Run") -> dict[str, Any]:
        """What lies in the memory."""
        return {
            "held": torch.from_numpy(np.stack([r.held for r in self._reservoirs])),
            "offered": [r.offered for r in self._reservoirs],
            "stored": self._stored,
        }

    def load_state_dict(self, run: "Run", state: dict[str, Any]) -> None:
        """Takes it back."""
        for m, reservoir in enumerate(self._reservoirs):
            reservoir.held = state["held"][m].cpu().numpy().copy()
            reservoir.offered = state["offered"][m]
        self._stored = state["stored"]

    def replayed(self, run: "Run", batch: Batch) -> tuple[Tensor, Tensor]:
        """Outputs now (M, D, r, c) and positions (M, D, r) of the samples drawn at this step."""
        positions = batch.of(self._positions)
        outputs = run.ensemble(run.inputs(positions.flatten(1)))
        return outputs.reshape(*positions.shape, -1), positions

    def stored_outputs(self, batch: Batch, draw: int) -> Tensor:
        """(M, r, c) the outputs of a draw's samples when they were put into the memory."""
        return take(self._stored, batch.of(self._slots)[:, draw])

    def draw_weights(self, batch: Batch, draw: int) -> Tensor:
        """(M, r) 1, or 0 where the memory did not have enough."""
        return batch.of(self._weights)[:, draw]
