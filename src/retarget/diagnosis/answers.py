"""What was measured on rows that a learner has not learned: scores, with their intervals."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:  # the command's options are types of this module, and polars is slow to import
    import polars as pl

LearnerName = Literal["offline", "online", "corrected", "iterative"]
Question = Literal["whole", "next", "test", "progressive"]
Evaluation = Literal["both", "whole", "next", "progressive", "test"]
HoldOut = Literal["rows", "group"]
Change = Literal["rate", "batch", "order"]
DIVERGED = 1000.0  # a learner is useless if its error is this many times the targets' variance
TOO_LARGE = 100.0  # a target this many standard deviations from the mean is not usable


class Estimate(NamedTuple):
    """A number and its 95% confidence interval (see `measure.intervals`)."""

    value: float
    low: float
    high: float


UNKNOWN = Estimate(math.nan, math.nan, math.nan)


Predictor = LearnerName | tuple[Change, float]  # a learner, or a change that was tried


@dataclass(frozen=True)
class Forgetting:
    """How much more a learner errs on rows than it did when their time came.

    Held-out rows from all over the stream are asked about when the learner has learned the rows
    before them, and again at late moments of the stream.

    Attributes:
        value: The increase of the loss, relative to that at the rows' own time: 0 if nothing was
            forgotten, 1 if the loss has doubled, below 0 if the learner only got better.
        low: Lower end of its 95% interval.
        high: Upper end of its 95% interval.
        rows: How many rows were asked about.
        curve: The same by age, the number of rows learned since a row's time: `age`, `value`,
            `low`, `high`, `rows`.
        half_life: The age at which the loss has doubled; None if it never does.
        known: How far the loss at the rows' own time was above that of the simplest predictor,
            relative to it: below 0, there was something to forget.
        knowable: How far the loss of a batch model of all rows so far, at the late moments, is
            above that of the simplest predictor, relative to it: below 0, old and new rows can be
            known together. Unknown if there is no batch model.
    """

    value: float
    low: float
    high: float
    rows: int
    curve: "pl.DataFrame"
    half_life: float | None
    known: Estimate
    knowable: Estimate = UNKNOWN

    @property
    def increase(self) -> Estimate:
        """The increase with its interval."""
        return Estimate(self.value, self.low, self.high)


@dataclass(frozen=True)
class Score:
    """How well one learner predicts rows that it has not learned from.

    Attributes:
        learner: The batch model ("offline"); the online learner on true targets; the online learner
            on exactly and on iteratively corrected targets.
        question: Which rows it was asked about.
        error: Mean squared error over rows and targets, in the user's units (squared).
        accuracy: Share of rows whose class is predicted correctly; None for regression.
        loss: The score by which learners are compared, lower is better: the squared error, or what
            the metric makes of the losses of the rows (`metrics.Metric`). For an accuracy it is the
            share of wrong rows.
        by_target: Mean squared error of each target, in its own units (squared), if there are
            several; empty for one target and for classes.
        recall: For each class, the share of its rows that are predicted correctly; empty for
            numbers.
        confusion: For each class, how often each class was predicted for its rows; empty for
            numbers, and for more than 20 classes. Rows from the whole stream count once for each
            late moment at which they are asked about.
    """

    learner: LearnerName
    question: Question
    error: Estimate
    accuracy: Estimate | None
    loss: Estimate
    by_target: tuple[Estimate, ...] = ()
    recall: tuple[Estimate, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()


BaselineKind = Literal["constant", "last", "recent"]


@dataclass(frozen=True)
class Baseline:
    """The score of a simple predictor on the same rows, which any model should beat.

    Attributes:
        kind: The mean of the targets or the most frequent class ("constant"); the target of the row
            before ("last"); a batch model of recent rows ("recent").
        question: As in `Score`; so are error, accuracy and loss.
        error: Mean squared error.
        accuracy: Share of rows whose class is right.
        loss: The score by which learners are compared.
        online: How far the online learner's loss is above this one's, relative to it.
        batch: How far the batch model's loss is above this one's, relative to it.
        aim: For "recent", which rows it learned from, such as "window:200".
    """

    kind: BaselineKind
    question: Question
    error: Estimate
    accuracy: Estimate | None
    loss: Estimate
    online: Estimate
    batch: Estimate
    aim: str = ""


@dataclass(frozen=True)
class TriedChange:
    """A change of the online learner that was tried, and its effect.

    Attributes:
        change: Which option was changed.
        value: The rate or batch size tried; for the order, the number of random orders.
        effect: The change of the loss, relative to the online learner's: below 0 is better. For
            the order, the mean over random orders.
    """

    change: Change
    value: float
    effect: Estimate


@dataclass(frozen=True)
class Answer:
    """How the learners do on one set of rows that they have not learned.

    Attributes:
        question: "whole": rows from all over the stream (what does it still know?); "next": its
            last rows (what comes next?); "test": a test set; "progressive":
            every row, just before it is learned.
        rows: How many rows there are.
        scores: Of the batch model, the online and both corrected learners; NaN if one diverged, and
            for "corrected" in a progressive evaluation (it is right only at the end).
        baselines: Scores of simple predictors; the mean or the most frequent class comes first.
        excess: How far the online learner's loss is above the batch model's, relative to it.
        accuracy_gap: For classes, the batch model's accuracy minus the online learner's; None for
            regression, and for a metric that was chosen, which decides alone.
        gap_closed: For "corrected" and "iterative": (online - it) / (online - batch) in the loss.
            NaN unless the online learner is clearly behind the batch model.
        effect: For "corrected" and "iterative": the change of the loss, relative to the online
            learner's; below 0 is better.
        trials: Changes of the online learner that were tried.
        unseen: Classes of these rows that were never learned.
    """

    question: Question
    rows: int
    scores: tuple[Score, ...]
    baselines: tuple[Baseline, ...]
    excess: Estimate
    accuracy_gap: Estimate | None
    gap_closed: dict[str, Estimate]
    effect: dict[str, Estimate]
    trials: tuple[TriedChange, ...] = ()
    unseen: tuple[str, ...] = ()

    def score(self, learner: LearnerName) -> Score:
        """Returns one learner's score."""
        return next(score for score in self.scores if score.learner == learner)

    def baseline(self, kind: BaselineKind) -> Baseline | None:
        """Returns the baseline of a kind, if there is one."""
        return next((one for one in self.baselines if one.kind == kind), None)


@dataclass(frozen=True)
class Drift:
    """Whether recent rows teach more than all rows, measured along the stream.

    Attributes:
        window: Rows that the batch model of recent rows learned from.
        refits: At how many points of the stream both models were fitted again.
        rows: Rows on which they were compared: those after each point, up to the next.
        effect: The change of the loss if only recent rows are used, relative to a batch model of
            all rows so far: below 0 means that the stream drifts.
        onset: From which row on recent rows do better than all: its number in the user's file or
            array, as in `Stream.rows`.
    """

    window: int
    refits: int
    rows: int
    effect: Estimate
    onset: int


@dataclass(frozen=True)
class AlternativeModel:
    """Another batch model, tried where the batch model is worse than the simplest predictor.

    Attributes:
        kind: A linear model with an intercept, or the same kernel with a hundred times the ridge.
        gamma: Its ridge.
        question: Which rows it was asked about.
        effect: How far its loss is above that of the batch model, relative to it.
        constant: How far its loss is above that of the simplest predictor, relative to it.
    """

    kind: Literal["linear", "smoother"]
    gamma: float
    question: Question
    effect: Estimate
    constant: Estimate


ModelWay = Literal["as it came", "random order", "batch", "corrected"]


@dataclass(frozen=True)
class ModelScore:
    """How well the user's own model predicts, trained in one way.

    Attributes:
        way: In one pass over the stream as it came, in one pass in random orders, as a batch model,
            or in one pass on corrected targets.
        question: Which rows it was asked about, as in `Answer`.
        error: Mean squared error over rows and targets, in the user's units (squared); NaN if the
            model failed, or cannot be trained in this way.
        accuracy: As in `Score`.
        loss: As in `Score`.
        change: The change of the loss, relative to the model as it came and paired by row: below 0
            is better. For random orders, the mean over them.
        constant: How far the loss is above that of the simplest predictor, relative to it.
        recall: As in `Score`; for random orders, the mean over them.
        confusion: As in `Score`; for random orders, the sum over them.
    """

    way: ModelWay
    question: Question
    error: Estimate
    accuracy: Estimate | None
    loss: Estimate
    change: Estimate
    constant: Estimate
    recall: tuple[Estimate, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
