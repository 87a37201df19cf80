"""What a diagnosis finds, as data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from retarget.diagnosis.stream import Stream
from retarget.learners import SGD
from retarget.storage import atomic_file

LearnerName = Literal["offline", "online", "corrected", "iterative"]
Evaluation = Literal["last", "random", "progressive", "test"]
Mode = Literal["exact", "features"]
Change = Literal["rate", "batch", "order"]
DIVERGED = 1000.0  # a learner whose error is so many times the mean's is useless
OUT_OF_PROPORTION = 100.0  # standard deviations from the mean beyond which a target is not usable


class Estimate(NamedTuple):
    """A number, and the range in which it lies with 95% confidence (bootstrap over test rows)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Score:
    """How well one learner predicts rows that it has not learned from.

    Attributes:
        learner: The offline learner; the online one on true targets; the online one on exactly and
            on iteratively corrected targets.
        error: Mean squared error over rows and targets, in the user's units (squared).
        accuracy: Share of rows whose class is right; None for regression.
        by_target: Mean squared error of each of several targets, in its own units (squared); empty
            for one target and for classes.
    """

    learner: LearnerName
    error: Estimate
    accuracy: Estimate | None
    by_target: tuple[Estimate, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """What another predictor reaches on the same rows: what any model should be better than.

    Attributes:
        name: The mean of the targets or the most frequent class, the last value, or a batch model
            of the recent rows.
        error: Mean squared error, as in `Score`.
        accuracy: Share of rows whose class is right; None for regression.
    """

    name: str
    error: Estimate
    accuracy: Estimate | None


@dataclass(frozen=True)
class Choice:
    """A parameter, how it was chosen, and what was tried.

    Attributes:
        value: What was used.
        automatic: Whether it was chosen here.
        how: The rule, in words.
        tried: The candidates: `value`, `score` (lower is better; null if it diverged).
    """

    value: float
    automatic: bool
    how: str
    tried: pl.DataFrame


@dataclass(frozen=True)
class Stability:
    """How near the online learner is to diverging.

    Attributes:
        largest_lr: The largest rate at which every step is stable.
        non_normality: Condition number of the online system: how much it can amplify an error
            that any single step would shrink; 1 means not at all. Of a longer stream, the first
            2,000 rows are used, which gives a lower bound.
    """

    largest_lr: float
    non_normality: float


FeatureKind = Literal["nystroem", "linear", "own"]
# What features are used instead of a kernel; all but the first are the kernel itself.
FEATURES: dict[FeatureKind, str] = {
    "nystroem": "Nyström features",
    "linear": "exact linear features",
    "own": "exact features of the kernel's own",
}


@dataclass(frozen=True)
class Approximation:
    """What was given up for a stream beyond the exact method's memory.

    Attributes:
        features: Number of features that are used instead of the kernel.
        kind: Which features those are, a key of `FEATURES`.
        exact_memory: Bytes that the exact method would need.
        memory_limit: Bytes that it may have.
        sample: Rows on which both were compared.
        kernel_error: Root mean square error of the kernel's entries, relative to their own.
        shift_error: Root mean square difference of the shifts, relative to the exact ones.
        prediction_error: The same of the online learner's predictions.
        reference: How far the error of an offline learner with the true kernel, on the sample
            alone, is above the offline learner's, relative to it; None if it was not measured.
    """

    features: int
    kind: FeatureKind
    exact_memory: int
    memory_limit: int
    sample: int
    kernel_error: float
    shift_error: float
    prediction_error: float
    reference: Estimate | None = None

    @property
    def words(self) -> str:
        """How many features of which kind: 512 Nyström features."""
        return f"{self.features:,} {FEATURES[self.kind]}"

    @property
    def exact(self) -> bool:
        """Whether nothing was given up but the kernel matrix: the features are the kernel."""
        return self.kind != "nystroem"


@dataclass(frozen=True)
class GroupShift:
    """How much of the shift of one group's targets came from learning another group later.

    Attributes:
        names: The G groups, in the order in which they first appear. More than 30: the largest
            29, and the others as one, last. None given: ten consecutive parts of the stream.
        counts: (G,) rows of each.
        size: (G, G) how far learning group g (columns) moved the targets of a row of group h
            (rows): mean length of the movement, in the units of `Diagnosis.stream.Y`.
        pull: (G, G) its direction: the mean movement along the row's own target, negative if the
            target was weakened. For classes, that of the own class's output; for numbers, times the
            target's sign.
        own: (G,) mean length of the movement that is not due to later steps: that of the row's own
            step and mini-batch, and of earlier steps through momentum and decay.
    """

    names: tuple[str, ...]
    counts: np.ndarray
    size: np.ndarray
    pull: np.ndarray
    own: np.ndarray


@dataclass(frozen=True)
class Trial:
    """A change of the online learner that was tried, and its effect.

    Attributes:
        change: What was changed.
        value: The rate or batch size tried; for the order, the number of random orders.
        effect: The change of the error, relative to the online learner's: below 0 is better. For
            the order, the mean over all orders, in a range that holds their spread as well.
    """

    change: Change
    value: float
    effect: Estimate


ModelWay = Literal["as it came", "random order", "batch", "corrected"]


@dataclass(frozen=True)
class ModelScore:
    """How well the user's own model predicts, trained in one way.

    Attributes:
        way: In one pass over the stream as it came, in one pass in random orders, as a batch model,
            or in one pass on corrected targets.
        error: Mean squared error over rows and targets, in the user's units (squared); NaN if the
            model failed, or cannot be trained in this way.
        accuracy: Share of rows whose class is right; None for regression.
    """

    way: ModelWay
    error: Estimate
    accuracy: Estimate | None


@dataclass(frozen=True)
class ModelDiagnosis:
    """What the user's own model learned from the stream, from real runs of it: see docs/models.md.

    Attributes:
        name: What the model is called.
        scores: One for each way of training it, on the rows that all learners are compared on. A
            log of predictions has only "as it came", on each row before it was learned.
        order: Change of the error by a random order, relative to the stream as it came (below 0:
            the random order is better). Its interval covers the luck of the order and of the rows.
        orders: The error of each random order.
        before: (n, c) predictions for each row just before it was learned.
        after: (n, c) right after. For a log of predictions, the same as `before`.
        end: (n, c) at the end of the stream.
        groups: Movement of a group's predictions (end - after) while others were learned: at up to
            40 moments the model predicts all rows learned so far, and what moved between two of
            them belongs to the groups learned in between, in proportion to their rows. `own` is the
            mean distance of a row's prediction right after learning it from its target.
        description: Which kernel machine describes the model, or why none does, in words.
        theory: (n, c) the movement (end - after) that the description predicts; None without one.
        agreement: 1 - |shift - theory| / |theory| in root mean squares: 1 is perfect, 0 or less is
            none. None without theory.
        corrected: (n, c) the corrected targets that the model was trained on; None without.
        corrected_size: Largest distance of these targets from the mean of the true ones, in
            standard deviations of the true ones; NaN without.
        closed: The share of (as it came - batch), in error, that training on them took away, for
            real. NaN unless the model is clearly worse as it came than as a batch model.
        prequential: Error on the stream's rows just before each was learned, in the user's units.
        remembered: Error at the end on the same rows, which it has learned by then.
        failures: What failed, was left out or was done on fewer rows, a sentence each.

    All of these arrays are in the units of `Diagnosis.stream.Y`.
    """

    name: str
    scores: tuple[ModelScore, ...]
    order: Estimate
    orders: tuple[float, ...]
    before: np.ndarray
    after: np.ndarray
    end: np.ndarray
    groups: GroupShift
    description: str
    theory: np.ndarray | None
    agreement: float | None
    corrected: np.ndarray | None
    corrected_size: float
    closed: Estimate
    prequential: Estimate
    remembered: Estimate
    failures: tuple[str, ...] = ()

    @property
    def shift(self) -> np.ndarray:
        """(n, c) how far the prediction for each row moved after it was learned."""
        return np.asarray(self.end - self.after)

    @property
    def helped(self) -> bool:
        """Whether corrected targets, of a usable size, clearly made the real model better."""
        return self.corrected_size <= OUT_OF_PROPORTION and self.closed.low > 0

    def score(self, way: ModelWay) -> ModelScore:
        """The score of one way of training."""
        return next(score for score in self.scores if score.way == way)


@dataclass(frozen=True)
class Verdict:
    """The result of a diagnosis in plain words.

    Attributes:
        headline: One sentence.
        findings: A few sentences, each with its numbers.
        recommendations: What to change, the most useful first.
    """

    headline: str
    findings: tuple[str, ...]
    recommendations: tuple[str, ...]


@dataclass(frozen=True)
class Diagnosis:
    """What an online learner has really learned from a stream.

    Attributes:
        stream: The rows that were learned from, in order: n of them, with c targets.
        test_rows: Number of rows that were scored: those held out or, in a progressive evaluation,
            all rows of the stream, each before it was learned.
        evaluation: Which rows those are.
        mode: Exact, or through features instead of the kernel.
        kernel: Description of the kernel.
        learner: The online learner.
        block_size: Rows corrected together by the iterative correction.
        lr: How its rate was chosen.
        gamma: How the offline learner's ridge was chosen.
        scores: Offline, online, corrected, iterative; NaN for one that diverged, and for the
            exactly corrected one in a progressive evaluation (it is right only at the end).
        baselines: What simple predictors reach on the same rows, and batch models of recent rows.
        reference: The batch model that the online learner is compared with: the offline learner
            ("all"), or the one of a recent window or with a discount, which is among the baselines.
        excess: How far the online learner's error is above the reference's, relative to it.
        gap_closed: For "corrected" and "iterative": (online - it) / (online - reference) in error.
            NaN if the online learner's error is not clearly above the reference's, or so far
            above that it has diverged.
        accuracy_gap: For classes, the offline learner's share of rows that are right less the
            online one's; None for numbers.
        hindsight: Mean squared error of the finished online learner on the rows that it has
            learned, in the user's units (squared); NaN if it diverged. Far above the prequential
            error, it tells that the learner forgets.
        effective: (n, c) effective targets: what the online learner has really learned.
        corrected: (n, c) exactly corrected targets.
        iterative: (n, c) causally corrected targets.
        prequential: (n, c) the online learner's error on each row just before learning it.
        density: (n,) mean similarity of each row to the others (a sample of them, if many).
        changed: (n,) whether the shift changed the class; for numbers, the sign of any target, that
            is the side of its mean.
        groups: How groups shifted each other.
        stability: How near the online learner is to diverging.
        approximation: What was given up, in mode "features".
        ridge: How the iterative correction's stabiliser was chosen; None if there is none.
        aim: How the ridge of the offline learner that it follows was chosen; None if there is none.
        trials: Changes of the online learner that were tried.
        failures: What could not be computed, or only with few digits, a sentence each.
        unseen: Classes of the held-out rows that were never learned.
        model: The diagnosis of the user's own model, if there is one.

    All of these arrays are in the units of `stream.Y`; `stream.in_units` gives the user's own.
    """

    stream: Stream
    test_rows: int
    evaluation: Evaluation
    mode: Mode
    kernel: str
    learner: SGD
    block_size: int
    lr: Choice
    gamma: Choice
    scores: tuple[Score, ...]
    baselines: tuple[Baseline, ...]
    reference: str
    excess: Estimate
    gap_closed: dict[str, Estimate]
    accuracy_gap: Estimate | None
    effective: np.ndarray
    corrected: np.ndarray
    iterative: np.ndarray
    prequential: np.ndarray
    density: np.ndarray
    hindsight: float
    changed: np.ndarray
    groups: GroupShift
    stability: Stability
    approximation: Approximation | None
    ridge: Choice | None = None
    aim: Choice | None = None
    trials: tuple[Trial, ...] = ()
    failures: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    model: ModelDiagnosis | None = None

    @property
    def prequential_error(self) -> float:
        """Mean square of the errors just before each row was learned, in the user's units."""
        return float(np.square(self.prequential * self.stream.target_scales).mean())

    @property
    def diverged(self) -> bool:
        """Whether the online learner is useless: its error overflows, or is far too large."""
        online = self.score("online").error.value
        return not online <= DIVERGED * self.baselines[0].error.value

    @property
    def target_size(self) -> dict[str, float]:
        """Largest distance of "corrected" and "iterative" targets, in standard deviations."""
        both = {"corrected": self.corrected, "iterative": self.iterative}
        return {name: self.stream.farthest(targets) for name, targets in both.items()}

    @property
    def shift(self) -> np.ndarray:
        """(n, c) how far each target was moved."""
        return np.asarray(self.effective - self.stream.Y)

    @property
    def shift_size(self) -> np.ndarray:
        """(n,) length of each row's shift."""
        return np.asarray(np.linalg.norm(self.shift, axis=1))

    def score(self, learner: LearnerName) -> Score:
        """One learner's score."""
        return next(score for score in self.scores if score.learner == learner)

    @property
    def verdict(self) -> Verdict:
        """The result in plain words: headline, findings and recommendations."""
        from retarget.diagnosis.report.verdict import verdict

        return verdict(self)

    @property
    def summary(self) -> str:
        """Verdict and scores, as text."""
        from retarget.diagnosis.report.export import summary_text

        return summary_text(self)

    def table(self) -> pl.DataFrame:
        """A row for each row of the stream: its targets, what was really learned, the shift."""
        from retarget.diagnosis.report.export import shift_table

        return shift_table(self)

    def to_html(self, path: str | Path, command: str | None = None) -> None:
        """Writes the report, one file that needs no other.

        Args:
            path: The file.
            command: What made it, to be shown at the end.
        """
        # with Plotly: only when it is wanted
        from retarget.diagnosis.report.page import write_report

        write_report(self, path, command=command)

    def to_parquet(self, path: str | Path) -> None:
        """Writes `table()`."""
        # opened here: Polars takes no path that is not UTF-8
        with atomic_file(Path(path)) as temporary, temporary.open("wb") as file:
            self.table().write_parquet(file)
