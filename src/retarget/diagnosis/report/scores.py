"""The one table of scores: who was asked what, and how well that went, before it is shown anywhere.

The terminal, the page and JSON show this table, each in its own way: as text, as HTML and a chart,
as numbers. What a score is shown by follows from the metric (`diagnosis.metrics`).
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from retarget.diagnosis.answers import (
    UNKNOWN,
    Baseline,
    Estimate,
    LearnerName,
    ModelScore,
    Question,
    Score,
)
from retarget.diagnosis.metrics import ACCURACY, SQUARED
from retarget.diagnosis.result import Diagnosis, ModelDiagnosis
from retarget.diagnosis.words.names import LEARNERS, WAYS, baseline_name, name
from retarget.diagnosis.words.numbers import interval, number, percent, sentence

AnyScore = Score | Baseline | ModelScore
DIVERGED_WORDS = "it diverged: its predictions are not finite numbers"
# The lines of the first screen: their marks, and shorter names.
FIRST_LEARNERS = {
    "offline": "Batch model",
    "online": "Online model",
    "iterative": "Online, corrected",
}
FIRST_WAYS = {
    "offline": "as a batch model",
    "online": "as it came",
    "corrected": "on corrected targets",
}
OF_MODEL = "model/"  # before a way of training, in JSON
ONLY_AT_THE_END = "the exact correction needs the whole stream in advance"
ONLY_NEXT = "only for the next rows"  # the others have no row just before them
NOT_TRAINED = "it is not possible, or it failed"


class Measure(NamedTuple):
    """The number that scores are shown by.

    Attributes:
        field: Which field of a score holds it.
        words: What it means, with its unit.
        label: The same in one word or two.
        share: Whether it is a share of the rows, of which more is better.
        rest: Whether it is what the field leaves of 1.
    """

    field: Literal["loss", "accuracy", "error"]
    words: str
    label: str
    share: bool = False
    rest: bool = False

    def of(self, score: AnyScore | None) -> Estimate | None:
        """Returns this number of a score; None if there is none."""
        estimate: Estimate | None = getattr(score, self.field, None)
        if estimate is None or not self.rest:
            return estimate
        return Estimate(1 - estimate.value, max(0.0, 1 - estimate.high), min(1.0, 1 - estimate.low))

    def written(self, estimate: Estimate) -> str:
        """Writes the number itself."""
        return (percent if self.share else number)(estimate.value)

    def interval(self, estimate: Estimate) -> str:
        """Writes its interval."""
        return interval(estimate, self.share)


SQUARED_ERROR = Measure("error", SQUARED.words, "error")


def measure(diagnosis: Diagnosis) -> Measure:
    """Returns what the scores are shown by."""
    metric = diagnosis.metric
    stream = diagnosis.stream
    classes = stream.kind == "classification"
    if classes and metric.shows_accuracy:
        return Measure("accuracy", ACCURACY.share, "accuracy", share=True)
    if metric.share:
        return Measure("loss", metric.share, metric.name, share=True, rest=True)
    label = "error" if metric.loss is SQUARED.loss and metric.score is None else metric.name
    if classes or not metric.unit:
        return Measure("loss", metric.words, label)
    targets = stream.target_names
    whose = f"of {name(targets[0], 40)}" if len(targets) == 1 else f"of {len(targets):,} targets"
    return Measure("loss", f"{metric.words}, in {metric.unit} {whose}", label)


class ShownScore(NamedTuple):
    """A score in the table.

    Attributes:
        score: The number with its interval; None if it was not measured.
        why: The reason, if there is no finite number.
        closes: The share of the gap to the batch model that is closed, if that is known.
        source: What it is the score of.
    """

    score: Estimate | None
    why: str = ""
    closes: Estimate = UNKNOWN
    source: AnyScore | None = None

    @property
    def known(self) -> bool:
        """Whether it is a finite number."""
        return self.score is not None and math.isfinite(self.score.value)


class ScoreLine(NamedTuple):
    """A line of the table: one learner, way of training or simple predictor.

    Attributes:
        title: Its heading.
        mark: Its color, a key of `retarget.learners.COLORS`, or "baseline".
        scores: One for each question.
        name: What it is called inside a sentence.
        of: What it is in JSON: a learner, a way of training, the kind of a simple predictor.
    """

    title: str
    mark: str
    scores: tuple[ShownScore, ...]
    name: str
    of: str

    @property
    def known(self) -> bool:
        """Whether any of its scores is a finite number."""
        return any(one.known for one in self.scores)


class WrittenScore(NamedTuple):
    """A score in JSON.

    Attributes:
        name: Whose score it is, in words.
        of: The learner, "model/" and the way of training, or the kind of the simple predictor.
        question: Which rows were asked about.
        measure: What it is: "error", "accuracy", or the name of the metric.
        higher_is_better: The direction.
        value: The score.
        low: Lower end of its 95% interval.
        high: Upper end of its 95% interval.
    """

    name: str
    of: str
    question: Question
    measure: str
    higher_is_better: bool
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ScoreTable:
    """Scores by line and question.

    Attributes:
        label: What the table is, for screen readers.
        first: The head of its first column.
        questions: What was asked, a column each.
        lines: The lines.
        measure: What the scores are shown by.
    """

    label: str
    first: str
    questions: tuple[Question, ...]
    lines: tuple[ScoreLine, ...]
    measure: Measure

    def written(self) -> list[WrittenScore]:
        """Returns the scores one by one, for JSON."""
        measure = self.measure
        return [
            WrittenScore(
                line.name,
                line.of,
                question,
                measure.label,
                measure.share,
                *(one.score or UNKNOWN),
            )
            for line in self.lines
            for question, one in zip(self.questions, line.scores, strict=True)
        ]


def score_table(diagnosis: Diagnosis, shown: Measure | None = None) -> ScoreTable:
    """Returns the scores of the user's model, or else of the learners, and of simple predictors.

    The simple predictors are there if they were asked the same questions.
    """
    model = diagnosis.model
    if model is None:
        return learner_scores(diagnosis, shown)
    shown = shown or measure(diagnosis)
    lines = _model_lines(model, shown)
    if model.questions == _asked(diagnosis):
        lines += _baseline_lines(diagnosis, shown)
    return ScoreTable(
        "Scores of your model", "Way of training", model.questions, tuple(lines), shown
    )


def learner_scores(diagnosis: Diagnosis, shown: Measure | None = None) -> ScoreTable:
    """Returns the scores of the learners and of simple predictors."""
    shown = shown or measure(diagnosis)
    lines = [*_learner_lines(diagnosis, shown), *_baseline_lines(diagnosis, shown)]
    label = "All scores" if diagnosis.model is None else "Scores of the kernel learners"
    return ScoreTable(label, "Learner", _asked(diagnosis), tuple(lines), shown)


def written_scores(diagnosis: Diagnosis) -> list[WrittenScore]:
    """Returns the table for JSON; with a model, the learners' scores follow its own."""
    scores = score_table(diagnosis).written()
    if diagnosis.model is not None:
        scores += [
            one for one in learner_scores(diagnosis).written() if one.of in get_args(LearnerName)
        ]
    return scores


def squared_scores(diagnosis: Diagnosis) -> ScoreTable | None:
    """Returns the squared errors, unless they are the scores that are shown anyway."""
    if measure(diagnosis).label == SQUARED_ERROR.label:
        return None
    table = score_table(diagnosis, SQUARED_ERROR)
    lines = tuple(_bare(line, keep_why=True) for line in table.lines)
    return replace(table, label="Mean squared error", lines=lines)


def first_scores(diagnosis: Diagnosis) -> ScoreTable:
    """Returns the few scores of the first screen.

    They are those of the batch model, of the online model, of the same on corrected targets, and
    of the best simple predictor. If the user's model was run, they are its own.
    """
    model = diagnosis.model
    table = score_table(diagnosis)
    titles = dict(FIRST_LEARNERS if model is None else FIRST_WAYS)
    by_mark = {line.mark: line for line in table.lines if line.mark != "baseline"}
    recent = next((line for line in table.lines if line.of == "recent"), None)
    if recent is not None and model is None:
        # the batch model that the online one is compared with
        by_mark["offline"] = recent._replace(mark="offline")
        titles["offline"] = sentence(recent.name)
    shown = [by_mark[mark] for mark in titles if mark in by_mark]
    lines = [
        _bare(line)._replace(title=titles[line.mark])
        for line in shown
        if line.known or line.mark == "online"
    ]
    simple = simplest(diagnosis)
    if any(simple):
        scores = tuple(ShownScore(table.measure.of(one), source=one) for one in simple)
        title = _simple_title(diagnosis, simple)
        lines.append(ScoreLine(title, "baseline", scores, title, "constant"))
    first = table.first if model is None else name(model.name, 24)
    return replace(table, label="Scores", first=first, lines=tuple(lines))


def simplest(diagnosis: Diagnosis) -> list[Baseline | None]:
    """Returns the simple predictor with the smallest loss, for each question of the table."""
    return [_simplest(diagnosis, question) for question in score_table(diagnosis).questions]


def _simplest(diagnosis: Diagnosis, question: Question) -> Baseline | None:
    answer = diagnosis.answer(question)
    known = [
        one
        for one in (answer.baselines if answer else ())
        if one.kind != "recent" and math.isfinite(one.loss.value)
    ]
    return min(known, key=lambda one: one.loss.value, default=None)


def _simple_title(diagnosis: Diagnosis, simple: list[Baseline | None]) -> str:
    kinds = {one.kind for one in simple if one}
    if len(kinds) > 1:
        return "Best simple predictor"
    return sentence(baseline_name(kinds.pop(), diagnosis))


def _bare(line: ScoreLine, keep_why: bool = False) -> ScoreLine:
    """Returns a line without the shares of the gap that are closed, and perhaps without reasons."""
    scores = (one._replace(closes=UNKNOWN, why=one.why if keep_why else "") for one in line.scores)
    return line._replace(scores=tuple(scores))


def _asked(diagnosis: Diagnosis) -> tuple[Question, ...]:
    """Returns the questions that the learners were asked."""
    return tuple(answer.question for answer in diagnosis.answers)


def _learner_lines(diagnosis: Diagnosis, shown: Measure) -> list[ScoreLine]:
    """Returns the scores of the four learners."""
    progressive = diagnosis.answer("progressive") is not None
    lines = []
    for learner, label in LEARNERS.items():
        ahead = progressive and learner == "corrected"
        why = ONLY_AT_THE_END if ahead else DIVERGED_WORDS
        scores = []
        for answer in diagnosis.answers:
            source = answer.score(learner)
            closes = answer.gap_closed.get(learner, UNKNOWN)
            scores.append(ShownScore(shown.of(source), why, closes, source))
        lines.append(ScoreLine(sentence(label), learner, tuple(scores), label, learner))
    return lines


def _baseline_lines(diagnosis: Diagnosis, shown: Measure) -> list[ScoreLine]:
    """Returns the scores of the simple predictors."""
    kinds = dict.fromkeys(one.kind for answer in diagnosis.answers for one in answer.baselines)
    lines = []
    for kind in kinds:
        sources = [answer.baseline(kind) for answer in diagnosis.answers]
        scores = tuple(ShownScore(shown.of(source), ONLY_NEXT, source=source) for source in sources)
        label = baseline_name(kind, diagnosis)
        lines.append(ScoreLine(f"Baseline, {name(label)}", "baseline", scores, label, kind))
    return lines


def _model_lines(model: ModelDiagnosis, shown: Measure) -> list[ScoreLine]:
    """Returns the scores of the user's model, by way of training, for those that were tried."""
    lines = []
    for way, mark in WAYS.items():
        sources = [model.score(way, question) for question in model.questions]
        scores = tuple(
            ShownScore(shown.of(source), NOT_TRAINED, source=source) for source in sources
        )
        if any(sources):
            lines.append(ScoreLine(sentence(way), mark, scores, way, f"{OF_MODEL}{way}"))
    return lines
