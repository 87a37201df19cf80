"""Runs an experiment: what is done is found again, what is missing is computed, all is written."""

import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import polars as pl

import retarget
from retarget.experiments.experiment import Config, Experiment, Family, families, run_identity
from retarget.storage import atomic_file


@dataclass(frozen=True)
class Outcome:
    """What an experiment left behind."""

    table: pl.DataFrame
    files: list[Path]
    computed: int
    reused: int
    seconds: float


def run_experiment(
    experiment: Experiment,
    results: Path,
    *,
    fresh: bool = False,
    command: Sequence[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outcome:
    """Computes an experiment and writes table, figure and record to `results/<name>/`.

    Args:
        experiment: What to run.
        results: The folder for all results.
        fresh: Compute every run again, also those found finished.
        command: What the user typed, for the record.
        progress: Called with the number of finished runs and of all runs.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    family, folder = families()[experiment.family], results / experiment.name
    configs, tables, computed = experiment.runs(), [], 0
    for done, config in enumerate(configs):
        progress(done, len(configs))
        path = folder / "runs" / f"{run_identity(experiment.family, config)}.parquet"
        table = None if fresh else _finished(path)
        if table is None:
            table, computed = _compute(family, config, path), computed + 1
        tables.append(_labelled(table, config, experiment))
    progress(len(configs), len(configs))

    table = pl.concat(tables)
    files = _write(experiment, family, table, folder)
    seconds = time.perf_counter() - clock
    record = _record(experiment, command or sys.argv, started, seconds, computed, len(configs))
    files.append(folder / "run.json")
    with atomic_file(files[-1]) as temporary:
        temporary.write_text(json.dumps(record, indent=2) + "\n")
    return Outcome(table, files, computed, len(configs) - computed, seconds)


def _finished(path: Path) -> pl.DataFrame | None:
    """The result of a run that was done before, or None; a damaged one counts as not done."""
    if not path.is_file():
        return None
    try:
        return pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError):
        return None


def _compute(family: Family, config: Config, path: Path) -> pl.DataFrame:
    table = family.run(config)
    with atomic_file(path) as temporary:
        table.write_parquet(temporary)
    return table


def _labelled(table: pl.DataFrame, config: Config, experiment: Experiment) -> pl.DataFrame:
    """The run's table with what tells it from the other runs: seed and grid point."""
    labels = {name: getattr(config, name) for name in ("seed", *experiment.grid)}
    return table.select(*(pl.lit(value).alias(name) for name, value in labels.items()), pl.all())


def _write(experiment: Experiment, family: Family, table: pl.DataFrame, folder: Path) -> list[Path]:
    files = [folder / f"{experiment.name}.{suffix}" for suffix in ("parquet", "png", "pdf")]
    with atomic_file(files[0]) as temporary:
        table.write_parquet(temporary)
    figure = family.draw(table)
    for path in files[1:]:
        with atomic_file(path) as temporary:
            # no dates inside: the same result is the same file
            metadata = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
            figure.savefig(temporary, metadata=metadata)
    plt.close(figure)
    return files


def _record(
    experiment: Experiment,
    command: Sequence[str],
    started: datetime,
    seconds: float,
    computed: int,
    runs: int,
) -> dict[str, Any]:
    packages = ("matplotlib", "numpy", "polars", "scikit-learn", "torch")
    return {
        "command": " ".join([Path(command[0]).name, *command[1:]]),
        "experiment": experiment.model_dump(mode="json"),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "runs": {"all": runs, "computed": computed, "found finished": runs - computed},
        "versions": {
            "retarget": retarget.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
        "machine": f"{platform.system()} {platform.machine()}",
    }
