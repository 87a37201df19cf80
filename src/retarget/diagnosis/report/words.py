"""How a diagnosis is worded: numbers, names from the user's table, scores, and the setting."""

import html
import math
import re
from typing import NamedTuple

import numpy as np
from rich.filesize import decimal

from retarget.diagnosis.result import Diagnosis, Estimate, GroupShift, ModelDiagnosis, ModelWay
from retarget.learners import LABELS

SUPERSCRIPTS = str.maketrans(
    "-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
)
MINUS = "\u2212"
TYPED = {raised: plain for plain, raised in SUPERSCRIPTS.items()} | {ord(MINUS): "-"}
# Control characters, those that turn the direction of writing, and halves of characters.
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")
WORTHWHILE = 0.05  # the least relative improvement that is spoken of
MEASURED = 2000  # rows whose condition number is taken, at most (see `Stability`)
# The learner whose mark and colour each way of training the user's model has.
WAYS: dict[ModelWay, str] = {
    "as it came": "online",
    "random order": "one step",
    "batch": "offline",
    "corrected": "corrected",
}


def number(value: float, digits: int = 3) -> str:
    """A number to a few significant digits, without zeros at the end if it is exact.

    Examples:
        >>> [number(x) for x in (0.12345, 0.3602, 0.5, 12345.6, float("nan"))]
        ['0.123', '0.360', '0.5', '12,300', 'not defined']
    """
    if math.isnan(value):
        return "not defined"
    if math.isinf(value):
        return "infinite" if value > 0 else f"{MINUS}infinite"
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = int(exponent)
    if -4 <= power < 7:
        rounded = float(f"{mantissa}e{exponent}")
        text = f"{rounded:,.{max(digits - 1 - power, 0)}f}"
        if rounded == value and "." in text:
            text = text.rstrip("0").rstrip(".")
    else:
        text = f"{mantissa} \u00d7 10{str(power).translate(SUPERSCRIPTS)}"
    return text.replace("-", MINUS)


def percent(share: float) -> str:
    """A share as a percentage, to a digit after the point below 10% and near 100%."""
    if not math.isfinite(share):
        return number(share)
    places = 1 if 0.0005 <= abs(share) < 0.0995 or 0.99 < share < 0.9995 else 0
    # + 0.0: there is no -0%
    return f"{round(100 * share, places) + 0.0:,.{places}f}%".replace("-", MINUS)


def sentence(text: str) -> str:
    """The text with a capital letter at its beginning."""
    return f"{text[0].upper()}{text[1:]}"


def interval(estimate: Estimate, share: bool = False) -> str:
    """The range in which an estimate lies, in words."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return "no interval"
    write = percent if share else number
    return f"{write(estimate.low)} to {write(estimate.high)}"


def with_interval(estimate: Estimate, share: bool = False) -> str:
    """An estimate and its range; a dash for one that is not a finite number.

    Examples:
        >>> with_interval(Estimate(0.84, 0.71, 0.92), share=True)
        '84% (71% to 92%)'
    """
    if not math.isfinite(estimate.value):
        return "-"
    return f"{(percent if share else number)(estimate.value)} ({interval(estimate, share)})"


def opposite(estimate: Estimate) -> Estimate:
    """The estimate of less instead of more."""
    return Estimate(-estimate.value, -estimate.high, -estimate.low)


def clear_gain(effect: Estimate) -> bool:
    """Whether a relative change of the error is an improvement, and not by chance."""
    return effect.value <= -WORTHWHILE and effect.high < 0


def change_words(effect: Estimate) -> str:
    """A relative change of the error in words."""
    if not math.isfinite(effect.value):
        return "not defined"
    if effect.low <= 0 <= effect.high:
        return f"not clearly another one ({interval(effect, share=True)})"
    less = effect.value < 0
    seen = opposite(effect) if less else effect
    word = "lower" if less else "higher"
    return f"{percent(seen.value)} {word} ({interval(seen, share=True)})"


def target_length(diagnosis: Diagnosis) -> float:
    """Mean length of a row's targets."""
    return float(np.linalg.norm(diagnosis.stream.Y, axis=1).mean())


def typed(text: str) -> str:
    """Text with its numbers in characters that every terminal can show.

    Examples:
        >>> typed(number(-1.5e-7))
        '-1.50e-7'
    """
    return text.replace(" \u00d7 10", "e").translate(TYPED)


def name(text: str, longest: int = 60) -> str:
    """A name from the user's file on one line: visible characters only, and not too long.

    A long one loses its middle: names often differ at their ends only.

    Examples:
        >>> name("measurement station 12", longest=12)
        'measur…on 12'
    """
    seen = " ".join(UNSEEN.sub("\ufffd", text).split()) or "(empty)"
    if len(seen) <= longest:
        return seen
    head = longest // 2
    return f"{seen[:head]}\u2026{seen[head + 1 - longest :]}"


def chart_text(text: str, longest: int = 24) -> str:
    """A name with the tags, entities and formulas ($) escaped that Plotly would read in it."""
    return html.escape(name(text, longest), quote=False).replace("$", "&#36;")


class ScoreLine(NamedTuple):
    """A score, as it stands on a line of tables and charts."""

    label: str
    mark: str  # its colour: a key of `retarget.learners.COLOURS`, or "baseline"
    error: Estimate
    accuracy: Estimate | None
    why: str  # it has no score, if it has none

    @property
    def title(self) -> str:
        """The label, as it begins a line of the page."""
        if self.mark == "baseline":
            return f"Baseline, {name(self.label)}"
        return self.label.capitalize()


def learner_lines(diagnosis: Diagnosis) -> list[ScoreLine]:
    """The scores of the four learners."""
    diverged = "its predictions are not finite numbers, so it diverged"
    ahead = "the exact correction has to know the whole stream before it begins"
    progressive = diagnosis.evaluation == "progressive"
    return [
        ScoreLine(
            LABELS[score.learner],
            score.learner,
            score.error,
            score.accuracy,
            ahead if progressive and score.learner == "corrected" else diverged,
        )
        for score in diagnosis.scores
    ]


def baseline_lines(diagnosis: Diagnosis) -> list[ScoreLine]:
    """The scores of the baselines."""
    return [
        ScoreLine(one.name, "baseline", one.error, one.accuracy, "it does not apply here")
        for one in diagnosis.baselines
    ]


def model_lines(model: ModelDiagnosis) -> list[ScoreLine]:
    """The scores of the user's model, by the way in which it was trained."""
    why = "it was not possible, or it failed"
    return [
        ScoreLine(score.way, WAYS[score.way], score.error, score.accuracy, why)
        for score in model.scores
    ]


class Move(NamedTuple):
    """How far learning a group moved the targets of another: an entry of `GroupShift`."""

    learned: str
    moved: str
    size: float
    pull: float

    def words(self, unit: str) -> str:
        """The same as a sentence."""
        effect = ""
        if abs(self.pull) > 0.1 * self.size:
            effect = f", and {'weakened' if self.pull < 0 else 'strengthened'} them"
        return (
            f"Learning {name(self.learned)} moved the targets of {name(self.moved)} by "
            f"{number(self.size)}{unit} on average{effect}."
        )


def largest_moves(groups: GroupShift, most: int = 3) -> list[Move]:
    """The groups that moved another group farthest; empty if no group moved another one."""
    size = np.where(np.isfinite(groups.size), groups.size, 0.0)
    np.fill_diagonal(size, 0.0)
    pairs = [divmod(int(entry), len(size)) for entry in np.argsort(-size, axis=None, kind="stable")]
    return [
        Move(groups.names[g], groups.names[h], float(size[h, g]), float(groups.pull[h, g]))
        for h, g in pairs[:most]
        if size[h, g] > 0
    ]


def setting(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """What was computed, and how: terms and their descriptions."""
    stream, about = diagnosis.stream, diagnosis.approximation
    facts = [
        ("Rows learned from", f"{len(stream):,}"),
        ("Classes" if stream.kind == "classification" else "Targets", _names(stream.target_names)),
        ("Features", f"{len(stream.feature_names):,}: {_names(stream.feature_names)}"),
        ("Tested on", tested_on(diagnosis)),
        ("Kernel", diagnosis.kernel),
        ("Online learner", learner_words(diagnosis)),
        ("Iterative correction", _correction(diagnosis)),
    ]
    if stream.group_column is not None:
        facts.insert(3, ("Groups", f"by {name(stream.group_column)}"))
    if diagnosis.learner.weight_decay:
        facts.append(("Weight decay", number(diagnosis.learner.weight_decay)))
    method = "exact"
    if about is not None:
        method = (
            f"{about.words} instead of the kernel matrix, which would need "
            f"{decimal(about.exact_memory)} of memory, and may have {decimal(about.memory_limit)}"
        )
    return [*facts, ("Method", method)]


def _names(names: tuple[str, ...], most: int = 12) -> str:
    shown = ", ".join(name(text, 40) for text in names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")


def tested_on(diagnosis: Diagnosis) -> str:
    """Which rows the scores are of."""
    rows = f"{diagnosis.test_rows:,}"
    return {
        "last": f"the last {rows} rows of the stream, which no learner has seen",
        "random": f"{rows} rows held out at random all along the stream",
        "test": f"a test set of {rows} rows",
        "progressive": f"{rows} rows, each just before it was learned",
    }[diagnosis.evaluation]


def learner_words(diagnosis: Diagnosis) -> str:
    """The online learner in a few words."""
    learner = diagnosis.learner
    words = f"SGD, one pass, rate {number(diagnosis.lr.value)}"
    if learner.batch_size > 1:
        words += f", mini-batches of {learner.batch_size} (loss: {learner.reduction})"
    if learner.momentum:
        kind = "Nesterov momentum" if learner.nesterov else "momentum"
        words += f", {kind} {number(learner.momentum)}"
    return words


def _correction(diagnosis: Diagnosis) -> str:
    words = f"in blocks of {diagnosis.block_size:,} rows"
    aim, ridge = diagnosis.aim, diagnosis.ridge
    if aim is not None and aim.value != diagnosis.gamma.value:
        words += f", towards the offline learner of ridge {number(aim.value)} ({aim.how})"
    if ridge is not None and ridge.value != 0:
        words += f", steadied by a ridge of {number(ridge.value)} ({ridge.how})"
    return words


def approximation_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """The relative errors of features, measured on a sample; empty if nothing is approximated."""
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

    share: float  # the rate as a percentage of the largest stable one, from 0 to 100: the bar
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
    bar = 0.0 if math.isnan(share) else 100 * min(share, 1.0)
    return StabilityWords(bar, words, safe, _system(diagnosis))


def _system(diagnosis: Diagnosis) -> str:
    condition = diagnosis.stability.non_normality
    if math.isnan(condition):
        return "The non-normality of the online system is not defined: it was not computed."
    if condition < 3:
        meaning = "hardly act on each other: an error that a step shrinks stays shrunk."
    elif condition < 100:
        meaning = (
            "act on each other moderately: some errors grow for a while along the stream, though "
            "every single step is stable."
        )
    else:
        meaning = (
            "act on each other strongly: small changes of early targets can come out large at the "
            "end, though every single step is stable. A smaller rate calms this."
        )
    rows = f" of the first {MEASURED:,} rows" if len(diagnosis.stream) > MEASURED else ""
    return (
        f"Non-normality of the online system (its condition number{rows}): {number(condition)}. "
        f"Steps {meaning}"
    )
