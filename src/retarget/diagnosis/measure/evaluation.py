"""Which rows are learned from, and on which the learners are compared."""

from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from retarget.diagnosis.result import Evaluation
from retarget.diagnosis.stream import Stream
from retarget.errors import InvalidInputError


@dataclass(frozen=True)
class Split:
    """A stream, and the rows kept from it.

    Attributes:
        stream: The rows learned from.
        test: The rows held out; None where learners are compared on each row before learning it.
        evaluation: Which rows those are.
    """

    stream: Stream
    test: Stream | None
    evaluation: Evaluation


def split(stream: Stream, test: Stream | None, evaluation: str, test_share: float) -> Split:
    """Holds out rows as wanted. A given test set is used, whatever the share."""
    if evaluation not in get_args(Evaluation):
        raise InvalidInputError(
            f"evaluation is {evaluation!r}; expected one of {get_args(Evaluation)}"
        )
    _require_numbers("the stream", stream)
    if evaluation == "test set" and test is None:
        raise InvalidInputError("evaluation is 'test set', but no test rows were given; pass test")
    if test is not None:
        return _with_test_set(stream, test, evaluation)
    if evaluation == "progressive":
        _require_rows(stream, 2, "learn from")
        return Split(stream, None, "progressive")
    held = held_out_rows(len(stream), test_share)
    _require_rows(stream, 3, "learn from and hold out")
    cut = len(stream) - held
    return Split(part(stream, slice(0, cut)), part(stream, slice(cut, len(stream))), "last part")


def held_out_rows(rows: int, test_share: float) -> int:
    """How many rows the last part of a stream has: at least one, and at least two are left.

    Example:
        >>> held_out_rows(10, 0.25), held_out_rows(3, 0.2)
        (2, 1)
    """
    if not 0 < test_share < 1:
        raise InvalidInputError(f"test_share is {test_share}; expected a share between 0 and 1")
    return min(max(1, round(rows * test_share)), max(rows - 2, 0))


def part(stream: Stream, rows: slice | np.ndarray) -> Stream:
    """Some rows of a stream."""
    return replace(
        stream,
        X=stream.X[rows],
        Y=stream.Y[rows],
        rows=stream.rows[rows],
        groups=None if stream.groups is None else stream.groups[rows],
        times=None if stream.times is None else stream.times[rows],
    )


def _with_test_set(stream: Stream, test: Stream, evaluation: str) -> Split:
    if evaluation == "progressive":
        raise InvalidInputError(
            "test rows were given with evaluation 'progressive', which uses none; leave one out"
        )
    _require_numbers("the test set", test)
    _require_rows(stream, 2, "learn from")
    _require_rows(test, 1, "test on")
    if test.X.shape[1:] != stream.X.shape[1:] or test.Y.shape[1] != stream.Y.shape[1]:
        raise InvalidInputError(
            f"the test set has {test.X.shape[1]} features and {test.Y.shape[1]} targets, the "
            f"stream {stream.X.shape[1]} and {stream.Y.shape[1]}; expected the same"
        )
    return Split(stream, test, "test set")


def _require_rows(stream: Stream, least: int, purpose: str) -> None:
    if len(stream) < least:
        raise InvalidInputError(
            f"there are {len(stream)} rows; expected at least {least} to {purpose}"
        )


def _require_numbers(what: str, stream: Stream) -> None:
    for name, array in (("X", stream.X), ("Y", stream.Y)):
        if array.ndim != 2 or len(array) != len(stream.X) or array.shape[1] == 0:
            raise InvalidInputError(
                f"{what} has {name} of shape {array.shape}; expected (rows, columns), as many rows "
                "in X as in Y"
            )
        if not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
            raise InvalidInputError(
                f"{what} holds a value that is not a finite number in row {row} of {name}; fill in "
                "or remove what is missing first"
            )
