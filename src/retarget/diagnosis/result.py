"""The results of a diagnosis, as data classes."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

import numpy as np
import polars as pl

from retarget.diagnosis.answers import (
    DIVERGED,
    TOO_LARGE,
    AlternativeModel,
    Answer,
    Drift,
    Estimate,
    Forgetting,
    LearnerName,
    ModelScore,
    ModelWay,
    Question,
    Score,
)
from retarget.diagnosis.metrics import Metric
from retarget.diagnosis.stream import Stream
from retarget.learners import SGD
from retarget.storage import atomic_file

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from retarget.diagnosis.findings.kind import Finding

DiagnosisMode = Literal["exact", "features"]


@dataclass(frozen=True)
class ChosenValue:
    """The value of a parameter, how it was chosen, and which values were tried.

    Attributes:
        value: The value that was used.
        automatic: Whether the diagnosis chose it, rather than the user.
        how: The rule, in words.
        tried: The candidates: `value`, `score` (lower is better; null if it diverged).
    """

    value: float
    automatic: bool
    how: str
    tried: pl.DataFrame


@dataclass(frozen=True)
class Stability:
    """How close the online learner is to diverging.

    Attributes:
        largest_lr: The largest rate at which every step is stable.
        non_normality: Condition number of the online system: how much it can amplify an error
            that every single step would shrink; 1 means not at all. Only the first 2,000 rows of
            a longer stream are used, which gives a lower bound.
    """

    largest_lr: float
    non_normality: float


FeatureKind = Literal["nystroem", "own"]
# Features that can replace a kernel; all but the first reproduce it exactly.
FEATURES: dict[FeatureKind, str] = {
    "nystroem": "Nyström features",
    "own": "features of the kernel's own, which are exact",
}


@dataclass(frozen=True)
class Approximation:
    """What was lost by using features, for a stream that needs too much memory otherwise.

    Attributes:
        features: Number of features that are used instead of the kernel.
        kind: Which features, a key of `FEATURES`.
        exact_memory: Bytes that the exact method would need.
        memory_limit: Bytes that it may use.
        sample: Number of rows on which the two methods were compared.
        kernel_error: Root mean square error of the kernel's entries, relative to their own.
        shift_error: Root mean square difference of the shifts, relative to the exact ones.
        prediction_error: The same for the online learner's predictions.
        true_kernel: How far the loss of a batch model with the true kernel, trained on the sample
            alone, is above the batch model's, relative to it; None if not measured.
    """

    features: int
    kind: FeatureKind
    exact_memory: int
    memory_limit: int
    sample: int
    kernel_error: float
    shift_error: float
    prediction_error: float
    true_kernel: Estimate | None = None

    @property
    def words(self) -> str:
        """Number and kind of the features, such as "512 Nyström features"."""
        return f"{self.features:,} {FEATURES[self.kind]}"

    @property
    def exact(self) -> bool:
        """Whether the features reproduce the kernel exactly."""
        return self.kind != "nystroem"


@dataclass(frozen=True)
class GroupShift:
    """How much of the shift of one group's targets came from learning another group later.

    Attributes:
        names: The G groups, in order of first appearance. If there are more than 30: the largest
            29, then all others as one. Without groups: ten consecutive parts of the stream.
        counts: (G,) number of rows of each.
        size: (G, G) how far learning group g (columns) moved the targets of a row of group h
            (rows): mean length of the movement, in the units of `Diagnosis.stream.Y`.
        pull: (G, G) its direction: the mean movement along the row's own target, negative if the
            target was weakened. For classes, the movement of the row's own class's output; for
            numbers, the movement times the target's sign.
        own: (G,) mean length of the movement that is not due to later steps, but to the row's own
            step and mini-batch, and to earlier steps through momentum and decay.
    """

    names: tuple[str, ...]
    counts: np.ndarray
    size: np.ndarray
    pull: np.ndarray
    own: np.ndarray

    def largest_moves(self, most: int = 3) -> list[tuple[str, str, float, float]]:
        """Returns the groups that moved another farthest: learned, moved, size and pull."""
        size = np.where(np.isfinite(self.size), self.size, 0.0)
        np.fill_diagonal(size, 0.0)
        farthest = np.argsort(-size, axis=None, kind="stable")[:most]
        pairs = [divmod(int(entry), len(size)) for entry in farthest]
        return [
            (self.names[g], self.names[h], float(size[h, g]), float(self.pull[h, g]))
            for h, g in pairs
            if size[h, g] > 0
        ]


@dataclass(frozen=True)
class ModelDiagnosis:
    """What the user's own model learned from the stream, found by running it: see docs/models.md.

    Attributes:
        name: The model's name.
        scores: One for each way of training it and each question. A log of predictions has only
            "as it came", on each row before it was learned.
        orders: The loss of each random order, by question.
        before: (n, c) predictions for each row just before it was learned.
        after: (n, c) predictions right after. For a log of predictions, the same as `before`.
        end: (n, c) predictions at the end of the stream.
        groups: Movement of a group's predictions (end - after) while others were learned: at up to
            40 moments the model predicts all rows learned so far, and the movement between two of
            them is attributed to the groups learned in between, in proportion to their rows.
            `own` is the mean distance of a row's prediction, right after learning it, from its
            target.
        description: Which kernel machine describes the model, or why none does, in words.
        theory: (n, c) the movement (end - after) that this machine predicts; None if none does.
        agreement: 1 - |shift - theory| / |theory| in root mean squares: 1 is perfect, 0 or less
            means that the two do not agree. None without `theory`.
        corrected: (n, c) the corrected targets that the model was trained on; None if there are
            none.
        corrected_size: Largest distance of these targets from the mean of the true ones, in
            standard deviations of the true ones; NaN if there are none.
        closed: By question: the measured share of the gap in loss, (as it came - batch), that
            training on them closed. NaN unless the model is clearly worse as it came than as a
            batch model, and where it is clearly better on them than its batch fit, which then
            stopped too early to be a limit. `ModelScore.change` does not need the batch fit.
        prequential: Error on the stream's rows just before each was learned, in the user's units.
        remembered: Error on the same rows at the end, after learning all of them.
        forgetting: How much more the model errs on held-out rows of the whole stream than it did
            when their time came; None if none are held out, or the model was not run.
        order_cost: As in `Diagnosis`, for the model at the end of the stream; None likewise.
        one_pass_cost: As in `Diagnosis`, for the model at the end of the stream; None likewise.
        failures: What failed, was skipped or was done on fewer rows, one sentence each.

    All of these arrays are in the units of `Diagnosis.stream.Y`.
    """

    name: str
    scores: tuple[ModelScore, ...]
    orders: dict[str, tuple[float, ...]]
    before: np.ndarray
    after: np.ndarray
    end: np.ndarray
    groups: GroupShift
    description: str
    theory: np.ndarray | None
    agreement: float | None
    corrected: np.ndarray | None
    corrected_size: float
    closed: dict[str, Estimate]
    prequential: Estimate
    remembered: Estimate
    forgetting: Forgetting | None = None
    order_cost: Estimate | None = None
    one_pass_cost: Estimate | None = None
    failures: tuple[str, ...] = ()

    @property
    def shift(self) -> np.ndarray:
        """(n, c) how far the prediction for each row moved after it was learned."""
        return np.asarray(self.end - self.after)

    @property
    def questions(self) -> tuple[Question, ...]:
        """The questions that the model was asked, in order."""
        return tuple(dict.fromkeys(score.question for score in self.scores))

    @property
    def logged(self) -> bool:
        """Whether there is only a log of predictions, and no model was run."""
        return all(score.way == "as it came" for score in self.scores)

    @property
    def helped(self) -> bool:
        """Whether training on corrected targets of a usable size clearly helped on some rows."""
        clear = any(one.way == "corrected" and one.change.high < 0 for one in self.scores)
        return self.corrected_size <= TOO_LARGE and clear

    def score(self, way: ModelWay, question: Question) -> ModelScore | None:
        """Returns the score of one way of training on one set of rows, if it was run."""
        wanted = (way, question)
        return next((one for one in self.scores if (one.way, one.question) == wanted), None)


@dataclass(frozen=True)
class KernelUsed:
    """The kernel of a diagnosis.

    Attributes:
        name: The name of the kernel, such as "rbf", or how it describes itself.
        width: Its width, if it has one and was chosen by name.
        automatic: Whether the width was chosen: the median distance between rows.
    """

    name: str
    width: float | None = None
    automatic: bool = False


VerdictKind = Literal[
    "nothing learned", "follows the drift", "forgotten", "one pass", "behind",
    "behind on the next rows", "as good", "not clear", "diverged", "undefined",
]  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The result of a diagnosis in plain words.

    Attributes:
        kind: Which of a few verdicts it is, see docs/diagnosis.md. With a model that was run, the
            verdict is about the model.
        headline: One or two sentences.
        findings: A few sentences with numbers.
        recommendations: What to change, the most useful first.
    """

    kind: VerdictKind
    headline: str
    findings: tuple[str, ...]
    recommendations: tuple[str, ...]


class ShiftSummary(NamedTuple):
    """How far targets were moved: mean and largest length, and how many rows changed by that."""

    mean_size: float
    largest_size: float
    rows_changed: int


@dataclass(frozen=True)
class AllRows:
    """The results for every row of a long stream, of which a `Diagnosis` holds some.

    Attributes:
        described: Returns a range of the stream, with groups and times.
        effective: (n, c), as in `Diagnosis`; these four are mapped files.
        corrected: (n, c), likewise.
        iterative: (n, c), likewise.
        prequential: (n, c), likewise.
        density: (n,), likewise.
        target_size: As `Diagnosis.target_size`, of all rows.
        prequential_error: As `Diagnosis.prequential_error`, of all rows.
        shift: What `Diagnosis.shift_summary` says of all rows.
    """

    described: Callable[[slice], Stream]
    effective: np.ndarray
    corrected: np.ndarray
    iterative: np.ndarray
    prequential: np.ndarray
    density: np.ndarray
    target_size: dict[str, float]
    prequential_error: float
    shift: "ShiftSummary"


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What an online learner has really learned from a stream: the result of `retarget.diagnose`.

    Print `summary`, write the report with `to_html`, or use the arrays below.

    Attributes:
        stream: The rows that were learned from, in order: n of them, with c targets.
        answers: How the learners do on rows that they have not learned, one for each question.
        metric: What learners are compared by. Its name "auto" means the squared error, and for
            classes also the accuracy.
        mode: Whether the exact kernel was used, or features instead.
        kernel: The kernel.
        learner: The online learner.
        block_size: Rows corrected together by the iterative correction.
        lr: The learner's rate, and how it was chosen.
        gamma: The batch model's ridge, and how it was chosen.
        aim: Which rows the batch model learns from that the online learner is compared with: "all",
            or a recent window or a discount, whose scores are among the baselines.
        hindsight: Mean squared error of the finished online learner on the rows that it has
            learned, in the user's units (squared); NaN if it diverged. If it is far above the
            prequential error, the learner forgets.
        effective: (n, c) effective targets: what the online learner has really learned.
        corrected: (n, c) exactly corrected targets.
        iterative: (n, c) causally corrected targets.
        prequential: (n, c) the online learner's error on each row just before learning it.
        density: (n,) mean similarity of each row to the others (to a sample, if there are many).
        changed: (n,) whether the shift changed the class or, for regression, moved any target to
            the other side of its mean.
        along: The squared error along the stream, by chunk of consecutive rows: `first`, `last`
            (positions from 1), `online` and `batch` just before the rows were learned, and
            `online_now`, the finished online learner.
        forgetting: How much more the online learner errs on rows of the whole stream than it did
            when their time came; None if no such rows are held out.
        order_cost: How far its loss on these rows is above the mean over random orders of the
            stream, relative to that; None likewise.
        one_pass_cost: How far that mean is above the loss of the batch model, relative to it; None
            likewise.
        drift: Whether recent rows teach more than all rows; None if there are too few to tell.
        groups: How groups shifted each other.
        stability: How close the online learner is to diverging.
        approximation: What was lost in mode "features"; None in mode "exact".
        iterative_ridge: The ridge of the iterative correction's blocks; None if there is none.
        iterative_gamma: The ridge of the batch model that the iterative correction follows; None if
            there is none.
        exactness: How far the predictions of the exactly corrected learner at the end are from the
            batch model's, relative to the size of the latter: 0 but for rounding. NaN if unknown.
        alternatives: Other batch models that were tried, where the batch model is clearly worse
            than the simplest predictor.
        failures: What could not be computed, or only imprecisely, one sentence each.
        model: The diagnosis of the user's own model, if there is one.
        all_rows: The results for every row, if the stream is so long that `stream` and the arrays
            hold evenly spaced rows of it; None if they hold all.

    All of these arrays are in the units of `stream.Y`; `stream.in_units` gives the user's own.
    """

    stream: Stream
    answers: tuple[Answer, ...]
    metric: Metric
    mode: DiagnosisMode
    kernel: KernelUsed
    learner: SGD
    block_size: int
    lr: ChosenValue
    gamma: ChosenValue
    aim: str
    effective: np.ndarray
    corrected: np.ndarray
    iterative: np.ndarray
    prequential: np.ndarray
    density: np.ndarray
    hindsight: float
    changed: np.ndarray
    forgetting: Forgetting | None
    order_cost: Estimate | None
    one_pass_cost: Estimate | None
    along: pl.DataFrame
    drift: Drift | None
    groups: GroupShift
    stability: Stability
    approximation: Approximation | None
    iterative_ridge: ChosenValue | None = None
    iterative_gamma: ChosenValue | None = None
    exactness: float = math.nan
    alternatives: tuple[AlternativeModel, ...] = ()
    failures: tuple[str, ...] = ()
    model: ModelDiagnosis | None = None
    all_rows: AllRows | None = None

    @property
    def prequential_error(self) -> float:
        """Mean squared error on each row just before it was learned, in the user's units."""
        if self.all_rows is not None:
            return self.all_rows.prequential_error
        return float(self.stream.squared(self.prequential).mean())

    @property
    def diverged(self) -> bool:
        """Whether the online learner is useless: its error overflows, or is far too large."""
        bound = DIVERGED * self.stream.variance
        errors = (answer.score("online").error.value for answer in self.answers)
        return any(not error <= bound for error in errors)

    @property
    def target_size(self) -> dict[str, float]:
        """Largest distance of each kind of corrected target from the mean, in deviations."""
        if self.all_rows is not None:
            return self.all_rows.target_size
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

    @property
    def shift_summary(self) -> ShiftSummary:
        """How far the targets of all rows were moved."""
        if self.all_rows is not None:
            return self.all_rows.shift
        sizes = self.shift_size
        return ShiftSummary(float(sizes.mean()), float(sizes.max()), int(self.changed.sum()))

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores of all learners on all questions."""
        return tuple(score for answer in self.answers for score in answer.scores)

    def answer(self, question: Question) -> Answer | None:
        """Returns the answer to a question, if it was asked."""
        return next((one for one in self.answers if one.question == question), None)

    def score(self, learner: LearnerName, question: Question | None = None) -> Score:
        """Returns one learner's score; without a question, on the first set of rows.

        That is the whole stream, unless another evaluation was chosen.
        """
        wanted = self.answers[0].question if question is None else question
        return next(one for one in self.scores if (one.learner, one.question) == (learner, wanted))

    @property
    def findings(self) -> "tuple[Finding, ...]":
        """What was found, as typed values; `verdict` has the same in words."""
        from retarget.diagnosis.findings import findings

        return findings(self)

    @property
    def verdict(self) -> Verdict:
        """The result in plain words: headline, findings and recommendations."""
        from retarget.diagnosis.report.verdict import verdict

        return verdict(self)

    @property
    def summary(self) -> str:
        """The first screen of the command: headline, advice, scores and the forgetting curve."""
        from retarget.diagnosis.report.export import summary_text

        return summary_text(self)

    def __repr__(self) -> str:
        """A few lines, with the headline."""
        from retarget.diagnosis.report.export import short_text

        return short_text(self)

    def numbers(self) -> dict[str, float]:
        """Returns the main numbers under flat names, for a log of experiments."""
        from retarget.diagnosis.report.export import numbers

        return numbers(self)

    def table(self) -> pl.DataFrame:
        """Returns each row's true targets, what was really learned, and the shift."""
        from retarget.diagnosis.report.export import shift_table

        return shift_table(self)

    @overload
    def plot(self) -> "dict[str, go.Figure]": ...

    @overload
    def plot(self, name: str) -> "go.Figure": ...

    def plot(self, name: str | None = None) -> "dict[str, go.Figure] | go.Figure":
        """Returns the charts of the report as Plotly figures, for a notebook.

        Args:
            name: The chart: "forgetting", "along" (the error along the stream), "scores",
                "confusion" (which class was taken for which), "shift", "groups", "targets" or
                "rate". Without it, the result is a dict of all charts that are drawn, by name.

        Raises:
            InvalidInputError: There is no such chart, or its numbers are not defined; the message
                says why.
        """
        from retarget.diagnosis.report.charts.catalog import all_figures, one_figure

        return all_figures(self) if name is None else one_figure(self, name)

    def _repr_html_(self) -> str:
        from retarget.diagnosis.report.page import first_screen

        return first_screen(self)

    def to_html(self, path: str | Path, command: str | None = None) -> None:
        """Writes the report as one self-contained HTML file.

        Args:
            path: The file to write.
            command: The command that made it, which the report shows at the end.
        """
        # imports Plotly, so only when needed
        from retarget.diagnosis.report.page import report_html

        with atomic_file(Path(path)) as temporary:
            temporary.write_text(report_html(self, command=command), "utf-8", newline="\n")

    def to_parquet(self, path: str | Path) -> None:
        """Writes `table()` to a Parquet file."""
        # opened here: Polars does not accept a path that is not UTF-8
        with atomic_file(Path(path)) as temporary, temporary.open("wb") as file:
            self.table().write_parquet(file)

    def to_json(self, path: str | Path) -> None:
        """Writes everything but the arrays of all rows as JSON (docs/diagnosis.schema.json)."""
        from retarget.diagnosis.report.export import as_json

        with atomic_file(Path(path)) as temporary:
            text = json.dumps(as_json(self), allow_nan=False, indent=1)
            temporary.write_text(f"{text}\n", encoding="utf-8")
