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
from retarget.experiments.experiment import (
    Experiment,
    Family,
    PlannedRun,
    families,
)
from retarget.experiments.identity import identity_of
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
    """Computes an experiment and writes table, figure and record to `results/<label>/`.

    The runs' own tables are in `results/runs/`, where every experiment finds them.

    Args:
        experiment: What to run.
        results: The folder for all results.
        fresh: Compute every run again, also those found finished.
        command: What the user typed, for the record.
        progress: Called with the number of finished runs and of all runs.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    family, folder = families()[experiment.family], results / experiment.label
    planned = experiment.planned_runs()
    paths = [results / "runs" / f"{identity_of(run.config, family).key}.parquet" for run in planned]
    tables = {path: None if fresh else _finished(path) for path in paths}
    missing = {p: run.config for p, run in zip(paths, planned, strict=True) if tables[p] is None}
    done = len(tables) - len(missing)
    progress(done, len(tables))
    for config, table in family.run(list(missing.values())):
        path = results / "runs" / f"{identity_of(config, family).key}.parquet"
        with atomic_file(path) as temporary:
            table.write_parquet(temporary)
        tables[path], done = table, done + 1
        progress(done, len(tables))
    # relaxed, because a parameter that some cases do not have is null there
    table = pl.concat(
        (_labelled(tables[path], run) for path, run in zip(paths, planned, strict=True)),
        how="vertical_relaxed",
    )
    files = _write(experiment, family, table, folder)
    seconds = time.perf_counter() - clock
    record = _record(experiment, command or sys.argv, started, seconds, len(missing), len(tables))
    files.append(folder / "run.json")
    with atomic_file(files[-1]) as temporary:
        temporary.write_text(json.dumps(record, indent=2) + "\n")
    return Outcome(table, files, len(missing), len(tables) - len(missing), seconds)


def _finished(path: Path) -> pl.DataFrame | None:
    """The result of a run that was done before, or None; a damaged one counts as not done."""
    if not path.is_file():
        return None
    try:
        return pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError):
        return None


def _labelled(table: pl.DataFrame | None, run: PlannedRun) -> pl.DataFrame:
    """The run's table with what tells it from the other runs."""
    if table is None:
        raise RuntimeError(f"the family left out a run: {run.config}")
    return table.select(
        *(pl.lit(value).alias(name) for name, value in run.labels.items()), pl.all()
    )


def _write(experiment: Experiment, family: Family, table: pl.DataFrame, folder: Path) -> list[Path]:
    files = [folder / f"{experiment.label}.{suffix}" for suffix in ("parquet", "png", "pdf")]
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
