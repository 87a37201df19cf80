"""The facts that a verdict follows from, and which verdict that is.

Being behind a batch model is not the same as having forgotten. So a verdict follows from measured
facts, each judged by its own interval: was anything learned at all; was something forgotten; where
does the online learner stand, compared with a batch model, on rows from the whole stream and on the
next ones; what do the order and the single pass cost; does the stream drift.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from retarget.diagnosis.answers import (
    DIVERGED,
    UNKNOWN,
    Answer,
    Drift,
    Estimate,
    Forgetting,
    Question,
)
from retarget.diagnosis.measure.holdout import ENOUGH
from retarget.diagnosis.result import Diagnosis, ModelDiagnosis, VerdictKind

TENTH = 0.1  # level: within so much of the batch model's loss
POINTS = 0.02  # of accuracy
WORTHWHILE = 0.05  # smaller relative improvements are not mentioned
LEARNED = 0.01  # to be better than a constant by less is not called learning
FORGOTTEN = 0.05  # a smaller increase of the loss is not called forgetting
NOT_FORGOTTEN = 0.1  # nothing was forgotten if the interval lies below this

Standing = Literal["behind", "ahead", "level", "not clear"]
Known = Literal["yes", "no", "not clear"]


def judged(gap: Estimate, tolerance: float = TENTH) -> Standing:
    """Says what an interval tells of a gap: above 0 is behind.

    Examples:
        >>> [judged(Estimate(0.0, low, high)) for low, high in ((-0.1, 0.1), (-0.1, 0.11))]
        ['level', 'not clear']
        >>> [judged(Estimate(0.0, low, high)) for low, high in ((0.01, 0.2), (-0.9, -0.01))]
        ['behind', 'ahead']
    """
    if math.isnan(gap.value):
        return "not clear"
    if -tolerance <= gap.low and gap.high <= tolerance:
        return "level"
    if gap.low > 0:
        return "behind"
    return "ahead" if gap.high < 0 else "not clear"


def clear_gain(effect: Estimate, least: float = WORTHWHILE) -> bool:
    """Whether a relative change of the loss is an improvement that is not due to chance."""
    return effect.value <= -least and effect.high < 0


def clear_cost(cost: Estimate | None) -> bool:
    """Whether a relative cost is large enough to be named, and not due to chance."""
    return cost is not None and cost.value > WORTHWHILE and cost.low > 0


def has_forgotten(forgetting: Forgetting | None) -> Known | None:
    """Says whether something was forgotten; None if that was not measured."""
    if forgetting is None:
        return None
    if forgetting.low > 0 and forgetting.value > FORGOTTEN:
        return "yes"
    return "no" if forgetting.high < NOT_FORGOTTEN else "not clear"


@dataclass(frozen=True)
class Comparison:
    """How a learner does on one set of rows, compared with a batch model and with a constant.

    Attributes:
        excess: How far its loss is above that of the batch model, relative to it.
        accuracy_gap: For classes, the batch model's accuracy minus its own.
        constant: How far its loss is above that of the simplest predictor, relative to it.
        batch_constant: How far the batch model's loss is above it.
        enough: Whether there are enough rows to judge by, of classes that were learned.
    """

    excess: Estimate
    accuracy_gap: Estimate | None
    constant: Estimate
    batch_constant: Estimate
    enough: bool

    @property
    def bad_batch_model(self) -> bool:
        """Whether the batch model is clearly worse than the mean, or the most frequent class."""
        return self.enough and self.batch_constant.low > 0

    @property
    def beats_constant(self) -> bool:
        """Whether one of the two models is clearly better than the simplest predictor."""
        return clear_gain(self.constant, LEARNED) or clear_gain(self.batch_constant, LEARNED)

    @property
    def standing(self) -> Standing:
        """Where the learner stands, compared with the batch model.

        Nothing is clear from few rows. Where the batch model is worse than a constant, being behind
        or ahead of it means little, unless the learner is better than both. The loss decides; the
        accuracy only where the loss cannot tell.
        """
        if not self.enough:
            return "not clear"
        by_loss = judged(self.excess)
        if self.bad_batch_model:
            return "ahead" if by_loss == "ahead" and self.constant.high < 0 else "not clear"
        if by_loss == "not clear" and self.accuracy_gap is not None:
            by_class = judged(self.accuracy_gap, POINTS)
            return by_class if by_class in ("behind", "ahead") else "not clear"
        return by_loss


def can_be_known(
    forgetting: Forgetting | None, whole: Comparison | None, coming: Comparison | None
) -> bool:
    """Whether old and new rows can be known together: a batch model of both serves on both.

    It does not if it is clearly worse than a constant on the next rows, because rows like the old
    ones now mean something else. On rows from the whole stream it has to be better than a constant;
    there by how much decides, not how clearly: this only chooses between the names of two facts
    that are clear by themselves, that the past was forgotten and that the stream drifts.
    """
    if coming is not None and coming.bad_batch_model:
        return False
    if forgetting is not None and not math.isnan(forgetting.knowable.value):
        return forgetting.knowable.value <= -WORTHWHILE
    return whole is not None and whole.batch_constant.value <= -WORTHWHILE


@dataclass(frozen=True)
class Evidence:
    """What was measured about one learner: the online learner, or the user's own model.

    Attributes:
        forgetting: What it forgot.
        order_cost: What the order of the rows costs.
        one_pass_cost: What a single pass costs.
        asked: How it does on each set of rows.
        drift: Whether recent rows teach more than all rows.
        diverged: Whether it is useless.
        undefined: Whether there is nothing to compare it with.
    """

    forgetting: Forgetting | None
    order_cost: Estimate | None
    one_pass_cost: Estimate | None
    asked: dict[Question, Comparison]
    drift: Drift | None
    diverged: bool = False
    undefined: bool = False


@dataclass(frozen=True)
class Facts:
    """What the evidence says, as far as its intervals can tell.

    Attributes:
        learned: Whether anything was learned: on some rows the learner (now, or when their time
            came) or a batch model is clearly better than the simplest predictor.
        forgot: Whether something was forgotten; None if that was not measured.
        whole: Where it stands on rows from the whole stream; None if these were not asked about.
        coming: The same for the next rows.
        other: The same for a test set, or for each row before it was learned.
        one_pass: Whether a single pass clearly costs something.
        follows: Whether the stream drifts, and it is ahead of the batch model and of the simplest
            predictor on the next rows.
        together: Whether old and new rows can be known together: a batch model of all rows is
            better than the simplest predictor on rows from the whole stream, and not only a little,
            and not clearly worse than it on the next rows.
        bad_batch: Whether the batch model is clearly worse than the simplest predictor somewhere.
    """

    learned: bool
    forgot: Known | None
    whole: Standing | None
    coming: Standing | None
    other: Standing | None
    one_pass: bool
    follows: bool
    together: bool
    bad_batch: bool


def facts(evidence: Evidence) -> Facts:
    """Judges each fact by its own interval."""
    asked = evidence.asked
    stands = {question: comparison.standing for question, comparison in asked.items()}
    coming = asked.get("next")
    drifts = evidence.drift is not None and clear_gain(evidence.drift.effect)
    follows = (
        drifts and coming is not None and coming.standing == "ahead" and coming.constant.high < 0
    )
    forgetting = evidence.forgetting
    whole = asked.get("whole")
    judged_by = [one for one in asked.values() if one.enough]
    knew = forgetting is not None and clear_gain(forgetting.known, LEARNED)
    return Facts(
        learned=not judged_by or knew or any(one.beats_constant for one in judged_by),
        forgot=has_forgotten(forgetting),
        whole=stands.get("whole"),
        coming=stands.get("next"),
        other=stands.get("test", stands.get("progressive")),
        one_pass=clear_cost(evidence.one_pass_cost),
        follows=follows,
        together=can_be_known(forgetting, whole, coming),
        bad_batch=any(one.bad_batch_model for one in asked.values()),
    )


def verdict_kind(evidence: Evidence) -> VerdictKind:
    """Returns which verdict follows from the evidence."""
    if evidence.diverged:
        return "diverged"
    if evidence.undefined:
        return "undefined"
    return verdict_of(facts(evidence))


def verdict_of(known: Facts) -> VerdictKind:
    """Returns which verdict follows from the facts; "not clear" where they cannot tell."""
    if not known.learned:
        return "nothing learned"
    if known.follows and not (known.forgot == "yes" and known.together):
        return "follows the drift"
    if known.forgot == "yes":
        return "forgotten"
    if known.whole is None:
        return _of_one_question(known.coming if known.other is None else known.other)
    if known.whole == "behind":
        return "one pass" if known.one_pass else "behind"
    if known.whole == "not clear":
        return "not clear"
    return "behind on the next rows" if known.coming == "behind" else "as good"


def _of_one_question(standing: Standing | None) -> VerdictKind:
    """Returns the verdict if no rows of the whole stream are held out."""
    if standing == "behind":
        return "behind"
    return "as good" if standing in ("level", "ahead") else "not clear"


def enough(answer: Answer) -> bool:
    """Whether there are enough rows to judge by, of classes that were learned."""
    return answer.rows >= ENOUGH and not answer.unseen


def compared(answer: Answer) -> Comparison:
    """Returns how the online learner does on one set of rows."""
    constant = answer.baselines[0]
    return Comparison(
        excess=answer.excess,
        accuracy_gap=answer.accuracy_gap,
        constant=constant.online,
        batch_constant=constant.batch,
        enough=enough(answer),
    )


def learner_evidence(diagnosis: Diagnosis) -> Evidence:
    """Returns what was measured about the online learner."""
    excess = [answer.excess.value for answer in diagnosis.answers]
    return Evidence(
        forgetting=diagnosis.forgetting,
        order_cost=diagnosis.order_cost,
        one_pass_cost=diagnosis.one_pass_cost,
        asked={answer.question: compared(answer) for answer in diagnosis.answers},
        drift=diagnosis.drift,
        diverged=diagnosis.diverged,
        undefined=all(math.isnan(value) for value in excess),
    )


def model_evidence(diagnosis: Diagnosis, model: ModelDiagnosis) -> Evidence:
    """Returns what was measured about the user's own model."""
    asked: dict[Question, Comparison] = {}
    diverged = False
    for as_it_came in (score for score in model.scores if score.way == "as it came"):
        question = as_it_came.question
        batch = model.score("batch", question)
        answer = diagnosis.answer(question)
        asked[question] = Comparison(
            excess=UNKNOWN if batch is None else inverted(batch.change),
            accuracy_gap=None,
            constant=as_it_came.constant,
            batch_constant=UNKNOWN if batch is None else batch.constant,
            enough=answer is not None and enough(answer),
        )
        if not model.logged:
            diverged |= not as_it_came.error.value <= DIVERGED * diagnosis.stream.variance
    forgetting = model.forgetting
    if forgetting is not None and diagnosis.forgetting is not None:
        # what can be known together is up to the stream, not to one model of it
        forgetting = replace(forgetting, knowable=diagnosis.forgetting.knowable)
    return Evidence(
        forgetting=forgetting,
        order_cost=model.order_cost,
        one_pass_cost=model.one_pass_cost,
        asked=asked,
        drift=diagnosis.drift,
        diverged=diverged,
    )


def inverted(change: Estimate) -> Estimate:
    """Returns how far the second of two is above the first, from the converse.

    Examples:
        >>> inverted(Estimate(-0.5, -0.75, 0.0))
        Estimate(value=1.0, low=0.0, high=3.0)
    """
    value, low, high = (1 / (1 + end) - 1 if end > -1 else math.inf for end in change)
    return Estimate(value, high, low)


def evidence(diagnosis: Diagnosis) -> Evidence:
    """Returns what was measured about the user's model, if it was run, else the online learner."""
    model = diagnosis.model
    if model is None or model.logged:
        return learner_evidence(diagnosis)
    return model_evidence(diagnosis, model)
