"""`retarget reproduce`: the paper's figures, and experiments of the user's own."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import Progress
from rich.table import Column, Table

from retarget.cli import FAILED, WRONG_USE, console, say, show_error
from retarget.errors import InvalidInputError, MissingDataError
from retarget.lab.experiment import Core50Source, Experiment
from retarget.lab.reader import (
    experiment_descriptions,
    experiment_names,
    load_experiment,
    named_experiments,
    parse_changes,
)
from retarget.text import printable

# Heavy modules are imported when needed, so that the help is quick.
if TYPE_CHECKING:
    import polars as pl

    from retarget.lab.runs.executors import Executor
    from retarget.lab.runs.run import Outcome, Schedule

app = typer.Typer(rich_markup_mode="rich")
STOPPED = 130  # the usual exit code for Ctrl-C
SHOWN_FAILURES = 20
LOG_EVERY = 10.0  # seconds


@app.command()
def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIGURE",
            help=f"{', '.join(experiment_names())}; a figure such as fig6, for all its parts; all; "
            "or your own TOML file. Without one, the figures are listed.",
        ),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="N", help="Seed instead of the figure's own; may be repeated."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A small version that runs the same code, within a minute."),
    ] = False,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Set a parameter to another value; may be repeated.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the data sets (or set RETARGET_DATA).")
    ] = None,
    data: Annotated[
        Core50Source | None,
        typer.Option(help="Pictures for Figs. 3B, 6 E to H and 7 C: CORe50 or a stand-in."),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Network that turns these pictures into features: resnet18, a file of its "
            "weights, or any torch module as package.module:factory.",
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Method that trains every network, instead of the figure's own: a name, or your "
            "own as package.module:Class.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where networks are trained: cpu, cuda, cuda:1...")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Compute every run again, even those already done.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=0,
            metavar="N",
            show_default="one for each core; 1 on a GPU",
            help="Runs computed at a time, each in its own process; 1 or 0: in this process, one "
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
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only list the runs, and which of them are done.",
        ),
    ] = False,
) -> None:
    """Computes experiments and draws their figures; without a figure, lists them."""
    if not figures:
        _list_figures()
        return
    names = dict.fromkeys(name for figure in figures for name in named_experiments(figure))
    if data_dir is not None:
        os.environ["RETARGET_DATA"] = str(data_dir.absolute())
    if device is not None:
        _require_device(device)
    options = {"data": data, "backbone": backbone, "method": method, "device": device}
    given = {name: value for name, value in options.items() if value is not None}
    changes = parse_changes(change or (), seed or ())
    experiments = []
    for name in names:
        experiment = loaded = load_experiment(name)
        if quick:
            experiment = experiment.small()
        experiments.append(experiment.changed(changes).where_it_fits(**given))
        if experiments[-1] != loaded:
            experiments[-1].runs()  # reports wrong parameters before any work
    from retarget.lab.runs.executors import open_executors

    show = _show_plan if dry_run else _reproduce
    with open_executors(jobs, cluster, device) as executor_of:
        codes = []
        for experiment in experiments:
            try:
                codes.append(show(experiment, out, fresh, executor_of(experiment)))
            except MissingDataError as error:  # the other experiments may not need these data
                show_error(error)
                codes.append(WRONG_USE)
    if any(codes):
        raise typer.Exit(max(codes))


def _list_figures() -> None:
    table = Table(
        Column("figure", no_wrap=True),
        "what it shows",
        Column("data", no_wrap=True),
        Column("time", no_wrap=True),
        box=None,
        padding=(0, 2, 0, 0),
    )
    for name, about in experiment_descriptions().items():
        table.add_row(name, *map(escape, about))
    console.print(table)
    say(
        "\nTimes on a GPU are for an H200. `retarget data list` shows the data sets; --data "
        "standin chooses the stand-in for CORe50.\n--quick computes a small version of any figure, "
        "within a minute on two cores."
    )


def _require_device(name: str) -> None:
    import torch

    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:  # torch raises either, by device
        reason = str(error).splitlines()[0]
        raise InvalidInputError(f"the device {name!r} cannot be used here: {reason}") from error


def _show_title(experiment: Experiment) -> None:
    title = escape(printable(experiment.title))
    console.print(f"[bold]{escape(experiment.label)}[/bold]: {title}")


def _show_plan(experiment: Experiment, out: Path, fresh: bool, executor: "Executor") -> int:
    from retarget.lab.runs.run import Schedule
    from retarget.lab.runs.store import RunStore

    schedule = Schedule(experiment, RunStore(out), fresh)
    done = len(schedule.done)
    runs = schedule.runs
    _show_title(experiment)
    states = {key: "done" if key in schedule.done else "to do" for key in runs}
    lines = [f"  {key}  {run.name}: {states[key]}" for key, run in runs.items()]
    console.out("\n".join(lines), highlight=False)  # in one call: there may be 100,000
    left = f"{done} done, {len(runs) - done} to do" if done < len(runs) else "all done"
    say(f"{len(runs)} runs, {left}.\n\n")
    return 0


def _reproduce(experiment: Experiment, out: Path, fresh: bool, executor: "Executor") -> int:
    from retarget.lab.runs.run import run_experiment
    from retarget.progress import display

    _show_title(experiment)
    notice = experiment.kind.notice(experiment.runs())
    if notice:
        say(notice)
    with display(console, transient=True) as bars:
        watch = _Watch(bars)
        try:
            outcome = run_experiment(experiment, out, executor=executor, fresh=fresh, watch=watch)
        except KeyboardInterrupt:
            done = len(watch.schedule.done) if watch.schedule else 0
            say(f"Stopped. {done} runs are done and kept in {out}; the same command resumes them.")
            raise typer.Exit(STOPPED) from None
    code = 0 if outcome.table is None else _summarize(experiment, outcome.table)
    return max(code, _show_outcome(outcome))


def _summarize(experiment: Experiment, table: "pl.DataFrame") -> int:
    """Shows a summary of the runs; if that fails, their table is still kept."""
    from retarget.lab.runs.compute import in_a_line

    try:
        for part in experiment.kind.summarize(table):
            console.print(part)
    except Exception as error:
        show_error(f"the table is written, but could not be summarized: {in_a_line(error)}")
        return FAILED
    return 0


def _show_outcome(outcome: "Outcome") -> int:
    failed = outcome.failed
    shown = outcome.failed[:SHOWN_FAILURES]
    counted = f", failed: {len(failed)}" if failed else ""
    say(
        f"Runs computed: {outcome.computed}, already done: {outcome.reused}{counted}, "
        f"{outcome.seconds:.1f} s."
        + (" Written:" if outcome.files else " Nothing is drawn, since runs are missing.")
    )
    for path in outcome.files:
        say(f"  {path}")
    for run, record in shown:
        say(f"  failed {record.key}  {run.name}: {record.reason or ''}", style="red")
    if len(failed) > len(shown):
        say(f"  and {len(failed) - len(shown)} more")
    if failed:
        say("`retarget runs show KEY` shows the details; run the same command to try them again.")
    if outcome.not_drawn is not None:
        show_error(
            f"the table is written, but could not be drawn: {outcome.not_drawn}; run.json has the "
            "details"
        )
    console.print()
    return FAILED if failed or outcome.not_drawn is not None else 0


class _Watch:
    """Shows the progress of an experiment, live on a terminal or as occasional lines in a log."""

    def __init__(self, bars: Progress) -> None:
        self.schedule: Schedule | None = None
        self._bars = bars
        self._last_line = time.monotonic()

    def __call__(self, schedule: "Schedule") -> None:
        every = len(schedule.runs)
        done = len(schedule.done)
        failed = len(schedule.failed)
        if self.schedule is None:  # runs that are found done say nothing about the time left
            self.schedule = schedule
            self._bar = self._bars.add_task("runs", total=every, completed=done)
        what = f"runs, {failed} failed" if failed else "runs"
        self._bars.update(self._bar, completed=done + failed, description=what)
        now = time.monotonic()
        if not console.is_terminal and now - self._last_line > LOG_EVERY:
            self._last_line = now
            say(f"  {done} of {every} runs done, {failed} failed")
