"""Reservoir sampling: which samples of a stream to keep, whatever its length."""

import numpy as np


class Reservoir:
    """Decides on a slot for each sample, so that all are kept with the same probability.

    This is algorithm R of Vitter (1985). The samples themselves are stored elsewhere.

    Attributes:
        capacity: Number of slots.
        offered: Samples so far.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.offered = 0

    def __len__(self) -> int:
        return min(self.offered, self.capacity)

    def next_slot(self, random: np.random.Generator) -> int:
        """Returns the slot for the next sample; `capacity` or more if it is not kept."""
        self.offered += 1
        if self.offered <= self.capacity:
            return self.offered - 1
        return int(random.integers(self.offered))

    def drawn_slots(self, number: int, random: np.random.Generator) -> np.ndarray:
        """Draws filled slots, each at most once."""
        return random.choice(len(self), min(number, len(self)), replace=False)
