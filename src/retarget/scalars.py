"""Single numbers that users give: checked, and converted to Python's own types."""

import math
from numbers import Integral
from typing import Any, TypeGuard

from retarget.errors import InvalidInputError, InvalidTypeError


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number, of Python or NumPy; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def as_count(name: str, value: Any) -> int:
    """A whole number, 1 or more."""
    if not is_whole(value):
        raise InvalidTypeError(f"{name} is {value!r}; expected a whole number")
    if value < 1:
        raise InvalidInputError(f"{name} is {value}; expected 1 or more")
    return int(value)


def as_number(name: str, value: Any) -> float:
    """A number of any size, or NaN."""
    if isinstance(value, bool):
        raise InvalidTypeError(f"{name} is {value!r}; expected a number")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"{name} is {value!r}; expected a number") from error


def as_positive(name: str, value: Any) -> float:
    """A positive, finite number."""
    number = math.nan if isinstance(value, bool) else as_number(name, value)
    if not 0 < number < math.inf:
        raise InvalidInputError(f"{name} is {value!r}; expected a positive, finite number")
    return number


def as_non_negative(name: str, value: Any) -> float:
    """A finite number, zero or above."""
    number = math.nan if isinstance(value, bool) else as_number(name, value)
    if not 0 <= number < math.inf:
        raise InvalidInputError(f"{name} is {value!r}; expected a finite number, 0 or more")
    return number
