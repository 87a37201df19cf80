"""The folder that `retarget diagnose` writes: the report, its numbers, and two tables."""

import itertools
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retarget.storage import atomic_file

if TYPE_CHECKING:
    import polars as pl

    from retarget.diagnosis.report.comparison import Compared
    from retarget.diagnosis.result import Diagnosis

RESULTS = ("report.html", "diagnosis.json", "shift.parquet", "corrected.parquet")


def keep_earlier(folder: Path) -> Path | None:
    """Moves the results of an earlier run to a folder beside this one; None if there are none."""
    earlier = [folder / name for name in RESULTS if (folder / name).exists()]
    if not earlier:
        return None
    place = folder.resolve()
    kept = next(
        path
        for number in itertools.count(1)
        if not (path := place.with_name(f"{place.name}-{number}")).exists()
    )
    kept.mkdir()
    for path in earlier:
        path.rename(kept / path.name)
    return kept


def write_all(
    diagnosis: "Diagnosis", folder: Path, compared: "list[Compared]", summary: Path | None = None
) -> tuple[list[Path], Path | None]:
    """Writes the report, the JSON and the tables; if one fails, none is written.

    There are no corrected targets if none can be recommended. `summary` is a file for the first
    screen as Markdown. Returns the files, and the folder in which those of an earlier run are kept.
    """
    from retarget.diagnosis.report.export import (
        corrected_table,
        made_for,
        portions,
        shift_table,
    )
    from retarget.diagnosis.report.markdown import summary_markdown
    from retarget.diagnosis.report.page import report_html

    corrected = corrected_table(diagnosis)
    files = [folder / name for name in RESULTS][: 3 if corrected is None else 4]
    with ExitStack() as together:
        report, described, shift, *targets = (
            together.enter_context(atomic_file(path)) for path in files
        )
        write_tables((shift_table(some) for some in portions(diagnosis)), shift)
        if corrected is not None:
            purpose = made_for(diagnosis, command_line())
            write_corrected(diagnosis, targets[0], purpose)
        diagnosis.to_json(described)
        if summary is not None:
            first_screen = together.enter_context(atomic_file(summary))
            first_screen.write_text(summary_markdown(diagnosis), "utf-8", newline="\n")
        page = report_html(diagnosis, command=command_line(), compared=compared)
        report.write_text(page, "utf-8", newline="\n")
        kept = keep_earlier(folder)  # all are written, and about to take their places
    return [*files, *([] if summary is None else [summary])], kept


def write_corrected(
    diagnosis: "Diagnosis",
    path: Path,
    purpose: dict[str, Any],
    force: bool = False,
    as_csv: bool = False,
) -> None:
    """Writes the targets to train on, of which there are some."""
    from retarget.diagnosis.report.export import corrected_table, portions

    tables = (corrected_table(some, force=force) for some in portions(diagnosis))
    write_tables((table for table in tables if table is not None), path, purpose, as_csv)


def write_tables(
    tables: "Iterator[pl.DataFrame]",
    path: Path,
    purpose: dict[str, Any] | None = None,
    as_csv: bool = False,
) -> None:
    """Writes the rows of several tables as one, of which only a few are in memory at a time.

    A Parquet file says in its own metadata what its targets are for.
    """
    from polars.io.plugins import register_io_source

    first = next(tables)
    rows = register_io_source(
        lambda *_: itertools.chain([first], tables), schema=first.schema, is_pure=False
    )
    with path.open("wb") as opened:  # Polars takes no path that is not UTF-8
        if as_csv:
            rows.sink_csv(opened)
        else:
            about = {} if purpose is None else {"retarget": json.dumps(purpose)}
            rows.sink_parquet(opened, metadata=about)


def command_line() -> str:
    """Returns the command as it was typed, ready to be pasted into a shell."""
    return shlex.join(["retarget", *sys.argv[1:]])
