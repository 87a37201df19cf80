"""From a table to a stream: learned from the first rows, and applied alike to all others."""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from retarget.diagnosis.stream import Stream
from retarget.diagnosis.tables.column_notes import described
from retarget.diagnosis.tables.columns import Categories, Dropped, Number, learn_column
from retarget.diagnosis.tables.leaks import require_no_leak
from retarget.diagnosis.tables.limits import require_table_size
from retarget.diagnosis.tables.names import MOST_SHOWN, listed, require_column, shown
from retarget.diagnosis.tables.roles import Roles
from retarget.diagnosis.tables.rows import Rows
from retarget.diagnosis.tables.targets import TargetColumns, learn_targets
from retarget.errors import InvalidInputError


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
