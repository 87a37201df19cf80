"""Words the findings of a diagnosis, one sentence or two for each."""

from collections.abc import Iterator

from rich.filesize import decimal

from retarget.diagnosis.answers import TOO_LARGE, Answer, Question
from retarget.diagnosis.facts import clear_gain
from retarget.diagnosis.findings import Finding, FindingKind
from retarget.diagnosis.result import Diagnosis, ModelDiagnosis
from retarget.diagnosis.words.names import QUESTIONS, error_word, kernel_words, name
from retarget.diagnosis.words.numbers import (
    change_words,
    interval,
    multiple,
    multiples,
    number,
    opposite,
    percent,
    sentence,
    with_interval,
)
from retarget.diagnosis.words.setting import approximation_rows
from retarget.text import listed


class Sentences:
    """The findings of a diagnosis in words, but for headline and advice."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self._diagnosis = diagnosis
        self._all = diagnosis.findings
        self._classes = diagnosis.stream.kind == "classification"
        self._error = error_word(diagnosis)

    def _of(self, *kinds: FindingKind) -> list[Finding]:
        return [finding for finding in self._all if finding.kind in kinds]

    def _on(self, question: Question | None) -> str:
        """Returns where something was found, if there is more than one place."""
        return "" if question is None else f"on {QUESTIONS[question]}"

    def told(self) -> Iterator[str]:
        """Yields what was found, in sentences: about the user's model first, if there is one."""
        model = self._diagnosis.model
        if model is not None:
            yield from self._of_model(model)
        for one in self._of("forgetting", "order cost", "one-pass cost"):
            yield from self._told(one)
        if model is not None:
            yield self._others(model)
        for one in self._of("failure"):
            yield one.subject
        for answer in self._diagnosis.answers:
            yield from self._of_answer(answer)
        for one in self._of(
            "alternative", "drift", "hidden", "shift", "interference", "rounding", "large targets",
            "smoother", "ridge", "features", "poor features",
        ):  # fmt: skip
            yield from self._told(one)

    def _of_model(self, model: ModelDiagnosis) -> Iterator[str]:
        """Yields what was found about the user's model."""
        yield from model.failures
        for one in self._of("model closed"):
            yield (
                f"On corrected targets, {model.name} closed {with_interval(one.effect, share=True)}"
                f" of the gap to its own batch training {self._on(one.question)}."
            )
        for one in self._of("model movement"):
            yield (
                f"From right after learning a row to the end of the stream, the prediction of "
                f"{model.name} for it moved by {percent(one.value)} of a target's size on average."
            )
        yield sentence(f"{model.description.rstrip('.')}.")
        for one in self._of("model agreement"):
            yield (
                f"The movements that this kernel predicts agree with those of {model.name} to "
                f"{percent(one.value)}."
            )

    def _others(self, model: ModelDiagnosis) -> str:
        """Says which learners the findings after it are about."""
        kernel, lr = kernel_words(self._diagnosis.kernel), number(self._diagnosis.lr.value)
        return (
            f"All that follows is about kernel learners on the same rows, not about "
            f"{model.name}: {kernel}; lr = {lr}."
        )

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
        if answer.question == "progressive":
            yield (
                "The exactly corrected learner has no score here: its targets depend on the whole "
                "stream, and it is right only at the end. The iteratively corrected learner is "
                "scored by what it predicts before any row of its block is learned."
            )

    def _told(self, one: Finding) -> Iterator[str]:
        """Yields the sentence of a finding about the stream itself."""
        diagnosis = self._diagnosis
        if one.kind == "forgetting":
            yield (
                f"Forgetting: on rows held out from the whole stream, the {self._error} late in "
                f"the stream is {multiple(one.effect.value)} times what it was when they came "
                f"({multiples(one.effect)})."
            )
        elif one.kind == "order cost":
            yield (
                f"The order: the {self._error} on these rows is {multiple(one.effect.value)} times "
                f"its mean over random orders of the stream ({multiples(one.effect)})."
            )
        elif one.kind == "one-pass cost":
            yield (
                f"The single pass: that mean over random orders is {multiple(one.effect.value)} "
                f"times the {self._error} of a batch model ({multiples(one.effect)})."
            )
        elif one.kind == "alternative":
            tried = "A linear batch model"
            if one.subject == "smoother":
                tried = f"A batch model with ridge {number(one.value)}"
            yield (
                f"{tried} was tried {self._on(one.question)}: its {self._error} is "
                f"{change_words(one.effect)} than that of the batch model."
            )
        elif one.kind == "drift":
            less = opposite(one.effect)
            onset = "" if diagnosis.drift is None else f" from row {diagnosis.drift.onset:,} on"
            yield (
                f"Recent rows predict the next ones better than all rows do: at {one.against:.0f} "
                f"points of the stream, a batch model of the last {one.value:,.0f} rows had "
                f"{percent(less.value)} less error on the rows that followed "
                f"({interval(less, share=True)}), mostly{onset}. The stream drifts, or is sorted."
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
                f"online model's predictions differ from the batch model's by {percent(one.value)}."
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
