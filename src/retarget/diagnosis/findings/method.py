"""How far numbers and corrected targets can be relied on, and what would make them better."""

from collections.abc import Iterator, Sequence

from rich.filesize import decimal

from retarget.diagnosis.answers import TOO_LARGE, UNKNOWN
from retarget.diagnosis.facts import Facts, clear_gain, enough, judged
from retarget.diagnosis.findings.changes import CORRECTIONS
from retarget.diagnosis.findings.kind import Advice, Finding, FindingKind
from retarget.diagnosis.measure.holdout import ENOUGH
from retarget.diagnosis.result import Diagnosis, VerdictKind
from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.words.names import too_few
from retarget.diagnosis.words.numbers import interval, number, opposite, percent
from retarget.diagnosis.words.setting import approximation_rows

ROUNDING = 0.01  # difference allowed between exactly corrected and batch predictions
NEAR_LIMIT = 0.8  # share of the largest stable rate
POOR_FEATURES = 0.2  # relative error of the shift


class RoundingHurts(FindingKind, name="rounding"):
    """The exact correction does not survive rounding."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """How far its learner ends from the batch model."""
        if diagnosis.exactness > ROUNDING:
            yield self.finding(value=diagnosis.exactness, against=ROUNDING)

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """The difference."""
        return (
            "The exact correction does not survive rounding: trained on its targets, the online "
            f"model's predictions differ from the batch model's by {percent(finding.value)}."
        )


class LargeTargets(FindingKind, name="large targets"):
    """Corrected targets are too large for anything but the kernel learner."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """One finding for each correction."""
        for learner in CORRECTIONS:
            size = diagnosis.target_size[learner]
            if size > TOO_LARGE:
                yield self.finding(value=size, against=TOO_LARGE, subject=learner)

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """How far they reach."""
        how = "exactly" if finding.subject == "corrected" else "iteratively"
        return (
            f"The {how} corrected targets reach {number(finding.value)} standard deviations from "
            f"the mean (usable: up to {TOO_LARGE:.0f}): train only this kernel model on them."
        )


class SmootherFollowed(FindingKind, name="smoother"):
    """The iterative correction follows a smoother batch model."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """Its ridge, if it was chosen, beside that of the batch model."""
        gamma = diagnosis.iterative_gamma
        if gamma is not None and gamma.automatic and gamma.value != diagnosis.gamma.value:
            yield self.finding(value=gamma.value, against=diagnosis.gamma.value)

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """Both ridges, and why."""
        return (
            f"The iterative correction follows a smoother batch model, with ridge "
            f"{number(finding.value)} instead of {number(finding.against)}: this brings the "
            "learner closer to the batch model, with targets of usable size."
        )


class RidgeAdded(FindingKind, name="ridge"):
    """A ridge was added to the iterative correction."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """The ridge, if it was chosen, and of how many."""
        ridge = diagnosis.iterative_ridge
        if ridge is not None and ridge.automatic and ridge.value != 0:
            yield self.finding(value=ridge.value, against=len(ridge.tried))

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """The ridge."""
        return (
            f"Chose ridge {number(finding.value)} for the iterative correction, of "
            f"{finding.against:.0f} tried: closest to the batch model with targets of usable size."
        )


class FeaturesUsed(FindingKind, name="features"):
    """Features are used instead of the kernel."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """How many, and the bytes that the exact method would need."""
        about = diagnosis.approximation
        if about is not None:
            memory = about.exact_memory
            yield self.finding(value=about.features, against=memory, subject=about.words)

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """What they cost, as relative errors."""
        about = diagnosis.approximation
        if about is None:
            return ""
        rows = approximation_rows(diagnosis)
        errors = ", ".join(f"{what.lower()} {error}" for what, error in rows)
        measured = f"relative errors on {about.sample:,} rows: {errors}."
        return (
            f"{finding.subject} are used instead of the kernel matrix, which would need "
            f"{decimal(about.exact_memory)}; "
            f"{'nothing is approximated.' if about.exact else measured}"
        )


class NearLimit(FindingKind, name="near limit"):
    """The rate is near the largest stable one, or above it."""

    silent = "the advice says it, and the page has a section about it"

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """The rate, if it was given or diverges, and the largest stable one."""
        rate = diagnosis.lr.value
        limit = diagnosis.stability.largest_lr
        near = rate > NEAR_LIMIT * limit and not diagnosis.lr.automatic
        if diagnosis.diverged or near:
            yield self.finding(value=rate, against=limit)

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """To lower it, and which of those that were tried does best."""
        for one in findings:
            rate = number(one.value)
            limit = number(one.against)
            why = f"{rate} is {percent(one.value / one.against)} of the largest stable one"
            if one.value > one.against:
                why = f"at {rate} some steps make their own error larger"
            text = f"Lower the rate: {why}; steps are stable up to lr = {limit}."
            yield Advice("rate", text + self._best_rate(diagnosis))

    def has_room(self, verdict: VerdictKind, known: Facts) -> bool:
        """Also where the learner diverges."""
        return verdict not in ("undefined", "nothing learned")

    def _best_rate(self, diagnosis: Diagnosis) -> str:
        """Names the best of the rates that were tried, if it is another."""
        lr = diagnosis.lr
        tried = lr.tried.drop_nulls().sort("score")
        if tried.is_empty() or tried["value"][0] == lr.value:
            return ""
        best = number(tried["value"][0])
        return (
            f" Of {len(lr.tried)} rates tried, lr = {best} has the smallest error on each row "
            "before it was learned."
        )


class FewRows(FindingKind, name="few rows"):
    """There are too few rows of classes that were learned to judge by."""

    silent = "the headline and the advice say it"

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """How many there are on each question, and how many are needed."""
        for answer in diagnosis.answers:
            if not enough(answer):
                reason = "unseen classes" if answer.unseen else ""
                yield self.finding(
                    answer.question, value=answer.rows, against=ENOUGH, subject=reason
                )

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """To collect more."""
        few = [answer for answer in diagnosis.answers if not enough(answer)]
        yield Advice("rows", f"Collect more rows before you act: {too_few(few)}.")

    def has_room(self, verdict: VerdictKind, known: Facts) -> bool:
        """Also where nothing was learned."""
        return verdict not in ("diverged", "undefined")


class PoorFeatures(FindingKind, name="poor features"):
    """The features do not approximate the kernel well enough."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """The error of the shift, and what a batch model with the true kernel gains."""
        about = diagnosis.approximation
        if about is None:
            return
        gain = about.true_kernel or UNKNOWN
        if about.shift_error > POOR_FEATURES or clear_gain(gain):
            yield self.finding(
                value=about.shift_error,
                against=about.sample,
                effect=gain,
                standing=judged(gain),
                subject=about.words,
            )

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """What they cost the batch model, where that is clear."""
        if not clear_gain(finding.effect):
            return ""
        less = opposite(finding.effect)
        return (
            f"The features limit the batch model: with the true kernel, {finding.against:,.0f} of "
            f"the rows alone give {percent(less.value)} less error "
            f"({interval(less, share=True)})."
        )

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """To use more of them, or fewer rows."""
        for one in findings:
            yield self.tip(
                f"Use more than {one.subject}, by {spelled('features')}, or diagnose fewer rows "
                "exactly (neither was tried here): the features do not approximate the kernel well "
                "enough."
            )
