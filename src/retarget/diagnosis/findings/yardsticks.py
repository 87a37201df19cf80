"""What the scores can be judged by: enough rows, a batch model and simple predictors."""

import math
from collections.abc import Iterator, Sequence

from retarget.diagnosis.answers import Answer, Baseline
from retarget.diagnosis.facts import (
    POINTS,
    Facts,
    clear_gain,
    compared,
    enough,
    evidence,
    judged,
)
from retarget.diagnosis.findings.kind import Advice, Finding, FindingKind
from retarget.diagnosis.result import Diagnosis, VerdictKind
from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.tables.lags import lag_name
from retarget.diagnosis.words.names import (
    QUESTIONS,
    constant_name,
    error_word,
    kernel_words,
    listed_names,
    on,
)
from retarget.diagnosis.words.numbers import change_words, number, with_interval
from retarget.text import listed

MORE_LAGS = 3
LONGEST_OPTION = 200  # characters; a longer list of columns is not spelled out
IN_HEADLINE = "the headline says it"


def compared_answers(diagnosis: Diagnosis) -> list[Answer]:
    """Returns the answers in which the learner can be compared with a batch model."""
    if diagnosis.diverged:
        return []
    return [
        answer for answer in diagnosis.answers if not math.isnan(answer.score("offline").loss.value)
    ]


class KernelLearners(FindingKind, name="kernel learners"):
    """With a model of the user: which learners all later findings are about."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding, if there is a model."""
        if diagnosis.model is not None:
            yield self.finding(value=diagnosis.lr.value, subject=diagnosis.model.name)

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """Their kernel and rate."""
        return (
            f"All that follows is about kernel learners on the same rows, not about "
            f"{finding.subject}: {kernel_words(diagnosis.kernel)}; lr = {number(finding.value)}."
        )


class SomethingFailed(FindingKind, name="failure"):
    """What could not be computed, or only imprecisely."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each failure."""
        for text in diagnosis.failures:
            yield self.finding(subject=text)

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """The failure itself."""
        return finding.subject


class UnseenClasses(FindingKind, name="unseen classes"):
    """Rows to test on have classes that were never learned."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each class of each question."""
        for answer in diagnosis.answers:
            for unseen in answer.unseen:
                yield self.finding(answer.question, subject=unseen)

    def sentences(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[str]:
        """One sentence for each question, with its classes."""
        for question in dict.fromkeys(one.question for one in findings):
            if question is not None:
                names = listed([one.subject for one in findings if one.question == question])
                yield (
                    f"On {QUESTIONS[question]} there are classes that were never learned "
                    f"({names}). No model can predict them, so its scores mean little there."
                )


class NoExactScore(FindingKind, name="no exact score"):
    """In a progressive evaluation the exactly corrected learner has no score."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding, for such an evaluation."""
        for answer in diagnosis.answers:
            if answer.question == "progressive" and not diagnosis.diverged:
                yield self.finding(answer.question, subject="corrected")

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """Why, and what the iteratively corrected learner is scored by."""
        return (
            "The exactly corrected learner has no score here: its targets depend on the whole "
            "stream, and it is right only at the end. The iteratively corrected learner is "
            "scored by what it predicts before any row of its block is learned."
        )


class LearnerDiverged(FindingKind, name="diverged"):
    """The online learner is useless."""

    silent = IN_HEADLINE

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """Its error on each question, beside the variance of the targets."""
        for answer in diagnosis.answers if diagnosis.diverged else ():
            error = answer.score("online").error.value
            yield self.finding(answer.question, value=error, against=diagnosis.stream.variance)


class NoBatchModel(FindingKind, name="no batch model"):
    """There is nothing to compare the online learner with."""

    silent = IN_HEADLINE

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each question."""
        for answer in () if diagnosis.diverged else diagnosis.answers:
            if math.isnan(answer.score("offline").loss.value):
                yield self.finding(answer.question)


class AddingUp(FindingKind, name="adding up"):
    """Columns of which a target is an exact linear function, such as the parts of a sum."""

    silent = "the advice says it"

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each column."""
        for column in diagnosis.stream.adding_up:
            yield self.finding(subject=column)

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """To check them, and how to leave them out."""
        columns = [one.subject for one in findings]
        dropped = spelled("drop", columns)
        if len(dropped) >= LONGEST_OPTION:
            dropped = spelled("drop")
        yield self.tip(
            f"Check {listed_names(tuple(columns))}: together they give the target exactly (a "
            "linear function). If you learn them only together with the target, leave them "
            f"out ({dropped})."
        )

    def has_room(self, verdict: VerdictKind, known: Facts) -> bool:
        """Also where nothing was learned."""
        return verdict not in ("diverged", "undefined")


class UselessModel(FindingKind, name="useless model"):
    """The user's model as it came is clearly worse than the simplest predictor."""

    silent = "the advice says it"

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each question."""
        model = diagnosis.model
        for score in () if model is None else model.scores:
            answer = diagnosis.answer(score.question)
            if score.way != "as it came" or answer is None or not enough(answer):
                continue
            if model is not None and score.constant.low > 0:
                yield self.finding(
                    score.question,
                    value=score.loss.value,
                    against=answer.baselines[0].loss.value,
                    effect=score.constant,
                    standing="behind",
                    subject=model.name,
                )

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """Not to rely on it there."""
        model = diagnosis.model
        for one in findings:
            if model is None or one.question is None:
                continue
            score = model.score("as it came", one.question)
            answer = diagnosis.answer(one.question)
            if score is not None and answer is not None:
                yield self.tip(
                    f"Do not rely on {model.name} {on(one.question)}: it is worse than predicting "
                    f"{constant_name(diagnosis.stream)}, {with_interval(score.loss)} against "
                    f"{with_interval(answer.baselines[0].loss)}."
                )

    def has_room(self, verdict: VerdictKind, known: Facts) -> bool:
        """Also where nothing was learned."""
        return verdict not in ("diverged", "undefined")


def winning_baseline(answer: Answer) -> Baseline | None:
    """Returns the simple predictor that is clearly better than both models, if there is one.

    For classes it must be right more often as well, by two points: the last value of a sorted
    stream is hard to beat, and means nothing.
    """
    online = answer.score("online")
    batch = answer.score("offline")

    def wins(one: Baseline) -> bool:
        right = [score.accuracy.value for score in (online, batch) if score.accuracy]
        if one.accuracy and not one.accuracy.low > max(right) + POINTS:
            return False
        return one.online.low > 0 and one.batch.low > 0

    winners = [one for one in answer.baselines if one.kind != "recent" and wins(one)]
    return min(winners, key=lambda one: one.loss.value, default=None)


class BaselineWins(FindingKind, name="baseline wins"):
    """A simple predictor is clearly better than both models."""

    silent = IN_HEADLINE

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each question, with the better of the two models."""
        for answer in compared_answers(diagnosis):
            winner = winning_baseline(answer) if enough(answer) else None
            if winner is not None:
                yield self.finding(
                    answer.question,
                    value=winner.loss.value,
                    against=closest_loss(answer),
                    effect=min(winner.online, winner.batch, key=lambda effect: effect.value),
                    subject=winner.kind,
                )

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """If it is the last value: to predict that, or to give it to the models."""
        stream = diagnosis.stream
        for _ in [one for one in findings if one.subject == "last"]:
            lags = sum(
                lag_name(target, step) in stream.feature_names
                for target in stream.target_names[:1]
                for step in range(1, len(stream.feature_names) + 1)
            )
            more = spelled("lags", lags + MORE_LAGS)
            yield self.tip(
                "Predict the last value instead: that is better than both models on the next "
                f"rows. Or let the models use earlier values too (not tried here): {more}."
            )

    def has_room(self, verdict: VerdictKind, known: Facts) -> bool:
        """Also where nothing was learned."""
        return verdict not in ("diverged", "undefined")


class NothingLearned(FindingKind, name="nothing learned"):
    """Neither model is clearly better than the simplest predictor."""

    silent = IN_HEADLINE

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each question, about the models that the verdict is about."""
        if diagnosis.diverged:
            return
        for question, comparison in evidence(diagnosis).asked.items():
            answer = diagnosis.answer(question)
            if answer is None or not comparison.enough or comparison.beats_constant:
                continue
            yield self.finding(
                question,
                value=closest_loss(answer),
                against=answer.baselines[0].loss.value,
                effect=comparison.batch_constant,
            )

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """To add features before anything else."""
        yield self.tip(
            "Add features that say more about the target before anything else: no model here "
            f"clearly beats {constant_name(diagnosis.stream)}."
        )

    def has_room(self, verdict: VerdictKind, known: Facts) -> bool:
        """Only where nothing was learned at all."""
        return verdict == "nothing learned"


class BadBatchModel(FindingKind, name="bad batch model"):
    """The batch model is clearly worse than the simplest predictor."""

    silent = IN_HEADLINE

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each question."""
        for answer in compared_answers(diagnosis):
            constant = answer.baselines[0]
            if compared(answer).bad_batch_model:
                yield self.finding(
                    answer.question,
                    value=answer.score("offline").loss.value,
                    against=constant.loss.value,
                    effect=constant.batch,
                    standing="behind",
                    subject=constant.kind,
                )

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """Another batch model, if one was tried that clearly helps."""
        better = []
        for one in diagnosis.alternatives:
            ridge = float(f"{one.gamma:.3g}")
            model = f"a larger ridge, {spelled('gamma', ridge)}"
            if one.kind == "linear":
                model = f"a linear model, {spelled('kernel', 'affine')}"
            if clear_gain(one.effect) and judged(one.constant) != "behind":
                change = f"{error_word(diagnosis)} is {change_words(one.effect)}"
                better.append(f"{model}: {on(one.question)} its {change}")
        if better:
            yield self.tip(f"Compare with a better batch model, {'; '.join(better)}.")
        else:
            yield self.tip(
                "Look for a better batch model first: a linear one and a larger ridge were tried, "
                "and are not clearly better."
            )

    def has_room(self, verdict: VerdictKind, known: Facts) -> bool:
        """Where it decides what can be said, or nothing was learned."""
        if verdict in ("diverged", "undefined"):
            return False
        bad = known.bad_batch and verdict != "follows the drift"
        return bad or verdict == "nothing learned"


class AlternativeTried(FindingKind, name="alternative"):
    """Another batch model was tried, because the batch model is bad."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each model and question; `value` is its ridge."""
        for one in diagnosis.alternatives:
            yield self.finding(
                one.question,
                value=one.gamma,
                against=one.constant.value,
                effect=one.effect,
                standing=judged(one.constant),
                subject=one.kind,
            )

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """Its error beside that of the batch model."""
        model = "A linear batch model"
        if finding.subject == "smoother":
            model = f"A batch model with ridge {number(finding.value)}"
        where = "" if finding.question is None else on(finding.question)
        return (
            f"{model} was tried {where}: its {error_word(diagnosis)} is "
            f"{change_words(finding.effect)} than that of the batch model."
        )


def closest_loss(answer: Answer) -> float:
    """Returns the smaller loss of the online and the batch model."""
    return min(answer.score(learner).loss.value for learner in ("online", "offline"))
