"""The commands `retarget diagnose` and `retarget correct`, on the stream in a file."""

import json
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from retarget.cli import diagnose_options as option
from retarget.errors import InvalidInputError
from retarget.storage import atomic_file, user_path
from retarget.text import auto_or_number, printable

if TYPE_CHECKING:
    from retarget.diagnosis.result import Diagnosis

# What computes is imported by the commands: their help need not wait for torch and Polars.
OUT = Path("results/diagnosis")
TABLE_SUFFIXES = (".parquet", ".csv")
app = typer.Typer(rich_markup_mode="rich")
console = Console(emoji=False)  # a column may be called :rocket:


@app.command()
def diagnose(
    file: option.File = None,
    target: option.Target = None,
    time: option.Time = None,
    group: option.Group = None,
    group_as_feature: option.GroupAsFeature = False,
    column: option.Column = None,
    drop: option.Drop = None,
    kind: option.Kind = "auto",
    impute: option.Impute = "error",
    standardise: option.Standardise = True,
    allow_leak: option.AllowLeak = False,
    kernel: option.Kernel = "rbf",
    width: option.Width = "auto",
    lr: option.Lr = "auto",
    batch_size: option.BatchSize = 1,
    momentum: option.Momentum = 0.0,
    nesterov: option.Nesterov = False,
    weight_decay: option.WeightDecay = 0.0,
    reduction: option.Reduction = "sum",
    test: option.Test = None,
    evaluation: option.Evaluation = None,
    test_share: option.TestShare = 0.2,
    gamma: option.Gamma = "auto",
    block_size: option.BlockSize = None,
    ridge: option.Ridge = None,
    mode: option.Mode = "auto",
    features: option.Features = None,
    memory: option.Memory = None,
    seed: option.Seed = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results.")] = OUT,
    as_object: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else.")
    ] = False,
    open_report: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the report when it is written.")
    ] = False,
) -> None:
    """What an online learner made of a stream: which targets it shifted, and what would help.

    Writes report.html, shift.parquet (every row's shift) and corrected.parquet (targets to train
    on) into a folder.
    """
    asked = locals()  # the options by name
    from retarget.cli.diagnose_input import (
        chosen_evaluation,
        computation,
        load_tables,
        require_kernel,
    )
    from retarget.diagnosis.api import diagnose_table
    from retarget.diagnosis.report.export import as_json, terminal_parts

    if out.exists() and not out.is_dir():
        raise InvalidInputError(f"--out is {out}, which is a file; expected a folder")
    require_kernel(kernel)
    ridge_offline = auto_or_number("--gamma", gamma)
    chosen = chosen_evaluation(evaluation, test)
    options = computation(asked)
    table, test_table, roles = load_tables(asked)
    diagnosis = diagnose_table(
        table,
        roles,
        test=None if chosen else test_table,  # the digits come with one
        evaluation=chosen,
        test_share=test_share,
        kernel=kernel,
        gamma=ridge_offline,
        **options,
    )
    files = write_all(diagnosis, out)
    if as_object:
        written = [str(path) for path in files]
        typer.echo(json.dumps({**as_json(diagnosis), "files": written}, allow_nan=False))
    else:
        for part in terminal_parts(diagnosis):
            console.print(part)
        _show_files(files)
    if open_report:
        typer.launch(str(files[0]))


@app.command()
def correct(
    file: option.File = None,
    target: option.Target = None,
    time: option.Time = None,
    group: option.Group = None,
    group_as_feature: option.GroupAsFeature = False,
    column: option.Column = None,
    drop: option.Drop = None,
    kind: option.Kind = "auto",
    impute: option.Impute = "error",
    standardise: option.Standardise = True,
    allow_leak: option.AllowLeak = False,
    kernel: option.Kernel = "rbf",
    width: option.Width = "auto",
    lr: option.Lr = "auto",
    batch_size: option.BatchSize = 1,
    momentum: option.Momentum = 0.0,
    nesterov: option.Nesterov = False,
    weight_decay: option.WeightDecay = 0.0,
    reduction: option.Reduction = "sum",
    gamma: option.Gamma = "auto",
    block_size: option.BlockSize = None,
    ridge: option.Ridge = None,
    mode: option.Mode = "auto",
    features: option.Features = None,
    memory: option.Memory = None,
    seed: option.Seed = 0,
    out: Annotated[
        Path, typer.Option(metavar="DIR|FILE", help="A folder, or a file .parquet or .csv.")
    ] = OUT,
) -> None:
    """The targets to train on, for every row of a stream: true, and corrected in two ways.

    Writes corrected.parquet. The exact correction needs the whole stream beforehand; the iterative
    one only what was there by then.
    """
    asked = locals()  # the options by name
    from retarget.cli.diagnose_input import computation, load_tables, require_kernel
    from retarget.diagnosis.api import diagnose_table
    from retarget.diagnosis.report.export import corrected_table

    path = out if out.suffix.lower() in TABLE_SUFFIXES else out / "corrected.parquet"
    if path.is_dir() or (file is not None and path.resolve() == user_path(file).resolve()):
        raise InvalidInputError(
            f"--out would write to {path}, which is a folder or the stream itself; choose another"
        )
    require_kernel(kernel)
    ridge_offline = auto_or_number("--gamma", gamma)
    options = computation(asked)
    table, _, roles = load_tables(asked)
    # progressive: no row is held out, so every row has corrected targets
    diagnosis = diagnose_table(
        table, roles, evaluation="progressive", kernel=kernel, gamma=ridge_offline, **options
    )
    # opened here: Polars takes no path that is not UTF-8
    with atomic_file(path) as temporary, temporary.open("wb") as opened:
        corrected = corrected_table(diagnosis)
        if path.suffix.lower() == ".csv":
            corrected.write_csv(opened)
        else:
            corrected.write_parquet(opened)
    _show_files([path])


def write_all(diagnosis: "Diagnosis", folder: Path) -> list[Path]:
    """Writes the report and both tables: all of them, or none if one fails."""
    from retarget.diagnosis.report.export import corrected_table, shift_table
    from retarget.diagnosis.report.page import write_report

    files = [folder / name for name in ("report.html", "shift.parquet", "corrected.parquet")]
    with ExitStack() as together:
        report, shift, corrected = (together.enter_context(atomic_file(path)) for path in files)
        # opened here: Polars takes no path that is not UTF-8
        for path, table in ((shift, shift_table), (corrected, corrected_table)):
            with path.open("wb") as opened:
                table(diagnosis).write_parquet(opened)
        write_report(diagnosis, report, command=command_line())
    return files


def command_line() -> str:
    """The command as it was typed, ready to be pasted into a shell."""
    return shlex.join(["retarget", *sys.argv[1:]])


def _show_files(files: list[Path]) -> None:
    console.print("Written:")
    for path in files:
        console.print(f"  {printable(str(path))}", highlight=False, markup=False, soft_wrap=True)
