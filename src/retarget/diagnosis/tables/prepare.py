"""Turns a table into a stream of numbers, by rules learned from the first rows only.

Features are numbers, dates (as seconds), or one feature for each category; targets are standardized
numbers, or one output for each class. scikit-learn's transformers are not used: importing them
takes longer than preparing most tables, and most of the work here is to detect what a column holds.
A feature that gives the target away is an error: an online learner would learn nothing else.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.stream import Stream, TargetKind
from retarget.diagnosis.tables.dates import ISO, date_pattern, parsed_dates
from retarget.diagnosis.tables.roles import (
    Roles,
    Rows,
    as_numbers,
    is_plain,
    parsed_numbers,
    require_column,
    require_table_size,
)
from retarget.errors import InvalidInputError
from retarget.text import MOST_SHOWN, listed, shown

MOST_CATEGORIES = 50
MOSTLY = 0.9  # a text column with a larger share of numbers is meant to be numbers
# customer_id, userId, index, row, and column_1 for a column without a name: row numbers
IDENTIFIER = re.compile(
    r"(?:.*[_\W])?(?:id|ids|uuid|guid|key|index|idx|row)|.*[a-z](?:Id|ID)|column_\d+"
)
CERTAIN = 1 - 1e-9  # correlation of an exact affine function, up to rounding
FEWEST_ROWS = 10  # with fewer, a perfect match may be chance
FITTED_ROWS = 5000  # on which a linear fit is tried
NEGLIGIBLE = 1e-4  # share of a column in an exact linear fit that is only rounding
ROUNDING = 1e-14  # a spread below this, relative to the largest value, is rounding
MOST_GUESSED_CLASSES = 20  # different whole numbers that are taken as classes
ROWS_A_GUESSED_CLASS = 10
MOST_CLASSES = 1000
LARGEST_INTEGER = 1e38  # in 128 bits
# Why columns are dropped
CONSTANT = "constant columns"
EMPTY = "columns that are empty in the rows learned from"


@dataclass(frozen=True)
class Number:
    """A column of numbers, or of dates as seconds: (value - mean) / scale."""

    name: str
    mean: float
    scale: float
    fill: float  # replaces missing values
    dates: str | None  # the format of dates in text; None for numbers

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The name of its one feature."""
        return (self.name,)

    def encode(self, column: pl.Series) -> tuple[np.ndarray, int, pl.Series]:
        """Returns (n, 1) features, the number of missing cells, and no unknown categories."""
        values = as_numbers(column, self.dates)
        missing = np.isnan(values)
        values[missing] = self.fill
        values -= self.mean
        values /= self.scale
        return values[:, None], int(missing.sum()), column.clear()


@dataclass(frozen=True)
class Categories:
    """A column of few different values, encoded one-hot."""

    name: str
    values: tuple[str, ...]
    fill: str  # the most frequent one, which replaces missing values

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One feature for each category."""
        return tuple(f"{self.name}={value}" for value in self.values)

    def encode(self, column: pl.Series) -> tuple[np.ndarray, int, pl.Series]:
        """Returns (n, categories) features, the number of missing cells, and unknown categories."""
        text = column.cast(pl.String)
        unknown = text.filter(~text.is_in(list(self.values)))
        text = text.fill_null(self.fill)
        features = np.column_stack([(text == value).to_numpy() for value in self.values])
        return features.astype(float), column.null_count(), unknown


def learn_column(column: pl.Series, roles: Roles, numbers: np.ndarray) -> Number | Categories | str:
    """Decides how a column becomes features, or why it is dropped (as in "Dropped ...: a, b.").

    `numbers` are the rows' numbers, for errors.
    """
    dtype = column.dtype
    present = column.drop_nulls()
    if not is_plain(dtype):
        return "columns of lists, bytes or objects"
    if len(present) == 0:
        return EMPTY
    if dtype in (pl.Boolean, pl.Categorical, pl.Enum):
        return _learn_categories(column)
    dates = ISO if dtype.is_temporal() else None
    if dtype == pl.String and not _holds_numbers(present):
        dates = date_pattern(column, numbers)
        if dates is None or parsed_dates(present, dates).null_count():
            return _learn_categories(column)
    return _learn_numbers(column, roles, dates)


def _holds_numbers(present: pl.Series) -> bool:
    """Whether text cells are numbers; a few texts among many numbers are an error."""
    numbers = parsed_numbers(present)
    share = 1 - numbers.null_count() / len(present)
    if MOSTLY <= share < 1:
        others = present.filter(numbers.is_null())
        raise InvalidInputError(
            f"the column {shown(present.name)} holds numbers, but text in {len(others):,} rows "
            f"({_distinct(others)}); empty these cells, or leave the column "
            f"out ({spelled('drop')})"
        )
    return share == 1


def _distinct(cells: pl.Series) -> str:
    return listed(cells.unique(maintain_order=True).to_list())


def _learn_categories(column: pl.Series) -> Categories | str:
    # under a neutral name: the user's column may be called "count"
    counts = column.cast(pl.String).drop_nulls().alias("value").value_counts()
    if len(counts) == 1:
        return CONSTANT
    if len(counts) > min(MOST_CATEGORIES, len(column) / 2):
        return "text columns with too many different values"
    # among equally frequent categories, the first in the alphabet
    frequent = counts.filter(pl.col("count") == pl.col("count").max())
    return Categories(column.name, tuple(sorted(counts["value"])), min(frequent["value"]))


def _learn_numbers(column: pl.Series, roles: Roles, dates: str | None) -> Number | str:
    values = as_numbers(column, dates)
    values = values[~np.isnan(values)]
    if len(values) == 0:
        return EMPTY
    if column.dtype.is_integer() and IDENTIFIER.fullmatch(column.name) and column.is_unique().all():
        return "columns that seem to number the rows (rename them to keep them)"
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(values.mean())
        scale = float(values.std())
    if not np.isfinite([mean, scale]).all():
        raise InvalidInputError(
            f"the column {shown(column.name)} holds numbers too large to compute with (up to "
            f"{np.abs(values).max():.3g}); rescale it, or leave it out ({spelled('drop')})"
        )
    if scale <= ROUNDING * np.abs(values).max():
        return CONSTANT
    fill = {"median": float(np.median(values)), "zero": 0.0}.get(roles.impute, mean)
    if not roles.standardize:
        mean = 0.0
        scale = 1.0
    return Number(column.name, mean, scale, fill, dates)


@dataclass(frozen=True)
class TargetColumns:
    """How target columns become (n, c) targets: (value - mean) / scale, or one-hot classes."""

    kind: TargetKind
    columns: tuple[str, ...]
    names: tuple[str, ...]  # the columns, or the classes
    means: np.ndarray
    scales: np.ndarray

    def encode(self, table: pl.DataFrame) -> np.ndarray:
        """Returns the (n, c) targets of some rows."""
        if self.kind == "regression":
            return np.asarray((_target_numbers(table, self.columns) - self.means) / self.scales)
        labels = class_text(table[self.columns[0]])
        unknown = labels.filter(~labels.is_in(list(self.names)))
        if len(unknown):
            raise InvalidInputError(
                f"the target {shown(self.columns[0])} holds classes that the stream does not have "
                f"({_distinct(unknown)}, in {len(unknown):,} rows); remove these rows from the "
                "test set"
            )
        codes = labels.cast(pl.Enum(self.names)).to_physical()
        return np.asarray(np.eye(len(self.names))[codes.to_numpy()])


def target_kind(rows: Rows) -> TargetKind:
    """Returns the kind that the roles name, or what the content of the target suggests."""
    columns = rows.roles.target
    kind = rows.roles.kind
    if len(columns) > 1:
        if kind == "classification":
            raise InvalidInputError(
                f"{len(columns)} targets are named; expected one column of classes, or "
                f"{spelled('kind', 'regression')}"
            )
        return "regression"
    column = rows.table[columns[0]]
    if not is_plain(column.dtype):
        raise InvalidInputError(
            f"the target {shown(column.name)} holds {column.dtype}; expected numbers or classes"
        )
    if kind != "auto":
        return kind
    if column.dtype.is_integer():
        most = min(MOST_GUESSED_CLASSES, len(column) / ROWS_A_GUESSED_CLASS)
        return "classification" if column.n_unique() <= most else "regression"
    classes = column.dtype in (pl.Boolean, pl.String, pl.Categorical, pl.Enum)
    return "classification" if classes else "regression"


def learn_targets(rows: Rows, train_rows: int, notes: list[str]) -> TargetColumns:
    """Learns kind and classes from all rows, means and scales from the first `train_rows`."""
    columns = rows.roles.target
    kind = target_kind(rows)
    if kind == "classification":
        column = rows.table[columns[0]]
        if rows.roles.kind == "auto" and column.dtype.is_integer():
            notes.append(
                f"Took the target {shown(column.name)} as classes, since it holds "
                f"{column.n_unique()} different whole numbers; {spelled('kind', 'regression')} "
                "takes it as a number."
            )
        names = _classes(column, train_rows)
        return TargetColumns(kind, columns, names, np.zeros(len(names)), np.ones(len(names)))
    values = _target_numbers(rows.table, columns)[:train_rows]
    with np.errstate(over="ignore", invalid="ignore"):
        means = values.mean(axis=0)
        scales = values.std(axis=0)
    for name, column, mean, scale in zip(columns, values.T, means, scales, strict=True):
        if not np.isfinite([mean, scale]).all():
            raise InvalidInputError(
                f"the target {shown(name)} is too large to compute with; rescale it"
            )
        if scale <= ROUNDING * np.abs(column).max():
            raise _all_equal(rows.table[name], f"{column[0]:g}", train_rows)
    if not rows.roles.standardize:
        means = np.zeros(len(columns))
        scales = np.ones(len(columns))
    return TargetColumns(kind, columns, columns, means, scales)


def _all_equal(column: pl.Series, value: str, train_rows: int) -> InvalidInputError:
    advice = f"hold out fewer rows, give a test set by {spelled('test')}, or another order"
    if column.n_unique() == 1:
        advice = f"name a column whose values differ by {spelled('target')}"
    return InvalidInputError(
        f"all values of the target {shown(column.name)} are equal ({value}) in the {train_rows:,} "
        f"rows that are learned from; there is nothing to learn: {advice}"
    )


def _target_numbers(table: pl.DataFrame, columns: tuple[str, ...]) -> np.ndarray:
    return np.column_stack([_finite(table[name]) for name in columns])


def _finite(column: pl.Series) -> np.ndarray:
    name = shown(column.name)
    if column.dtype == pl.String:
        numbers = parsed_numbers(column)
        if numbers.null_count():
            raise InvalidInputError(
                f"the target {name} holds text such as "
                f"{shown(column.filter(numbers.is_null())[0])}; expected numbers, or classes, "
                f"{spelled('kind', 'classification')}"
            )
        column = numbers
    if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        raise InvalidInputError(
            f"the target {name} holds {column.dtype}; expected numbers, or text for classes"
        )
    values: np.ndarray = column.cast(pl.Float64).to_numpy()
    if count := int((~np.isfinite(values)).sum()):
        raise InvalidInputError(
            f"the target {name} is infinite in {count:,} rows; remove these rows"
        )
    return values


def class_text(column: pl.Series) -> pl.Series:
    """Returns the classes as text; whole numbers stored as floats lose their decimal point."""
    whole = column.dtype.is_float() and (column == column.round()).all()
    if whole and (column.abs() < LARGEST_INTEGER).all():
        column = column.cast(pl.Int128)
    return column.cast(pl.String)


def _classes(column: pl.Series, train_rows: int) -> tuple[str, ...]:
    if column.dtype.is_temporal():
        raise InvalidInputError(
            f"the target {shown(column.name)} holds {column.dtype}; expected classes"
        )
    # numbers sorted by value, text alphabetically
    text = class_text(column)
    by_value = column if column.dtype.is_numeric() else text
    classes = class_text(by_value.unique().sort()).to_list()
    if len(classes) > min(MOST_CLASSES, len(column) / 2):
        raise InvalidInputError(
            f"the target {shown(column.name)} holds {len(classes):,} different classes in "
            f"{len(column):,} rows ({listed(classes)}); expected numbers, or at most "
            f"{MOST_CLASSES:,} classes with two rows each or more"
        )
    learned = text[:train_rows].unique()
    if len(learned) == 1:
        raise _all_equal(column, shown(learned[0]), train_rows)
    return tuple(classes)


@dataclass(frozen=True)
class Preparation:
    """How the columns of a table become features and targets, with notes for the report."""

    roles: Roles
    features: tuple[Number | Categories, ...]
    targets: TargetColumns
    notes: tuple[str, ...]

    def apply(self, rows: Rows) -> Stream:
        """Returns the stream of some rows: those learned from, later ones, or a test set."""
        table = rows.table
        for feature in self.features:
            require_column(table.columns, feature.name, "test")
        names = tuple(name for feature in self.features for name in feature.feature_names)
        require_table_size("the matrix of features", len(table), 8 * len(table) * len(names))
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
                    f"In {len(unknown):,} rows, {shown(feature.name)} holds a category that was "
                    f"never learned ({_distinct(unknown)}); its features are 0 there."
                )
        fill_notes = self.fill_notes(missing, len(table))
        return Stream(
            X=X,
            Y=self.targets.encode(table),
            kind=self.targets.kind,
            target_names=self.targets.names,
            target_means=self.targets.means,
            target_scales=self.targets.scales,
            feature_names=names,
            rows=rows.numbers,
            groups=rows.as_text(rows.roles.group),
            group_column=rows.roles.group,
            times=rows.as_text(rows.roles.time),
            notes=(*rows.notes, *self.notes, *fill_notes, *unknown_notes),
        )

    def fill_notes(self, missing: dict[str, int], rows: int) -> list[str]:
        """Says how many cells of which columns were filled in; an error if none may be."""
        if not missing:
            return []
        first = list(missing.items())[:MOST_SHOWN]
        counts = ", ".join(f"{shown(name)} {count:,}" for name, count in first)
        counts += f" and {len(missing) - MOST_SHOWN:,} more" if len(missing) > MOST_SHOWN else ""
        if self.roles.impute == "error":
            raise InvalidInputError(
                f"values are missing or infinite: {counts} (of {rows:,} rows); fill them "
                f"in with {spelled('impute', 'mean')}, median or zero, or leave the columns "
                f"out ({spelled('drop')})"
            )
        fill = "0" if self.roles.impute == "zero" else f"the {self.roles.impute}"
        return [
            f"Filled in missing numbers with {fill} and missing categories with the most frequent "
            f"one: {counts}."
        ]


def prepare(rows: Rows, train_rows: int | None = None) -> tuple[Stream, Preparation]:
    """Learns a preparation from the first `train_rows` and applies it to all rows.

    Numbers are standardized; categories become one feature each; dates become seconds.
    Columns of text, identifiers, constants, lists and the like are dropped. One target column of
    text or booleans, or of whole numbers with at most 20 different values for ten times as many
    rows, is taken as classes. The stream's notes say so.
    """
    train_rows = len(rows) if train_rows is None else train_rows
    if not 2 <= train_rows <= len(rows):
        raise InvalidInputError(
            f"{train_rows:,} of {len(rows):,} rows are left to learn from; expected at least 2"
        )
    roles = rows.roles
    notes = list[str]()
    targets = learn_targets(rows, train_rows, notes)
    if roles.lags and targets.kind == "classification":
        raise InvalidInputError(
            f"{spelled('lags')} needs a target of numbers, and {shown(roles.target[0])} holds "
            f"classes; leave it out, or take it as a number with {spelled('kind', 'regression')}"
        )
    lags = set(roles.lag_names)
    features: list[Number | Categories] = []
    dropped: dict[str, list[str]] = defaultdict(list)
    for name in roles.features(rows.table.columns):
        column = rows.table[name][:train_rows]
        learned = (
            _learn_numbers(column, roles, dates=None)  # as the target, whatever its type
            if name in lags
            else learn_column(column, roles, rows.numbers[:train_rows])
        )
        if isinstance(learned, str):
            dropped[learned].append(name)
        else:
            features.append(learned)
    notes += [f"Dropped {what}: {listed(names)}." for what, names in dropped.items()]
    if encoded := [f.name for f in features if isinstance(f, Categories)]:
        notes.append(f"Made one feature for each category: {listed(encoded)}.")
    if dates := [f.name for f in features if isinstance(f, Number) and f.dates]:
        notes.append(f"Converted dates and times to seconds: {listed(dates)}.")
    if not features:
        raise _no_features(roles, targets, notes)
    preparation = Preparation(roles, tuple(features), targets, tuple(notes))
    stream = preparation.apply(rows)
    if not roles.allow_leak and train_rows >= FEWEST_ROWS:
        _require_no_leak(rows.table[:train_rows], preparation, stream.part(slice(0, train_rows)))
    if targets.kind == "regression":
        seen = stream.part(slice(0, train_rows))
        stream = replace(stream, adding_up=_adding_up(preparation, seen))
    repeated = len(stream) - pl.from_numpy(stream.X).hash_rows().n_unique()
    if repeated:
        note = (
            f"{repeated:,} of {len(stream):,} rows have the same features as an earlier row; the "
            f"iterative correction needs a ridge where a block holds such rows: {spelled('ridge')}."
        )
        stream = replace(stream, notes=(*stream.notes, note))
    return stream, preparation


def _no_features(roles: Roles, targets: TargetColumns, notes: list[str]) -> InvalidInputError:
    why = " ".join(notes) or "There are no columns besides target, time and group."
    advice = ""
    if targets.kind == "regression" and not roles.lags:
        advice = (
            " To learn a series from its own past, make features of its previous values: "
            f"{spelled('lags', 3)} takes the last three."
        )
    return InvalidInputError(f"no feature is left to learn from. {why}{advice}")


def _require_no_leak(table: pl.DataFrame, preparation: Preparation, stream: Stream) -> None:
    """Raises an error if features are the target in another form; lags are another row's target."""
    targets = preparation.targets
    lags = set(preparation.roles.lag_names)
    if targets.kind == "regression":
        how = "an exact linear function of it"
        columns = [feature.name for feature in preparation.features for _ in feature.feature_names]
        each = [(n, x) for n, x in zip(columns, stream.X.T, strict=True) if n not in lags]
        leaking = [n for n, x in each if (np.abs(_correlations(x, stream.Y)) > CERTAIN).any()]
    else:
        how = "each class has one value of its own there"
        labels = class_text(table[targets.columns[0]])
        leaking = [f.name for f in preparation.features if _names_classes(table[f.name], labels)]
    leaking = list(dict.fromkeys(leaking))
    if leaking:
        advice = spelled("drop", leaking)
        raise InvalidInputError(
            f"the target {listed(targets.columns)} is given away by {listed(leaking)} ({how}); "
            f"leave it out ({advice if len(advice) < 200 else spelled('drop')}), or accept that "
            f"with {spelled('allow_leak', True)}"
        )


def _adding_up(preparation: Preparation, stream: Stream) -> tuple[str, ...]:
    """Returns the columns of which a target is an exact linear function, such as parts of a sum.

    One such column alone is refused. Several may be a real law, or a sum that is known only
    together with its parts: the reader has to tell.
    """
    columns = [feature.name for feature in preparation.features for _ in feature.feature_names]
    lags = set(preparation.roles.lag_names)
    kept = np.array([name not in lags for name in columns])
    rows = np.unique(np.linspace(0, len(stream) - 1, FITTED_ROWS).astype(int))
    X = stream.X[rows][:, kept]
    # few rows, or copies of them, are always fitted exactly
    if not kept.any() or len(np.unique(X, axis=0)) < 2 * X.shape[1] + FEWEST_ROWS:
        return ()
    X = X - X.mean(axis=0)
    names = np.array(columns, dtype=object)[kept]
    for Y in (stream.Y[rows] - stream.Y[rows].mean(axis=0)).T:
        weights = np.linalg.lstsq(X, Y, rcond=None)[0]
        total = float(Y @ Y)
        if total == 0 or np.square(Y - X @ weights).sum() > (1 - CERTAIN) * total:
            continue
        shares = np.abs(weights) * np.linalg.norm(X, axis=0) / np.sqrt(total)
        return tuple(dict.fromkeys(names[shares > NEGLIGIBLE]))
    return ()


def _correlations(feature: np.ndarray, Y: np.ndarray) -> np.ndarray:
    feature = feature - feature.mean()
    Y = Y - Y.mean(axis=0)
    lengths = np.linalg.norm(feature) * np.linalg.norm(Y, axis=0)
    lengths[lengths == 0] = np.inf  # a constant target cannot be given away
    return np.asarray(feature @ Y / lengths)


def _names_classes(column: pl.Series, labels: pl.Series) -> bool:
    """Whether the column's values correspond one to one to the classes."""
    pairs = pl.DataFrame({"value": column, "class": labels}).drop_nulls()
    values = pairs["value"].n_unique()
    classes = pairs["class"].n_unique()
    return values == classes > 1 and pairs.n_unique() == classes
