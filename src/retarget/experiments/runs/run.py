"""Runs an experiment: what is done is found again, what is missing is computed, all is written."""

import json
import platform
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import polars as pl

import retarget
from retarget.experiments.experiment import Experiment, PlannedRun
from retarget.experiments.runs.compute import in_a_line
from retarget.experiments.runs.executors import Executor, ThisProcess
from retarget.experiments.runs.schedule import Schedule, Watch
from retarget.experiments.runs.store import RunRecord, RunStore, labelled
from retarget.storage import atomic_file


@dataclass(frozen=True)
class Outcome:
    """What an experiment left behind.

    Attributes:
        table: The table of all runs, or None where some have failed.
        files: What was written.
        computed: Runs computed now.
        reused: Runs found finished.
        failed: Runs that have no result, with the reasons.
        not_drawn: Why there is no figure of the table, if that is so.
        seconds: How long all of it took.
    """

    table: pl.DataFrame | None
    files: list[Path]
    computed: int
    reused: int
    failed: list[tuple[PlannedRun, RunRecord]]
    not_drawn: str | None
    seconds: float


def run_experiment(
    experiment: Experiment,
    results: Path,
    *,
    executor: Executor | None = None,
    fresh: bool = False,
    watch: Watch = lambda schedule: None,
) -> Outcome:
    """Computes an experiment and writes table, figure and record to `results/<label>/`.

    The runs' own results are in `results/runs/`, where every experiment finds them. Where runs
    have failed, those of the others are kept, and nothing is drawn. Where drawing fails, table and
    record are written all the same, and the outcome and the record say why there is no figure.

    Args:
        experiment: What to run.
        results: The folder for all results.
        executor: Where to compute; by default in this process.
        fresh: Compute every run again, also those found finished.
        watch: Called with the schedule whenever there may be something new to show.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    folder = results / experiment.label
    schedule = Schedule(experiment, RunStore(results), fresh)
    schedule.carry_out(executor or ThisProcess(), watch)
    files, reused, table, not_drawn = list[Path](), len(schedule.found), None, None
    computed = len(schedule.done) - reused
    if not schedule.failed:
        # relaxed, because a parameter that some cases do not have is null there
        table = pl.concat(
            (
                labelled(schedule.done[key], run.labels)
                for key, run in zip(schedule.keys, schedule.planned, strict=True)
            ),
            how="vertical_relaxed",
        )
        files = [_write_table(table, folder / f"{experiment.label}.parquet")]
        figures = [folder / f"{experiment.label}.{suffix}" for suffix in ("png", "pdf")]
        not_drawn, trace = _draw(experiment, table, figures)
        files += figures if not_drawn is None else []
        record = _record(experiment, started, time.perf_counter() - clock)
        if not_drawn is not None:
            record["not drawn"] = {"reason": not_drawn, "trace": trace}
        record["runs"] = {
            "all": computed + reused,
            "computed": computed,
            "found finished": reused,
            "keys": schedule.keys,
        }
        files.append(folder / "run.json")
        with atomic_file(files[-1]) as temporary:
            temporary.write_text(json.dumps(record, indent=2) + "\n")
    failed = [(schedule.runs[key], record) for key, record in schedule.failed.items()]
    seconds = time.perf_counter() - clock
    return Outcome(table, files, computed, reused, failed, not_drawn, seconds)


def _write_table(table: pl.DataFrame, path: Path) -> Path:
    # opened here: Polars takes no path that is not UTF-8
    with atomic_file(path) as temporary, temporary.open("wb") as opened:
        table.write_parquet(opened)
    return path


def _draw(
    experiment: Experiment, table: pl.DataFrame, files: Sequence[Path]
) -> tuple[str | None, str | None]:
    """Draws the table; or the reason why that failed, and where: all the work is done by then."""
    others = plt.get_fignums()
    try:
        figure = experiment.kind.draw(table)
        for path in files:
            with atomic_file(path) as temporary:
                # no dates inside: the same result is the same file
                metadata = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
                figure.savefig(temporary, metadata=metadata)
    except OSError:  # a full disk, or a folder that cannot be written to
        raise
    except Exception as error:
        for path in files:  # those of an earlier table are not of this one
            path.unlink(missing_ok=True)
        return in_a_line(error), "".join(traceback.format_exception(error))
    finally:
        for number in set(plt.get_fignums()).difference(others):
            plt.close(number)
    return None, None


def _record(experiment: Experiment, started: datetime, seconds: float) -> dict[str, Any]:
    packages = ("matplotlib", "numpy", "polars", "scikit-learn", "torch")
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "experiment": experiment.model_dump(mode="json"),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "versions": {
            "retarget": retarget.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
        "machine": f"{platform.system()} {platform.machine()}",
    }
