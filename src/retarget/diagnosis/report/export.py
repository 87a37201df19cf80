"""Exports a diagnosis as tables in the user's own units, as JSON, as text, or to the terminal."""

import math
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import polars as pl
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from retarget.diagnosis.report.words import (
    baseline_lines,
    learner_lines,
    learner_words,
    tested_on,
    typed,
    with_interval,
)
from retarget.diagnosis.result import OUT_OF_PROPORTION, Diagnosis
from retarget.learners import LABELS
from retarget.text import printable

MOST_TARGETS = 3  # on the terminal
LONGEST_CELL = 40

# Fields of a diagnosis, and of its model, that grow with the stream: only the tables have them.
OF_ALL_ROWS = {"stream", "effective", "corrected", "iterative", "prequential", "density", "changed"}
OF_ALL_ROWS_OF_A_MODEL = {"before", "after", "end", "theory", "corrected"}


def shift_table(diagnosis: Diagnosis) -> pl.DataFrame:
    """Returns a table of what the learner really learned of each row's targets.

    The columns:

    * `row` (its number in the user's table, from 0), and `time` and `group` if there are any;
    * for classes: `true_class`, and `effective_class`, the one with the largest effective target;
    * for each target (or class) NAME: `true:NAME`, `effective:NAME` (what was really learned, as
      an offline target), `shift:NAME` (the difference), `error:NAME` (the learner's error just
      before it learned the row), all in the user's units;
    * `shift_size`: length of the shift over all targets, in standard deviations of the targets
      (unscaled for classes and if nothing was standardised);
    * `changed`: whether the shift changed the class or, for regression, the side of the mean;
    * `density`: mean similarity to the other rows.
    """
    stream = diagnosis.stream
    columns = _row_columns(diagnosis)
    if stream.kind == "classification":
        names = np.array(stream.target_names, dtype=object)
        columns["true_class"] = _texts(names[stream.Y.argmax(axis=1)])
        columns["effective_class"] = _texts(names[diagnosis.effective.argmax(axis=1)])
    parts = {
        "true": stream.in_units(stream.Y),
        "effective": stream.in_units(diagnosis.effective),
        "shift": diagnosis.shift * stream.target_scales,
        "error": diagnosis.prequential * stream.target_scales,
    }
    columns |= _target_columns(diagnosis, parts)
    columns["shift_size"] = pl.Series(diagnosis.shift_size)
    columns["changed"] = pl.Series(np.asarray(diagnosis.changed, dtype=bool))
    columns["density"] = pl.Series(diagnosis.density)
    return pl.DataFrame(columns)


def corrected_table(diagnosis: Diagnosis, force: bool = False) -> pl.DataFrame:
    """Returns the targets to train on, with the columns `row`, `time` and `group`.

    For each target (or class) NAME there are:

    * `true:NAME`: as in the user's table;
    * `corrected:NAME`: exactly corrected, which needs the whole stream in advance;
    * `iterative:NAME`: corrected block by block, from the rows seen by then;
    * `model:NAME`: those that the user's own model was trained on, if that clearly helped it.

    Targets far larger than the true ones are left out, unless `force`.
    """
    stream = diagnosis.stream
    left_out = () if force else out_of_proportion(diagnosis)
    parts = {
        "true": stream.in_units(stream.Y),
        "corrected": stream.in_units(diagnosis.corrected),
        "iterative": stream.in_units(diagnosis.iterative),
    }
    kept = {name: targets for name, targets in parts.items() if name not in left_out}
    model = diagnosis.model
    if model is not None and model.corrected is not None and (model.helped or force):
        kept["model"] = stream.in_units(model.corrected)
    return pl.DataFrame(_row_columns(diagnosis) | _target_columns(diagnosis, kept))


def out_of_proportion(diagnosis: Diagnosis) -> dict[str, float]:
    """Returns the corrected targets that are too large to train on, and how large they are."""
    sizes = diagnosis.target_size
    return {name: size for name, size in sizes.items() if size > OUT_OF_PROPORTION}


def made_for(diagnosis: Diagnosis, command: str | None = None) -> dict[str, Any]:
    """Describes what the corrected targets are for, as plain JSON values to store beside them."""
    stream, learner = diagnosis.stream, diagnosis.learner
    aim, ridge = diagnosis.aim, diagnosis.ridge
    packages = ("retarget", "torch", "numpy", "polars")
    found = {
        "learner": f"{learner_words(diagnosis)}; kernel: {diagnosis.kernel}.",
        "sgd": learner.to_dict(),
        "kernel": diagnosis.kernel,
        "gamma": diagnosis.gamma.value,
        "aim": None if aim is None else aim.value,
        "ridge": None if ridge is None else ridge.value,
        "block_size": diagnosis.block_size,
        "features": stream.feature_names,
        "targets": stream.target_names,
        "target_means": stream.target_means,
        "target_scales": stream.target_scales,
        "notes": stream.notes,
        "standard_deviations_reached": diagnosis.target_size,
        "command": command,
        "versions": {name: version(name) for name in packages},
    }
    return {name: _plain(value) for name, value in found.items()}


def most_distorted(diagnosis: Diagnosis, count: int = 10) -> pl.DataFrame:
    """Returns the rows of `shift_table` with the largest shifts, the largest first."""
    return shift_table(diagnosis).sort("shift_size", descending=True, maintain_order=True)[:count]


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Returns the diagnosis as plain JSON values, without the arrays of all rows.

    Numbers that are not finite become null, since JSON cannot express them.
    """
    stream, sizes = diagnosis.stream, diagnosis.shift_size
    found = _fields(diagnosis, OF_ALL_ROWS)
    if diagnosis.model is not None:
        found["model"] = _fields(diagnosis.model, OF_ALL_ROWS_OF_A_MODEL)
    whole = {
        "rows": len(stream),
        "kind": stream.kind,
        "targets": stream.target_names,
        "features": stream.feature_names,
        "group_column": stream.group_column,
        "notes": stream.notes,
        **found,
        "shift": {
            "mean_size": sizes.mean(),
            "largest_size": sizes.max(),
            "rows_changed": np.count_nonzero(diagnosis.changed),
        },
        "most_distorted": most_distorted(diagnosis),
        "verdict": diagnosis.verdict,
    }
    return {name: _plain(value) for name, value in whole.items()}


def _fields(value: Any, left_out: Collection[str] = ()) -> dict[str, Any]:
    return {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if field.name not in left_out
    }


def _row_columns(diagnosis: Diagnosis) -> dict[str, pl.Series]:
    stream = diagnosis.stream
    columns = {"row": pl.Series(stream.rows)}
    if stream.times is not None:
        columns["time"] = _texts(stream.times)
    if stream.groups is not None:
        columns["group"] = _texts(stream.groups)
    return columns


def _target_columns(diagnosis: Diagnosis, parts: dict[str, np.ndarray]) -> dict[str, pl.Series]:
    # With a colon, so that no target's name can produce the name of another column.
    return {
        f"{part}:{name}": pl.Series(np.ascontiguousarray(values[:, number])).fill_nan(None)
        for number, name in enumerate(diagnosis.stream.target_names)
        for part, values in parts.items()
    }


def _texts(values: np.ndarray) -> pl.Series:
    return pl.Series([str(value) for value in values], dtype=pl.String)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, pl.DataFrame):
        value = value.to_dicts()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if is_dataclass(value):
        value = _fields(value)
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def summary_text(diagnosis: Diagnosis) -> str:
    """Returns the verdict and the scores as lines of text."""
    verdict = diagnosis.verdict
    lines = [verdict.headline, ""]
    for one in learner_lines(diagnosis):
        accuracy = "" if one.accuracy is None else f", accuracy {with_interval(one.accuracy)}"
        lines.append(f"{one.label}: error {with_interval(one.error)}{accuracy}")
    lines += [f"{one.label}: error {with_interval(one.error)}" for one in baseline_lines(diagnosis)]
    lines += [
        f"gap closed, {learner}: {with_interval(gap, share=True)}"
        for learner, gap in diagnosis.gap_closed.items()
    ]
    lines += ["", "What to do:", *(f"- {advice}" for advice in verdict.recommendations)]
    lines += ["", *verdict.findings]
    return typed("\n".join(lines))


def terminal_parts(diagnosis: Diagnosis) -> list[RenderableType]:
    """Returns what the command shows; text from the user's table is never taken as markup."""
    verdict = diagnosis.verdict
    return [
        *(_text(f"Note: {note}", style="dim") for note in diagnosis.stream.notes),
        _scores(diagnosis),
        *([_by_target(diagnosis)] if diagnosis.scores[0].by_target else []),
        _distorted(diagnosis),
        _text(verdict.headline, style="bold"),
        *(_text(f"- {advice}") for advice in verdict.recommendations),
        _text("What was found:", style="bold"),
        *(_text(finding) for finding in verdict.findings),
    ]


def _text(text: str, style: str = "") -> Text:
    return Text(printable(typed(text)), style=style)


def _scores(diagnosis: Diagnosis) -> Table:
    classes = diagnosis.stream.kind == "classification"
    table = Table(
        "learner",
        *_right("squared error", *(["accuracy"] if classes else []), "gap closed"),
        title=(
            f"Tested on {tested_on(diagnosis)}; "
            f"rate {diagnosis.lr.value:.4g}, gamma {diagnosis.gamma.value:.4g}"
        ),
        caption="with 95% ranges",
    )
    for lines, style in ((learner_lines(diagnosis), ""), (baseline_lines(diagnosis), "dim")):
        for line in lines:
            gap = diagnosis.gap_closed.get(line.mark)
            cells = [line.label, with_interval(line.error)]
            cells += [] if line.accuracy is None else [with_interval(line.accuracy)]
            cells += [] if gap is None else [with_interval(gap, share=True)]
            table.add_row(*(typed(cell) for cell in cells), style=style)
        table.add_section()
    return table


def _by_target(diagnosis: Diagnosis) -> Table:
    """Returns each target's error in its own units: the largest would dominate a mean."""
    table = Table(
        "target",
        *_right(*(LABELS[score.learner] for score in diagnosis.scores)),
        title="Squared error of each target, in its own units",
    )
    for place, target in enumerate(diagnosis.stream.target_names):
        errors = [with_interval(score.by_target[place]) for score in diagnosis.scores]
        table.add_row(_cell(target), *(typed(error) for error in errors))
    return table


def _distorted(diagnosis: Diagnosis) -> Table:
    rows = most_distorted(diagnosis)
    names: list[str] = [name for name in ("row", "time", "group") if name in rows.columns]
    if diagnosis.stream.kind == "classification":
        names += ["true_class", "effective_class"]
    else:
        targets = diagnosis.stream.target_names[:MOST_TARGETS]
        names += [f"{part}:{target}" for target in targets for part in ("true", "effective")]
    names.append("shift_size")
    table = Table(
        *_right(*(_cell(name) for name in names)),
        title=f"The {len(rows)} most distorted rows of {len(diagnosis.stream):,}",
    )
    for row in rows.select(names).iter_rows():
        table.add_row(*(_cell(value) for value in row))
    return table


def _right(*headers: RenderableType) -> list[Column]:
    return [Column(header, justify="right") for header in headers]


def _cell(value: object) -> Text:
    if isinstance(value, float):
        return Text(f"{value:.4g}")
    text = printable(str(value))
    return Text(text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…")
