"""A stream of samples in windows: what each learner that follows it is given.

The kernel of a window is computed once, for all learners that follow together (`followers.follow`).
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from retarget.arrays import panel_rows, panels

FirstBlock = Literal["corrected", "plain"]


class Window(NamedTuple):
    """A few consecutive samples of a stream, in whole blocks of one size.

    Attributes:
        rows: Their positions in the order in which they are learned.
        samples: Their positions in the stream: the same, unless it is learned in another order.
        block_size: The size of their blocks.
        panel: What a learner needs to know about them: rows of the kernel, or features.
        targets: (m, c) their true targets.
        start: (m, c) the starting function at them; None for zero.
    """

    rows: slice
    samples: slice | Tensor
    block_size: int
    panel: Any
    targets: Tensor
    start: Tensor | None = None


class SampleStream:
    """Samples that follow those learned before, or a whole stream.

    Args:
        panel: Returns what a learner needs to know about a range of samples.
        targets: (m, c) their true targets.
        start: (m, c) the starting function at them; None for zero.
        first: The position of the first of them in the stream.
    """

    def __init__(
        self,
        panel: Callable[[slice], Any],
        targets: Tensor,
        start: Tensor | None = None,
        first: int = 0,
    ) -> None:
        self._panel = panel
        self._targets = targets
        self._start = start
        self._first = first

    @classmethod
    def of_matrix(cls, K: Tensor, targets: Tensor, start: Tensor | None = None) -> "SampleStream":
        """A whole stream with this kernel (n, n)."""
        return cls(lambda rows: K[rows, : rows.stop], targets, start)

    def windows(
        self,
        block_size: int,
        first_block: FirstBlock = "corrected",
        begin: int | None = None,
        stop: int | None = None,
    ) -> Iterator[Window]:
        """The samples in windows of whole blocks, perhaps of a range from `begin` to `stop`."""
        begin = self._first if begin is None else begin
        stop = self._first + len(self._targets) if stop is None else stop
        for rows, size in equal_blocks(begin, stop, block_size, first_block, self._targets.device):
            own = slice(rows.start - self._first, rows.stop - self._first)
            start = None if self._start is None else self._start[own]
            yield Window(rows, rows, size, self._panel(rows), self._targets[own], start)


class Repeated(NamedTuple):
    """What a learner needs to know that meets the same samples several times.

    Attributes:
        kernel: (m, n) the kernel of the samples against the whole stream.
        samples: Their positions in it.
    """

    kernel: Tensor
    samples: slice


class RepeatedStream:
    """A whole stream with kernel K (n, n), gone over several times.

    Args:
        K: The kernel.
        targets: (n, c) the same in every epoch.
        start: (n, c) the starting function on the stream; None for zero.
        left: (epochs n, 1) how much of it is left when a sample is met; None for all of it.
        epochs: How often the stream is gone over.
    """

    def __init__(
        self,
        K: Tensor,
        targets: Tensor,
        start: Tensor | None = None,
        left: Tensor | None = None,
        epochs: int = 1,
    ) -> None:
        self._K = K
        self._targets = targets
        self._start = start
        self._left = left
        self._epochs = epochs

    def windows(self, batch_size: int) -> Iterator[Window]:
        """The samples in windows of whole mini-batches, of which the last may be short."""
        n = len(self._K)
        for epoch in range(self._epochs):
            for samples in panels(n, batch_size, self._K.device):
                rows = slice(epoch * n + samples.start, epoch * n + samples.stop)
                panel = Repeated(self._K[samples], samples)
                start = None if self._start is None else self._start[samples]
                if start is not None and self._left is not None:
                    start = self._left[rows] * start
                yield Window(rows, samples, batch_size, panel, self._targets[samples], start)


def equal_blocks(
    start: int,
    stop: int,
    block_size: int,
    first_block: FirstBlock,
    device: torch.device,
    least: int | None = None,
) -> Iterator[tuple[slice, int]]:
    """The stream from `start` to `stop`, in row ranges of equal blocks: (rows, block size).

    A first block that is not corrected and a shorter last block are ranges of their own. The others
    have at least so many rows, those of a panel by default.
    """
    if start == 0 and first_block == "plain" and stop > 0:
        start = min(block_size, stop)
        yield slice(0, start), start
    whole = stop - (stop - start) % block_size
    # ranges of about equal length, and not too short: fewer, larger steps are faster
    blocks = (whole - start) // block_size
    ranges = (whole - start) // (least or panel_rows(device))
    stride = max(1, -(-blocks // max(1, ranges))) * block_size
    for begin in range(start, whole, stride):
        yield slice(begin, min(begin + stride, whole)), block_size
    if whole < stop:
        yield slice(whole, stop), stop - whole
