"""What an experiment is: what its TOML file says, and the runs that it expands to."""

import itertools
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import RenderableType

from retarget.errors import InvalidInputError
from retarget.text import did_you_mean, printable, shown

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


MISSING = "missing"
TWICE = "the same run twice; give each seed, and each value of a grid, once"
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
    for found in error.errors():
        kind, message = found["type"], found["msg"].removeprefix("Value error, ")
        if kind == "too_short" and len(found["input"]) >= found["ctx"]["min_length"]:
            continue  # only because of a value in it that has a line of its own
        key, *inner = (str(part) for part in found["loc"]) if found["loc"] else ("",)
        where = ".".join([place(key), *inner])
        if kind == "extra_forbidden":
            yield unknown_key(where, known(found["loc"]))
        elif kind == "missing":
            yield Problem(where, MISSING)
        elif kind == "value_error":  # of several values together, in our own words
            yield Problem(where, " ".join(message.split()))
        else:
            expected = message.replace("Input should be", "expected")
            yield Problem(where, f"got {shown(found['input'])}; {expected}")


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


# What the numbers of an experiment may be. (TOML has nan and inf.)
Number = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Values = Annotated[list[Any], Field(min_length=1)]
Counts = Annotated[list[Count], Field(min_length=1)]
Positives = Annotated[list[Positive], Field(min_length=1)]
# Pictures for Fig. 3B and Fig. 6 E to H: CORe50, or other pictures in its layout.
Core50Source = Literal["core50", "standin"]


class Config(BaseModel):
    """What determines the result of one run. Families add their parameters; unknown ones fail."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    seed: int

    def identifying(self) -> dict[str, Any]:
        """The parameters as they identify the run: without where on this machine things lie."""
        return self.model_dump(mode="json")


def reads_nothing() -> Mapping[str, str]:
    """The `data` of a family whose runs read no files."""
    return {}


RunAll = Callable[[Sequence[Any], Path | None], "Iterator[tuple[Any, pl.DataFrame]]"]


@dataclass(frozen=True)
class Family:
    """How the experiments of one kind are computed and shown.

    Attributes:
        config: The parameters of a run.
        run: From the configs of some runs to the table of each, in any order; no other input, no
            side effect but a checkpoint at the path given. Made by `one_by_one` where runs have
            nothing to gain from each other.
        draw: From the table of all runs to the figure.
        summarise: From the table of all runs to what the terminal shows.
        data: SHA-256 of what a run reads, by what it is; names say nothing of where it lies. Its
            arguments are parameters of the run, by name: those that decide what is read, so that
            runs which agree in them are looked up once. Raises `MissingDataError` as the run would.
        together: From a config to a text that runs have in common if they are to be computed at
            once; None for one that is computed alone.
        light: Whether runs take less time than a new process does.
    """

    config: type[Config]
    run: RunAll
    draw: "Callable[[pl.DataFrame], Figure]"
    summarise: "Callable[[pl.DataFrame], Sequence[RenderableType]]"
    data: Callable[..., Mapping[str, str]] = reads_nothing
    together: Callable[[Any], str | None] = lambda config: None
    light: bool = False


def one_by_one(run: "Callable[[Any], pl.DataFrame]") -> RunAll:
    """Runs that are computed one after the other, each from its config alone."""
    return lambda configs, checkpoint: ((config, run(config)) for config in configs)


Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1)]


class Changes(BaseModel):
    """Other seeds (None keeps the experiment's own) and other values of some parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seeds: Seeds | None = None
    parameters: dict[str, Any] = {}


class Case(Changes):
    """One of several things that an experiment compares: what is different in it."""

    grid: dict[str, Values] = {}


@dataclass(frozen=True)
class PlannedRun:
    """A run to compute, and what tells it from the other runs of its experiment."""

    config: Config
    labels: dict[str, Any]

    @property
    def name(self) -> str:
        """The labels in words."""
        return printable(in_words(self.labels))


def in_words(labels: Mapping[str, Any]) -> str:
    """What tells runs from others.

    Examples:
        >>> in_words({"case": "EWC", "seed": 3, "lr": 0.01})
        'EWC, seed 3, lr 0.01'
    """
    return ", ".join(f"{v}" if name == "case" else f"{name} {v}" for name, v in labels.items())


class Experiment(BaseModel):
    """An experiment as its TOML file describes it.

    Attributes:
        name: The file's name, without its suffix.
        family: The kind of experiment, a key of `families()`.
        title: One line for people.
        seeds: Seeds of the runs.
        parameters: What all runs have in common.
        grid: Lists of values; every combination is a run, for every seed.
        cases: What is compared, by name: each with parameters, lists of values and seeds of its
            own, instead of those of all.
        quick: Seeds and parameters of a small version that runs the same code.
        variant: A parameter whose values are never to be mistaken for one another: results have it
            in their name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    family: str
    title: str
    seeds: Seeds
    parameters: dict[str, Any] = {}
    grid: dict[str, Values] = {}
    cases: dict[str, Case] = {}
    quick: Changes | None = None
    variant: str | None = None

    @property
    def kind(self) -> Family:
        """How it is computed and shown."""
        return families()[self.family]

    @property
    def label(self) -> str:
        """What its results are called: a name for a folder."""
        if not self.variant:
            return self.name
        value = re.sub(r"[^\w.+-]", "_", str(self.parameters[self.variant]))
        return f"{self.name}-{value}"

    def changed(self, changes: Changes) -> "Experiment":
        """The same experiment with other seeds or parameters."""
        update: dict[str, Any] = {"parameters": self.parameters | changes.parameters}
        if changes.seeds:
            update["seeds"] = changes.seeds
        # A parameter that is given is no longer swept, nor different from case to case. Where it
        # was swept it still tells its one value: the table has the same columns.
        update["grid"] = _narrowed(self.grid, changes.parameters)
        update["cases"] = {
            name: Case(
                seeds=None if changes.seeds else case.seeds,
                parameters=_without(case.parameters, changes.parameters),
                grid=_narrowed(case.grid, changes.parameters),
            )
            for name, case in self.cases.items()
        }
        return self.model_copy(update=update)

    def where_it_fits(self, **parameters: Any) -> "Experiment":
        """The same experiment with those of these parameters that its kind has."""
        known = self.kind.config.model_fields
        fitting = {name: value for name, value in parameters.items() if name in known}
        return self.changed(Changes(parameters=fitting)) if fitting else self

    def tables(self) -> dict[str, dict[str, Any]]:
        """Every table that names parameters, by its place in the file."""
        found: dict[str, dict[str, Any]] = {"parameters": self.parameters, "grid": self.grid}
        for name, case in self.cases.items():
            found[f"cases.{name}.parameters"] = case.parameters
            found[f"cases.{name}.grid"] = case.grid
        return found

    def runs(self) -> list[Config]:
        """The configs of all runs, checked."""
        return [planned.config for planned in self.planned_runs()]

    def planned_runs(self) -> list[PlannedRun]:
        """All runs, checked, each with its seed, its case and its point of the grid.

        Raises:
            InvalidInputError: Parameters that the family does not have, or lacks, or of another
                kind; the message lists all of them.
        """
        planned, problems = self.expanded()
        if problems:
            raise problems_error(self.name, problems)
        return planned

    def expanded(self) -> tuple[list[PlannedRun], list[Problem]]:
        """The runs that make sense, and what is wrong with the parameters of the others.

        A parameter that is missing is not reported where there are unknown names: it may be one of
        them, misspelt.
        """
        unknown = list(self._unknown_parameters())
        cases, kind = self.cases or {"": Case()}, self.kind.config
        fields = list(kind.model_fields)  # pydantic takes its time to find them
        swept = {name for case in cases.values() for name in self.grid | case.grid}
        planned, problems = dict[str, PlannedRun](), list(unknown)
        for name, case in cases.items():
            grid = _without(self.grid, case.parameters) | case.grid
            for seed, *point in itertools.product(case.seeds or self.seeds, *grid.values()):
                values = self.parameters | case.parameters | dict(zip(grid, point, strict=True))
                known = {key: values[key] for key in fields if key in values}
                try:
                    config = kind(**(known | {"seed": seed}))
                except ValidationError as error:
                    found = value_problems(error, partial(self._place, case=name))
                    problems += [each for each in found if each.message != MISSING or not unknown]
                    continue
                if unknown:
                    continue
                labels = {"case": name} if self.cases else {}
                labels |= {key: getattr(config, key) for key in ("seed", *sorted(swept))}
                if str(labels) in planned:
                    problems.append(Problem(shown(in_words(labels)), TWICE))
                planned[str(labels)] = PlannedRun(config, labels)
        return list(planned.values()), problems

    def _unknown_parameters(self) -> Iterator[Problem]:
        known = [name for name in self.kind.config.model_fields if name != "seed"]
        for place, table in self.tables().items():
            for key in table:
                if key in ("seed", "seeds"):
                    yield Problem(f"{place}.{key}", "unknown key; seeds stand above: seeds = [0]")
                elif key not in known:
                    yield unknown_key(f"{place}.{key}", known)

    def _place(self, key: str, case: str) -> str:
        """Where the value of a parameter comes from, the strongest place first."""
        tables = self.tables()
        own = [f"cases.{case}.grid", f"cases.{case}.parameters"] if case else []
        places = [*own, "grid", "parameters"]
        place = next((place for place in places if key in tables.get(place, {})), None)
        if place is None:  # lacking, or of all of them together
            place = f"cases.{case}.parameters" if case else "parameters"
        return f"{place}.{key}" if key else place


@cache
def families() -> dict[str, Family]:
    """All kinds of experiments, by the name that the TOML files use."""
    from retarget.experiments.figures import digits, fig1, fig2, fig3, fig4, fig5, fig6, fig7

    return {
        "cifar curves": fig3.CIFAR_CURVES,
        "cifar memory": fig7.CIFAR_MEMORY,
        "cifar sweeps": fig6.CIFAR_SWEEPS,
        "core50 curves": fig3.CORE50_CURVES,
        "core50 memory": fig7.CORE50_MEMORY,
        "core50 sweeps": fig6.CORE50_SWEEPS,
        "digits": digits.FAMILY,
        "mnist curves": fig2.FAMILY,
        "mnist sweeps": fig5.FAMILY,
        "toy curves": fig4.FAMILY,
        "toy shift": fig1.FAMILY,
    }


def _narrowed(grid: dict[str, list[Any]], given: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [given[name]] if name in given else values for name, values in grid.items()}


def _without(values: dict[str, Any], names: Container[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
