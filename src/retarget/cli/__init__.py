"""The `retarget` command."""

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup
from typer.main import get_group

import retarget
from retarget.errors import DownloadError, ModelRunError, RetargetError
from retarget.storage import FULL_OR_FAILING
from retarget.text import printable

FAILED = 1
WRONG_USE = 2
LONGEST_TYPE = 12  # characters for what an option takes, in the help
# The one-line help of each command, so that `retarget --help` need not import them (seconds).
COMMANDS = {
    "diagnose": (
        "retarget.cli.diagnose",
        "Shows which targets an online learner shifted in your stream, and what would help.",
    ),
    "correct": (
        "retarget.cli.diagnose",
        "Writes the targets to train on: the true ones, and two kinds of corrected ones.",
    ),
    "reproduce": (
        "retarget.cli.reproduce",
        "Computes experiments and draws their figures; without a figure, lists them.",
    ),
    "explore": (
        "retarget.cli.explore",
        "Opens a page where you drag points, change rate and order, and watch targets shift.",
    ),
    "runs": ("retarget.cli.runs", "Lists, shows, cleans and exports finished runs."),
    "data": ("retarget.cli.data", "Lists, downloads and checks data sets."),
}


class Commands(TyperGroup):
    """Imports a command only when it is called, or its help is shown."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Returns the command that the arguments name, and its remaining arguments."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, loaded(name) if name else None, rest

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns `--version` and `--help`: flags, for which the help shows no type."""
        options = super().get_params(ctx)
        for option in options:
            option.metavar = ""
        return options


def loaded(name: str) -> Any:
    """Imports a command: its module has an `app` with one command of that name, or several."""
    group = get_group(import_module(COMMANDS[name][0]).app)
    named = group.commands.get(name, group)
    for command in (named, *getattr(named, "commands", {}).values()):
        _shorten_types(command)
        # the lines of a docstring, which Typer would keep, as paragraphs that fit the terminal
        paragraphs = (command.help or "").split("\n\n")
        command.help = "\n\n".join(" ".join(lines.split()) for lines in paragraphs)
    return named


def _shorten_types(command: Any) -> None:
    """Shows no type for flags, and long lists of choices in the help text.

    The column of types would otherwise leave too little room for the names of options, which are
    then cut off.
    """
    context = command.make_context(command.name, [], resilient_parsing=True)
    for option in command.get_params(context):
        kind = getattr(option, "type_descriptor", None) or option.type  # older Typers have `type`
        choices = option.metavar or "|".join(map(str, getattr(kind, "choices", None) or ()))
        if getattr(option, "is_flag", False):
            option.metavar = ""
        elif choices.count("|") and len(choices) > LONGEST_TYPE:
            option.metavar = option.name.upper()
            option.help = f"{(option.help or '').rstrip()} One of: {choices.replace('|', ', ')}."


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="Shows what an online learner has really learned, and computes targets that correct it.",
)
for _name, (_, _help) in COMMANDS.items():
    app.command(_name, help=_help)(lambda: None)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"retarget {retarget.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of the command itself."""


console = Console(emoji=False)  # a column may be named :rocket:


def say(text: str, style: str = "") -> None:
    """Prints text as it is, except for characters that a terminal would take as commands."""
    lines = "\n".join(printable(line) for line in text.splitlines())
    console.print(lines, style=style, markup=False, highlight=False, soft_wrap=True)


def show_error(error: Exception | str) -> None:
    """Prints an error to standard error, escaped as in `say`."""
    lines = "\n".join(printable(line) for line in str(error).splitlines())
    shown = f"[bold red]Error:[/bold red] {escape(lines)}"
    Console(stderr=True, emoji=False).print(shown, highlight=False, soft_wrap=True)


def main() -> None:
    """Runs the command. An error that the user can fix is one line and exit code 2, no traceback.

    A failed download, a model that fails, and a disk that is full or broken give exit code 1.
    """
    # before torch is imported: waiting threads then sleep and leave the cores to other processes
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except (RetargetError, OSError) as error:
        show_error(error)
        failed = isinstance(error, DownloadError | ModelRunError)
        failed = failed or getattr(error, "errno", 0) in FULL_OR_FAILING
        sys.exit(FAILED if failed else WRONG_USE)
