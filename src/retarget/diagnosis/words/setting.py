"""What was computed and how, and what the words of a report mean."""

import math
from typing import NamedTuple

from rich.filesize import decimal

from retarget.diagnosis.answers import Question
from retarget.diagnosis.measure.stability import NON_NORMALITY_ROWS
from retarget.diagnosis.result import Diagnosis
from retarget.diagnosis.words.names import (
    FORGETTING_WORDS,
    ONE_PASS_WORDS,
    ORDER_WORDS,
    kernel_words,
    learner_words,
    listed_names,
    name,
)
from retarget.diagnosis.words.numbers import MINUS, number, percent, sentence


def move_words(move: tuple[str, str, float, float], unit: str) -> str:
    """Says how far learning a group moved another's targets, of `GroupShift.largest_moves`."""
    learned, moved, size, pull = move
    effect = ""
    if abs(pull) > 0.1 * size:
        effect = f", and {'weakened' if pull < 0 else 'strengthened'} them"
    return (
        f"Learning {name(learned)} moved the targets of {name(moved)} by "
        f"{number(size)}{unit} on average{effect}."
    )


def definitions(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Returns the words of the report with their meanings."""
    classes = diagnosis.stream.kind == "classification"
    unit = "1 is one standard deviation of a target."
    if classes:
        unit = "1 is the difference between belonging to a class and not."
    words = [
        ("Batch model", "Kernel ridge regression on all rows at once, whatever their order."),
        ("Online model", "Gradient descent that sees each row once, in order, and never again."),
        (
            "Baseline",
            "A simple predictor. A learner that is not clearly better has learned nothing useful.",
        ),
        ("Forgetting", f"{sentence(FORGETTING_WORDS)}. 1 time: nothing was forgotten."),
        ("Cost of the order", f"{sentence(ORDER_WORDS)}."),
        ("Cost of a single pass", f"{sentence(ONE_PASS_WORDS)}."),
        ("Gap", "How far the online model's error is above the batch model's."),
        (
            "Share of the gap closed",
            f"(online {MINUS} corrected) / (online {MINUS} batch), in the measure named under "
            "“Compared by”: "
            "100% is as good as the batch model, 0% no better than the online model.",
        ),
        ("Effective target", "Trained on them, a batch model would equal the online model."),
        (
            "Shift",
            "Effective minus true target: how far later rows moved what was learned from a row. "
            f"Its length is over all {'classes' if classes else 'targets'}. {unit}",
        ),
        (
            "Exactly corrected",
            "The online model, trained on targets that make it match the batch model at the end. "
            "Computing them needs the whole stream.",
        ),
        (
            "Iteratively corrected",
            "The same block by block, from earlier rows and the block only, so it works while the "
            "stream arrives.",
        ),
        (
            "95% interval",
            "From the means of ten runs of consecutive rows, since the errors on neighboring rows "
            "are alike. For forgetting, rows vary only within strips of the stream. It shows how "
            "certain a number is on rows like these, not what another stream would give.",
        ),
    ]
    if diagnosis.model is not None:
        moved = (
            "Its prediction for a row at the end, minus its prediction right after learning it. It "
            "is measured; no theory is involved."
        )
        words.insert(0, ("Shift of your model", moved))
    return words


def setting(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Returns what was computed and how, as terms and descriptions."""
    stream = diagnosis.stream
    about = diagnosis.approximation
    facts = [
        ("Rows learned from", f"{stream.length:,}"),
        (
            "Classes" if stream.kind == "classification" else "Targets",
            listed_names(stream.target_names),
        ),
        ("Features", f"{len(stream.feature_names):,}: {listed_names(stream.feature_names)}"),
        ("Tested on", tested_on(diagnosis)),
        ("Compared by", diagnosis.metric.words),
        ("Kernel", kernel_words(diagnosis.kernel)),
        ("Online learner", learner_words(diagnosis)),
        ("Iterative correction", _correction(diagnosis)),
    ]
    if stream.group_column is not None:
        facts.insert(3, ("Groups", f"by {name(stream.group_column)}"))
    method = "exact"
    if about is not None:
        method = (
            f"{about.words} instead of the kernel matrix, which would need "
            f"{decimal(about.exact_memory)} (limit: {decimal(about.memory_limit)})"
        )
    return [*facts, ("Method", method)]


def tested_on(diagnosis: Diagnosis) -> str:
    """Says which rows the scores were measured on."""
    words: dict[Question, str] = {
        "whole": "{} rows from the whole stream",
        "next": "its last {} rows (the next ones)",
        "test": "a test set of {} rows",
        "progressive": "{} rows, each just before it was learned",
    }
    parts = [words[one.question].format(f"{one.rows:,}") for one in diagnosis.answers]
    held_out = diagnosis.answers[0].question in ("whole", "next")
    return " and ".join(parts) + ", which no learner has seen" * held_out


def _correction(diagnosis: Diagnosis) -> str:
    words = f"in blocks of {diagnosis.block_size:,} rows"
    gamma = diagnosis.iterative_gamma
    ridge = diagnosis.iterative_ridge
    if gamma is not None and gamma.value != diagnosis.gamma.value:
        words += f", following a batch model with ridge {number(gamma.value)} ({gamma.how})"
    if ridge is not None and ridge.value != 0:
        words += f", with an added ridge of {number(ridge.value)} ({ridge.how})"
    return words


def approximation_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Returns the features' relative errors on a sample; empty if nothing is approximated."""
    about = diagnosis.approximation
    if about is None or about.exact:
        return []
    return [
        ("Kernel entries", percent(about.kernel_error)),
        ("Shifts", percent(about.shift_error)),
        ("Online predictions", percent(about.prediction_error)),
    ]


class StabilityWords(NamedTuple):
    """The section on stability: sentences on the rate and on the non-normality."""

    share: float  # percentage of the largest stable rate, 0 to 100, for the bar
    rate: str
    safe: bool
    system: str


def stability_words(diagnosis: Diagnosis) -> StabilityWords:
    """Words the section on stability."""
    rate = diagnosis.lr.value
    largest = diagnosis.stability.largest_lr
    share = rate / largest if largest > 0 else math.nan
    safe = not share > 1
    if math.isnan(share):
        words = "The largest stable rate is not defined."
    elif share == 0:
        words = f"The rate is {number(rate)}. Every rate is stable here, since the kernel is zero."
    else:
        words = (
            f"The rate is {number(rate)}, {percent(share)} of the largest rate at which every step "
            f"is stable, {number(largest)}."
        )
    if not safe:
        words += " Above it, steps overshoot and errors grow: use a smaller rate."
    bar = 0.0 if math.isnan(share) else 100 * min(share, 1.0)
    return StabilityWords(bar, words, safe, _system(diagnosis))


def _system(diagnosis: Diagnosis) -> str:
    condition = diagnosis.stability.non_normality
    if math.isnan(condition):
        return "The non-normality of the online system is not defined: it was not computed."
    if condition < 3:
        meaning = "hardly affect each other: an error that one step shrinks stays small."
    elif condition < 100:
        meaning = (
            "affect each other moderately: some errors grow for a while along the stream, though "
            "every single step is stable."
        )
    else:
        meaning = (
            "affect each other strongly: small changes of early targets can become large by the "
            "end, though every single step is stable. A smaller rate reduces this."
        )
    rows = ""
    if diagnosis.stream.length > NON_NORMALITY_ROWS:
        rows = f" of the first {NON_NORMALITY_ROWS:,} rows"
    return (
        f"Non-normality of the online system (its condition number{rows}): {number(condition)}. "
        f"Steps {meaning}"
    )
