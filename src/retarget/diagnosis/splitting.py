"""From a table to a `Split`: the rows in order, as numbers, without those held out."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from retarget.diagnosis.measure.holdout import Split, held_out, split_at
from retarget.diagnosis.options import DiagnosisOptions
from retarget.diagnosis.tables.prepare import class_text, prepare, target_kind
from retarget.diagnosis.tables.roles import Roles, order_rows, order_test_rows


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
