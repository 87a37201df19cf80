"""The `retarget` command."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import retarget
from retarget import cli_data, cli_diagnose, cli_explore
from retarget.errors import DownloadError, MissingDataError, RetargetError
from retarget.experiments.core50_training import Source
from retarget.experiments.experiment import Experiment, families, require_device
from retarget.experiments.experiment_files import (
    experiment_names,
    load_experiment,
    named_experiments,
    parse_changes,
)
from retarget.experiments.runner import run_experiment
from retarget.progress import display

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="What an online learner has really learned, and the targets that correct it.",
)
app.command()(cli_diagnose.diagnose)
app.command()(cli_diagnose.correct)
app.add_typer(cli_data.app, name="data")
app.command()(cli_explore.explore)
console = Console()
WRONG_USE = 2


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"retarget {retarget.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of the command itself."""


def _figures_help() -> str:
    lines = [f"[bold]{name}[/bold]  {load_experiment(name).title}" for name in experiment_names()]
    return "\n\n".join(
        ["Computes experiments and draws their figures.", *lines, "[bold]all[/bold]"]
    )


@app.command(help=_figures_help())
def reproduce(
    figures: Annotated[
        list[str],
        typer.Argument(
            metavar="FIGURE", help="Names from the list above; a figure, for all its parts; or all."
        ),
    ],
    seed: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Seed in the place of the figure's own; may be given repeatedly."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A true but small version, where the whole takes long.")
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
) -> None:
    """Computes experiments and draws their figures."""
    names = dict.fromkeys(name for figure in figures for name in named_experiments(figure))
    if data_dir is not None:
        os.environ["RETARGET_DATA"] = str(data_dir)
    if device is not None:
        require_device(device)
    options = {"data": data, "backbone": backbone, "device": device}
    given = {name: value for name, value in options.items() if value is not None}
    changes = parse_changes(change or (), seed or ())
    experiments = []
    for name in names:
        experiment = load_experiment(name)
        if quick and experiment.quick:
            experiment = experiment.changed(experiment.quick)
        experiments.append(experiment.changed(changes).where_it_fits(**given))
        experiments[-1].runs()  # wrong parameters are an error before any work
    lacking = [experiment for experiment in experiments if not _reproduced(experiment, out, fresh)]
    if lacking:
        raise typer.Exit(WRONG_USE)


def _reproduced(experiment: Experiment, out: Path, fresh: bool) -> bool:
    """Whether its data were there: others may do without them."""
    try:
        _reproduce(experiment, out, fresh)
    except MissingDataError as error:
        show_error(error)
        return False
    return True


def _reproduce(experiment: Experiment, out: Path, fresh: bool) -> None:
    console.print(f"[bold]{experiment.label}[/bold]: {experiment.title}")
    with display(console, transient=True) as progress:
        task = progress.add_task("runs")
        outcome = run_experiment(
            experiment,
            out,
            fresh=fresh,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    for part in families()[experiment.family].summarise(outcome.table):
        console.print(part)
    console.print(
        f"Runs computed: {outcome.computed}, found finished: {outcome.reused}, "
        f"{outcome.seconds:.1f} s. Written:",
        highlight=False,
    )
    for path in outcome.files:
        console.print(f"  {path}", highlight=False, soft_wrap=True)
    console.print()


def main() -> None:
    """Runs the command; what the user can mend is one line and exit code 2, not a traceback.

    A download that failed is exit code 1: the command was right.
    """
    try:
        app()
    except (RetargetError, OSError) as error:
        show_error(error)
        sys.exit(cli_data.FAILED if isinstance(error, DownloadError) else WRONG_USE)


def show_error(error: Exception) -> None:
    """One line, on the error stream."""
    shown = f"[bold red]Error:[/bold red] {escape(str(error))}"
    Console(stderr=True, emoji=False).print(shown, highlight=False, soft_wrap=True)
