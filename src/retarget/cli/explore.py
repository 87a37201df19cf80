"""The `retarget explore` command: opens the interactive page."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from retarget.cli import say
from retarget.errors import InvalidInputError

app = typer.Typer(rich_markup_mode="rich")


@app.command()
def explore(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="A small stream (CSV, Parquet, NPZ, NPY); without it, Fig. 1."
        ),
    ] = None,
    x: Annotated[
        str | None, typer.Option("--x", metavar="COL", help="The column drawn from left to right.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="COL", help="The column to be learned.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where the page is served; 0 takes a free port.")
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address of the page.")
    ] = False,
) -> None:
    """Opens a page where you move points, rates and the order, and see targets shift.

    It is served to this machine only, until Ctrl-C.
    """
    # imports torch and Polars, which the help does not need
    from retarget.explore.server import ExploreServer
    from retarget.explore.state import file_opening, toy_opening

    if file is None and (x is not None or target is not None):
        raise InvalidInputError("--x and --target name columns of a FILE; give the file as well")
    opening = toy_opening() if file is None else file_opening(file, x, target)
    with ExploreServer(opening, port) as server:
        say(f"Open {server.url}", style="bold")
        say("Only this machine can see it. Stop with Ctrl-C.")
        if not no_browser:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("Stopped.")
