"""`retarget reproduce`: the paper's figures, and anybody's own experiments."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.console import Console, RenderableType
from rich.markup import escape

from retarget.cli import show_error
from retarget.errors import MissingDataError
from retarget.experiments.computing import in_a_line
from retarget.experiments.core50_training import Source
from retarget.experiments.experiment import Experiment, require_device
from retarget.experiments.experiment_files import (
    experiment_names,
    load_experiment,
    named_experiments,
    parse_changes,
)
from retarget.experiments.places import Place
from retarget.experiments.progress_table import duration, progress_table
from retarget.experiments.resources import Resources
from retarget.experiments.runner import Outcome, run_experiment
from retarget.experiments.scheduling import Progress, Schedule
from retarget.experiments.store import RunStore
from retarget.progress import display
from retarget.text import printable

app = typer.Typer(rich_markup_mode="rich")
console = Console()
FAILED, WRONG_USE, STOPPED = 1, 2, 130
SHOWN_FAILURES = 20
LOG_EVERY = 10.0  # seconds


def figures_help() -> str:
    """The help text, with a line for each experiment of the package."""
    lines = [f"[bold]{name}[/bold]  {load_experiment(name).title}" for name in experiment_names()]
    return "\n\n".join(
        ["Computes experiments and draws their figures.", *lines, "[bold]all[/bold]"]
    )


@app.command(help=figures_help())
def reproduce(
    figures: Annotated[
        list[str],
        typer.Argument(
            metavar="FIGURE",
            help="Names from the list above; a figure, for all its parts; all; or a TOML file of "
            "your own.",
        ),
    ],
    seed: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Seed instead of the figure's own; may be given repeatedly."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A small version that runs the same code, in seconds to minutes."
        ),
    ] = False,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another value for a parameter."),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the data sets (or set RETARGET_DATA).")
    ] = None,
    data: Annotated[
        Source | None,
        typer.Option(help="What Fig. 3B and Fig. 6 E to H learn: CORe50, or pictures like it."),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What makes features of them: resnet18, a file of its weights, or any torch "
            "module as package.module:factory.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where networks are trained: cpu, cuda, cuda:1...")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Compute everything again, also what is found done.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=0,
            show_default="a process for each core; one on a GPU",
            help="Runs computed at a time, each in a process of its own; 0: in this process, one "
            "after the other.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Compute on a Dask cluster: tcp://HOST:PORT, or local:N for N workers here.",
        ),
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option(metavar="TIME", help="For each run: 90s, 10min, 2h.")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="For each run: 500MB, 4GB, 2GiB.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what is done and what is not, and how long it takes."),
    ] = False,
) -> None:
    """Computes experiments and draws their figures."""
    names = dict.fromkeys(name for figure in figures for name in named_experiments(figure))
    if data_dir is not None:
        os.environ["RETARGET_DATA"] = str(data_dir.absolute())
    if device is not None:
        require_device(device)
    options = {"data": data, "backbone": backbone, "device": device}
    given = {name: value for name, value in options.items() if value is not None}
    changes = parse_changes(change or (), seed or ())
    experiments = []
    for name in names:
        experiment = loaded = load_experiment(name)
        if quick and experiment.quick:
            experiment = experiment.changed(experiment.quick)
        experiments.append(experiment.changed(changes).where_it_fits(**given))
        if experiments[-1] != loaded:
            experiments[-1].runs()  # wrong parameters are an error before any work
    resources = Resources.of(jobs, cluster, time_limit, memory_limit, device)
    show = _show_plan if dry_run else _reproduce
    with resources.place() as place:
        codes = [_code_of(show, experiment, out, fresh, place) for experiment in experiments]
    if any(codes):
        raise typer.Exit(max(codes))


Show = Callable[[Experiment, Path, bool, Callable[[Experiment], Place]], int]


def _code_of(
    show: Show,
    experiment: Experiment,
    out: Path,
    fresh: bool,
    place: Callable[[Experiment], Place],
) -> int:
    """The exit code of one experiment. Where its data are missing, others may do without them."""
    try:
        return show(experiment, out, fresh, place)
    except MissingDataError as error:
        show_error(error)
        return WRONG_USE


def _show_title(experiment: Experiment) -> None:
    title = escape(printable(experiment.title))
    console.print(f"[bold]{escape(experiment.label)}[/bold]: {title}")


def _show_plan(
    experiment: Experiment, out: Path, fresh: bool, place: Callable[[Experiment], Place]
) -> int:
    schedule = Schedule(experiment, RunStore(out), fresh)
    progress, missing = schedule.progress, set(schedule.missing())
    progress.capacity = place(experiment).capacity
    _show_title(experiment)
    lines = []
    for key, run in progress.runs.items():
        known = progress.estimator.seconds(progress.identities[key])
        about = "" if known is None else f", about {duration(known)}"
        lines.append(f"  {key}  {run.name}: " + (f"to do{about}" if key in missing else "done"))
    console.out("\n".join(lines), highlight=False)  # at once: there may be 100,000
    seconds = progress.seconds_left()
    estimate = (
        "how long that takes is unknown: no such run was ever done here"
        if seconds is None
        else f"about {duration(seconds)}, {progress.capacity} at a time"
    )
    console.print(
        f"{len(progress.runs)} runs, {len(progress.done)} done, {len(missing)} to do: {estimate}.\n"
        if missing
        else f"{len(progress.runs)} runs, all done.\n",
        highlight=False,
    )
    return 0


def _reproduce(
    experiment: Experiment, out: Path, fresh: bool, place: Callable[[Experiment], Place]
) -> int:
    _show_title(experiment)
    watch = _Watch()
    try:
        with display(console, transient=True, above=watch.shown):
            outcome = run_experiment(
                experiment, out, place=place(experiment), fresh=fresh, watch=watch
            )
    except KeyboardInterrupt:
        done = len(watch.progress.done) if watch.progress else 0
        console.print(
            f"Stopped. {done} runs are done and kept in {printable(str(out))}; the same command "
            "goes on there.",
            highlight=False,
            markup=False,
        )
        raise typer.Exit(STOPPED) from None
    code = 0 if outcome.table is None else _summarise(experiment, outcome.table)
    return max(code, _show_outcome(outcome))


def _summarise(experiment: Experiment, table: pl.DataFrame) -> int:
    """Shows what the runs have found; a failure here does not cost their table."""
    try:
        for part in experiment.kind.summarise(table):
            console.print(part)
    except Exception as error:
        show_error(f"the table is written, but could not be summarised: {in_a_line(error)}")
        return FAILED
    return 0


def _show_outcome(outcome: Outcome) -> int:
    failed = f", failed: {len(outcome.failed)}" if outcome.failed else ""
    console.print(
        f"Runs computed: {outcome.computed}, found finished: {outcome.reused}{failed}, "
        f"{outcome.seconds:.1f} s."
        + (" Written:" if outcome.files else " Nothing is drawn where runs are missing."),
        highlight=False,
    )
    for path in outcome.files:
        console.print(f"  {printable(str(path))}", highlight=False, markup=False, soft_wrap=True)
    for run, record in outcome.failed[:SHOWN_FAILURES]:
        console.print(
            f"  [red]failed[/red] {record.key}  "
            + escape(f"{run.name}: {printable(record.reason or '')}"),
            highlight=False,
            soft_wrap=True,
        )
    if len(outcome.failed) > SHOWN_FAILURES:
        console.print(f"  and {len(outcome.failed) - SHOWN_FAILURES} more", highlight=False)
    if outcome.failed:
        console.print(
            "`retarget runs show KEY` tells more; the same command tries them again.",
            highlight=False,
        )
    if outcome.not_drawn is not None:
        show_error(
            f"the table is written, but could not be drawn: {outcome.not_drawn}; run.json has the "
            "details"
        )
    console.print()
    return FAILED if outcome.failed or outcome.not_drawn is not None else 0


class _Watch:
    """Follows an experiment: for a terminal, or with a line now and then for a log."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self._told = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        self.progress = progress
        now = time.monotonic()
        if not console.is_terminal and now - self._told > LOG_EVERY:
            self._told = now
            console.print(
                f"  {len(progress.done)} of {len(progress.runs)} runs done, "
                f"{len(progress.failed)} failed, time left: {duration(progress.seconds_left())}",
                highlight=False,
            )

    def shown(self) -> RenderableType:
        """What the terminal shows."""
        return "" if self.progress is None else progress_table(self.progress)
