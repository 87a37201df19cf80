"""What is wrong with an experiment file, in one line a problem."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from retarget.errors import InvalidInputError
from retarget.text import did_you_mean, shown

# By pydantic's names of what went wrong; in braces is what it knows of it.
EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a table of keys and values",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "less_than_equal": "{le:g} or less",
    "list_type": "a list",
    "model_type": "a table of keys and values",
    "string_type": "a text in quotes",
    "too_long": "{max_length} values",
    "too_short": "{min_length} values",
    "tuple_type": "a list",
}
MESSAGES = {"Value error, ": "", "Input should be ": "expected "}
MISSING = "missing"
SHOWN = 3  # places of the same problem


class Problem(NamedTuple):
    """What is wrong, and where in the file."""

    place: str
    message: str


def unknown_key(place: str, known: Sequence[str]) -> Problem:
    """A key that has no meaning there, and the nearest that has one."""
    near = did_you_mean(place.rpartition(".")[2], known)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
    return Problem(place, f"unknown key; {hint}")


def value_problems(
    error: ValidationError,
    place: Callable[[str], str],
    known: Callable[[Sequence[int | str]], Sequence[str]] = lambda place: (),
) -> Iterator[Problem]:
    """Each problem of some values.

    Args:
        error: What pydantic says.
        place: From a key, with what is inside of it, to its place in the file; of an empty one, to
            that of them all.
        known: From where an unknown key was found to those that may stand there.
    """
    unknown = {found["loc"] for found in error.errors() if found["type"] == "extra_forbidden"}
    for found in error.errors():
        if found["type"] == "too_short" and len(found["input"]) >= found["ctx"]["min_length"]:
            continue  # only because of a value in it that has a line of its own
        key, *inner = (str(part) for part in found["loc"]) if found["loc"] else ("",)
        where = ".".join([place(key), *inner])
        if found["loc"] in unknown:
            yield unknown_key(where, known(found["loc"]))
        elif found["type"] != "missing" or not _is_misspelt(found["loc"], unknown):
            yield Problem(where, _wrong(found))


def problems_error(name: str, problems: Iterable[Problem]) -> InvalidInputError:
    """The error that lists the problems of an experiment, each once."""
    places: dict[str, dict[str, None]] = {}  # in order, and without those that come again
    for problem in problems:
        places.setdefault(problem.message, {})[problem.place] = None
    lines = []
    for message, where in places.items():
        more = f" and {len(where) - SHOWN} more" if len(where) > SHOWN else ""
        lines.append(f"{', '.join(list(where)[:SHOWN])}{more}: {message}")
    if len(lines) == 1:
        return InvalidInputError(f"experiment {name}: {lines[0]}")
    listed = "".join(f"\n  {line}" for line in lines)
    return InvalidInputError(f"experiment {name} has {len(lines)} problems:{listed}")


def _is_misspelt(place: Sequence[int | str], unknown: Iterable[Sequence[int | str]]) -> bool:
    """Whether a missing key is there under another name."""
    beside = [str(other[-1]) for other in unknown if other[:-1] == place[:-1]]
    return did_you_mean(str(place[-1]), beside) is not None


def _wrong(found: Any) -> str:
    kind, message = found["type"], found["msg"]
    if kind == "missing":
        return MISSING
    if kind == "too_short" and found["ctx"]["min_length"] == 1:
        return "empty; expected at least one value"
    for start, instead in MESSAGES.items():
        if message.startswith(start):
            message = instead + message.removeprefix(start)
    if kind == "value_error":  # of several values together, in our own words
        return " ".join(message.split())
    about = found.get("ctx", {})
    expected = f"expected {EXPECTED[kind].format(**about)}" if kind in EXPECTED else message
    return f"got {shown(found['input'])}; {expected}"
