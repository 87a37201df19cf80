"""The `retarget` command."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import retarget
from retarget import cli_data, cli_diagnose
from retarget.errors import DownloadError, RetargetError
from retarget.experiments.experiment import (
    Experiment,
    experiment_names,
    families,
    load_experiment,
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
        list[str], typer.Argument(metavar="FIGURE", help="Names from the list above, or all.")
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
    device: Annotated[
        str | None, typer.Option(help="Where networks are trained: cpu, cuda, cuda:1...")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Compute everything again, also what is found done.")
    ] = False,
) -> None:
    """Computes experiments and draws their figures."""
    names = experiment_names() if figures == ["all"] else list(dict.fromkeys(figures))
    if data_dir is not None:
        os.environ["RETARGET_DATA"] = str(data_dir)
    changes = parse_changes(change or (), seed or ())
    experiments = []
    for name in names:
        experiment = load_experiment(name)
        if quick and experiment.quick:
            experiment = experiment.changed(experiment.quick)
        experiments.append(experiment.changed(changes))
        if device is not None:
            experiments[-1] = experiments[-1].on_device(device)
        experiments[-1].runs()  # wrong parameters are an error before any work
    for experiment in experiments:
        _reproduce(experiment, out, fresh)


def _reproduce(experiment: Experiment, out: Path, fresh: bool) -> None:
    console.print(f"[bold]{experiment.name}[/bold]: {experiment.title}")
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
        shown = f"[bold red]Error:[/bold red] {escape(str(error))}"
        Console(stderr=True, emoji=False).print(shown, highlight=False, soft_wrap=True)
        sys.exit(cli_data.FAILED if isinstance(error, DownloadError) else WRONG_USE)
