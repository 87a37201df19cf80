"""Exports a diagnosis as tables in the user's own units, as JSON, as numbers, as text."""

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import polars as pl

from retarget.diagnosis.answers import TOO_LARGE, Estimate, Forgetting
from retarget.diagnosis.facts import compared as compared_with_batch
from retarget.diagnosis.measuring import changed_rows
from retarget.diagnosis.metrics import Metric
from retarget.diagnosis.report.schema import PER_ROW, SCHEMA_VERSION
from retarget.diagnosis.report.scores import written_scores
from retarget.diagnosis.result import Diagnosis
from retarget.diagnosis.tables.portions import PORTION_ROWS
from retarget.diagnosis.words.names import kernel_words, learner_words
from retarget.diagnosis.words.numbers import typed


def shift_table(diagnosis: Diagnosis) -> pl.DataFrame:
    """Returns a table of what the learner really learned of each row's targets.

    The columns:

    * `row` (its number in the user's table, from 1), and `time` and `group` if there are any;
    * for classes: `true_class`, and `effective_class`, the one with the largest effective target;
    * for each target (or class) NAME: `true:NAME`, `effective:NAME` (what was really learned, as
      a batch model's target), `shift:NAME` (the difference), `error:NAME` (the learner's error just
      before it learned the row), all in the user's units;
    * `shift_size`: length of the shift over all targets, in standard deviations of the targets
      (unscaled for classes and if nothing was standardized);
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


def corrected_table(diagnosis: Diagnosis, force: bool = False) -> pl.DataFrame | None:
    """Returns the targets to train on, with the columns `row`, `time` and `group`.

    For each target (or class) NAME there are:

    * `true:NAME`: as in the user's table;
    * `corrected:NAME`: exactly corrected, which needs the whole stream in advance;
    * `iterative:NAME`: corrected block by block, from the rows seen by then.

    If the user gave a model, there are its own targets instead, as `MODEL:NAME`, if training on
    them clearly helped it: those of the kernel learner are wrong for it. Targets far larger than
    the true ones are left out, unless `force`. None if no targets are left.
    """
    stream = diagnosis.stream
    model = diagnosis.model
    parts = {"corrected": diagnosis.corrected, "iterative": diagnosis.iterative}
    if model is not None:
        parts = {}
        if model.corrected is not None and (model.helped or force):
            parts[model.name] = model.corrected
    elif not force:
        parts = {
            name: targets for name, targets in parts.items() if name not in too_large(diagnosis)
        }
    if not parts:
        return None
    shown = {"true": stream.Y} | parts
    kept = {name: stream.in_units(targets) for name, targets in shown.items()}
    return pl.DataFrame(_row_columns(diagnosis) | _target_columns(diagnosis, kept))


def portions(diagnosis: Diagnosis) -> Iterator[Diagnosis]:
    """Yields the diagnosis of all rows, of a long stream in portions: the tables of each follow."""
    everything = diagnosis.all_rows
    if everything is None:
        yield diagnosis
        return
    rows = len(everything.effective)
    for start in range(0, rows, PORTION_ROWS):
        some = slice(start, min(start + PORTION_ROWS, rows))
        stream = everything.described(some)
        effective = np.array(everything.effective[some])
        yield replace(
            diagnosis,
            stream=stream,
            effective=effective,
            corrected=np.array(everything.corrected[some]),
            iterative=np.array(everything.iterative[some]),
            prequential=np.array(everything.prequential[some]),
            density=np.array(everything.density[some]),
            changed=changed_rows(stream, effective),
        )


def too_large(diagnosis: Diagnosis) -> dict[str, float]:
    """Returns the corrected targets that are too large to train on, and how large they are."""
    sizes = diagnosis.target_size
    return {name: size for name, size in sizes.items() if size > TOO_LARGE}


def made_for(diagnosis: Diagnosis, command: str | None = None) -> dict[str, Any]:
    """Describes what the corrected targets are for, as plain JSON values to store with them."""
    stream = diagnosis.stream
    learner = diagnosis.learner
    model = diagnosis.model
    gamma = diagnosis.iterative_gamma
    ridge = diagnosis.iterative_ridge
    packages = ("retarget", "torch", "numpy", "polars")
    words = f"{learner_words(diagnosis)}; kernel: {kernel_words(diagnosis.kernel)}."
    purpose = {
        "learner": words if model is None else f"Your model, {model.name}.",
        "sgd": learner.to_dict() if model is None else None,
        "kernel": diagnosis.kernel,
        "gamma": diagnosis.gamma.value,
        "iterative_gamma": None if gamma is None else gamma.value,
        "iterative_ridge": None if ridge is None else ridge.value,
        "block_size": diagnosis.block_size,
        "features": stream.feature_names,
        "targets": stream.target_names,
        "target_means": stream.target_means,
        "target_scales": stream.target_scales,
        "notes": stream.notes,
        "standard_deviations_reached": diagnosis.target_size
        if model is None
        else {model.name: model.corrected_size},
        "command": command,
        "versions": {name: version(name) for name in packages},
    }
    return {name: _plain(value) for name, value in purpose.items()}


def most_distorted(diagnosis: Diagnosis, count: int = 10) -> pl.DataFrame:
    """Returns the rows of `shift_table` with the largest shifts, the largest first."""
    return shift_table(diagnosis).sort("shift_size", descending=True, maintain_order=True)[:count]


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Returns the diagnosis as plain JSON values, without the arrays of all rows.

    Numbers that are not finite become null, since JSON cannot express them. What is in it is
    described by docs/diagnosis.schema.json, and changes only with `schema_version`.
    """
    stream = diagnosis.stream
    stands = {one.question: compared_with_batch(one).standing for one in diagnosis.answers}
    whole = {
        "schema_version": SCHEMA_VERSION,
        "rows": stream.length,
        "kind": stream.kind,
        "targets": stream.target_names,
        "features": stream.feature_names,
        "group_column": stream.group_column,
        "notes": stream.notes,
        **_fields(diagnosis),
        "standing": stands,
        "prequential_error": diagnosis.prequential_error,
        "shift": diagnosis.shift_summary,
        "most_distorted": most_distorted(diagnosis),
        "score_table": written_scores(diagnosis),
        "findings": diagnosis.findings,
        "verdict": diagnosis.verdict,
    }
    return {name: _plain(value) for name, value in whole.items()}


def numbers(diagnosis: Diagnosis) -> dict[str, float]:
    """Returns the main numbers under flat names, as MLflow and Weights & Biases take them.

    Numbers that are not finite are left out.
    """
    shift = diagnosis.shift_summary
    values = {
        "rows": float(diagnosis.stream.length),
        "lr": diagnosis.lr.value,
        "gamma": diagnosis.gamma.value,
        "prequential_error": diagnosis.prequential_error,
        "error_at_the_end": diagnosis.hindsight,
        "mean_shift": shift.mean_size,
        "share_changed": shift.rows_changed / diagnosis.stream.length,
    }
    for answer in diagnosis.answers:
        values |= {f"{answer.question}/excess": answer.excess.value}
        for score in answer.scores:
            place = f"{answer.question}/{score.learner}"
            values[f"{place}/error"] = score.error.value
            values[f"{place}/loss"] = score.loss.value
            if score.accuracy is not None:
                values[f"{place}/accuracy"] = score.accuracy.value
        for name, closed in answer.gap_closed.items():
            values[f"{answer.question}/{name}/gap_closed"] = closed.value
    values |= _memory(diagnosis.forgetting, diagnosis.order_cost, diagnosis.one_pass_cost)
    model = diagnosis.model
    if model is not None:
        memory = _memory(model.forgetting, model.order_cost, model.one_pass_cost)
        values |= {f"model/{name}": value for name, value in memory.items()}
    for one in () if model is None else model.scores:
        place = f"model/{one.question}/{one.way.replace(' ', '_')}"
        values |= {f"{place}/loss": one.loss.value, f"{place}/change": one.change.value}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _memory(
    forgetting: Forgetting | None, order_cost: Estimate | None, one_pass_cost: Estimate | None
) -> dict[str, float]:
    """Returns what was forgotten and the two costs under flat names."""
    numbers: dict[str, float] = {}
    estimates = {
        "forgetting": None if forgetting is None else forgetting.increase,
        "order_cost": order_cost,
        "one_pass_cost": one_pass_cost,
    }
    for name, estimate in estimates.items():
        if estimate is not None:
            ends = estimate._asdict().items()
            numbers |= {f"{name}/{end}": value for end, value in ends}
    if forgetting is not None and forgetting.half_life is not None:
        numbers["forgetting/half_life"] = forgetting.half_life
    return numbers


def _fields(value: Any) -> dict[str, Any]:
    names = (field.name for field in fields(value))
    left_out = PER_ROW.get(type(value), set())
    return {name: getattr(value, name) for name in names if name not in left_out}


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
        f"{prefix}:{name}": pl.Series(np.ascontiguousarray(values[:, number])).fill_nan(None)
        for number, name in enumerate(diagnosis.stream.target_names)
        for prefix, values in parts.items()
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
    if isinstance(value, Metric):
        return value.name
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if is_dataclass(value):
        value = _fields(value)
    if isinstance(value, dict):
        return {str(name): _plain(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    return value


def short_text(diagnosis: Diagnosis) -> str:
    """Returns a few lines for the prompt: the size, the headline, and where to go on."""
    stream = diagnosis.stream
    size = f"{stream.length:,} rows, {len(stream.feature_names):,} features, {stream.kind}"
    text = f"<Diagnosis of {size}>\n{diagnosis.verdict.headline}\n"
    return typed(f"{text}(.summary, .findings, .to_html(path) have the rest)")


def summary_text(diagnosis: Diagnosis) -> str:
    """Returns the first screen of the command as lines of text."""
    from retarget.diagnosis.report.terminal import as_text, first_screen  # imports Plotly

    return as_text(first_screen(diagnosis))
