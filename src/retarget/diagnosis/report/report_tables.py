"""The tables of the report, as text, for the page and the terminal; the score cards of the page."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from retarget.diagnosis.answers import UNKNOWN, Estimate, LearnerName, Question
from retarget.diagnosis.measure.groups import partition
from retarget.diagnosis.report.charts.rows import (
    axis_of,
    chunks,
    has_run,
    most_shifted,
    moved,
)
from retarget.diagnosis.report.charts.scores import SQUARED, Measure, measure
from retarget.diagnosis.report.comparison import Compared
from retarget.diagnosis.report.words import (
    LEARNERS,
    WAYS,
    ScoreLine,
    baseline_lines,
    change_words,
    interval,
    learner_lines,
    model_lines,
    name,
    number,
    percent,
    points_apart,
    sentence,
    with_interval,
)
from retarget.diagnosis.result import Diagnosis, ModelDiagnosis
from retarget.diagnosis.stream import Stream

NOT_DEFINED, NOT_MEASURED = "not defined", "not measured"
MOST_TARGETS = 40
COMPARED: tuple[LearnerName, ...] = ("offline", "online")
COLUMNS: dict[Question, str] = {
    "whole": "Whole stream",
    "next": "Next rows",
    "test": "Test set",
    "progressive": "Each row before it was learned",
}
MEANINGS: dict[Question, str] = {
    "whole": "What does it still know?",
    "next": "How well does it predict what comes next?",
    "test": "How well does it predict the test set?",
    "progressive": "How well did it predict each row before it learned it?",
}


class Cell(NamedTuple):
    """A cell of a table: its text, a smaller note below it, and the color of a dot before it."""

    text: str
    note: str = ""
    mark: str = ""


class ReportTable(NamedTuple):
    """A table: its name for screen readers, its columns and its rows."""

    label: str
    columns: list[str]
    rows: list[list[Cell]]


class Card(NamedTuple):
    """The answer to a question: the two scores that it compares, and their difference."""

    question: str
    meaning: str
    scores: list[tuple[str, Cell]]
    difference: str


def score_cards(diagnosis: Diagnosis) -> list[Card]:
    """Returns a card for each question: the online model, or the user's, against the batch one."""
    model, shown = diagnosis.model, measure(diagnosis)
    asked = _asked(diagnosis) if model is None else model.questions
    lines = learner_lines(diagnosis) if model is None else model_lines(model)
    pair = [one for mark in ("online", "offline") for one in lines if one.mark == mark]
    return [
        Card(
            COLUMNS[question],
            MEANINGS[question],
            [
                (one.title, _cell(shown.of(one.scores[k]), one.why, shown.share, _style(one)))
                for one in pair
            ],
            _difference(diagnosis, question),
        )
        for k, question in enumerate(asked)
    ]


def _difference(diagnosis: Diagnosis, question: Question) -> str:
    """Says how far apart the two models of a card are; nothing if that is not known."""
    answer, told = diagnosis.answer(question), "Online, the error is {}."
    if diagnosis.model is not None:
        batch, told = diagnosis.model.score("batch", question), "As a batch model, its error is {}."
        effect = UNKNOWN if batch is None else batch.change
    elif answer is not None and answer.accuracy_gap is not None and measure(diagnosis).share:
        return f"Online learning is {points_apart(answer.accuracy_gap)}."
    else:
        effect = UNKNOWN if answer is None else answer.excess
    return "" if math.isnan(effect.value) else told.format(change_words(effect))


def _asked(diagnosis: Diagnosis) -> tuple[Question, ...]:
    """Returns the questions that the learners were asked."""
    return tuple(answer.question for answer in diagnosis.answers)


def first_table(diagnosis: Diagnosis) -> ReportTable:
    """Returns the scores of the user's model, or else of the learners, and of the baselines."""
    model = diagnosis.model
    if model is None:
        return learner_table(diagnosis)
    asked, lines = model.questions, model_lines(model)
    if asked == _asked(diagnosis):
        lines += baseline_lines(diagnosis)
    return _scores("Scores of your model", "Way of training", lines, asked, measure(diagnosis))


def learner_table(diagnosis: Diagnosis) -> ReportTable:
    """Returns the scores of learners and baselines, and how much of the gap each learner closes."""
    lines = learner_lines(diagnosis)
    label = "Scores" if diagnosis.model is None else "Scores of the kernel learners"
    table = _scores(label, "Learner", lines, _asked(diagnosis), measure(diagnosis))
    accuracy = diagnosis.metric == "auto" and diagnosis.stream.kind == "classification"
    loss = " in squared error" if accuracy else ""  # the shown measure, or another one
    for row, line in zip(table.rows, lines, strict=True):
        for k, answer in enumerate(diagnosis.answers, 1):
            if closes := _closes(answer.gap_closed.get(line.mark, UNKNOWN)):
                row[k] = row[k]._replace(note=f"{row[k].note}; {closes}{loss}")
    return table


def squared_table(diagnosis: Diagnosis) -> ReportTable | None:
    """Returns the squared errors, unless they are the scores that the page shows anyway."""
    if diagnosis.metric == "squared" or (
        diagnosis.metric == "auto" and diagnosis.stream.kind == "regression"
    ):
        return None
    lines, asked = learner_lines(diagnosis), _asked(diagnosis)
    return _scores("Mean squared error", "Learner", lines, asked, SQUARED)


def _scores(
    label: str, first: str, lines: list[ScoreLine], asked: tuple[Question, ...], shown: Measure
) -> ReportTable:
    """Returns a table with a row for each line and a column for each question."""
    columns = [first, *(COLUMNS[question] for question in asked)]
    rows = [
        [
            Cell(one.title, mark=_style(one)),
            *(_cell(shown.of(score), one.why, shown.share) for score in one.scores),
        ]
        for one in lines
    ]
    return ReportTable(label, columns, rows)


def _style(line: ScoreLine) -> str:
    """Returns the line's class in the style sheet."""
    return line.mark.replace(" ", "-")


def _cell(estimate: Estimate | None, why: str, share: bool = False, mark: str = "") -> Cell:
    if estimate is None:
        return Cell(NOT_MEASURED, why, mark)
    if not math.isfinite(estimate.value):
        return Cell(NOT_DEFINED, why, mark)
    return Cell((percent if share else number)(estimate.value), interval(estimate, share), mark)


def target_table(diagnosis: Diagnosis) -> ReportTable | None:
    """Returns each target's error in its own units; None if there is only one target."""
    scores = [answer.score(learner) for answer in diagnosis.answers for learner in COMPARED]
    if not all(score.by_target for score in scores):
        return None
    return ReportTable(
        "Error of each target",
        ["Target", *(f"{COLUMNS[one.question]}: {LEARNERS[one.learner]}" for one in scores)],
        [
            [Cell(name(target)), *(_cell(one.by_target[k], "not finite") for one in scores)]
            for k, target in enumerate(diagnosis.stream.target_names[:MOST_TARGETS])
        ],
    )


def change_table(model: ModelDiagnosis) -> ReportTable | None:
    """Returns how each way of training changed the model's error; None if no other was run."""
    rows = []
    for way, mark in WAYS.items():
        scores = [one for one in model.scores if one.way == way]
        if way == "as it came" or not scores:
            continue
        closed = model.closed if way == "corrected" else {}
        cells = [
            Cell(change_words(one.change), _closes(closed.get(one.question, UNKNOWN)))
            for one in scores
        ]
        rows.append([Cell(sentence(way), mark=mark.replace(" ", "-")), *cells])
    columns = ["Way of training", *(COLUMNS[question] for question in model.questions)]
    return ReportTable("Change of the error", columns, rows) if rows else None


def _closes(share: Estimate) -> str:
    """Says which share of the gap is closed, if that is known."""
    known = math.isfinite(share.value)
    return f"closes {with_interval(share, share=True)} of the gap" if known else ""


def model_facts(model: ModelDiagnosis) -> list[tuple[str, str]]:
    """Returns what was found about the user's model, as terms with a sentence or two each."""
    facts = []
    if math.isfinite(model.prequential.value) and math.isfinite(model.remembered.value):
        memory = (
            f"Its mean squared error was {with_interval(model.prequential)} on each row just "
            f"before it learned it, and is {with_interval(model.remembered)} on the same rows at "
            "the end."
        )
        facts.append(("Memory", memory))
    corrected = "Your model was not trained on corrected targets."
    if model.corrected is not None:
        corrected = (
            "Your model was trained on them. The farthest lies "
            f"{number(model.corrected_size)} standard deviations from the mean."
        )
    facts += [("Corrected targets", corrected), ("Kernel", model.description)]
    if model.agreement is not None and math.isfinite(model.agreement):
        agreement = (
            "The shift that this kernel predicts and the real shift of your model agree to "
            f"{percent(max(0.0, model.agreement))}; 100% would be the same."
        )
        facts.append(("Agreement", agreement))
    return facts


def compared_table(compared: Sequence[Compared]) -> ReportTable:
    """Returns what changed since an earlier run."""
    rows = [[Cell(text) for text in row] for row in compared]
    return ReportTable("Compared with an earlier run", ["What", "Before", "Now", "Change"], rows)


def along_table(diagnosis: Diagnosis) -> ReportTable:
    """Returns the numbers of the first chart."""
    who = "your model" if has_run(diagnosis) else "online model"
    columns = [
        "Rows",
        f"{sentence(who)} before",
        "Batch model before",
        f"{sentence(who)} at the end",
    ]
    rows = [
        [Cell(where), *(Cell(number(error)) for error in errors)]
        for where, _, *errors in chunks(diagnosis)
    ]
    return ReportTable("Mean squared error along the stream", columns, rows)


def group_table(diagnosis: Diagnosis) -> ReportTable:
    """Returns how far each group's targets were moved, and by which group most."""
    found = moved(diagnosis)
    groups = found.groups
    others = np.where(np.isfinite(groups.size), groups.size, 0.0)
    np.fill_diagonal(others, 0.0)
    rows = []
    for g, group in enumerate(groups.names):
        most = int(others[g].argmax())
        if others[g, most] > 0:
            farthest = Cell(number(float(others[g, most])), f"by {name(groups.names[most])}")
        elif np.isnan(groups.size[g]).any():
            farthest = Cell(NOT_DEFINED, "the learner diverged")
        else:
            farthest = Cell("none", "no later group")
        own, same = number(float(groups.own[g])), number(float(groups.size[g, g]))
        rows.append(
            [Cell(name(group)), Cell(f"{groups.counts[g]:,}"), Cell(own), Cell(same), farthest]
        )
    own = (
        "Distance from the target right after learning" if found.yours else "Moved by its own steps"
    )
    columns = ["Group", "Rows", own, "Moved by its own later rows", "Moved most by another group"]
    return ReportTable("Groups", columns, rows)


def shifted_table(diagnosis: Diagnosis) -> ReportTable | None:
    """Returns the ten rows that were moved farthest; None if no shift is finite."""
    stream, found, model = diagnosis.stream, moved(diagnosis), diagnosis.model
    size = found.size
    if not np.isfinite(size).any():
        return None
    rows, (names, groups) = most_shifted(size), partition(stream)
    columns = {"Row": [f"{stream.rows[i]:,}" for i in rows]}
    if axis_of(stream)[1] != "row":
        columns["Position"] = [f"{i + 1:,}" for i in rows]
    if stream.times is not None:
        columns["Time"] = [name(str(stream.times[i]), 32) for i in rows]
    if stream.groups is not None:
        columns["Group"] = [name(names[groups[i]]) for i in rows]
    columns["Shift"] = [number(float(size[i])) for i in rows]
    columns["True target"] = _target_texts(stream, stream.Y[rows])
    label = "The most overwritten rows"
    if model is not None and found.yours:
        label = "The most moved rows"  # a prediction may also move towards its target
        columns["Predicted right after"] = _target_texts(stream, model.after[rows])
        columns["Predicted at the end"] = _target_texts(stream, model.end[rows])
    else:
        columns["Effective target"] = _target_texts(stream, diagnosis.effective[rows])
    cells = ([Cell(text) for text in row] for row in zip(*columns.values(), strict=True))
    return ReportTable(label, list(columns), list(cells))


def _target_texts(stream: Stream, targets: np.ndarray, most: int = 6) -> list[str]:
    """Returns each row's targets as text: the class and its strength, or numbers in their units."""
    if stream.kind == "classification":
        top = targets.argmax(axis=1)
        return [
            f"{name(stream.target_names[k])} ({number(float(row[k]))})"
            if np.isfinite(row).all()
            else NOT_DEFINED
            for k, row in zip(top, targets, strict=True)
        ]
    more = ", \u2026" * (targets.shape[1] > most)
    return [
        ", ".join(number(float(value), 4) for value in row[:most]) + more
        for row in stream.in_units(targets)
    ]
