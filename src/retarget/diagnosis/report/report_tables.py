"""The tables of the report, as text: for the page, the terminal, Markdown and notebooks."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from retarget.diagnosis.answers import (
    UNKNOWN,
    Estimate,
    LearnerName,
    ModelScore,
    Question,
    Score,
)
from retarget.diagnosis.measure.groups import partition
from retarget.diagnosis.report.charts.classes import class_scores
from retarget.diagnosis.report.charts.rows import (
    axis_of,
    chunks,
    has_run,
    most_shifted,
    moved,
)
from retarget.diagnosis.report.comparison import Compared
from retarget.diagnosis.report.scores import (
    FIRST_WAYS,
    SQUARED_ERROR,
    ScoreTable,
    first_scores,
    measure,
    simplest,
)
from retarget.diagnosis.result import Diagnosis, ModelDiagnosis
from retarget.diagnosis.stream import Stream
from retarget.diagnosis.words.names import (
    FORGETTING_WORDS,
    LEARNERS,
    ONE_PASS_WORDS,
    ORDER_WORDS,
    WAYS,
    baseline_name,
    moment,
    name,
)
from retarget.diagnosis.words.numbers import (
    change_words,
    interval,
    multiple,
    multiples,
    number,
    percent,
    sentence,
    with_interval,
)

NOT_DEFINED = "not defined"
NOT_MEASURED = "not measured"
MOST_TARGETS = 40
COMPARED: tuple[LearnerName, ...] = ("offline", "online")
COLUMNS: dict[Question, str] = {
    "whole": "Whole stream",
    "next": "Next rows",
    "test": "Test set",
    "progressive": "Each row before it was learned",
}
MOST_CLASSES = 20


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


def as_text(scores: ScoreTable) -> ReportTable:
    """Returns the table of scores as text, with a column for each question."""
    measure = scores.measure
    # the gap is one of the loss, where another measure is shown
    loss = f" in {SQUARED_ERROR.words.removeprefix('mean ')}" if measure.field == "accuracy" else ""
    rows = []
    for line in scores.lines:
        cells = [Cell(line.title, mark=line.mark.replace(" ", "-"))]
        for one in line.scores:
            cell = _cell(one.score, one.why, measure.share)
            if closes := _closes(one.closes):
                cell = cell._replace(note=f"{cell.note}; {closes}{loss}")
            cells.append(cell)
        rows.append(cells)
    columns = [scores.first, *(COLUMNS[question] for question in scores.questions)]
    return ReportTable(scores.label, columns, rows)


def first_table(diagnosis: Diagnosis) -> ReportTable:
    """Returns the few scores of the first screen, with the number of rows in each head."""
    scores = first_scores(diagnosis)
    table = as_text(scores)
    counts = {one.question: one.rows for one in diagnosis.answers}
    heads = [
        f"{COLUMNS[question]} ({counts[question]:,} rows)"
        if question in counts
        else COLUMNS[question]
        for question in scores.questions
    ]
    return table._replace(columns=[scores.first, *heads])


def first_caption(diagnosis: Diagnosis) -> str:
    """Says what the numbers of the first table are."""
    simple = [one for one in simplest(diagnosis) if one]
    caption = f"{sentence(measure(diagnosis).words)}, with 95% intervals."
    if len({one.kind for one in simple}) < 2:
        return caption
    each = [
        f"{baseline_name(one.kind, diagnosis)} ({COLUMNS[one.question].lower()})" for one in simple
    ]
    return f"{caption} Best simple predictor: {', '.join(each)}."


def cost_table(diagnosis: Diagnosis) -> ReportTable | None:
    """Returns what was forgotten, and what the order and the single pass cost; None if unknown."""
    about = diagnosis if diagnosis.model is None else diagnosis.model
    forgetting = about.forgetting
    costs: list[tuple[str, str, Estimate | None]] = [
        ("Forgetting", FORGETTING_WORDS, None if forgetting is None else forgetting.increase),
        ("Cost of the order", ORDER_WORDS, about.order_cost),
        ("Cost of a single pass", ONE_PASS_WORDS, about.one_pass_cost),
    ]
    rows = [
        [Cell(label), Cell(multiple(cost.value), multiples(cost)), Cell(meaning)]
        for label, meaning, cost in costs
        if cost is not None and math.isfinite(cost.value)
    ]
    columns = ["On rows from the whole stream", "Times", "What that is"]
    return ReportTable("Forgetting and its causes", columns, rows) if rows else None


def recall_table(diagnosis: Diagnosis) -> ReportTable | None:
    """Returns the share of each class that is right, on rows of the whole stream if there are any.

    Of many classes it has those of which the online model gets the least right. None for numbers.
    """
    stream = diagnosis.stream
    if stream.kind == "regression":
        return None
    scores = [one for one in class_scores(diagnosis) if one is not None and one.recall]
    if not scores:
        return None
    worst = np.argsort([np.nan_to_num(one.value, nan=2.0) for one in scores[-1].recall])
    shown = np.sort(worst[:MOST_CLASSES]) if len(worst) > MOST_CLASSES else np.arange(len(worst))
    learned = stream.Y.sum(axis=0).astype(int)
    rows = [
        [
            Cell(name(stream.target_names[k])),
            Cell(f"{learned[k]:,}"),
            *(_cell(one.recall[k], "no such rows", share=True) for one in scores),
        ]
        for k in shown
    ]
    names = [_trained(diagnosis, one) for one in scores]
    return ReportTable("Recall by class", ["Class", "Rows learned", *names], rows)


def _trained(diagnosis: Diagnosis, score: Score | ModelScore) -> str:
    """Names what a score is of, for the head of a column."""
    if isinstance(score, Score):
        return sentence(LEARNERS[score.learner])
    model = "" if diagnosis.model is None else name(diagnosis.model.name, 24)
    return f"{model}, {FIRST_WAYS[WAYS[score.way]]}"


def _cell(estimate: Estimate | None, why: str, share: bool = False, mark: str = "") -> Cell:
    if estimate is None:
        return Cell(NOT_MEASURED, why, mark)
    if not math.isfinite(estimate.value):
        return Cell(NOT_DEFINED, why, mark)
    text = (percent if share else number)(estimate.value)
    return Cell(text, interval(estimate, share), mark)


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
    movement = moved(diagnosis)
    groups = movement.groups
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
        own = number(float(groups.own[g]))
        same = number(float(groups.size[g, g]))
        rows.append(
            [Cell(name(group)), Cell(f"{groups.counts[g]:,}"), Cell(own), Cell(same), farthest]
        )
    own = (
        "Distance from the target right after learning"
        if movement.yours
        else "Moved by its own steps"
    )
    columns = ["Group", "Rows", own, "Moved by its own later rows", "Moved most by another group"]
    return ReportTable("Groups", columns, rows)


def shifted_table(diagnosis: Diagnosis) -> ReportTable | None:
    """Returns the ten rows that were moved farthest; None if no shift is finite."""
    stream = diagnosis.stream
    movement = moved(diagnosis)
    model = diagnosis.model
    size = movement.size
    if not np.isfinite(size).any():
        return None
    rows = most_shifted(size)
    (names, groups) = partition(stream)
    columns = {"Row": [f"{stream.rows[i]:,}" for i in rows]}
    if axis_of(stream)[1] != "row":
        columns["Position"] = [f"{position + 1:,}" for position in stream.positions[rows]]
    if stream.times is not None:
        columns["Time"] = [moment(stream.times[i]) for i in rows]
    if stream.groups is not None:
        columns["Group"] = [name(names[groups[i]]) for i in rows]
    columns["Shift"] = [number(float(size[i])) for i in rows]
    columns["True target"] = _target_texts(stream, stream.Y[rows])
    label = "The most overwritten rows"
    if model is not None and movement.yours:
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
