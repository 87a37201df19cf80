"""The samples of all members on the device: one pool, and each member's order through it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from retarget.continual.streams import Labelled


@dataclass(frozen=True)
class Samples:
    """Samples of M members, n each.

    Attributes:
        pool: (N, ...) all inputs, those that members share only once.
        rows: (M, n) the rows of the pool, in each member's order.
        labels: (M, n) class of each sample.
        spans: For each member the range of each task.
    """

    pool: Tensor
    rows: Tensor
    labels: Tensor
    spans: list[list[slice]]

    @classmethod
    def gather(cls, parts: Sequence[Labelled], device: torch.device) -> "Samples":
        """The members' samples, moved to the device."""
        pools = list({id(part.inputs): part.inputs for part in parts}.values())
        first_rows = np.cumsum([0, *(len(pool) for pool in pools)])
        offset = {id(pool): int(first) for pool, first in zip(pools, first_rows, strict=False)}
        moved = [pool.to(device) for pool in pools]
        return cls(
            pool=moved[0] if len(moved) == 1 else torch.cat(moved),
            rows=torch.stack([p.rows.to(device) + offset[id(p.inputs)] for p in parts]),
            labels=torch.stack([p.labels.to(device) for p in parts]),
            spans=[part.spans() for part in parts],
        )

    def inputs(self, member: int, span: slice) -> Tensor:
        """A range of one member's samples."""
        return self.pool[self.rows[member, span]]


@dataclass(frozen=True)
class Plan:
    """What comes at each step of a pass over the data, for all members.

    Attributes:
        positions: (steps, M, b) where the samples stand in the stream, the last step filled up.
        weights: (steps, M, b) 1, or 0 for what only fills up.
    """

    positions: Tensor
    weights: Tensor

    @classmethod
    def of(
        cls, order: np.ndarray, batch_size: int, device: torch.device, dtype: torch.dtype
    ) -> "Plan":
        """Mini-batches of the samples at (M, n) positions, in this order."""
        n = order.shape[1]
        filled = -(-n // batch_size) * batch_size
        padded = np.pad(order, ((0, 0), (0, filled - n)), mode="edge")
        weights = np.broadcast_to(np.arange(filled) < n, padded.shape)
        return cls(
            _by_step(padded, batch_size, device),
            _by_step(weights, batch_size, device).to(dtype),
        )

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.positions)


def _by_step(values: np.ndarray, batch_size: int, device: torch.device) -> Tensor:
    members = len(values)
    stepwise = values.reshape(members, -1, batch_size).swapaxes(0, 1)
    return torch.from_numpy(stepwise.copy()).to(device)
