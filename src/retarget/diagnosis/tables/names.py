"""Columns, asked for by name: found, or refused with the nearest right name."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from retarget.errors import InvalidInputError
from retarget.text import did_you_mean, listed, shown

MOST_COLUMNS_SHOWN = 40
# Gives the columns to load, of those that there are.
Choose = Callable[[Sequence[str]], list[str]]


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
    near = did_you_mean(name.lower(), list(by_small_letters)[:5000])
    hint = f"did you mean {shown(by_small_letters[near])}? " if near else ""
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
