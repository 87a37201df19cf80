r"""The kernel of a stream, as a diagnosis asks for it.

There are two: `FullKernel` holds all of it, `FeatureKernel` works through explicit features and
holds nothing of the length of the stream but vectors. What is computed from either is the same
mathematics; on $K = \Phi \Phi^\top$ both give the same numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from retarget.arrays import panels
from retarget.diagnosis.result import Mode
from retarget.learners import SGD
from retarget.theory.dual import Window, diagonal_blocks
from retarget.theory.recursive import Innovation

Advance = Callable[[int], None]
Follower = Callable[[slice], Innovation]


class LearnerState(Protocol):
    """An online learner on its way: `DualLearner`, or `PrimalLearner` in feature space."""

    learner: SGD

    @property
    def coefficients(self) -> Tensor:
        """What a query's row is multiplied with to predict it."""

    def window(self, rows: Any, /) -> Window:
        """The next samples."""

    def learn(self, window: Any, errors: Tensor) -> None:
        """Takes the steps of the window, on which these errors were made."""


class Offline(NamedTuple):
    """The offline learner.

    Attributes:
        dual: (n, c) its dual coefficients.
        coefficients: What a query's row is multiplied with to predict it.
    """

    dual: Tensor
    coefficients: Tensor


class StreamKernel(ABC):
    """The kernel of a stream of samples X (n, d) with targets Y (n, c), float64.

    Attributes:
        X: (n, d) the samples.
        Y: (n, c) their targets.
        advance: Told how many rows were worked on.
    """

    mode: Mode

    def __init__(self, X: Tensor, Y: Tensor, advance: Advance) -> None:
        self.X, self.Y, self.advance = X, Y, advance

    def __len__(self) -> int:
        return len(self.X)

    def windows(self, multiple: int) -> Iterator[slice]:
        """Consecutive ranges of rows, each (but the last) a multiple of `multiple`."""
        for rows in panels(len(self), multiple, self.X.device):
            yield rows
            self.advance(rows.stop - rows.start)

    def spread_rows(self, most: int) -> Tensor:
        """Numbers of at most so many rows, evenly spaced over the stream."""
        last, count = len(self) - 1, min(len(self), most)
        return torch.linspace(0, last, count, dtype=torch.float64).round().long()

    def portions(self, block_size: int) -> Iterator[tuple[slice, int]]:
        """Ranges of rows in blocks of equal size: (rows, block size); a last block may be short."""
        for rows in self.windows(block_size):
            short = (rows.stop - rows.start) % block_size
            whole = slice(rows.start, rows.stop - short)
            if whole.start < whole.stop:
                yield whole, block_size
            if short:
                yield slice(whole.stop, rows.stop), short

    @abstractmethod
    def learner(self, learner: SGD) -> LearnerState:
        """A learner before its first sample."""

    @abstractmethod
    def rows(self, rows: slice, order: Tensor | None = None) -> Any:
        """What a learner's window is made of, for the samples in this (or another) order."""

    @abstractmethod
    def in_stream_order(self, coefficients: Tensor, order: Tensor) -> Tensor:
        """The coefficients of a learner that has seen the samples in another order."""

    @abstractmethod
    def query(self, X: Tensor) -> Tensor:
        """The rows that coefficients are multiplied with to predict for X."""

    @abstractmethod
    def values(self, coefficients: Tensor) -> Tensor:
        """(n, c) the predictions for the stream's own rows."""

    @abstractmethod
    def blocks(self, size: int) -> Iterator[Tensor]:
        """(count, b, b) the kernel of consecutive blocks, each for itself; a last may be short."""

    @abstractmethod
    def density(self) -> Tensor:
        """(n,) mean similarity of each row to the others."""

    @abstractmethod
    def leave_one_out(self, gammas: Tensor, seed: int) -> tuple[Tensor, int]:
        """(gammas, c) mean squared errors on rows left out, and how many rows those are."""

    @abstractmethod
    def follow_offline(self, gamma: float) -> Follower:
        """Takes in the stream's rows, range after range, as the offline learner would."""

    @abstractmethod
    def offline(self, gamma: float) -> Offline:
        """The offline learner on the whole stream."""

    @abstractmethod
    def later(self, C: Tensor, parts: Tensor, count: int, batch: int) -> Iterator[Any]:
        """What rows learned later add to each row, by the part of the stream that they belong to.

        Args:
            C: (n, c) dual coefficients.
            parts: (n,) the part that each row belongs to, from 0 to count - 1.
            count: Number of parts.
            batch: Rows learned in one step.

        Yields:
            Rows, and their (m, count, c) sums of k(x_i, x_j) C_j over later steps' rows j.
        """

    def mean_diagonal(self) -> float:
        """The mean of k(x, x)."""
        return sum(float(blocks.sum()) for blocks in self.blocks(1)) / len(self)

    def predict(self, X: Tensor, coefficients: Tensor) -> Tensor:
        """(m, c) predictions for samples outside the stream."""
        parts = [self.query(X[rows]) @ coefficients for rows in panels(len(X), 1, self.X.device)]
        return torch.cat(parts)


def by_part(C: Tensor, parts: Tensor, count: int) -> Tensor:
    """(m, count * c) the coefficients, each row's in the columns of its part."""
    spread = C.new_zeros(len(C), count, C.shape[1])
    spread[torch.arange(len(C)), parts] = C
    return spread.flatten(1)


def in_later_steps(gram: Tensor, start: int, batch: int) -> Tensor:
    """(m, m) a window's kernel where the column is learned in a later step than the row."""
    step = torch.arange(start, start + len(gram)) // batch
    return gram * (step[:, None] < step)


def square_blocks(gram: Tensor, size: int) -> Iterator[Tensor]:
    """The diagonal blocks of a window's kernel; a last, shorter one comes by itself."""
    whole = len(gram) - len(gram) % size
    if whole:
        yield diagonal_blocks(gram[:whole, :whole], size)
    if whole < len(gram):
        yield gram[None, whole:, whole:]
