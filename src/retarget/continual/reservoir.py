"""A small memory of the stream: each sample seen so far is in it with the same probability."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ReservoirPlan:
    """What the memory does at each step of a pass. S steps of b samples, D draws of r.

    Attributes:
        store: (S, b) the slot that each sample goes to; `capacity` for none.
        positions: (S, D, r) positions in the stream of the samples drawn.
        slots: (S, D, r) the slots that they lie in.
        weights: (S, D, r) 1, or 0 where there was not enough to draw.
    """

    store: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    weights: np.ndarray


class Reservoir:
    """Reservoir sampling (Vitter, 1985), decided ahead for a whole pass: no value is looked at.

    Args:
        capacity: Samples kept.
        random: Where the decisions come from.

    Attributes:
        held: (capacity,) positions in the stream of the samples kept; 0 where there is none yet.
        offered: Samples seen so far.
    """

    def __init__(self, capacity: int, random: np.random.Generator) -> None:
        self.capacity = capacity
        self._random = random
        self.held = np.zeros(capacity, dtype=np.int64)
        self.offered = 0

    def plan(
        self, positions: np.ndarray, weights: np.ndarray, draws: int, size: int
    ) -> ReservoirPlan:
        """Decides a pass: at each step draws, without replacement, then offers the mini-batch.

        Args:
            positions: (S, b) positions in the stream of the samples of each step.
            weights: (S, b) 0 for what only fills up a mini-batch.
            draws: Independent draws a step.
            size: Samples in a draw.
        """
        store = np.full(positions.shape, self.capacity)
        drawn = np.zeros((len(positions), draws, size), dtype=np.int64)
        slots, enough = np.zeros_like(drawn), np.zeros(drawn.shape)
        for step, samples in enumerate(positions):
            filled = min(self.offered, self.capacity)
            for draw in range(draws):
                chosen = self._random.choice(filled, min(size, filled), replace=False)
                slots[step, draw, : len(chosen)] = chosen
                drawn[step, draw, : len(chosen)] = self.held[chosen]
                enough[step, draw, : len(chosen)] = 1
            for i in np.flatnonzero(weights[step]):
                slot = self._slot()
                if slot < self.capacity:
                    self.held[slot] = samples[i]
                    store[step, store[step] == slot] = self.capacity  # overwritten at once
                    store[step, i] = slot
        return ReservoirPlan(store, drawn, slots, enough)

    def _slot(self) -> int:
        """Where the next sample goes: `capacity` for nowhere."""
        self.offered += 1
        if self.offered <= self.capacity:
            return self.offered - 1
        return min(int(self._random.integers(self.offered)), self.capacity)
