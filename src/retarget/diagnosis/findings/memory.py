"""What was forgotten, and what the order of the rows and the single pass cost."""

import math
from collections.abc import Iterator

from retarget.diagnosis.answers import Estimate
from retarget.diagnosis.facts import evidence, judged
from retarget.diagnosis.findings.kind import Finding, FindingKind
from retarget.diagnosis.result import Diagnosis
from retarget.diagnosis.words.names import error_word
from retarget.diagnosis.words.numbers import multiple, multiples


class Forgotten(FindingKind, name="forgetting"):
    """How much more the learner errs on rows than when they came."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """The increase; `against` is the age at which the error has doubled."""
        forgetting = evidence(diagnosis).forgetting
        if forgetting is not None:
            yield self.finding(
                value=forgetting.value,
                against=math.nan if forgetting.half_life is None else forgetting.half_life,
                effect=forgetting.increase,
                standing=judged(forgetting.increase),
            )

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """The increase as a multiple."""
        return (
            f"Forgetting: on rows held out from the whole stream, the {error_word(diagnosis)} late "
            f"in the stream is {multiple(finding.effect.value)} times what it was when they came "
            f"({multiples(finding.effect)})."
        )


class OrderCost(FindingKind, name="order cost"):
    """What the order of the rows costs."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """The cost, if it is known."""
        cost = self.cost(diagnosis)
        if cost is not None and not math.isnan(cost.value):
            yield self.finding(value=cost.value, effect=cost, standing=judged(cost))

    def cost(self, diagnosis: Diagnosis) -> Estimate | None:
        """Returns the cost with its interval; None if it was not measured."""
        return evidence(diagnosis).order_cost

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """The cost as a multiple."""
        return (
            f"The order: the {error_word(diagnosis)} on these rows is "
            f"{multiple(finding.effect.value)} times its mean over random orders of the stream "
            f"({multiples(finding.effect)})."
        )


class OnePassCost(OrderCost, name="one-pass cost"):
    """What a single pass costs."""

    def cost(self, diagnosis: Diagnosis) -> Estimate | None:
        """Returns the cost with its interval; None if it was not measured."""
        return evidence(diagnosis).one_pass_cost

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """The cost as a multiple."""
        return (
            f"The single pass: that mean over random orders is {multiple(finding.effect.value)} "
            f"times the {error_word(diagnosis)} of a batch model ({multiples(finding.effect)})."
        )
