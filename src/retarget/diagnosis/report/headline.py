"""The headline: the verdict in one or two sentences, with the numbers it follows from.

It is the same for the online learner of the diagnosis and for the user's own model; only the names
differ. A sentence names a cause only if that cause was measured.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from retarget.diagnosis.answers import DIVERGED, Answer, Estimate, Forgetting, Question
from retarget.diagnosis.facts import (
    NOT_FORGOTTEN,
    TENTH,
    Comparison,
    Evidence,
    Facts,
    clear_cost,
    enough,
    evidence,
    facts,
    judged,
    verdict_kind,
)
from retarget.diagnosis.result import Diagnosis, VerdictKind
from retarget.diagnosis.stream import Stream
from retarget.diagnosis.words.names import (
    baseline_name,
    batch_name,
    constant_name,
    error_word,
    name,
    on,
    too_few,
)
from retarget.diagnosis.words.numbers import (
    change_words,
    interval,
    multiple,
    multiples,
    number,
    percent,
    with_interval,
)

RARE = 0.1  # share of the rows
LARGEST_FACTOR = 50.0  # no more rows than so many times what there are can be asked for


@dataclass(frozen=True)
class Headline:
    """Words the verdict about one learner.

    Attributes:
        diagnosis: The diagnosis.
        shown: What was measured about the learner.
        who: The learner's name at the beginning of a sentence.
        batch: The batch model's name.
    """

    diagnosis: Diagnosis
    shown: Evidence
    who: str
    batch: str

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> "Headline":
        """Returns the headline about the user's model, if it was run, else the online learner."""
        model = diagnosis.model
        shown = evidence(diagnosis)
        if model is None or model.logged:
            return cls(diagnosis, shown, "The online model", f"a {batch_name(diagnosis.aim)}")
        return cls(diagnosis, shown, name(model.name), "its own batch training")

    @property
    def error(self) -> str:
        """The word for the loss."""
        return error_word(self.diagnosis)

    @property
    def constant(self) -> str:
        """The name of the simplest predictor."""
        return constant_name(self.diagnosis.stream)

    def text(self) -> str:
        """Returns the headline."""
        kind = verdict_kind(self.shown)
        text = " ".join([*self._before(kind), *self._sentences(kind)])
        about = self.diagnosis.approximation
        poor = any(one.kind == "poor features" for one in self.diagnosis.findings)
        if about is not None and poor and self.who == "The online model":
            return f"As far as {about.words} can tell: {_inside_sentence(text)}"
        return text

    def _before(self, kind: VerdictKind) -> Iterator[str]:
        """Yields what must be known before anything else: a bad batch model, a simple winner."""
        if kind in ("diverged", "undefined", "nothing learned"):
            return
        for question, comparison in self.shown.asked.items():
            if comparison.bad_batch_model and comparison.standing != "ahead":
                times = f"{multiple(comparison.batch_constant.value)} times its error"
                yield (
                    f"{_start(self.batch)} is worse than predicting {self.constant} "
                    f"{on(question)} ({times}, {multiples(comparison.batch_constant)}), so a "
                    "comparison with it means little there."
                )
        for one in self.diagnosis.findings:
            if one.kind == "baseline wins" and one.subject != "constant" and one.question:
                simple = baseline_name(one.subject, self.diagnosis)
                yield (
                    f"Predicting {simple} is better than both models {on(one.question)}: "
                    f"{number(one.value)} against {number(one.against)} "
                    f"({self.diagnosis.metric.words})."
                )

    def _sentences(self, kind: VerdictKind) -> Iterator[str]:
        known = facts(self.shown)
        few = [answer for answer in self.diagnosis.answers if not enough(answer)]
        if kind == "diverged":
            yield self._diverged()
        elif kind == "undefined":
            yield self._undefined()
        elif few and len(few) == len(self.diagnosis.answers):
            yield f"There are too few rows to compare the two models: {too_few(few)}."
        elif kind == "nothing learned":
            yield from self._nothing_learned()
        elif kind == "follows the drift":
            yield from self._follows()
        elif kind == "forgotten":
            yield from self._forgotten(known)
        elif kind == "one pass":
            yield from self._one_pass(known)
        else:
            yield from self._compared_only(kind, known)

    def _diverged(self) -> str:
        if self.who != "The online model":
            return f"{self.who} diverges on this stream: its predictions are useless."
        return (
            f"{self.who} diverges at lr = {self.diagnosis.lr.value:.3g}: its {self.error} is more "
            f"than {DIVERGED:,.0f} times the variance of the targets."
        )

    def _undefined(self) -> str:
        if any(one.kind == "no batch model" for one in self.diagnosis.findings):
            return "There is no batch model to compare the online model with."
        return "The online and the batch model perform the same: neither makes an error."

    def _nothing_learned(self) -> Iterator[str]:
        """Says that nothing beats the simplest predictor."""
        seen = [
            f"{on(question)} its {self.error} is "
            f"{_against(one.constant, f'predicting {self.constant}', tolerance=TENTH)}"
            for question, one in self.shown.asked.items()
            if one.enough
        ]
        yield (
            f"Nothing was learned: neither {_inside(self.who)} nor {self.batch} is clearly better "
            f"than predicting {self.constant} ({'; '.join(seen)})."
        )

    def _follows(self) -> Iterator[str]:
        """Says that the stream changes, and what was given up to follow it."""
        yield f"The stream changes, and {_inside(self.who)} follows it: {self._compared('next')}."
        forgetting = self.shown.forgetting
        if forgetting is None or facts(self.shown).forgot != "yes":
            return
        yield f"It has let go of the past: {self._increase()}; {self._why_let_go(forgetting)}."

    def _why_let_go(self, forgetting: Forgetting) -> str:
        """Says why the past could not be known as well."""
        if self.shown.asked["next"].bad_batch_model:
            return f"but on the next rows {self.batch} is worse than predicting {self.constant}"
        little = "hardly" if forgetting.knowable.high < 0 else "not clearly"
        return f"but there even {self.batch} is {little} better than predicting {self.constant}"

    def _forgotten(self, known: Facts) -> Iterator[str]:
        """Says how much was forgotten, how fast, and what it does on the next rows."""
        behind = known.whole == "behind" and not known.follows
        both = behind and known.one_pass and clear_cost(self.shown.order_cost)
        forgetting = self.shown.forgetting
        fast = ""
        if forgetting is not None and forgetting.half_life is not None:
            rows = max(1, round(forgetting.half_life))
            fast = f", and had doubled after about {rows:,} row{'s' * (rows > 1)}"
        opening = f"{self.who} has forgotten"
        if both:
            opening += ", and one pass is not enough"
        yield f"{opening}: {self._increase()}{fast}."
        if both and (shares := self._shares()):
            yield shares
        if known.follows:
            yield f"The stream changes, and it follows: {self._compared('next')}."
        elif (coming := self.shown.asked.get("next")) is not None and coming.enough:
            yield f"{_start(self._compared('next'))}."

    def _one_pass(self, known: Facts) -> Iterator[str]:
        """Says that a single pass is not enough, whatever the order."""
        opening = "has forgotten nothing, but" if known.forgot == "no" else "is behind, because"
        yield (
            f"{self.who} {opening} one pass is not enough: {self._compared('whole')}; in random "
            f"order it is {self._cost(self.shown.one_pass_cost)}."
        )
        if known.forgot == "not clear":
            yield from self._memory(known)
            yield from self._more_rows("one pass", known)

    def _shares(self) -> str | None:
        """Says how much of the distance to the batch model is due to the order."""
        order = self.shown.order_cost
        single = self.shown.one_pass_cost
        if order is None or single is None or not (clear_cost(order) and clear_cost(single)):
            return None
        both = math.log1p(order.value), math.log1p(single.value)
        share = both[0] / sum(both)
        return (
            f"Of its distance to {self.batch}, {percent(share)} is due to the order and "
            f"{percent(1 - share)} to the single pass."
        )

    def _compared_only(self, kind: VerdictKind, known: Facts) -> Iterator[str]:
        """Words verdicts that compare with the batch model, and say nothing was forgotten."""
        questions = [question for question, one in self.shown.asked.items() if one.enough]
        compared = "; ".join(self._compared(question) for question in questions)
        if kind == "as good":
            ahead = "ahead" in (self.shown.asked[question].standing for question in questions)
            yield f"{self.who} is {'at least ' * ahead}as good as {self.batch}: {compared}."
        elif kind == "behind on the next rows":
            yield (
                f"{self.who} still knows the past as well as {self.batch}, but is behind on what "
                f"comes next: {compared}."
            )
        elif kind == "behind":
            yield f"{self.who} is behind {self.batch}: {compared}."
        else:
            yield f"It is not clear whether {_inside(self.who)} is behind {self.batch}: {compared}."
        yield from self._memory(known)
        yield from self._more_rows(kind, known)

    def _memory(self, known: Facts) -> Iterator[str]:
        """Says whether something was forgotten, where that is not the verdict itself."""
        forgetting = self.shown.forgetting
        if forgetting is None:
            return
        if known.forgot == "no":
            yield f"It has forgotten nothing ({self._increase()})."
        elif known.forgot == "not clear":
            yield f"It is not clear whether it has forgotten something ({self._increase()})."

    def _more_rows(self, kind: VerdictKind, known: Facts) -> Iterator[str]:
        """Says what would make an unclear verdict clear."""
        if kind != "not clear" and known.forgot != "not clear":
            return
        needed = []
        whole = self.shown.asked.get("whole")
        if whole is not None and kind == "not clear":
            needed.append(rows_needed(whole.excess, TENTH))
        if self.shown.forgetting is not None and known.forgot == "not clear":
            needed.append(rows_needed(self.shown.forgetting.increase, NOT_FORGOTTEN))
        factor = max(needed, default=math.inf)
        if factor <= LARGEST_FACTOR:
            yield f"About {max(2, math.ceil(factor))} times as many rows would tell."

    def _increase(self) -> str:
        """Words how far the error on the same rows rose since their time."""
        forgetting = self.shown.forgetting
        if forgetting is None:
            return ""
        return (
            f"on rows from the whole stream, its {self.error} is {times(forgetting.increase)} what "
            "it was when they came"
        )

    def _cost(self, cost: Estimate | None) -> str:
        """Words the cost of a single pass."""
        if cost is None:
            return "not known"
        its = f"that of {self.batch}"
        return f"still {change_words(cost, f'below {its}', f'above {its}', its)}"

    def _compared(self, question: Question) -> str:
        """Compares the learner with the batch model on one set of rows."""
        comparison = self.shown.asked[question]
        where = on(question)
        if question == "progressive":
            where = "just before each row was learned"
        text = f"{where} its {self.error} is {self._above(comparison)}"
        answer = self.diagnosis.answer(question)
        if self.who == "The online model" and answer is not None:
            text += _right(answer, self.diagnosis.stream)
        return text

    def _above(self, comparison: Comparison) -> str:
        """Words how far a loss is above or below that of the batch model."""
        excess = comparison.excess
        if excess.value == math.inf:
            return f"above zero, and that of {self.batch} is zero"
        if math.isnan(excess.value):
            return f"not comparable with that of {self.batch}"
        return _against(excess, self.batch, tolerance=TENTH)


def _against(excess: Estimate, model: str, tolerance: float = 0.0) -> str:
    """Words how far a loss is above or below that of a model."""
    stands = judged(excess, tolerance)
    if stands in ("level", "not clear"):
        word = "about that of" if stands == "level" else "not clearly different from that of"
        return f"{word} {model} ({interval(excess, share=True)})"
    its = f"that of {model}"
    return change_words(excess, f"below {its}", f"above {its}", its)


def _right(answer: Answer, stream: Stream) -> str:
    """Words how many rows both models get right, for classes: of a rare class, or else of all."""
    of = "the classes"
    online = answer.score("online").accuracy
    batch = (answer.baseline("recent") or answer.score("offline")).accuracy
    rare = _rare_class(stream)
    if rare is not None and answer.baseline("recent") is None:
        recalls = [answer.score(learner).recall for learner in ("online", "offline")]
        if all(len(one) > rare and math.isfinite(one[rare].value) for one in recalls):
            of = f"'{name(stream.target_names[rare], 24)}'"
            online, batch = (one[rare] for one in recalls)
    if online is None or batch is None or math.isnan(online.value) or math.isnan(batch.value):
        return ""
    return f", with {percent(online.value)} of {of} right against {percent(batch.value)}"


def _rare_class(stream: Stream) -> int | None:
    """Returns the rarer one of two classes, if nearly all rows are of the other.

    Then the accuracy says next to nothing: always predicting the other class has a high one.
    """
    shares = stream.mean_target
    if stream.kind != "classification" or len(shares) != 2 or shares.min() >= RARE:
        return None
    return int(shares.argmin())


def times(increase: Estimate) -> str:
    """Words an increase as a multiple with its interval, such as "2.3 times (1.9 to 2.8)"."""
    return f"{multiple(increase.value)} times ({multiples(increase)})"


def rows_needed(estimate: Estimate, bound: float) -> float:
    """Returns by how many times more rows an interval would lie on one side of a bound, or of 0.

    The width of an interval shrinks with the root of the number of rows.

    Examples:
        >>> rows_needed(Estimate(0.3, -0.3, 0.9), 0.1)
        4.0
    """
    if not math.isfinite(estimate.low + estimate.high):
        return math.inf
    reach = (estimate.high - estimate.low) / 2
    above = estimate.value if estimate.value > 0 else math.nan
    below = bound - estimate.value if estimate.value < bound else math.nan
    distances = [distance for distance in (above, below) if distance > 0]
    if not distances:
        return math.inf
    return (reach / max(distances)) ** 2


def _start(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _inside_sentence(text: str) -> str:
    return f"{text[0].lower()}{text[1:]}"


def _inside(who: str) -> str:
    """Returns a learner's name inside a sentence."""
    return "the online model" if who == "The online model" else who


def logged_headline(diagnosis: Diagnosis) -> str | None:
    """Words what a log of predictions shows; None if there is no log."""
    model = diagnosis.model
    if model is None or not model.logged:
        return None
    before = model.prequential
    again = model.remembered
    if not (math.isfinite(before.value) and math.isfinite(again.value)):
        known = before if math.isfinite(before.value) else again
        return f"The squared error of {model.name} is {with_interval(known)}."
    text = (
        f"The squared error of {model.name} on the rows learned is {with_interval(again)} at the "
        f"end; just before each row was learned, it was {with_interval(before)}."
    )
    if model.forgetting is not None and model.forgetting.low > 0:
        return f"{text} It is {times(model.forgetting.increase)} that: something was forgotten."
    return text
