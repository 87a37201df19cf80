"""Columns, asked for by name: found, or refused with the nearest right name."""

import difflib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from retarget.errors import InvalidInputError

LONGEST_SHOWN = 40
MOST_SHOWN = 8
MOST_COLUMNS_SHOWN = 40
# Gives the columns to load, of those that there are.
Choose = Callable[[Sequence[str]], list[str]]


def shown(value: object) -> str:
    """A cell or a name for a message: quoted, on one line, cut where it is long."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}...{text[0]}"


def listed(values: Collection[object], most: int = MOST_SHOWN) -> str:
    """Some values for a message, and how many more there are."""
    first = ", ".join(shown(value) for value, _ in zip(values, range(most), strict=False))
    more = len(values) - most
    return f"{first} and {more:,} more" if more > 0 else first


def require_column(available: Sequence[str], name: str, option: str) -> None:
    """Refuses a name that no column has.

    Args:
        available: The columns.
        name: The one asked for.
        option: Which option asked for it, for the message.
    """
    if name in available:
        return
    # difflib compares with every name: beyond some thousands the list itself is of no help
    by_small_letters = {column.lower(): column for column in reversed(available)}
    near = difflib.get_close_matches(name.lower(), list(by_small_letters)[:5000], n=1)
    hint = f"did you mean {shown(by_small_letters[near[0]])}? " if near else ""
    raise InvalidInputError(
        f"{option}: there is no column {shown(name)}; {hint}the columns are: "
        f"{listed(available, MOST_COLUMNS_SHOWN)}"
    )


def require_distinct(names: Iterable[str], what: str) -> None:
    """Refuses a table in which a name means two columns."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InvalidInputError(
            f"{what} has more than one column named {listed(repeated)}; give each its own name"
        )


def chosen_columns(
    available: Sequence[str],
    columns: Sequence[str] | None,
    drop: Sequence[str],
    require_all: bool,
) -> list[str]:
    """The columns to load, in the table's order: those asked for (or all), but for the dropped."""
    if require_all:
        for name in columns or ():
            require_column(available, name, "column")
        for name in drop:
            require_column(available, name, "drop")
    wanted = set(available if columns is None else columns) - set(drop)
    return [name for name in available if name in wanted]
