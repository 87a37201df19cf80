"""The folder that `retarget diagnose` writes: the report, its numbers, and two tables."""

import itertools
import json
import shlex
import sys
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
    from retarget.diagnosis.report.export import corrected_table, made_for, shift_table
    from retarget.diagnosis.report.markdown import summary_markdown
    from retarget.diagnosis.report.page import report_html

    corrected = corrected_table(diagnosis)
    files = [folder / name for name in RESULTS][: 3 if corrected is None else 4]
    with ExitStack() as together:
        report, described, shift, *targets = (
            together.enter_context(atomic_file(path)) for path in files
        )
        write_table(shift_table(diagnosis), shift)
        if corrected is not None:
            write_table(corrected, targets[0], made_for(diagnosis, command_line()))
        diagnosis.to_json(described)
        if summary is not None:
            first_screen = together.enter_context(atomic_file(summary))
            first_screen.write_text(summary_markdown(diagnosis), "utf-8", newline="\n")
        page = report_html(diagnosis, command=command_line(), compared=compared)
        report.write_text(page, "utf-8", newline="\n")
        kept = keep_earlier(folder)  # all are written, and about to take their places
    return [*files, *([] if summary is None else [summary])], kept


def write_table(
    table: "pl.DataFrame", path: Path, purpose: dict[str, Any] | None = None, as_csv: bool = False
) -> None:
    """Writes a table; a Parquet file says in its own metadata what its targets are for."""
    with path.open("wb") as opened:  # Polars takes no path that is not UTF-8
        if as_csv:
            table.write_csv(opened)
        else:
            about = {} if purpose is None else {"retarget": json.dumps(purpose)}
            table.write_parquet(opened, metadata=about)


def command_line() -> str:
    """Returns the command as it was typed, ready to be pasted into a shell."""
    return shlex.join(["retarget", *sys.argv[1:]])
