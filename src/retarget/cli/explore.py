"""The `retarget explore` command: opens the interactive page."""

import math
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from retarget.cli import say
from retarget.errors import InvalidInputError
from retarget.explore import MOST_POINTS, PAGE, POINTS
from retarget.storage import atomic_file, user_path

if TYPE_CHECKING:
    from retarget.diagnosis.tables.thousands import Thousands

OUT = Path("results/explorer.html")
app = typer.Typer(rich_markup_mode="rich")


@app.command()
def explore(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="A small stream (CSV, Parquet, NPZ, NPY); default: Fig. 1."
        ),
    ] = None,
    x: Annotated[
        str | None, typer.Option("--x", metavar="COL", help="Column for the horizontal axis.")
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COL", help="Column to learn.")] = None,
    thousands: Annotated[
        Literal["auto", "point", "none"],
        typer.Option(
            metavar="auto|point|none", help="What 1.234 means in the FILE: see retarget diagnose."
        ),
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a copy of the page here, and do not open it."),
    ] = None,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Only print where the page is.")
    ] = False,
) -> None:
    """Opens a page where you drag points, change rate and order, and watch targets shift.

    The page is a single file that computes in your browser: it works offline and sends nothing.
    With your own points, a copy is written to results/explorer.html, unless --out names another
    file.
    """
    if file is None and (x is not None or target is not None):
        raise InvalidInputError("--x and --target name columns of a FILE; give the file as well")
    path = PAGE
    points = "" if file is None else points_of(user_path(file), x, target, thousands)
    if out is not None or points:
        path = user_path(OUT if out is None else out)
        with atomic_file(path) as partial:
            page = PAGE.read_text("utf-8").replace(POINTS, POINTS.replace("><", f">{points}<"))
            partial.write_text(page, encoding="utf-8")
        say(f"Wrote {path}")
    else:
        say(str(path))
    if out is None and not no_open and not webbrowser.open(path.resolve().as_uri()):
        say("No browser could be started: open this file in one.")


def points_of(
    path: Path, x: str | None, target: str | None, thousands: "Thousands" = "auto"
) -> str:
    """Returns two columns of a file as the page reads them, one sample a line."""
    from retarget.diagnosis.tables.read import read_table  # imports Polars

    if x is None or target is None:
        names = read_table(path, thousands="none").columns
        columns = ", ".join(map(repr, names))
        raise InvalidInputError(
            f"{path.name} has the columns {columns}; choose two of them: --x COL --target COL"
        )
    table = read_table(path, thousands=thousands)
    columns = ", ".join(map(repr, table.columns))
    for name in (x, target):
        if name not in table.columns:
            raise InvalidInputError(f"{path.name} has no column {name!r}; it has {columns}")
        if not table[name].dtype.is_numeric():
            kind = table[name].dtype
            raise InvalidInputError(f"{name!r} of {path.name} holds {kind}; expected numbers")
    if not 1 <= len(table) <= MOST_POINTS:
        raise InvalidInputError(
            f"{path.name} has {len(table):,} rows; the page shows 1 to {MOST_POINTS}. Use a part "
            "of the file, or diagnose all of it with: retarget diagnose FILE --target COL"
        )
    rows = list(zip(table[x].to_list(), table[target].to_list(), strict=True))
    for number, row in enumerate(rows, start=1):
        if not all(value is not None and math.isfinite(value) for value in row):
            raise InvalidInputError(
                f"a value of row {number} is missing or not finite; leave that row out"
            )
    return "\n".join(f"{float(first)!r}, {float(second)!r}" for first, second in rows)
