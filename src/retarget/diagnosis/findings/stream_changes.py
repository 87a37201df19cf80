"""How the stream changes, and what later rows did to what was learned from earlier ones."""

import math
from collections.abc import Iterator, Sequence

from retarget.diagnosis.facts import clear_gain
from retarget.diagnosis.findings.kind import Advice, Finding, FindingKind
from retarget.diagnosis.result import Diagnosis
from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.words.names import moment, name
from retarget.diagnosis.words.numbers import interval, number, opposite, percent

STRONG_INTERFERENCE = 0.25  # movement by one other group, as a share of a target's length
HIDDEN = 2.0  # progressive validation hides an error that is this many times its own


class StreamDrifts(FindingKind, name="drift"):
    """Recent rows teach more than all rows."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """The window, and at how many points of the stream it was compared, if that is clear."""
        drift = diagnosis.drift
        if drift is not None and clear_gain(drift.effect):
            yield self.finding(value=drift.window, against=drift.refits, effect=drift.effect)

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """How much less error recent rows give, and from where on."""
        less = opposite(finding.effect)
        drift = diagnosis.drift
        onset = "" if drift is None else f" from {_row(diagnosis, drift.onset)} on"
        return (
            f"Recent rows predict the next ones better than all rows do: at {finding.against:.0f} "
            f"points of the stream, a batch model of the last {finding.value:,.0f} rows had "
            f"{percent(less.value)} less error on the rows that followed "
            f"({interval(less, share=True)}), mostly{onset}. The stream drifts, or is sorted."
        )

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """To compare with a batch model of recent rows."""
        for one in findings if diagnosis.aim == "all" else ():
            yield self.tip(
                "If old rows are out of date, compare with a batch model of recent rows: "
                f"{spelled('aim', f'window:{one.value:.0f}')}."
            )


def _row(diagnosis: Diagnosis, number: int) -> str:
    """Returns a row by its number in the user's file, with the time when it came if it has one."""
    stream = diagnosis.stream
    words = f"row {number:,}"
    if stream.times is not None:
        words += f" ({moment(stream.times[stream.rows == number][0])})"
    return words


class ForgettingHidden(FindingKind, name="hidden"):
    """Progressive validation hides what was forgotten."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """The error before each row was learned, and at the end."""
        before = diagnosis.prequential_error
        at_the_end = diagnosis.hindsight
        if not diagnosis.diverged and before > 0 and at_the_end > HIDDEN * before:
            yield self.finding(value=before, against=at_the_end)

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """Both errors."""
        return (
            "Progressive validation hides what was forgotten: just before each row was "
            f"learned, the online model's squared error on it was {number(finding.value)}; at the "
            f"end it is {number(finding.against)} on the same rows."
        )


def mean_shift(diagnosis: Diagnosis) -> float:
    """Returns how far learning moved a row's targets, relative to their size; NaN if undefined."""
    shift = float(diagnosis.shift_size.mean())
    length = diagnosis.stream.target_length
    if diagnosis.diverged or not math.isfinite(shift) or not length:
        return math.nan
    return shift / length


class TargetsMoved(FindingKind, name="shift"):
    """How far later rows moved the targets of earlier ones."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """The mean movement, and the share of rows whose class or side of the mean changed."""
        movement = mean_shift(diagnosis)
        if not math.isnan(movement):
            yield self.finding(value=movement, against=float(diagnosis.changed.mean()))

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """Both shares."""
        classes = diagnosis.stream.kind == "classification"
        moved = "now have another class" if classes else "moved across the mean"
        return (
            f"On average, later rows moved a row's target by {percent(finding.value)} of its size; "
            f"{percent(finding.against)} of the rows {moved}."
        )


class GroupMovedAnother(FindingKind, name="interference"):
    """Learning one group moved the targets of another far."""

    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """The largest movement, if it is strong."""
        length = diagnosis.stream.target_length
        if math.isnan(mean_shift(diagnosis)):
            return
        for learned, moved, size, pull in diagnosis.groups.largest_moves(most=1):
            if size >= STRONG_INTERFERENCE * length:
                yield self.finding(
                    value=size / length, against=pull / length, subject=learned, other=moved
                )

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """Which group moved which, and where to."""
        effect = "weakening" if finding.against < 0 else "strengthening"
        learned, moved = (f"'{name(group)}'" for group in (finding.subject, finding.other))
        if diagnosis.stream.groups is None:  # consecutive parts of the stream
            learned = f"{finding.subject} of {len(diagnosis.groups.names)}"
            moved = finding.other
        return (
            f"Learning {learned} moved the targets of {moved} by "
            f"{percent(finding.value)} of their size on average, {effect} them by "
            f"{percent(abs(finding.against))}."
        )
