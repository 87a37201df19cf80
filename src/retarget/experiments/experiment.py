"""What an experiment is: a TOML file that expands to runs, each a pure function of its config."""

import difflib
import itertools
import re
import tomllib
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import polars as pl
import torch
from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import RenderableType

from retarget.errors import InvalidInputError


class Config(BaseModel):
    """What determines the result of one run. Families add their parameters; unknown ones fail."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    seed: int


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
        together: From a config to a text that runs have in common if they are to be computed at
            once; None for one that is computed alone.
        light: Whether runs take less time than a new process does.
    """

    config: type[Config]
    run: Callable[[Sequence[Any], Path | None], Iterator[tuple[Any, pl.DataFrame]]]
    draw: Callable[[pl.DataFrame], Figure]
    summarise: Callable[[pl.DataFrame], Sequence[RenderableType]]
    together: Callable[[Any], str | None] = lambda config: None
    light: bool = False


def one_by_one(
    run: Callable[[Any], pl.DataFrame],
) -> Callable[[Sequence[Any], Path | None], Iterator[tuple[Any, pl.DataFrame]]]:
    """Runs that are computed one after the other, each from its config alone."""

    def run_each(
        configs: Sequence[Any], checkpoint: Path | None = None
    ) -> Iterator[tuple[Any, pl.DataFrame]]:
        return ((config, run(config)) for config in configs)

    return run_each


class Case(BaseModel):
    """One of several things that an experiment compares: what it has of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seeds: tuple[int, ...] = ()
    parameters: dict[str, Any] = {}
    grid: dict[str, list[Any]] = {}


@dataclass(frozen=True)
class PlannedRun:
    """A run to compute, and what tells it from the other runs of its experiment."""

    config: Config
    labels: dict[str, Any]

    @property
    def name(self) -> str:
        """The labels in words.

        Example:
            >>> PlannedRun(Config(seed=3), {"case": "EWC", "seed": 3, "lr": 0.01}).name
            'EWC, seed 3, lr 0.01'
        """
        return ", ".join(
            f"{value}" if label == "case" else f"{label} {value}"
            for label, value in self.labels.items()
        )


class Changes(BaseModel):
    """Other seeds (none: the experiment's own) and some other parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seeds: tuple[int, ...] = ()
    parameters: dict[str, Any] = {}


class Experiment(BaseModel):
    """An experiment as its TOML file describes it.

    Attributes:
        family: The kind of experiment, a key of `families()`.
        title: One line for people.
        seeds: Seeds of the runs.
        parameters: What all runs have in common.
        grid: Lists of values; every combination is a run, for every seed.
        cases: What is compared, by name: each with parameters, lists of values and seeds of its
            own, in the place of those of all.
        quick: Seeds and parameters of a true but small version, where the whole takes long.
        variant: A parameter whose values are never to be mistaken for one another: results have it
            in their name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    family: str
    title: str
    seeds: tuple[int, ...]
    parameters: dict[str, Any] = {}
    grid: dict[str, list[Any]] = {}
    cases: dict[str, Case] = {}
    quick: "Changes | None" = None
    variant: str | None = None

    @property
    def kind(self) -> Family:
        """How it is computed and shown."""
        return families()[self.family]

    @property
    def label(self) -> str:
        """What its results are called."""
        return f"{self.name}-{self.parameters[self.variant]}" if self.variant else self.name

    def changed(self, changes: "Changes") -> "Experiment":
        """The same experiment with other seeds or parameters."""
        update: dict[str, Any] = {"parameters": self.parameters | changes.parameters}
        if changes.seeds:
            update["seeds"] = changes.seeds
        # A parameter that is given is no longer swept, nor different from case to case. Where it
        # was swept it still tells its one value: the table has the same columns.
        update["grid"] = _narrowed(self.grid, changes.parameters)
        update["cases"] = {
            name: Case(
                seeds=() if changes.seeds else case.seeds,
                parameters=_without(case.parameters, changes.parameters),
                grid=_narrowed(case.grid, changes.parameters),
            )
            for name, case in self.cases.items()
        }
        return self.model_copy(update=update)

    def where_it_fits(self, **parameters: Any) -> "Experiment":
        """The same experiment with those of these parameters that its kind has."""
        known = families()[self.family].config.model_fields
        fitting = {name: value for name, value in parameters.items() if name in known}
        return self.changed(Changes(parameters=fitting)) if fitting else self

    def runs(self) -> list[Config]:
        """The configs of all runs, checked."""
        return [planned.config for planned in self.planned_runs()]

    def planned_runs(self) -> list[PlannedRun]:
        """All runs, checked, each with its seed, its case and its point of the grid."""
        cases = self.cases or {"": Case()}
        swept = {name for case in cases.values() for name in self.grid | case.grid}
        planned = []
        for name, case in cases.items():
            grid = self.grid | case.grid
            for seed, *point in itertools.product(case.seeds or self.seeds, *grid.values()):
                values = dict(zip(grid, point, strict=True))
                config = self._config(seed, self.parameters | case.parameters | values)
                labels = {"case": name} if self.cases else {}
                labels |= {key: getattr(config, key) for key in ("seed", *sorted(swept))}
                planned.append(PlannedRun(config, labels))
        return planned

    def _config(self, seed: int, parameters: dict[str, Any]) -> Config:
        kind = families()[self.family].config
        try:
            return kind(seed=seed, **parameters)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "parameters"
            known = [name for name in kind.model_fields if name != "seed"]
            hint = ""
            if first["type"] == "extra_forbidden":
                near = difflib.get_close_matches(place, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            raise InvalidInputError(
                f"experiment {self.name}: {place}: {first['msg']}{hint}"
            ) from error


def families() -> dict[str, Family]:
    """All kinds of experiments, by the name that the TOML files use."""
    from retarget.experiments import (
        digits,
        mnist_curves,
        mnist_sweeps,
        network_curves,
        network_sweeps,
        toy_curves,
        toy_shift,
    )

    return {
        "cifar curves": network_curves.CIFAR_CURVES,
        "cifar sweeps": network_sweeps.CIFAR_SWEEPS,
        "core50 curves": network_curves.CORE50_CURVES,
        "core50 sweeps": network_sweeps.CORE50_SWEEPS,
        "digits": digits.FAMILY,
        "mnist curves": mnist_curves.FAMILY,
        "mnist sweeps": mnist_sweeps.FAMILY,
        "toy curves": toy_curves.FAMILY,
        "toy shift": toy_shift.FAMILY,
    }


def named_experiments(name: str) -> list[str]:
    """The experiments that a name stands for: itself, the parts of a figure, or all.

    Example:
        >>> named_experiments("fig6")
        ['fig6ad', 'fig6eh']
    """
    names = experiment_names()
    if name == "all":
        return names
    parts = [known for known in names if known.startswith(name)]
    whole_figure = name not in names and re.fullmatch(r"fig\d+", name)
    return parts if whole_figure and parts else [name]


def experiment_names() -> list[str]:
    """The experiments that come with the package."""
    configs = resources.files("retarget.experiments") / "configs"
    return sorted(Path(entry.name).stem for entry in configs.iterdir())


def load_experiment(name: str) -> Experiment:
    """An experiment that comes with the package, by name."""
    names = experiment_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        raise InvalidInputError(
            f"there is no experiment {name!r}; "
            + (f"did you mean {near[0]!r}? " if near else "")
            + f"known: {', '.join(names)}"
        )
    text = (resources.files("retarget.experiments") / "configs" / f"{name}.toml").read_text()
    return parse_experiment(name, text)


def parse_changes(assignments: Sequence[str], seeds: Sequence[int] = ()) -> Changes:
    """Changes from `name=value` texts, the value as TOML has it."""
    parameters: dict[str, Any] = {}
    for assignment in assignments:
        try:
            parsed = tomllib.loads(assignment)
        except tomllib.TOMLDecodeError as error:
            raise InvalidInputError(
                f"{assignment!r} is no setting: {error}; expected name=value, the value as in TOML"
            ) from error
        parameters |= parsed
    return Changes(seeds=tuple(seeds), parameters=parameters)


def parse_experiment(name: str, text: str) -> Experiment:
    """An experiment from the text of its TOML file."""
    try:
        experiment = Experiment(name=name, **tomllib.loads(text))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise InvalidInputError(f"experiment {name} cannot be read: {error}") from error
    if experiment.family not in families():
        raise InvalidInputError(
            f"experiment {name} is of family {experiment.family!r}; known: {', '.join(families())}"
        )
    if experiment.variant and experiment.variant not in experiment.parameters:
        raise InvalidInputError(
            f"experiment {name}: variant is {experiment.variant!r}; expected one of its parameters"
        )
    return experiment


def require_device(name: str) -> None:
    """Refuses a device that torch does not have here."""
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:  # torch raises both, by device and build
        reason = str(error).splitlines()[0]
        raise InvalidInputError(f"the device {name!r} cannot be used here: {reason}") from error


def _narrowed(grid: dict[str, list[Any]], given: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [given[name]] if name in given else values for name, values in grid.items()}


def _without(values: dict[str, Any], names: Container[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
