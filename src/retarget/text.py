"""Text for people: made safe to print, cut to length, "did you mean", amounts with units."""

import difflib
import math
import re
from collections.abc import Collection, Iterable
from typing import Any

from retarget.errors import InvalidInputError
from retarget.scalars import is_whole

LONGEST_SHOWN = 40
MOST_SHOWN = 8
LARGEST_SEED = 2**63  # not included; torch takes no larger ones
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)


def printable(text: str) -> str:
    r"""Returns text on one line, without control characters or others that cannot be shown.

    Examples:
        >>> printable("red\x1b[31m, a line\n, a byte that is not text \udcff")
        'red·[31m, a line·, a byte that is not text ·'
    """
    return "".join(letter if letter.isprintable() else "·" for letter in text)


def shown(value: object) -> str:
    """Formats a cell or a name for a message: quoted, on one line, cut if it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}...{text[0]}"


def listed(values: Collection[object], most: int = MOST_SHOWN) -> str:
    """Lists some values for a message, and how many more there are."""
    first = ", ".join(shown(value) for value, _ in zip(values, range(most), strict=False))
    more = len(values) - most
    return f"{first} and {more:,} more" if more > 0 else first


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Returns the known name closest to the given one; None if none is close.

    Examples:
        >>> did_you_mean("minst", ["cifar10", "mnist"])
        'mnist'
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return near[0] if near else None


def auto_or_number(option: str, text: str) -> Any:
    """Parses "auto", a whole number or any other finite number.

    Examples:
        >>> [auto_or_number("--lr", text) for text in ("0.1", "8", "auto")]
        [0.1, 8, 'auto']
    """
    if text.strip().lower() == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInputError(f"{option} is {text!r}; expected auto or a number")
    return number


def amount_of_memory(option: str, amount: str | float) -> int:
    """Returns bytes, from a number of them or from text.

    Examples:
        >>> [amount_of_memory("--max-memory", text) for text in ("4GB", "1.5 GiB", "500m")]
        [4000000000, 1610612736, 500000000]
    """
    match = AMOUNT.fullmatch(str(amount).strip())
    if match is None or float(match[1]) == 0:
        raise InvalidInputError(
            f"{option} is {amount!r}; expected an amount such as 4GB, 500MB or 2GiB"
        )
    unit = UNITS[match[2].upper()]
    if match[3]:
        unit = 1024 ** list(UNITS.values()).index(unit)
    return int(float(match[1]) * unit)


def as_seed(option: str, seed: Any) -> int:
    """Returns a seed that every generator of random numbers takes.

    Examples:
        >>> as_seed("--seed", 7)
        7
    """
    if not is_whole(seed) or not 0 <= seed < LARGEST_SEED:
        raise InvalidInputError(
            f"{option} is {seed!r:.80}; expected a whole number from 0 to {LARGEST_SEED - 1}, so "
            "that the same numbers can be drawn again"
        )
    return int(seed)


def duration(seconds: float) -> str:
    """Formats seconds for people.

    Examples:
        >>> [duration(seconds) for seconds in (0.21, 7.2, 201, 10861)]
        ['0.2 s', '7 s', '3 min 21 s', '3 h 1 min']
    """
    if seconds < 3:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
