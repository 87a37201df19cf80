"""The verdict on the user's own model: each change against the model as it came."""

import math
from collections.abc import Iterator

from retarget.diagnosis.answers import TOO_LARGE
from retarget.diagnosis.findings import clear_gain, enough, verdict_kind
from retarget.diagnosis.report.sentences import Sentences
from retarget.diagnosis.report.words import (
    METRICS,
    kernel_words,
    number,
    percent,
    sentence,
    with_interval,
)
from retarget.diagnosis.result import Diagnosis, ModelDiagnosis, Verdict


class ModelVerdict(Sentences):
    """The verdict on the model that the user gave."""

    def __init__(self, diagnosis: Diagnosis, model: ModelDiagnosis) -> None:
        super().__init__(diagnosis)
        self._model = model

    def verdict(self) -> Verdict:
        """Returns headline, findings and recommendations; the kind is that of the learner."""
        told = (*self._of_model(), self._others(), *self.told())
        return Verdict(verdict_kind(self._diagnosis), self.headline(), told, tuple(self.advice()))

    def headline(self) -> str:
        """Says how the user's model does, and what would change it most."""
        model = self._model
        if self._of("model diverged"):
            return f"{model.name} diverges on this stream: its predictions are useless."
        if model.logged:
            before, again = model.prequential, model.remembered
            if math.isfinite(before.value) and math.isfinite(again.value):
                return (
                    f"The squared error of {model.name} on the rows learned is "
                    f"{with_interval(again)} at the end; just before each row was learned, it was "
                    f"{with_interval(before)}."
                )
            known = before if math.isfinite(before.value) else again
            return f"The squared error of {model.name} is {with_interval(known)}."
        tried = [one for one in self._of("model trial") if math.isfinite(one.effect.value)]
        best = min(tried, key=lambda one: one.effect.high, default=None)
        if best is None:
            return f"{model.name}: no other way of training could be compared with it."
        ways = {
            "random order": "when it sees the rows in random order",
            "batch": "when it is trained as a batch model",
            "corrected": "when it is trained on corrected targets",
        }
        effects = [one for one in tried if one.subject == best.subject]
        if clear_gain(best.effect):
            return f"{model.name} does better {ways[best.subject]}: {self._effects(effects)}."
        return (
            f"Nothing that was tried is clearly better than training {model.name} on the rows as "
            f"they came: {ways[best.subject]}, {self._effects(effects)}."
        )

    def _of_model(self) -> Iterator[str]:
        """Yields what was found about the user's model."""
        model = self._model
        yield from model.failures
        for question in model.questions:
            known = [
                f"{score.way} {with_interval(score.loss)}"
                for score in model.scores
                if score.question == question and math.isfinite(score.loss.value)
            ]
            if known:
                yield (
                    f"{model.name} {self._on(question)}, {METRICS[self._diagnosis.metric]}: "
                    f"{'; '.join(known)}."
                )
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

    def _others(self) -> str:
        """Says which learners the findings after it are about."""
        kernel, lr = kernel_words(self._diagnosis.kernel), number(self._diagnosis.lr.value)
        return (
            f"All that follows is about kernel learners on the same rows, not about "
            f"{self._model.name}: {kernel}; lr = {lr}."
        )

    def advice(self) -> Iterator[str]:
        """Yields what worked when the user's own model was trained."""
        model, poor = self._model, list(self._worse_than_constant())
        yield from poor
        yield from self._simple_advice()
        words = {
            "random order": f"show {model.name} the rows in random order, if you can",
            "batch": f"train {model.name} as a batch model, if you can keep the rows",
            "corrected": f"train {model.name} on iteratively corrected targets",
        }
        useful = False
        trials = [one for one in self._of("model trial") if math.isfinite(one.effect.value)]
        best_first = [one.subject for one in sorted(trials, key=lambda one: one.effect.value)]
        for way in dict.fromkeys([*best_first, *words]):
            known = [one for one in trials if one.subject == way]
            if way == "corrected" and model.corrected_size > TOO_LARGE:
                yield (
                    f"Do not train {model.name} on corrected targets: they reach "
                    f"{number(model.corrected_size)} standard deviations from the mean."
                )
            elif advice := self._change_advice(words[way], known):
                useful = True
                yield advice
            elif way == "corrected" and known:
                worse = any(one.standing == "behind" for one in known)  # and none is clearly better
                start = "Do not train" if worse else "It is not clear whether to train"
                yield f"{start} {model.name} on corrected targets: {self._effects(known)}."
        if not useful and not model.logged:
            then = "try another model or other features" if poor else f"leave {model.name} as it is"
            yield f"Nothing that was tried is clearly better: {then}."

    def _worse_than_constant(self) -> Iterator[str]:
        """Yields where the model as it came is worse than the simplest predictor."""
        for came in (one for one in self._model.scores if one.way == "as it came"):
            answer = self._diagnosis.answer(came.question)
            if answer is None or not enough(answer):
                continue
            constant = answer.baselines[0].loss
            if came.loss.low > constant.high:  # both intervals: on the safe side
                yield (
                    f"Do not rely on {self._model.name} {self._on(came.question)}: it is worse "
                    f"than predicting {self._constant}, {with_interval(came.loss)} against "
                    f"{with_interval(constant)}."
                )
