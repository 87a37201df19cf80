"""Which rows are learned, and which are held out to ask two questions about what was learned.

Rows from all over the stream tell what a learner still knows; the last rows tell what it makes of
what comes next. A sorted stream fails the first and passes the second, a drifting one the other way
round, so both are asked.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retarget.diagnosis.answers import Evaluation, Question
from retarget.diagnosis.dialect import option
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.stream import Stream
from retarget.errors import InvalidInputError

ENOUGH = 30  # held-out rows: with fewer of them, nothing is recommended
MOST_SHARE = 0.2  # of the rows, which each set may take to hold so many
FEWEST_GROUPS = 4  # to hold out groups: two to learn from, two to ask about


class Split(NamedTuple):
    """A stream to learn from, and the rows held out for each question.

    There are none in a progressive evaluation: each row is scored before it is learned.
    """

    stream: Stream
    asked: dict[Question, Stream]
    whole_groups: bool = False  # whether the rows of a group belong together
    previous: np.ndarray | None = None  # (m, c) the targets of the row before each next one

    @property
    def progressive(self) -> bool:
        """Whether no row is held out."""
        return not self.asked


Held = dict[Question, NDArray[np.int64]]  # positions in the stream, in order


def split(stream: Stream, test: Stream | None, options: DiagnosisOptions) -> Split:
    """Holds out rows of a stream of numbers according to the options."""
    evaluation = options.evaluation_with(test)
    _require_numbers("the stream", stream)
    classes = stream.Y.argmax(axis=1) if stream.kind == "classification" else None
    held = held_out(len(stream), evaluation, options, classes, stream.groups)
    return split_at(stream, held, test, options)


def split_at(stream: Stream, held: Held, test: Stream | None, options: DiagnosisOptions) -> Split:
    """Returns the split of a stream of which these rows are held out."""
    _require_numbers("the stream", stream)
    learned = np.ones(len(stream), dtype=bool)
    asked: dict[Question, Stream] = {}
    for question, rows in held.items():
        learned[rows] = False
        asked[question] = stream.part(rows)
    if test is not None:
        _require_numbers("the test set", test)
        if test.X.shape[1:] != stream.X.shape[1:] or test.Y.shape[1] != stream.Y.shape[1]:
            raise InvalidInputError(
                f"the test set has {test.X.shape[1]} features and {test.Y.shape[1]} targets, the "
                f"stream {stream.X.shape[1]} and {stream.Y.shape[1]}; expected the same numbers"
            )
        asked["test"] = test
    previous = stream.Y[held["next"] - 1] if "next" in held else None
    return Split(stream.part(learned), asked, options.hold_out == "group", previous)


def held_out(
    rows: int,
    evaluation: Evaluation,
    options: DiagnosisOptions,
    classes: np.ndarray | None,
    groups: np.ndarray | None = None,
) -> Held:
    """Returns the rows that are held out for each question."""
    if evaluation in ("test", "progressive"):
        return {}
    if rows < 4:
        raise InvalidInputError(
            f"there are {rows} rows; expected at least 4 to learn from and hold out, or 2 with "
            f"{option('evaluation', 'progressive')}"
        )
    coming = np.empty(0, dtype=np.int64)
    if evaluation != "whole":
        coming = next_rows(rows, options.test_share, classes)
    past = np.arange(rows - len(coming))
    held: Held = {}
    if evaluation != "next":
        wanted = held_out_rows(rows, options.test_share)
        if options.hold_out == "group":
            kept_out = _whole_groups(groups, wanted, options.seed)
            held["whole"] = np.flatnonzero(kept_out)
            coming = coming[~kept_out[coming]]
        else:
            held["whole"] = _spread(past, wanted, classes, options.seed)
    if evaluation != "whole" and len(coming):
        held["next"] = coming
    return held


def held_out_rows(rows: int, test_share: float) -> int:
    """Returns how many rows to hold out for a question: the share, but 30 rows if there are 150."""
    return max(1, round(rows * test_share), min(ENOUGH, int(rows * MOST_SHARE)))


def next_rows(rows: int, test_share: float, classes: np.ndarray | None) -> NDArray[np.int64]:
    """Returns the last rows, fewer if less than a quarter of a class would be left to learn.

    In a stream that is sorted by class, the last rows may hold all of the last class, of which no
    model could then know anything. At most half of the rows are given up for that.
    """
    count = held_out_rows(rows, test_share)
    start = rows - count
    if classes is not None:
        _, number = np.unique(classes, return_inverse=True)
        total = np.bincount(number)
        held = np.bincount(number[start:], minlength=len(total))
        later = start
        while (4 * held > 3 * total).any() and 2 * (rows - later) > count:
            held[number[later]] -= 1
            later += 1
        if not (4 * held > 3 * total).any():
            start = later
    return np.arange(start, rows)


def _spread(
    past: NDArray[np.int64], count: int, classes: np.ndarray | None, seed: int
) -> NDArray[np.int64]:
    """Returns rows from all over the stream: one at random from each of so many strips of it.

    Strips are cut class by class, so every class has its share, from all over its own rows. A class
    of a single row is never held out.
    """
    rows = past
    if classes is not None:
        _, number = np.unique(classes[past], return_inverse=True)
        repeated = np.bincount(number)[number[rows]] > 1
        rows = rows[repeated]
        rows = rows[np.argsort(number[rows], kind="stable")]
    count = min(count, max(0, len(past) - 2), len(rows))
    edges = np.linspace(0, len(rows), count + 1)
    drawn = edges[:-1] + np.random.default_rng(seed).random(count) * np.diff(edges)
    return np.unique(rows[drawn.astype(np.int64)])


def _whole_groups(groups: np.ndarray | None, count: int, seed: int) -> NDArray[np.bool_]:
    """Returns (rows,) whether a row belongs to one of the groups that are held out at random."""
    if groups is None:
        raise InvalidInputError(
            "whole groups are to be held out, but no column names the groups; give "
            f"{option('group')} as well"
        )
    names, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < FEWEST_GROUPS:
        raise InvalidInputError(
            f"whole groups are to be held out, but there are only {len(names)}; expected at least "
            f"{FEWEST_GROUPS}, or hold out rows ({option('hold_out', 'rows')})"
        )
    order = np.random.default_rng(seed).permutation(len(names))
    enough = int(np.searchsorted(np.cumsum(sizes[order]), count)) + 1
    chosen = order[: min(max(2, enough), len(names) - 2)]
    held: NDArray[np.bool_] = np.isin(number, chosen)
    return held


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
