"""Values of command-line options that are more than a number."""

import math
import re
from typing import Literal

from retarget.errors import InvalidInputError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)
SECONDS = {"": 1, "s": 1, "min": 60, "h": 3600}
TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|)", re.IGNORECASE)


def auto_or_number(option: str, text: str) -> float | Literal["auto"]:
    """A positive number, or the word that leaves the choice to us.

    Example:
        >>> auto_or_number("--lr", "0.1"), auto_or_number("--lr", "auto")
        (0.1, 'auto')
    """
    if text.strip().lower() == "auto":
        return "auto"
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise InvalidInputError(f"{option} is {text!r}; expected auto or a number above 0")
    return number


def amount_of_memory(option: str, text: str) -> int:
    """Bytes, written for people.

    Example:
        >>> [amount_of_memory("--memory", text) for text in ("4GB", "1.5 GiB", "500m")]
        [4000000000, 1610612736, 500000000]
    """
    match = AMOUNT.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise InvalidInputError(
            f"{option} is {text!r}; expected an amount such as 4GB, 500MB or 2GiB"
        )
    unit = UNITS[match[2].upper()]
    if match[3]:
        unit = 1024 ** list(UNITS.values()).index(unit)
    return int(float(match[1]) * unit)


def amount_of_time(option: str, text: str) -> float:
    """Seconds, written for people.

    Example:
        >>> [amount_of_time("--time-limit", text) for text in ("90", "1.5 min", "2h", "10s")]
        [90.0, 90.0, 7200.0, 10.0]
    """
    match = TIME.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise InvalidInputError(f"{option} is {text!r}; expected a time such as 90s, 10min or 2h")
    return float(match[1]) * SECONDS[match[2].lower()]
