"""The verdict on the online learner: where it stands on each question, and what to change."""

import math
from collections.abc import Iterator

from retarget.diagnosis.answers import DIVERGED, TOO_LARGE, Answer, Estimate, Question
from retarget.diagnosis.dialect import option
from retarget.diagnosis.findings import (
    POINTS,
    Finding,
    Standing,
    bad_batch_model,
    clear_gain,
    enough,
    judged,
    standing,
    verdict_kind,
)
from retarget.diagnosis.measure.holdout import ENOUGH
from retarget.diagnosis.report.sentences import Sentences
from retarget.diagnosis.report.words import (
    METRICS,
    QUESTIONS,
    baseline_name,
    batch_name,
    change_words,
    interval,
    number,
    percent,
    points_apart,
    sentence,
    with_interval,
)
from retarget.diagnosis.result import Verdict, VerdictKind

OPENINGS: dict[VerdictKind, str] = {
    "behind everywhere": "The online model is behind a batch model everywhere",
    "forgotten": "The online model follows the present and has forgotten the past",
    "behind on the next rows": "The online model still knows the past as well as a batch model, "
    "but is behind on what comes next",
    "as good": "The online model is as good as a batch model",
    "behind": "The online model is behind a batch model",
}
KNOWS: dict[Standing, str] = {
    "behind": "the online model has forgotten part of the past",
    "ahead": "the online model still knows the past",
    "level": "the online model still knows the past",
    "not clear": "it is not clear whether the online model has forgotten the past",
}
FOLLOWS: dict[Standing, str] = {
    "behind": "it is behind a batch model on what comes next",
    "ahead": "it follows what comes next",
    "level": "it follows what comes next",
    "not clear": "it is not clear whether it is behind on what comes next",
}
WHERE: dict[Question, str] = {
    "whole": "from the whole stream",
    "next": "at its end",
    "test": "in the test set",
    "progressive": "before they are learned",
}


class LearnerVerdict(Sentences):
    """The verdict on the kernel learner, if the user gave no model."""

    def verdict(self) -> Verdict:
        """Returns headline, findings and recommendations."""
        kind = verdict_kind(self._diagnosis)
        told, advice = tuple(self.told()), tuple(self.advice(kind))
        return Verdict(kind, self.headline(kind), told, advice)

    def headline(self, kind: VerdictKind) -> str:
        """Says in a sentence where the online model stands on each question."""
        diagnosis = self._diagnosis
        if kind == "diverged":
            return (
                f"The online model diverges at lr = {diagnosis.lr.value:.3g}: it is worse than "
                f"predicting {self._constant} by a factor of more than {DIVERGED:,.0f}."
            )
        if kind == "undefined":
            if self._of("no batch model"):
                return "There is no batch model to compare the online model with."
            return "The online and the batch model perform the same: neither makes an error."
        few = [answer for answer in diagnosis.answers if not enough(answer)]
        if len(few) == len(diagnosis.answers):
            return f"There are too few rows to compare the two models: {_few(few)}."
        compared = [
            self._compared(one) if enough(one) else _few([one]) for one in diagnosis.answers
        ]
        text = f"{self._opening(kind)}: {'; '.join(compared)}."
        if self._of("poor features") and diagnosis.approximation is not None:
            words = diagnosis.approximation.words
            text = f"As far as {words} can tell, {text[0].lower()}{text[1:]}"
        return " ".join([*self._first(), text])

    def _opening(self, kind: VerdictKind) -> str:
        if kind in OPENINGS:
            return OPENINGS[kind]
        stands = {one.question: one.standing for one in self._of("standing") if one.standing}
        if "whole" in stands and "next" in stands and set(stands.values()) != {"not clear"}:
            return sentence(f"{KNOWS[stands['whole']]}, and {FOLLOWS[stands['next']]}")
        return "It is not clear whether the online model is behind a batch model"

    def _first(self) -> Iterator[str]:
        """Yields what must be known before anything else: a bad batch model, a simple winner."""
        for one in self._of("bad batch model"):
            times, low, high = (f"{1 + value:,.3g}" for value in one.effect)
            yield (
                f"A batch model of these rows is worse than predicting {self._constant} "
                f"{self._on(one.question)} ({times} times its error, {low} to {high}), so a "
                "comparison with it means little there."
            )
        for one in self._of("baseline wins"):
            if one.subject == "constant" and self._of("bad batch model"):
                continue
            simple = baseline_name(one.subject, self._diagnosis)
            yield (
                f"Predicting {simple} is better than both models {self._on(one.question)}: "
                f"{number(one.value)} against {number(one.against)} "
                f"({METRICS[self._diagnosis.metric]})."
            )
        nothing = [self._on(one.question) for one in self._of("nothing learned")]
        if nothing:
            yield (
                f"Neither model is clearly better than predicting {self._constant} "
                f"{' and '.join(nothing)}."
            )

    def _compared(self, answer: Answer) -> str:
        """Compares the online with the batch model on one set of rows."""
        online, batch = answer.score("online"), answer.baseline("recent") or answer.score("offline")
        where, model = f"on {QUESTIONS[answer.question]}", f"a {batch_name(self._diagnosis.aim)}"
        if answer.question == "progressive":
            where = "just before each row was learned"
        gap, metric = answer.accuracy_gap, self._diagnosis.metric
        told = gap is not None and judged(gap, POINTS) != "not clear"
        if gap and (metric == "accuracy" or (metric == "auto" and told)):
            assert online.accuracy is not None
            assert batch.accuracy is not None
            right, best = online.accuracy.value, batch.accuracy.value
            if right == best == 1:
                return f"{where} both get every row right"
            apart = points_apart(gap)
            return f"{where} it gets {percent(right)} right, {model} {percent(best)} ({apart})"
        return f"{where} its {self._error} is {_above(answer.excess, model)}"

    def advice(self, kind: VerdictKind) -> Iterator[str]:
        """Yields what to change about the online learner, the most useful first."""
        diagnosis = self._diagnosis
        yield from self._simple_advice()
        if kind == "diverged":
            yield from self._rate_advice()
            return
        if kind == "undefined":
            return
        answers = [answer for answer in diagnosis.answers if enough(answer)]
        few = [answer for answer in diagnosis.answers if not enough(answer)]
        tried = list(self._changes())
        yield from tried
        said = list(self._correction_advice(kind)) if answers else []
        yield from said
        if kind == "as good" and answers and not tried:
            yield "Nothing needs correcting."
        elif not (tried or said) and answers:
            more = ", or try again with more rows" if kind == "not clear" else ""
            yield f"Nothing that was tried is clearly better: leave the learner as it is{more}."
        if kind in ("behind everywhere", "behind on the next rows", "behind"):
            yield from self._batch_advice()
        yield from self._rate_advice()
        if few:
            yield f"Collect more rows before you act: {_few(few)}."
        if self._of("poor features") and diagnosis.approximation is not None:
            yield (
                f"Use more than {diagnosis.approximation.words} ({option('features')}), or "
                "diagnose fewer rows exactly: the features do not approximate the kernel well "
                "enough here."
            )

    def _changes(self) -> Iterator[str]:
        """Yields the changes that clearly helped on a question, with what they do on the other."""
        words = {
            "rate": "use lr = {:.3g}",
            "batch": "use mini-batches of {:.0f} rows at the same rate",
            "order": "learn the rows in random order, if you can ({:.0f} orders were tried)",
        }
        trials: dict[tuple[str, float], list[Finding]] = {}
        for one in self._of("trial"):
            trials.setdefault((one.subject, one.value), []).append(one)
        for (change, value), effects in sorted(
            trials.items(), key=lambda item: min(one.effect.value for one in item[1])
        ):
            if advice := self._change_advice(words[change].format(value), effects):
                yield advice

    def _correction_advice(self, kind: VerdictKind) -> Iterator[str]:
        """Says whether to use corrected targets, from training this kernel's learner on them."""
        diagnosis = self._diagnosis
        behind = [
            answer
            for answer in diagnosis.answers
            if standing(diagnosis, answer) == "behind" and not bad_batch_model(answer)
        ]
        if not behind or not any(enough(answer) for answer in behind):
            return
        if diagnosis.target_size["iterative"] > TOO_LARGE:
            size = number(diagnosis.target_size["iterative"])
            yield (
                f"Do not use corrected targets here: they reach {size} standard deviations from "
                "the mean."
            )
            return
        effects = [one for one in self._of("correction") if one.subject == "iterative"]
        asked = {answer.question for answer in behind}
        mine = [one for one in effects if one.question in asked]
        gains = [one for one in mine if clear_gain(one.effect)]
        if not gains:
            known = [one for one in mine if math.isfinite(one.effect.value)]
            if any(one.standing == "behind" for one in known):
                yield (
                    "Do not use the iterative correction as it is: "
                    f"{self._effects(known)}; try a larger block ({option('block_size')})."
                )
            elif known:
                yield f"It is not clear that corrected targets help: {self._effects(known)}."
            return
        gained = {gain.question for gain in gains}
        squared = "" if self._error == "error" else f" in {self._error}"
        closed = [
            f"{with_interval(one.effect, share=True)} of the gap{squared} {self._on(one.question)}"
            for one in self._of("gap closed")
            if one.subject == "iterative" and one.question in gained
        ]
        others = [one for one in effects if one.question not in gained]
        cost = f"; {self._effects(others)}" if others else ""
        learner = f"{diagnosis.kernel.name} kernel, lr = {diagnosis.lr.value:.3g}"
        does = f"they close {' and '.join(closed)}{cost}" if closed else self._effects(effects)
        if any(one.effect.low > 0 for one in others) or kind == "forgotten":
            yield (
                "If rows like the old ones come again, train on iteratively corrected targets: "
                f"{does}. If no such rows come, leave the learner as it is."
            )
        else:
            yield f"Train on iteratively corrected targets: {does}."
        yield (
            f"These targets are for this learner ({learner}). For a network or any other model, "
            f"try them on it first ({option('model')})."
        )

    def _batch_advice(self) -> Iterator[str]:
        """Says what a batch model would bring."""
        gains = [one for one in self._of("batch") if clear_gain(one.effect) and self._counts(one)]
        if gains:
            yield f"Or fit a batch model, if you can keep the rows: {self._effects(gains)}."

    def _rate_advice(self) -> Iterator[str]:
        """Says whether the rate is too near the largest stable one."""
        for one in self._of("near limit"):
            rate, limit = number(one.value), number(one.against)
            if self._diagnosis.diverged and one.value <= one.against:
                yield (
                    f"Lower the rate: single steps are stable up to lr = {limit}, but together "
                    "they are not."
                )
            elif one.value > one.against:
                yield (
                    f"Lower the rate: at {rate} some steps make their own error larger; steps are "
                    f"stable up to lr = {limit}."
                )
            else:
                share = percent(one.value / one.against)
                yield (f"Use a smaller rate: {rate} is {share} of the largest stable one, {limit}.")


def _few(answers: list[Answer]) -> str:
    """Says that there are too few rows of classes that were learned."""
    return " and ".join(
        f"{QUESTIONS[one.question]} contain classes that were never learned"
        if one.unseen
        else f"only {one.rows:,} rows to test on {WHERE[one.question]} ({ENOUGH} needed)"
        for one in answers
    )


def _above(excess: Estimate, model: str) -> str:
    """Words how far a loss is above or below that of a model."""
    if excess.value == math.inf:
        return f"above zero, and that of {model} is zero"
    if math.isnan(excess.value):
        return f"not comparable with that of {model}"
    stands = judged(excess)
    if stands in ("level", "not clear"):
        word = "about that of" if stands == "level" else "not clearly different from that of"
        return f"{word} {model} ({interval(excess, share=True)})"
    its = f"that of {model}"
    return change_words(excess, f"below {its}", f"above {its}", its)
