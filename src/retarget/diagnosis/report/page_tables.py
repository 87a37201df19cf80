"""The score cards and tables of the page, as text."""

import math
from typing import NamedTuple

import numpy as np

from retarget.diagnosis.report.charts.learners import baseline_label, learner_label
from retarget.diagnosis.report.charts.model import WAYS
from retarget.diagnosis.report.charts.rows import file_row, group_of_row, most_shifted
from retarget.diagnosis.report.words import interval, name, number, percent, with_interval
from retarget.diagnosis.result import Diagnosis, Estimate, LearnerName, ModelDiagnosis
from retarget.diagnosis.stream import Stream

DIVERGED = "not defined: it diverged"
MOST_TARGETS = 40


class Cell(NamedTuple):
    """A cell of a table: its text, a smaller note below it, and the colour of a dot before it."""

    text: str
    note: str = ""
    mark: str = ""


class Table(NamedTuple):
    """A table: what it is called for those who do not see it, its columns, its rows."""

    label: str
    columns: list[str]
    rows: list[list[Cell]]


class Card(NamedTuple):
    """A score that is shown large: its number, of which measure, and what else is known."""

    label: str
    mark: str
    value: str
    measure: str
    notes: list[str]


def measure(stream: Stream) -> str:
    """What the scores of a stream are, with their unit."""
    if stream.kind == "classification":
        return "share of rows right"
    if len(stream.target_names) == 1:
        return f"mean squared error, in units of {name(stream.target_names[0], 40)} squared"
    return f"mean squared error over {len(stream.target_names):,} targets, in their units squared"


class _Line(NamedTuple):
    """A line of a table of scores; `why` there is no score, where there is none."""

    label: str
    mark: str
    error: Estimate
    accuracy: Estimate | None
    why: str = "its predictions are not finite numbers, so it diverged"


def _lines(diagnosis: Diagnosis) -> list[_Line]:
    lines = [
        _Line(learner_label(score.learner), score.learner, score.error, score.accuracy)
        for score in diagnosis.scores
    ]
    if diagnosis.evaluation == "progressive":
        why = "the exact correction has to know the whole stream before it begins"
        lines = [line._replace(why=why) if line.mark == "corrected" else line for line in lines]
    return lines


def _baselines(diagnosis: Diagnosis) -> list[_Line]:
    return [
        _Line(
            baseline_label(baseline.name),
            "baseline",
            baseline.error,
            baseline.accuracy,
            "it does not apply here",
        )
        for baseline in diagnosis.baselines
    ]


def _ways(model: ModelDiagnosis) -> list[_Line]:
    return [
        _Line(
            score.way.capitalize(),
            WAYS[score.way].replace(" ", "-"),
            score.error,
            score.accuracy,
            "it was not possible, or it failed",
        )
        for score in model.scores
    ]


def score_cards(diagnosis: Diagnosis, model: ModelDiagnosis | None) -> list[Card]:
    """The scores of the user's model, else of the learners; and of the baselines."""
    stream = diagnosis.stream
    lines = _lines(diagnosis) if model is None else _ways(model)
    if model is not None and any(math.isfinite(line.error.value) for line in lines):
        # Of a log of predictions, nothing but the stream as it came is known.
        lines = [line for line in lines if math.isfinite(line.error.value)]
    cards = []
    for line in [*lines, *_baselines(diagnosis)]:
        share = line.accuracy is not None
        value, note = _score(line.accuracy if share else line.error, line.why, share)
        notes = [note]
        if share and math.isfinite(line.error.value):
            notes.append(f"squared error {number(line.error.value)}")
        cards.append(Card(line.label, line.mark, value, measure(stream), notes))
    return cards


def score_table(diagnosis: Diagnosis) -> Table:
    """The scores of learners and baselines, and how much of the gap a learner closes."""
    gaps = [_gap(diagnosis, score.learner) for score in diagnosis.scores]
    lines = [*_lines(diagnosis), *_baselines(diagnosis)]
    table = _score_table("Scores", "Learner", diagnosis, lines)
    table.columns.append("Gap closed (95% interval)")
    for k, row in enumerate(table.rows):
        row.append(gaps[k] if k < len(gaps) else Cell(""))
    return table


def model_table(diagnosis: Diagnosis, model: ModelDiagnosis) -> Table:
    """The scores of the user's model by the way in which it was trained."""
    lines = [*_ways(model), *_baselines(diagnosis)]
    return _score_table("Scores of your model", "Way of training", diagnosis, lines)


def _score_table(label: str, first: str, diagnosis: Diagnosis, lines: list[_Line]) -> Table:
    classes = diagnosis.stream.kind == "classification"
    columns = [first, "Mean squared error (95% interval)"]
    rows = [
        [Cell(line.label, mark=line.mark), Cell(*_score(line.error, line.why))] for line in lines
    ]
    if classes:
        columns.append("Share of rows right (95% interval)")
        for row, line in zip(rows, lines, strict=True):
            row.append(Cell(*_score(line.accuracy, line.why, share=True)))
    return Table(label, columns, rows)


def _score(estimate: Estimate | None, why: str, share: bool = False) -> tuple[str, str]:
    if estimate is None:
        return "", ""
    if not math.isfinite(estimate.value):
        return "not defined", why
    return (percent if share else number)(estimate.value), interval(estimate, share)


def _gap(diagnosis: Diagnosis, learner: LearnerName) -> Cell:
    """How much of the gap a learner closes; the two that make the gap have no such number."""
    if learner not in diagnosis.gap_closed:
        return Cell("")
    errors = [diagnosis.score(name).error.value for name in ("offline", "online", learner)]
    why = "the online learner is not clearly behind the offline one"
    if not np.isfinite(errors).all():
        why = "one of the errors in it is not defined"
    return Cell(*_score(diagnosis.gap_closed[learner], why, share=True))


def target_table(diagnosis: Diagnosis) -> Table | None:
    """The error of each of several targets in its own units; None where that is not known."""
    errors = {score.learner: score.by_target for score in diagnosis.scores}
    if not all(errors.values()):
        return None
    why = "not finite"
    return Table(
        "Error of each target",
        ["Target", *(learner_label(learner) for learner in errors)],
        [
            [Cell(name(target)), *(Cell(*_score(error[k], why)) for error in errors.values())]
            for k, target in enumerate(diagnosis.stream.target_names[:MOST_TARGETS])
        ],
    )


def model_facts(model: ModelDiagnosis) -> list[tuple[str, str]]:
    """What was seen of the user's model, a sentence each."""
    facts = []
    if math.isfinite(model.order.value):
        facts.append(
            (
                "Order",
                f"A random order changes its error by {with_interval(model.order, share=True)}, "
                f"measured over {len(model.orders)} orders.",
            )
        )
    if math.isfinite(model.prequential.value) and math.isfinite(model.remembered.value):
        facts.append(
            (
                "Memory",
                f"Its error was {with_interval(model.prequential)} on each row just before it "
                f"learned it, and is {with_interval(model.remembered)} on the same rows at the "
                "end.",
            )
        )
    if model.corrected is None:
        facts.append(("Corrected targets", "None were tried on this model."))
    else:
        closed = "do not close a gap that could be measured"
        if math.isfinite(model.closed.value):
            share = with_interval(model.closed, share=True)
            closed = f"close {share} of the gap to its batch training"
        facts.append(
            (
                "Corrected targets",
                f"Trained on them for real, they {closed}. The farthest lies "
                f"{number(model.corrected_size)} standard deviations from the mean.",
            )
        )
    facts.append(("Described by", model.description))
    if model.agreement is not None:
        facts.append(("Agreement", agreement_words(model.agreement)))
    return facts


def agreement_words(agreement: float) -> str:
    """How far the model's shift is what the theory predicts.

    Examples:
        >>> agreement_words(0.97)
        'The theory predicts the shift of your model well: the two agree to 97%.'
    """
    if not math.isfinite(agreement):
        return "The shift of your model cannot be compared with the theory's: it is not finite."
    share = percent(agreement)
    if agreement >= 0.9:
        return f"The theory predicts the shift of your model well: the two agree to {share}."
    if agreement >= 0.5:
        return (
            f"The theory predicts the shift of your model roughly: the two agree to {share}. "
            "Take the sections on the kernel below as a rough picture of your model."
        )
    return (
        f"The theory does not predict the shift of your model: the two agree to {share} only. "
        "The sections on the kernel below are not about your model."
    )


def group_table(diagnosis: Diagnosis) -> Table:
    """For each group: how far its targets were moved, and by whom most."""
    groups = diagnosis.groups
    others = np.where(np.isfinite(groups.size), groups.size, 0.0)
    np.fill_diagonal(others, 0.0)
    rows = []
    for g, group in enumerate(groups.names):
        most = int(others[g].argmax())
        if others[g, most] > 0:
            moved = number(float(others[g, most])), f"by {name(groups.names[most])}"
        elif np.isnan(groups.size[g]).any():
            moved = "not defined", "the learner diverged"
        else:
            moved = "none", "no later group"
        own, same = float(groups.own[g]), float(groups.size[g, g])
        texts = name(group), f"{groups.counts[g]:,}", number(own), number(same)
        rows.append([*(Cell(text) for text in texts), Cell(*moved)])
    moved_by = ["Moved by its own steps", "By later rows of it", "Most by another group"]
    return Table("Groups", ["Group", "Rows", *moved_by], rows)


def shifted_table(diagnosis: Diagnosis) -> Table | None:
    """The ten rows whose targets moved farthest; None if no shift is finite."""
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
    """Each row's targets in words: the class and how strong it is, or numbers in their units."""
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
