"""The report's tables: scores, groups, and the most shifted rows."""

import math
from dataclasses import dataclass

import numpy as np

from retarget.diagnosis.report.charts.errors import LEARNERS
from retarget.diagnosis.report.charts.rows import group_of_row, most_shifted
from retarget.diagnosis.report.words import (
    count,
    defined,
    interval,
    name,
    number,
    percent,
)
from retarget.diagnosis.result import Diagnosis, Estimate, LearnerName


@dataclass(frozen=True)
class ScoreRow:
    """One learner in the table of scores; each cell is a value and its interval."""

    learner: LearnerName
    label: str
    error: tuple[str, str]
    accuracy: tuple[str, str] | None
    gap: tuple[str, str]


def score_rows(diagnosis: Diagnosis) -> list[ScoreRow]:
    """The table of scores."""
    rows = []
    for score in diagnosis.scores:
        why = "its predictions are not finite numbers, so it diverged"
        if diagnosis.evaluation == "progressive" and score.learner == "corrected":
            why = "the exact correction has to know the whole stream before it begins"
        rows.append(
            ScoreRow(
                learner=score.learner,
                label=LEARNERS[score.learner],
                error=_cell(score.error, why),
                accuracy=None if score.accuracy is None else _cell(score.accuracy, why, True),
                gap=_gap(diagnosis, score.learner),
            )
        )
    return rows


def _cell(estimate: Estimate, why: str, share: bool = False) -> tuple[str, str]:
    if not math.isfinite(estimate.value):
        return "not defined", why
    return (percent if share else number)(estimate.value), interval(estimate, share)


def _gap(diagnosis: Diagnosis, learner: LearnerName) -> tuple[str, str]:
    """How much of the gap a learner closes; the two that make the gap have no such number."""
    if learner in ("offline", "online"):
        return "", ""
    errors = [
        s.error.value for s in diagnosis.scores if s.learner in ("offline", "online", learner)
    ]
    why = "the online learner is not clearly behind the offline one"
    if not np.isfinite(errors).all():
        why = "one of the errors in it is not defined"
    return _cell(diagnosis.gap_closed.get(learner, Estimate(*3 * (math.nan,))), why, True)


@dataclass(frozen=True)
class GroupRow:
    """One group in the table of groups."""

    name: str
    rows: str
    own: str
    same: str
    most: str
    by: str


def group_rows(diagnosis: Diagnosis) -> list[GroupRow]:
    """For each group: how far its targets were moved, and by whom most."""
    groups = diagnosis.groups
    others = np.where(np.isfinite(groups.size), groups.size, 0.0)
    np.fill_diagonal(others, 0.0)
    rows = []
    for g, group in enumerate(groups.names):
        most = int(others[g].argmax())
        moved = bool(others[g, most] > 0)
        lost = bool(np.isnan(groups.size[g]).any())
        unmoved = ("not defined", "the learner diverged") if lost else ("none", "no later group")
        rows.append(
            GroupRow(
                name=name(group),
                rows=count(int(groups.counts[g])),
                own=number(float(groups.own[g])),
                same=number(float(groups.size[g, g])),
                most=number(float(others[g, most])) if moved else unmoved[0],
                by=name(groups.names[most]) if moved else unmoved[1],
            )
        )
    return rows


@dataclass(frozen=True)
class ShiftedRow:
    """One of the most shifted rows."""

    row: str
    position: str
    time: str
    group: str
    shift: str
    true: str
    effective: str


def shifted_rows(diagnosis: Diagnosis) -> list[ShiftedRow]:
    """The ten rows whose targets moved farthest; none if no shift is finite."""
    stream = diagnosis.stream
    if not np.isfinite(diagnosis.shift_size).any():
        return []
    groups = group_of_row(diagnosis)
    rows = most_shifted(diagnosis)
    true, effective = (_target_texts(diagnosis, Z[rows]) for Z in (stream.Y, diagnosis.effective))
    return [
        ShiftedRow(
            row=count(int(stream.rows[i])),
            position=count(int(i) + 1),
            time="" if stream.times is None else name(str(stream.times[i]), 32),
            group=name(diagnosis.groups.names[groups[i]]),
            shift=defined(float(diagnosis.shift_size[i]), "it diverged"),
            true=true[k],
            effective=effective[k],
        )
        for k, i in enumerate(rows)
    ]


def _target_texts(diagnosis: Diagnosis, targets: np.ndarray, most: int = 6) -> list[str]:
    """Each row's targets in words: the class and how strong it is, or numbers in their units."""
    stream = diagnosis.stream
    if stream.kind == "classification":
        top = targets.argmax(axis=1)
        return [
            f"{name(stream.target_names[k])} ({number(float(row[k]))})"
            if np.isfinite(row).all()
            else "not defined: it diverged"
            for k, row in zip(top, targets, strict=True)
        ]
    texts = []
    for row in stream.in_units(targets):
        values = [number(float(value), 4) for value in row[:most]]
        texts.append(", ".join(values) + ", \u2026" * (len(row) > most))
    return texts
