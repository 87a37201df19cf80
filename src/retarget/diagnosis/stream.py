"""A user's stream as numbers, with rows in the order in which they were learned."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import numpy as np

from retarget.row_files import RowFiles

TargetKind = Literal["regression", "classification"]


class HeldOf(NamedTuple):
    """Which rows of a longer stream are held.

    Attributes:
        positions: Their positions, in order.
        length: How many rows the stream has.
    """

    positions: np.ndarray
    length: int


@dataclass(frozen=True)
class Stream:
    """Rows that are ready to be learned from, and their names.

    Attributes:
        X: (n, d) features as the kernel takes them, in float64.
        Y: (n, c) targets, float64: standardized numbers, or one-hot classes.
        kind: Whether the targets are numbers or classes.
        target_names: The c target columns, or the c classes.
        target_means: (c,) what was subtracted from each target; zeros for classes.
        target_scales: (c,) what each target was divided by; ones for classes.
        feature_names: The d features.
        rows: (n,) the number of each row in the user's file or array: 1 is the first row (in a
            file, the first below the header).
        groups: (n,) the group of each row, as text; None without groups.
        group_column: The name of the groups; None without groups.
        times: (n,) the value that orders the rows, as text; None if nothing does.
        notes: What was done to the columns (dropped, filled in, encoded), one sentence each.
        adding_up: Columns of which a target is an exact linear function, such as the parts of a
            sum; empty if there are none.
        moments: (2, c) the targets' means and variances, if these are known without reading Y.
        files: The files that X, Y and rows are in; None if they are in memory.
        held: Which rows of a longer stream these are; None if they are all.
    """

    X: np.ndarray
    Y: np.ndarray
    kind: TargetKind
    target_names: tuple[str, ...]
    target_means: np.ndarray
    target_scales: np.ndarray
    feature_names: tuple[str, ...]
    rows: np.ndarray
    groups: np.ndarray | None = None
    group_column: str | None = None
    times: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    adding_up: tuple[str, ...] = ()
    moments: np.ndarray | None = None
    files: RowFiles | None = None
    held: "HeldOf | None" = None

    def __len__(self) -> int:
        return len(self.X)

    @property
    def length(self) -> int:
        """How many rows the whole stream has."""
        return len(self) if self.held is None else self.held.length

    @property
    def positions(self) -> np.ndarray:
        """(n,) where these rows are in the whole stream, from 0."""
        return np.arange(len(self)) if self.held is None else self.held.positions

    def nearest(self, position: int) -> int:
        """Returns which of these rows is at a position of the whole stream, or nearest to it."""
        if self.held is None:
            return position
        places = self.held.positions
        after = min(int(np.searchsorted(places, position)), len(places) - 1)
        before = max(0, after - 1)
        return before if position - places[before] < places[after] - position else after

    def part(self, rows: slice | np.ndarray) -> Self:
        """Returns the stream of some rows."""
        X: np.ndarray
        if self.files is None or isinstance(rows, slice) or rows.dtype == bool:
            X, Y, numbers = self.X[rows], self.Y[rows], self.rows[rows]
            files = self.files
        else:
            taken = self.files.taken
            X, Y, numbers = (taken(values, rows) for values in (self.X, self.Y, self.rows))
            files = None
        return replace(
            self,
            X=X,
            Y=Y,
            rows=numbers,
            files=files,
            groups=None if self.groups is None else self.groups[rows],
            times=None if self.times is None else self.times[rows],
            moments=None,
        )

    def farthest(self, targets: np.ndarray) -> float:
        """Returns the largest distance of targets (n, c) from the mean, in standard deviations."""
        mean, variance = self._moments()
        spread = np.sqrt(variance)
        distance = np.abs(targets - mean) / np.where(spread > 0, spread, 1.0)
        return float(distance.max())

    def squared(self, errors: np.ndarray) -> np.ndarray:
        """Returns (m,) the mean square of each row's errors (m, c), in the user's units."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(np.square(errors * self.target_scales).mean(axis=1))

    @property
    def target_length(self) -> float:
        """The mean length of a row's targets."""
        return float(np.linalg.norm(self.Y, axis=1).mean())

    @property
    def variance(self) -> float:
        """The mean variance of the targets, in the user's units: the error of their mean."""
        return float((self._moments()[1] * self.target_scales**2).mean())

    @property
    def mean_target(self) -> np.ndarray:
        """(c,) the mean of the targets; for classes, their shares."""
        return np.asarray(self._moments()[0])

    def _moments(self) -> np.ndarray:
        if self.moments is not None:
            return self.moments
        with np.errstate(over="ignore", invalid="ignore"):
            return np.array([self.Y.mean(axis=0), self.Y.var(axis=0)])

    def in_units(self, targets: np.ndarray) -> np.ndarray:
        """Converts targets (m, c) to the user's own units."""
        return np.asarray(targets * self.target_scales + self.target_means)
