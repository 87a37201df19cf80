"""The rows of a long table in the order of their times, sorted on the disk if they are not."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from retarget.diagnosis.tables.portions import PORTION_ROWS, RowPortion, RowSource, told
from retarget.diagnosis.tables.roles import Roles, sortable

BUCKET_ROWS = 500_000  # about so many rows are sorted in memory at a time
KEPT_ROWS = 50_000  # of a bucket, before they are written


def in_order(
    source: RowSource, names: list[str], roles: Roles, sample: pl.DataFrame, rows: int, folder: Path
) -> Iterator[RowPortion]:
    """Yields the rows sorted by time; rows of equal times stay in their order.

    The times of evenly spaced rows, `sample`, cut the whole period into short ones. The rows of
    each period are collected in files, which are sorted one after the other.
    """
    time = str(roles.time)
    times = np.sort(_as_keys(sample[time]))
    count = max(1, rows // BUCKET_ROWS)
    cuts = np.unique(times[np.arange(1, count) * len(times) // count])
    shutil.rmtree(folder, ignore_errors=True)  # an interrupted process may have left it
    buckets = [_Bucket(folder / str(number)) for number in range(len(cuts) + 1)]
    for portion in source.portions(names):
        with told(portion):
            which = np.searchsorted(cuts, _as_keys(portion.table[time]), side="right")
        for number in np.unique(which):
            buckets[number].add(portion.some(which == number))
    for bucket in buckets:
        yield from bucket.sorted(time)


def _as_keys(times: pl.Series) -> NDArray[np.float64]:
    """Returns numbers in the same order as the times; two that differ by a little may be equal."""
    return np.asarray(sortable(times).to_physical().cast(pl.Float64).to_numpy())


class _Bucket:
    """The rows of one period, in files of a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._kept: list[RowPortion] = []
        self._files = 0

    def add(self, portion: RowPortion) -> None:
        self._kept.append(portion)
        if sum(len(one) for one in self._kept) >= KEPT_ROWS:
            self._write()

    def _write(self) -> None:
        table = pl.concat([one.table for one in self._kept], how="vertical_relaxed")
        numbers = np.concatenate([one.numbers for one in self._kept])
        # in two files: a column of the table may have any name
        table.write_parquet(self._folder / f"{self._files}.parquet")
        np.save(self._folder / f"{self._files}.npy", numbers)
        self._files += 1
        self._kept = []

    def sorted(self, time: str) -> Iterator[RowPortion]:
        """Yields the rows in order."""
        if self._kept:
            self._write()
        if not self._files:
            return
        places = range(self._files)
        tables = [pl.read_parquet(self._folder / f"{place}.parquet") for place in places]
        table = pl.concat(tables, how="vertical_relaxed")
        numbers = np.concatenate(
            [np.load(self._folder / f"{place}.npy", allow_pickle=False) for place in places]
        )
        times = pl.DataFrame({"time": sortable(table[time])}).with_row_index("row")
        order = times.sort("time", maintain_order=True)["row"].to_numpy()
        for start in range(0, len(order), PORTION_ROWS):
            some = order[start : start + PORTION_ROWS]
            yield RowPortion(table[some], numbers[some], "the table")
