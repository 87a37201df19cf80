"""What to do: one list, in which nothing contradicts the verdict or another piece of advice.

`allowed` says which kinds of advice a verdict leaves room for. Whatever was tried is advised only
if it clearly helped on some rows, with its condition if it clearly harms on others; what was not
tried says so.
"""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from retarget.diagnosis.answers import TOO_LARGE, Estimate, Question
from retarget.diagnosis.dialect import command_hint, option
from retarget.diagnosis.facts import (
    Facts,
    clear_gain,
    enough,
    evidence,
    facts,
    inverted,
    verdict_kind,
)
from retarget.diagnosis.findings import Finding, FindingKind
from retarget.diagnosis.report.headline import on, too_few
from retarget.diagnosis.result import Diagnosis, VerdictKind
from retarget.diagnosis.tables.lags import lag_name
from retarget.diagnosis.words.names import constant_name, error_word, name
from retarget.diagnosis.words.numbers import change_words, number, percent, sentence, with_interval
from retarget.text import listed

AdviceKind = Literal[
    "adding up", "useless", "last value", "features", "better model", "window", "change", "correct",
    "do not correct", "batch", "leave", "nothing", "rate", "rows", "kernel features",
]  # fmt: skip
CORRECTABLE: tuple[VerdictKind, ...] = (
    "forgotten",
    "one pass",
    "behind",
    "behind on the next rows",
    "follows the drift",
)
MORE_LAGS = 3
LONGEST_OPTION = 200  # characters; a longer list of columns is not spelled out
OLD_ROWS = "if rows like the old ones come again, "
NEXT_ROWS = "if only the next rows matter to you, "


class Advice(NamedTuple):
    """A piece of advice, of a kind that the verdict may leave no room for."""

    kind: AdviceKind
    text: str


class Tried(NamedTuple):
    """Something that was tried, in words, and its effect on the loss on each set of rows."""

    kind: AdviceKind
    words: str
    effects: dict[Question, Estimate]
    more: str = ""  # what else to know, if it is advised
    too_far: float = 0.0  # how far targets lie from the mean, if that is too far to train on them

    @property
    def best(self) -> float:
        """The largest gain on any rows, as a negative number."""
        known = [one.value for one in self.effects.values() if not math.isnan(one.value)]
        return min(known, default=math.inf)


def allowed(kind: VerdictKind, known: Facts) -> set[AdviceKind]:
    """Returns the kinds of advice that do not contradict a verdict."""
    if kind == "diverged":
        return {"rate"}
    if kind == "undefined":
        return set()
    if kind == "nothing learned":
        return {"adding up", "useless", "last value", "features", "better model", "rows"}
    room: set[AdviceKind] = {"adding up", "useless", "last value", "window", "change", "rate"}
    room.add("rows")
    room |= {"kernel features", "nothing" if kind == "as good" else "leave"}
    if known.bad_batch and kind != "follows the drift":
        room.add("better model")
    if not known.bad_batch and kind in CORRECTABLE:
        room |= {"correct", "do not correct", "batch"}
    return room


def advice(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Returns what to do, the most useful first."""
    return tuple(piece.text for piece in advised(diagnosis))


def advised(diagnosis: Diagnosis) -> list[Advice]:
    """Returns the pieces of advice that the verdict leaves room for."""
    shown = evidence(diagnosis)
    room = allowed(verdict_kind(shown), facts(shown))
    pieces = [piece for piece in _Adviser(diagnosis).pieces() if piece.kind in room]
    helpful = any(piece.kind in ("change", "correct", "batch") for piece in pieces)
    judged = any(enough(answer) for answer in diagnosis.answers)
    if judged and not helpful:
        return pieces
    # to leave it as it is, or that nothing is needed, is advised only if nothing else helps
    return [piece for piece in pieces if piece.kind not in ("leave", "nothing")]


class _Adviser:
    """Words every piece of advice that the numbers give, whatever the verdict."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self._diagnosis = diagnosis
        self._findings = diagnosis.findings
        self._constant = constant_name(diagnosis.stream)
        self._error = error_word(diagnosis)
        self._counted = {one.question for one in diagnosis.answers if enough(one)}

    def pieces(self) -> Iterator[Advice]:
        """Yields them in the order in which they are told."""
        yield from self._adding_up()
        yield from self._useless()
        yield from self._last_value()
        yield from self._features()
        yield from self._better_model()
        yield from self._tried()
        yield from self._window()
        yield from self._rate()
        yield from self._rows()
        yield from self._kernel_features()

    def _of(self, *kinds: FindingKind) -> list[Finding]:
        return [finding for finding in self._findings if finding.kind in kinds]

    def _effects(self, effects: dict[Question, Estimate]) -> str:
        """Words the same change on each set of rows."""
        known = {asked: effect for asked, effect in effects.items() if not math.isnan(effect.value)}
        changes = [f"{change_words(effect)} {on(asked)}" for asked, effect in known.items()]
        return f"{self._error} {', '.join(changes)}" if changes else ""

    def _adding_up(self) -> Iterator[Advice]:
        columns = [one.subject for one in self._of("adding up")]
        if columns:
            dropped = command_hint(("drop", columns))
            text = (
                f"Check {listed(columns)}: together they give the target exactly (a linear "
                "function). If you learn them only together with the target, leave them "
                f"out{dropped if len(dropped) < LONGEST_OPTION else command_hint('drop')}."
            )
            yield Advice("adding up", text)

    def _useless(self) -> Iterator[Advice]:
        """Says where the user's model as it came is worse than the simplest predictor."""
        model = self._diagnosis.model
        for came in () if model is None else model.scores:
            answer = self._diagnosis.answer(came.question)
            if model is None or came.way != "as it came" or answer is None or not enough(answer):
                continue
            if came.constant.low > 0:
                against = with_interval(answer.baselines[0].loss)
                text = (
                    f"Do not rely on {model.name} {on(came.question)}: it is worse than predicting "
                    f"{self._constant}, {with_interval(came.loss)} against {against}."
                )
                yield Advice("useless", text)

    def _last_value(self) -> Iterator[Advice]:
        for one in self._of("baseline wins"):
            if one.subject == "last":
                stream = self._diagnosis.stream
                lags = sum(
                    lag_name(target, step) in stream.feature_names
                    for target in stream.target_names[:1]
                    for step in range(1, len(stream.feature_names) + 1)
                )
                more = option("lags", lags + MORE_LAGS)
                text = (
                    "Predict the last value instead: that is better than both models on the next "
                    f"rows. Or let the models use earlier values too (not tried here): {more}."
                )
                yield Advice("last value", text)

    def _features(self) -> Iterator[Advice]:
        text = (
            "Add features that say more about the target before anything else: no model here "
            f"clearly beats {self._constant}."
        )
        yield Advice("features", text)

    def _better_model(self) -> Iterator[Advice]:
        """Advises another batch model, if one was tried that clearly helps."""
        bad = self._of("bad batch model")
        if not bad:
            return
        better = []
        for one in self._of("alternative"):
            ridge = float(f"{one.value:.3g}")
            model = f"a larger ridge ({option('gamma', ridge)})"
            if one.subject == "linear":
                model = f"a linear model ({option('kernel', 'affine')})"
            if clear_gain(one.effect) and one.standing != "behind" and one.question is not None:
                effect = change_words(one.effect)
                better.append(f"{model}: {on(one.question)} its {self._error} is {effect}")
        if better:
            yield Advice("better model", f"Compare with a better batch model, {'; '.join(better)}.")
        else:
            text = (
                "Look for a better batch model first: a linear one and a larger ridge were tried, "
                "and are not clearly better."
            )
            yield Advice("better model", text)

    def _window(self) -> Iterator[Advice]:
        for one in self._of("drift"):
            if self._diagnosis.aim == "all":
                text = (
                    "If old rows are out of date, compare with a batch model of recent rows: "
                    f"{option('aim', f'window:{one.value:.0f}')}."
                )
                yield Advice("window", text)

    def _tried(self) -> Iterator[Advice]:
        """Advises what was tried and clearly helped, the most useful first."""
        shown = evidence(self._diagnosis)
        follows = verdict_kind(shown) == "follows the drift"
        for one in sorted(self._changes(), key=lambda tried: tried.best):
            if one.too_far:
                text = (
                    "Do not use corrected targets here: they reach "
                    f"{number(one.too_far)} standard deviations from the mean."
                )
                yield Advice("do not correct", text)
                continue
            gains = [
                question
                for question, effect in one.effects.items()
                if clear_gain(effect) and question in self._counted
            ]
            harms = [question for question, effect in one.effects.items() if effect.low > 0]
            if not gains:
                if one.kind == "correct":
                    yield from self._no_correction(one, bool(harms))
                continue
            condition = ""
            if "next" in harms or (follows and gains == ["whole"]):
                condition = OLD_ROWS
            elif harms:
                condition = NEXT_ROWS
            text = f"{condition}{one.words}: {self._effects(one.effects)}.{one.more}"
            yield Advice(one.kind, sentence(text))
        yield Advice("nothing", "Nothing needs correcting.")
        who = self._who
        left = f"leave {who} as it is"
        if any(True for _ in self._useless()):
            left = "try another model or other features"
        yield Advice("leave", f"Nothing that was tried is clearly better: {left}.")

    @property
    def _who(self) -> str:
        model = self._diagnosis.model
        return "the learner" if model is None else model.name

    def _no_correction(self, tried: Tried, harms: bool) -> Iterator[Advice]:
        effects = self._effects(tried.effects)
        if effects:
            start = "Do not train" if harms else "It is not clear whether to train"
            trained = "" if self._diagnosis.model is None else f" {self._who}"
            text = f"{start}{trained} on corrected targets: {effects}."
            yield Advice("do not correct", text)

    def _changes(self) -> Iterator[Tried]:
        """Yields what was tried: with the user's model if it was run, else with the learner."""
        model = self._diagnosis.model
        yield from self._of_learner() if model is None else self._of_model()

    def _of_learner(self) -> Iterator[Tried]:
        diagnosis = self._diagnosis
        words = {
            "rate": "use lr = {:.3g}",
            "batch": "use mini-batches of {:.0f} rows at the same rate",
            "order": "learn the rows in random order, if you can",
        }
        trials: dict[tuple[str, float], dict[Question, Estimate]] = {}
        for one in self._of("trial"):
            # the number of random orders differs from question to question
            value = 0.0 if one.subject == "order" else one.value
            if one.question is not None:
                trials.setdefault((one.subject, value), {})[one.question] = one.effect
        for (change, value), effects in trials.items():
            yield Tried("change", words[change].format(value), effects)
        corrected = {
            one.question: one.effect
            for one in self._of("correction")
            if one.subject == "iterative" and one.question is not None
        }
        size = diagnosis.target_size["iterative"]
        learner = f"{diagnosis.kernel.name} kernel, lr = {diagnosis.lr.value:.3g}"
        yield Tried(
            "correct",
            "train on iteratively corrected targets",
            corrected,
            more=f" These targets are for this learner ({learner}): try them on a network or any "
            f"other model first ({option('model')}).",
            too_far=size if size > TOO_LARGE else 0.0,
        )
        batch = {answer.question: inverted(answer.excess) for answer in diagnosis.answers}
        yield Tried("batch", "fit a batch model, if you can keep the rows", batch)

    def _of_model(self) -> Iterator[Tried]:
        model = self._diagnosis.model
        if model is None:
            return
        who = name(model.name)
        words: dict[str, tuple[AdviceKind, str]] = {
            "random order": ("change", f"show {who} the rows in random order, if you can"),
            "batch": ("batch", f"train {who} as a batch model, if you can keep the rows"),
            "corrected": ("correct", f"train {who} on iteratively corrected targets"),
        }
        for way, (kind, text) in words.items():
            effects = {
                one.question: one.change
                for one in model.scores
                if one.way == way and not math.isnan(one.change.value)
            }
            size = model.corrected_size if way == "corrected" else 0.0
            if effects:
                yield Tried(kind, text, effects, too_far=size if size > TOO_LARGE else 0.0)

    def _rate(self) -> Iterator[Advice]:
        """Says whether the rate is too near the largest stable one, and which one does better."""
        for one in self._of("near limit"):
            rate, limit = number(one.value), number(one.against)
            if one.value > one.against:
                why = f"at {rate} some steps make their own error larger"
            else:
                why = f"{rate} is {percent(one.value / one.against)} of the largest stable one"
            text = f"Lower the rate: {why}; steps are stable up to lr = {limit}."
            yield Advice("rate", text + self._best_rate())

    def _best_rate(self) -> str:
        """Names the best of the rates that were tried, if it is another."""
        lr = self._diagnosis.lr
        tried = lr.tried.drop_nulls().sort("score")
        if tried.is_empty() or tried["value"][0] == lr.value:
            return ""
        best = number(tried["value"][0])
        return (
            f" Of {len(lr.tried)} rates tried, lr = {best} has the smallest error on each row "
            "before it was learned."
        )

    def _rows(self) -> Iterator[Advice]:
        few = [answer for answer in self._diagnosis.answers if not enough(answer)]
        if few:
            yield Advice("rows", f"Collect more rows before you act: {too_few(few)}.")

    def _kernel_features(self) -> Iterator[Advice]:
        about = self._diagnosis.approximation
        if about is not None and self._of("poor features"):
            text = (
                f"Use more than {about.words} ({option('features')}), or diagnose fewer rows "
                "exactly: the features do not approximate the kernel well enough here."
            )
            yield Advice("kernel features", text)
