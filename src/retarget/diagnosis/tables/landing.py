"""A stream too long for memory, as numbers in files.

It is scanned once: every row is checked, rows are counted, and about a hundred thousand evenly
spaced ones decide what the columns hold, as `prepare` decides for a whole table. Then it is written
once, as numbers, whose means and spreads are those of all rows that are learned.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.selectors import by_name

from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.stream import Stream
from retarget.diagnosis.tables.in_order import in_order
from retarget.diagnosis.tables.portions import RowPortion, RowSource, told
from retarget.diagnosis.tables.prepare import (
    MOST_CLASSES,
    Categories,
    Number,
    Preparation,
    prepare,
)
from retarget.diagnosis.tables.read import numbers_recognized
from retarget.diagnosis.tables.roles import Roles, Rows, missing_in, sortable
from retarget.errors import InvalidInputError
from retarget.progress import PatientBar
from retarget.row_files import RowFiles
from retarget.text import MOST_SHOWN, listed, shown

SAMPLE_ROWS = 100_000


class Survey(NamedTuple):
    """What the first scan found.

    Attributes:
        rows: How many rows have a target.
        left_out: How many have none.
        sample: Evenly spaced rows, and one of each value of a target that may be classes.
        sorted: Whether the rows are in the order of their times; True without times.
        stamp: What tells whether the table has changed since.
    """

    rows: int
    left_out: int
    sample: pl.DataFrame
    sorted: bool
    stamp: Any


def survey(source: RowSource, names: list[str], roles: Roles) -> Survey:
    """Scans all rows: counts and checks them, and takes a sample."""
    stamp = source.stamp()
    rows = 0
    left_out = 0
    is_sorted = True
    latest: object = None
    sample = _Sample(roles.target[0] if len(roles.target) == 1 else None)
    with PatientBar("rows checked", None, unit="rows") as bar:
        for portion in source.portions(names):
            with told(portion):
                complete = _with_targets(portion, roles)
                if roles.time is not None and is_sorted:
                    times = sortable(portion.table[roles.time])
                    earlier = latest is not None and bool(times[0] < latest)
                    is_sorted = times.is_sorted() and not earlier
                    latest = times[-1]
            left_out += len(portion) - len(complete)
            sample.add(complete.table, rows)
            rows += len(complete)
            bar.advance(len(portion))
    if not rows:
        raise InvalidInputError("the table has no rows with a target; expected rows to learn from")
    taken = sample.table()
    if source.text:
        taken = numbers_recognized(taken)
    return Survey(rows, left_out, taken, is_sorted, stamp)


class _Sample:
    """Every row with a number that is divisible by a step, which doubles while there are many."""

    def __init__(self, target: str | None) -> None:
        self._step = 1
        self._tables: list[tuple[pl.DataFrame, NDArray[np.int64]]] = []
        self._target = target
        self._values: pl.Series | None = None
        self._firsts: list[tuple[pl.DataFrame, NDArray[np.int64]]] = []

    def add(self, table: pl.DataFrame, first: int) -> None:
        """Takes what belongs to the sample from the next rows."""
        numbers = first + np.arange(len(table))
        self._tables.append(_thinned(table, numbers, self._step))
        self._add_new_values(table, numbers)
        while sum(len(kept) for kept, _ in self._tables) > 2 * SAMPLE_ROWS:
            self._step *= 2
            self._tables = [_thinned(kept, of, self._step) for kept, of in self._tables]

    def _add_new_values(self, table: pl.DataFrame, numbers: NDArray[np.int64]) -> None:
        """Keeps the first row of each value of the target, as long as they may be classes."""
        if self._target is None:
            return
        column = table[self._target]
        values = column.unique()
        known = values if self._values is None else pl.concat([self._values, values]).unique()
        if len(known) > MOST_CLASSES:
            self._target = None
            self._firsts = []
            return
        if self._values is None or len(known) > len(self._values):
            new = column.is_first_distinct()
            if self._values is not None:
                new &= ~column.is_in(self._values.implode())
            self._firsts.append((table.filter(new), numbers[new.to_numpy()]))
        self._values = known

    def table(self) -> pl.DataFrame:
        """Returns the rows in order, each once."""
        both = [*self._tables, *self._firsts]
        numbers = np.concatenate([of for _, of in both])
        together = pl.concat([kept for kept, _ in both], how="vertical_relaxed")
        _, places = np.unique(numbers, return_index=True)
        return together[places]


def _thinned(
    table: pl.DataFrame, numbers: NDArray[np.int64], step: int
) -> tuple[pl.DataFrame, NDArray[np.int64]]:
    kept = numbers % step == 0
    return table.filter(kept), numbers[kept]


def _with_targets(portion: RowPortion, roles: Roles) -> RowPortion:
    """Returns the rows that have all targets; an error names the first that has not."""
    gone = np.zeros(len(portion), dtype=bool)
    for name in roles.target:
        gone |= missing_in(portion.table[name]).to_numpy()
    if not gone.any():
        return portion
    if roles.impute == "error":
        raise InvalidInputError(
            f"the target is missing in {portion.row(int(gone.argmax()))}; remove such rows, "
            f"or give {spelled('impute', 'mean')}, median or zero, which leaves them out"
        )
    return portion.some(~gone)


class HeldRows:
    """An array of which only some rows are kept: those held out of a long stream.

    Args:
        length: How many rows the whole array would have.
        rows: (m,) the positions of those that are kept, in order.
        values: (m, ...) their values.
    """

    def __init__(self, length: int, rows: NDArray[np.int64], values: np.ndarray) -> None:
        self.shape = (length, *values.shape[1:])
        self.dtype = values.dtype
        self.ndim = values.ndim
        self._rows = rows
        self._values = values

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: NDArray[np.int64]) -> np.ndarray:
        """Returns kept rows, by their positions in the whole array."""
        places = np.searchsorted(self._rows, rows)
        if (places >= len(self._rows)).any() or (self._rows[places] != rows).any():
            raise IndexError("a row that is not held out was asked for; only those are kept")
        return np.asarray(self._values[places])


@dataclass(frozen=True)
class Landed:
    """A stream in files.

    Attributes:
        stream: The rows that are learned, without groups and times; X, Y and rows are mapped files.
        held: The rows that are not, in memory: all that were asked for, in order.
        groups: (n,) the number of each learned row's group, a mapped file; None without groups.
        group_names: The groups, in order of appearance.
        group_counts: How many learned rows each has.
        times: The times of the learned rows; None without times.
        files: Where all of this is.
    """

    stream: Stream
    held: Stream
    groups: np.ndarray | None
    group_names: tuple[str, ...]
    group_counts: np.ndarray
    times: "TimeTexts | None"
    files: RowFiles

    def described(self, rows: slice | NDArray[np.int64]) -> Stream:
        """Returns some of the learned rows, with groups and times."""
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        names = np.array(self.group_names, dtype=object)
        return replace(
            self.stream.part(rows),
            groups=None if self.groups is None else names[self._taken(self.groups, rows)],
            times=None if self.times is None else self.times.of(numbers),
        )

    def _taken(self, values: np.ndarray, rows: slice | NDArray[np.int64]) -> np.ndarray:
        some = values[rows] if isinstance(rows, slice) else self.files.taken(values, rows)
        return np.asarray(some)


class TimeTexts:
    """The times of the learned rows as text, in a file."""

    def __init__(self, files: RowFiles, rows: int) -> None:
        self._files = files  # keeps the folder
        self._path = files.folder / "times.text"
        self._path.write_bytes(b"")  # an interrupted process may have left some
        self._ends = files.array((rows + 1,), np.int64)
        self._rows = 0

    def add(self, texts: np.ndarray) -> None:
        """Adds the times of the next rows."""
        written = [str(text).encode() for text in texts]
        start = self._ends[self._rows]
        stop = self._rows + 1 + len(written)
        self._ends[self._rows + 1 : stop] = start + np.cumsum([len(text) for text in written])
        with self._path.open("ab") as file:
            file.write(b"".join(written))
        self._rows += len(written)

    def of(self, rows: NDArray[np.int64]) -> np.ndarray:
        """Returns the times of some rows."""
        starts = self._files.taken(self._ends, rows)
        stops = self._files.taken(self._ends, rows + 1)
        texts = []
        with self._path.open("rb") as file:
            for start, stop in zip(starts, stops, strict=True):
                file.seek(start)
                texts.append(file.read(stop - start).decode())
        return np.array(texts, dtype=object)


def land(
    source: RowSource,
    names: list[str],
    roles: Roles,
    found: Survey,
    not_learned: NDArray[np.int64],
    files: RowFiles,
) -> Landed:
    """Writes the rows that are learned to files; those `not_learned` are kept in memory.

    `not_learned` are positions among the rows with a target, in the order of learning.
    """
    if roles.lags:
        raise InvalidInputError(
            f"{spelled('lags')} is {roles.lags}, and the table has {found.rows:,} rows, too many "
            "to be held in memory; write the previous values as columns of the table"
        )
    if roles.logged:
        raise InvalidInputError(
            f"a log of predictions is given for {found.rows:,} rows, too many to be held in "
            "memory; give the rows of a shorter period"
        )
    numbers = np.arange(1, len(found.sample) + 1)
    # a missing value is not an error yet: the writer knows in which row it is
    lenient = replace(roles, impute="mean") if roles.impute == "error" else roles
    sample, preparation = prepare(Rows(found.sample, lenient, numbers))
    writer = _NumberWriter(replace(preparation, roles=roles), found, not_learned, files)
    if source.stamp() != found.stamp:
        raise InvalidInputError("the table has changed while it was read; diagnose it again")
    portions = source.portions(names)
    if not found.sorted:
        folder = files.folder / "by time"
        portions = in_order(source, names, roles, found.sample, found.rows, folder)
    with PatientBar("rows prepared", found.rows, unit="rows") as bar:
        for portion in portions:
            with told(portion):
                writer.add(_as_in_sample(_with_targets(portion, roles), found.sample))
            bar.advance(len(portion))
    return writer.landed(source, found, sample.adding_up)


def _as_in_sample(portion: RowPortion, sample: pl.DataFrame) -> RowPortion:
    """Returns text that holds numbers as numbers, where the sample has them."""
    changes = []
    for name, dtype in sample.schema.items():
        column = portion.table[name]
        if column.dtype != pl.String or not dtype.is_numeric():
            continue
        numbers = numbers_recognized(portion.table.select(by_name(name)))[name]
        if numbers.dtype == pl.String:
            parsed = column.str.strip_chars().cast(pl.Float64, strict=False)
            bad = int((parsed.is_null() & column.is_not_null()).arg_max() or 0)
            raise InvalidInputError(
                f"the column {shown(name)} holds the text {shown(column[bad])} in "
                f"{portion.row(bad)}, and numbers in others; fix this cell, or leave the column "
                f"out ({spelled('drop', [name])})"
            )
        changes.append(numbers)
    return replace(portion, table=portion.table.with_columns(changes))


class _Moments:
    """Mean and spread of columns, from portion to portion (Chan, Golub and LeVeque, 1983)."""

    def __init__(self, columns: int) -> None:
        self.counts = np.zeros(columns)
        self.means = np.zeros(columns)
        self._squares = np.zeros(columns)

    def add(self, values: np.ndarray) -> None:
        """Adds rows; NaN is left out."""
        known = ~np.isnan(values)
        counts = known.sum(axis=0)
        filled = np.where(known, values, 0.0)
        means = filled.sum(axis=0) / np.maximum(counts, 1)
        together = np.maximum(self.counts + counts, 1)
        steps = means - self.means
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is an error at the end
            squares = (np.where(known, values - means, 0.0) ** 2).sum(axis=0)
            self._squares += squares + steps**2 * self.counts * counts / together
        self.means += steps * counts / together
        self.counts += counts

    @property
    def scales(self) -> np.ndarray:
        """The standard deviations, as NumPy's."""
        return np.sqrt(self._squares / np.maximum(self.counts, 1))


class _NumberWriter:
    """Writes features and targets as they are, and scales them at the end."""

    def __init__(
        self,
        preparation: Preparation,
        found: Survey,
        not_learned: NDArray[np.int64],
        files: RowFiles,
    ) -> None:
        self._preparation = preparation
        self._roles = preparation.roles
        columns = sum(len(feature.feature_names) for feature in preparation.features)
        self._raw = replace(
            preparation,
            roles=replace(preparation.roles, impute="mean", group=None, time=None),
            features=tuple(_unscaled(feature) for feature in preparation.features),
            targets=replace(
                preparation.targets,
                means=np.zeros_like(preparation.targets.means),
                scales=np.ones_like(preparation.targets.scales),
            ),
        )
        rows = found.rows - len(not_learned)
        if rows < 2:
            raise InvalidInputError(
                f"{rows:,} of {found.rows:,} rows are left to learn from; expected at least 2"
            )
        self._not_learned = not_learned
        self._files = files
        targets = len(preparation.targets.names)
        self._X = files.array((rows, columns))
        self._Y = files.array((rows, targets))
        self._numbers = files.array((rows,), np.int64)
        grouped = self._roles.group is not None
        self._groups = files.array((rows,), np.int32) if grouped else None
        self._names: dict[str, int] = {}  # of groups, with their numbers
        self._counts: dict[str, int] = {}
        self._times = None if self._roles.time is None else TimeTexts(files, rows)
        self._held: list[Stream] = []
        self._of_X = _Moments(columns)
        self._of_Y = _Moments(targets)
        self._missing = dict.fromkeys((one.name for one in preparation.features), 0)
        self._unknown: dict[str, set[str]] = {}
        self._seen = 0  # rows with a target
        self._written = 0

    def add(self, portion: RowPortion) -> None:
        """Adds rows."""
        self._require_complete(portion)
        table = portion.table
        rows = Rows(table, self._roles, portion.numbers)
        raw = self._raw.apply(replace(rows, roles=self._raw.roles))
        raw = replace(
            raw, groups=rows.as_text(self._roles.group), times=rows.as_text(self._roles.time)
        )
        for feature in self._preparation.features:
            if not isinstance(feature, Number):
                text = table[feature.name].cast(pl.String).drop_nulls().unique()
                new = text.filter(~text.is_in(list(feature.values))).to_list()
                self._unknown.setdefault(feature.name, set()).update(new[:MOST_SHOWN])
        positions = np.arange(self._seen, self._seen + len(table))
        self._seen += len(table)
        is_held = np.isin(positions, self._not_learned)
        if is_held.any():
            self._held.append(raw.part(is_held))
        self._write(raw.part(~is_held))
        self._files.advance(len(table))

    def _write(self, raw: Stream) -> None:
        """Writes rows that are learned."""
        rows = slice(self._written, self._written + len(raw))
        self._of_X.add(raw.X)
        self._of_Y.add(raw.Y)
        self._X[rows] = raw.X
        self._Y[rows] = raw.Y
        self._numbers[rows] = raw.rows
        if self._groups is not None and raw.groups is not None:
            for name, count in Counter(raw.groups).items():
                self._names.setdefault(name, len(self._names))
                self._counts[name] = self._counts.get(name, 0) + count
            self._groups[rows] = [self._names[name] for name in raw.groups]
        if self._times is not None and raw.times is not None:
            self._times.add(raw.times)
        self._written = rows.stop

    def _require_complete(self, portion: RowPortion) -> None:
        """Counts missing values of features; an error names the first of them."""
        for feature in self._preparation.features:
            column = portion.table[feature.name]
            gone = missing_in(column)
            if column.dtype.is_float():
                gone |= column.is_infinite().fill_null(False)
            count = int(gone.sum())
            if count and self._roles.impute == "error":
                raise InvalidInputError(
                    f"a value of {shown(feature.name)} is missing or infinite in "
                    f"{portion.row(int(gone.arg_max() or 0))}; fill such values in with "
                    f"{spelled('impute', 'mean')}, median or zero, or leave the column out "
                    f"({spelled('drop', [feature.name])})"
                )
            self._missing[feature.name] += count

    def landed(self, source: RowSource, found: Survey, adding_up: tuple[str, ...]) -> Landed:
        """Scales all that was written, and returns the stream."""
        preparation = self._scaled()
        features = [one for one in preparation.features for _ in one.feature_names]
        means = np.array([one.mean if isinstance(one, Number) else 0.0 for one in features])
        scales = np.array([one.scale if isinstance(one, Number) else 1.0 for one in features])
        fills = np.array([one.fill if isinstance(one, Number) else 0.0 for one in features])
        targets = preparation.targets

        def scale(X: np.ndarray, Y: np.ndarray) -> None:
            gone = np.isnan(X)
            if gone.any():
                X[gone] = np.broadcast_to(fills, X.shape)[gone]
            X -= means
            X /= scales
            Y -= targets.means
            Y /= targets.scales

        for start in range(0, len(self._X), SAMPLE_ROWS):
            some = slice(start, start + SAMPLE_ROWS)
            scale(self._X[some], self._Y[some])
            self._files.advance(len(self._X[some]))
        notes = self._notes(source, found)
        stream = Stream(
            X=self._X,
            Y=self._Y,
            kind=targets.kind,
            target_names=targets.names,
            target_means=targets.means,
            target_scales=targets.scales,
            feature_names=tuple(n for one in preparation.features for n in one.feature_names),
            rows=self._numbers,
            group_column=self._roles.group,
            notes=notes,
            adding_up=adding_up,
            files=self._files,
            moments=np.array(
                [
                    (self._of_Y.means - targets.means) / targets.scales,
                    (self._of_Y.scales / targets.scales) ** 2,
                ]
            ),
        )
        in_memory = replace(stream, files=None, moments=None)
        held = in_memory.part(slice(0, 0)) if not self._held else _joined(self._held, in_memory)
        scale(held.X, held.Y)
        self._files.release()
        return Landed(
            stream=stream,
            held=held,
            groups=self._groups,
            group_names=tuple(self._names),
            group_counts=np.array(list(self._counts.values()), dtype=np.int64),
            times=self._times,
            files=self._files,
        )

    def _scaled(self) -> Preparation:
        """Returns the preparation with means and spreads of all rows that are learned."""
        place = 0
        features: list[Number | Categories] = []
        for feature in self._preparation.features:
            if isinstance(feature, Number):
                mean = float(self._of_X.means[place])
                scale = float(self._of_X.scales[place])
                if not np.isfinite([mean, scale]).all():
                    raise _too_large(f"column {shown(feature.name)}")
                fill = mean if self._roles.impute in ("error", "mean") else feature.fill
                if not self._roles.standardize:
                    mean = 0.0
                    scale = 1.0
                feature = replace(feature, mean=mean, scale=scale, fill=fill)
            place += len(feature.feature_names)
            features.append(feature)
        targets = self._preparation.targets
        if targets.kind == "regression" and self._roles.standardize:
            targets = replace(targets, means=self._of_Y.means, scales=self._of_Y.scales)
        for name, spread in zip(targets.names, self._of_Y.scales, strict=True):
            if not np.isfinite(spread):
                raise _too_large(f"target {shown(name)}")
            if targets.kind == "regression" and not spread > 0:
                raise InvalidInputError(
                    f"all values of the target {shown(name)} are equal in the {self._written:,} "
                    "rows that are learned from; there is nothing to learn"
                )
        return replace(self._preparation, features=tuple(features), targets=targets)

    def _notes(self, source: RowSource, found: Survey) -> tuple[str, ...]:
        notes = [*source.notes]
        if not found.sorted:
            notes.append(f"Sorted the rows by {shown(str(self._roles.time))}.")
        if found.left_out:
            notes.append(f"Left out rows without a target: {found.left_out:,}.")
        notes += self._preparation.notes
        notes += self._preparation.fill_notes(
            {name: count for name, count in self._missing.items() if count}, self._seen
        )
        for name, values in self._unknown.items():
            if values:
                notes.append(
                    f"{shown(name)} holds categories that are in none of {len(found.sample):,} "
                    f"evenly spaced rows, such as {listed(sorted(values)[:3])}; their features "
                    "are 0."
                )
        notes.append(
            f"The table of {found.rows:,} rows is read in portions and kept on the disk. What its "
            f"columns hold was decided by {len(found.sample):,} evenly spaced rows; means and "
            "spreads are those of all rows that are learned."
        )
        return tuple(notes)


def _too_large(what: str) -> InvalidInputError:
    return InvalidInputError(
        f"the {what} holds numbers too large to compute with, as their spread overflows; rescale it"
    )


def _unscaled(feature: Number | Categories) -> Number | Categories:
    if isinstance(feature, Number):
        return replace(feature, mean=0.0, scale=1.0, fill=np.nan)
    return feature


def _joined(parts: list[Stream], like: Stream) -> Stream:
    """Returns the rows of several streams, described as another one is."""
    first = parts[0]
    return replace(
        like,
        X=np.concatenate([part.X for part in parts]),
        Y=np.concatenate([part.Y for part in parts]),
        rows=np.concatenate([part.rows for part in parts]),
        groups=None if first.groups is None else np.concatenate([part.groups for part in parts]),
        times=None if first.times is None else np.concatenate([part.times for part in parts]),
    )
