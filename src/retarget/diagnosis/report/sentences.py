"""Words the findings of a diagnosis, one sentence or two for each."""

import math
from collections.abc import Iterator

from rich.filesize import decimal

from retarget.diagnosis.answers import TOO_LARGE, Answer, Question
from retarget.diagnosis.dialect import option
from retarget.diagnosis.findings import Finding, FindingKind, clear_gain, enough
from retarget.diagnosis.report.words import (
    LEARNERS,
    METRICS,
    QUESTIONS,
    approximation_rows,
    baseline_name,
    change_words,
    constant_name,
    interval,
    name,
    number,
    opposite,
    percent,
    sentence,
    with_interval,
)
from retarget.diagnosis.result import Diagnosis
from retarget.text import listed


class Sentences:
    """The findings of a diagnosis in words, but for headline and advice."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self._diagnosis = diagnosis
        self._all = diagnosis.findings
        self._constant = constant_name(diagnosis.stream)
        self._classes = diagnosis.stream.kind == "classification"
        # the headline and the tables may show accuracies: a bare "error" would be read as theirs
        squared = self._classes and diagnosis.metric == "auto"
        self._error = "squared error" if squared else "error"

    def _of(self, *kinds: FindingKind) -> list[Finding]:
        return [finding for finding in self._all if finding.kind in kinds]

    def _on(self, question: Question | None) -> str:
        """Returns where something was found, if there is more than one place."""
        return "" if question is None else f"on {QUESTIONS[question]}"

    def _counts(self, finding: Finding) -> bool:
        """Whether a finding is from enough rows to recommend something."""
        answers = self._diagnosis.answers
        return any(enough(one) for one in answers if one.question == finding.question)

    def _effects(self, effects: list[Finding]) -> str:
        """Words the same change on each question."""
        return ", ".join(
            f"{self._on(one.question)} the {self._error} is {change_words(one.effect)}"
            for one in effects
        )

    def _change_advice(self, words: str, effects: list[Finding]) -> str | None:
        """Advises a change that clearly helped on a question, with what it does on the other."""
        if not any(clear_gain(one.effect) and self._counts(one) for one in effects):
            return None
        worse = any(one.question == "next" and one.effect.low > 0 for one in effects)
        condition = "if rows like the old ones come again, " if worse else ""
        return sentence(f"{condition}{words}: {self._effects(effects)}.")

    def _simple_advice(self) -> Iterator[str]:
        """Yields what comes before any correction: simple predictors, better batch models."""
        for one in self._of("baseline wins"):
            if one.subject == "last":
                yield (
                    "Predict the last value instead, or let the models use it too: "
                    f"{option('lags', 3)} adds the previous values as features, and "
                    f"{option('kernel', 'linear')} can follow them."
                )
        if self._of("bad batch model"):
            linear = self._diagnosis.kernel.name == "linear"
            tries = [] if linear else [f"a linear model ({option('kernel', 'linear')})"]
            gamma = float(f"{100 * self._diagnosis.gamma.value:.3g}")
            tries.append(f"a larger ridge ({option('gamma', gamma)})")
            if self._diagnosis.stream.groups is not None:
                tries.append(f"holding out whole groups ({option('hold_out', 'group')})")
            yield (
                f"Look for a better model first: try {listed(tries)}. Do not correct anything "
                f"towards a batch model that is worse than {self._constant}."
            )
        constant = any(one.subject == "constant" for one in self._of("baseline wins"))
        if constant or self._of("nothing learned"):
            yield (
                "Add features that say more about the target before anything else: no model here "
                f"clearly beats {self._constant}."
            )
        for one in self._of("drift"):
            if self._diagnosis.aim == "all":
                yield (
                    "If old rows are out of date, compare with a batch model of recent rows: "
                    f"{option('aim', f'window:{one.value:.0f}')}."
                )

    def told(self) -> Iterator[str]:
        """Yields what was found, in sentences."""
        for one in self._of("failure"):
            yield one.subject
        for answer in self._diagnosis.answers:
            yield from self._of_answer(answer)
        for one in self._of(
            "drift", "hidden", "shift", "interference", "rounding", "large targets", "smoother",
            "ridge", "features", "poor features",
        ):  # fmt: skip
            yield from self._told(one)

    def _of_answer(self, answer: Answer) -> Iterator[str]:
        """Yields what was found on one set of rows."""
        where = f"On {QUESTIONS[answer.question]}"
        unseen = [one for one in self._of("unseen classes") if one.question == answer.question]
        if unseen:
            names = listed([one.subject for one in unseen])
            yield (
                f"{where} there are classes that were never learned ({names}). No model can "
                "predict them, so its scores mean little there."
            )
        if self._diagnosis.diverged:
            return
        lines = [
            f"{LEARNERS[score.learner]} {with_interval(score.loss)}"
            for score in answer.scores
            if math.isfinite(score.loss.value)
        ]
        lines += [
            f"{baseline_name(one.kind, self._diagnosis)} {with_interval(one.loss)}"
            for one in answer.baselines
            if math.isfinite(one.loss.value)
        ]
        measure = METRICS[self._diagnosis.metric]
        if answer.question == "progressive":
            where = "Just before each row was learned"
        yield f"{where} ({answer.rows:,}), {measure}: {'; '.join(lines)}."
        if answer.question == "progressive":
            yield (
                "The exactly corrected learner has no score here: its targets depend on the whole "
                "stream, and it is right only at the end. The iteratively corrected learner is "
                "scored by what it predicts before any row of its block is learned."
            )

    def _told(self, one: Finding) -> Iterator[str]:
        """Yields the sentence of a finding about the stream itself."""
        diagnosis = self._diagnosis
        if one.kind == "drift":
            less = opposite(one.effect)
            yield (
                f"Recent rows predict the next ones better than all rows do: at {one.against:.0f} "
                f"points of the stream, a batch model of the last {one.value:,.0f} rows had "
                f"{percent(less.value)} less error on the rows that followed "
                f"({interval(less, share=True)}). The stream drifts, or is sorted."
            )
        elif one.kind == "hidden":
            yield (
                "Progressive validation hides what was forgotten: just before each row was "
                f"learned, the online model's squared error on it was {number(one.value)}; at the "
                f"end it is {number(one.against)} on the same rows."
            )
        elif one.kind == "shift":
            moved = "now have another class" if self._classes else "moved across the mean"
            yield (
                f"On average, later rows moved a row's target by {percent(one.value)} of its size; "
                f"{percent(one.against)} of the rows {moved}."
            )
        elif one.kind == "interference":
            effect = "weakening" if one.against < 0 else "strengthening"
            learned, moved = (f"'{name(group)}'" for group in (one.subject, one.other))
            if diagnosis.stream.groups is None:  # consecutive parts of the stream
                learned, moved = f"{one.subject} of {len(diagnosis.groups.names)}", one.other
            yield (
                f"Learning {learned} moved the targets of {moved} by "
                f"{percent(one.value)} of their size on average, {effect} them by "
                f"{percent(abs(one.against))}."
            )
        elif one.kind == "rounding":
            yield (
                "The exact correction does not survive rounding: trained on its targets, the "
                f"online model has a squared error of {number(one.value, 4)} instead of the batch "
                f"model's {number(one.against, 4)}."
            )
        elif one.kind == "large targets":
            how = "exactly" if one.subject == "corrected" else "iteratively"
            yield (
                f"The {how} corrected targets reach {number(one.value)} standard deviations from "
                f"the mean (usable: up to {TOO_LARGE:.0f}): train only this kernel model on them."
            )
        elif one.kind == "smoother":
            yield (
                f"The iterative correction follows a smoother batch model, with ridge "
                f"{number(one.value)} instead of {number(one.against)}: this brings the learner "
                "closer to the batch model, with targets of usable size."
            )
        elif one.kind == "ridge":
            yield (
                f"Chose ridge {number(one.value)} for the iterative correction, of "
                f"{one.against:.0f} tried: closest to the batch model with targets of usable size."
            )
        elif one.kind == "features" and diagnosis.approximation is not None:
            about, rows = diagnosis.approximation, approximation_rows(diagnosis)
            errors = ", ".join(f"{what.lower()} {error}" for what, error in rows)
            exact = "nothing is approximated."
            measured = f"relative errors on {about.sample:,} rows: {errors}."
            yield (
                f"{one.subject} are used instead of the kernel matrix, which would need "
                f"{decimal(about.exact_memory)}; {exact if about.exact else measured}"
            )
        elif one.kind == "poor features" and clear_gain(one.effect):
            less = opposite(one.effect)
            yield (
                f"The features limit the batch model: with the true kernel, {one.against:,.0f} of "
                f"the rows alone give {percent(less.value)} less error "
                f"({interval(less, share=True)})."
            )
