"""The `retarget data` commands: list, download and check data sets."""

from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Column, Table

from retarget.cli import FAILED, console, say
from retarget.lab.data import fetch
from retarget.lab.data.fetch import DATA_SETS, DataSet, find_data_set
from retarget.text import printable

COLORS = {"ok": "green", "missing": "yellow"}

app = typer.Typer(no_args_is_help=True, help="Lists, downloads and checks data sets.")

Name = Annotated[str, typer.Argument(metavar="NAME", help=f"The data set: {', '.join(DATA_SETS)}.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help=f"Folder of the files; by default {fetch.FOLDER_VARIABLE}, else your cache folder.",
    ),
]


@app.command("list")
def list_data_sets(data_dir: Folder = None) -> None:
    """Shows every data set, its size, and where it is stored."""
    folder = fetch.data_folder(data_dir)
    table = Table("name", "what it is", "download", Column("where it is", overflow="fold"))
    for name, data_set in DATA_SETS.items():
        where = _where(data_set, folder)
        table.add_row(name, data_set.description, decimal(data_set.download_size), where)
    console.print(table)


def _where(data_set: DataSet, folder: Path) -> str:
    present = sum(bool(file.present(folder)) for file in data_set.files)
    if not present:
        return "not downloaded"
    some = "" if present == len(data_set.files) else f"{present} of {len(data_set.files)} files in "
    return escape(printable(f"{some}{folder}"))


@app.command()
def get(name: Name, data_dir: Folder = None) -> None:
    """Downloads the files of a data set that are missing or have a wrong checksum."""
    data_set = find_data_set(name)
    folder = fetch.data_folder(data_dir)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console, transient=True) as bars:
        tasks = {
            file: bars.add_task(file.download.name, total=file.download.size, visible=False)
            for file in data_set.files
        }
        downloaded = fetch.get(
            data_set,
            folder,
            lambda file, count: bars.update(tasks[file], completed=count, visible=True),
        )
    for file in data_set.files:
        already = "" if file in downloaded else "already "
        say(f"  {file.download.name}: {already}downloaded")
    say(f"{name} is in {folder}", style="bold")


@app.command()
def check(name: Name, data_dir: Folder = None) -> None:
    """Compares the files of a data set with the official checksums."""
    data_set = find_data_set(name)
    folder = fetch.data_folder(data_dir)
    states = {file.download.name: fetch.check_file(file, folder) for file in data_set.files}
    say(f"{name} in {folder}", style="bold")
    for file, (state, detail) in states.items():
        more = f" ({detail})" if detail else ""
        say(f"  {file}: {state}{more}", style=COLORS.get(state, "red"))
    if any(state != "ok" for state, _ in states.values()):
        say(f"Fix it with: {fetch.get_command(data_set, folder)}")
        raise typer.Exit(FAILED)
