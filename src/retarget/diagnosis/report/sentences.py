"""Words the findings of a diagnosis: a headline, what was found, and what to change."""

import math
from collections.abc import Iterator

from rich.filesize import decimal

from retarget.diagnosis.answers import DIVERGED, TOO_LARGE, Answer, BaselineKind, Estimate, Question
from retarget.diagnosis.findings import (
    POINTS,
    Finding,
    FindingKind,
    Standing,
    bad_batch_model,
    clear_gain,
    enough,
    judged,
    standing,
    verdict_kind,
)
from retarget.diagnosis.measure.holdout import ENOUGH
from retarget.diagnosis.report.words import (
    LEARNERS,
    MANY,
    METRICS,
    MINUS,
    QUESTIONS,
    approximation_rows,
    baseline_name,
    batch_name,
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
from retarget.diagnosis.result import Diagnosis, ModelDiagnosis, Verdict, VerdictKind
from retarget.text import listed

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


def verdict(diagnosis: Diagnosis) -> Verdict:
    """Returns the verdict on a diagnosis."""
    found = _Findings(diagnosis)
    kind = verdict_kind(diagnosis)
    if diagnosis.model is not None:
        headline, advice = found.model_headline(), [*found.model_advice()]
    else:
        headline, advice = found.headline(kind), [*found.advice(kind)]
    return Verdict(kind, headline, tuple(found.told()), tuple(advice))


class _Findings:
    """The findings of a diagnosis, to be worded."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self._diagnosis, self._model = diagnosis, diagnosis.model
        self._all = diagnosis.findings
        self._constant = constant_name(diagnosis.stream)
        self._classes = diagnosis.stream.kind == "classification"

    def _of(self, *kinds: FindingKind) -> list[Finding]:
        return [finding for finding in self._all if finding.kind in kinds]

    def _on(self, question: Question | None) -> str:
        """Returns where something was found, if there is more than one place."""
        return "" if question is None else f"on {QUESTIONS[question]}"

    # The headline

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
            return f"There are too few rows to compare the online with a batch model: {_few(few)}."
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
            yield (
                f"A batch model of these rows is worse than predicting {self._constant} "
                f"{self._on(one.question)} ({_times(one.effect)}), so it says little there."
            )
        for one in self._of("baseline wins"):
            if one.subject == "constant" and self._of("bad batch model"):
                continue
            yield sentence(
                f"predicting {self._baseline(one)} is better than both models "
                f"{self._on(one.question)}: {number(one.value)} against {number(one.against)} "
                f"({METRICS[self._diagnosis.metric]})."
            )
        nothing = [self._on(one.question) for one in self._of("nothing learned")]
        if nothing:
            yield (
                f"Neither model is clearly better than predicting {self._constant} "
                f"{' and '.join(nothing)}."
            )

    def _baseline(self, finding: Finding) -> str:
        kinds: tuple[BaselineKind, ...] = ("constant", "last", "recent")
        kind = next(kind for kind in kinds if kind == finding.subject)
        return baseline_name(kind, self._diagnosis)

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
                return f"{where} both are right"
            return (
                f"{where} it is right in {percent(right)} of them, {model} in {percent(best)} "
                f"({_points(gap)})"
            )
        return f"{where} its error is {_above(answer.excess, f'{model}')}"

    # What was found

    def told(self) -> Iterator[str]:
        """Yields what was found, in sentences."""
        for one in self._of("failure"):
            yield one.subject
        if self._model is not None:
            yield from self._of_model(self._model)
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
            moved = "class" if self._classes else "sign (side of the mean)"
            yield (
                f"On average, later rows moved a row's target by {percent(one.value)} of its size; "
                f"{percent(one.against)} of the rows changed their {moved}."
            )
        elif one.kind == "interference":
            effect = "weakening" if one.against < 0 else "strengthening"
            yield (
                f"Learning '{name(one.subject)}' moved the targets of '{name(one.other)}' by "
                f"{percent(one.value)} of their size on average, {effect} them by "
                f"{percent(abs(one.against))}."
            )
        elif one.kind == "rounding":
            yield (
                "The exact correction does not survive rounding: trained on its targets, the "
                f"online model ends with a squared error of {number(one.value, 4)}, not with the "
                f"batch model's {number(one.against, 4)}."
            )
        elif one.kind == "large targets":
            how = "exactly" if one.subject == "corrected" else "iteratively"
            yield (
                f"The {how} corrected targets reach {number(one.value)} standard deviations from "
                f"the mean (usable: {TOO_LARGE:.0f}): train nothing but this kernel model on them."
            )
        elif one.kind == "smoother":
            yield (
                f"The iterative correction follows a smoother batch model, with ridge "
                f"{number(one.value)} instead of {number(one.against)}: that ends closer to the "
                "batch model, with targets of usable size."
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

    # What to do

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
            more = "; more rows may tell" if kind == "not clear" else ""
            yield f"No change that was tried is clearly better: leave the learner as it is{more}."
        if kind in ("behind everywhere", "behind on the next rows", "behind"):
            yield from self._batch_advice()
        yield from self._rate_advice()
        if few:
            yield f"Collect more rows before you act: {_few(few)}."
        if self._of("poor features") and diagnosis.approximation is not None:
            yield (
                f"Use more than {diagnosis.approximation.words} (--features), or diagnose fewer "
                "rows exactly: the features do not approximate the kernel well enough here."
            )

    def _simple_advice(self) -> Iterator[str]:
        """Yields what comes before any correction: simple predictors, better batch models."""
        for one in self._of("baseline wins"):
            if one.subject == "last":
                yield (
                    "Predict the last value instead, or give the models what it tells: --lags 3 "
                    "adds the previous values as features, and --kernel linear can follow them."
                )
        if self._of("bad batch model"):
            linear = self._diagnosis.kernel.name == "linear"
            tries = [] if linear else ["a linear model (--kernel linear)"]
            tries.append(f"a larger ridge (--gamma {number(100 * self._diagnosis.gamma.value)})")
            if self._diagnosis.stream.groups is not None:
                tries.append("holding out whole groups (--hold-out group)")
            yield (
                f"Look for a better model first: try {listed(tries)}. Nothing should be corrected "
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
                    f"--aim window:{one.value:.0f}."
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
            if any(clear_gain(one.effect) and self._counts(one) for one in effects):
                worse = any(one.question == "next" and one.effect.low > 0 for one in effects)
                condition = "if rows like the old ones come again, " if worse else ""
                text = f"{condition}{words[change].format(value)}: {self._effects(effects)}."
                yield sentence(text)

    def _counts(self, finding: Finding) -> bool:
        """Whether a finding is from enough rows to recommend something."""
        answers = self._diagnosis.answers
        return any(enough(one) for one in answers if one.question == finding.question)

    def _effects(self, effects: list[Finding]) -> str:
        """Words the same change on each question."""
        return ", ".join(
            f"{self._on(one.question)} the error is {change_words(one.effect)}" for one in effects
        )

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
            if known and all(one.standing == "behind" for one in known):
                yield (
                    "Do not use the iterative correction as it is: "
                    f"{self._effects(known)}; try a larger block (--block-size)."
                )
            elif known:
                yield f"It is not clear that corrected targets help: {self._effects(known)}."
            return
        gained = {gain.question for gain in gains}
        closed = [
            f"{with_interval(one.effect, share=True)} of the gap {self._on(one.question)}"
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
                f"{does}. If they do not, leave the learner as it is."
            )
        else:
            yield f"Train on iteratively corrected targets: {does}."
        yield (
            f"These targets are for this learner ({learner}). For a network or any other model, "
            "try them on it first (--model)."
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
                yield (
                    f"Leave the rate more room: {rate} is {share} of the largest stable one, "
                    f"{limit}."
                )

    # The user's own model

    def model_headline(self) -> str:
        """Says how the user's model does, and what would change it most."""
        model = self._model
        assert model is not None
        if self._of("model diverged"):
            return f"{model.name} diverges on this stream: its predictions are useless."
        (log,) = self._of("model log")
        if not model.orders:
            if math.isfinite(log.value) and math.isfinite(log.against):
                before, again = with_interval(model.prequential), with_interval(model.remembered)
                return (
                    f"The squared error of {model.name} on the rows learned is {again} at the "
                    f"end; just before each row was learned, it was {before}."
                )
            known = model.prequential if math.isfinite(log.value) else model.remembered
            return f"The squared error of {model.name} is {with_interval(known)}."
        tried = [one for one in self._of("model trial") if math.isfinite(one.effect.value)]
        best = min(tried, key=lambda one: one.effect.high, default=None)
        if best is None:
            return f"{model.name}: no other way of training could be compared with it."
        ways = {
            "random order": "shown the rows in random order",
            "batch": "trained as a batch model",
            "corrected": "trained on corrected targets",
        }
        effects = [one for one in tried if one.subject == best.subject]
        if clear_gain(best.effect):
            return f"{model.name} does better {ways[best.subject]}: {self._effects(effects)}."
        return (
            f"No way of training {model.name} that was tried is clearly better than as the rows "
            f"came: {ways[best.subject]}, {self._effects(effects)}."
        )

    def _of_model(self, model: ModelDiagnosis) -> Iterator[str]:
        """Yields what was found about the user's model."""
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
                f"Between learning a row and the end, the predictions of {model.name} for it moved "
                f"by {percent(one.value)} of a target's size on average."
            )
        yield sentence(f"{model.description.rstrip('.')}.")
        for one in self._of("model agreement"):
            yield (
                f"The theory's prediction of these movements agrees with {model.name} to "
                f"{percent(one.value)}."
            )

    def model_advice(self) -> Iterator[str]:
        """Yields what worked when the user's own model was trained."""
        model = self._model
        assert model is not None
        yield from self._simple_advice()
        words = {
            "random order": f"Show {model.name} the rows in random order, if you can",
            "batch": f"Train {model.name} as a batch model, if you can keep the rows",
            "corrected": f"Train {model.name} on iteratively corrected targets",
        }
        useful = False
        for way, text in words.items():
            effects = [one for one in self._of("model trial") if one.subject == way]
            known = [one for one in effects if math.isfinite(one.effect.value)]
            gains = any(clear_gain(one.effect) and self._counts(one) for one in known)
            if way == "corrected" and model.corrected_size > TOO_LARGE:
                yield (
                    f"Do not train {model.name} on corrected targets: they reach "
                    f"{number(model.corrected_size)} standard deviations from the mean."
                )
            elif gains:
                useful = True
                yield f"{text}: {self._effects(known)}."
            elif way == "corrected" and known:
                worse = all(one.standing == "behind" for one in known)
                start = "Do not train" if worse else "It is not clear that it helps to train"
                yield f"{start} {model.name} on corrected targets: {self._effects(known)}."
        if not useful and model.orders:
            yield f"No change that was tried is clearly better: leave {model.name} as it is."


def _few(answers: list[Answer]) -> str:
    """Says that there are too few rows of classes that were learned."""
    return " and ".join(
        f"{QUESTIONS[one.question]} hold classes that were never learned"
        if one.unseen
        else f"only {one.rows:,} of {QUESTIONS[one.question]} were held out, of {ENOUGH} needed"
        for one in answers
    )


def _times(excess: Estimate) -> str:
    """Words how large a loss is, compared with another."""
    times, low, high = (f"{1 + value:,.3g}" for value in excess)
    return f"{times} times its error, {low} to {high}"


def _above(excess: Estimate, model: str) -> str:
    """Words how far a loss is above or below that of a model."""
    if excess.value == math.inf:
        return f"not zero, as that of {model} is"
    if math.isnan(excess.value):
        return f"not comparable with that of {model}"
    stands = judged(excess)
    if stands in ("level", "not clear"):
        word = "about that of" if stands == "level" else "not clearly different from that of"
        return f"{word} {model} ({interval(excess, share=True)})"
    if excess.value >= MANY:
        times, low, high = (f"{1 + value:,.0f}" for value in excess)
        return f"{times} times that of {model} ({low} to {high})"
    seen = opposite(excess) if excess.value < 0 else excess
    word = "below" if excess.value < 0 else "above"
    return f"{percent(seen.value)} {word} that of {model} ({interval(seen, share=True)})"


def _points(gap: Estimate) -> str:
    """Words a gap in accuracy, in points."""
    seen, word = (gap, "behind") if gap.value > 0 else (opposite(gap), "ahead")
    value, low, high = (f"{100 * part + 0.0:.0f}".replace("-", MINUS) for part in seen)
    if judged(gap, POINTS) == "not clear":
        return f"not clearly different, {low} to {high} points"
    return f"{value} points {word}, {low} to {high}"
