"""A user's stream as numbers, with rows in the order in which they were learned."""

from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

TargetKind = Literal["regression", "classification"]


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

    def __len__(self) -> int:
        return len(self.X)

    def part(self, rows: slice | np.ndarray) -> Self:
        """Returns the stream of some rows."""
        return replace(
            self,
            X=self.X[rows],
            Y=self.Y[rows],
            rows=self.rows[rows],
            groups=None if self.groups is None else self.groups[rows],
            times=None if self.times is None else self.times[rows],
        )

    def farthest(self, targets: np.ndarray) -> float:
        """Returns the largest distance of targets (n, c) from the mean, in standard deviations."""
        spread = self.Y.std(axis=0)
        distance = np.abs(targets - self.Y.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
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
        return float(self.squared(self.Y - self.Y.mean(axis=0)).mean())

    def in_units(self, targets: np.ndarray) -> np.ndarray:
        """Converts targets (m, c) to the user's own units."""
        return np.asarray(targets * self.target_scales + self.target_means)
