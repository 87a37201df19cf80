"""What was tried, and what it changed: other rates, orders, corrected targets, a batch model.

Whatever was tried is advised only if it clearly helped on some rows, with its condition if it
clearly harms on others.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from retarget.diagnosis.answers import TOO_LARGE, Estimate, LearnerName, Question
from retarget.diagnosis.facts import (
    WORTHWHILE,
    Facts,
    clear_gain,
    compared,
    enough,
    evidence,
    facts,
    inverted,
    judged,
    verdict_kind,
)
from retarget.diagnosis.findings.kind import Advice, Finding, FindingKind
from retarget.diagnosis.findings.yardsticks import UselessModel, compared_answers
from retarget.diagnosis.result import Diagnosis, VerdictKind
from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.words.names import error_word, name, on
from retarget.diagnosis.words.numbers import change_words, number, sentence

CORRECTIONS: tuple[LearnerName, ...] = ("corrected", "iterative")
CORRECTABLE: tuple[VerdictKind, ...] = (
    "forgotten",
    "one pass",
    "behind",
    "behind on the next rows",
    "follows the drift",
)
OLD_ROWS = "if rows like the old ones come again, "
NEXT_ROWS = "if only the next rows matter to you, "
IN_TABLE = "it is told as advice if it helps, and all scores are in the tables"


def leaves_room_to_correct(verdict: VerdictKind, known: Facts) -> bool:
    """Whether a verdict leaves room for corrected targets and batch training."""
    behind_next = verdict == "not clear" and known.coming == "behind"
    return not known.bad_batch and (verdict in CORRECTABLE or behind_next)


@dataclass(frozen=True)
class Tried:
    """Something that was tried, in words, and its effect on the loss on each set of rows.

    Attributes:
        kind: What kind of advice it is.
        words: What to do.
        effects: The change of the loss, by question.
        more: What else to know, if it is advised.
        too_far: How far targets lie from the mean, if that is too far to train on them.
    """

    kind: str
    words: str
    effects: dict[Question, Estimate]
    more: str = ""
    too_far: float = 0.0

    @property
    def best(self) -> float:
        """The largest gain on any rows, as a negative number."""
        known = [one.value for one in self.effects.values() if not math.isnan(one.value)]
        return min(known, default=math.inf)

    def advice(self, diagnosis: Diagnosis) -> Iterator[Advice]:
        """Yields the advice to do it, or not to."""
        if self.too_far:
            text = (
                "Do not use corrected targets here: they reach "
                f"{number(self.too_far)} standard deviations from the mean."
            )
            yield Advice("do not correct", text, self.best)
            return
        counted = {one.question for one in diagnosis.answers if enough(one)}
        gains = [
            question
            for question, effect in self.effects.items()
            if clear_gain(effect) and question in counted
        ]
        harms = [question for question, effect in self.effects.items() if effect.low > 0]
        if gains:
            condition = self._condition(diagnosis, gains, harms)
            text = f"{condition}{self.words}: {self._in_words(diagnosis)}.{self.more}"
            yield Advice(self.kind, sentence(text), self.best, helps=True)
        elif self.kind == "correct" and self._in_words(diagnosis):
            start = "Do not train" if harms else "It is not clear whether to train"
            model = diagnosis.model
            trained = "" if model is None else f" {model.name}"
            text = f"{start}{trained} on corrected targets: {self._in_words(diagnosis)}."
            yield Advice("do not correct", text, self.best)

    def _condition(self, diagnosis: Diagnosis, gains: list[Question], harms: list[Question]) -> str:
        """Returns when it is right to do it, if it is not always."""
        follows = verdict_kind(evidence(diagnosis)) == "follows the drift"
        if "next" in harms or (follows and gains == ["whole"]):
            return OLD_ROWS
        return NEXT_ROWS if harms else ""

    def _in_words(self, diagnosis: Diagnosis) -> str:
        """Words the same change on each set of rows."""
        changes = [
            f"{change_words(effect)} {on(question)}"
            for question, effect in self.effects.items()
            if not math.isnan(effect.value)
        ]
        return f"{error_word(diagnosis)} {', '.join(changes)}" if changes else ""


def effects_of(findings: Sequence[Finding]) -> dict[Question, Estimate]:
    """Returns the effect by question."""
    return {one.question: one.effect for one in findings if one.question is not None}


class ChangeTried(FindingKind, name="trial"):
    """Another rate, batch size or order of the online learner."""

    silent = IN_TABLE
    words: ClassVar = {
        "rate": "use lr = {:.3g}",
        "batch": "use mini-batches of {:.0f} rows at the same rate",
        "order": "learn the rows in random order, if you can",
    }

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each change and question."""
        for answer in compared_answers(diagnosis):
            for trial in answer.trials:
                yield self.finding(
                    answer.question,
                    value=trial.value,
                    effect=trial.effect,
                    standing=judged(trial.effect, WORTHWHILE),
                    subject=trial.change,
                )

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """What clearly helped."""
        if diagnosis.model is not None:
            return
        trials: dict[tuple[str, float], list[Finding]] = {}
        for one in findings:
            # the number of random orders differs from question to question
            value = 0.0 if one.subject == "order" else one.value
            trials.setdefault((one.subject, value), []).append(one)
        for (change, value), same in trials.items():
            words = self.words[change].format(value)
            yield from Tried("change", words, effects_of(same)).advice(diagnosis)


class CorrectionTried(FindingKind, name="correction"):
    """The online learner on exactly and on iteratively corrected targets."""

    silent = IN_TABLE

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each correction and question."""
        for answer in compared_answers(diagnosis):
            for learner in CORRECTIONS:
                effect = answer.effect[learner]
                yield self.finding(
                    answer.question,
                    value=answer.score(learner).loss.value,
                    against=answer.score("online").loss.value,
                    effect=effect,
                    standing=judged(effect, WORTHWHILE),
                    subject=learner,
                )

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """To train on iteratively corrected targets, or not to."""
        if diagnosis.model is not None:
            return
        size = diagnosis.target_size["iterative"]
        learner = f"{diagnosis.kernel.name} kernel, lr = {diagnosis.lr.value:.3g}"
        tried = Tried(
            "correct",
            "train on iteratively corrected targets",
            effects_of([one for one in findings if one.subject == "iterative"]),
            more=f" These targets are for this learner ({learner}): try them on a network or any "
            f"other model first, with {spelled('model')}.",
            too_far=size if size > TOO_LARGE else 0.0,
        )
        yield from tried.advice(diagnosis)

    def has_room(self, verdict: VerdictKind, known: Facts) -> bool:
        """Where there is a gap to close, and a batch model worth following."""
        return leaves_room_to_correct(verdict, known)


class GapClosed(FindingKind, name="gap closed"):
    """Which share of the gap to the batch model a correction closes."""

    silent = "the page's table says it"

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each correction and question, where there is a clear gap."""
        for answer in compared_answers(diagnosis):
            for learner in CORRECTIONS:
                closed = answer.gap_closed[learner]
                if not math.isnan(closed.value):
                    yield self.finding(
                        answer.question,
                        value=answer.score(learner).loss.value,
                        against=answer.score("offline").loss.value,
                        effect=closed,
                        subject=learner,
                    )


class BatchTried(FindingKind, name="batch"):
    """A batch model in place of the online learner."""

    silent = IN_TABLE

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each question."""
        for answer in compared_answers(diagnosis):
            effect = inverted(answer.excess)
            yield self.finding(
                answer.question,
                value=answer.score("offline").loss.value,
                against=answer.score("online").loss.value,
                effect=effect,
                standing=judged(effect, WORTHWHILE),
                subject="offline",
            )

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """To fit a batch model, if that is better."""
        if diagnosis.model is None:
            words = "fit a batch model, if you can keep the rows"
            yield from Tried("batch", words, effects_of(findings)).advice(diagnosis)

    def has_room(self, verdict: VerdictKind, known: Facts) -> bool:
        """Where there is a gap to close, and a batch model worth having."""
        return leaves_room_to_correct(verdict, known)


class ModelTrial(FindingKind, name="model trial"):
    """The user's model, trained in another way."""

    silent = IN_TABLE
    words: ClassVar = {
        "random order": ("change", "show {} the rows in random order, if you can"),
        "batch": ("batch", "train {} as a batch model, if you can keep the rows"),
        "corrected": ("correct", "train {} on iteratively corrected targets"),
    }

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each way and question that can be compared with the model as it came."""
        model = diagnosis.model
        for score in () if model is None else model.scores:
            as_it_came = None if model is None else model.score("as it came", score.question)
            known = not math.isnan(score.change.value)
            if as_it_came is not None and known and score.way != "as it came":
                yield self.finding(
                    score.question,
                    value=score.loss.value,
                    against=as_it_came.loss.value,
                    effect=score.change,
                    standing=judged(score.change, WORTHWHILE),
                    subject=score.way,
                )

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """What clearly helped, and whether to train on corrected targets."""
        model = diagnosis.model
        if model is None:
            return
        shown = evidence(diagnosis)
        room = leaves_room_to_correct(verdict_kind(shown), facts(shown))
        for way, (kind, words) in self.words.items():
            effects = effects_of([one for one in findings if one.subject == way])
            size = model.corrected_size if way == "corrected" else 0.0
            too_far = size if size > TOO_LARGE else 0.0
            if effects and (room or kind == "change"):
                tried = Tried(kind, words.format(name(model.name)), effects, too_far=too_far)
                yield from tried.advice(diagnosis)


class WhereItStands(FindingKind, name="standing"):
    """Where the online learner stands, compared with the batch model."""

    silent = "the headline says it, and all scores are in the tables"

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each question."""
        model = diagnosis.model
        for answer in compared_answers(diagnosis) if model is None else diagnosis.answers:
            yield self.finding(
                answer.question,
                value=answer.score("online").loss.value,
                against=answer.score("offline").loss.value,
                effect=answer.excess,
                standing=compared(answer).standing,
                subject="online",
                other="offline",
            )

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """What to do if nothing that was tried helps."""
        shown = evidence(diagnosis)
        verdict = verdict_kind(shown)
        model = diagnosis.model
        left = f"leave {'the learner' if model is None else name(model.name)} as it is"
        if verdict == "as good":
            yield Advice("nothing", "Nothing needs correcting.")
            return
        if verdict == "follows the drift":
            yield Advice("leave", f"{sentence(left)}: it follows the stream.")
            return
        if facts(shown).bad_batch:
            return  # a better batch model comes first: corrections follow this one
        if any(one.kind == UselessModel.name for one in diagnosis.findings):
            left = "try another model or other features"
        elif verdict == "not clear":
            yield Advice("leave", f"{sentence(left)} for now: it is not clear that it is behind.")
            return
        yield Advice("leave", f"Nothing that was tried is clearly better: {left}.")
