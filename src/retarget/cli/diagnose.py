"""The commands `retarget diagnose` and `retarget correct`, on the stream in a file."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from retarget.cli import console, say
from retarget.cli.load_stream import diagnosed, diagnosis_options
from retarget.cli.results_folder import command_line, write_all, write_corrected
from retarget.cli.sensors import FILE, ROWS, SAME_AS
from retarget.cli.stream_options import StreamOptions, method_option, stream_command
from retarget.diagnosis.answers import Evaluation, HoldOut
from retarget.diagnosis.metrics import METRICS
from retarget.errors import InvalidInputError
from retarget.storage import atomic_file, user_path

if TYPE_CHECKING:
    from retarget.diagnosis.report.comparison import Compared
    from retarget.diagnosis.result import Diagnosis


# The commands import torch and Polars when they run, so that their help is quick.
OUT = Path("results/diagnosis")
TABLE_SUFFIXES = (".parquet", ".csv")
TOO_FAR = 3  # exit code: the gap is above --fail-above
app = typer.Typer(rich_markup_mode="rich")


@app.command()
@stream_command
def diagnose(
    asked: StreamOptions,
    example: Annotated[
        Literal["sensors"] | None,
        typer.Option(
            metavar="sensors",
            help=f"Write a small stream to {FILE} in the current folder, and diagnose that.",
        ),
    ] = None,
    test: Annotated[
        Path | None, method_option("FILE", "Rows to measure errors on, with the same columns.")
    ] = None,
    evaluation: Annotated[
        Evaluation,
        method_option(
            "both|whole|next|progressive|test",
            "Rows to test on: rows from the whole stream (what does it still know?), the last "
            "ones (how well does it predict what comes next?), both of these, each row before it "
            "is learned (progressive), or the --test file.",
            show_default="both; test with a --test file",
        ),
    ] = "both",
    test_share: Annotated[
        float,
        method_option("SHARE", "Share of the rows to hold out for each test (at least 30 rows)."),
    ] = 0.1,
    hold_out: Annotated[
        HoldOut,
        method_option(
            "rows|group",
            "Hold out single rows, or whole groups (if new people, devices or shops will come).",
        ),
    ] = "rows",
    metric: Annotated[
        str,
        method_option(
            "|".join((*METRICS, "MODULE:FUNCTION")),
            "Measure to compare learners by; auto: the squared error, or for classes the accuracy "
            "if it shows a difference. For your own, name a function of the true and the predicted "
            "targets that returns a loss for each row.",
        ),
    ] = "auto",
    aim: Annotated[
        str,
        method_option(
            "all|window:N|discount:F",
            "Batch model to compare with: of all rows, of the last N rows, or of all rows with "
            "weights that shrink by the factor F (such as 0.999) with every later row. If the "
            "stream drifts, use one of the last two.",
        ),
    ] = "all",
    compare: Annotated[
        Path | None,
        method_option("FILE", "The diagnosis.json of an earlier run, to compare this one with."),
    ] = None,
    fail_above: Annotated[
        str | None,
        method_option(
            "PERCENT",
            "Exit with code 3 if the online model's error on rows from the whole stream is "
            "clearly higher than the batch model's, by more than this, such as 20%.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results.")] = OUT,
    summary: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.md",
            help="Also write headline, advice, scores and forgetting as Markdown, for a pull "
            "request.",
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Print everything: all tables, findings and notes."),
    ] = False,
    as_object: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
    open_report: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the report when it is written.")
    ] = False,
) -> None:
    """Shows which targets an online learner shifted in your stream, and what would help.

    Prints the verdict on one screen, and writes report.html, diagnosis.json, shift.parquet (every
    row's shift) and corrected.parquet (targets to train on) into a folder. Earlier results are
    moved to a folder next to it.
    """
    from retarget.diagnosis.report.comparison import compared_with, read_earlier
    from retarget.diagnosis.report.export import as_json
    from retarget.progress import in_lines

    in_lines()
    if example is not None and asked.file is not None:
        raise InvalidInputError(
            f"--example has a file of its own, {FILE}; give {asked.file} or --example, not both"
        )
    if out.exists() and not out.is_dir():
        raise InvalidInputError(f"--out is {out}, which is a file; expected a folder")
    if summary is not None:
        require_own_file("--summary", summary, [asked.file, test, compare])
    limit = None if fail_above is None else share_of("--fail-above", fail_above)
    earlier = None if compare is None else read_earlier(compare)
    options = diagnosis_options(
        asked,
        evaluation=evaluation,
        test_share=test_share,
        hold_out=hold_out,
        metric=metric,
        aim=aim,
    )
    options.evaluation_with(test)  # a conflict is reported before a long file is read
    with diagnosed(asked, options, test, example, out) as diagnosis:
        compared = [] if earlier is None else compared_with(earlier, as_json(diagnosis))
        files, kept = write_all(diagnosis, out, compared, summary)
    printed = 0  # lines
    if example is not None and not as_object:
        printed = 3
        start, end = SAME_AS.rsplit(" --", 1)
        say(f"Wrote {FILE} ({ROWS} rows). This is the same as:")
        say(f"  {start} \\\n      --{end}")
    if as_object:
        written = [str(path) for path in files]
        more = {"files": written} | ({"compared": compared} if compared else {})
        typer.echo(json.dumps({**as_json(diagnosis), **more}, allow_nan=False))
    else:
        show(diagnosis, compared, verbose, printed)
        if kept is not None:
            here = Path.cwd()
            place = kept.relative_to(here) if kept.is_relative_to(here) else kept
            say(f"The earlier results are kept in {place}.")
        if verbose:
            say("\n".join(["Written:", *(f"  {path}" for path in files)]))
        else:
            say(f"Report: {files[0]} (--verbose prints all of it)")
    if open_report:
        typer.launch(str(files[0]))
    if limit is not None and (why := exceeds(diagnosis, limit)):
        typer.echo(f"Exit code {TOO_FAR}, by --fail-above {fail_above}: {why}.", err=True)
        raise typer.Exit(TOO_FAR)


@app.command()
@stream_command
def correct(
    asked: StreamOptions,
    out: Annotated[
        Path, typer.Option(metavar="DIR|FILE", help="A folder, or a .parquet or .csv file.")
    ] = OUT,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Write targets even if they lie more than 100 standard deviations from yours.",
        ),
    ] = False,
) -> None:
    """Writes the targets to train on: the true ones, and two kinds of corrected ones.

    The file is corrected.parquet, unless --out names another; a .json file next to it says which
    learner the targets are for. The exact correction needs the whole stream in advance; for each
    row, the iterative one uses only earlier rows and the row's block.
    """
    from retarget.diagnosis.report.export import corrected_table, made_for, too_large
    from retarget.progress import in_lines

    in_lines()
    path = out if out.suffix.lower() in TABLE_SUFFIXES else out / "corrected.parquet"
    stream = None if asked.file is None else user_path(asked.file).resolve()
    if path.is_dir() or path.resolve() == stream:
        raise InvalidInputError(
            f"--out would write to {path}, which is a folder or the stream itself; choose another "
            "file"
        )
    # no row is held out, so every row has corrected targets
    options = diagnosis_options(asked, evaluation="progressive")
    with diagnosed(asked, options, place=path.parent, scored=False) as diagnosis:
        corrected = corrected_table(diagnosis, force=force)
        left_out = {} if force or diagnosis.model is not None else too_large(diagnosis)
        if corrected is None and diagnosis.model is not None:
            raise InvalidInputError(
                "there are no corrected targets that clearly helped "
                f"{diagnosis.model.name}: {' '.join(diagnosis.verdict.recommendations)} --force "
                "writes those that were tried"
            )
        if corrected is None:
            sizes = " and ".join(f"the {name} ones {size:,.0f}" for name, size in left_out.items())
            raise InvalidInputError(
                "the corrected targets lie more than 100 standard deviations from your "
                f"targets: {sizes}. They are right only for this kernel. Another --lr, --ridge or "
                "--block-size may help; --force writes them anyway"
            )
        about = path.with_suffix(".json")
        with atomic_file(path) as temporary, atomic_file(about) as described:
            purpose = made_for(diagnosis, command_line())
            as_csv = path.suffix.lower() == ".csv"
            write_corrected(diagnosis, temporary, purpose, force, as_csv)
            described.write_text(json.dumps(purpose, indent=2) + "\n", encoding="utf-8")
    for name, size in left_out.items():
        reach = f"which reach {size:,.0f} standard deviations (--force writes them)."
        say(f"Not written: the {name} targets, {reach}", style="yellow")
    console.print(
        f"These targets are for one learner: {purpose['learner']} Another learner, or a network, "
        "may do worse on them than on your own targets.",
        highlight=False,
        markup=False,
    )
    say("\n".join(["Written:", f"  {path}", f"  {about}"]))


def show(
    diagnosis: "Diagnosis", compared: "list[Compared]", verbose: bool, printed: int = 0
) -> None:
    """Prints the first screen, below so many lines, and what clearly changed; or everything."""
    from retarget.diagnosis.report.report_tables import compared_table
    from retarget.diagnosis.report.terminal import LINES, WIDTH, Screen, everything, first_screen

    screen = Screen(min(WIDTH, console.width), console.encoding)
    if verbose:
        parts = everything(diagnosis, compared, screen)
    else:
        parts = first_screen(diagnosis, screen, LINES - printed)
        clear = [one for one in compared if one.change.endswith(("changed", "better", "worse"))]
        if clear:
            parts.append(screen.table(compared_table(clear)))
        elif compared:
            parts.append(screen.text("Nothing has clearly changed since the earlier run."))
    for part in parts:
        console.print(part, width=screen.width)


def require_own_file(option: str, path: Path, read: list[Path | None]) -> None:
    """Rejects a file to write that is a folder, or one that is read."""
    inputs = {user_path(one).resolve() for one in read if one is not None}
    if path.is_dir() or path.resolve() in inputs:
        raise InvalidInputError(
            f"{option} would write to {path}, which is a folder or a file that is read; choose "
            "another file"
        )


def share_of(option: str, text: str) -> float:
    """Parses a percentage, such as 20%.

    Examples:
        >>> share_of("--fail-above", "20%")
        0.2
    """
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < math.inf:
        raise InvalidInputError(f"{option} is {text!r}; expected a percentage, such as 20%")
    return share


def exceeds(diagnosis: "Diagnosis", limit: float) -> str:
    """Says how the learner of the verdict is behind the batch model, if by more than a limit.

    That is the user's own model, if it was run. Empty if it is not clearly behind, or by less. A
    learner that diverged exceeds every limit.
    """
    from retarget.diagnosis.facts import evidence
    from retarget.diagnosis.words.numbers import change_words

    measured = evidence(diagnosis)
    if measured.diverged:
        return "the model diverges"
    excess = next(iter(measured.asked.values())).excess
    if not (excess.low > 0 and excess.value > limit):
        return ""
    than = "that of the batch model"
    return f"the error is {change_words(excess, more=f'above {than}', times=than)}"
