"""Reads experiments from TOML files: the package's by name, a user's own by path."""

import math
import re
import tomllib
from collections.abc import Container, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from retarget.errors import InvalidInputError
from retarget.lab.experiment import (
    MISSING,
    Case,
    Changes,
    Experiment,
    Mistake,
    families,
    mistakes_error,
    value_mistakes,
)
from retarget.storage import user_path
from retarget.text import did_you_mean, shown

SUFFIX = ".toml"
MAY_BE_CODE = ("backbone", "method")  # parameters that can name code, on the command line
LARGEST_FILE = 1_000_000
LARGEST_PLAN = 100_000  # runs
# Results are in a folder with the experiment's name, next to the folder of all runs.
NAME = re.compile(r"(?!runs$)\w[\w .+,()-]*")
LETTERS = "letters, digits, spaces and -_.+,()"


CONFIGS = resources.files("retarget.lab") / "configs"


def experiment_names() -> list[str]:
    """Returns the names of the package's experiments."""
    return sorted(Path(entry.name).stem for entry in CONFIGS.iterdir())


def experiment_descriptions() -> dict[str, tuple[str, str, str]]:
    """Returns title, data needed and time of each, read without checking the files."""
    files = {name: tomllib.loads(_text_of(name)) for name in experiment_names()}
    return {
        name: (file["title"], file.get("needs", "nothing"), file["takes"])
        for name, file in files.items()
    }


def _text_of(name: str) -> str:
    return (CONFIGS / f"{name}{SUFFIX}").read_text("utf-8")


def named_experiments(name: str) -> list[str]:
    """Returns the experiments that a name stands for: one, the parts of a figure, a file, or all.

    Examples:
        >>> named_experiments("fig6")
        ['fig6ad', 'fig6eh']
    """
    names = experiment_names()
    if name == "all":
        return names
    parts = [known for known in names if known.startswith(name)]
    whole_figure = name not in names and re.fullmatch(r"fig\d+", name)
    return parts if whole_figure and parts else [name]


def load_experiment(name: str) -> Experiment:
    """Loads an experiment of the package by name, or the user's own by a path that ends in `.toml`.

    Raises:
        InvalidInputError: There is no such experiment, the file cannot be read, or it has problems:
            the message lists all of them.
    """
    if name.endswith(SUFFIX):
        path = user_path(name)
        return parse_experiment(path.stem, _read(path))
    names = experiment_names()
    if name not in names:
        near = did_you_mean(name, names)
        raise InvalidInputError(
            f"there is no experiment {name!r}; "
            + (f"did you mean {near!r}? " if near else "")
            + f"known: {', '.join(names)}; or give the path of a file that ends in {SUFFIX}"
        )
    return parse_experiment(name, _text_of(name))


def parse_experiment(name: str, text: str) -> Experiment:
    """Parses the text of a TOML file, and checks all runs that it expands to."""
    if not NAME.fullmatch(name):
        raise InvalidInputError(
            f"{name!r} cannot name an experiment, whose results go to a folder of that name; "
            f"expected a file name of {LETTERS}, other than 'runs'"
        )
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for numbers with thousands of digits
        raise InvalidInputError(f"experiment {name} is not valid TOML: {error}") from error
    problems = [Mistake("name", "unknown key; the name is the file's")] * ("name" in content)
    content = content | {"name": name}
    try:
        experiment: Experiment | None = Experiment.model_validate(content)
        problems += _problems(experiment)
    except ValidationError as error:
        problems += value_mistakes(error, lambda key: key)
        experiment = _what_is_right(content, {detail["loc"][0] for detail in error.errors()})
        # a seemingly missing key may be inside an invalid one
        problems += (problem for problem in _problems(experiment) if problem.message != MISSING)
    if problems or experiment is None:
        raise mistakes_error(name, problems)
    return experiment


def parse_changes(assignments: Sequence[str], seeds: Sequence[int] = ()) -> Changes:
    """Parses `name=value` texts, with values in TOML."""
    parameters: dict[str, Any] = {}
    for assignment in assignments:
        try:
            parsed = tomllib.loads(assignment)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"{assignment!r} is not a setting: {error}; expected name=value, with the value in "
                "TOML"
            ) from error
        parameters |= parsed
    return Changes(seeds=tuple(seeds) or None, parameters=parameters)


def _read(path: Path) -> str:
    if path.exists() and not path.is_file():  # reading a pipe could block
        raise InvalidInputError(f"{path} is not a file; expected an experiment file")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidInputError(f"the experiment file {path} cannot be read: {reason}") from error
    if len(content) > LARGEST_FILE:
        raise InvalidInputError(
            f"{path} is too large for an experiment file; expected at most {LARGEST_FILE} bytes"
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path} is not text in UTF-8: {error}; expected TOML") from error


def _what_is_right(content: dict[str, Any], wrong: Container[int | str]) -> Experiment | None:
    """Returns an experiment with a file's valid keys, to check their values as well."""
    right = {key: value for key, value in content.items() if key not in wrong and key != "variant"}
    if "family" not in right:
        return None
    return Experiment.model_validate({"title": "", "seeds": [0]} | right)


def _problems(experiment: Experiment | None) -> Iterator[Mistake]:
    """Yields problems that the types of the values do not show."""
    if experiment is None:
        return
    known = families()
    if experiment.family not in known:
        near = did_you_mean(experiment.family, known)
        hint = f"did you mean {near!r}? " if near else ""
        yield Mistake("family", f"got {experiment.family!r}; {hint}known: {', '.join(known)}")
        return
    variant = experiment.variant
    if variant is not None and variant not in experiment.parameters:
        yield Mistake("variant", f"got {variant!r}; expected one of its parameters")
    for name in experiment.cases:  # a terminal or a figure could misinterpret other characters
        if not NAME.fullmatch(name):
            yield Mistake("cases", f"got {shown(name)}; expected a name of {LETTERS}")
    yield from _said_twice(experiment)
    code = list(_code_to_run(experiment))
    yield from code
    if code:
        return  # to check the runs would import it
    small = experiment.small()
    count = max(map(_count_runs, (experiment, small)))
    if count > LARGEST_PLAN:
        yield Mistake("grid", f"makes {count} runs; expected at most {LARGEST_PLAN}")
        return
    _, of_runs = experiment.expanded()
    yield from of_runs
    _, of_small = small.expanded()
    yield from (
        Mistake(f"quick: {problem.place}", problem.message)
        for problem in of_small
        if problem not in of_runs
    )


def _code_to_run(experiment: Experiment) -> Iterator[Mistake]:
    """Reports code to import: a file from someone else must not choose what is run."""
    from retarget.import_path import IMPORT_PATH  # with torch

    quick = experiment.quick.parameters if experiment.quick else {}
    tables = experiment.tables() | {"quick.parameters": quick}
    for name, case in experiment.cases.items():
        tables[f"cases.{name}.quick.parameters"] = case.quick.parameters
        tables[f"cases.{name}.quick.grid"] = case.quick.grid
    for place, table in tables.items():
        for parameter in MAY_BE_CODE:
            values = table.get(parameter)
            for value in values if isinstance(values, list) else [values]:
                if isinstance(value, str) and IMPORT_PATH.fullmatch(value):
                    yield Mistake(
                        f"{place}.{parameter}",
                        f"{value!r} is code to run; give it on the command line: --{parameter} "
                        f"{value}",
                    )


def _count_runs(experiment: Experiment) -> int:
    """Counts the runs of a plan without expanding it."""
    runs = 0
    for case in (experiment.cases or {"": Case()}).values():
        lists = (experiment.grid | case.grid).values()
        runs += len(case.seeds or experiment.seeds) * math.prod(len(values) for values in lists)
    return runs


def _said_twice(experiment: Experiment) -> Iterator[Mistake]:
    """Yields parameters that are given twice."""
    tables = experiment.tables()
    for place, table in tables.items():
        if place.endswith("grid"):
            beside = place.removesuffix("grid") + "parameters"
            for key in table.keys() & tables[beside].keys():
                yield Mistake(f"{place}.{key}", f"also in {beside}; expected it in one of them")
