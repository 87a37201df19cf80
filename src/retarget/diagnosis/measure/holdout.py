"""Which rows are learned, and which are held out to ask two questions about what was learned.

Rows from all over the stream tell what a learner still knows; the last rows tell what it makes of
what comes next. A sorted stream fails the first and passes the second, a drifting one the other way
round, so both are asked. Which rows of the whole stream are held out is a matter of chance, so this
is done several times, in folds.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retarget.diagnosis.answers import Evaluation, Question
from retarget.diagnosis.measure.groups import Partition
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.stream import Stream
from retarget.errors import InvalidInputError
from retarget.row_files import RowFiles

ENOUGH = 30  # held-out rows: with fewer of them, nothing is recommended
MOST_SHARE = 0.2  # of the rows, which each set may take to hold so many
FEWEST_GROUPS = 4  # to hold out groups: two to learn from, two to ask about
MOST_FOLDS = 10
RECALL_WORK = 3e8  # rows squared times folds in which the online learner is asked: some seconds
COMPLETE_WORK = 2.2e11  # rows cubed times folds in which every learner is asked: some seconds
# Of a stream that is too long for memory:
MOST_WHOLE_ROWS = 10_000
MOST_NEXT_ROWS = 100_000
NO_ROWS = np.empty(0, dtype=np.int64)


class OnDisk(NamedTuple):
    """What belongs to a stream in files.

    Attributes:
        files: The files.
        groups: The groups of its rows, or consecutive parts of it.
        described: Returns a range of the stream, or some rows of it, with groups and times.
    """

    files: RowFiles
    groups: Partition
    described: Callable[[slice | NDArray[np.int64]], Stream]


class Split(NamedTuple):
    """A stream to learn from, and the rows held out for each question.

    There are none in a progressive evaluation: each row is scored before it is learned.

    Attributes:
        stream: The rows that are learned: all but those held out.
        asked: The rows held out for each question. For "whole" they are those of the first fold.
        whole_groups: Whether the rows of a group belong together.
        previous: (m, c) the targets of the row before each next one.
        past: All rows but the next ones, in order, if rows of the whole stream are held out.
        folds: For each fold, the rows of `past` that it holds out: none is in two folds. The first
            fold leaves `stream` to learn from.
        on_disk: What belongs to a stream that is too long for memory; None for others.
    """

    stream: Stream
    asked: dict[Question, Stream]
    whole_groups: bool = False
    previous: np.ndarray | None = None
    past: Stream | None = None
    folds: tuple[NDArray[np.int64], ...] = ()
    on_disk: "OnDisk | None" = None

    @property
    def progressive(self) -> bool:
        """Whether no row is held out."""
        return not self.asked

    def learned_in(self, fold: int) -> NDArray[np.int64]:
        """Returns the rows of `past` that are learned if a fold is held out."""
        rows = 0 if self.past is None else len(self.past)
        return np.setdiff1d(np.arange(rows), self.folds[fold])


class Held(NamedTuple):
    """Positions of the rows that are held out, each array in the order of the stream.

    Attributes:
        folds: Rows from the whole stream, one array for each fold.
        coming: The last rows.
    """

    folds: tuple[NDArray[np.int64], ...] = ()
    coming: NDArray[np.int64] = NO_ROWS

    @property
    def not_learned(self) -> NDArray[np.int64]:
        """The rows that are not learned when the first fold is held out."""
        return np.concatenate([*self.folds[:1], self.coming])


def split(stream: Stream, test: Stream | None, options: DiagnosisOptions) -> Split:
    """Holds out rows of a stream of numbers according to the options."""
    evaluation = options.evaluation_with(test)
    _require_numbers("the stream", stream)
    classes = stream.Y.argmax(axis=1) if stream.kind == "classification" else None
    held_out_rows = held_out(len(stream), evaluation, options, classes, stream.groups)
    return split_at(stream, held_out_rows, test, options)


def split_at(
    stream: Stream, held_out_rows: Held, test: Stream | None, options: DiagnosisOptions
) -> Split:
    """Returns the split of a stream of which these rows are held out."""
    _require_numbers("the stream", stream)
    learned = np.ones(len(stream), dtype=bool)
    learned[held_out_rows.not_learned] = False
    asked: dict[Question, Stream] = {}
    past: Stream | None = None
    folds: tuple[NDArray[np.int64], ...] = ()
    if held_out_rows.folds:
        asked["whole"] = stream.part(held_out_rows.folds[0])
        coming = held_out_rows.coming
        earlier = np.setdiff1d(np.arange(len(stream)), coming)
        whole_start = not len(coming) or earlier[-1] < coming[0]
        # a slice is a view of the stream and no second copy of a long one
        past = stream.part(slice(0, len(earlier)) if whole_start else earlier)
        folds = tuple(np.searchsorted(earlier, rows) for rows in held_out_rows.folds)
    if len(held_out_rows.coming):
        asked["next"] = stream.part(held_out_rows.coming)
    if test is not None:
        _require_numbers("the test set", test)
        if test.X.shape[1:] != stream.X.shape[1:] or test.Y.shape[1] != stream.Y.shape[1]:
            raise InvalidInputError(
                f"the test set has {test.X.shape[1]} features and {test.Y.shape[1]} targets, the "
                f"stream {stream.X.shape[1]} and {stream.Y.shape[1]}; expected the same numbers"
            )
        asked["test"] = test
    previous = stream.Y[held_out_rows.coming - 1] if len(held_out_rows.coming) else None
    whole_groups = options.hold_out == "group"
    return Split(stream.part(learned), asked, whole_groups, previous, past, folds)


def held_out(
    rows: int,
    evaluation: Evaluation,
    options: DiagnosisOptions,
    classes: np.ndarray | None,
    groups: np.ndarray | None = None,
) -> Held:
    """Returns the rows that are held out for each question."""
    if evaluation in ("test", "progressive"):
        return Held()
    if rows < 4:
        raise InvalidInputError(
            f"there are {rows} rows; expected at least 4 to learn from and hold out, or 2 with "
            f"{spelled('evaluation', 'progressive')}"
        )
    coming = NO_ROWS
    if evaluation != "whole":
        coming = next_rows(rows, options.test_share, classes)
    folds: list[NDArray[np.int64]] = []
    if evaluation != "next":
        wanted = held_out_rows(rows, options.test_share)
        past = np.arange(rows - len(coming))
        if options.hold_out == "group":
            folds = _folds_of_groups(groups, wanted, fold_count(len(past)), options.seed)
            left = np.setdiff1d(np.arange(rows), folds[0])
            most = max(0, min(len(left) // 2, len(left) - 2))  # the others are learned
            coming = np.intersect1d(coming, left[len(left) - most :])
            folds = [np.setdiff1d(fold, coming) for fold in folds]
            folds = [fold for fold in folds if len(fold)]
        else:
            folds = _spread(past, wanted, fold_count(len(past)), classes, options.seed)
    return Held(tuple(folds), coming)


def held_out_of_long(rows: int, options: DiagnosisOptions) -> Held:
    """Returns the rows that are held out of a stream that is too long for memory."""
    evaluation = options.evaluation_with(None)
    if evaluation == "progressive":
        raise InvalidInputError(
            f"{spelled('evaluation', 'progressive')} keeps every learner's errors on all rows, and "
            f"there are {rows:,}, too many to be held in memory; hold out rows, "
            f"{spelled('evaluation', 'both')}"
        )
    coming = NO_ROWS
    if evaluation != "whole":
        count = min(held_out_rows(rows, options.test_share), MOST_NEXT_ROWS)
        coming = np.arange(rows - count, rows)
    folds: tuple[NDArray[np.int64], ...] = ()
    if evaluation != "next":
        past = rows - len(coming)
        count = min(held_out_rows(rows, options.test_share), MOST_WHOLE_ROWS, past - 2)
        rng = np.random.default_rng(options.seed)
        # one of each strip, as of a shorter stream; the first strips have one row more
        lengths = np.full(count, past // count)
        lengths[: past % count] += 1
        starts = np.cumsum(lengths) - lengths
        folds = (starts + [rng.permutation(length)[0] for length in lengths],)
    return Held(folds, coming)


def held_out_rows(rows: int, test_share: float) -> int:
    """Returns how many rows to hold out for a question: the share, but 30 rows if there are 150."""
    return max(1, round(rows * test_share), min(ENOUGH, int(rows * MOST_SHARE)))


def fold_count(rows: int) -> int:
    """Returns how many times other rows from the whole stream are held out.

    Of a short stream every row is held out once, so that little is left to chance. Each fold costs
    a pass of the online learner; of a long stream, one fold has enough rows.
    """
    affordable = RECALL_WORK // rows**2
    return int(min(MOST_FOLDS, max(complete_folds(rows), affordable)))


def complete_folds(rows: int) -> int:
    """Returns in how many folds all learners are asked, not only the online learner.

    Each costs a factorization, for the batch model and for the corrected targets.
    """
    affordable = COMPLETE_WORK // rows**3
    return int(min(MOST_FOLDS, max(1, affordable)))


def next_rows(rows: int, test_share: float, classes: np.ndarray | None) -> NDArray[np.int64]:
    """Returns the last rows, fewer if less than a quarter of a class would be left to learn.

    In a stream that is sorted by class, the last rows may hold all of the last class, of which no
    model could then know anything.
    """
    count = held_out_rows(rows, test_share)
    start = rows - count
    if classes is not None:
        _, number = np.unique(classes, return_inverse=True)
        total = np.bincount(number)
        counts = np.bincount(number[start:], minlength=len(total))
        repeated = total > 1  # a class of one row cannot be both learned and asked about
        while start < rows - 1 and (repeated & (4 * counts > 3 * total)).any():
            counts[number[start]] -= 1
            start += 1
    return np.arange(start, rows)


def _spread(
    past: NDArray[np.int64], count: int, folds: int, classes: np.ndarray | None, seed: int
) -> list[NDArray[np.int64]]:
    """Returns rows from all over the stream: for each fold, one of each of so many strips of it.

    Strips are cut class by class, so every class has its share, from all over its own rows. No fold
    holds out all rows of a class. There are as many folds as the shortest strip has rows.
    """
    rows = past
    number = np.zeros(len(past), dtype=np.int64)
    if classes is not None:
        _, number = np.unique(classes[past], return_inverse=True)
        repeated = np.bincount(number)[number[rows]] > 1
        rows = rows[repeated]
        rows = rows[np.argsort(number[rows], kind="stable")]
    count = min(count, max(0, len(past) - 2), len(rows))
    if not count:
        return []
    strips = np.array_split(rows, count)
    rng = np.random.default_rng(seed)
    folds = min(folds, len(strips[-1]))
    drawn = np.array([rng.permutation(strip)[:folds] for strip in strips])
    return [_without_whole_classes(np.sort(fold), number) for fold in drawn.T]


def _without_whole_classes(fold: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns a fold that leaves one row of each class to learn.

    A class of a few rows may lie in as many strips, which know nothing of each other.
    """
    names, first, counts = np.unique(number[fold], return_index=True, return_counts=True)
    return np.delete(fold, first[counts == np.bincount(number)[names]])


def _folds_of_groups(
    groups: np.ndarray | None, count: int, folds: int, seed: int
) -> list[NDArray[np.int64]]:
    """Returns the rows of each fold: all rows of some groups, at least two, drawn at random.

    A group that has more than half of the rows is always learned.
    """
    if groups is None:
        raise InvalidInputError(
            "whole groups are to be held out, but no column names the groups; give "
            f"{spelled('group')} as well"
        )
    names, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < FEWEST_GROUPS:
        raise InvalidInputError(
            f"whole groups are to be held out, but there are only {len(names)}; expected at least "
            f"{FEWEST_GROUPS}, or hold out rows, {spelled('hold_out', 'rows')}"
        )
    order = np.random.default_rng(seed).permutation(len(names))
    order = order[2 * sizes[order] <= len(groups)]
    rows_of_folds: list[NDArray[np.int64]] = []
    first = 0
    while len(rows_of_folds) < folds:
        enough = int(np.searchsorted(np.cumsum(sizes[order[first:]]), count)) + 1
        last = first + max(2, enough)
        if not rows_of_folds:
            last = min(last, len(names) - 2)  # two groups to learn from
        elif last > len(order):
            break
        rows_of_folds.append(np.flatnonzero(np.isin(number, order[first:last])))
        first = last
    return rows_of_folds


def as_tensors(stream: Stream) -> tuple[Tensor, Tensor]:
    """Returns X and Y as tensors."""
    X, Y = (np.ascontiguousarray(array, dtype=np.float64) for array in (stream.X, stream.Y))
    return torch.from_numpy(X), torch.from_numpy(Y)


def _require_numbers(what: str, stream: Stream) -> None:
    for name, array in (("X", stream.X), ("Y", stream.Y)):
        if array.ndim != 2 or len(array) != len(stream.X) or array.shape[1] == 0:
            raise InvalidInputError(
                f"{what} has {name} of shape {array.shape}; expected (rows, columns), and the "
                "same number of rows in X and Y"
            )
        if not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0]) + 1
            raise InvalidInputError(
                f"{what} holds a value that is not a finite number in row {row} of {name}; fill in "
                "or remove missing values first"
            )
