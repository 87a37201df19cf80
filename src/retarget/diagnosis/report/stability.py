"""Stability in words: how near the rate is to the largest stable one, and the non-normality."""

import math
from dataclasses import dataclass

from retarget.diagnosis.report.words import count, number, percent
from retarget.diagnosis.result import Diagnosis

MEASURED = 2000  # rows whose condition number is taken, at most (see `Stability`)


@dataclass(frozen=True)
class StabilityWords:
    """The section on stability.

    Attributes:
        share: The rate as a percentage of the largest stable one, cut to 0..100: the bar.
        rate: The same in a sentence.
        safe: Whether the rate is stable.
        system: The non-normality in sentences.
    """

    share: float
    rate: str
    safe: bool
    system: str


def stability_words(diagnosis: Diagnosis) -> StabilityWords:
    """The section on stability."""
    rate, largest = diagnosis.lr.value, diagnosis.stability.largest_lr
    share = rate / largest if largest > 0 else math.nan
    safe = not share > 1
    if math.isnan(share):
        words = "The largest stable rate is not defined."
    elif share == 0:
        words = f"The rate is {number(rate)}. Every rate is stable here: the kernel is zero."
    else:
        words = (
            f"The rate is {number(rate)}, {percent(share)} of the largest at which every step is "
            f"stable, {number(largest)}."
        )
    if not safe:
        words += " Above it, steps overshoot and errors grow: use a smaller rate."
    return StabilityWords(
        share=0.0 if math.isnan(share) else 100 * min(share, 1.0),
        rate=words,
        safe=safe,
        system=_system(diagnosis),
    )


def _system(diagnosis: Diagnosis) -> str:
    condition = diagnosis.stability.non_normality
    if math.isnan(condition):
        return "The non-normality of the online system is not defined: it was not computed."
    rows = f" of the first {count(MEASURED)} rows" if len(diagnosis.stream) > MEASURED else ""
    begin = f"Non-normality of the online system (its condition number{rows}): {number(condition)}."
    if condition < 3:
        meaning = "Steps hardly act on each other: an error that a step shrinks stays shrunk."
    elif condition < 100:
        meaning = (
            "Steps act on each other moderately: some errors grow for a while along the stream, "
            "though every single step is stable."
        )
    else:
        meaning = (
            "Steps act on each other strongly: small changes of early targets can come out large "
            "at the end, though every single step is stable. A smaller rate calms this."
        )
    return f"{begin} {meaning}"
