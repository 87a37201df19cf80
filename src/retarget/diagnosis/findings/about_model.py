"""What running the user's own model showed, where it is not a comparison of scores."""

import math
from collections.abc import Iterator

import numpy as np

from retarget.diagnosis.answers import DIVERGED, TOO_LARGE, UNKNOWN
from retarget.diagnosis.findings.kind import Finding, FindingKind
from retarget.diagnosis.result import Diagnosis
from retarget.diagnosis.words.names import QUESTIONS
from retarget.diagnosis.words.numbers import percent, sentence, with_interval


class ModelFailure(FindingKind, name="model failure"):
    """What failed, was skipped or was done on fewer rows."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each failure."""
        model = diagnosis.model
        for text in () if model is None else model.failures:
            yield self.finding(subject=text)

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """The failure itself."""
        return finding.subject


class ModelClosed(FindingKind, name="model closed"):
    """How much of the gap to its own batch training the model closes on corrected targets."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each question, where it is known."""
        model = diagnosis.model
        for question in () if model is None else model.questions:
            closed = model.closed.get(question, UNKNOWN) if model is not None else UNKNOWN
            if not math.isnan(closed.value):
                yield self.finding(question, effect=closed, subject=_name(diagnosis))

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """The share with its interval."""
        where = "" if finding.question is None else f"on {QUESTIONS[finding.question]}"
        return (
            f"On corrected targets, {finding.subject} closed "
            f"{with_interval(finding.effect, share=True)} of the gap to its own batch training "
            f"{where}."
        )


class ModelMovement(FindingKind, name="model movement"):
    """How far the model's predictions moved after it had learned a row."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """The mean movement, relative to a target's size."""
        model = diagnosis.model
        if model is None:
            return
        movement = float(np.linalg.norm(model.shift, axis=1).mean())
        length = diagnosis.stream.target_length
        if math.isfinite(movement) and length:
            yield self.finding(value=movement / length, subject=model.name)

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """The share."""
        return (
            f"From right after learning a row to the end of the stream, the prediction of "
            f"{finding.subject} for it moved by {percent(finding.value)} of a target's size on "
            "average."
        )


class ModelKernel(FindingKind, name="model kernel"):
    """Which kernel machine describes the model."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """Its description, or why there is none."""
        if diagnosis.model is not None:
            yield self.finding(subject=diagnosis.model.description)

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """The description."""
        return sentence(f"{finding.subject.rstrip('.')}.")


class ModelAgreement(FindingKind, name="model agreement"):
    """How well that kernel machine predicts the model's movements."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """The agreement, at least 0."""
        model = diagnosis.model
        if model is not None and model.agreement is not None and math.isfinite(model.agreement):
            yield self.finding(value=max(0.0, model.agreement), subject=model.name)

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """The agreement in per cent."""
        return (
            f"The movements that this kernel predicts agree with those of {finding.subject} to "
            f"{percent(finding.value)}."
        )


class ModelLog(FindingKind, name="model log"):
    """The model's error on the rows learned, before and at the end."""

    silent = "the page and the headline of a log have both errors"

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """Both errors."""
        model = diagnosis.model
        if model is not None:
            before = model.prequential.value
            yield self.finding(value=before, against=model.remembered.value, subject=model.name)


class ModelDiverged(FindingKind, name="model diverged"):
    """The model is useless as it came."""

    silent = "the headline says it, and a failure says what to do"

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each question."""
        model = diagnosis.model
        variance = diagnosis.stream.variance
        for score in () if model is None or model.logged else model.scores:
            if score.way == "as it came" and not score.error.value <= DIVERGED * variance:
                error = score.error.value
                yield self.finding(
                    score.question, value=error, against=variance, subject=_name(diagnosis)
                )


class ModelTargets(FindingKind, name="model large targets"):
    """The model's corrected targets are too large to train on."""

    silent = "the page says how far they reach, and advice says not to use them"

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """How far they reach."""
        model = diagnosis.model
        if model is not None and model.corrected_size > TOO_LARGE:
            size = model.corrected_size
            yield self.finding(value=size, against=TOO_LARGE, subject=model.name)


def _name(diagnosis: Diagnosis) -> str:
    return "" if diagnosis.model is None else diagnosis.model.name
