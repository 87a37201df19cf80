"""Methods that replay earlier samples: ER, DER and DER++ from a small memory, or all of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from retarget.errors import own_constructor
from retarget.lab.methods import Batch, Method, recipe
from retarget.lab.training import gather_rows
from retarget.networks.reservoir import Reservoir
from retarget.scalars import as_count, as_non_negative

if TYPE_CHECKING:
    from retarget.lab.figures.training import NetworkRun
    from retarget.lab.training import Run


class CumulativeReplay(Method, name="cumulative"):
    """Trains on all samples so far after each task, in shuffled passes.

    It is an upper bound for methods with a small memory: nothing is forgotten because all samples
    are kept. Its cost grows with the square of the number of tasks.

    Args:
        passes: Passes after each task.
    """

    capturable = True
    _waits = False  # whether to train only after the last task

    def __init__(self, passes: int = 1) -> None:
        self.passes = as_count("passes", passes)

    @classmethod
    def arguments(cls, runs: Sequence["NetworkRun"]) -> dict[str, Any]:
        return {"passes": runs[0].replay_passes}

    def on_start(self, run: "Run") -> None:
        self._done = 0

    def on_task_end(self, run: "Run") -> None:
        if self._waits and run.task + 1 < len(run.train.spans[0]):
            return
        while self._done < self.passes:
            run.pass_over(np.stack([random.permutation(run.span.stop) for random in run.random]))
            self._done += 1
            run.checkpoint()
        self._done = 0

    def kept_bytes(self, run: "Run") -> int:
        return run.stream_bytes

    def state_dict(self, run: "Run") -> dict[str, Any]:
        return {"done": self._done}

    def load_state_dict(self, run: "Run", state: dict[str, Any]) -> None:
        self._done = state["done"]


@own_constructor
class Joint(CumulativeReplay, name="joint"):
    """Trains on all tasks at once, shuffled, for several passes, as without a stream.

    It is an upper bound, not a continual-learning method: it learns nothing before the last task.

    Args:
        passes: Passes over all samples.
    """

    _waits = True

    def epochs(self, run: "Run", wanted: int) -> int:
        return 0


class _MemoryReplay(Method):
    """Adds the losses of mini-batches drawn from a reservoir of the stream to every step.

    Each term is the weight of one draw of `batch_size` samples, and what they are compared with:
    their stored outputs, or their true targets.
    """

    capturable = True

    def __init__(self, capacity: int, batch_size: int, *terms: tuple[float, str]) -> None:
        self.capacity = as_count("capacity", capacity)
        self.batch_size = as_count("batch_size", batch_size)
        self.terms = terms

    @classmethod
    def arguments(cls, runs: Sequence["NetworkRun"]) -> dict[str, Any]:
        return {"capacity": runs[0].capacity}

    def on_start(self, run: "Run") -> None:
        self._reservoirs = [PlannedReservoir(self.capacity, random) for random in run.random]
        # The extra slot receives samples that are not kept, and is never read.
        shape = len(run.ensemble), self.capacity + 1, run.targets.shape[-1]
        self._stored = run.targets.new_zeros(shape)

    def on_epoch_start(self, run: "Run") -> None:
        positions = run.plan.positions.cpu().numpy()
        weights = run.plan.weights.cpu().numpy()
        plans = [
            reservoir.plan(positions[:, m], weights[:, m], len(self.terms), self.batch_size)
            for m, reservoir in enumerate(self._reservoirs)
        ]
        self._store, self._positions, self._slots, enough = (
            torch.from_numpy(np.stack(members, axis=1)).to(run.ensemble.device)
            for members in zip(*plans, strict=True)
        )
        self._weights = enough.to(run.targets.dtype)

    def penalty(self, run: "Run", batch: Batch) -> Tensor:
        positions = batch.this_step(self._positions)
        slots = batch.this_step(self._slots)
        weights = batch.this_step(self._weights)
        outputs = run.ensemble(run.inputs(positions.flatten(1)))
        outputs = outputs.reshape(*positions.shape, -1)
        total = outputs.new_zeros(len(outputs))
        for draw, (weight, compared_with) in enumerate(self.terms):
            if compared_with == "stored":
                targets = gather_rows(self._stored, slots[:, draw])
            else:
                targets = run.true_targets(positions[:, draw])
            total = total + weight * run.loss(outputs[:, draw], targets, weights[:, draw])
        return total

    def on_batch_end(self, run: "Run", batch: Batch) -> None:
        slots = batch.this_step(self._store)[..., None].expand_as(batch.outputs)
        self._stored.scatter_(1, slots, batch.outputs)

    def kept_bytes(self, run: "Run") -> int:
        compared_with = {name for _, name in self.terms}
        return self.capacity * (
            run.train.sample_bytes + len(compared_with) * run.targets[0, :1].nbytes
        )

    def state_dict(self, run: "Run") -> dict[str, Any]:
        return {
            "held": torch.from_numpy(np.stack([r.positions for r in self._reservoirs])),
            "offered": [r.offered for r in self._reservoirs],
            "stored": self._stored,
        }

    def load_state_dict(self, run: "Run", state: dict[str, Any]) -> None:
        for m, reservoir in enumerate(self._reservoirs):
            reservoir.positions = state["held"][m].cpu().numpy().copy()
            reservoir.offered = state["offered"][m]
        self._stored = state["stored"]


class ER(_MemoryReplay, name="er"):
    """Adds the loss of a mini-batch from the memory, with its true targets, to every step.

    Experience replay (Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019).
    Each step costs another forward and backward pass over `batch_size` samples.

    Args:
        capacity: Number of samples in the memory.
        batch_size: Samples drawn from the memory in each step.
    """

    def __init__(self, capacity: int, batch_size: int = 4) -> None:
        super().__init__(capacity, batch_size, (1.0, "true"))


class DER(_MemoryReplay, name="der"):
    """Replays samples with the outputs that the network had when it first saw them.

    Adds alpha times the loss of a mini-batch from the memory against its stored outputs and, for
    DER++, beta times that of another one against its true targets (Buzzega et al., "Dark
    Experience for General Continual Learning", 2020). With `Corrected` before it in the list of
    methods, the current samples are learned from their corrected targets.

    Args:
        capacity: Number of samples in the memory.
        batch_size: Samples in each of the two mini-batches.
        alpha: Weight of the stored outputs.
        beta: Weight of the true targets; above 0 it is DER++.
    """

    def __init__(
        self, capacity: int, batch_size: int = 4, alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        self.alpha = as_non_negative("alpha", alpha)
        self.beta = as_non_negative("beta", beta)
        plus = [(self.beta, "true")] if self.beta else []
        super().__init__(capacity, batch_size, (self.alpha, "stored"), *plus)

    @property
    def name(self) -> str:
        return "DER++" if self.beta else "DER"


@recipe("der++")
def _der_plus_plus(runs: Sequence["NetworkRun"]) -> list[Method]:
    return [DER.for_runs(runs, beta=1.0)]


class ReservoirPlan(NamedTuple):
    """What the memory does at each step of a pass: S steps of b samples, D draws of r samples."""

    store: np.ndarray  # (S, b) the slot for each sample; `capacity` if it is not kept
    positions: np.ndarray  # (S, D, r) positions in the stream of the samples drawn
    slots: np.ndarray  # (S, D, r) the slots that they are in
    weights: np.ndarray  # (S, D, r) 1, or 0 if there were too few to draw


class PlannedReservoir(Reservoir):
    """A reservoir that plans a whole pass ahead, without reading values.

    Attributes:
        positions: (capacity,) positions in the stream of the samples kept; 0 in an empty slot.
    """

    def __init__(self, capacity: int, random: np.random.Generator) -> None:
        super().__init__(capacity)
        self._random = random
        self.positions = np.zeros(capacity, dtype=np.int64)

    def plan(
        self, positions: np.ndarray, weights: np.ndarray, draws: int, size: int
    ) -> ReservoirPlan:
        """Plans a pass: each step draws samples without replacement, then offers its mini-batch.

        Positions and weights are (S, b), as in `PassPlan`.
        """
        store = np.full(positions.shape, self.capacity)
        drawn = np.zeros((len(positions), draws, size), dtype=np.int64)
        slots = np.zeros_like(drawn)
        enough = np.zeros(drawn.shape)
        for step, samples in enumerate(positions):
            for draw in range(draws):
                chosen = self.drawn_slots(size, self._random)
                slots[step, draw, : len(chosen)] = chosen
                drawn[step, draw, : len(chosen)] = self.positions[chosen]
                enough[step, draw, : len(chosen)] = 1
            for i in np.flatnonzero(weights[step]):
                slot = self.next_slot(self._random)
                if slot < self.capacity:
                    self.positions[slot] = samples[i]
                    store[step, store[step] == slot] = self.capacity  # overwritten in the same step
                    store[step, i] = slot
        return ReservoirPlan(store, drawn, slots, enough)
