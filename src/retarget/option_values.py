"""Values of command-line options that are more than a number."""

import math
import re
from typing import Literal

from retarget.errors import InvalidInputError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)


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


def amount_of_memory(text: str) -> int:
    """Bytes, written for people.

    Example:
        >>> amount_of_memory("4GB"), amount_of_memory("1.5 GiB"), amount_of_memory("500m")
        (4000000000, 1610612736, 500000000)
    """
    match = AMOUNT.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise InvalidInputError(
            f"--memory is {text!r}; expected an amount such as 4GB, 500MB or 2GiB"
        )
    unit = UNITS[match[2].upper()]
    if match[3]:
        unit = 1024 ** list(UNITS.values()).index(unit)
    return int(float(match[1]) * unit)
