"""Options as the reader writes them: `impute="mean"` in Python, `--impute mean` for the command.

Messages and advice are the same for both; only the options in them are written differently. The
name of an option of `retarget diagnose` is that of the argument of `rt.diagnose`, but for those in
these tables.
"""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

ARGUMENTS = {"target": "Y"}
NEGATED = {"standardize": "--as-they-are", "intercept": "--no-intercept"}  # for False
_by_command: ContextVar[bool] = ContextVar("by_command", default=False)


@contextmanager
def command_line() -> Iterator[None]:
    """Writes options as the command takes them, within a `with` block."""
    token = _by_command.set(True)
    try:
        yield
    finally:
        _by_command.reset(token)


def named(name: str) -> str:
    """Returns the name of an option.

    Examples:
        >>> named("hold_out")
        'hold_out'
        >>> with command_line():
        ...     named("hold_out")
        '--hold-out'
    """
    if _by_command.get():
        return f"--{name.replace('_', '-')}"
    return ARGUMENTS.get(name, name)


def option(name: str, value: Any = ...) -> str:
    """Returns an option with a value: text, a number, a bool, or a list for one that is repeated.

    Examples:
        >>> option("lags", 3), option("drop"), option("drop", ["a b", "c"])
        ('lags=3', 'drop=...', 'drop=["a b", "c"]')
        >>> with command_line():
        ...     option("lags", 3), option("drop"), option("drop", ["a b", "c"])
        ('--lags 3', '--drop', "--drop 'a b' --drop c")
    """
    if not _by_command.get():
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | list) else value
        return f"{named(name)}={'...' if value is ... else text}"
    if value is ... or value is True:
        return named(name)
    if value is False:
        return NEGATED[name]
    values = value if isinstance(value, list) else [value]
    return " ".join(f"{named(name)} {shlex.quote(str(each))}" for each in values)
