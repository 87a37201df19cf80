"""An experiment as described by its TOML file, and the runs that it expands to."""

import itertools
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from rich.console import RenderableType

from retarget.errors import InvalidInputError
from retarget.text import did_you_mean, printable, shown

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure


MISSING = "missing"
TWICE = "this run appears twice; give each seed, and each value of a grid, once"
SHOWN = 3  # places named for the same problem


class Mistake(NamedTuple):
    """What is wrong, and where in the file."""

    place: str
    message: str


def unknown_key(place: str, known: Sequence[str]) -> Mistake:
    """Reports a key that has no meaning there, with the nearest known one."""
    near = did_you_mean(place.rpartition(".")[2], known)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
    return Mistake(place, f"unknown key; {hint}")


def value_mistakes(error: ValidationError, place: Callable[[str], str]) -> Iterator[Mistake]:
    """Yields each problem that pydantic has found; `place` returns where in the file a key is."""
    for detail in error.errors():
        kind = detail["type"]
        message = detail["msg"]
        loc = detail["loc"]
        if kind == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]:
            continue  # only due to a value in it, which is reported separately
        key, *inner = (str(part) for part in loc or ("",))
        where = ".".join([place(key), *inner])
        if kind == "extra_forbidden":
            kinds: dict[str, type[BaseModel]] = {"cases": Case, "quick": Small}
            keys = (kinds[key] if inner else Experiment).model_fields
            yield unknown_key(where, [name for name in keys if name != "name"])
        elif kind == "missing":
            yield Mistake(where, MISSING)
        elif kind == "value_error":  # our own validators, about several values together
            yield Mistake(where, " ".join(message.removeprefix("Value error, ").split()))
        else:
            expected = message.replace("Input should be", "expected")
            yield Mistake(where, f"got {shown(detail['input'])}; {expected}")


def mistakes_error(name: str, problems: Iterable[Mistake]) -> InvalidInputError:
    """Returns the error that lists the problems of an experiment, each once."""
    places: dict[str, dict[str, None]] = {}  # in order, each once
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


# Valid ranges of an experiment's numbers. (TOML allows nan and inf.)
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Values = Annotated[list[Any], Field(min_length=1)]
Counts = Annotated[list[Count], Field(min_length=1)]
Positives = Annotated[list[Positive], Field(min_length=1)]
# Pictures for Figs. 3B, 6 E to H and 7 C: CORe50, or other pictures in its layout.
Core50Source = Literal["core50", "standin"]


class Config(BaseModel):
    """The parameters that determine the result of one run; each family adds its own."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    seed: int

    def identifying(self) -> dict[str, Any]:
        """Returns the parameters that identify the run, without paths on this machine."""
        return self.model_dump(mode="json")


def reads_nothing() -> Mapping[str, str]:
    """The `data` of a family whose runs read no files."""
    return {}


RunAll = Callable[[Sequence[Any], Path | None], "Iterator[tuple[Any, pl.DataFrame]]"]


@dataclass(frozen=True)
class Family:
    """How experiments of one kind are computed and shown.

    Attributes:
        config: The class of a run's parameters.
        run: Computes the table of each of some runs, in any order. It has no other input, and no
            side effect except a checkpoint at the given path.
        draw: Draws the figure from the table of all runs.
        summarize: Returns what the terminal shows, from the table of all runs.
        data: Returns the SHA-256 of everything a run reads, by name. Its arguments are the
            parameters that decide what is read, so that runs with the same ones are looked up once.
        together: Returns a key that runs computed together share; None if a run is computed alone.
        light: Whether a run takes less time than starting a process.
        notice: Returns what to say before these runs are computed, or an empty text.
    """

    config: type[Config]
    run: RunAll
    draw: "Callable[[pl.DataFrame], Figure]"
    summarize: "Callable[[pl.DataFrame], Sequence[RenderableType]]"
    data: Callable[..., Mapping[str, str]] = reads_nothing
    together: Callable[[Any], str | None] = lambda config: None
    light: bool = False
    notice: Callable[[Sequence[Any]], str] = lambda configs: ""


def one_by_one(run: "Callable[[Any], pl.DataFrame]") -> RunAll:
    """Makes the `run` of a family whose runs are computed one after the other."""
    return lambda configs, checkpoint: ((config, run(config)) for config in configs)


Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1)]


class Changes(BaseModel):
    """Changes of an experiment: seeds (None keeps its own) and values of some parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seeds: Seeds | None = None
    parameters: dict[str, Any] = {}


class Small(Changes):
    """The changes that make an experiment small, and what its picture says about them."""

    note: str = ""


class ParameterSweep(Changes):
    """Changes with values to sweep."""

    grid: dict[str, Values] = {}


class Case(ParameterSweep):
    """One of the cases that an experiment compares, with its own seeds and values."""

    quick: ParameterSweep = ParameterSweep()  # what differs in its small version


@dataclass(frozen=True)
class PlannedRun:
    """A run to compute, and the labels that distinguish it within its experiment."""

    config: Config
    labels: dict[str, Any]

    @property
    def name(self) -> str:
        """The labels in words."""
        return printable(in_words(self.labels))


def in_words(labels: Mapping[str, Any]) -> str:
    """Labels as one text.

    Examples:
        >>> in_words({"case": "EWC", "seed": 3, "lr": 0.01})
        'EWC, seed 3, lr 0.01'
    """
    return ", ".join(f"{v}" if name == "case" else f"{name} {v}" for name, v in labels.items())


class Experiment(BaseModel):
    """An experiment as its TOML file describes it (docs/experiments.md says what the keys mean)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str  # the file's name without its suffix
    family: str  # a key of `families()`
    title: str
    seeds: Seeds
    parameters: dict[str, Any] = {}
    grid: dict[str, Values] = {}  # every combination is a run, for every seed
    cases: dict[str, Case] = {}
    quick: Small | None = None  # a small version that runs the same code
    variant: str | None = None  # a parameter whose value is part of the results' name
    needs: str = ""  # the data that it reads, and how long it takes: shown to people
    takes: str = ""

    _is_small: bool = PrivateAttr(False)

    @property
    def note(self) -> str:
        """What the picture says about a small version: how many seeds, and what it cannot show."""
        if not self._is_small:
            return ""
        seeds = len({run.seed for run in self.runs()})
        counted = f"quick: {seeds} seed{'s' * (seeds != 1)}"
        return f"{counted}; {self.quick.note}" if self.quick and self.quick.note else counted

    @property
    def kind(self) -> Family:
        """How it is computed and shown."""
        return families()[self.family]

    @property
    def label(self) -> str:
        """The name of its results' folder."""
        if not self.variant:
            return self.name
        value = re.sub(r"[^\w.+-]", "_", str(self.parameters[self.variant]))
        return f"{self.name}-{value}"

    def changed(self, changes: Changes) -> "Experiment":
        """Returns the experiment with other seeds or parameters."""
        given = changes.parameters

        # A given parameter is no longer swept and no longer differs between cases. If it was swept,
        # its one value stays in the grid, so that the table keeps its columns.
        def narrowed(grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
            return {name: [given[name]] if name in given else grid[name] for name in grid}

        cases = {
            name: Case(
                seeds=None if changes.seeds else case.seeds,
                parameters=_without(case.parameters, given),
                grid=narrowed(case.grid),
                quick=case.quick,
            )
            for name, case in self.cases.items()
        }
        update = {"parameters": self.parameters | given, "grid": narrowed(self.grid)}
        return self.model_copy(
            update=update | {"cases": cases, "seeds": changes.seeds or self.seeds}
        )

    def small(self) -> "Experiment":
        """Returns the small version: the changes in `quick`, then those in `quick` of each case.

        An experiment that is small already has no `quick`, and stays as it is.
        """
        smaller_cases = any(case.quick != ParameterSweep() for case in self.cases.values())
        if self.quick is None and not smaller_cases:
            return self
        changed = self.changed(self.quick or Changes())
        cases = {
            name: Case(
                seeds=case.quick.seeds or case.seeds,
                parameters=case.parameters | case.quick.parameters,
                grid=_without(case.grid, case.quick.parameters) | case.quick.grid,
            )
            for name, case in changed.cases.items()
        }
        small = changed.model_copy(update={"cases": cases})
        small._is_small = True
        return small

    def where_it_fits(self, **parameters: Any) -> "Experiment":
        """Returns the experiment with those of the given parameters that its family has."""
        known = self.kind.config.model_fields
        fitting = {name: value for name, value in parameters.items() if name in known}
        return self.changed(Changes(parameters=fitting)) if fitting else self

    def tables(self) -> dict[str, dict[str, Any]]:
        """Returns every table of parameters, by its place in the file."""
        tables: dict[str, dict[str, Any]] = {"parameters": self.parameters, "grid": self.grid}
        for name, case in self.cases.items():
            tables[f"cases.{name}.parameters"] = case.parameters
            tables[f"cases.{name}.grid"] = case.grid
        return tables

    def runs(self) -> list[Config]:
        """Returns the validated configs of all runs."""
        return [planned.config for planned in self.planned_runs()]

    def planned_runs(self) -> list[PlannedRun]:
        """Returns all runs; raises an error that lists everything wrong with their parameters."""
        planned, problems = self.expanded()
        if problems:
            raise mistakes_error(self.name, problems)
        return planned

    def expanded(self) -> tuple[list[PlannedRun], list[Mistake]]:
        """Returns the valid runs, and what is wrong with the parameters of the others.

        If there are unknown names, missing parameters are not reported: they may be misspelt.
        """
        unknown = list(self._unknown_parameters())
        cases = self.cases or {"": Case()}
        kind = self.kind.config
        fields = list(kind.model_fields)  # looked up once, since pydantic is slow at it
        swept = {name for case in cases.values() for name in self.grid | case.grid}
        planned = dict[str, PlannedRun]()
        problems = list(unknown)
        for name, case in cases.items():
            grid = _without(self.grid, case.parameters) | case.grid
            for seed, *point in itertools.product(case.seeds or self.seeds, *grid.values()):
                values = self.parameters | case.parameters | dict(zip(grid, point, strict=True))
                known = {key: values[key] for key in fields if key in values}
                try:
                    config = kind(**(known | {"seed": seed}))
                except ValidationError as error:
                    mistakes = value_mistakes(error, partial(self._place, case=name))
                    problems += [
                        each for each in mistakes if each.message != MISSING or not unknown
                    ]
                    continue
                if unknown:
                    continue
                labels = {"case": name} if self.cases else {}
                labels |= {key: getattr(config, key) for key in ("seed", *sorted(swept))}
                if str(labels) in planned:
                    problems.append(Mistake(shown(in_words(labels)), TWICE))
                planned[str(labels)] = PlannedRun(config, labels)
        return list(planned.values()), problems

    def _unknown_parameters(self) -> Iterator[Mistake]:
        known = [name for name in self.kind.config.model_fields if name != "seed"]
        for place, table in self.tables().items():
            for key in table:
                if key in ("seed", "seeds"):
                    yield Mistake(f"{place}.{key}", "unknown key; put seeds above: seeds = [0]")
                elif key not in known:
                    yield unknown_key(f"{place}.{key}", known)

    def _place(self, key: str, case: str) -> str:
        """Returns where a parameter's value comes from, or should, by precedence."""
        tables = self.tables()
        prefix = f"cases.{case}." if case else ""
        places = [f"{prefix}grid", f"{prefix}parameters", "grid", "parameters"]
        place = next((place for place in places if key in tables[place]), places[1])
        return f"{place}.{key}" if key else place


@cache
def families() -> dict[str, Family]:
    """Returns all kinds of experiments, by the names that TOML files use."""
    from retarget.lab.figures import digits, intent_tuning, intents, mnist, networks, toy

    known = [networks, digits, intents, intent_tuning, mnist, toy]
    return {name: family for module in known for name, family in module.FAMILIES.items()}


def _without(values: dict[str, Any], names: Container[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
