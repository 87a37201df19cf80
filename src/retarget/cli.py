"""The `retarget` command."""

import sys
from typing import Annotated

import typer
from rich.console import Console

import retarget
from retarget import cli_data, cli_diagnose, cli_explore, cli_reproduce, cli_runs
from retarget.cli_reproduce import WRONG_USE, figures_help, show_error
from retarget.errors import DownloadError, RetargetError
from retarget.storage import FULL_OR_FAILING

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="What an online learner has really learned, and the targets that correct it.",
)
app.command()(cli_diagnose.diagnose)
app.command()(cli_diagnose.correct)
app.command(help=figures_help())(cli_reproduce.reproduce)
app.add_typer(cli_runs.app, name="runs")
app.add_typer(cli_data.app, name="data")
app.command()(cli_explore.explore)
console = Console()


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


def main() -> None:
    """Runs the command; what the user can correct is one line and exit code 2, not a traceback.

    A download that failed, and a disk that is full or fails, is exit code 1: the command was right.
    """
    try:
        app()
    except (RetargetError, OSError) as error:
        show_error(error)
        right = isinstance(error, DownloadError) or getattr(error, "errno", 0) in FULL_OR_FAILING
        sys.exit(cli_data.FAILED if right else WRONG_USE)
