"""The `retarget runs` commands: list, show, clean and export the runs in a folder of results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from retarget.cli import console, say
from retarget.cli.results_folder import write_tables
from retarget.errors import InvalidInputError
from retarget.storage import atomic_file
from retarget.text import duration, printable

if TYPE_CHECKING:
    from retarget.lab.runs.store import RunRecord, RunStore

app = typer.Typer(no_args_is_help=True, help="Lists, shows, cleans and exports finished runs.")
COLORS = {"done": "green", "failed": "red", "damaged": "red", "outdated": "yellow"}
# in the order in which they are listed
STATES = ("done", "running", "interrupted", "failed", "outdated", "damaged")

Results = Annotated[Path, typer.Option("--out", help="Folder of the results.")]
Of = Annotated[
    str | None, typer.Option("--experiment", metavar="NAME", help="Only runs of this experiment.")
]


@app.command("list")
def list_runs(out: Results = Path("results"), experiment: Of = None) -> None:
    """Shows every run: whether it is done, failed, interrupted, outdated or damaged."""
    store = _store(out)
    rows = _chosen(store, experiment)
    table = Table(
        Column("key", no_wrap=True),
        "state",
        "experiment",
        Column("run", overflow="fold"),
        Column("time", justify="right"),
        Column("finished (UTC)", no_wrap=True),
        box=None,
        padding=(0, 2, 0, 0),
    )
    states: list[str] = []
    for key, record in rows:
        states.append(store.state(key))
        color = COLORS.get(states[-1], "cyan")
        about = [""] * 4
        if record is not None:
            names = (escape(printable(name)) for name in (record.experiment, record.name))
            finished = record.finished[:16].replace("T", " ")  # to the minute
            about = [*names, duration(record.seconds), finished]
        table.add_row(key, f"[{color}]{states[-1]}[/{color}]", *about)
    if rows:
        console.print(table)
    counts = ", ".join(f"{states.count(s)} {s}" for s in STATES if s in states)
    say(f"{len(rows)} runs in {store.folder}" + (f": {counts}" if counts else ""))


@app.command()
def show(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The beginning of a run's key.")],
    out: Results = Path("results"),
) -> None:
    """Shows everything known about a run, and the first rows of its result."""
    store = _store(out)
    key = store.find(key)
    record = store.record(key)
    state = store.state(key)
    say(f"{key}: {state}")
    if record is None:
        return
    say(f"{record.experiment}: {record.name}")
    say(f"finished {record.finished} after {duration(record.seconds)}, {record.machine}")
    for field in ("kind", "config", "data", "code", "packages"):
        say(f"{field}: {_lines(getattr(record.identity, field))}")
    for warning in record.warnings:
        say(f"warning: {warning}")
    if record.reason is not None:
        say(f"reason: {record.reason}")
    if record.trace is not None:
        say(record.trace)
    if state in ("done", "outdated"):
        console.print(str(store.result(key)), markup=False, highlight=False)


@app.command()
def clean(
    out: Results = Path("results"),
    experiment: Of = None,
    interrupted: Annotated[
        bool,
        typer.Option("--interrupted", help="Also delete interrupted runs, which will start again."),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Delete all runs, even those that are done.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be deleted.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Deletes runs that are no longer useful: failed, damaged and outdated ones."""
    store = _store(out)
    unwanted = {"failed", "damaged", "outdated"} | ({"interrupted"} if interrupted else set())
    unwanted = set(STATES) if everything else unwanted
    going = [key for key, _ in _chosen(store, experiment) if store.state(key) in unwanted]
    for key in going:
        record = store.record(key)
        about = "" if record is None else f", {record.experiment}: {record.name}"
        say(f"  {key}  {store.state(key)}{about}")
    if not going or dry_run:
        say(f"{len(going)} runs would be deleted." if dry_run else "There is nothing to clean.")
        return
    if not yes:
        typer.confirm(f"Delete these {len(going)} runs?", abort=True)
    busy = [key for key in going if not store.remove(key)]
    say(f"{len(going) - len(busy)} runs deleted.")
    for key in busy:
        say(f"{key} is being computed by another process, and was kept.")


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write: .parquet or .csv.")],
    out: Results = Path("results"),
    experiment: Of = None,
) -> None:
    """Writes the results of all finished runs to one table, with their parameters."""
    import polars as pl

    if file.suffix not in (".parquet", ".csv"):
        raise InvalidInputError(f"{file} ends in {file.suffix!r}; expected .parquet or .csv")
    store = _store(out)
    keys = [key for key, record in _chosen(store, experiment) if record is not None]
    table = store.export(keys)
    as_csv = file.suffix == ".csv"
    if as_csv:
        nested = pl.selectors.by_dtype(pl.List)
        table = table.with_columns(nested.cast(pl.List(pl.String)).list.join(" "))
    with atomic_file(file) as temporary:
        write_tables(iter([table]), temporary, as_csv=as_csv)
    say(f"{table.height} rows of {table['run'].n_unique()} runs in {file}")


def _store(out: Path) -> "RunStore":
    from retarget.lab.runs.store import RunStore

    store = RunStore(out)
    if not store.folder.is_dir():
        raise InvalidInputError(
            f"there are no runs in {out}; expected a results folder of `retarget reproduce` (--out)"
        )
    return store


def _chosen(store: "RunStore", experiment: str | None) -> list[tuple[str, "RunRecord | None"]]:
    records = [(key, store.record(key)) for key in store]
    records.sort(key=lambda pair: "" if pair[1] is None else pair[1].finished)
    if experiment is None:
        return records
    names = {record.experiment for _, record in records if record is not None}
    if experiment not in names:
        known = ", ".join(sorted(names)) or "none"
        raise InvalidInputError(f"no run here belongs to experiment {experiment!r}; known: {known}")
    return [(k, record) for k, record in records if record and record.experiment == experiment]


def _lines(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    return "".join(f"\n  {name}: {words}" for name, words in value.items()) or "none"
