"""The `retarget explore` command: opens the interactive page."""

import shutil
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from retarget.cli import say
from retarget.explore import PAGE
from retarget.storage import atomic_file, user_path

app = typer.Typer(rich_markup_mode="rich")


@app.command()
def explore(
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a copy of the page here, and do not open it."),
    ] = None,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Only print where the page is.")
    ] = False,
) -> None:
    """Opens a page where you move points, rates and the order, and see targets shift.

    The page is a single file that computes in your browser: it works offline, and sends nothing.
    """
    if out is not None:
        path = user_path(out)
        with atomic_file(path) as partial:
            shutil.copyfile(PAGE, partial)
        say(f"Wrote {path}")
        return
    say(str(PAGE))
    if not no_open and not webbrowser.open(PAGE.as_uri()):
        say("No browser could be started: open this file in one.")
