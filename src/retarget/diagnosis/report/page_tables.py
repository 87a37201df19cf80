"""The score cards and tables of the page, as text."""

import math
from typing import NamedTuple

import numpy as np

from retarget.diagnosis.answers import Estimate
from retarget.diagnosis.report.charts.rows import file_row, group_of_row, most_shifted
from retarget.diagnosis.report.words import (
    ScoreLine,
    baseline_lines,
    interval,
    learner_lines,
    model_lines,
    name,
    number,
    percent,
    with_interval,
)
from retarget.diagnosis.result import Diagnosis, ModelDiagnosis
from retarget.diagnosis.stream import Stream

DIVERGED = "not defined: it diverged"
MOST_TARGETS = 40


class Cell(NamedTuple):
    """A cell of a table: its text, a smaller note below it, and the colour of a dot before it."""

    text: str
    note: str = ""
    mark: str = ""


class Table(NamedTuple):
    """A table: its name for screen readers, its columns and its rows."""

    label: str
    columns: list[str]
    rows: list[list[Cell]]


class Card(NamedTuple):
    """A score that is shown large, with notes."""

    label: str
    mark: str
    value: str
    notes: list[str]


def measure(stream: Stream) -> str:
    """Returns what the scores measure, with the unit."""
    if stream.kind == "classification":
        return "share of rows predicted correctly"
    if len(stream.target_names) == 1:
        return f"mean squared error, in squared units of {name(stream.target_names[0], 40)}"
    return f"mean squared error over {len(stream.target_names):,} targets, in their squared units"


def score_cards(diagnosis: Diagnosis, model: ModelDiagnosis | None) -> list[Card]:
    """Returns the scores of the user's model, or else of the learners, and of the baselines."""
    lines = learner_lines(diagnosis) if model is None else model_lines(model)
    known = [line for line in lines if math.isfinite(line.error.value)]
    if model is not None and known:  # a log of predictions has one score
        lines = known
    cards = []
    for line in [*lines, *baseline_lines(diagnosis)]:
        share = line.accuracy is not None
        shown = _score(line.accuracy if share else line.error, line.why, share)
        notes = [shown.note]
        if share and math.isfinite(line.error.value):
            notes.append(f"squared error {number(line.error.value)}")
        cards.append(Card(line.title, _style(line), shown.text, notes))
    return cards


def score_table(diagnosis: Diagnosis) -> Table:
    """Returns the scores of learners and baselines, and how much of the gap each learner closes."""
    lines = [*learner_lines(diagnosis), *baseline_lines(diagnosis)]
    table = _score_table("Scores", "Learner", lines)
    table.columns.append("Gap closed (95% interval)")
    for row, line in zip(table.rows, lines, strict=True):
        closed = diagnosis.gap_closed.get(line.mark)
        errors = [one.error.value for one in (*lines[:2], line)]
        why = "the online learner is not clearly behind the offline one"
        if not all(math.isfinite(error) for error in errors):
            why = "one of the errors in it is not defined"
        row.append(_score(closed, why, share=True))
    return table


def model_table(diagnosis: Diagnosis, model: ModelDiagnosis) -> Table:
    """Returns the scores of the user's model, by way of training."""
    lines = [*model_lines(model), *baseline_lines(diagnosis)]
    return _score_table("Scores of your model", "Way of training", lines)


def _score_table(label: str, first: str, lines: list[ScoreLine]) -> Table:
    columns = [first, "Mean squared error (95% interval)"]
    rows = [[Cell(line.title, mark=_style(line)), _score(line.error, line.why)] for line in lines]
    if lines[0].accuracy is not None:
        columns.append("Accuracy (95% interval)")
        for row, line in zip(rows, lines, strict=True):
            row.append(_score(line.accuracy, line.why, share=True))
    return Table(label, columns, rows)


def _style(line: ScoreLine) -> str:
    """Returns the line's class in the style sheet."""
    return line.mark.replace(" ", "-")


def _score(estimate: Estimate | None, why: str, share: bool = False) -> Cell:
    if estimate is None:
        return Cell("")
    if not math.isfinite(estimate.value):
        return Cell("not defined", why)
    return Cell((percent if share else number)(estimate.value), interval(estimate, share))


def target_table(diagnosis: Diagnosis) -> Table | None:
    """Returns each target's error in its own units; None if there is only one target."""
    errors = [score.by_target for score in diagnosis.scores]
    if not all(errors):
        return None
    return Table(
        "Error of each target",
        ["Target", *(line.title for line in learner_lines(diagnosis))],
        [
            [Cell(name(target)), *(_score(error[k], "not finite") for error in errors)]
            for k, target in enumerate(diagnosis.stream.target_names[:MOST_TARGETS])
        ],
    )


def model_facts(model: ModelDiagnosis) -> list[tuple[str, str]]:
    """Returns what was found about the user's model, as terms with a sentence or two each."""
    facts = []
    if math.isfinite(model.order.value):
        order = (
            f"A random order changes its error by {with_interval(model.order, share=True)}, "
            f"measured over {len(model.orders)} orders."
        )
        facts.append(("Order", order))
    if math.isfinite(model.prequential.value) and math.isfinite(model.remembered.value):
        memory = (
            f"Its error was {with_interval(model.prequential)} on each row just before it learned "
            f"it, and is {with_interval(model.remembered)} on the same rows at the end."
        )
        facts.append(("Memory", memory))
    corrected = "None were tried on this model."
    if model.corrected is not None:
        closed = "do not measurably close a gap"
        if math.isfinite(model.closed.value):
            share = with_interval(model.closed, share=True)
            closed = f"close {share} of the gap to its batch training"
        corrected = (
            f"In a real training run, they {closed}. The farthest lies "
            f"{number(model.corrected_size)} standard deviations from the mean."
        )
    facts += [("Corrected targets", corrected), ("Described by", model.description)]
    if model.agreement is not None:
        facts.append(("Agreement", agreement_words(model.agreement)))
    return facts


def agreement_words(agreement: float) -> str:
    """Says how well the theory predicts the model's shift.

    Examples:
        >>> agreement_words(0.97)
        'The theory predicts the shift of your model well: the two agree to 97%.'
    """
    if not math.isfinite(agreement):
        return "The shift of your model cannot be compared with the theory: it is not finite."
    share = percent(agreement)
    if agreement >= 0.9:
        return f"The theory predicts the shift of your model well: the two agree to {share}."
    if agreement >= 0.5:
        return (
            f"The theory predicts the shift of your model roughly: the two agree to {share}. "
            "Read the sections on the kernel below as a rough picture of your model."
        )
    return (
        f"The theory does not predict the shift of your model: the two agree to only {share}. "
        "The sections on the kernel below do not describe your model."
    )


def group_table(diagnosis: Diagnosis) -> Table:
    """Returns how far each group's targets were moved, and by which group most."""
    groups = diagnosis.groups
    others = np.where(np.isfinite(groups.size), groups.size, 0.0)
    np.fill_diagonal(others, 0.0)
    rows = []
    for g, group in enumerate(groups.names):
        most = int(others[g].argmax())
        if others[g, most] > 0:
            moved = Cell(number(float(others[g, most])), f"by {name(groups.names[most])}")
        elif np.isnan(groups.size[g]).any():
            moved = Cell("not defined", "the learner diverged")
        else:
            moved = Cell("none", "no later group")
        own, same = number(float(groups.own[g])), number(float(groups.size[g, g]))
        rows.append(
            [Cell(name(group)), Cell(f"{groups.counts[g]:,}"), Cell(own), Cell(same), moved]
        )
    moved_by = ["Moved by its own steps", "By its own later rows", "Most by another group"]
    return Table("Groups", ["Group", "Rows", *moved_by], rows)


def shifted_table(diagnosis: Diagnosis) -> Table | None:
    """Returns the ten rows whose targets moved farthest; None if no shift is finite."""
    stream, size = diagnosis.stream, diagnosis.shift_size
    if not np.isfinite(size).any():
        return None
    rows, groups = most_shifted(size), group_of_row(diagnosis)
    columns = {"Row": [file_row(stream, i) for i in rows]}
    if (stream.rows != np.arange(len(stream))).any():
        columns["Position"] = [f"{i + 1:,}" for i in rows]
    if stream.times is not None:
        columns["Time"] = [name(str(stream.times[i]), 32) for i in rows]
    if stream.groups is not None:
        columns["Group"] = [name(diagnosis.groups.names[groups[i]]) for i in rows]
    columns["Shift"] = [DIVERGED if math.isnan(size[i]) else number(float(size[i])) for i in rows]
    columns["True"] = _target_texts(stream, stream.Y[rows])
    columns["Effective"] = _target_texts(stream, diagnosis.effective[rows])
    cells = ([Cell(text) for text in row] for row in zip(*columns.values(), strict=True))
    return Table("The most distorted rows", list(columns), list(cells))


def _target_texts(stream: Stream, targets: np.ndarray, most: int = 6) -> list[str]:
    """Returns each row's targets as text: the class and its strength, or numbers in their units."""
    if stream.kind == "classification":
        top = targets.argmax(axis=1)
        return [
            f"{name(stream.target_names[k])} ({number(float(row[k]))})"
            if np.isfinite(row).all()
            else DIVERGED
            for k, row in zip(top, targets, strict=True)
        ]
    more = ", \u2026" * (targets.shape[1] > most)
    return [
        ", ".join(number(float(value), 4) for value in row[:most]) + more
        for row in stream.in_units(targets)
    ]
