"""Finds what the numbers of a diagnosis say, and tells it: values, sentences and advice.

Every finding follows from a number with its interval. What an interval cannot tell is "not clear",
never "equal". A change is recommended only if it was tried and clearly helped on rows that took no
part in choosing it, and only if there are enough of them.

Each kind of finding is one class in one of the files of `THEMES`. The order of this list, and of
the classes in each file, is the order in which findings are told.
"""

from collections.abc import Iterator
from itertools import groupby

from retarget.diagnosis.facts import enough, evidence, facts, verdict_kind
from retarget.diagnosis.findings import (
    about_model,
    changes,
    memory,
    method,
    stream_changes,
    yardsticks,
)
from retarget.diagnosis.findings.kind import REGISTERED, Advice, Finding, FindingKind
from retarget.diagnosis.result import Diagnosis

THEMES = (about_model, memory, yardsticks, changes, stream_changes, method)
IF_NOTHING_HELPS = ("leave", "nothing")


def kinds() -> list[FindingKind]:
    """Returns all kinds of findings, in the order in which they are told."""
    themes = [theme.__name__ for theme in THEMES]

    def place(kind: FindingKind) -> int:
        """Returns the number of the file; of a kind that is defined elsewhere, the last one."""
        module = type(kind).__module__
        return themes.index(module) if module in themes else len(themes)

    return sorted(REGISTERED.values(), key=place)


def findings(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """Returns everything that a diagnosis found, in the order in which it is told."""
    return tuple(finding for kind in kinds() for finding in kind.find(diagnosis))


def sentences(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields what was found, in sentences, but for headline and advice."""
    for kind, of_kind in _by_kind(diagnosis):
        yield from filter(None, kind.sentences(of_kind, diagnosis))


def advised(diagnosis: Diagnosis) -> list[Advice]:
    """Returns what to do, the most useful first: one list, in which nothing contradicts another.

    It has the pieces that the verdict leaves room for. Of what was tried, the largest gain comes
    first. To leave the learner as it is, or that nothing is needed, is advised only if nothing else
    helps.
    """
    shown = evidence(diagnosis)
    verdict = verdict_kind(shown)
    known = facts(shown)
    pieces = [
        piece
        for kind, of_kind in _by_kind(diagnosis)
        if kind.has_room(verdict, known)
        for piece in kind.advice(of_kind, diagnosis)
    ]
    in_order: list[Advice] = []
    for was_tried, group in groupby(pieces, key=lambda piece: piece.gain is not None):
        together = list(group)
        if was_tried:
            together.sort(key=lambda piece: piece.gain or 0.0)
        in_order += together
    helpful = any(piece.helps for piece in in_order)
    judged = any(enough(answer) for answer in diagnosis.answers)
    if judged and not helpful:
        return in_order
    return [piece for piece in in_order if piece.kind not in IF_NOTHING_HELPS]


def _by_kind(diagnosis: Diagnosis) -> Iterator[tuple[FindingKind, list[Finding]]]:
    """Yields each kind of which there are findings, with these."""
    everything = diagnosis.findings
    for kind in kinds():
        of_kind = [finding for finding in everything if finding.kind == kind.name]
        if of_kind:
            yield kind, of_kind
