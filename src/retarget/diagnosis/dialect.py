"""Options as the reader writes them: `impute="mean"` in Python, `--impute mean` for the command.

Messages and advice are the same for both; only the options in them are written differently. The
name of an option of `retarget diagnose` is that of the argument of `rt.diagnose`, except for those
in these tables.
"""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

ARGUMENTS = {
    "target": "Y",
    "predictions": "model['before']",
    "predictions_after": "model['after']",
}
# Python has no option for the kind of the targets: their type says it.
CONVERTED = {"regression": "Y.astype(float)", "classification": "Y.astype(str)"}
NEGATED = {"standardize": "--as-they-are"}  # for False
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
        >>> option("lags", 3), option("test"), option("kind", "regression")
        ('lags=3', 'test=...', 'Y.astype(float)')
        >>> with command_line():
        ...     option("lags", 3), option("test"), option("drop", ["a b", "c"])
        ('--lags 3', '--test', "--drop 'a b' --drop c")
    """
    if not _by_command.get():
        if name == "kind":
            return CONVERTED[value]
        if name == "batch_size":
            return f"learner=rt.SGD(..., batch_size={value}, reduction=...)"
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | list) else value
        return f"{named(name)}={'...' if value is ... else text}"
    if value is ... or value is True:
        return named(name)
    if value is False:
        return NEGATED[name]
    values = value if isinstance(value, list) else [value]
    return " ".join(f"{named(name)} {shlex.quote(str(each))}" for each in values)


def command_hint(*options: str | tuple[str, Any]) -> str:
    """Returns options that only the command has, in brackets; in Python, nothing.

    Examples:
        >>> f"leave the column out{command_hint('drop')}"
        'leave the column out'
        >>> with command_line():
        ...     f"use fewer columns{command_hint('column', ('drop', ['a']))}"
        'use fewer columns (--column, --drop a)'
    """
    if not _by_command.get():
        return ""
    written = (option(one) if isinstance(one, str) else option(*one) for one in options)
    return f" ({', '.join(written)})"
