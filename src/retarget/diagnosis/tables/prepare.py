"""From a table to a stream: learned from the first rows, and applied alike to all others.

Features are numbers, moments, or one feature for each category. Written out here and not with
scikit-learn's transformers: importing those takes more time than preparing most tables, and what
is long is to tell what a column holds, which they do not do. Features that give the target away
are refused: an online learner that is fed these learns nothing else.
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from retarget.diagnosis.stream import Stream
from retarget.diagnosis.tables.roles import (
    Impute,
    Roles,
    Rows,
    is_plain,
    moments,
    parsed_numbers,
    require_column,
    require_table_size,
)
from retarget.diagnosis.tables.targets import ROUNDING, TargetColumns, class_text, learn_targets
from retarget.errors import InvalidInputError
from retarget.text import MOST_SHOWN, listed, shown

MOST_CATEGORIES = 50
MOSTLY = 0.9  # share of numbers from which on a column of text is meant to be numbers
# customer_id, userId, index, row, and column_1 of a header that had no name: these number the rows
IDENTIFIER = re.compile(
    r"(?:.*[_\W])?(?:id|ids|uuid|guid|key|index|idx|row)|.*[a-z](?:Id|ID)|column_\d+"
)
CERTAIN = 1 - 1e-9  # correlation of an exact affine function, but for rounding
FEWEST_ROWS = 10  # in fewer, a perfect match may be chance


@dataclass(frozen=True)
class Number:
    """A column of numbers, or of moments as seconds: (value - mean) / scale.

    Attributes:
        name: The column.
        mean: Subtracted.
        scale: Divided by.
        fill: Used instead of what is missing.
        moments: Whether it holds dates or times.
    """

    name: str
    mean: float
    scale: float
    fill: float
    moments: bool

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The one feature."""
        return (self.name,)

    def encode(self, column: pl.Series) -> tuple[np.ndarray, int, pl.Series]:
        """(n, 1) features, how many cells held no number, and no unknown categories."""
        values = as_numbers(column, self.moments)
        missing = np.isnan(values)
        values[missing] = self.fill
        values -= self.mean
        values /= self.scale
        return values[:, None], int(missing.sum()), column.clear()


@dataclass(frozen=True)
class Categories:
    """A column of few different values: a feature for each, 1 where the row has it, else 0.

    Attributes:
        name: The column.
        values: The categories.
        fill: The most frequent one, instead of what is missing.
    """

    name: str
    values: tuple[str, ...]
    fill: str

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One feature for each category."""
        return tuple(f"{self.name}={value}" for value in self.values)

    def encode(self, column: pl.Series) -> tuple[np.ndarray, int, pl.Series]:
        """(n, categories) features, how many cells were empty, and the unknown categories."""
        text = column.cast(pl.String)
        unknown = text.filter(~text.is_in(list(self.values)))
        text = text.fill_null(self.fill)
        features = np.column_stack([(text == value).to_numpy() for value in self.values])
        return features.astype(float), column.null_count(), unknown


def learn_column(column: pl.Series, impute: Impute, standardise: bool) -> Number | Categories | str:
    """What a column is, judged by the rows that are learned from.

    Returns:
        How it becomes features; or why it is left out, as the end of a sentence.
    """
    dtype = column.dtype
    if not is_plain(dtype):
        return "hold lists, bytes or objects"
    present = column.drop_nulls()
    if len(present) == 0:
        return "hold nothing in the rows that are learned from"
    if dtype in (pl.Boolean, pl.Categorical, pl.Enum):
        return _learn_categories(column)
    as_moments = dtype.is_temporal()
    if dtype == pl.String and not _holds_numbers(present):
        as_moments = moments(present).null_count() == 0
        if not as_moments:
            return _learn_categories(column)
    return _learn_numbers(column, impute, standardise, as_moments)


def as_numbers(column: pl.Series, as_moments: bool) -> np.ndarray:
    """(n,) a copy as float64; NaN where missing or infinite.

    Args:
        column: Numbers, moments (which become seconds), or text.
        as_moments: Whether text is moments; else it is numbers.
    """
    dtype = column.dtype
    if dtype == pl.String:
        numbers = _seconds(moments(column)) if as_moments else parsed_numbers(column)
        bad = numbers.is_null() & column.is_not_null()
        if bad.any():
            raise InvalidInputError(
                f"the column {shown(column.name)} holds the text "
                f"{shown(column.filter(bad)[0])} in {bad.sum():,} rows, and "
                f"{'dates' if as_moments else 'numbers'} in others; fix these cells, or leave the "
                "column out (--drop)"
            )
        column = numbers
    elif dtype.is_temporal():
        column = _seconds(column)
    elif not (dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)):
        raise InvalidInputError(
            f"the column {shown(column.name)} holds {dtype}; expected numbers, as in the rows that "
            "were learned from"
        )
    values: np.ndarray = column.cast(pl.Float64).fill_null(np.nan).to_numpy().copy()
    values[np.isinf(values)] = np.nan
    return values


def _seconds(column: pl.Series) -> pl.Series:
    if column.dtype == pl.Date:
        column = column.cast(pl.Datetime("us"))
    unit = "ns" if column.dtype == pl.Time else getattr(column.dtype, "time_unit", None) or "us"
    return column.to_physical() / {"ms": 1e3, "us": 1e6, "ns": 1e9}[unit]


def _holds_numbers(present: pl.Series) -> bool:
    """Whether text is numbers; text among many numbers is refused, since it is a mistake."""
    numbers = parsed_numbers(present)
    share = 1 - numbers.null_count() / len(present)
    if MOSTLY <= share < 1:
        others = present.filter(numbers.is_null())
        raise InvalidInputError(
            f"the column {shown(present.name)} holds numbers, and in {len(others):,} rows text "
            f"({listed(others.unique(maintain_order=True).to_list())}); leave these cells empty if "
            "they are missing, or leave the column out (--drop)"
        )
    return share == 1


def _learn_categories(column: pl.Series) -> Categories | str:
    # under a name of our own: the user's may be "count"
    counts = column.cast(pl.String).drop_nulls().alias("value").value_counts()
    if len(counts) == 1:
        return "hold one value only"
    if len(counts) > min(MOST_CATEGORIES, len(column) / 2):
        return "hold text, or too many different categories"
    # of equally frequent ones the first in the alphabet
    frequent = counts.filter(pl.col("count") == pl.col("count").max())
    return Categories(column.name, tuple(sorted(counts["value"])), min(frequent["value"]))


def _learn_numbers(
    column: pl.Series, impute: Impute, standardise: bool, as_moments: bool
) -> Number | str:
    values = as_numbers(column, as_moments)
    values = values[~np.isnan(values)]
    if len(values) == 0:
        return "hold nothing in the rows that are learned from"
    if column.dtype.is_integer() and IDENTIFIER.fullmatch(column.name) and column.is_unique().all():
        return "number the rows (rename them if they are features)"
    with np.errstate(over="ignore", invalid="ignore"):
        mean, scale = float(values.mean()), float(values.std())
    if not np.isfinite(mean) or not np.isfinite(scale):
        raise InvalidInputError(
            f"the column {shown(column.name)} holds numbers too large to compute with (up to "
            f"{np.abs(values).max():.3g}); rescale it, or leave it out (--drop)"
        )
    if scale <= ROUNDING * np.abs(values).max():
        return "hold one value only"
    fill = {"median": float(np.median(values)), "zero": 0.0}.get(impute, mean)
    if not standardise:
        mean, scale = 0.0, 1.0
    return Number(column.name, mean, scale, fill, as_moments)


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
        features: list[Number | Categories] = []
        left_out: dict[str, list[str]] = defaultdict(list)
        for name in roles.features(rows.table.columns):
            column = rows.table[name][:train_rows]
            learned = learn_column(column, roles.impute, roles.standardise)
            if isinstance(learned, str):
                left_out[learned].append(name)
            else:
                features.append(learned)
        notes += [
            f"Left out, since they {why}: {listed(names)}." for why, names in left_out.items()
        ]
        if encoded := [f.name for f in features if isinstance(f, Categories)]:
            notes.append(f"One feature for each category of {listed(encoded)}.")
        if dates := [f.name for f in features if isinstance(f, Number) and f.moments]:
            notes.append(f"Dates and times became seconds: {listed(dates)}.")
        if not features:
            why = " ".join(notes) or "There is no column but the target, time and group."
            raise InvalidInputError(f"no feature is left to learn from. {why}")
        return cls(roles, tuple(features), targets, tuple(notes))

    def apply(self, rows: Rows) -> Stream:
        """The stream of some rows: those learned from, later ones, or a test set.

        Raises:
            InvalidInputError: A column is not there, or values are missing and may not be filled.
        """
        table = rows.table
        for feature in self.features:
            require_column(table.columns, feature.name, "feature")
        names = tuple(name for feature in self.features for name in feature.feature_names)
        require_table_size("the matrix of features", len(table), 8 * len(names))
        X = np.empty((len(table), len(names)))
        missing: dict[str, int] = {}
        unknown_notes: list[str] = []
        start = 0
        for feature in self.features:
            values, empty, unknown = feature.encode(table[feature.name])
            X[:, start : start + values.shape[1]] = values
            start += values.shape[1]
            if empty:
                missing[feature.name] = empty
            if len(unknown):
                unknown_notes.append(
                    f"{len(unknown):,} rows hold categories of {shown(feature.name)} that were not "
                    f"learned ({listed(unknown.unique(maintain_order=True).to_list())}): zeros."
                )
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
            notes=(*self.notes, *self._fill_notes(missing, len(table)), *unknown_notes),
        )

    def _fill_notes(self, missing: dict[str, int], rows: int) -> list[str]:
        if not missing:
            return []
        first = list(missing.items())[:MOST_SHOWN]
        counts = ", ".join(f"{shown(name)} {count:,}" for name, count in first)
        counts += f" and {len(missing) - MOST_SHOWN:,} more" if len(missing) > MOST_SHOWN else ""
        if self.roles.impute == "error":
            raise InvalidInputError(
                f"values are missing or infinite: {counts} (of {rows:,} rows); fill them "
                "in with --impute mean (median, zero), or leave the columns out (--drop)"
            )
        return [
            f"Missing values were filled in by the {self.roles.impute} (categories by the most "
            f"frequent one): {counts}."
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
        columns = [f.name for f in preparation.features for _ in f.feature_names]
        X, Y = stream.X[:train_rows], stream.Y[:train_rows]
        _require_no_leak(rows.table[:train_rows], columns, X, Y, preparation.targets)
    repeated = len(stream) - pl.from_numpy(stream.X).hash_rows().n_unique()
    if repeated:
        note = (
            f"{repeated:,} of {len(stream):,} rows have the features of an earlier one: a block of "
            "the iterative correction that holds such rows is singular without a ridge (--ridge)."
        )
        stream = replace(stream, notes=(*stream.notes, note))
    return stream, preparation


def _require_no_leak(
    table: pl.DataFrame,
    columns: Sequence[str],
    X: np.ndarray,
    Y: np.ndarray,
    targets: TargetColumns,
) -> None:
    """Refuses features that are the target in another form; `columns` is what each is made of."""
    if len(X) < FEWEST_ROWS:
        return
    if targets.kind == "regression":
        how = "an exact linear function of it"
        leaking = [
            name
            for name, feature in zip(columns, X.T, strict=True)
            if (np.abs(_correlations(feature, Y)) > CERTAIN).any()
        ]
    else:
        how = "each class has one value of its own there"
        labels = class_text(table[targets.columns[0]])
        leaking = [n for n in dict.fromkeys(columns) if _names_classes(table[n], labels)]
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
