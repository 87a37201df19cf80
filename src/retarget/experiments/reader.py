"""Experiments from their TOML files: those of the package by name, a user's own by path."""

import math
import re
import tomllib
from collections.abc import Container, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from retarget.errors import InvalidInputError
from retarget.experiments.experiment import (
    MISSING,
    Case,
    Changes,
    Experiment,
    Problem,
    families,
    problems_error,
    value_problems,
)
from retarget.storage import user_path
from retarget.text import did_you_mean, shown

SUFFIX = ".toml"
LARGEST_FILE = 1_000_000
LARGEST_PLAN = 100_000  # runs
# Results lie in a folder of the experiment's name, beside that of all runs.
NAME = re.compile(r"(?!runs$)\w[\w .+,()-]*")
LETTERS = "letters, digits, spaces and -_.+,()"


CONFIGS = resources.files("retarget.experiments") / "configs"


def experiment_names() -> list[str]:
    """The experiments that come with the package."""
    return sorted(Path(entry.name).stem for entry in CONFIGS.iterdir())


def experiment_titles() -> dict[str, str]:
    """Their titles by name, read from the files without checking these."""
    return {name: tomllib.loads(_text_of(name))["title"] for name in experiment_names()}


def _text_of(name: str) -> str:
    return (CONFIGS / f"{name}{SUFFIX}").read_text("utf-8")


def named_experiments(name: str) -> list[str]:
    """The experiments that a name stands for: itself, the parts of a figure, a file, or all.

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
    """An experiment of the package by its name, or the user's own by a path that ends in `.toml`.

    Raises:
        InvalidInputError: There is no such experiment, the file cannot be read, or it has problems:
            the message lists every one.
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
            + f"known: {', '.join(names)}; or the path of a file that ends with {SUFFIX}"
        )
    return parse_experiment(name, _text_of(name))


def parse_experiment(name: str, text: str) -> Experiment:
    """An experiment from the text of its TOML file, with all runs that it expands to checked."""
    if not NAME.fullmatch(name):
        raise InvalidInputError(
            f"{name!r} cannot name an experiment, whose results lie in a folder of that name; "
            f"expected {LETTERS} in the name of its file, and not 'runs'"
        )
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise InvalidInputError(f"experiment {name} is not valid TOML: {error}") from error
    problems = [Problem("name", "unknown key; the name is that of the file")] * ("name" in content)
    content = content | {"name": name}
    try:
        experiment: Experiment | None = Experiment.model_validate(content)
        problems += _problems(experiment)
    except ValidationError as error:
        problems += value_problems(error, lambda key: key)
        experiment = _what_is_right(content, {found["loc"][0] for found in error.errors()})
        # what seems to be missing may be in what is wrong
        problems += (found for found in _problems(experiment) if found.message != MISSING)
    if problems or experiment is None:
        raise problems_error(name, problems)
    return experiment


def parse_changes(assignments: Sequence[str], seeds: Sequence[int] = ()) -> Changes:
    """Changes from `name=value` texts, the value as TOML has it."""
    parameters: dict[str, Any] = {}
    for assignment in assignments:
        try:
            parsed = tomllib.loads(assignment)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"{assignment!r} is not a setting: {error}; expected name=value, the value in TOML"
            ) from error
        parameters |= parsed
    return Changes(seeds=tuple(seeds) or None, parameters=parameters)


def _read(path: Path) -> str:
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise InvalidInputError(f"{path} is not a file; expected an experiment file")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidInputError(f"the experiment file {path} cannot be read: {reason}") from error
    if len(content) > LARGEST_FILE:
        raise InvalidInputError(
            f"{path} has more than {LARGEST_FILE} bytes; no experiment file is that large"
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path} is not text in UTF-8: {error}; expected TOML") from error


def _what_is_right(content: dict[str, Any], wrong: Container[int | str]) -> Experiment | None:
    """An experiment of the valid keys of a file, to look for problems in their values as well."""
    right = {key: value for key, value in content.items() if key not in wrong and key != "variant"}
    if "family" not in right:
        return None
    return Experiment.model_validate({"title": "", "seeds": [0]} | right)


def _problems(experiment: Experiment | None) -> Iterator[Problem]:
    """Problems that the types of the values do not show."""
    if experiment is None:
        return
    known = families()
    if experiment.family not in known:
        near = did_you_mean(experiment.family, known)
        hint = f"did you mean {near!r}? " if near else ""
        yield Problem("family", f"got {experiment.family!r}; {hint}known: {', '.join(known)}")
        return
    variant = experiment.variant
    if variant is not None and variant not in experiment.parameters:
        yield Problem("variant", f"got {variant!r}; expected one of its parameters")
    for name in experiment.cases:  # a terminal or a figure would take others for something else
        if not NAME.fullmatch(name):
            yield Problem("cases", f"got {shown(name)}; expected a name of {LETTERS}")
    yield from _said_twice(experiment)
    yield from _code_to_run(experiment)
    count = _count_runs(experiment)
    if count > LARGEST_PLAN:
        yield Problem("grid", f"makes {count} runs; expected at most {LARGEST_PLAN}")
        return
    _, of_runs = experiment.expanded()
    yield from of_runs
    if experiment.quick:
        _, of_quick = experiment.changed(experiment.quick).expanded()
        yield from (
            Problem(f"quick: {problem.place}", problem.message)
            for problem in of_quick
            if problem not in of_runs
        )


def _code_to_run(experiment: Experiment) -> Iterator[Problem]:
    """A file from someone else must not choose what is imported and called."""
    from retarget.import_path import IMPORT_PATH  # with torch

    quick = experiment.quick.parameters if experiment.quick else {}
    for place, table in (experiment.tables() | {"quick.parameters": quick}).items():
        values = table.get("backbone")
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, str) and IMPORT_PATH.fullmatch(value):
                yield Problem(
                    f"{place}.backbone",
                    f"{value!r} is code to run; give it on the command line: --backbone {value}",
                )


def _count_runs(experiment: Experiment) -> int:
    """How many runs a plan has, without writing it out."""
    runs = 0
    for case in (experiment.cases or {"": Case()}).values():
        lists = (experiment.grid | case.grid).values()
        runs += len(case.seeds or experiment.seeds) * math.prod(len(values) for values in lists)
    return runs


def _said_twice(experiment: Experiment) -> Iterator[Problem]:
    """Parameters with two values at once."""
    tables = experiment.tables()
    for place, table in tables.items():
        if place.endswith("grid"):
            beside = place.removesuffix("grid") + "parameters"
            for key in table.keys() & tables[beside].keys():
                yield Problem(f"{place}.{key}", f"also in {beside}; expected it in one of them")
