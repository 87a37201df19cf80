"""The JSON form of a diagnosis, as `--json`, diagnosis.json and `Diagnosis.to_json` write it.

docs/diagnosis.schema.json is made from it. `export.SCHEMA_VERSION` changes if a field goes, or
means something else; new fields may come at any time.
"""

import json
import math
import sys
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from retarget.diagnosis.answers import (
    BaselineKind,
    Change,
    Estimate,
    LearnerName,
    Metric,
    ModelWay,
    Question,
)
from retarget.diagnosis.findings import FindingKind, Standing
from retarget.diagnosis.result import FeatureKind, Mode, VerdictKind
from retarget.diagnosis.stream import TargetKind


class Part(BaseModel):
    """A part of the JSON."""

    model_config = ConfigDict(extra="allow")


class IntervalJson(Part):
    """A number and its 95% interval; null if it is not defined."""

    value: float | None
    low: float | None
    high: float | None

    @property
    def estimate(self) -> Estimate:
        """The same with NaN for null."""
        parts = (self.value, self.low, self.high)
        return Estimate(*(math.nan if part is None else part for part in parts))


class ScoreJson(Part):
    """How well one learner predicts rows that it has not learned from."""

    learner: LearnerName
    question: Question
    error: IntervalJson
    accuracy: IntervalJson | None
    loss: IntervalJson
    by_target: list[IntervalJson]


class BaselineJson(Part):
    """The score of a simple predictor on the same rows."""

    kind: BaselineKind
    question: Question
    error: IntervalJson
    accuracy: IntervalJson | None
    loss: IntervalJson
    online: IntervalJson
    batch: IntervalJson
    aim: str


class TrialJson(Part):
    """A change of the online learner that was tried."""

    change: Change
    value: float
    effect: IntervalJson


class AnswerJson(Part):
    """How the learners do on one set of rows."""

    question: Question
    rows: int
    scores: list[ScoreJson]
    baselines: list[BaselineJson]
    excess: IntervalJson
    accuracy_gap: IntervalJson | None
    gap_closed: dict[str, IntervalJson]
    effect: dict[str, IntervalJson]
    trials: list[TrialJson]
    unseen: list[str]


class KernelJson(Part):
    """The kernel; the width is a number, or null if it has none."""

    name: str
    width: float | None
    automatic: bool
    intercept: bool


class ChoiceJson(Part):
    """The value of a parameter, and how it was chosen."""

    value: float
    automatic: bool
    how: str
    tried: list[dict[str, float | None]]


class DriftJson(Part):
    """Whether recent rows teach more than all rows."""

    window: int
    refits: int
    rows: int
    effect: IntervalJson


class GroupsJson(Part):
    """How groups shifted each other: rows were moved, columns were learned."""

    names: list[str]
    counts: list[int]
    size: list[list[float | None]]
    pull: list[list[float | None]]
    own: list[float | None]


class ApproximationJson(Part):
    """What was lost by using features instead of the kernel."""

    features: int
    kind: FeatureKind
    exact_memory: int
    memory_limit: int
    sample: int
    kernel_error: float | None
    shift_error: float | None
    prediction_error: float | None
    true_kernel: IntervalJson | None


class ModelScoreJson(Part):
    """How well the user's model predicts, trained in one way."""

    way: ModelWay
    question: Question
    error: IntervalJson
    accuracy: IntervalJson | None
    loss: IntervalJson
    change: IntervalJson


class ModelJson(Part):
    """What running the user's own model showed."""

    name: str
    scores: list[ModelScoreJson]
    orders: dict[str, list[float | None]]
    groups: GroupsJson
    description: str
    agreement: float | None
    corrected_size: float | None
    closed: dict[str, IntervalJson]
    prequential: IntervalJson
    remembered: IntervalJson
    failures: list[str]


class FindingJson(Part):
    """Something that was found."""

    kind: FindingKind
    question: Question | None
    value: float | None
    against: float | None
    effect: IntervalJson
    standing: Standing | None
    subject: str
    other: str


class VerdictJson(Part):
    """The result in words."""

    kind: VerdictKind
    headline: str
    findings: list[str]
    recommendations: list[str]


class ShiftJson(Part):
    """How far targets moved, and how many rows changed class or sign."""

    mean_size: float | None
    largest_size: float | None
    rows_changed: int


class DiagnosisJson(Part):
    """A diagnosis, without the arrays of all rows, which are in the Parquet files."""

    schema_version: Literal[1]
    rows: int
    kind: TargetKind
    targets: list[str]
    features: list[str]
    group_column: str | None
    notes: list[str]
    answers: list[AnswerJson]
    metric: Metric
    mode: Mode
    kernel: KernelJson
    learner: dict[str, Any]
    block_size: int
    lr: ChoiceJson
    gamma: ChoiceJson
    aim: str
    hindsight: float | None
    along: list[dict[str, float | None]]
    drift: DriftJson | None
    groups: GroupsJson
    stability: dict[str, float | None]
    approximation: ApproximationJson | None
    iterative_ridge: ChoiceJson | None
    iterative_gamma: ChoiceJson | None
    failures: list[str]
    model: ModelJson | None
    standing: dict[str, Standing]
    prequential_error: float | None
    shift: ShiftJson
    most_distorted: list[dict[str, Any]]
    findings: list[FindingJson]
    verdict: VerdictJson


if __name__ == "__main__":
    sys.stdout.write(json.dumps(DiagnosisJson.model_json_schema(), indent=1) + "\n")
