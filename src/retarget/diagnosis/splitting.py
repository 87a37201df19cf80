"""From a table to a `Split`: the rows in order, as numbers, without those held out."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from retarget.diagnosis.answers import Question
from retarget.diagnosis.measure.groups import PARTS, Partition, largest
from retarget.diagnosis.measure.holdout import (
    MOST_NEXT_ROWS,
    MOST_WHOLE_ROWS,
    Held,
    OnDisk,
    Split,
    held_out,
    held_out_of_long,
    split_at,
)
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.stream import Stream
from retarget.diagnosis.tables.landing import HeldRows, Landed, land, survey
from retarget.diagnosis.tables.portions import MOST_ROWS_HELD, PORTION_ROWS, RowSource
from retarget.diagnosis.tables.prepare import class_text, prepare, target_kind
from retarget.diagnosis.tables.roles import Roles, order_rows, order_test_rows
from retarget.errors import InvalidInputError
from retarget.row_files import RowFiles


class SplitTable(NamedTuple):
    """A table that is ready to be measured on.

    Attributes:
        parted: The stream, and the rows held out.
        before: (n, targets) logged predictions for its rows before each was learned, if there are
            any.
        after: The same at the end of the stream.
    """

    parted: Split
    before: np.ndarray | None
    after: np.ndarray | None


def split_table(
    table: pl.DataFrame, roles: Roles, test: pl.DataFrame | None, options: DiagnosisOptions
) -> SplitTable:
    """Orders the rows, holds some of them out, and turns columns into numbers.

    The preparation learns nothing from held-out rows: no mean, and no category.
    """
    rows = order_rows(table, roles)
    classes = None
    if target_kind(rows) == "classification":
        classes = class_text(rows.table[roles.target[0]]).to_numpy()
    groups = rows.as_text(roles.group) if options.hold_out == "group" else None
    held_out_rows = held_out(len(rows), options.evaluation_with(test), options, classes, groups)
    learned = np.setdiff1d(np.arange(len(rows)), held_out_rows.not_learned)
    # the rows to learn from come first, and are put back in their places afterwards
    order = np.concatenate([learned, held_out_rows.not_learned])
    sorted_rows = replace(rows, table=rows.table[order], numbers=rows.numbers[order])
    stream, preparation = prepare(sorted_rows, len(learned))
    stream = stream.part(np.argsort(order))
    test_stream = None
    if test is not None:
        test_stream = preparation.apply(order_test_rows(test, roles))
        notes = (f"Test set: {note}" for note in test_stream.notes if note not in stream.notes)
        stream = replace(stream, notes=(*stream.notes, *notes))
    before, after = (
        rows.table[learned].select(columns).to_numpy() if columns else None
        for columns in (roles.predictions, roles.predictions_after)
    )
    return SplitTable(split_at(stream, held_out_rows, test_stream, options), before, after)


def split_source(
    source: RowSource,
    names: list[str],
    roles: Roles,
    options: DiagnosisOptions,
    files: RowFiles,
    scored: bool,
) -> Split:
    """Writes a table that is too long for memory as numbers to files, without the rows held out.

    Fewer rows are held out than of a shorter stream: as many as a diagnosis asks about; none if the
    learners are not to be `scored`.
    """
    if options.model is not None:
        raise InvalidInputError(
            "a model is given, and the table is too long to be held in memory; a model is run on "
            f"at most {MOST_ROWS_HELD:,} rows: give the rows of a shorter period"
        )
    if options.hold_out == "group":
        raise InvalidInputError(
            f"whole groups are to be held out ({spelled('hold_out', 'group')}), and the table is "
            f"too long to be held in memory; that is done for at most {MOST_ROWS_HELD:,} rows"
        )
    found = survey(source, names, roles)
    asked_about = held_out_of_long(found.rows, options) if scored else Held()
    landed = land(source, names, roles, found, asked_about.not_learned, files)
    return _split_landed(landed, found.rows, asked_about)


def _split_landed(landed: Landed, rows: int, asked_about: Held) -> Split:
    """Returns the split of a stream in files."""
    stream = landed.stream
    held = landed.held
    if asked_about.folds or len(asked_about.coming):
        note = (
            f"Held out {len(held):,} rows: of a table that is read in portions, at most "
            f"{MOST_WHOLE_ROWS:,} from all over the stream and {MOST_NEXT_ROWS:,} at its end."
        )
        stream = replace(stream, notes=(*stream.notes, note))
    positions = np.sort(asked_about.not_learned)
    asked: dict[Question, Stream] = {}
    past: Stream | None = None
    previous: np.ndarray | None = None
    if asked_about.folds:
        of_fold = np.searchsorted(positions, asked_about.folds[0])
        asked["whole"] = held.part(of_fold)
        length = rows - len(asked_about.coming)
        part = asked["whole"]
        past = replace(
            part,
            X=HeldRows(length, asked_about.folds[0], part.X),  # type: ignore[arg-type]
            Y=HeldRows(length, asked_about.folds[0], part.Y),  # type: ignore[arg-type]
            rows=HeldRows(length, asked_about.folds[0], part.rows),  # type: ignore[arg-type]
            groups=None,
            times=None,
        )
    if len(asked_about.coming):
        asked["next"] = held.part(np.searchsorted(positions, asked_about.coming))
        first = asked_about.coming[0] - 1
        before = stream.Y[-1]
        if first in positions:
            before = held.Y[np.searchsorted(positions, first)]
        previous = np.vstack([before, asked["next"].Y[:-1]])
    landed = replace(landed, stream=stream)
    on_disk = OnDisk(landed.files, _partition(landed), landed.described)
    folds = asked_about.folds
    return Split(stream, asked, False, previous, past, folds, on_disk)


def _partition(landed: Landed) -> Partition:
    """Returns the groups of the rows that are learned, or consecutive parts of them."""
    rows = len(landed.stream)
    numbers = landed.files.array((rows,), np.int32)
    if landed.groups is None:
        count = min(PARTS, rows)
        names = tuple(f"part {part + 1}" for part in range(count))
    else:
        names, place = largest(landed.group_names, landed.group_counts)
    for start in range(0, rows, PORTION_ROWS):
        some = slice(start, min(start + PORTION_ROWS, rows))
        if landed.groups is None:
            numbers[some] = np.arange(some.start, some.stop) * count // rows
        else:
            numbers[some] = place[landed.groups[some]]
        landed.files.advance(some.stop - some.start)
    return Partition(names, numbers)
