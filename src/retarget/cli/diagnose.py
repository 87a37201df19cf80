"""The commands `retarget diagnose` and `retarget correct`, on the stream in a file."""

import json
import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli import console, say
from retarget.cli.stream_options import method_option, with_shared_options
from retarget.errors import InvalidInputError
from retarget.storage import atomic_file, user_path
from retarget.text import amount_of_memory, auto_or_number, listed

if TYPE_CHECKING:
    import polars as pl

    from retarget.diagnosis.options import Options
    from retarget.diagnosis.result import Diagnosis
    from retarget.diagnosis.tables.roles import Roles


# The commands import torch and Polars when they run, so that their help is quick.
OUT = Path("results/diagnosis")
TABLE_SUFFIXES = (".parquet", ".csv")
KERNELS = ("rbf", "linear")
app = typer.Typer(rich_markup_mode="rich")


@app.command()
@with_shared_options
def diagnose(
    asked: dict[str, Any],
    test: Annotated[
        Path | None, method_option("FILE", "Rows to measure errors on, with the same columns.")
    ] = None,
    evaluation: Annotated[
        str | None,
        method_option(
            "last|random|progressive|test",
            "Rows that errors are measured on: the last ones of the stream, random ones of "
            "every class, each row before it is learned (progressive), or the --test file.",
            show_default="test with a --test file, else last; random if the last rows hold "
            "classes that were never learned",
        ),
    ] = None,
    test_share: Annotated[
        float, method_option(None, "Share of the rows held out, at the end or at random.")
    ] = 0.2,
    reference: Annotated[
        str,
        method_option(
            "all|window:N|discount:F",
            "Batch model to compare with: of all rows, of the last N, or with each row "
            "counting F times the next one (0.999). If the stream drifts, use one of the latter.",
        ),
    ] = "all",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results.")] = OUT,
    as_object: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
    open_report: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the report when it is written.")
    ] = False,
) -> None:
    """Shows which targets an online learner shifted in your stream, and what would help.

    Writes report.html, shift.parquet (every row's shift) and corrected.parquet (targets to train
    on) into a folder.
    """
    from retarget.diagnosis.pipeline import diagnose_table
    from retarget.diagnosis.report.export import as_json, terminal_parts

    if out.exists() and not out.is_dir():
        raise InvalidInputError(f"--out is {out}, which is a file; expected a folder")
    options = options_of(asked, evaluation=evaluation, test_share=test_share, reference=reference)
    if asked["file"] is not None:
        options.evaluation_with(test)  # a conflict is reported before a long file is read
    table, test_table, roles = load_tables(asked, test)
    if asked["file"] is None and evaluation not in (None, "test"):
        test_table = None  # the digits have their own test set
    diagnosis = diagnose_table(table, roles, test_table, options)
    files = write_all(diagnosis, out)
    if as_object:
        written = [str(path) for path in files]
        typer.echo(json.dumps({**as_json(diagnosis), "files": written}, allow_nan=False))
    else:
        for part in terminal_parts(diagnosis):
            console.print(part)
        say("\n".join(["Written:", *(f"  {path}" for path in files)]))
    if open_report:
        typer.launch(str(files[0]))


@app.command()
@with_shared_options
def correct(
    asked: dict[str, Any],
    out: Annotated[
        Path, typer.Option(metavar="DIR|FILE", help="A folder, or a .parquet or .csv file.")
    ] = OUT,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Write targets even if they are out of all proportion to yours."
        ),
    ] = False,
) -> None:
    """Writes the targets to train on, for every row: true, and corrected in two ways.

    The file is corrected.parquet, unless --out names another; a .json file beside it says which
    learner they are for. The exact correction needs the whole stream in advance; the iterative one
    uses, for each row, only earlier rows and its block.
    """
    from retarget.diagnosis.pipeline import diagnose_table
    from retarget.diagnosis.report.export import corrected_table, made_for, out_of_proportion

    path = out if out.suffix.lower() in TABLE_SUFFIXES else out / "corrected.parquet"
    file = asked["file"]
    if path.is_dir() or (file is not None and path.resolve() == user_path(file).resolve()):
        raise InvalidInputError(
            f"--out would write to {path}, which is a folder or the stream itself; choose another "
            "file"
        )
    # progressive: no row is held out, so every row has corrected targets
    options = options_of(asked, evaluation="progressive")
    table, _, roles = load_tables(asked)
    diagnosis = diagnose_table(table, roles, None, options)
    corrected = corrected_table(diagnosis, force=force)
    left_out = {} if force else out_of_proportion(diagnosis)
    if len(left_out) == 2:
        sizes = ", ".join(f"the {name} ones {size:,.0f}" for name, size in left_out.items())
        raise InvalidInputError(
            f"the corrected targets are out of all proportion to yours: {sizes} "
            "standard deviations from the mean; they are right only for this kernel. Another "
            "--lr, --ridge or --block-size may help; --force writes them anyway"
        )
    about = path.with_suffix(".json")
    with atomic_file(path) as temporary, atomic_file(about) as described:
        with temporary.open("wb") as opened:  # Polars takes no path that is not UTF-8
            if path.suffix.lower() == ".csv":
                corrected.write_csv(opened)
            else:
                corrected.write_parquet(opened)
        purpose = made_for(diagnosis, command_line())
        described.write_text(json.dumps(purpose, indent=2) + "\n", encoding="utf-8")
    for kind, size in left_out.items():
        reach = f"which reach {size:,.0f} standard deviations (--force writes them)."
        say(f"Left out: the {kind} targets, {reach}", style="yellow")
    console.print(
        f"These targets are for one learner: {purpose['learner']} Trained on them, another "
        "learner or a network may end worse than on your own targets.",
        highlight=False,
        markup=False,
    )
    say("\n".join(["Written:", f"  {path}", f"  {about}"]))


def options_of(asked: dict[str, Any], **more: Any) -> "Options":
    """Parses the options for learner and method; errors are reported before any file is read."""
    from retarget.diagnosis.options import Options
    from retarget.diagnosis.pipeline import chosen

    kernel, memory = asked["kernel"], asked["memory"]
    if kernel not in KERNELS and ":" not in kernel:
        raise InvalidInputError(
            f"--kernel is {kernel!r}; expected {', '.join(KERNELS)}, or package.module:factory"
        )
    numbers = {name: auto_or_number(f"--{name}", asked[name]) for name in ("lr", "gamma", "width")}
    given: dict[str, Any] = {**asked, **more, **numbers}
    given["width"] = None if numbers["width"] == "auto" else numbers["width"]
    given["memory"] = None if memory is None else amount_of_memory("--memory", memory)
    given["model_options"] = model_arguments(asked["model_options"])
    return chosen(Options, given)


def model_arguments(given: list[str] | None) -> dict[str, Any] | None:
    """Parses NAME=VALUE arguments: numbers, true and null as in JSON, anything else as text.

    Examples:
        >>> model_arguments(["eta0=0.1", "penalty=null", "loss=squared_error"])
        {'eta0': 0.1, 'penalty': None, 'loss': 'squared_error'}
    """
    if not given:
        return None
    arguments: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidInputError(f"--model-options is {text!r}; expected NAME=VALUE")
        try:
            arguments[name] = json.loads(value)
        except ValueError:
            arguments[name] = value
    return arguments


def load_tables(
    asked: dict[str, Any], test: Path | None = None
) -> "tuple[pl.DataFrame, pl.DataFrame | None, Roles]":
    """Returns the stream (the embedded digits if there is no file), the test set, and the roles."""
    from retarget.diagnosis.pipeline import chosen
    from retarget.diagnosis.tables.read import read_table
    from retarget.diagnosis.tables.roles import MOST_COLUMNS_SHOWN, Roles

    file, target = asked["file"], asked["target"]
    if file is None:
        if target or test or chosen(Roles, {**asked, "target": "digit"}) != Roles(("digit",)):
            raise InvalidInputError(
                "options for columns or a test set need a FILE; give the file of the stream as well"
            )
        return digits_tables(asked["seed"])
    if not target:
        raise InvalidInputError(
            f"no target is named; name the column of {file} to be learned (--target), one of: "
            f"{listed(read_table(file).columns, MOST_COLUMNS_SHOWN)}"
        )
    roles = chosen(Roles, asked)
    table = read_table(file, roles.loaded, roles.drop)
    roles = replace(roles, drop=())  # they were not loaded
    roles.require_in(table.columns)
    if test is None:
        return table, None, roles
    return table, read_table(test, table.columns, require_all=False), roles


def digits_tables(seed: int) -> "tuple[pl.DataFrame, pl.DataFrame, Roles]":
    """Returns a stream of handwritten digits, class by class, a test set, and the columns' roles.

    Examples:
        >>> stream, test, _ = digits_tables(seed=0)
        >>> len(stream), len(test), stream["digit"][0], stream["digit"][-1]
        (1348, 449, '0', '9')
    """
    import polars as pl

    from retarget.data.digits import digits_stream
    from retarget.diagnosis.tables.roles import Roles

    digits = digits_stream(seed)
    stream, test = (
        pl.DataFrame(
            {f"pixel{number}": column for number, column in enumerate(images.T)}
            | {"digit": [str(label) for label in labels]}
        )
        for images, labels in (
            (digits.x_train, digits.labels_train),
            (digits.x_test, digits.labels_test),
        )
    )
    # Pixels are in [0, 1] already; scaling would inflate those that hardly vary.
    return stream, test, Roles(target=("digit",), group="digit", standardise=False)


def write_all(diagnosis: "Diagnosis", folder: Path) -> list[Path]:
    """Writes the report and both tables; if one fails, none is written."""
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
    """Returns the command as it was typed, ready to be pasted into a shell."""
    return shlex.join(["retarget", *sys.argv[1:]])
