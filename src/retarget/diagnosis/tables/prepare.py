"""From a table to a stream: learned from the first rows, and applied alike to all others.

Features that give the target away are refused: an online learner that is fed these learns nothing
else.
"""

import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from retarget.diagnosis.stream import Stream
from retarget.diagnosis.tables.columns import (
    Categories,
    Dropped,
    Number,
    TargetColumns,
    class_text,
    learn_column,
    learn_targets,
)
from retarget.diagnosis.tables.limits import require_table_size
from retarget.diagnosis.tables.names import require_column
from retarget.diagnosis.tables.roles import Roles, Rows
from retarget.errors import InvalidInputError
from retarget.text import MOST_SHOWN, listed, shown

CERTAIN = 1 - 1e-9  # correlation of an exact affine function, but for rounding
FEWEST_ROWS = 10  # in fewer, a perfect match may be chance


@dataclass(frozen=True)
class Preparation:
    """What is done to a table: means, scales and categories of the rows that are learned from.

    Attributes:
        roles: What the columns are for.
        features: How each column becomes features.
        targets: How the target columns become targets.
        notes: What was dropped and encoded, a sentence each.
    """

    roles: Roles
    features: tuple[Number | Categories, ...]
    targets: TargetColumns
    notes: tuple[str, ...]

    @classmethod
    def learn(cls, rows: Rows, train_rows: int) -> "Preparation":
        """Learns from the first `train_rows` rows.

        Raises:
            InvalidInputError: No feature is left, or the targets are unusable.
        """
        roles, notes = rows.roles, list(rows.notes)
        targets = learn_targets(rows, train_rows, notes)
        names = roles.features(rows.table.columns)
        learned = [
            learn_column(rows.table[name][:train_rows], roles.impute, roles.standardise)
            for name in names
        ]
        features = tuple(column for column in learned if not isinstance(column, Dropped))
        notes += described(learned)
        if not features:
            why = " ".join(notes) or "There is no column but the target, time and group."
            raise InvalidInputError(f"no feature is left to learn from. {why}")
        return cls(roles, features, targets, tuple(notes))

    def apply(self, rows: Rows) -> Stream:
        """The stream of some rows: those learned from, later ones, or a test set.

        Raises:
            InvalidInputError: A column is not there, or values are missing and may not be filled.
        """
        table = rows.table
        for column in self.features:
            require_column(table.columns, column.name, "feature")
        notes = self._fill_notes(table) + self._unseen_notes(table)
        names = tuple(name for column in self.features for name in column.feature_names)
        require_table_size("the matrix of features", len(table), 8 * len(names))
        X = np.empty((len(table), len(names)))
        start = 0
        for column in self.features:
            stop = start + len(column.feature_names)
            X[:, start:stop] = column.encode(table[column.name])
            start = stop
        return Stream(
            X=X,
            Y=self.targets.encode(table),
            kind=self.targets.kind,
            target_names=self.targets.names,
            target_means=self.targets.means,
            target_scales=self.targets.scales,
            feature_names=names,
            rows=rows.numbers,
            groups=rows.groups,
            group_column=rows.roles.group,
            times=rows.times,
            notes=(*self.notes, *notes),
        )

    def _fill_notes(self, table: pl.DataFrame) -> list[str]:
        missing = {c.name: c.missing(table[c.name]) for c in self.features}
        missing = {name: count for name, count in missing.items() if count}
        if not missing:
            return []
        first = list(missing.items())[:MOST_SHOWN]
        counts = ", ".join(f"{shown(name)} {count:,}" for name, count in first)
        counts += f" and {len(missing) - MOST_SHOWN:,} more" if len(missing) > MOST_SHOWN else ""
        if self.roles.impute == "error":
            raise InvalidInputError(
                f"values are missing or infinite: {counts} (of {len(table):,} rows); fill them "
                "in with --impute mean (median, zero), or leave the columns out (--drop)"
            )
        return [
            f"Missing values were filled in by the {self.roles.impute} (categories by the most "
            f"frequent one): {counts}."
        ]

    def _unseen_notes(self, table: pl.DataFrame) -> list[str]:
        unseen = {c.name: c.unseen(table[c.name]) for c in self.features}
        return [
            f"{len(cells):,} rows hold categories of {shown(name)} that were not learned "
            f"({listed(cells.unique(maintain_order=True).to_list())}): zeros."
            for name, cells in unseen.items()
            if len(cells)
        ]


def prepare(rows: Rows, train_rows: int | None = None) -> tuple[Stream, Preparation]:
    """The stream of a table's rows, and what makes the same of others.

    Numbers are standardised by the rows that are learned from; few different texts become one
    feature each; dates are seconds. Columns of text, identifiers, constants, lists and the like
    are dropped. One target column of text or booleans, or of whole numbers with at most 20
    different values for ten times as many rows, is taken as classes. The stream's notes say so.

    Args:
        rows: From `order_rows`.
        train_rows: How many of the first rows are learned from, by the preparation too; None for
            all.

    Raises:
        InvalidInputError: The table cannot be learned from; the message says why and what to do.
    """
    if len(rows) < 2:
        raise InvalidInputError("the table has one row; expected at least two to learn from")
    train_rows = len(rows) if train_rows is None else train_rows
    if not 2 <= train_rows <= len(rows):
        raise InvalidInputError(
            f"{train_rows:,} of {len(rows):,} rows are to be learned from; expected 2 to "
            f"{len(rows):,}"
        )
    preparation = Preparation.learn(rows, train_rows)
    stream = preparation.apply(rows)
    if not rows.roles.allow_leak:
        columns = [c.name for c in preparation.features for _ in c.feature_names]
        learned = slice(0, train_rows)
        require_no_leak(
            rows.table[learned], columns, stream.X[learned], stream.Y[learned], preparation.targets
        )
    return _with_duplicates_noted(stream), preparation


def _with_duplicates_noted(stream: Stream) -> Stream:
    distinct = pl.from_numpy(stream.X).hash_rows().n_unique()
    repeated = len(stream) - distinct
    if not repeated:
        return stream
    note = (
        f"{repeated:,} of {len(stream):,} rows have the features of an earlier one: a block of the "
        "iterative correction that holds such rows is singular without a ridge (--ridge)."
    )
    return replace(stream, notes=(*stream.notes, note))


def require_no_leak(
    table: pl.DataFrame,
    columns: Sequence[str],
    X: np.ndarray,
    Y: np.ndarray,
    targets: TargetColumns,
) -> None:
    """Refuses features that are the target in another form.

    Args:
        table: The rows that are learned from.
        columns: The column that each feature was made of.
        X: (n, d) features of these rows.
        Y: (n, c) their targets.
        targets: What the targets are.

    Raises:
        InvalidInputError: Some are, with their names.
    """
    if len(X) < FEWEST_ROWS:
        return
    if targets.kind == "regression":
        leaking = [
            name
            for name, feature in zip(columns, X.T, strict=True)
            if (np.abs(_correlations(feature, Y)) > CERTAIN).any()
        ]
        how = "an exact linear function of it"
    else:
        labels = class_text(table[targets.columns[0]])
        leaking = [name for name in dict.fromkeys(columns) if _names_classes(table[name], labels)]
        how = "each class has one value of its own there"
    leaking = list(dict.fromkeys(leaking))
    if leaking:
        options = " ".join(f"--drop {shlex.quote(name)}" for name in leaking)
        raise InvalidInputError(
            f"the target {listed(targets.columns)} is given away by {listed(leaking)} ({how}); "
            f"leave it out with {options if len(options) < 200 else '--drop'}, or accept that with "
            "--allow-leak"
        )


def _correlations(feature: np.ndarray, Y: np.ndarray) -> np.ndarray:
    feature, Y = feature - feature.mean(), Y - Y.mean(axis=0)
    lengths = np.linalg.norm(feature) * np.linalg.norm(Y, axis=0)
    lengths[lengths == 0] = np.inf  # what does not vary is not given away
    return np.asarray(feature @ Y / lengths)


def _names_classes(column: pl.Series, labels: pl.Series) -> bool:
    """Whether the column's values and the classes go together one to one."""
    pairs = pl.DataFrame({"value": column, "class": labels}).drop_nulls()
    values, classes = pairs["value"].n_unique(), pairs["class"].n_unique()
    return values == classes > 1 and pairs.n_unique() == classes


def described(learned: Sequence[Number | Categories | Dropped]) -> list[str]:
    """Notes on what becomes of the columns, alike ones together."""
    dropped: dict[str, list[str]] = defaultdict(list)
    for column in learned:
        if isinstance(column, Dropped):
            dropped[column.reason].append(column.name)
    notes = [f"Left out, since they {why}: {listed(names)}." for why, names in dropped.items()]
    encoded = [c.name for c in learned if isinstance(c, Categories)]
    if encoded:
        notes.append(f"One feature for each category of {listed(encoded)}.")
    moments = [c.name for c in learned if isinstance(c, Number) and c.moments]
    if moments:
        notes.append(f"Dates and times became seconds: {listed(moments)}.")
    return notes
