"""Arrays with a value for each row of a stream, in files that the memory need not hold.

They are ordinary NumPy arrays and tensors over mapped files. What has been read or written is kept
in memory by the system only as long as there is room; `RowFiles.release` takes it out of the
process at once.
"""

import mmap
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retarget.errors import InvalidInputError
from retarget.journal import Journal

RELEASED_ROWS = 200_000  # so many rows of all arrays may be in the process' memory
BUCKET_ROWS = 200_000  # that are shuffled in memory
PIECE_ROWS = 50_000
TAKEN_ROWS = 32


class RowFiles:
    """A folder of such arrays, and a journal of the work on them.

    Args:
        kept: The folder, which stays when the process ends, with the arrays that an interrupted
            process made; None for a temporary one, which is deleted with the object, or when the
            process ends.

    Attributes:
        folder: The folder.
        journal: What was done, if the folder is kept.
    """

    def __init__(self, kept: Path | None = None) -> None:
        self._mapped: list[mmap.mmap] = []
        self._done = 0
        self._elsewhere = "set TMPDIR to a folder on another disk"
        if kept is not None:
            self._elsewhere = "choose a folder for the results on another disk (--out)"
            self.folder = kept
            self.journal = Journal(kept, self.flush)
            return
        self.folder = Path(tempfile.mkdtemp(prefix="retarget-rows-"))
        self.journal = Journal()
        self._delete = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def array(self, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        """Returns a new array of zeros, or the array that an interrupted process made here.

        Raises:
            InvalidInputError: The disk has no room for it.
        """
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        path = self.folder / f"{len(self._mapped)}.rows"  # arrays are made in the same order
        free = shutil.disk_usage(self.folder).free
        if size > free and not path.exists():
            raise InvalidInputError(
                f"a stream of {shape[0]:,} rows needs {size / 1e9:.1f} GB more on the disk of "
                f"{self.folder.parent}, which has {free / 1e9:.1f} GB left; make room there, or "
                f"{self._elsewhere}"
            )
        path.touch()
        with path.open("r+b") as file:
            file.truncate(max(size, 1))
            mapped = mmap.mmap(file.fileno(), max(size, 1))
        self._mapped.append(mapped)
        return np.frombuffer(mapped, dtype, int(np.prod(shape))).reshape(shape)

    def tensor(self, shape: tuple[int, ...]) -> Tensor:
        """Returns a new tensor of zeros, float64."""
        return torch.from_numpy(self.array(shape))

    def advance(self, rows: int) -> None:
        """Notes that work on so many rows is done, and releases them if they are many."""
        self._done += rows
        if self._done >= RELEASED_ROWS:
            self.release()

    def taken(self, values: Any, rows: Any) -> Any:
        """Returns some rows of an array or a tensor, given by their numbers, as a copy.

        Where a row is read, the system may also map megabytes around it; so a few are read at a
        time.
        """
        pieces = []
        for start in range(0, len(rows), TAKEN_ROWS):
            pieces.append(values[rows[start : start + TAKEN_ROWS]])
            self.release()
        if not pieces:
            return values[rows]
        return torch.cat(pieces) if isinstance(values, Tensor) else np.concatenate(pieces)

    def release(self) -> None:
        """Takes the arrays out of the process' memory; their values stay in the files."""
        self._done = 0
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            for mapped in self._mapped:
                mapped.madvise(mmap.MADV_DONTNEED)

    def flush(self) -> None:
        """Writes the arrays to the disk."""
        for mapped in self._mapped:
            mapped.flush()


def shuffled(
    files: RowFiles, arrays: Sequence[np.ndarray], rng: np.random.Generator
) -> list[np.ndarray]:
    """Returns arrays with the same rows in one random order, in files.

    Every row goes to a bucket that is drawn for it, and the rows of each bucket are then shuffled
    in memory: all orders are equally likely, and everything is read and written in long pieces.
    """
    n = len(arrays[0])
    buckets = max(1, n // BUCKET_ROWS)
    copies = [files.array(array.shape, array.dtype) for array in arrays]
    step = files.journal.step([_Generator(rng)])
    if step.finished:
        return copies
    state = rng.bit_generator.state
    sizes = np.zeros(buckets, dtype=np.int64)
    for rows in _pieces(n):
        sizes += np.bincount(rng.integers(buckets, size=rows.stop - rows.start), minlength=buckets)
    starts = np.cumsum(sizes) - sizes
    rng.bit_generator.state = state  # the same buckets are drawn again
    filled = starts.copy()
    for rows in _pieces(n):
        bucket = rng.integers(buckets, size=rows.stop - rows.start)
        order = np.argsort(bucket, kind="stable")
        counts = np.bincount(bucket, minlength=buckets)
        ends = np.cumsum(counts)
        for array, copy in zip(arrays, copies, strict=True):
            piece = array[rows][order]
            for place in np.flatnonzero(counts):
                own = piece[ends[place] - counts[place] : ends[place]]
                copy[filled[place] : filled[place] + len(own)] = own
        filled += counts
        files.advance(rows.stop - rows.start)
    for start, size in zip(starts, sizes, strict=True):
        order = rng.permutation(size)
        for copy in copies:
            own = copy[start : start + size]
            own[:] = own[order]
        files.advance(int(size))
    step.finish()
    return copies


class _Generator:
    """Where a generator of random numbers is, for a journal."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state["generator"]


def _pieces(n: int) -> Iterator[slice]:
    for start in range(0, n, PIECE_ROWS):
        yield slice(start, min(start + PIECE_ROWS, n))
